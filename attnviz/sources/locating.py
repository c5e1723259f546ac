"""Where a pretrained model is: what a person called it, before anything is loaded, torch least."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnviz.errors import InputError, printable
from attnviz.machine import require_package


def locate(source: str) -> tuple[dict[str, str], dict[str, Any]]:
    """`{"local": folder}` or `{"name": …}`, and the options that go with it."""
    path = Path(source).expanduser()
    shown = printable(source)
    if path.is_dir():
        if not (path / "config.json").is_file():
            files = sorted(path.glob("*.gguf"))
            if len(files) == 1:
                return locate(str(files[0]))
            hint = f"name one of its files: {printable(files[0].name)}, say" if files else ""
            hint = (
                hint or "a folder made by save_pretrained, or a snapshot from the hub, is expected"
            )
            raise InputError(f"--model {shown}: there is no config.json in that folder; {hint}")
        return {"local": str(path)}, {}
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise InputError(f"--model {shown}: there is no such file")
        for package in ("gguf", "accelerate"):
            require_package(package, f"--model {shown}", "models")
        return {"local": str(path.parent)}, {"gguf_file": path.name}
    if path.is_file():
        raise InputError(
            f"--model {shown} is a file; a model's folder, a .gguf file or a name on the hub is "
            "expected (--weights reads the parameters of single layers)"
        )
    named = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source, re.ASCII)
    if not named or source.startswith((".", "~", os.sep)):
        raise InputError(f"--model {shown}: there is no such folder")
    return {"name": source}, {}


def name_of(source: str, options: Mapping[str, Any]) -> str:
    """The name of a model in titles and saved runs: no path of this machine."""
    if "gguf_file" in options:
        return printable(Path(options["gguf_file"]).stem)
    path = Path(source).expanduser()
    return printable((path.name or path.resolve().name) if path.is_dir() else source)
