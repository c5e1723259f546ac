"""An interactive page as one file, which needs no network, no server and no other file.

The parts of the page are plain files in `page_files/`: one HTML frame, style sheet, and small ES
modules. A page that is opened from disk cannot import modules that
lie beside it, so they are joined when the page is written, by one rule (`join_modules`). Nothing
else is built.
"""

from __future__ import annotations

import json
import platform
import re
import sys
import zlib
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from importlib import metadata, resources
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.merging import NAMES
from attnviz.result import Attention
from attnviz.trace import Step

LARGE_PAGE = 30_000_000
"""Bytes from which on a browser is felt to wait."""


MODULES = (
    "tokens",
    "run",
    "colours",
    "state",
    "scene",
    "parts",
    "data",
    "paint",
    "axis",
    "heat",
    "words",
    "card",
    "sentences",
    "matrix",
    "head",
    "lines",
    "text",
    "trace",
    "download",
    "shell",
    "main",
)
"""The page's modules; each imports only those before it."""


def assemble(document: object, data: Mapping[str, str]) -> bytes:
    """The page: `document` as JSON, and each of `data`, base64 text, in an element of its name."""
    style = page_file("page.css")
    script = join_modules([(name, page_file(f"{name}.js")) for name in MODULES])
    elements = [
        f'<script type="text/plain" id="{name}">{text}</script>' for name, text in data.items()
    ]
    parts = {
        "policy": (
            f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
            "img-src data: blob:; base-uri 'none'; form-action 'none'"
        ),
        "style": style,
        "run": as_json(document),
        "data": "\n".join(elements),
        "script": script,
    }
    return "".join(_filled(page_file("page.html"), parts)).encode("utf-8")


def join_modules(sources: Sequence[tuple[str, str]]) -> str:
    """Turn `(name, source)` modules, in order, into one script.

    The rule: `import * as NAME from "./NAME.js";` lines go, the word `export` goes, and the module
    becomes `const NAME = (() => { …; return { what it exported }; })();`. So a name that a module
    does not export stays its own, and `NAME.thing` means the same before and after.
    """
    return "\n".join(_module(name, source) for name, source in sources)


def _module(name: str, source: str) -> str:
    body = re.sub(r'^import \* as (\w+) from "\./\1\.js";\n', "", source, flags=re.M)
    exported = re.findall(r"^export (?:async )?(?:function|const) (\w+)", body, flags=re.M)
    body = re.sub(r"^export ", "", body, flags=re.M)
    return (
        f"// ── {name}.js ──\nconst {name} = (() => {{\n{body}"
        f"return {{ {', '.join(exported)} }};\n}})();\n"
    )


def page_file(name: str) -> str:
    """One of the pages' own files, as text."""
    return (resources.files("attnviz.render") / "page_files" / name).read_text(encoding="utf-8")


def packed(data: bytes) -> str:
    """Compressed, in base64."""
    return b64encode(zlib.compress(data, 6)).decode("ascii")


def as_json(document: object) -> str:
    """JSON that can stand inside a script element: no `<`, `>` or `&` is written as itself."""
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _filled(template: str, parts: Mapping[str, str]) -> Iterator[str]:
    """Put the parts in the places of `{{name}}`; what a part holds is not looked at again."""
    for i, piece in enumerate(re.split(r"\{\{(\w+)\}\}", template)):
        yield parts[piece] if i % 2 else piece


def _hash(source: str) -> str:
    """The name by which the policy lets one inline part run: of the text between its tags."""
    return f"sha256-{b64encode(sha256(source.encode('utf-8')).digest()).decode('ascii')}"


# ── facts of a run ───────────────────────────────────────────────────────────────────────────


def run_facts(
    result: Attention,
    heads: Sequence[tuple[int, int]],
    steps: Sequence[Step],
    command: str,
) -> dict[str, Any]:
    """What every page says of the run that it shows; `heads` are (place of the layer, head)."""
    return {
        "source": without_folders(result.source),
        "trained": result.trained,
        "masks": list(result.masks),
        "notes": [without_folders(note) for note in result.notes],
        "config": [
            [str(key), without_folders(_shown(value))]
            for key, value in result.config.items()
            if key not in NAMES
        ],
        "command": without_folders(command),
        "versions": _versions(),
        "heads": [[result.layer_numbers[layer], head] for layer, head in heads],
        "namesLayers": result.names_layers,
        "layers": result.n_layers,
        "headsPerLayer": result.n_heads,
        "cross": result.is_cross,
        "steps": [_step(step) for step in steps],
    }


def without_folders(text: str) -> str:
    """`text` with the names of files alone where it has paths: a page is for others to read."""
    return "".join(_file_name(word) for word in re.split(r"""([\s,;()"'=]+)""", text))


def _file_name(word: str) -> str:
    if "/" not in word and "\\" not in word:
        return word
    absolute = re.match(r"(~|\.{1,2})?/.*[^/]|[A-Za-z]:\\|(?:\.{1,2}|~)\\", word)
    try:
        local = bool(absolute) or Path(word).exists() or Path(word).parent.is_dir()
    except (OSError, ValueError):
        local = bool(absolute)
    return re.split(r"[/\\]", word.rstrip("/\\"))[-1] if local else word


def all_heads(result: Attention) -> list[tuple[int, int]]:
    return [(layer, head) for layer in range(result.n_layers) for head in range(result.n_heads)]


def chosen_values(
    measures: Mapping[str, npt.NDArray[np.float64]], heads: Sequence[tuple[int, int]]
) -> dict[str, list[float | None]]:
    """Each measure of the chosen heads; None where it is no number."""
    return {
        name: [_number(values[layer, head]) for layer, head in heads]
        for name, values in measures.items()
    }


def _step(step: Step) -> dict[str, Any]:
    return {
        "name": step.name,
        "stage": step.stage,
        "words": step.words,
        "axes": list(step.axes),
        "shape": list(step.shape),
        "dtype": step.dtype,
        "isView": step.is_view,
        "isContiguous": step.is_contiguous,
        "nbytes": step.nbytes,
        "parameters": [[name, list(axes), list(shape)] for name, axes, shape in step.parameters],
        "matmulFlops": step.matmul_flops,
        "elementwiseFlops": step.elementwise_flops,
        "source": step.source,
    }


def _number(value: float) -> float | None:
    return float(value) if isfinite(value) else None


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _versions() -> list[list[str]]:
    """What drew the page. torch is asked for its version without being imported."""
    from attnviz import __version__

    return [
        ["attnviz", __version__],
        ["Python", platform.python_version()],
        ["NumPy", np.__version__],
        ["PyTorch", metadata.version("torch")],
        ["zlib", zlib.ZLIB_RUNTIME_VERSION],
        ["system", sys.platform],
    ]
