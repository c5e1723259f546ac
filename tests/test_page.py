"""The page's file: what is in it, and that it can be read back exactly as it says."""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode, b64encode
from dataclasses import dataclass
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from attnviz.measures import MEASURES, measure
from attnviz.render import one_file, page, pooled_page
from attnviz.result import Attention
from attnviz.trace import Step

L, B, H, TQ, TK = 2, 3, 3, 5, 7  # primes, so that a swapped axis cannot pass by luck


def make_result(seed: int = 0, allowed: np.ndarray | None = None, **rest: Any) -> Attention:
    """A padded batch of cross attention: lengths 5, 4, 0 and 7, 6, 1."""
    rng = np.random.default_rng(seed)
    if allowed is None:
        allowed = np.ones((L, B, 1, TQ, TK), dtype=bool)
        allowed[:, 1, :, :, 6:] = False
        allowed[:, 2, :, :, 1:] = False
    scores = np.where(allowed, rng.normal(size=(L, B, H, TQ, TK)) * 2, -np.inf)
    attention = np.exp(scores - scores.max(-1, keepdims=True, initial=-1e9))
    attention /= np.maximum(attention.sum(-1, keepdims=True), 1e-300)
    queries = tuple(tuple(f"q{b}{t}" for t in range(TQ)) for b in range(B))
    keys = tuple(tuple(f"k{b}{t}" for t in range(TK)) for b in range(B))
    facts: dict[str, Any] = {"masks": ("padding",), "source": "made up", "trained": True, **rest}
    return Attention(
        attention.astype(np.float32),
        allowed,
        query_tokens=queries,
        key_tokens=keys,
        lengths=np.array([5, 4, 0]),
        key_lengths=np.array([7, 6, 1]),
        **facts,
    )


STEP = Step(
    name="q_projected",
    axes=("B", "Tq", "H·d_k"),
    shape=(2, 3, 4),
    dtype="float32",
    item_bytes=4,
    is_view=False,
    is_contiguous=True,
    parameters=(("weight", ("H·d_k", "d_model"), (4, 8)),),
    sums_over="d_model",
    summed=8,
    flops_each=1,
    source="attention.py:1",
)


# ── reading a page back ──────────────────────────────────────────────────────────────────────


class Elements(HTMLParser):
    """The elements of a page as a browser's parser sees them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inline: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.inline.append((tag, dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.inline and self.lasttag in ("script", "style") and not data.isspace():
            tag, attributes, text = self.inline[-1]
            self.inline[-1] = (tag, attributes, text + data)


@dataclass
class Page:
    text: str
    elements: Elements
    run: dict[str, Any]
    weights: list[str]
    masks: list[str]

    def codes(self, line: int) -> np.ndarray:
        data = zlib.decompress(b64decode(self.weights[line]))
        kind = "<u2" if self.run["wide"] else "u1"
        return np.frombuffer(data, dtype=kind).reshape(self.run["queries"], self.run["keys"])

    def values(self, sequence: int, head: int) -> np.ndarray:
        """What the page shows as one head's weights, by the rule in the module's text."""
        codes = self.codes(sequence * len(self.run["heads"]) + head).astype(np.int64)
        one = self.run["sequences"][sequence]
        values = one["low"][head] + (codes - 1) * one["step"][head]
        values[codes == 0] = 0
        values[codes == (65535 if self.run["wide"] else 255)] = np.nan
        return values

    def allowed(self, sequence: int, head: int) -> np.ndarray:
        shape = (self.run["queries"], self.run["keys"])
        index = self.run["sequences"][sequence]["masks"][head]
        if index < 0:
            return np.ones(shape, dtype=bool)
        bits = np.frombuffer(zlib.decompress(b64decode(self.masks[index])), dtype=np.uint8)
        return np.unpackbits(bits, count=shape[0] * shape[1]).reshape(shape).astype(bool)


def read(path: Path) -> Page:
    text = path.read_bytes().decode("utf-8")
    elements = Elements(text)
    data = {attributes.get("id"): body for _, attributes, body in elements.inline}
    return Page(
        text,
        elements,
        json.loads(data["run"]),
        data["weights"].split("\n"),
        data["masks"].split("\n"),
    )


def written(tmp_path: Path, result: Attention, **options: Any) -> Page:
    page.write_page(result, tmp_path / "page.html", **options)
    return read(tmp_path / "page.html")


# ── weights ──────────────────────────────────────────────────────────────────────────────────

finite = st.floats(-4, 4, width=32).map(lambda x: 0.0 if abs(x) < 1e-20 else x)


@given(
    npst.arrays(np.float32, (3, 5), elements=finite),
    st.sampled_from([page.FINEST, page.SHARPEST, 90, 16]),
)
def test_quantised_weights_are_as_exact_as_they_say(weights: np.ndarray, steps: int) -> None:
    codes, low, step, error = page.quantise(weights, steps)
    values = np.where(codes == 0, 0, low + (codes.astype(np.int64) - 1) * step)
    exact = weights.astype(np.float64)
    assert np.abs(values - exact).max() <= error
    span = max(exact.max(), 0) - min(exact.min(), 0)
    assert error <= span / steps / 2 + 1e-5
    assert ((codes == 0) == (weights == 0)).all()
    assert codes.max() <= steps + 1
    assert codes.dtype == (np.uint16 if steps == page.FINEST else np.uint8)


@pytest.mark.parametrize("steps", [page.FINEST, page.SHARPEST])
def test_what_is_no_number_is_kept_apart(steps: int) -> None:
    weights = np.array([[0.5, np.nan, 0], [np.inf, -np.inf, 1]], dtype=np.float32)
    codes, low, step, error = page.quantise(weights, steps)
    top = np.iinfo(codes.dtype).max
    assert (codes == top).tolist() == [[False, True, False], [True, True, False]]
    assert low + (int(codes[1, 2]) - 1) * step == pytest.approx(1, abs=error)
    assert codes[0, 2] == 0


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_weights_too_small_for_steps_are_not_called_zero(dtype: type) -> None:
    tiny = np.array([[0, np.finfo(dtype).smallest_subnormal]], dtype=dtype)
    codes, low, step, error = page.quantise(tiny, page.SHARPEST)
    assert codes[0, 0] == 0
    assert codes[0, 1] > 0
    assert abs(low + (int(codes[0, 1]) - 1) * step - float(tiny[0, 1])) <= error


def test_all_zero_is_all_zero() -> None:
    codes, low, step, error = page.quantise(np.zeros((2, 2)), page.SHARPEST)
    assert not codes.any()
    assert (low, step, error) == (0, 0, 0)


@pytest.mark.parametrize("fine_cells", [2**18, 0])
def test_a_page_holds_every_weight_within_the_error_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fine_cells: int
) -> None:
    monkeypatch.setattr(page, "FINE_CELLS", fine_cells)
    result = make_result()
    found = written(tmp_path, result)
    assert found.run["wide"] == (fine_cells > 0)
    assert found.run["levels"] == (65534 if fine_cells else 254)
    assert found.run["error"] < (1e-5 if fine_cells else 2.1e-3)
    assert found.run["heads"] == [[layer, head] for layer in range(L) for head in range(H)]
    for s in range(B):
        for i, (layer, head) in enumerate(found.run["heads"]):
            exact = result.attention[layer, s, head].astype(np.float64)
            assert np.abs(found.values(s, i) - exact).max() <= found.run["error"]
            assert ((found.codes(s * L * H + i) == 0) == (exact == 0)).all()


def test_a_page_too_large_gets_coarser_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    scores = np.exp(rng.normal(size=(2, 1, 2, 288, 288)))
    attention = (scores / scores.sum(-1, keepdims=True)).astype(np.float32)
    tokens = (tuple("x" * 288),)
    result = Attention(
        attention,
        np.ones((2, 1, 1, 288, 288), dtype=bool),
        query_tokens=tokens,
        key_tokens=tokens,
        lengths=np.array([288]),
        key_lengths=np.array([288]),
    )
    path = tmp_path / "page.html"
    sizes = {}
    for budget in (10**7, 220_000, 120_000, 1):
        monkeypatch.setattr(page, "WEIGHTS_BUDGET", budget)
        notices = page.write_page(result, path)
        found = read(path)
        sizes[budget] = sum(map(len, found.weights))
        error = found.run["error"]
        assert (
            max(np.abs(found.values(0, i) - attention[i // 2, 0, i % 2]).max() for i in range(4))
            <= error
        )
        if budget == 10**7:
            assert notices == []
            assert found.run["levels"] == 254
        else:
            assert notices == [
                f"weights on the page have {found.run['levels']} levels a head to keep it small: "
                f"the largest error is {error:.2g}; "
                "--heads and --sequences choose fewer, and sharper"
            ]
    assert sizes[220_000] <= 220_000
    assert sizes[120_000] <= 120_000
    assert found.run["levels"] == 17  # the fewest that there are, whatever the budget


def test_a_huge_page_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "LARGE_PAGE", 1000)
    assert page.write_page(make_result(), tmp_path / "page.html") == [
        "the page has 0 MB and opens slowly; --heads and --sequences make it smaller"
    ]


# ── masks, measures, facts ───────────────────────────────────────────────────────────────────


def test_masks_are_kept_bit_by_bit_and_each_once(tmp_path: Path) -> None:
    result = make_result()
    found = written(tmp_path, result)
    assert len(found.masks) == 2
    assert [one["masks"] for one in found.run["sequences"]] == [[-1] * 6, [0] * 6, [1] * 6]
    for s in range(B):
        assert (found.allowed(s, 0) == result.allowed[0, s, 0]).all()


def test_masks_of_single_heads(tmp_path: Path) -> None:
    allowed = np.random.default_rng(1).random((L, B, H, TQ, TK)) < 0.6
    result = make_result(allowed=allowed)
    found = written(tmp_path, result)
    for s in range(B):
        for i, (layer, head) in enumerate(found.run["heads"]):
            assert (found.allowed(s, i) == allowed[layer, s, head]).all()


def test_largest_leaves_out_what_is_not_shown(tmp_path: Path) -> None:
    result = make_result()
    result.attention[0, 1, 0] = 0.125
    result.attention[0, 1, 0, 4, 0] = 0.75  # a padded query
    result.attention[0, 1, 0, 0, 6] = 0.5  # a padded, forbidden key
    result.attention[0, 1, 1, 0, 0] = np.inf
    result.attention[0, 1, 1, 1:] = 0.25
    result.attention[0, 1, 1, 0, 1:] = 0.25
    one = written(tmp_path, result).run["sequences"][1]
    assert one["largest"][:2] == [0.125, 0.25]
    assert one["queryReal"] == [0, 4]
    assert one["keyReal"] == [0, 6]


def test_measures_are_those_of_stats(tmp_path: Path) -> None:
    result = make_result()
    found = written(tmp_path, result)
    assert found.run["measures"] == MEASURES
    for s, one in enumerate(found.run["sequences"]):
        expected = measure(result, s).result()
        for name in MEASURES:
            values = [expected[name][layer, head] for layer, head in found.run["heads"]]
            assert one["measures"][name] == [None if np.isnan(v) else v for v in values]
    assert found.run["sequences"][2]["measures"]["entropy"] == [None] * 6


def test_chosen_heads_and_sequences_alone(tmp_path: Path) -> None:
    result = make_result()
    found = written(tmp_path, result, heads=[(1, 2), (0, 1)], sequences=[1])
    assert found.run["heads"] == [[1, 2], [0, 1]]
    assert [one["index"] for one in found.run["sequences"]] == [1]
    assert len(found.weights) == 2
    assert np.allclose(found.values(0, 0), result.attention[1, 1, 2], atol=1e-5)
    assert np.allclose(found.values(0, 1), result.attention[0, 1, 1], atol=1e-5)
    assert (found.allowed(0, 0) == result.allowed[1, 1, 0]).all()


def test_padding_on_the_left_is_found(tmp_path: Path) -> None:
    one = written(tmp_path, make_result(pad_side="left")).run["sequences"]
    assert [s["queryReal"] for s in one] == [[0, 5], [1, 5], [0, 0]]
    assert [s["keyReal"] for s in one] == [[0, 7], [1, 7], [6, 7]]


def test_prompt_and_answer_are_told_apart(tmp_path: Path) -> None:
    plain, right = make_result(), make_result(n_prompt=(3, 2, 0), notes=("made so",))
    left = make_result(n_prompt=(3, 2, 0), pad_side="left")
    answers = [
        [s["answer"] for s in written(tmp_path, result).run["sequences"]]
        for result in (plain, right, left)
    ]
    assert answers == [[None] * 3, [3, 2, 0], [3, 3, 0]]
    written_by_model = "the model wrote what stands after the line, in bold in the text"
    assert written(tmp_path, right).run["notes"] == ["made so", written_by_model]
    assert written(tmp_path, plain).run["notes"] == []


def test_what_is_known_of_pieces_is_no_line_of_the_page(tmp_path: Path) -> None:
    config = {"model": "m", "query_pieces": [{}] * 3, "key_pieces": [{}] * 3}
    assert written(tmp_path, make_result(config=config)).run["config"] == [["model", "m"]]


def test_the_facts_of_the_run(tmp_path: Path) -> None:
    config = {"d_model": 64, "positions": "none", "broken": float("nan")}
    result = make_result(config=config, trained=False)
    found = written(tmp_path, result, steps=[STEP], command="attnviz run '<b>' & more")
    assert found.run["command"] == "attnviz run '<b>' & more"
    assert found.run["trained"] is False
    assert found.run["cross"] is True
    assert found.run["masks"] == ["padding"]
    assert found.run["config"] == [["d_model", "64"], ["positions", "none"], ["broken", "NaN"]]
    assert [name for name, _ in found.run["versions"]] == [
        "attnviz",
        "Python",
        "NumPy",
        "PyTorch",
        "zlib",
        "system",
    ]
    assert found.run["steps"] == [
        {
            "name": "q_projected",
            "stage": "project",
            "words": STEP.words,
            "axes": ["B", "Tq", "H·d_k"],
            "shape": [2, 3, 4],
            "dtype": "float32",
            "isView": False,
            "isContiguous": True,
            "nbytes": 96,
            "parameters": [["weight", ["H·d_k", "d_model"], [4, 8]]],
            "matmulFlops": 384,
            "elementwiseFlops": 24,
            "source": "attention.py:1",
        }
    ]


def test_self_attention_names_its_tokens_once(tmp_path: Path) -> None:
    tokens = (("a", "b", "c"),)
    result = Attention(
        np.full((1, 1, 1, 3, 3), 1 / 3),
        np.ones((1, 1, 1, 3, 3), dtype=bool),
        query_tokens=tokens,
        key_tokens=tokens,
        lengths=np.array([3]),
        key_lengths=np.array([3]),
    )
    one = written(tmp_path, result).run["sequences"][0]
    assert one["queryTokens"] == ["a", "b", "c"]
    assert one["keyTokens"] is None


# ── one file, and nothing from outside ───────────────────────────────────────────────────────


def test_same_input_same_bytes(tmp_path: Path) -> None:
    for name in ("one.html", "two.html"):
        page.write_page(make_result(), tmp_path / name, steps=[STEP], command="c")
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<!--<script>",
    "\u202eevil\u2066",
    "\ud800",
    "{{script}}",
    "&lt;\n\r\0",
)


@pytest.mark.parametrize("token", HOSTILE)
def test_a_token_never_becomes_markup(tmp_path: Path, token: str) -> None:
    plain = written(tmp_path, make_result())
    rows = tuple((token,) * TQ for _ in range(B))
    result = make_result(source=token, masks=(token,), config={token: token})
    hostile = Attention(**{**vars(result), "query_tokens": rows})
    found = written(tmp_path, hostile, command=token)
    assert found.elements.tags == plain.elements.tags
    assert found.run["sequences"][0]["queryTokens"] == [token] * TQ
    assert found.run["command"] == found.run["source"] == token


def test_the_policy_names_exactly_what_is_inline(tmp_path: Path) -> None:
    found = written(tmp_path, make_result())
    metas = [a for tag, a in found.elements.tags if tag == "meta" and "http-equiv" in a]
    assert metas[0]["http-equiv"] == "Content-Security-Policy"
    policy = dict(part.strip().split(" ", 1) for part in (metas[0]["content"] or "").split(";"))
    inline = re.findall(r"<(style|script)( type=\"module\")?>(.*?)</\1>", found.text, re.S)
    raw = {tag: body for tag, _, body in inline}
    hashes = {
        tag: f"'sha256-{b64encode(sha256(body.encode()).digest()).decode()}'"
        for tag, body in raw.items()
    }
    assert policy == {
        "default-src": "'none'",
        "script-src": hashes["script"],
        "style-src": hashes["style"],
        "img-src": "data: blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    found = written(tmp_path, make_result())
    for tag, attributes in found.elements.tags:
        assert "src" not in attributes
        assert tag not in ("link", "iframe", "object", "embed", "base")
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        assert attributes.get("href", "#").startswith("#")
    links = set(re.findall(r"https?://[^\s\"'`]+", found.text))
    assert links == {"http://www.w3.org/2000/svg"}  # a name of XML, not a place that is visited


# ── the page's own files ─────────────────────────────────────────────────────────────────────


def test_joined_modules_keep_their_names_apart() -> None:
    joined = one_file.join_modules(
        [
            (
                "one",
                "const inner = 1;\nexport const shown = inner;\nexport async function wait() {}\n",
            ),
            (
                "two",
                'import * as one from "./one.js";\n\nconst inner = one.x;\nexport const f = 2;\n',
            ),
        ]
    )
    assert joined == (
        "// ── one.js ──\nconst one = (() => {\nconst inner = 1;\nconst shown = inner;\n"
        "async function wait() {}\nreturn { shown, wait };\n})();\n\n"
        "// ── two.js ──\nconst two = (() => {\n\nconst inner = one.x;\nconst f = 2;\n"
        "return { f };\n})();\n"
    )


PAGES = (page.PAGE, pooled_page.PAGE)


@pytest.mark.parametrize(
    ("modules", "name"), [(kind.modules, name) for kind in PAGES for name in kind.modules]
)
def test_a_module_follows_the_rule_that_joins_it(modules: tuple[str, ...], name: str) -> None:
    source = one_file.page_file(f"{name}.js")
    imported = re.findall(r'^import \* as (\w+) from "\./\1\.js";$', source, flags=re.M)
    assert len(imported) == len(re.findall(r"^import|\bimport\(", source, flags=re.M))
    assert all(modules.index(other) < modules.index(name) for other in imported)
    exports = re.findall(r"^export .*$", source, flags=re.M)
    assert all(re.match(r"export (async )?(function|const) \w+", line) for line in exports)
    assert len(source.splitlines()) < 360


FILES = {"page.html"} | {
    name
    for kind in PAGES
    for name in (*(f"{m}.js" for m in kind.modules), *kind.styles, kind.choices, kind.keys)
}


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_page_file_makes_no_markup_of_data(name: str) -> None:
    source = one_file.page_file(name)
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "</scr"):
        assert way not in source or (name == "page.html" and way == "</scr")
    assert "\r" not in source


def test_every_page_file_is_in_use() -> None:
    folder = Path(page.__file__).parent / "page_files"
    others = {"heads.html", "heads.js"}  # of heads_page, which has a frame of its own
    assert {path.name for path in folder.iterdir()} == FILES | others
