"""Words for their pieces, special tokens hidden: an oracle in plain loops, and what must hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_pass import from_pretrained
from tiny_models import BERT, T5, tiny

from attnviz.errors import InputError
from attnviz.merging import (
    MERGED,
    NAMES,
    decoded_tokens,
    hide_special,
    merge_words,
    raw_tokens,
    with_pieces,
)
from attnviz.pieces import Pieces, marked_pieces
from attnviz.result import Attention, from_batches
from attnviz.saved_runs import load, save
from attnviz.sources.encoding import encode
from attnviz.sources.subwords import pieces_of
from attnviz.tokens import make_batch

Array = npt.NDArray[Any]

TOKENS = st.lists(
    st.sampled_from(["the", "cat", "##s", "##ing", "[CLS]", "[SEP]", "it", "."]),
    min_size=1,
    max_size=7,
)


@st.composite
def results(draw: st.DrawFn) -> Attention:
    """Attention of two sequences, padded on either side, with some mask; self or cross."""
    side = draw(st.sampled_from(["right", "left"]))
    queries = make_batch([tuple(draw(TOKENS)) for _ in range(2)], None, None, side)
    keys = make_batch([tuple(draw(TOKENS)) for _ in range(2)], None, None, side)
    if draw(st.booleans()):
        keys = queries
    random = np.random.default_rng(draw(st.integers(0, 99)))
    layers, heads = 2, 3
    shape = (layers, 2, heads, queries.width, keys.width)
    mask_heads = draw(st.sampled_from([1, heads]))
    allowed = random.random((layers, 2, mask_heads, queries.width, keys.width)) < 0.7
    allowed &= keys.valid[:, None, None]
    weights = np.where(allowed, random.random(shape), 0)
    weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-300)
    n_prompt = tuple(draw(st.integers(0, int(n))) for n in queries.lengths)
    return from_batches(
        weights, allowed, queries, keys, n_prompt=draw(st.sampled_from([(), n_prompt]))
    )


def groups_of(result: Attention, sequence: int, side: str) -> list[list[int]]:
    """Places in the padded row of each word: a piece ## goes on with the word before it."""
    tokens = (result.query_tokens if side == "q" else result.key_tokens)[sequence]
    valid = (result.query_valid if side == "q" else result.key_valid)[sequence]
    cut = result.n_prompt[sequence] if result.n_prompt else None
    cut = None if side == "k" and result.is_cross else cut
    groups: list[list[int]] = []
    for at in np.flatnonzero(valid):
        n = int(at - np.argmax(valid))
        before = tokens[at - 1] if n else "[CLS]"
        joins = tokens[at].startswith("##") and before not in ("[CLS]", "[SEP]", ".")
        if joins and n != cut:
            groups[-1].append(int(at))
        else:
            groups.append([int(at)])
    return groups


def real(array: Array, valid_q: Array, valid_k: Array) -> Array:
    """`[… Tq Tk]` without padding."""
    return array[..., valid_q, :][..., valid_k]


@settings(deadline=None)
@given(results())
def test_words_by_plain_loops(result: Attention) -> None:
    merged = merge_words(result)
    for b in range(2):
        rows, columns = groups_of(result, b, "q"), groups_of(result, b, "k")
        assert merged.lengths[b] == len(rows)
        assert merged.key_lengths[b] == len(columns)
        found = real(merged.attention[:, b], merged.query_valid[b], merged.key_valid[b])
        open_ = real(merged.allowed[:, b], merged.query_valid[b], merged.key_valid[b])
        for layer in range(2):
            for head in range(3):
                mask = result.allowed[layer, b, head if result.allowed.shape[2] > 1 else 0]
                mask_out = open_[layer, head if open_.shape[1] > 1 else 0]
                for i, row in enumerate(rows):
                    seeing = [q for q in row if mask[q].any()]
                    for j, column in enumerate(columns):
                        sums = [result.attention[layer, b, head, q][column].sum() for q in seeing]
                        mean = sum(sums) / len(seeing) if seeing else 0
                        assert found[layer, head, i, j] == pytest.approx(mean, abs=1e-12)
                        assert mask_out[i, j] == mask[np.ix_(row, column)].any()


@settings(deadline=None)
@given(results())
def test_what_merging_keeps(result: Attention) -> None:
    """Rows sum to what they did; counted by their seeing pieces, so does the whole weight."""
    merged = merge_words(result)
    sees = merged.allowed.any(-1)
    sums = merged.attention.sum(-1)
    assert (np.isclose(sums, 1) | (np.isclose(sums, 0) & ~sees)).all()
    assert (merged.attention[~np.broadcast_to(merged.allowed, merged.attention.shape)] == 0).all()
    for b in range(2):
        rows = groups_of(result, b, "q")
        counts = np.stack([result.allowed[:, b][..., row, :].any(-1).sum(-1) for row in rows], -1)
        total = (sums[:, b][..., merged.query_valid[b]] * counts).sum((0, 2))
        before = result.attention[:, b][..., result.query_valid[b], :].sum((0, 2, 3))
        np.testing.assert_allclose(total, before, rtol=1e-9)
        # words in order, each spelled by its pieces
        spelled, names = (
            "".join(token for token, ok in zip(row, valid, strict=True) if ok).replace("##", "")
            for row, valid in (
                (result.query_tokens[b], result.query_valid[b]),
                (merged.query_tokens[b], merged.query_valid[b]),
            )
        )
        assert names == spelled
    assert merged.masks == result.masks
    assert merged.pad_side == result.pad_side
    assert merge_words(merged) is merged
    if merged is not result:
        assert merged.notes == (MERGED,)


@settings(deadline=None)
@given(results())
def test_what_hiding_keeps(result: Attention) -> None:
    """The other cells as they were, in order; the note says what share of the rows is gone."""
    special = {"[CLS]", "[SEP]"}
    all_special = [
        all(t in special | {"[PAD]"} for row in rows for t in row)
        for rows in (result.query_tokens, result.key_tokens)
    ]
    if any(all_special):
        with pytest.raises(InputError) as caught:
            hide_special(result)
        assert str(caught.value) == "--hide-special leaves no token: all of them are special"
        return
    hidden = hide_special(result)
    stay_q = [
        [ok and t not in special for t, ok in zip(row, valid, strict=True)]
        for row, valid in zip(result.query_tokens, result.query_valid, strict=True)
    ]
    stay_k = [
        [ok and t not in special for t, ok in zip(row, valid, strict=True)]
        for row, valid in zip(result.key_tokens, result.key_valid, strict=True)
    ]
    kept_weight = rows_weight = 0.0
    for b in range(2):
        if any(stay_q[b]) and any(stay_k[b]):
            for name in ("attention", "allowed"):
                np.testing.assert_array_equal(
                    real(getattr(hidden, name)[:, b], hidden.query_valid[b], hidden.key_valid[b]),
                    real(getattr(result, name)[:, b], stay_q[b], stay_k[b]),
                )
        rows = result.attention[:, b][..., stay_q[b], :]
        rows_weight += rows.sum()
        kept_weight += rows[..., stay_k[b]].sum()
        if result.n_prompt:
            assert hidden.n_prompt[b] == sum(
                real_places(result, b, stay_q[b])[: result.n_prompt[b]]
            )
    if hidden is result:
        assert not any(
            t in special for row in (*result.query_tokens, *result.key_tokens) for t in row
        )
        return
    share = max(0.0, 1 - kept_weight / rows_weight) if rows_weight else 1.0
    assert hidden.notes == (f"special tokens hidden: {share:.2f} of the weight",)
    assert hide_special(hidden) is hidden


def real_places(result: Attention, b: int, flags: list[bool]) -> list[bool]:
    """`flags` of a padded row, without its padding."""
    return [flag for flag, ok in zip(flags, result.query_valid[b], strict=True) if ok]


@settings(deadline=None)
@given(results())
def test_both_orders_give_the_same_maps(result: Attention) -> None:
    try:
        one, other = merge_words(hide_special(result)), hide_special(merge_words(result))
    except InputError:
        return
    if {"[CLS]", "[SEP]"} & {t for row in result.key_tokens for t in row}:
        # a piece that sees special tokens alone counts in the mean in either order, or in none
        assert one.query_tokens == other.query_tokens
        assert (one.allowed == other.allowed).all()
    else:
        np.testing.assert_allclose(one.attention, other.attention, atol=1e-12)


def example(tokens: tuple[str, ...], **more: Any) -> Attention:
    batch = make_batch([tokens])
    n = len(tokens)
    weights = np.arange(1.0, n * n + 1).reshape(1, 1, 1, n, n)
    weights /= weights.sum(-1, keepdims=True)
    return from_batches(weights, np.ones((1, 1, 1, n, n), bool), batch, batch, **more)


def test_repeated_tokens_stay_apart() -> None:
    merged = merge_words(example(("the", "cat", "##s", "the", "cat", "##s")))
    assert merged.query_tokens == (("the", "cats", "the", "cats"),)


def test_kept_tensors_go_and_facts_stay() -> None:
    result = example(
        ("un", "##do", "it"),
        kept={"q": np.ones((1, 1, 1, 3, 5), np.float32)},
        masks=("window 9",),
        source="somewhere",
        config={"d_model": 5},
        layers=(7,),
        notes=("earlier",),
    )
    merged = merge_words(result)
    assert merged.kept == {}
    assert merged.notes == ("earlier", MERGED)
    assert (merged.source, merged.masks, merged.layers) == ("somewhere", ("window 9",), (7,))
    assert merged.config["d_model"] == 5
    assert result.kept  # what was given is as it was


def test_float16_is_added_up_exactly() -> None:
    n = 2050  # at 2048, float16 has no odd numbers
    tokens = ("a", *["##a"] * (n - 1))
    result = example(tokens)
    ones = np.ones((1, 1, 1, n, n), np.float16)
    merged = merge_words(replace(result, attention=ones))
    assert merged.attention.dtype == np.float16
    assert merged.attention.tolist() == [[[[[2050.0]]]]]


def test_a_saved_run_knows_its_pieces(tmp_path: Path) -> None:
    model = tiny("BertModel", **BERT)
    texts = ["The cat sat unbelievable.", "it ran"]
    run = from_pretrained(model, texts).result
    assert run.query_tokens[0][4:7] == ("un", "believ", "able")
    save(run, tmp_path / "run.npz")
    save(run, tmp_path / "run.json")
    for name in ("run.npz", "run.json"):
        again = merge_words(hide_special(load(tmp_path / name)))
        assert again.query_tokens == (
            ("the", "cat", "sat", "unbelievable", "."),
            ("it", "ran", "[PAD]", "[PAD]", "[PAD]"),
        )
        direct = from_pretrained(model, texts, words=True, hide_special=True).result
        assert again.query_tokens == direct.query_tokens
        assert again.notes == direct.notes
        np.testing.assert_allclose(again.attention, direct.attention, atol=1e-7)
        save(again, tmp_path / "words.npz")
        saved = load(tmp_path / "words.npz")
        assert saved.notes == again.notes
        assert merge_words(saved) is saved  # words are merged once
        assert hide_special(saved) is saved


def test_raw_and_read_names(tmp_path: Path) -> None:
    run = from_pretrained(tiny("BertModel", **BERT), ["unbelievable cat", "it"]).result
    raw = raw_tokens(run)
    assert raw.query_tokens == (
        ("[CLS]", "un", "##believ", "##able", "cat", "[SEP]"),
        ("[CLS]", "it", "[SEP]", "[PAD]", "[PAD]", "[PAD]"),
    )
    assert decoded_tokens(raw).query_tokens == run.query_tokens
    assert decoded_tokens(run).query_tokens == run.query_tokens
    assert raw.attention is run.attention
    foreign = example(("Ġhi", "ĠðŁ", "¤Ĺ", "<|endoftext|>"))
    assert decoded_tokens(foreign).key_tokens == (("hi", "🤗[1/2]", "🤗[2/2]", "<|endoftext|>"),)
    assert raw_tokens(foreign).query_tokens == foreign.query_tokens


def test_cross_attention_has_words_on_both_sides() -> None:
    model = tiny("T5ForConditionalGeneration", **T5)
    run = from_pretrained(model, ["the unbelievable cat"], keys=["unbelievable dog"], words=True)
    assert run.result.query_tokens == (("[PAD]", "[CLS]", "the", "unbelievable", "cat"),)
    assert run.result.key_tokens == (("[CLS]", "unbelievable", "dog", "[SEP]"),)
    np.testing.assert_allclose(run.result.attention.sum(-1), 1, atol=1e-6)


def test_pieces_that_do_not_fit_are_not_believed() -> None:
    """What a stranger's file says of its tokens is checked; the marks are read instead."""
    result = example(("un", "##do", "it"))
    [(_, known)] = marked_pieces([("un", "##do")])
    for found in ([known.as_json()], [{"raw": 3}], "x", None, [None], {"a": 1}):
        strange = replace(result, config=dict.fromkeys(NAMES, found))
        assert merge_words(strange).query_tokens == (("undo", "it"),)
    told = Pieces(("un", "##do", "it"), (True, False, False), (("un", 1), ("##do it", 2)))
    believed = replace(result, config=with_pieces({}, [told], [told]))
    assert merge_words(believed).query_tokens == (("un", "##do it"),)
    assert hide_special(believed).query_tokens == (("##do", "it"),)


def test_a_row_that_sees_nothing_stays_blind() -> None:
    result = example(("un", "##do", "it"))
    allowed = result.allowed.copy()
    allowed[..., :2, :] = False
    weights = np.where(allowed, result.attention, 0)
    merged = merge_words(replace(result, attention=weights, allowed=allowed))
    assert not merged.allowed[..., 0, :].any()
    assert (merged.attention[..., 0, :] == 0).all()
    half = allowed.copy()
    half[..., 1, :] = True
    weights = np.where(half, result.attention, 0)
    merged = merge_words(replace(result, attention=weights, allowed=half))
    np.testing.assert_allclose(merged.attention.sum(-1), 1)  # the mean over the piece that sees


def test_words_that_are_unknown_or_masked_are_not_hidden() -> None:
    model = tiny("BertModel", **BERT)
    model.tokenizer.add_special_tokens({"mask_token": "the"})
    hidden = from_pretrained(model, ["the zebra sat [SEP] cat"], hide_special=True).result
    assert hidden.query_tokens == (("the", "[UNK]", "sat", "cat"),)
    model.tokenizer.unk_token = "[SEP]"  # as GPT-2 has one token for both
    hidden = from_pretrained(model, ["sat [SEP] cat"], hide_special=True).result
    assert hidden.query_tokens == (("sat", "cat"),)


def test_a_tokenizer_that_tells_no_places() -> None:
    """Those written in Python alone: words are told by the marks of what was cut."""
    tokenizer = tiny("BertModel", **BERT).tokenizer
    encoded, _ = encode(tokenizer, ["unbelievable it"])
    nowhere = replace(encoded, spans=tuple(((0, 0),) * len(row) for row in encoded.spans))
    [known], [told] = pieces_of(tokenizer, encoded), pieces_of(tokenizer, nowhere)
    assert known == told
    assert told.words == (("[CLS]", 1), ("unbelievable", 3), ("it", 1), ("[SEP]", 1))
