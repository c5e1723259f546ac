"""Blocks of made-up texts and weights, for the tests of the measures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnviz.measures.block import Block, texts_of_tokens


def softmax(scores: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Along the last axis; zeros in a row that sees nothing."""
    scores = np.where(allowed, scores, -np.inf)
    top = np.where(allowed.any(-1, keepdims=True), scores.max(-1, keepdims=True), 0)
    exps = np.exp(scores - top)
    totals = exps.sum(-1, keepdims=True)
    return np.divide(exps, totals, out=np.zeros_like(exps), where=totals > 0)


def random_tokens(rng: np.random.Generator, length: int) -> list[str]:
    words = ["[CLS]", "[SEP]", ".", ",", "a", "b", "c", "。"]
    return [words[i] for i in rng.integers(0, len(words), length)]


def blocks_of(
    documents: Sequence[list[str]],
    weights: Sequence[np.ndarray],
    *,
    causal: bool = False,
    pad_side: str = "right",
    numbers: Sequence[int] | None = None,
    pad: float = 0.0,
    extra: int = 0,
    dtype: str = "float64",
) -> list[Block]:
    """One block a layer from each document's own maps `[L H T T]`, padded to the longest.

    `pad` is what stands in padded rows; `extra` more places of padding.
    """
    width = max(map(len, documents)) + extra
    layers, heads = weights[0].shape[:2]
    lengths = np.array([len(tokens) for tokens in documents])
    padded, maps = [], np.full((layers, len(documents), heads, width, width), pad)
    allowed = np.zeros((len(documents), 1, width, width), dtype=bool)
    for b, (tokens, own) in enumerate(zip(documents, weights, strict=True)):
        n = len(tokens)
        place = slice(0, n) if pad_side == "right" else slice(width - n, width)
        fill = ["[PAD]"] * (width - n)
        padded.append(tokens + fill if pad_side == "right" else fill + tokens)
        maps[:, b, :, place] = 0
        maps[:, b, :, place, place] = own
        may = np.tril(np.ones((n, n), dtype=bool)) if causal else np.ones((n, n), dtype=bool)
        allowed[b, 0, place, place] = may
    texts = texts_of_tokens(numbers or range(len(documents)), padded, lengths, pad_side)
    return [Block(layer, maps[layer].astype(dtype), texts, allowed) for layer in range(layers)]


def random_maps(
    rng: np.random.Generator, length: int, layers: int = 2, heads: int = 3, causal: bool = False
) -> np.ndarray:
    """Maps `[L H T T]` of random scores, sharp enough to differ."""
    may = np.ones((length, length), dtype=bool)
    may = np.tril(may) if causal else may
    scores = 2 * rng.standard_normal((layers, heads, length, length))
    return softmax(scores, np.broadcast_to(may, scores.shape))
