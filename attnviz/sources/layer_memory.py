"""How much memory attnviz's own layers take for a batch, reckoned from sizes alone."""

from __future__ import annotations

from attnviz.config import DTYPES, AttentionConfig

BLOCKS = 2**27
"""Bytes of the tiles that are worked on when a map is computed by rows."""


def bytes_of_run(
    config: AttentionConfig,
    batch: int,
    queries: int,
    keys: int,
    vocabulary: int = 0,
    n_layers: int = 1,
) -> int:
    """The memory of a run with whole maps: the peak of all tensors that are alive together, on the
    way from the layer's first parameter to its output."""
    item, d_model = DTYPES[config.dtype], config.d_model
    n_q, n_k, cells = batch * queries, batch * keys, batch * config.n_heads * queries * keys
    of_keys, of_values = config.n_heads * config.d_k, config.n_heads * config.d_v
    layer, table = config.n_parameters, vocabulary * d_model
    largest = d_model * max(of_keys, of_values)

    # parameters are drawn in float64, then rounded one after the other
    making = max(layer * 8 + largest * item, layer * item + table * (8 + item))
    held = (layer + table + n_q * d_model + n_k * d_model) * item + 24 * (n_q + n_k)
    # angles, sines and cosines, and both together, in float64
    embedding = max(n_q, n_k) * d_model * (20 + item)
    # products, scores, masked scores, softmax, weights; the masks; q, k, v, copies; context; and
    # what places add to the scores, in float64 at first
    projected = (n_q * of_keys + n_k * (of_keys + of_values)) * item
    biases = cells * (item + 24) if config.positions in ("alibi", "relative") else 0
    attending = biases + cells * (5 * item + 4) + 2 * projected + n_q * of_values * item
    # weights and scores, context, merged, projected, residual, output, and their transients
    others = (n_layers - 1) * (cells + layer) * item
    after = 2 * cells * item + projected + n_q * (2 * of_values + 4 * d_model) * item
    return others + max(making, held + max(embedding, attending, after))


def bytes_by_rows(
    config: AttentionConfig,
    batch: int,
    queries: int,
    keys: int,
    vocabulary: int = 0,
    n_layers: int = 1,
    keeps: bool = False,
) -> int:
    """The memory of a run in which no map is whole; `keeps`: every layer's q and k stay."""
    item = DTYPES[config.dtype]
    layers = n_layers * config.n_parameters * item + config.n_parameters * 8
    table = vocabulary * config.d_model * (8 + item)
    vectors = batch * max(queries, keys) * config.d_model * (20 + 4 * item)
    of_queries, of_keys = config.n_heads * config.d_k, config.n_kv_heads * (config.d_k + config.d_v)
    projected = batch * (queries * of_queries + keys * of_keys) * item
    held = projected * (2 * n_layers if keeps else 1) + projected
    return layers + table + vectors + held + BLOCKS
