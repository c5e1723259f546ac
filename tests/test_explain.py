"""One query of one head in numbers: the taps, the page on paper, widths, hostile tokens, JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO, StringIO, TextIOWrapper
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_pass import Ran, from_config
from rich.console import Console

from attnviz import masks
from attnviz.config import AttentionConfig
from attnviz.divergence import entropy
from attnviz.errors import InputError
from attnviz.render.explain_digits import TOP_KEYS, number, shown_keys
from attnviz.render.explain_page import print_explanation
from attnviz.render.explanation import NEEDED, WANTED, Explanation, explain
from attnviz.render.explanation_json import explanation_as_json
from attnviz.render.query_lookup import find_query
from attnviz.render.visible import cells
from attnviz.result import Attention
from attnviz.tokens import Batch, cut, make_batch, make_vocabulary

SENTENCE = "The cat sat on the mat because it was tired ."
SMALL = {"d_model": 8, "n_heads": 2, "d_k": 4}
PRIMES = {"d_model": 11, "n_heads": 3, "d_k": 5, "d_v": 7}


@dataclass(frozen=True)
class Made:
    """A run, and what the command line knows beside it."""

    run: Ran
    verdicts: tuple[tuple[str, Any], ...]

    @property
    def result(self) -> Attention:
        return self.run.result

    @property
    def w_o(self) -> Any:
        return self.run.layers[0].w_o.weight.detach().double().numpy()

    def explain(self, query: int | str, sequence: int = 0, head: int = 0) -> Explanation:
        if isinstance(query, str):
            query = find_query(self.result, sequence, query)
        return explain(
            self.result,
            self.run.steps,
            sequence,
            0,
            head,
            query,
            verdicts=self.verdicts,
            w_o=self.w_o,
        )


def make(
    *texts: str | Sequence[str],
    keys: str | None = None,
    mask: str = "",
    pad_side: str = "right",
    keep: Sequence[str] = WANTED,
    **sizes: Any,
) -> Made:
    """A run of `texts` (or token lists) under the masks named by c(ausal), w(indow), p(adding)."""
    tokens = [cut([t])[0][0] if isinstance(t, str) else tuple(t) for t in texts]
    key_tokens = None if keys is None else cut([keys])[0]
    vocabulary = make_vocabulary([*tokens, *(key_tokens or ())])
    queries = make_batch(tokens, vocabulary, pad_side=pad_side)
    others = None if key_tokens is None else make_batch(key_tokens, vocabulary)
    config = AttentionConfig.from_sizes(**(sizes or SMALL))
    known = _rules(queries, others or queries)
    rules = [known[letter] for letter in mask]
    run = from_config(config, queries, others, rules, keep=keep)
    batch, heads, t_q, t_k = run.result.attention.shape[1:]
    verdicts = [(r.name, masks.build([r], batch, heads, t_q, t_k)) for r in rules]
    return Made(run, tuple(verdicts))


def _rules(queries: Batch, keys: Batch) -> dict[str, masks.Rule]:
    return {
        "c": masks.rule("causal", queries, keys),
        "w": masks.rule("window", queries, keys, 3),
        "p": masks.rule("padding", keys, keys),
        "n": masks.Rule("nobody", lambda b, h, q, k: (k != k) & (q == q) & (b == b)),
    }


def page(explanation: Explanation, width: int = 80, **console: Any) -> str:
    file = StringIO()
    print_explanation(explanation, Console(file=file, width=width, **console))
    return file.getvalue()


def ascii_page(explanation: Explanation, width: int = 80) -> str:
    raw = BytesIO()
    stream = TextIOWrapper(raw, encoding="ascii", errors="strict", newline="\n")
    print_explanation(explanation, Console(file=stream, width=width))
    stream.flush()
    return raw.getvalue().decode("ascii")


def section(text: str, n: int) -> list[str]:
    """The lines of section n, without its heading."""
    lines = text.split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith(f"{n}. "))
    after = (i for i, line in enumerate(lines) if line.startswith(f"{n + 1}. "))
    return lines[start + 2 : next(after, len(lines))]


def grid(text: str, n: int) -> dict[str, list[str]]:
    """The table of section n: name → the cells after it; the bars are left out."""
    lines = section(text, n)
    start = next(i for i, line in enumerate(lines) if re.match(r" +at  key|    part ", line))
    rows: dict[str, list[str]] = {}
    for line in lines[start + 1 :]:
        if not re.match(r"  .*\d", line) or line.startswith(("  For ", "  Entry ")):
            if set(line.strip()) <= set("─-") and line.strip():
                continue
            break
        first, *values = re.split(r" {2,}", line.strip())
        if re.fullmatch(r"\d+|\+", first):
            first = f"{first} {values.pop(0)}"
        rows[first] = [value for value in values if not re.match("[█▏▎▍▌▋▊▉#]", value)]
    return rows


def unit(printed: str) -> float:
    """1 in the last printed digit."""
    return float(10.0 ** -len(printed.partition(".")[2]))


def agrees(worked_out: float, printed: str, slack: float = 0.0) -> None:
    assert abs(worked_out - float(printed)) <= unit(printed) * (1 + 1e-6) + slack, (
        worked_out,
        printed,
    )


def follow_on_paper(text: str, dtype: str = "float32") -> int:
    """Work every number out from the printed ones; returns how many products could be."""
    eps = {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(dtype, 2.0**-24)
    products = grid(text, 2)
    q = products.pop("q")
    followed = 0
    for row in products.values():
        if "…" not in row:
            terms = [float(a) * float(b) for a, b in zip(q, row[:-1], strict=True)]
            agrees(sum(terms), row[-1], eps * sum(map(abs, terms)))
            followed += 1
    root = float(re.search(r"= √\d+\s+= ([\d.]+):", " ".join(section(text, 3)))[1])
    scores = grid(text, 3)
    for name, (product, score) in scores.items():
        assert product == products[name][-1]
        agrees(float(product) / root, score, eps * abs(float(score)))

    softmax = grid(text, 5)
    largest = re.search(r"largest score, (\S+)", " ".join(section(text, 5)))[1]
    total, weight_sum = softmax.pop("sum")
    for name, row in softmax.items():
        if name.startswith("+"):
            exp, weight = row
        else:
            shifted, exp, weight = row
            agrees(float(scores[name][1]) - float(largest), shifted)
            agrees(math.exp(float(shifted)), exp)
        agrees(float(exp) / float(total), weight, eps * float(weight))
    agrees(sum(float(row[-2]) for row in softmax.values()), total)
    agrees(sum(float(row[-1]) for row in softmax.values()), weight_sum)
    assert abs(float(weight_sum) - 1) <= max(unit(weight_sum), eps * len(softmax))

    values = grid(text, 6)
    context = [cell for cell in values.pop("sum") if cell != "…"]
    assert {name: row[0] for name, row in values.items()} == {
        name: row[-1] for name, row in softmax.items() if name in values
    }
    for i, printed in enumerate(context):
        terms = [float(row[0]) * float(row[1 + i]) for row in values.values()]
        agrees(sum(terms), printed, eps * sum(map(abs, terms)))

    head, others, both = ([c for c in row[:-1] if c != "…"] for row in grid(text, 7).values())
    for a, b, c in zip(head, others, both, strict=True):
        agrees(float(a) + float(b), c)
    examples(text, eps)
    return followed


def examples(text: str, eps: float = 2.0**-24) -> int:
    """Work out each equation that the page writes: on the lines that begin with For or Entry."""
    found = 0
    for n in (2, 3, 5, 6):
        joined = " ".join(line.strip() for line in section(text, n))
        pattern = r'(?:For "[^"]*"|Entry 0): (.*?) (?:Run:|Without|With)'
        for said in re.findall(pattern, joined):
            for equation in said.split(";"):
                left, _, right = equation.strip().rpartition("=")
                if "…" in left:
                    continue
                plain = left.replace("·", "*").replace("exp", "math.exp")
                assert re.fullmatch(r"(?:math\.exp|[-+*/(). \d])+", plain)
                numbers = [abs(float(x)) for x in re.findall(r"[\d.]+", left)]
                agrees(eval(plain), right.strip(), eps * sum(x * x for x in numbers))
                found += 1
    return found


# ── the numbers ──


@pytest.mark.parametrize("head", [0, 1, 2])
def test_numbers_are_the_taps(head: int) -> None:
    made = make(SENTENCE, "It was late", mask="cp", **PRIMES)
    kept, result = made.result.kept, made.result
    e = made.explain(1, sequence=1, head=head)
    for name, mine in {
        "q": e.q,
        "products": e.products,
        "scores": e.scores,
        "context": e.context,
    }.items():
        assert mine.dtype == np.float64
        assert np.array_equal(mine, kept[name][0, 1, head, 1].astype(np.float64))
    assert np.array_equal(e.k, kept["k"][0, 1, head].astype(np.float64))
    assert np.array_equal(e.v, kept["v"][0, 1, head].astype(np.float64))
    assert np.array_equal(e.weights, result.attention[0, 1, head, 1].astype(np.float64))
    assert np.array_equal(e.projected, kept["projected"][0, 1, 1].astype(np.float64))
    assert np.array_equal(e.allowed, result.allowed[0, 1, 0, 1])
    assert (e.q.shape, e.v.shape, e.projected.shape) == ((5,), (11, 7), (11,))
    e.q[:] = 0  # a copy: the run keeps its own
    assert kept["q"][0, 1, head, 1].any()


def test_derived_numbers_are_those_of_the_formula() -> None:
    e = make(SENTENCE, mask="c", **PRIMES).explain("it", head=1)
    seen = slice(0, 8)
    exps = np.exp(e.scores[seen] - e.scores[seen].max())
    assert e.scale == math.sqrt(5)
    assert e.largest == int(e.scores[seen].argmax())
    np.testing.assert_allclose(e.exps[seen], exps, rtol=1e-12)
    assert np.all(e.exps[8:] == 0)
    assert e.total == pytest.approx(exps.sum())
    np.testing.assert_allclose(e.weights[seen], exps / exps.sum(), rtol=1e-5)
    steep = np.exp(e.products[seen]) / np.exp(e.products[seen]).sum()
    np.testing.assert_allclose(e.weights_without_scale, [*steep, 0, 0, 0], rtol=1e-12)
    np.testing.assert_allclose(e.parts.sum(0), e.projected, atol=1e-5)  # its bias is 0


def test_number_has_no_negative_zero() -> None:
    assert [number(x, 2) for x in (-0.001, 0.0, -0.01, 12.345)] == [
        "0.00",
        "0.00",
        "-0.01",
        "12.35",
    ]
    assert [number(x, 2) for x in (math.nan, math.inf, -math.inf)] == ["nan", "inf", "-inf"]


# ── pencil and paper ──


@pytest.mark.parametrize("mask", ["", "c", "cw"])
@pytest.mark.parametrize("query", ["cat", "it", "."])
def test_a_small_head_on_paper(mask: str, query: str) -> None:
    text = page(make(SENTENCE, mask=mask, **SMALL).explain(query, head=1))
    assert follow_on_paper(text) == 11
    assert examples(text) >= 4


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_a_head_of_the_usual_size_on_paper(dtype: str) -> None:
    made = make(SENTENCE, mask="c", d_model=512, n_heads=8, dtype=dtype)
    for head in (0, 5):
        text = page(made.explain("it", head=head), width=100)
        assert follow_on_paper(text, dtype) == 0  # 64 entries do not fit a line
        assert "The first 6 of 64 entries are shown." in text
        low = dtype in ("float16", "bfloat16")
        assert ("within the rounding of" in text.replace("\n", " ")) == low


@settings(max_examples=25)
@given(
    n=st.integers(1, 40),
    d_k=st.integers(1, 8),
    d_v=st.integers(1, 9),
    seed=st.integers(0, 10**6),
    mask=st.sampled_from(["", "c", "w"]),
    width=st.integers(72, 130),
)
def test_any_head_on_paper(n: int, d_k: int, d_v: int, seed: int, mask: str, width: int) -> None:
    words = [f"w{i}" for i in range(n)]
    made = make(words, mask=mask, d_model=6, n_heads=2, d_k=d_k, d_v=d_v, seed=seed)
    text = page(made.explain(seed % n, head=1), width=200 if d_k > 4 else width + 20)
    follow_on_paper(text)


def test_500_tokens_on_paper() -> None:
    made = make([f"t{i}" for i in range(500)], mask="c", **SMALL)
    e = made.explain("t480")
    text = page(e)
    follow_on_paper(text)
    shown = shown_keys(e)
    assert len(shown) == TOP_KEYS
    assert shown == sorted(np.argsort(-e.weights, kind="stable")[:TOP_KEYS].tolist())
    hidden = e.weights.sum() - e.weights[shown].sum()
    flat = " ".join(text.split())
    assert f"The other 488 have a total weight of {hidden:.4f}." in flat
    assert "19 forbidden keys" in flat
    assert grid(text, 5)["+ 469 others"][-1] == f"{hidden:.4f}"


def test_blocks_of_a_narrow_page_hold_the_same_equations() -> None:
    e = make(SENTENCE, **SMALL).explain("it")
    assert examples(page(e, width=30)) == examples(page(e, width=100)) == 5


def test_tiny_and_huge_numbers_keep_their_digits() -> None:
    made = make(SENTENCE, **SMALL)
    tiny = _with(
        made.result, v=made.result.kept["v"] * 1e-7, context=made.result.kept["context"] * 1e-7
    )
    e = explain(tiny, made.run.steps, 0, 0, 0, 3)
    rows = grid(page(e), 6)
    assert all(set(row[1]) - set("-0.") for row in rows.values() if len(row) > 4)
    sums = rows.pop("sum")
    agrees(sum(float(row[0]) * float(row[1]) for row in rows.values()), sums[0])
    huge = _with(made.result, v=made.result.kept["v"] * 1e9)
    assert "6. The weighted sum" in page(explain(huge, (), 0, 0, 0, 3), width=40)


def test_a_thousand_equal_keys_get_more_digits() -> None:
    made = make(["same"] * 1000, d_model=8, n_heads=2, positions="none")
    text = page(made.explain("same"))
    assert grid(text, 5)["0 same"][-1] == "0.00100"
    assert 'The text contains "same" 1000 times; this is number 1.' in text


def _with(result: Attention, **arrays: Any) -> Attention:
    return replace(result, kept={**result.kept, **arrays})


def test_large_products_get_as_many_digits_as_the_division_takes() -> None:
    made = make(SENTENCE, mask="n", d_model=4, n_heads=2, d_k=2)
    scores = made.result.kept["scores"].astype(np.float64) * 1e4
    large = _with(made.result, products=scores * math.sqrt(2), scores=scores)
    text = page(explain(large, (), 0, 0, 0, 3))
    root = re.search(r"= √2 = ([\d.]+):", " ".join(section(text, 3)))[1]
    assert len(root) > len("1.414214")
    for product, score in grid(text, 3).values():
        agrees(float(product) / float(root), score, 2.0**-24 * abs(float(score)))


# ── what the page says ──


def test_each_section_begins_with_a_sentence() -> None:
    text = page(make(SENTENCE, mask="c").explain("it"))
    for n in range(1, 8):
        assert re.match(r"[A-Z][^.]*[a-z]", section(text, n)[0])
    assert "Run: q [B H Tq d_k] = [1 2 11 4] attention.py:" in text
    assert "Derived: the norm." in text
    assert "The layer is untrained" in text


def test_masks_are_named_key_by_key() -> None:
    text = page(make(SENTENCE, mask="cw").explain("was"))
    verdicts = {name: row[-1] for name, row in grid(text, 4).items()}
    assert verdicts["5 mat"] == "no: window 3"
    assert verdicts["6 because"] == verdicts["8 was"] == "may look"
    assert verdicts["9 tired"] == "no: causal, window 3"
    assert grid(text, 4)["9 tired"][0] == "-inf"
    assert "This query may see 3 of 11 keys. causal forbids 2, window 3 forbids 8." in text


def test_without_verdicts_one_mask_is_named_and_several_are_not() -> None:
    for mask, said in (("c", "no: causal"), ("cw", "no")):
        result = make(SENTENCE, mask=mask).result
        e = explain(result, (), 0, 0, 0, 0)
        assert grid(page(e), 4)["9 tired"] == ["-inf", said]
        assert e.forbidding(0) == ()


def test_a_mask_of_its_own_for_each_head() -> None:
    made = make(SENTENCE, **SMALL)
    per_head = np.ones((1, 2, 11, 11), dtype=bool)
    per_head[0, 1, 7, 3:] = False
    result = replace(made.result, allowed=per_head[None], masks=("mine",))
    free, bound = (explain(result, (), 0, 0, h, 7, verdicts=[("mine", per_head)]) for h in (0, 1))
    assert free.allowed.all()
    assert bound.allowed.tolist() == [True] * 3 + [False] * 8
    assert bound.forbidding(3) == ("mine",)


def test_no_mask() -> None:
    text = page(make(SENTENCE).explain("it"))
    assert "This run has none: the query may see every key." in text
    assert "masks: none" in text


def test_a_query_that_sees_nothing() -> None:
    e = make(SENTENCE, mask="n").explain("it")
    text = page(e)
    assert not e.sees_something
    assert (e.largest, e.total, e.weights.any(), e.weights_without_scale.any()) == (
        -1,
        0,
        False,
        False,
    )
    flat = " ".join(text.split())
    assert "this query may see no key: all its weights are 0" in flat
    assert "context = [0.0, 0.0, 0.0, 0.0]" in text
    assert "nan" not in text
    assert "This query may see 0 of 11 keys. nobody forbids 11." in text
    document = explanation_as_json(e)
    assert document["largest_score"] is None
    assert document["keys"][0]["shifted"] is None
    assert page(make(SENTENCE, mask="n", d_model=512, n_heads=8).explain("it")).count("…]") == 2


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_is_no_position(side: str) -> None:
    made = make(SENTENCE, "It was", mask="p", pad_side=side)
    e = made.explain("was", sequence=1)
    text = page(e)
    assert "query: position 1  sequence 1 of 2  head 0 of 2" in text
    assert "padding forbids 9" in text
    rows = [line for line in section(text, 4) if "[PAD]" in line]
    assert len(rows) == 9
    assert all(re.fullmatch(r" +\[PAD\] +-inf  no: padding", row) for row in rows)
    assert "padding, but" not in text
    padded = page(made.explain("[PAD]#2", sequence=1))
    assert "query: padding" in padded
    assert "This query is padding" in padded


def test_one_token() -> None:
    text = page(make("one").explain("one"))
    assert follow_on_paper(text) == 1
    assert "no two keys share the weight" in " ".join(text.split())
    assert "1 key  masks" in text


def test_cross_attention() -> None:
    made = make("the cat", keys="le petit chat noir", **PRIMES)
    e = made.explain("cat", head=2)
    text = page(e)
    assert e.key_tokens == ("le", "petit", "chat", "noir")
    assert "4 keys of the other text" in text
    assert "Each key token of the other text" in text
    assert list(grid(text, 3)) == ["0 le", "1 petit", "2 chat", "3 noir"]
    assert follow_on_paper(page(e, width=100)) == 4


def test_scales_that_are_no_whole_number_and_one() -> None:
    assert "√5 = 2.236068:" in " ".join(page(make(SENTENCE, **PRIMES).explain(2)).split())
    text = page(make(SENTENCE, d_model=4, n_heads=2, d_k=1).explain(2))
    assert "With d_k = 1 it changes nothing." in text


def test_without_the_scale_is_told_in_numbers() -> None:
    e = make(SENTENCE).explain("it")
    flat = " ".join(page(e).split())
    top = e.weights_without_scale.max()
    assert f"Without it, the largest weight would be {top:.4f}, on " in flat
    assert f"instead of {e.weights.max():.4f}; the row would have" in flat
    assert f"{float(entropy(e.weights_without_scale)):.2f} bits of entropy instead of" in flat


def test_the_projection_with_and_without_its_matrix() -> None:
    made = make(SENTENCE, **PRIMES)
    e = made.explain("it", head=1)
    norms = np.linalg.norm(e.parts, axis=1)
    rank = 1 + int((norms > norms[1]).sum())
    assert f"By norm, this head's part is number {rank} of 3." in page(e)
    assert list(grid(page(e), 7)) == ["head 1", "other heads, bias", "sum"]
    no_matrix = explain(made.result, made.run.steps, 0, 0, 1, 7)
    assert list(grid(page(no_matrix), 7)) == ["all heads"]
    needed = make(SENTENCE, keep=NEEDED, **PRIMES)
    only_matrix = explain(needed.result, (), 0, 0, 1, 7, w_o=made.w_o)
    assert list(grid(page(only_matrix), 7)) == ["head 1"]
    assert "Run: context." in page(only_matrix)
    assert "kept neither" in page(explain(needed.result, (), 0, 0, 1, 7))
    alone = page(make(SENTENCE, d_model=4, n_heads=1).explain("it"))
    assert list(grid(alone, 7)) == ["head 0", "bias", "sum"]
    assert "By norm" not in alone


def test_nan_and_infinity_are_shown_as_what_they_are() -> None:
    made = make(SENTENCE, mask="c")
    scores, v = made.result.kept["scores"].copy(), made.result.kept["v"].copy()
    scores[0, 0, 0, 7, 2], v[0, 0, 0, 1, 0] = np.inf, np.nan
    attention = made.result.attention.copy()
    attention[0, 0, 0, 7, :8] = np.nan
    broken = replace(_with(made.result, scores=scores, v=v), attention=attention, trained=True)
    e = explain(broken, made.run.steps, 0, 0, 0, 7, verdicts=made.verdicts)
    text = page(e)
    assert grid(text, 3)["2 sat"][1] == "inf"
    assert "nan" in "".join(section(text, 5))
    assert "untrained" not in text
    document = json.dumps(explanation_as_json(e), allow_nan=False)
    assert json.loads(document)["keys"][2]["score"] is None


def test_layers_are_told_apart() -> None:
    one, two = (make(SENTENCE, seed=seed, **SMALL).result for seed in (1, 2))
    kept = {name: np.concatenate([one.kept[name], two.kept[name]]) for name in one.kept}
    both = replace(
        one,
        attention=np.concatenate([one.attention, two.attention]),
        allowed=np.concatenate([one.allowed, two.allowed]),
        kept=kept,
    )
    e = explain(both, (), 0, 1, 0, 3)
    assert np.array_equal(e.q, two.kept["q"][0, 0, 0, 3].astype(np.float64))
    assert "layer 1 of 2" in page(e)


# ── terminals ──

HOSTILE = (
    "猫",
    "مرحبا",
    "👩‍👩‍👧‍👦",
    "[/red]",
    "\x1b[31mred",
    "a\nb",
    "\u202egnp.exe",
    "x" * 200,
    "",
    "e\u0301",
    "$\\sqrt{2}$",
    "<script>",
)


@pytest.mark.parametrize("width", [12, 20, 33, 40, 60, 80, 100, 180])
@pytest.mark.parametrize("sizes", [SMALL, {"d_model": 512, "n_heads": 8}], ids=["small", "usual"])
def test_no_line_is_wider_than_the_terminal(width: int, sizes: dict[str, Any]) -> None:
    e = replace(
        make(HOSTILE, mask="cw", **sizes).explain(7),
        masks=("file \x1b[1m [b] (1 = keep)", "猫" * 30),
    )
    for text in (page(e, width=width), ascii_page(e, width=width)):
        assert max(cells(line) for line in text.split("\n")) <= min(width, 100)
        assert all(c.isprintable() or c == "\n" for c in text.replace("\u200d", ""))
        assert all(line == line.rstrip() for line in text.split("\n"))
        assert "[/red]" in text


def test_wide_characters_line_up() -> None:
    made = make(["猫", "cat", "日本語", "e\u0301", "👩‍👩‍👧‍👦"], **SMALL)
    for n in (2, 3):
        lines = [line for line in section(page(made.explain(0)), n) if re.match(r" +\d  ", line)]
        assert len(lines) == 5
        assert len({cells(line) for line in lines}) == 1


def test_ascii_has_words_for_every_sign() -> None:
    text = ascii_page(make("猫 √ · cat", mask="c").explain("·"))
    assert "3. The scale sqrt(d_k)" in text
    assert "sqrt(d_k) = sqrt(4) = 2" in text
    assert "<U+732B>" in text
    assert 'does for "<U+00B7>"' in text
    assert "###" in "".join(section(text, 5))
    assert " * " in "".join(section(text, 6))


def test_colour_only_where_there_is_colour() -> None:
    e = make(SENTENCE, mask="c").explain("it")
    plain = page(e)
    colored = page(e, force_terminal=True, color_system="truecolor", no_color=False)
    assert "\x1b" not in plain
    assert "\x1b[1m" in colored
    bare = re.sub(r"\x1b\[[0-9;]*m", "", colored)
    assert [line.rstrip() for line in bare.split("\n")] == plain.split("\n")
    no_color = page(e, force_terminal=True, color_system="truecolor", no_color=True)
    assert no_color == plain


def test_bars_follow_the_weights() -> None:
    e = make(SENTENCE).explain("it")
    lines = [line for line in section(page(e), 5) if re.match(r" +\d+  ", line)]
    lengths = np.array([line.count("█") for line in lines])
    room = lengths.max()
    expected = e.weights / e.weights.max() * room
    assert np.abs(lengths - expected).max() <= 1
    assert all(re.search(r"[█▏▎▍▌▋▊▉]$", line) for line in lines)  # a little is not nothing


def test_a_weight_of_zero_has_no_bar() -> None:
    made = make(SENTENCE)
    attention = np.zeros_like(made.result.attention)
    text = page(explain(replace(made.result, attention=attention), (), 0, 0, 0, 3))
    assert not re.search(r"[█▏]", text)


# ── JSON ──


def test_json_has_every_number_in_full() -> None:
    made = make(SENTENCE, "It was", mask="cp", **PRIMES)
    e = made.explain("was", sequence=1, head=2)
    document = json.loads(json.dumps(explanation_as_json(e), allow_nan=False))
    assert (document["format"], document["version"]) == ("attnviz.explain", 1)
    assert document["query"]["token"] == "was"
    assert document["query"]["q"] == e.q.tolist()
    assert document["context"] == e.context.tolist()
    assert document["scale"] == math.sqrt(5)
    assert document["projection"] == {
        "this_head": e.parts[2].tolist(),
        "all_heads": e.projected.tolist(),
    }
    for field, values in {
        "product": e.products,
        "score": e.scores,
        "weight": e.weights,
        "exp": e.exps,
        "k": e.k,
        "v": e.v,
        "allowed": e.allowed,
    }.items():
        assert [key[field] for key in document["keys"]] == values.tolist()
    assert document["keys"][5]["forbidden_by"] == ["causal", "padding"]
    assert document["keys"][5]["is_padding"] is True
    assert {step["name"] for step in document["steps"]} >= set(NEEDED)


def test_json_without_the_projection() -> None:
    e = explain(make(SENTENCE, keep=NEEDED).result, (), 0, 0, 0, 0)
    assert explanation_as_json(e)["projection"] == {"this_head": None, "all_heads": None}


# ── finding the query ──


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("3", 3),
        ("0", 0),
        ("-1", 6),
        ("+2", 2),
        ("the", 0),
        ("the#2", 4),
        ("the#1", 0),
        ("7", 5),  # no index, but a token
        ("7#1", 5),
        ("#", 6),
        ("cat", 1),
    ],
)
def test_find_query(text: str, place: int) -> None:
    result = make(["the", "cat", "sat", "on", "the", "7", "#"]).result
    assert find_query(result, 0, text) == place


def test_find_query_counts_from_the_first_real_token() -> None:
    result = make(SENTENCE, "It was", pad_side="left").result
    assert [find_query(result, 1, t) for t in ("0", "-1", "It", "was", "[PAD]")] == [
        9,
        10,
        9,
        10,
        0,
    ]


TOKENS = "its tokens: the (0), cat (1), sat (2), on (3), the (4), Cat (5)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cats", "query cats is not a token of sequence 0; near it: cat (1), Cat (5), sat (2)"),
        ("zebra", f"query zebra is not a token of sequence 0; {TOKENS}"),
        ("12", "query 12: sequence 0 has 6 tokens, 0 to 5 or -6 to -1"),
        ("-7", "query -7: sequence 0 has 6 tokens, 0 to 5 or -6 to -1"),
        ("the#3", "query the#3: the stands 2 times in sequence 0: #1, #2"),
        ("the#0", "query the#0: the stands 2 times in sequence 0: #1, #2"),
        ("cat#2", "query cat#2: cat stands once in sequence 0: #1"),
        ("\x1b[1m", rf"query \x1b[1m is not a token of sequence 0; {TOKENS}"),
    ],
)
def test_find_query_lists_candidates(text: str, message: str) -> None:
    result = make(["the", "cat", "sat", "on", "the", "Cat"]).result
    with pytest.raises(InputError) as caught:
        find_query(result, 0, text)
    assert str(caught.value) == message


def test_find_query_lists_no_padding() -> None:
    result = make(SENTENCE, "It was", [], pad_side="left").result
    with pytest.raises(InputError, match=r"; its tokens: It \(0\), was \(1\)$"):
        find_query(result, 1, "zebra")
    with pytest.raises(
        InputError, match=r"^query zebra is not a token of sequence 2; it has none$"
    ):
        find_query(result, 2, "zebra")


def test_find_query_lists_no_more_than_a_line() -> None:
    result = make([f"w{i}" for i in range(30)], ["w1"], []).result
    with pytest.raises(InputError, match=r"its tokens: w0 \(0\).* w7 \(7\) and 22 more$"):
        find_query(result, 0, "zzz")
    with pytest.raises(InputError, match=r"^query 0: sequence 2 has 0 tokens$"):
        find_query(result, 2, "0")
    with pytest.raises(InputError, match=r"^query 1: sequence 1 has 1 token, 0 to 0 or -1 to -1$"):
        find_query(result, 1, "1")


# ── what cannot be explained ──


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ((1, 0, 0, 0), "sequence 1 is not in this run, which has 1 sequence, number 0"),
        ((0, 2, 0, 0), "layer 2 is not in this run, which has 1 layer, number 0"),
        ((0, 0, 5, 0), "head 5 is not in this run, which has 2 heads, 0 to 1"),
        ((0, 0, -1, 0), "head -1 is not in this run, which has 2 heads, 0 to 1"),
        ((0, 0, 0, 11), "query 11 is not in this run, which has 11 queries, 0 to 10"),
    ],
)
def test_places_outside_the_run(place: tuple[int, int, int, int], message: str) -> None:
    with pytest.raises(InputError) as caught:
        explain(make(SENTENCE).result, (), *place)
    assert str(caught.value) == message


def test_a_run_that_kept_too_little() -> None:
    result = make(SENTENCE, keep=("q", "k", "scores", "context")).result
    with pytest.raises(InputError) as caught:
        explain(result, (), 0, 0, 0, 0)
    assert str(caught.value) == (
        "the run did not keep v, products; q, k, v, products, scores, context are needed"
    )


def test_masks_and_matrices_that_do_not_fit() -> None:
    made = make(SENTENCE, mask="c")
    with pytest.raises(
        InputError, match=r"^mask x has shape \[11, 11\]; \[B 1\|H Tq Tk\] with B=1"
    ):
        explain(made.result, (), 0, 0, 0, 0, verdicts=[("x", np.ones((11, 11), dtype=bool))])
    with pytest.raises(
        InputError, match=r"^the masks x do not combine to the mask of the run for query 0$"
    ):
        explain(made.result, (), 0, 0, 0, 0, verdicts=[("x", np.ones((1, 1, 11, 11), dtype=bool))])
    with pytest.raises(InputError) as caught:
        explain(made.result, (), 0, 0, 0, 0, w_o=np.zeros((8, 7)))
    assert str(caught.value) == (
        "w_o has shape [8, 7]; [d_model H·d_v] with H·d_v = 2·4 = 8 is expected"
    )
