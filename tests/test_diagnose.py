"""Sizes and masks that cannot work, explained; the public cases among them, by number."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnviz.config import AttentionConfig, head_count_advice
from attnviz.diagnose import (
    Diagnosis,
    Operand,
    Sizes,
    compare,
    diagnose,
    factored,
    mask_misfit,
    notes_on_sizes,
    steps_until,
    torch_mask_misfit,
    usual_head_counts,
)
from attnviz.errors import ConfigError
from attnviz.sources.shadow_trace import shadow_steps

size = st.integers(1, 6)


def failure(sizes: Sizes) -> Diagnosis:
    found = diagnose(sizes)
    assert found is not None
    return found


# ── the public cases ─────────────────────────────────────────────────────────────────────────


def test_case_1_ten_heads_of_512() -> None:
    found = failure(Sizes(512, 10, batch=2))
    assert found == Diagnosis(
        step="q",
        problem="d_model 512 cannot be cut into 10 heads of equal width",
        operands=(
            Operand("q", ("B", "Tq", "d_model"), (2, 6, 512)),
            Operand("view", ("B", "Tq", "H", "d_k"), (2, 6, 10, 51)),
        ),
        factors=("512 = 10·51 + 2", "512 = 2⁹"),
        fixes=(
            "use 8 or 16 heads, or keep 10 heads with --d-k 51 (they project to 10·51 = 510)",
            "heads that give a usual d_k: 4 (d_k 128), 8 (d_k 64), 16 (d_k 32)",
        ),
    )
    assert [str(operand) for operand in found.operands] == [
        "q [B Tq d_model] = [2 6 512]",
        "view [B Tq H d_k] = [2 6 10 51]",
    ]


@pytest.mark.parametrize(("heads", "rest"), [(12, "12·85 + 4"), (24, "24·42 + 16")])
def test_case_2_heads_of_1024(heads: int, rest: str) -> None:
    found = failure(Sizes(1024, heads))
    assert f"1024 = {rest}" in found.factors
    assert found.fixes[-1] == "heads that give a usual d_k: 8 (d_k 128), 16 (d_k 64), 32 (d_k 32)"


def test_case_3_layers_and_heads_swapped() -> None:
    found = failure(Sizes(1600, 48))
    assert found.fixes[0].startswith("use 40 or 50 heads")
    assert found.fixes[1] == "heads that give a usual d_k: 25 (d_k 64), 50 (d_k 32)"
    assert found.factors == ("1600 = 48·33 + 16", "1600 = 2⁶·5²")


def test_case_4_keys_projected_for_all_heads() -> None:
    found = failure(Sizes(128, 8, d_k=16, n_kv_heads=4, k_width=128))
    assert found.message == (
        "K holds 128 numbers a token, and 4 key/value heads of d_k 16 need 4·16 = 64: "
        "128 = 8·16; project K to 64; or keep 128 with 8 key/value heads; or keep 128 with d_k 32"
    )
    assert found.step == "k"
    assert str(found.operands[1]) == "view [B Tk Hkv d_k] = [1 6 4 16]"


def test_case_6_a_mask_of_other_sequences_and_keys() -> None:
    assert mask_misfit((2, 1, 1, 1024), (1, 8, 2048, 2048)) == (
        "batch 2 ≠ 1, keys 1024 ≠ 2048; make the mask for the same 1 sequence, or mask[:1]; make "
        "it from the 2048 keys that the scores have, or pad its last axis to 2048"
    )


def test_case_7_batch_meets_heads() -> None:
    assert mask_misfit((2, 6, 6), (2, 8, 6, 6)) == (
        "B meets H: batch 2 ≠ heads 8; add the head axis: mask[:, None] is [B 1 Tq Tk] = [2 1 6 6]"
    )


def test_case_10_wide_heads_are_legal() -> None:
    assert diagnose(Sizes(640, 4, d_k=256)) is None
    assert notes_on_sizes(AttentionConfig(640, 4, 256, 256)) == [
        "n_heads·d_k = 4·256 = 1024 is not d_model 640, and need not be: "
        "the projections are 640→1024 and 1024→640"
    ]


def test_case_11_the_same_parameters_for_1_and_64_heads() -> None:
    one, many = AttentionConfig(512, 1, 512, 512), AttentionConfig(512, 64, 8, 8)
    said = [
        "1 and 64 heads have the same 1,051,648 parameters, and that is no mistake: d_k shrinks "
        "from 512 to 8 as heads grow, and n_heads·d_k stays 512; the scores do grow, from 20,000 "
        "to 1,280,000 numbers"
    ]
    assert compare(one, many, 2, 100, 100) == said
    assert compare(many, one, 2, 100, 100) == said
    assert compare(one, one, 2, 100, 100) == []
    assert compare(one, AttentionConfig(512, 2, 64, 64), 2, 100, 100) == []


def test_case_12_a_mask_for_torch() -> None:
    assert torch_mask_misfit((3, 4, 4), 3, 2, 4, 4) == (
        "mask [3 4 4] has one map for each of 3 sequences; nn.MultiheadAttention wants "
        "[B·H Tq Tk] = [6 4 4] (3·2 maps, heads fastest): "
        "mask.repeat_interleave(2, 0), not repeat (heads slowest)"
    )


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        ((3, 2, 4, 4), "mask.flatten(0, 1)"),
        ((3, 4), "give it as key_padding_mask"),
        ((5,), "mask [5] does not fit nn.MultiheadAttention: it wants [Tq Tk] = [4 4] or [B·H"),
    ],
)
def test_other_masks_for_torch(mask: tuple[int, ...], says: str) -> None:
    assert says in torch_mask_misfit(mask, 3, 2, 4, 4)


# ── sizes ────────────────────────────────────────────────────────────────────────────────────


def test_more_heads_than_numbers() -> None:
    found = failure(Sizes(8, 10))
    (fix,) = found.fixes
    assert head_count_advice(8, 10).endswith(f"; {fix}")
    assert fix.startswith("use ")
    assert found.operands[1].shape == (1, 6, 10, 1)


def test_key_heads_that_do_not_divide() -> None:
    assert failure(Sizes(64, 8, n_kv_heads=3)).message == (
        "3 key/value heads cannot be shared evenly by 8 heads: 8 = 3·2 + 2; "
        "use 2 or 4 key/value heads (all that divide 8: 1, 2, 4, 8)"
    )
    assert diagnose(Sizes(64, 8, n_kv_heads=2)) is None


@pytest.mark.parametrize(
    ("sizes", "fixes"),
    [
        (Sizes(64, 8, k_width=100), ("project K to 64",)),
        (
            Sizes(64, 8, keys=9, k_width=24),
            ("project K to 64", "or keep 24 with 3 heads", "or keep 24 with d_k 3"),
        ),
    ],
)
def test_keys_projected_to_another_width(sizes: Sizes, fixes: tuple[str, ...]) -> None:
    found = failure(sizes)
    assert found.fixes == fixes
    assert found.operands[0].shape[1] == sizes.tk
    assert diagnose(replace(sizes, k_width=64)) is None


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (Sizes(0, 8), "--d-model is 0; it must be at least 1"),
        (Sizes(8, -1), "--n-heads is -1; it must be at least 1"),
        (Sizes(8, 2, k_width=0), "k width is 0; it must be at least 1"),
    ],
)
def test_sizes_that_no_axis_has(sizes: Sizes, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        diagnose(sizes)
    assert str(caught.value) == message


def test_heads_one_number_wide() -> None:
    assert notes_on_sizes(AttentionConfig(8, 8, 1, 1)) == [
        "d_k is 1: a head compares one number of a query with one of a key"
    ]
    assert notes_on_sizes(AttentionConfig(64, 8, 8, 8)) == []


@given(st.integers(1, 10**6))
def test_factors_multiply_back(n: int) -> None:
    plain = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
    product = 1
    for part in factored(n).split("·"):
        base = part.rstrip("⁰¹²³⁴⁵⁶⁷⁸⁹")
        product *= int(base) ** int(part[len(base) :].translate(plain) or 1)
    assert product == n


@given(st.integers(1, 4096), st.integers(1, 128))
def test_a_diagnosis_is_made_exactly_where_heads_do_not_divide(d_model: int, heads: int) -> None:
    assert (diagnose(Sizes(d_model, heads)) is None) == (d_model % heads == 0)
    for n, d_k in usual_head_counts(d_model):
        assert n * d_k == d_model


# ── the trace up to the failing step ─────────────────────────────────────────────────────────


def trace(d_model: int, heads: int, d_k: int) -> list:
    config = AttentionConfig(d_model, heads, d_k, d_k)
    sizes = {
        "B": 2,
        "Tq": 6,
        "Tk": 6,
        "V": 9,
        "d_model": d_model,
        "H": heads,
        "d_k": d_k,
        "d_v": d_k,
    }
    return [step.at(sizes) for step in shadow_steps(config, cross=False, masked=True)]


def test_steps_until_the_view_that_fails() -> None:
    kept = steps_until(trace(512, 10, 51), failure(Sizes(512, 10, batch=2)))
    assert [step.name for step in kept][-1] == "q_projected"
    last = kept[-1]
    assert (last.axes, last.shape) == (("B", "Tq", "d_model"), (2, 6, 512))
    assert last.parameters[0][1:] == (("d_model", "d_model"), (512, 512))
    assert kept[0].name == "ids"


def test_steps_until_other_failures() -> None:
    steps = trace(64, 8, 8)
    for sizes, last in (
        (Sizes(64, 8, n_kv_heads=3), "v"),
        (Sizes(64, 8, k_width=32), "k_projected"),
    ):
        found = failure(sizes)
        kept = steps_until(steps, found)
        names = [step.name for step in kept if step.name != "allowed"]
        assert names[-1] == last
        assert kept == tuple(steps[: len(kept)])


# ── masks ────────────────────────────────────────────────────────────────────────────────────


@given(
    st.lists(st.integers(1, 4), max_size=5).map(tuple),
    st.tuples(size, size, size, size),
)
def test_masks_fit_where_numpy_broadcasts_them(
    mask: tuple[int, ...], scores: tuple[int, int, int, int]
) -> None:
    try:
        broadcast = np.broadcast_shapes(mask, scores) == scores and len(mask) <= 4
    except ValueError:
        broadcast = False
    misfit = mask_misfit(mask, scores)
    assert (misfit == "") == broadcast
    assert "\n" not in misfit


@pytest.mark.parametrize(
    ("mask", "scores", "text"),
    [
        ((2, 6), (2, 8, 5, 6), "for padded keys, mask[:, None, None, :] is [B 1 1 Tk] = [2 1 1 6]"),
        ((16, 6, 6), (2, 8, 6, 6), "its first axis is B·H: mask.view(2, 8, 6, 6)"),
        ((8, 2, 6, 6), (2, 8, 6, 6), "batch and heads are swapped: mask.transpose(0, 1)"),
        ((2, 1, 7, 5), (2, 8, 5, 7), "queries and keys are swapped: mask.transpose(-2, -1)"),
        ((1, 1, 2, 1, 1), (2, 8, 6, 6), "5 axes, not 4; drop the leading axes of length 1"),
        ((2, 1, 2, 1, 1), (2, 8, 6, 6), "5 axes, not 4; use [B H Tq Tk]"),
        ((9, 9), (2, 8, 6, 6), "or cut its last axis to 6"),
        ((3, 1, 6, 6), (2, 8, 6, 6), "make the mask for the same 2 sequences, or mask[:1]"),
        ((2, 3, 6, 6), (2, 8, 6, 6), "a mask is [2 8 6 6], with 1 where an axis is the same for"),
    ],
)
def test_why_a_mask_does_not_fit(mask: tuple[int, ...], scores: tuple[int, ...], text: str) -> None:
    assert text in mask_misfit(mask, scores)
