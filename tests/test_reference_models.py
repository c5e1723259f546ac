"""Two real models, against values that were computed apart from attnviz (tests/data/models)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from one_pass import from_pretrained
from real_models import minilm, smollm2

from attnviz.result import Attention
from attnviz.sources.loading import LoadedModel, load_model

DATA = Path(__file__).parent / "data" / "models"

FOX = "The quick brown fox jumps over the lazy dog because it was late."
PARIS = "Paris is the capital of France."
MARY = "When Mary and John went to the store, John gave a drink to Mary, and she thanked him."


@pytest.fixture(scope="module")
def bert() -> LoadedModel:
    return load_model(minilm())


@pytest.fixture(scope="module")
def llama() -> LoadedModel:
    return load_model(smollm2())


def _assert_equal(result: Attention, file: str) -> None:
    with np.load(DATA / f"{file}.npz") as archive:
        expected, ids = archive["attentions"], archive["input_ids"]
    expected = np.moveaxis(expected.reshape(-1, *expected.shape[-4:]), 0, 1)  # L B H T T
    assert result.attention.shape == expected.shape
    assert result.lengths.tolist() == (result.query_valid.sum(1)).tolist()
    assert [len(row) for row in result.query_tokens] == [ids.shape[1]] * len(ids)
    real = result.query_valid[None, :, None, :, None]  # rows of padding are an artefact
    np.testing.assert_allclose(result.attention * real, expected * real, atol=1e-5, rtol=0)
    assert (result.attention[~np.broadcast_to(result.allowed, expected.shape)] == 0).all()


@pytest.mark.parametrize(("text", "file"), [(FOX, "minilm_single_0"), (PARIS, "minilm_single_1")])
def test_an_encoder_on_one_text(bert: LoadedModel, text: str, file: str) -> None:
    result = from_pretrained(bert, [text]).result
    _assert_equal(result, file)
    assert result.masks == ()
    assert result.query_tokens[0][:2] == ("[CLS]", text.split()[0].lower())


def test_an_encoder_on_a_batch_padded_on_the_right(bert: LoadedModel) -> None:
    result = from_pretrained(bert, [FOX, PARIS, MARY]).result
    _assert_equal(result, "minilm_batch3_right")
    assert result.masks == ("padding",)
    assert result.lengths.tolist() == [16, 9, 23]


def test_a_decoder_alone_and_in_batches_padded_on_either_side(llama: LoadedModel) -> None:
    alone = from_pretrained(llama, [PARIS]).result
    _assert_equal(alone, "smollm2_single_1")
    assert alone.masks == ("causal",)
    assert alone.query_tokens[0] == ("Paris", "is", "the", "capital", "of", "France", ".")

    left = from_pretrained(llama, [FOX, PARIS, MARY], pad_side="left").result
    _assert_equal(left, "smollm2_batch3_left")
    assert left.masks == ("causal", "padding")

    right = from_pretrained(llama, [FOX, PARIS, MARY], pad_side="right").result
    for result, rows in ((left, slice(-7, None)), (right, slice(0, 7))):
        maps = result.attention[:, 1, :, rows, rows]
        np.testing.assert_allclose(maps, alone.attention[:, 0], atol=1e-5, rtol=0)
