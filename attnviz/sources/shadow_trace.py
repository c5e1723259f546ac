"""The trace of a layer from flags at any size, from one small run."""

from __future__ import annotations

import torch
from torch import Tensor

from attnviz.attention import Embedding, MultiHeadAttention
from attnviz.config import AttentionConfig
from attnviz.trace import Recorder, Step

SHADOW_SIZES = {"B": 11, "H": 13, "Tq": 17, "Tk": 19, "d_k": 23, "d_v": 29, "d_model": 31, "V": 37}
"""A small prime for each axis: whatever size turns up, its factors name its axes."""


def shadow_steps(
    config: AttentionConfig, cross: bool, masked: bool, per_head: bool = False
) -> tuple[Step, ...]:
    """The steps of the real layer at `SHADOW_SIZES`: a trace for any size, for a few milliseconds.

    The layer runs once, small, with a prime size for each axis; `Step.at` puts the true ones in.
    `per_head` says that the mask differs between heads.
    """
    sizes = dict(SHADOW_SIZES)
    if config.positions == "rope":  # pairs of numbers are turned
        sizes["d_k"] *= 2
    if config.is_grouped:  # the query heads have to be a multiple of the key/value heads
        sizes |= {"H": 2 * SHADOW_SIZES["H"], "Hkv": SHADOW_SIZES["H"]}
    small = AttentionConfig(
        sizes["d_model"],
        sizes["H"],
        sizes["d_k"],
        sizes["d_v"],
        sizes.get("Hkv", sizes["H"]),
        positions=config.positions,
        dtype=config.dtype,
    )
    recorder = Recorder(sizes)
    layer, embedding = MultiHeadAttention(small), Embedding(small, sizes["V"])

    def ids(width: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(sizes["B"], width, dtype=torch.long), torch.arange(width).expand(
            sizes["B"], -1
        )

    with torch.no_grad():
        x = embedding(*ids(sizes["Tq"]), recorder)
        if cross:
            y = embedding(*ids(sizes["Tk"]), recorder, side="key")
        else:  # keys are the queries' own input; only their number has to be told apart
            y = torch.zeros(sizes["B"], sizes["Tk"], sizes["d_model"], dtype=x.dtype)
        shape = (sizes["B"], sizes["H"] if per_head else 1, sizes["Tq"], sizes["Tk"])
        layer(x, y, allowed=torch.ones(shape, dtype=torch.bool) if masked else None, tap=recorder)
    return tuple(recorder.steps)
