"""Wrong attention is caught and named; right attention never fails."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import attnviz
from attnviz.checks import Finding, Location, Report, assert_attention, check, scan
from attnviz.checks.checked_weights import Bfloat16, CheckedWeights
from attnviz.checks.head_tensors import alibi_slopes, read_heads, rotated
from attnviz.checks.precision import precision_of, row_tolerance
from attnviz.checks.reading_weights import lengths_of, read_weights
from attnviz.checks.report import CHECKS, number, ranges
from attnviz.errors import ConfigError, InputError

DATA = Path(__file__).parent / "data/checks"


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, DATA / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


wrong, right = load("wrong_attention"), load("right_attention")
INPUTS = wrong.make_inputs()
LENGTHS = list(wrong.LENGTHS)
TWO_SIDED = wrong.two_sided(INPUTS)


def only(report: Report, name: str) -> Finding:
    [finding] = [finding for finding in report if finding.name == name]
    return finding


# ── the usual mistakes, seen in the weights ──────────────────────────────────────────────────

WRONG: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "causal_inverted": (
        {"causal": True},
        {
            "finite": "the causal mask looks inverted",
            "leak:causal": "the causal mask looks inverted",
        },
    ),
    "causal_inverted_large_number": (
        {"causal": True},
        {"leak:causal": "the causal mask looks inverted"},
    ),
    "causal_transposed": ({"causal": True}, {"leak:causal": "the causal mask looks transposed"}),
    "causal_one_too_many": (
        {"causal": True},
        {"leak:causal": "shifted by one: every query also sees the next key"},
    ),
    "causal_one_too_few": (
        {"causal": True},
        {"finite": "shifted by one: no query sees the last key that it may"},
    ),
    "causal_one_too_few_large_number": (
        {"causal": True},
        {"leak:causal": "shifted by one: no query sees the last key that it may"},
    ),
    "causal_forgotten": ({"causal": True}, {"leak:causal": "the causal mask looks ignored"}),
    "causal_after_softmax": (
        {"causal": True},
        {"rows": "the mask was multiplied in after softmax"},
    ),
    "causal_times_scores": (
        {"causal": True},
        {"leak:causal": "the causal mask put one number in place of the scores"},
    ),
    "causal_tiny_fill": ({"causal": True}, {"leak:causal": "masked_fill(mask, 1e-9) for -1e9"}),
    "causal_weak_fill": ({"causal": True}, {"leak:causal": "its number is too small"}),
    "padding_forgotten": ({"lengths": LENGTHS}, {"leak:padding": "the padding mask looks ignored"}),
    "padding_inverted": (
        {"lengths": LENGTHS},
        {
            "finite": "the padding mask looks inverted",
            "leak:padding": "the padding mask looks inverted",
        },
    ),
    "padding_on_queries": (
        {"lengths": LENGTHS},
        {"leak:padding": "the padding mask looks applied to queries, not to keys"},
    ),
    "padding_other_side": (
        {"lengths": LENGTHS},
        {"leak:padding": "it stands on the right, and the mask forbids the left"},
    ),
    "padding_one_too_many": (
        {"lengths": LENGTHS},
        {"leak:padding": "shifted by one: the first padded key is seen"},
    ),
    "masks_of_another_sequence": (
        {"lengths": LENGTHS},
        {"leak:padding": "heads and sequences are in the wrong order"},
    ),
    "blind_rows_large_number": ({"mask": TWO_SIDED}, {"uniform": "-1e9"}),
    "blind_rows_minus_infinity": (
        {"mask": TWO_SIDED},
        {"finite": "softmax of a row that is -inf everywhere"},
    ),
    "window_one_too_wide": ({"window": 3}, {"leak:window 3": "as if it reached one key further"}),
    "window_both_ways": ({"window": 3}, {"leak:window 3": "as if it reached both ways"}),
    "softmax_over_queries": ({"causal": True}, {"rows": "softmax ran along the queries"}),
    "sum_along_the_wrong_dim": ({}, {"rows": "softmax ran along the queries"}),
    "softmax_over_heads": ({}, {"rows": "softmax ran along the heads"}),
    "softmax_over_batch": ({}, {"rows": "softmax ran along the batch"}),
    "no_softmax": ({}, {"negative": "scores, before softmax", "rows": "scores, before softmax"}),
    "padding_means_the_opposite": (
        {"causal": True, "lengths": LENGTHS},
        {
            "leak:padding": "the padding mask looks inverted",
            "leak:causal": "the padding mask looks inverted",
        },
    ),
    "padding_means_the_opposite_minus_infinity": (
        {"causal": True, "lengths": LENGTHS},
        {"finite": "the padding mask looks inverted"},
    ),
    "zero_times_infinity": (
        {"causal": True},
        {"finite": "(1 - mask) * -inf, where 0 · -inf is NaN"},
    ),
    "logarithms": ({}, {"negative": "logarithms of weights", "rows": "logarithms of weights"}),
    "softmax_twice": ({"causal": True}, {"leak:causal": "softmax was applied twice"}),
    "powers_alone": ({}, {"rows": "not divided by the sum of their own row"}),
    "infinite_powers": ({}, {"finite": "infinity / infinity is NaN"}),
    "never_written": ({}, {"blind": "the weights were never computed"}),
    "percent": ({}, {"rows": "every row sums to 100: the weights were scaled after softmax"}),
    "thresholded": ({}, {"rows": "keys were left out after softmax"}),
    "overflow_in_half": ({}, {"finite": "in float16 a score beyond 65504 is infinite"}),
    "nan_in_a_key": ({}, {"finite": "all rows of the head are NaN: a NaN in one key"}),
}
"""Mistake → the masks that are told, and each finding that fails with words of its cause."""


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_usual_mistake_is_caught_and_named(name: str, seed: int) -> None:
    told, expected = WRONG[name]
    report = check(getattr(wrong, name)(wrong.make_inputs(seed)), **told)
    assert {finding.name for finding in report.failures} == set(expected)
    for finding in report.failures:
        assert expected[finding.name] in finding.cause


def test_positions_that_count_padding_are_noted() -> None:
    """Fewer keys are seen than may be: lawful for one head, odd for all."""
    told: dict[str, Any] = {"prefix": 4, "lengths": LENGTHS, "pad_side": "left"}
    report = check(wrong.prefix_counts_padding(INPUTS), **told)
    [note] = report
    assert (note.fails, note.what) == (
        False,
        "the prefix 4 mask is as if positions counted the padding",
    )


# ── the usual mistakes, seen by computing again ──────────────────────────────────────────────

UNSEEN = {
    "no_scale": ({}, "the scale is missing"),
    "scale_of_d_model": ({}, "scores are divided by √d_model = √30, not by √d_k = √10"),
    "scale_of_d_k": ({}, "scores are divided by d_k = 10, not by its root"),
    "scale_upside_down": ({}, "scores are multiplied by √d_k, not divided"),
    "scale_of_tokens": (
        {},
        "scores are multiplied by 0.378, not by 1/√d_k = 0.3162: divided by √7, the root of the "
        "number of keys",
    ),
    "scale_of_ones_own": ({}, "scores are multiplied by 0.25, not by 1/√d_k = 0.3162"),
    "heads_interleaved": ({}, "view(B, T, d_k, H), where view(B, T, H, d_k)"),
    "k_is_q": ({}, "k is q as well: scores are QQᵀ"),
    "q_is_k": ({}, "q is k as well: scores are KKᵀ"),
    "softmax_twice": ({"causal": True}, "softmax was applied twice"),
    "sum_without_keepdim": ({}, "the sum has lost its axis (sum(-1, keepdim=True)"),
    "largest_without_keepdim": ({}, "the sum has lost its axis (sum(-1, keepdim=True)"),
    "heads_by_view": ({}, "heads are cut without a transpose"),
    "keys_by_view": ({}, "the heads of k alone are cut without a transpose"),
    "q_and_k_swapped": ({}, "q and k are swapped"),
    "mask_added_as_ones": ({"causal": True}, "the mask was added to the scores as 0 and 1"),
    "causal_inverted_large_number": ({"causal": True}, "the causal mask is inverted"),
    "causal_transposed": ({"causal": True}, "the causal mask is transposed"),
    "causal_one_too_many": ({"causal": True}, "the next key is seen too"),
    "causal_one_too_few": ({"causal": True}, "the last key is hidden"),
    "causal_forgotten": ({"causal": True}, "the causal mask is not applied"),
    "causal_after_softmax": ({"causal": True}, "the mask was multiplied in after softmax"),
    "causal_times_scores": ({"causal": True}, "the mask put 0 in place of the scores"),
    "causal_tiny_fill": ({"causal": True}, "the mask put 0 in place of the scores"),
    "padding_inverted": ({"lengths": LENGTHS}, "the padding mask is inverted"),
    "padding_other_side": ({"lengths": LENGTHS}, "the padding mask forbids the other side"),
    "softmax_over_queries": ({"causal": True}, "softmax ran along the queries"),
    "softmax_over_heads": ({}, "softmax ran along the heads"),
    "softmax_over_batch": ({}, "softmax ran along the batch"),
    "window_both_ways": ({"window": 3}, "the window 3 mask is as if it reached both ways"),
    "prefix_counts_padding": (
        {"prefix": 4, "lengths": LENGTHS, "pad_side": "left"},
        "the prefix 4 mask is as if positions counted the padding",
    ),
    "thresholded": ({}, "none of the usual mistakes gives these numbers"),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_computing_again_names_the_mistake(name: str) -> None:
    told, words = UNSEEN[name]
    report = check(getattr(wrong, name)(INPUTS), expect=(INPUTS.q, INPUTS.k), **told)
    finding = only(report, "expected")
    assert finding.fails
    assert words in finding.cause


def test_a_causal_mask_that_was_not_told_is_named() -> None:
    weights = INPUTS.scores.masked_fill(~INPUTS.causal, -torch.inf).softmax(-1)
    finding = only(check(weights, expect=(INPUTS.q, INPUTS.k)), "expected")
    assert (
        finding.cause == "a causal mask was in force that is not expected here; --causal checks it"
    )


def test_both_masks_ignored_are_named_together() -> None:
    told: dict[str, Any] = {"causal": True, "lengths": LENGTHS}
    report = check(wrong.causal_forgotten(INPUTS), expect=(INPUTS.q, INPUTS.k), **told)
    assert only(report, "expected").cause == "the padding and causal mask is not applied"


def test_half_precision_in_between_is_a_note() -> None:
    report = check(wrong.in_bfloat16(INPUTS), expect=(INPUTS.q, INPUTS.k))
    assert report.passed
    assert "the size that half precision makes" in only(report, "expected").cause


def test_dropout_explains_the_difference() -> None:
    torch.manual_seed(3)
    weights = torch.dropout(INPUTS.scores.softmax(-1), 0.3, train=True)
    report = check(weights, expect=(INPUTS.q, INPUTS.k))
    assert report.passed
    assert only(report, "expected").cause.endswith("p about 0.30")


CONTEXTS = {
    "context_by_view": ({}, "the heads of v are cut without a transpose"),
    "context_not_transposed": ({}, "heads are put together without a transpose"),
    "context_of_transposed_weights": ({}, "the weights are transposed before they meet v"),
    "context_without_mask": ({"causal": True}, "the context is that of weights without a mask"),
    "weights_for_show": ({}, "the context is that of softmax(QKᵀ/√d_k), and these weights"),
}


@pytest.mark.parametrize("name", CONTEXTS)
def test_a_wrong_context_is_named(name: str) -> None:
    told, words = CONTEXTS[name]
    weights, context = getattr(wrong, name)(INPUTS)
    report = check(weights, expect=(INPUTS.q, INPUTS.k, INPUTS.v), context=context, **told)
    assert words in only(report, "context").cause


def test_a_context_of_nothing_known_is_said_to_be_so() -> None:
    weights = INPUTS.scores.softmax(-1)
    context = (weights @ INPUTS.heads(INPUTS.v)).clone()
    context[1, 2, 4, 3] += 0.01
    report = check(weights, expect=(INPUTS.q, INPUTS.k, INPUTS.v), context=context)
    finding = only(report, "context")
    assert finding.cause == "none of the usual mistakes gives these numbers"
    worst = finding.worst
    assert (worst.sequence, worst.head, worst.query, worst.key) == (1, 2, 4, None)
    assert worst.value == pytest.approx(0.01, abs=1e-5)
    assert finding.count == 1


def test_a_right_context_passes_in_every_layout() -> None:
    weights = INPUTS.scores.softmax(-1)
    heads = weights @ INPUTS.heads(INPUTS.v)
    merged = heads.transpose(1, 2).flatten(2)
    for context in (heads, heads.transpose(1, 2), merged):
        report = check(weights, expect=(INPUTS.q, INPUTS.k, INPUTS.v), context=context)
        assert list(report) == []
        assert report.checked[-2:] == ("expected", "context")


# ── grouped heads, positions ─────────────────────────────────────────────────────────────────


def grouped(n_heads: int = 4, n_kv: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    q = torch.randn(2, n_heads, 7, 10, generator=generator, dtype=torch.float64)
    return q, torch.randn(2, n_kv, 7, 10, generator=generator, dtype=torch.float64)


def test_key_heads_that_are_tiled_are_named() -> None:
    q, k = grouped()
    weights = wrong.heads_tiled(q, k)
    finding = only(check(weights, expect=(q, k)), "expected")
    assert finding.cause.startswith("key heads are shared in the wrong order")
    assert (
        list(check((q @ k.repeat_interleave(2, 1).mT / 10**0.5).softmax(-1), expect=(q, k))) == []
    )


def test_value_heads_that_are_tiled_are_named() -> None:
    q, k = grouped()
    weights = (q @ k.repeat_interleave(2, 1).mT / 10**0.5).softmax(-1)
    report = check(weights, expect=(q, k, k), context=weights @ k.repeat(1, 2, 1, 1))
    assert only(report, "context").cause.startswith("value heads are shared in the wrong order")


LEFT = {"lengths": [7, 4], "pad_side": "left"}
"""Three places of padding before the second sequence."""


def on_the_left() -> tuple[torch.Tensor, torch.Tensor]:
    """Places in the array, and positions in the sequences, [B T]."""
    places = torch.arange(7)[None].expand(2, 7)
    return places, places - torch.tensor([0, 3])[:, None]


def with_positions(turn: Callable[..., torch.Tensor], q_at: Any, k_at: Any) -> torch.Tensor:
    q, k = grouped(3, 3)
    real = torch.tensor([[True] * 7, [False] * 3 + [True] * 4])
    scores = turn(q, q_at) @ turn(k, k_at).mT / 10**0.5
    return scores.masked_fill(~real[:, None, None], -torch.inf).softmax(-1)


def rope_check(weights: torch.Tensor, positions: str) -> Report:
    return check(weights, expect=grouped(3, 3), positions=positions, **LEFT)


def test_rotary_positions_that_are_right_pass() -> None:
    places, at = on_the_left()
    assert list(rope_check(with_positions(wrong.half_turn, at, at), "rope")) == []
    # a turn of all positions by the same number changes no product
    assert list(rope_check(with_positions(wrong.half_turn, places, places), "rope")) == []
    assert list(rope_check(with_positions(wrong.neighbours_turn, at, at), "rope-pairs")) == []


def test_wrong_rotary_positions_are_named() -> None:
    places, at = on_the_left()
    q, k = grouped(3, 3)
    for weights, words in (
        (
            with_positions(wrong.half_turn, at, places),
            "positions of keys count the padding on the left, those of queries do not",
        ),
        (
            with_positions(wrong.half_turn, places, at),
            "positions of queries count the padding on the left, those of keys do not",
        ),
        (with_positions(wrong.half_turn, at + 1, at), "positions of queries are one too high"),
        (with_positions(wrong.half_turn, at - 1, at), "positions of queries are one too low"),
        (
            with_positions(wrong.half_turn, -at, -at),
            "RoPE turns the wrong way, by minus the position (the sign in rotate_half)",
        ),
        (
            with_positions(wrong.half_turn, 2 * at, 2 * at),
            "q and k are turned twice: they were rotated when they were saved",
        ),
        (
            with_positions(wrong.neighbours_turn, at, at),
            "RoPE turns neighbours, 2i and 2i + 1, together, where numbers i and i + d/2 belong "
            "together",
        ),
        (with_positions(lambda x, _: x, at, at), "RoPE is missing: q and k count as they are"),
    ):
        assert only(rope_check(weights, "rope"), "expected").cause == words
    report = check(with_positions(wrong.half_turn, at, at), expect=(q, k), **LEFT)
    assert only(report, "expected").cause == (
        "q and k were saved before their rotation (RoPE): --positions rope turns them"
    )


def test_another_base_is_named() -> None:
    _, at = on_the_left()
    weights = with_positions(
        lambda x, p: torch.from_numpy(rotated(x.numpy(), p.numpy(), 5e5, pairs=False)), at, at
    )
    assert only(rope_check(weights, "rope"), "expected").cause == "RoPE has the base 500000"
    assert list(rope_check(weights, "rope:500000")) == []
    report = check(weights, expect=grouped(3, 3), **LEFT)
    assert only(report, "expected").cause.endswith("--positions rope:500000 turns them")


def test_rotation_is_that_of_the_two_codes() -> None:
    q, _ = grouped(3, 3)
    places, _ = on_the_left()
    for turn, pairs in ((wrong.half_turn, False), (wrong.neighbours_turn, True)):
        ours = rotated(q.numpy(), places.numpy(), 10000.0, pairs)
        np.testing.assert_allclose(ours, turn(q, places).numpy(), rtol=1e-6, atol=1e-6)


def test_alibi() -> None:
    # the slopes that the paper and its code print
    assert alibi_slopes(4).tolist() == [1 / 4, 1 / 16, 1 / 64, 1 / 256]
    assert alibi_slopes(3).tolist() == [1 / 16, 1 / 256, 1 / 4]
    q, k = grouped(3, 3)
    bias = (
        -torch.tensor(alibi_slopes(3))[:, None, None]
        * torch.arange(7).sub(torch.arange(7)[:, None]).abs()
    )
    weights = (q @ k.mT / 10**0.5 + bias).softmax(-1)
    assert list(check(weights, expect=(q, k), positions="alibi")) == []
    found = only(check(weights, expect=(q, k)), "expected")
    assert found.cause == "ALiBi was added: --positions alibi"
    plain = (q @ k.mT / 10**0.5).softmax(-1)
    found = only(check(plain, expect=(q, k), positions="alibi"), "expected")
    assert found.cause == "ALiBi is missing: q and k count as they are"


# ── right ones ───────────────────────────────────────────────────────────────────────────────

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@st.composite
def right_ones(draw: st.DrawFn) -> tuple[Any, ...]:
    """q, k, the masks that are told, and the mask that they make, `[B 1 Tq Tk]` or None."""
    batch, kv, group = (draw(st.integers(1, n)) for n in (3, 2, 3))
    queries, width = draw(st.integers(1, 13)), draw(st.sampled_from([3, 4, 11]))
    keys = draw(st.integers(1, 13)) if draw(st.booleans()) else queries
    dtype, scale = draw(st.sampled_from(DTYPES)), draw(st.sampled_from([0.0, 0.01, 1.0, 5.0]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    shapes = (batch, kv * group, queries, width), (batch, kv, keys, width)
    q, k = (
        (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).to(dtype)
        for shape in shapes
    )
    # where there are fewer queries than keys, these are the last ones
    i, j = torch.arange(queries)[:, None] + max(keys - queries, 0), torch.arange(keys)
    told: dict[str, Any] = {}
    masks = []
    if draw(st.booleans()):
        told["causal"] = True
        masks.append(j <= i)
    if draw(st.booleans()):
        told["window"] = draw(st.integers(1, 5))
        masks.append((j <= i) & (j > i - told["window"]))
    if draw(st.booleans()) and queries == keys:
        told["lengths"] = draw(st.lists(st.integers(1, keys), min_size=batch, max_size=batch))
        told["pad_side"] = draw(st.sampled_from(["left", "right"]))
        lengths = torch.tensor(told["lengths"])[:, None]
        real = j < lengths if told["pad_side"] == "right" else j >= keys - lengths
        masks.append(real[:, None, None])
    if draw(st.booleans()):
        told["mask"] = torch.rand(batch, queries, keys, generator=generator) < 0.7
        masks.append(told["mask"][:, None])
    allowed = torch.ones(batch, 1, queries, keys, dtype=torch.bool)
    for mask in masks:
        allowed = allowed & mask
    return q, k, told, allowed if masks else None


@given(right_ones(), st.sampled_from(right.WAYS))
@settings(max_examples=100)
def test_right_attention_never_fails(one: tuple[Any, ...], way: Callable[..., Any]) -> None:
    q, k, told, allowed = one
    weights = way(q, k, allowed)
    assert str(check(weights, **told)).splitlines()[-1].startswith("nothing is wrong")
    report = check(weights, expect=(q, k), **told)
    assert report.passed, str(report)


SPOILED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "as they are": lambda w, _: w,
    "powers": lambda w, _: w.exp(),
    "logarithms": lambda w, _: w.log(),
    "dropped": lambda w, odd: w * (odd < 0.7) / 0.7,
    "large": lambda w, _: w * 1e300,
    "NaN here and there": lambda w, odd: w.masked_fill(odd < 0.1, torch.nan),
    "infinity here and there": lambda w, odd: w.masked_fill(odd < 0.1, -torch.inf),
    "nothing": lambda w, _: 0 * w,
    "all infinite": lambda w, _: w + torch.inf,
    "along the queries": lambda w, _: w / w.sum(-2, keepdim=True),
    "turned": lambda w, _: w.flip(-1),
}


@pytest.mark.filterwarnings("error")
@given(right_ones(), right_ones(), st.sampled_from(list(SPOILED.values())), st.booleans())
@settings(max_examples=70)
def test_any_numbers_give_a_report(
    one: tuple[Any, ...], other: tuple[Any, ...], spoil: Callable[..., Any], sinks: bool
) -> None:
    """Whatever stands in the weights, and whatever masks are told: findings, and no warning."""
    q, k, _, allowed = one
    weights = right.minus_infinity(q, k, allowed).double()
    odd = torch.rand(weights.shape, generator=torch.Generator().manual_seed(weights.shape[-1]))
    told = {name: other[2][name] for name in ("causal", "window") if name in other[2]}
    str(check(spoil(weights, odd), expect=(q, k), sinks=sinks, **told))


@given(right_ones(), st.integers(0, 100))
@settings(max_examples=40)
def test_sinks_pass_when_they_are_told(one: tuple[Any, ...], seed: int) -> None:
    q, k, told, allowed = one
    sink = torch.randn(q.shape[1], generator=torch.Generator().manual_seed(seed))
    report = check(right.with_sink(q, k, allowed, sink), sinks=True, **told)
    assert report.passed, str(report)


@given(
    st.sampled_from([0.05, 0.1, 0.3, 0.5]),
    st.sampled_from(DTYPES),
    st.booleans(),
    st.integers(0, 10**6),
)
@example(0.05, torch.float16, True, 435)  # 3 of 224 weights, where 11 are usual
@settings(max_examples=40)
def test_dropout_is_recognised_and_does_not_fail(
    p: float, dtype: torch.dtype, causal: bool, seed: int
) -> None:
    q, k = (x.to(dtype) for x in grouped())
    allowed = torch.ones(7, 7, dtype=torch.bool).tril() if causal else None
    report = check(right.in_training(q, k, allowed, p, seed), causal=causal)
    assert report.passed, str(report)
    [note] = [finding for finding in report if finding.name == "rows"]
    assert note.what.startswith("rows do not sum to 1 since dropout was on, p about 0.")
    assert float(note.what.rpartition(" ")[2]) == pytest.approx(p, abs=0.08)


def test_torch_and_ours_pass() -> None:
    x = torch.randn(3, 11, 30, generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor([11, 7, 1])
    weights = right.of_torch(x, lengths, 5)
    assert list(check(weights, causal=True, lengths=lengths.tolist())) == []
    q, k = grouped(3, 3)
    _, weights = attnviz.scaled_dot_product_attention(q, k, k, torch.ones(7, 7).tril().bool())
    assert list(check(weights, causal=True, expect=(q, k))) == []


def test_layers_of_transformers_pass() -> None:
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        num_hidden_layers=2,
        hidden_size=24,
        intermediate_size=32,
        vocab_size=41,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation="eager",
    )
    ids = torch.randint(0, 41, (2, 9), generator=torch.Generator().manual_seed(2))
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, :3] = 0  # on the left
    with torch.no_grad():
        out = LlamaModel(config).eval()(ids, attention_mask=mask, output_attentions=True)
    report = check(out.attentions, causal=True, padding_mask=mask)
    assert report.passed, str(report)
    assert report.sizes == {"L": 2, "B": 2, "H": 4, "Tq": 9, "Tk": 9}


# ── where, how often, how exactly ────────────────────────────────────────────────────────────


def clean(*shape: int, seed: int = 0) -> np.ndarray:
    """Right causal weights `[L B H T T]`."""
    generator = np.random.default_rng(seed)
    scores = generator.normal(size=shape) + np.where(np.tri(*shape[-2:]), 0, -np.inf)
    powers = np.exp(scores)
    return (powers / powers.sum(-1, keepdims=True)).astype(np.float32)


def test_one_bad_cell_is_placed_exactly() -> None:
    for value, name in ((np.nan, "finite"), (np.inf, "finite"), (-0.25, "negative")):
        weights = clean(3, 2, 5, 7, 7)
        weights[2, 1, 3, 5, 4] = value
        finding = only(check(weights, causal=True), name)
        assert finding.fails
        [head] = finding.heads
        assert (head.layer, head.head, head.count) == (2, 3, 1)
        place = finding.worst
        assert (place.layer, place.sequence, place.head, place.query, place.key) == (2, 1, 3, 5, 4)
        assert np.array_equal(place.value, value, equal_nan=True)


def test_the_worst_of_several_leaks_and_their_number() -> None:
    weights = clean(3, 2, 5, 7, 7)
    weights[0, 1, 2, 3, 5] = 0.02
    weights[2, 0, 4, 1, 6] = 0.3
    weights[2, 0, 4, 0, 6] = 0.1
    tokens = [[f"q{b}{t}" for t in range(7)] for b in range(2)]
    report = check(weights, causal=True, tokens=tokens)
    leak = only(report, "leak:causal")
    assert [(h.layer, h.head, h.count) for h in leak.heads] == [(0, 2, 1), (2, 4, 2)]
    assert leak.worst == Location(2, 4, 0, 1, 6, pytest.approx(0.3), "q01", "q06")
    assert report.lines(leak)[:2] == [
        "weight where the causal mask forbids it: 3 cells in 2 of 15 heads "
        "(layer 0: head 2; layer 2: head 4)",
        "worst: layer 2 sequence 0 head 4 query 1 'q01' key 6 'q06': weight 0.3",
    ]


def test_padding_rows_are_not_judged_but_for_numbers_that_are_none() -> None:
    weights = clean(1, 2, 3, 7, 7)
    weights[0, 1, :, 5:] = 0.77  # rows of padding: whatever was left there
    assert list(check(weights, causal=True, lengths=[7, 5])) == []
    weights[0, 1, 1, 6, 2] = np.nan
    assert only(check(weights, causal=True, lengths=[7, 5]), "finite").worst.query == 6


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head in parts, as one of a dump that is larger than the memory would be read."""
    q, k = grouped()
    scores = (q @ k.repeat_interleave(2, 1).mT).float()
    cases = [
        (scores.softmax(-1), {"causal": True}),
        (scores.softmax(-2), {}),
        (torch.dropout(scores.softmax(-1), 0.2, train=True), {"lengths": [7, 5]}),
        (torch.zeros_like(scores) + torch.eye(7)[3], {}),
        (scores.softmax(-1)[:, [0, 0, 1, 1]], {}),
        (scores.softmax(-1), {"mask": torch.rand(2, 4, 7, 7) < 0.8}),
        (scores.softmax(-1), {"expect": (q, k), "causal": True}),
        (scores.softmax(-1), {"expect": (q, k, k), "context": q, "positions": "alibi"}),
    ]
    whole = [str(check(weights, **told)) for weights, told in cases]
    for block in (1, 7, 20, 100):
        monkeypatch.setattr(scan, "BLOCK", block)
        assert [str(check(weights, **told)) for weights, told in cases] == whole
    assert sum(report.startswith("FAILS") for report in whole) >= 5


def test_the_precision_that_numbers_came_from() -> None:
    numbers = torch.rand(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        short = numbers.to(dtype)
        for wide in (torch.float32, torch.float64):
            if torch.finfo(wide).bits >= torch.finfo(dtype).bits:
                assert precision_of(short.to(wide).numpy()) == name
    assert precision_of(numbers.half().numpy()) == "float16"
    assert precision_of(np.zeros(0, np.float32)) == "float32"


def test_the_tolerance_of_a_row_by_hand() -> None:
    for name, roundoff, steps in (
        ("bfloat16", 2**-8, 0),
        ("float16", 2**-11, 2**-25),
        ("float32", 2**-24, 0),
        ("float64", 2**-53, 0),
    ):
        sums = min(roundoff, 2**-24)
        by_hand = roundoff * (4 + np.log(512)) + (512 + 16) * sums + 512 * steps
        assert row_tolerance(name, 512) == pytest.approx(by_hand)


def test_float32_is_held_to_its_own_precision() -> None:
    weights = clean(1, 1, 2, 7, 7)
    assert check(weights * np.float32(1 + 1e-6)).passed
    off = only(check(weights * np.float32(1 + 1e-4)), "rows")
    assert off.cause == "every row sums to 1.0001: the weights were scaled after softmax"
    assert number(off.worst.value) == "1.0001"
    assert check(weights * np.float32(1 + 1e-4), tolerance=1e-3).passed
    assert not check(weights * np.float32(1 + 1e-2), tolerance=1e-3).passed


def test_a_row_that_is_short_by_rounding_is_told_from_a_sink() -> None:
    weights = clean(1, 1, 2, 7, 7)
    weights *= 1 + np.random.default_rng(0).uniform(-0.004, 0.004, (1, 1, 2, 7, 1)).astype("f4")
    assert only(check(weights), "rows").cause.startswith("the sums are off by little")
    weights = clean(1, 1, 2, 7, 7)
    weights[..., 3:, :] *= np.float32(1.5)
    weights[..., 5:, :] *= np.float32(1.2)
    assert only(check(weights), "rows").cause.startswith("weights were changed after softmax")


def test_rows_that_fall_short_may_be_sinks() -> None:
    q, k = grouped(3, 3)
    weights = right.with_sink(q, k, None, torch.zeros(3))
    [finding] = check(weights)
    assert "--sinks" in finding.cause
    assert list(check(weights, sinks=True)) == []
    assert list(check(weights, sinks=True, expect=(q, k))) == []
    assert only(check(weights * 3, sinks=True), "rows").fails


def test_half_of_one_weight_is_not_forgiven_by_powers_of_two() -> None:
    """0 and 0.5 are in bfloat16 too, and far from its tolerance."""
    weights = np.eye(5, dtype=np.float32)
    weights[2, 2] = 0.5
    assert only(check(weights), "rows").worst.value == 0.5


# ── notes ────────────────────────────────────────────────────────────────────────────────────


def test_dead_equal_and_sunken_heads_are_notes() -> None:
    weights = clean(2, 2, 5, 7, 7)
    causal = np.tri(7, dtype=np.float32)
    weights[0, :, 1] = causal / causal.sum(-1, keepdims=True)
    weights[1, :, 3] = weights[0, :, 2]
    weights[1, :, 4] = 0
    weights[1, :, 4, :, 0] = 1
    report = check(weights, causal=True)
    assert report.passed
    found = {f.name: [(h.layer, h.head) for h in f.heads] for f in report}
    assert found == {"dead": [(0, 1)], "equal": [(1, 3)], "sink": [(1, 4)]}
    assert only(report, "equal").cause.startswith("layer 1 head 3 equals layer 0 head 2: ")
    sink = only(report, "sink").worst
    assert (sink.query, sink.key, sink.value) == (None, 0, 1.0)
    assert report.lines(only(report, "sink"))[1] == (
        "worst: layer 1 sequence 0 head 4 key 0: mean weight 1"
    )
    assert report.verdict == "nothing is wrong; 3 notes"


def test_rows_of_zeros_are_noted_or_wrong() -> None:
    weights = clean(1, 1, 2, 7, 7)
    weights[0, 0, 1, 4] = 0
    report = check(weights)
    assert (report.passed, only(report, "blind").worst.query) == (True, 4)
    finding = only(check(weights, causal=True), "rows")
    assert finding.cause.startswith("rows of zeros: what ran let them see nothing")
    assert check(weights, causal=True, sinks=True).passed
    mask = np.tri(7, dtype=bool)
    mask[4] = False
    weights[0, 0, 0, 4] = 0
    report = check(weights, mask=mask)
    assert (report.passed, only(report, "blind").count) == (True, 2)


def test_exactly_uniform_rows_among_others_are_noted() -> None:
    weights = clean(1, 1, 2, 7, 7)
    weights[0, 0, 1, 2] = np.float32(1 / 7)
    note = only(check(weights), "uniform")
    assert (note.fails, note.count, note.worst.query) == (False, 1, 2)
    assert only(check(weights, causal=True), "leak:causal").cause.startswith("the row is uniform")


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (np.triu, "nobody looks at earlier keys: a causal mask, transposed or inverted"),
        (
            lambda a: np.triu(a, 1),
            "nobody looks at itself or earlier: a causal mask that is inverted",
        ),
        (
            lambda a: np.tril(a, -1),
            "nobody looks at itself or later: a causal mask, shifted by one",
        ),
        (lambda a: a * (1 - np.eye(7)), "nobody looks at itself: a mask that is shifted by one"),
    ],
)
def test_a_pattern_of_a_mask_that_nobody_told(cells: Any, words: str) -> None:
    powers = cells(np.exp(np.random.default_rng(1).normal(size=(2, 3, 7, 7))))
    total = powers.sum(-1, keepdims=True)
    weights = powers / np.where(total > 0, total, 1)
    assert only(check(weights), "stricter").what == words


# ── what is given ────────────────────────────────────────────────────────────────────────────


def test_every_form_of_weights_gives_the_same_report() -> None:
    weights = clean(2, 2, 3, 7, 7)
    weights[1, 1, 2, 3, 6] = 0.5
    wanted = check(weights, causal=True)
    assert not wanted.passed
    tensor = torch.from_numpy(weights)
    for form in (
        tensor,
        tensor.clone().requires_grad_(),
        [tensor[0], tensor[1]],
        (weights[0], tensor[1]),
    ):
        assert check(form, causal=True) == wanted
    assert check(weights.transpose(1, 3, 4, 2, 0), axes="B Q K H L", causal=True) == wanted
    assert check(weights.tolist(), causal=True).failures[0].count == 1
    assert [check(weights[0, 0, 0]).sizes["H"], check(weights[0, 0]).sizes["H"]] == [1, 3]
    assert read_weights(read_weights(weights)).shape == (2, 2, 3, 7, 7)


def test_bfloat16_is_read_as_it_is() -> None:
    tensor = torch.from_numpy(clean(2, 2, 3, 7, 7)).bfloat16()
    assert list(check(tensor, causal=True)) == []
    raw = tensor.view(torch.int16).numpy().view("V2")
    assert list(check(raw, causal=True)) == []
    subject = read_weights(tensor)
    lazy = CheckedWeights([Bfloat16(layer) for layer in raw], subject.queries, subject.keys)
    assert lazy.dtype == "bfloat16"
    np.testing.assert_array_equal(lazy.layer(1), tensor[1].float().numpy())
    np.testing.assert_array_equal(lazy.layers[1][1, 0:2, 3], tensor[1, 1, 0:2, 3].float().numpy())


def saved_run(**changes: Any) -> attnviz.Attention:
    weights = clean(1, 2, 3, 7, 7)
    real = np.arange(7) < np.array([7, 5])[:, None]
    allowed = (np.tri(7, dtype=bool) & real[:, None])[None, :, None]
    tokens = tuple(tuple("abcdefg"[:n]) + ("[PAD]",) * (7 - n) for n in (7, 5))
    facts: dict[str, Any] = {
        "attention": weights * allowed / (weights * allowed).sum(-1, keepdims=True),
        "allowed": allowed,
        "query_tokens": tokens,
        "key_tokens": tokens,
        "lengths": np.array([7, 5]),
        "key_lengths": np.array([7, 5]),
        "masks": ("padding", "causal"),
    }
    return attnviz.Attention(**{**facts, **changes})


def test_a_saved_run_is_held_to_its_own_mask() -> None:
    run = saved_run()
    report = check(run)
    assert list(report) == []
    assert report.masks == ("padding, causal",)
    run.attention[0, 1, 2, 3, 4] = 0.2
    leak = only(check(run), "leak:padding, causal")
    assert (leak.worst.query_token, leak.worst.key_token) == ("d", "e")


def test_a_run_may_be_given_other_lengths() -> None:
    run = saved_run(allowed=np.ones((1, 2, 1, 7, 7), bool))
    assert list(check(run, lengths=[7, 7])) == []
    assert check(run, lengths=[7, 3]).masks == ("padding",)


def test_padding_masks_are_lengths_and_a_side() -> None:
    assert lengths_of([[1, 1, 0], [1, 0, 0]], 2, 3) == ([2, 1], "right")
    assert lengths_of(np.array([[False, True, True], [True, True, True]]), 2, 3) == ([2, 3], "left")
    assert lengths_of(torch.ones(2, 1, 1, 3), 2, 3) == ([3, 3], "right")
    assert lengths_of([1, 1, 0], 2, 3) == ([2, 2], "right")
    weights = wrong.padding_forgotten(INPUTS)
    by_mask = check(weights, padding_mask=INPUTS.real)
    assert by_mask == check(weights, lengths=LENGTHS)


def test_segments_and_cross_attention() -> None:
    tokens = ["a", "b", "[SEP]", "c", "d"]
    blocks = np.kron(np.eye(2), np.ones((3, 3)))[:5, :5]
    weights = blocks / blocks.sum(-1, keepdims=True)
    assert check(weights, segments=True, tokens=tokens).passed
    leak = only(check(np.full((5, 5), 0.2), segments=True, tokens=tokens), "leak:segments")
    assert (leak.count, leak.worst.key_token) == (12, "c")
    cross = np.full((2, 3, 5, 7), 1 / 7)
    report = check(cross, key_lengths=[7, 4], tokens=[tokens] * 2, key_tokens=[list("klmnopq")] * 2)
    leak = only(report, "leak:padding")
    assert (leak.count, leak.worst.query_token, leak.worst.key_token) == (45, "a", "[PAD]")


def test_queries_at_the_end_of_a_cache() -> None:
    """Three new tokens after four in the cache: causal counts from the end, as models generate."""
    powers = np.exp(np.random.default_rng(0).normal(size=(5, 3, 7)))
    mask = np.tri(7, dtype=bool)[4:]
    right, torchs = (
        powers * some / (powers * some).sum(-1, keepdims=True)
        for some in (mask, np.tri(3, 7, dtype=bool))
    )
    assert not [*check(right, causal=True)]
    assert not [*check(right, causal=True, key_lengths=[7])]
    assert check(right, mask=mask).passed
    # scaled_dot_product_attention(is_causal=True) counts queries from the first key
    note = only(check(torchs, causal=True), "stricter")
    assert note.what == (
        "the causal mask is as if queries stood at the first keys and not at the last"
    )
    assert not check(powers / powers.sum(-1, keepdims=True), causal=True).passed


def test_positions_after_a_cache() -> None:
    """Two queries after five keys stand at 5 and 6; code that begins at 0 again is named."""
    q, k = grouped(3, 3)
    at = torch.arange(7)[None]
    for q_at, causes in (
        (at[:, 5:], []),
        (at[:, :2], ["positions of queries begin at 0, and do not count the keys in the cache"]),
    ):
        turned = wrong.half_turn(q[:, :, 5:], q_at) @ wrong.half_turn(k, at).mT
        weights = (turned / 10**0.5).masked_fill(~torch.ones(2, 7).tril(5).bool(), -torch.inf)
        report = check(weights.softmax(-1), expect=(q[:, :, 5:], k), positions="rope", causal=True)
        assert [finding.cause for finding in report] == causes


def test_one_masks_mistake_explains_what_leaks_through_another() -> None:
    """A window on both sides where a causal one was meant; the causal mask has no mistake of its
    own that would give that."""
    apart = np.arange(17)[:, None] - np.arange(17)
    powers = np.exp(np.random.default_rng(0).normal(size=(3, 17, 17))) * (abs(apart) < 3)
    report = check(powers / powers.sum(-1, keepdims=True), causal=True, window=3)
    assert {finding.name: finding.cause for finding in report} == dict.fromkeys(
        ["leak:causal", "leak:window 3"], "the window 3 mask is as if it reached both ways"
    )


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(
    ("told", "sees"),
    [
        ({"causal": True}, lambda q, k: k <= q),
        ({"window": 3}, lambda q, k: (k <= q) & (k > q - 3)),
        ({"prefix": 2}, lambda q, k: (k <= q) | (k < 2)),
    ],
)
def test_each_sequence_has_a_cache_of_its_own(side: str, told: Any, sees: Any) -> None:
    """Keys of 11, 7 and 5 real tokens, the last two of which are the queries."""
    lengths, keys = np.array([11, 7, 5]), np.arange(11)
    at_k = keys - (11 - lengths if side == "left" else 0 * lengths)[:, None]
    at_q = lengths[:, None] - 2 + np.arange(2)
    real = (at_k >= 0) & (at_k < lengths[:, None])
    mask = sees(at_q[:, :, None], at_k[:, None]) & real[:, None]
    powers = np.exp(np.random.default_rng(0).normal(size=(3, 5, 2, 11))) * mask[:, None]
    weights = powers / powers.sum(-1, keepdims=True)
    assert check(weights, key_lengths=lengths, pad_side=side, **told).passed
    assert not check(np.roll(weights, 1, 2), key_lengths=lengths, pad_side=side, **told).passed


WRONG_INPUT: list[tuple[Any, dict[str, Any], str]] = [
    (np.ones((2, 2), int), {}, "weights are int64; floats of 16 to 64 bits expected"),
    (
        np.ones((1,) * 6),
        {},
        "weights of shape [1, 1, 1, 1, 1, 1] do not go with 6 axes; [Q K], [H Q K], [B H Q K]"
        " or [L B H Q K] is expected, or their order as axes",
    ),
    (
        np.ones((2, 2)),
        {"axes": "H Q"},
        "weights of shape [2, 2] do not go with axes 'H Q'; [Q K], [H Q K], [B H Q K] or [L B"
        " H Q K] is expected, or their order as axes",
    ),
    (np.ones((2, 2, 2)), {"axes": "Z Q K"}, "axes 'Z Q K': Z is none of L B H Q K"),
    (np.ones((0, 2)), {}, "weights have shape [0, 2]; none of its sizes may be 0"),
    ([[1.0], [1.0, 2.0]], {}, "an even list of numbers is expected; rows differ in length"),
    (
        [np.eye(2), np.eye(3)],
        {},
        "layers have shapes [1, 1, 2, 2] and [1, 1, 3, 3]; one is expected",
    ),
    (
        [np.eye(2)],
        {"axes": "L Q K"},
        "axes names L, and a list has a layer for each item; leave L out",
    ),
    (np.eye(2), {"pad_side": "up"}, "pad_side is 'up'; right or left is expected"),
    (
        np.eye(2),
        {"lengths": [1, 2]},
        "lengths are [1, 2]; 1 whole number is expected, one a sequence",
    ),
    (
        np.ones((2, 3, 3)) / 3,
        {"lengths": [3, 2]},
        "lengths are of 2 sequences, and the array was read as 2 heads of one; of a map a "
        'sequence, as nn.MultiheadAttention gives it, say axes="B Q K"',
    ),
    (np.eye(2), {"lengths": [3]}, "lengths has 3; the array has 2 places, 0 to 2 fit"),
    (np.eye(2), {"lengths": [0]}, "every one of lengths is 0; there is nothing to check"),
    (
        np.ones((3, 1, 2, 2)),
        {"tokens": [["a", "b"], ["c", "d"]]},
        "tokens has 2 sequences; the array has 3",
    ),
    (
        np.eye(2),
        {"tokens": ["a", "b", "c"]},
        "tokens of sequence 0 are 3; 2 or, with padding, 2 fit",
    ),
    (
        np.eye(2),
        {"segments": True},
        "segments end at [SEP], and the tokens are not known; give tokens",
    ),
    (
        np.eye(2),
        {"mask": np.array([[0, -1e9], [0, 0]])},
        "the mask is float64 with other numbers than 0 and 1; give True where a query may "
        "look: mask == 0 of one that is added to scores",
    ),
    (
        np.eye(3),
        {"padding_mask": [[1, 0, 1]]},
        "the padding mask has padding between real tokens, or on both sides; give it as a "
        "mask [B 1 Tk] instead",
    ),
    (np.eye(3), {"padding_mask": [[1, 0]]}, "the padding mask has shape [1, 2]; [1 3] is expected"),
    (
        np.eye(3),
        {"padding_mask": [[1, 0, -5]]},
        "the padding mask holds other numbers than 0 and 1",
    ),
    (
        np.ones((2, 5, 3, 3)),
        {"expect": (np.ones((2, 5, 4, 8)),) * 2},
        "q has shape [2, 5, 4, 8]; [B H T d], [B T H d] or [B T H·d] is expected for L=1 B=2 "
        "T=3 H=5",
    ),
    (
        np.ones((4, 2, 5, 3, 3)),
        {"expect": (np.ones((2, 5, 3, 8)),) * 2},
        "q has shape [2, 5, 3, 8]; [B H T d], [B T H d] or [B T H·d] is expected, L in front,"
        " for L=4 B=2 T=3 H=5",
    ),
    (np.eye(3), {"expect": (np.eye(3, dtype=int),) * 2}, "q is int64; floats are expected"),
    (
        np.eye(3),
        {"expect": (np.ones((3, 4)), np.ones((1, 3, 5)))},
        "heads of q have 4 numbers, those of k 5",
    ),
    (
        np.eye(3),
        {
            "expect": (np.ones((3, 4)), np.ones((3, 4)), np.ones((1, 3, 5))),
            "context": np.ones((3, 4)),
        },
        "heads of v have 5 numbers, those of context 4",
    ),
]

WRONG_ARGUMENTS: list[tuple[Any, dict[str, Any], str]] = [
    (
        np.eye(3),
        {"padding_mask": [[1, 1, 1]], "lengths": [3]},
        "lengths and padding_mask both give the padding; give one of them",
    ),
    (np.eye(3), {"tolerance": -1.0}, "tolerance is -1.0; 0 to below 1 is expected"),
    (
        np.eye(3),
        {"positions": "rope"},
        "positions goes with expect: it tells what to do with q and k",
    ),
    (
        np.eye(3),
        {"positions": "sine", "expect": (np.eye(3), np.eye(3))},
        "--positions is 'sine'; it must be one of none, rope, rope-pairs, alibi, rope:BASE "
        "for another base than 10000",
    ),
    (
        np.eye(3),
        {"positions": "rope:x", "expect": (np.eye(3), np.eye(3))},
        "--positions is 'rope:x'; it must be one of none, rope, rope-pairs, alibi, rope:BASE "
        "for another base than 10000",
    ),
    (
        np.eye(3),
        {"expect": (np.eye(3),)},
        "--expect has 1 tensors; q and k, or q, k and v are expected",
    ),
    (
        np.eye(3),
        {"expect": (np.eye(3),) * 3},
        "--expect has a v, and there is no context to compare: give it with --context, or "
        "leave v out",
    ),
    (
        np.eye(3),
        {"expect": (np.eye(3),) * 2, "context": np.eye(3)},
        "--context is weights · V: --expect needs a v as well",
    ),
]


@pytest.mark.parametrize(
    ("kind", "weights", "given", "message"),
    [
        *((InputError, *case) for case in WRONG_INPUT),
        *((ConfigError, *case) for case in WRONG_ARGUMENTS),
    ],
)
def test_what_does_not_fit_is_one_clear_line(
    kind: type[Exception], weights: Any, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(kind) as caught:
        check(weights, **given)
    assert str(caught.value) == message


def test_expected_tensors_in_every_order_of_axes() -> None:
    weights = INPUTS.scores.softmax(-1)
    q, k = INPUTS.heads(INPUTS.q), INPUTS.heads(INPUTS.k)
    for change in (
        lambda x: x,
        lambda x: x.transpose(1, 2),
        lambda x: x.transpose(1, 2).flatten(2),
        lambda x: x[None],
        lambda x: x.transpose(1, 2)[None],
        lambda x: x.transpose(1, 2).flatten(2)[None],
    ):
        assert list(check(weights, expect=(change(q), change(k)))) == []
    one = weights[0]
    for change in (
        lambda x: x[0],
        lambda x: x[0].transpose(0, 1),
        lambda x: x[0].mT.flatten(0, 1).T,
    ):
        assert list(check(one, expect=(change(q), change(k)))) == []
    assert list(check([one, weights[1]], expect=(q, k))) == []  # L H T d
    assert list(check([one, weights[1]], expect=(INPUTS.q, INPUTS.k))) == []  # L T H·d
    assert list(check(weights[0, 0], expect=(q[0, 0], k[0, 0]))) == []


def test_key_heads_side_by_side_are_counted_by_the_width_of_a_query() -> None:
    q, k = grouped()
    merged = k.transpose(1, 2).flatten(2)  # B T Hkv·d
    weights = (q @ k.repeat_interleave(2, 1).mT / 10**0.5).softmax(-1)
    assert list(check(weights, expect=(q, merged))) == []
    context = weights @ k.repeat_interleave(2, 1)
    assert list(check(weights, expect=(q, merged, merged), context=context)) == []
    subject = read_weights(weights)
    assert read_heads("k", merged, subject, of_keys=True, width=10).n_heads == 2


def test_several_layers_each_with_a_mistake_of_its_own() -> None:
    q, k = grouped(3, 3)
    products = q @ k.mT
    weights = [
        (products / 10**0.5).softmax(-1),
        products.softmax(-1),
        (products / 10).softmax(-1),
        products.softmax(-1),
        torch.full_like(products, 1 / 7),
    ]
    q5, k5 = (x[None].expand(5, -1, -1, -1, -1) for x in (q, k))
    found = [f for f in check(weights, expect=(q5, k5)) if f.name == "expected"]
    assert {f.cause.split(":")[0].split(",")[0]: {h.layer for h in f.heads} for f in found} == {
        "the scale is missing": {1, 3},
        "scores are divided by d_k = 10": {2},
        "none of the usual mistakes gives these numbers": {4},
    }


def test_what_is_too_large_for_memory_is_compared_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights, context = wrong.weights_for_show(INPUTS)
    given: dict[str, Any] = {"expect": (INPUTS.q, INPUTS.k, INPUTS.v), "context": context}
    whole = check(weights, **given)
    monkeypatch.setattr(scan, "BLOCK", 20)
    monkeypatch.setattr("attnviz.checks.recomputed_weights.free_memory", lambda: 10_000)
    part = check(weights, **given)
    assert only(part, "expected") == only(whole, "expected")  # by one sequence of the two
    monkeypatch.setattr("attnviz.checks.recomputed_weights.free_memory", lambda: 1000)
    none = check(weights, **given)
    assert only(none, "expected").heads == only(whole, "expected").heads
    for name in ("expected", "context"):
        assert only(none, name).cause.startswith("too large to look for the mistake in memory")


# ── in a test of one's own ───────────────────────────────────────────────────────────────────


def test_assert_attention_says_what_is_wrong() -> None:
    weights = clean(1, 1, 3, 7, 7)
    assert attnviz.assert_attention(weights, causal=True) is None
    weights[0, 0, 1, 2, 6] = 0.5
    with pytest.raises(AssertionError) as caught:
        assert_attention(weights, causal=True, tokens=list("abcdefg"))
    assert str(caught.value) == (
        "attention is wrong\n"
        "FAILS  rows that do not sum to 1: 1 row in 1 of 3 heads (head 1)\n"
        "       worst: head 1 query 2 'c': sum 1.5\n"
        "       weights were changed after softmax: thresholded, averaged, or cut off\n"
        "FAILS  weight where the causal mask forbids it: 1 cell in 1 of 3 heads (head 1)\n"
        "       worst: head 1 query 2 'c' key 6 'g': weight 0.5\n"
        "       forbidden cells have weight here and there: the mask that was used has holes, or "
        "weights were changed afterwards\n"
        "2 findings fail"
    )


def test_every_finding_is_one_of_the_checks() -> None:
    for name, (told, _) in WRONG.items():
        report = check(getattr(wrong, name)(INPUTS), **told)
        for finding in report:
            assert finding.name.partition(":")[0] in CHECKS
            assert finding.name in report.checked
            assert finding.count >= len(finding.heads) >= 1


def test_numbers_that_are_nearly_round_are_shown_so() -> None:
    shown = [number(x) for x in (0.0, 1.0, 0.12345, 1.00004, 1 - 1e-7, 1 + 1e-12, -2.5, 1e-30)]
    assert shown == ["0", "1", "0.123", "1.00004", "0.9999999", "1", "-2.5", "1e-30"]
    assert [number(x) for x in (np.nan, np.inf, -np.inf)] == ["NaN", "infinity", "-infinity"]


def test_ranges() -> None:
    assert ranges([0, 4, 5, 6, 9]) == "0, 4-6, 9"


def test_many_layers_are_counted() -> None:
    weights = clean(12, 1, 4, 5, 5)
    for layer in range(6):
        weights[2 * layer, 0, layer % 4, 0, 4] = 0.1
        weights[2 * layer, 0, 3, 1, 4] = 0.2
    report = check(weights, causal=True)
    assert report.lines(only(report, "leak:causal"))[0] == (
        "weight where the causal mask forbids it: 12 cells in 11 of 48 heads "
        "(layers 0, 8: heads 0, 3; layers 2, 10: heads 1, 3; layer 4: heads 2-3; layer 6: head 3)"
    )
    weights[1] = 1
    report = check(weights, causal=True)
    assert "layer 1: all heads" in report.lines(only(report, "leak:causal"))[0]


# ── results that are not all of a model ──────────────────────────────────────────────────────


def test_layers_have_the_numbers_of_their_model() -> None:
    run = saved_run(layers=(5,))
    assert list(check(run)) == []
    run.attention[0, 1, 2, 3, 4] = 0.2
    report = check(run)
    leak = only(report, "leak:padding, causal")
    assert (leak.worst.layer, [head.layer for head in leak.heads]) == (5, [5])
    assert report.lines(leak)[0].endswith("(layer 5: head 2)")
    assert report.lines(leak)[1].startswith("worst: layer 5 sequence 1 head 2 query 3 'd' key 4")


def test_rows_of_a_part_or_with_hidden_tokens_may_fall_short() -> None:
    whole = saved_run()
    cut = saved_run(attention=whole.attention * 0.8)
    assert not check(cut).passed
    for change in ({"notes": ("2 tokens hidden",)}, {"config": {"part": [[0, 7], [0, 7]]}}):
        report = check(saved_run(attention=whole.attention * 0.8, **change))
        assert report.passed
        assert report.notes_on_reading[0].startswith("rows may sum to less than 1: ")


# ── mistakes that are easily taken for others ────────────────────────────────────────────────


def softmax_under(allowed: np.ndarray, *shape: int, seed: int = 0) -> np.ndarray:
    """Weights of random scores `shape` under a mask that broadcasts; blind rows are zeros."""
    scores = np.random.default_rng(seed).standard_normal(shape)
    powers = np.where(allowed, np.exp(scores), 0)
    return (powers / np.maximum(powers.sum(-1, keepdims=True), 1e-300)).astype(np.float32)


def real_keys(lengths: list[int], width: int) -> np.ndarray:
    """`[B 1 1 width]`."""
    return (np.arange(width) < np.array(lengths)[:, None])[:, None, None]


@pytest.mark.parametrize("lengths", [None, [13, 9, 4]])
def test_another_sequence_s_padding_mask_under_a_causal_one_is_seen(
    lengths: list[int] | None,
) -> None:
    """No cell that is forbidden has weight: what shows it are keys that nobody looks at."""
    used = real_keys([4, 13, 9], 13) & np.tri(13, dtype=bool)
    report = check(softmax_under(used, 3, 2, 13, 13), causal=True, lengths=lengths)
    assert report.passed
    found = {finding.what for finding in report if finding.name == "stricter"}
    about = "the padding mask of another sequence, or lengths that are not given"
    words = {f"no query of sequence 0 looks at keys 4-12: {about}"}
    [first, *_] = [finding for finding in report if finding.name == "stricter"]
    assert first.worst.sequence == 0
    if lengths is None:  # then the last queries of sequence 2 are queries as well
        words.add(f"no query of sequence 2 looks at keys 9-12: {about}")
    assert found == words


def test_small_weights_that_round_to_0_are_no_other_mask() -> None:
    weights = softmax_under(np.tri(13, dtype=bool), 3, 2, 13, 13)
    weights[0, :, :, 5] = 0  # one key that is never looked at, as is that of no padding mask
    weights[0, :, 9:, 2] = 0
    weights /= weights.sum(-1, keepdims=True)
    report = check(weights, causal=True)
    assert [finding for finding in report if finding.name == "stricter"] == []


@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("lengths", [[7, 5], [11, 7, 5]])
def test_masks_in_another_order_are_not_called_ignored(heads: int, lengths: list[int]) -> None:
    batch, width = len(lengths), lengths[0]
    order = [*range(1, batch), 0]
    used = real_keys([lengths[i] for i in order], width)
    report = check(softmax_under(used, batch, heads, width, width), lengths=lengths)
    cause = only(report, "leak:padding").cause
    told = ", ".join(f"{b} has that of {other}" for b, other in enumerate(order))
    assert [finding.name for finding in report] == ["leak:padding"]
    assert cause == (
        "the padding mask of another sequence was used: the masks are in another order than the "
        f"sequences (sequence {told})"
    )
    ignored = check(softmax_under(np.True_, batch, heads, width, width), lengths=lengths)
    assert only(ignored, "leak:padding").cause.startswith("the padding mask looks ignored")


def test_one_query_after_a_cache_that_stands_at_the_first_key() -> None:
    weights = np.zeros((1, 3, 1, 7), dtype=np.float32)
    weights[..., 0] = 1  # a mask torch.ones(1, 7).tril() leaves one key: heads have to be equal
    report = check(weights, causal=True)
    assert [finding.name for finding in report] == ["stricter"]
    assert only(report, "stricter").what == (
        "the causal mask is as if queries stood at the first keys and not at the last"
    )
    equal = check(softmax_under(np.True_, 1, 1, 1, 7).repeat(3, axis=1), causal=True)
    assert [finding.name for finding in equal] == ["equal"]


@pytest.mark.parametrize(
    ("dtype", "number", "fails"),
    [
        (np.float32, -80.0, True),
        (np.float32, -95.0, False),
        (np.float64, -95.0, False),
        (np.float16, -12.0, True),
    ],
)
def test_weights_below_the_normal_numbers_are_a_note(
    dtype: Any, number: float, fails: bool
) -> None:
    scores = np.random.default_rng(0).standard_normal((1, 2, 7, 7)) / 4
    scores = scores + np.where(np.tri(7, dtype=bool), 0, number)
    powers = np.exp(scores)
    weights = (powers / powers.sum(-1, keepdims=True)).astype(dtype)
    assert 0 < weights[..., ~np.tri(7, dtype=bool)].max() < 1e-3
    report = check(weights, causal=True)
    finding = only(report, "leak:causal")
    assert (finding.fails, report.passed) == (fails, not fails)
    if not fails:
        assert finding.cause.startswith("below the normal numbers of float32")


def test_sigmoid_is_not_called_exponentials() -> None:
    scores = np.random.default_rng(0).standard_normal((2, 3, 7, 7))
    weights = (1 / (1 + np.exp(-scores))).astype(np.float32)
    assert "sigmoid" in only(check(weights), "rows").cause
    powers = np.exp(scores).astype(np.float32)
    assert "exponentials that were not divided" in only(check(powers), "rows").cause
    q, k = grouped(3, 3)
    report = check(torch.sigmoid(q @ k.mT / 10**0.5), expect=(q, k))
    assert only(report, "expected").cause.startswith("sigmoid was used in place of softmax")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_a_context_mistake_has_a_tolerance_of_its_own(causal: bool, seed: int) -> None:
    """Merged heads put numbers into rows whose own contexts are far smaller, under a mask above
    all: the first rows see little."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, 2, 3, 7, 11, generator=generator)
    v = v * torch.logspace(-4, 4, 7)[:, None]  # sizes that differ from key to key
    scores = q @ k.mT / 11**0.5
    if causal:
        scores = scores.masked_fill(~torch.ones(7, 7).tril().bool(), -torch.inf)
    weights = scores.softmax(-1)
    right_one = weights @ v
    merged = right_one.reshape(2, 7, 33)  # without transpose(1, 2)
    report = check(weights, causal=causal, expect=(q, k, v), context=merged)
    assert only(report, "context").cause.startswith("heads are put together without a transpose")
    assert check(weights, causal=causal, expect=(q, k, v), context=right_one).passed


def test_one_factor_is_not_fitted_to_two_weights() -> None:
    """Half precision in one row of two keys is the error of half precision, and no other scale."""
    q = torch.tensor([[[[1.0, 0.0]]]])
    k = torch.tensor([[[[0.3, 0.0], [1.0, 0.0]]]])
    scores = (q @ k.mT / 2**0.5).bfloat16().float() * 1.003
    report = check(scores.softmax(-1), expect=(q, k))
    assert "half precision" in only(report, "expected").cause
    assert report.passed
