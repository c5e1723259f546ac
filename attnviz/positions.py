"""Where a token stands, as numbers: added to its embedding, turned into q and k, or to the scores.

`positions` are integers of any sign: padding stands before 0 or after the end, and is harmless.
"""

from __future__ import annotations

from math import floor, log, log2, pi

import torch
from torch import Tensor

from attnviz.config import Rotary


def sinusoidal(positions: Tensor, d_model: int) -> Tensor:
    """Sines and cosines of geometrically growing wavelengths, float64 `[... d_model]`.

    PE(pos, 2i) = sin(pos / 10000^(2i/d_model)) and PE(pos, 2i+1) = cos(the same): section 3.5 of
    Vaswani et al. 2017. `positions` is an integer tensor of any shape; an odd d_model ends on a
    sine.
    """
    even = torch.arange(0, d_model, 2, dtype=torch.float64)
    angles = positions.double()[..., None] * 10000.0 ** (-even / d_model)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., :d_model]


def rotary_rates(rotary: Rotary, dim: int) -> Tensor:
    """θ_i, the angle that pair i of `dim` numbers turns by from one position to the next.

    base^(-2i/dim): Su et al. 2021, section 3.2.2; float64 `[dim/2]`. With `rotary.factor`, slow
    pairs turn so much slower still, which stretches a model to longer texts: all pairs where there
    is no `original_length`; else those that turn less than `slow` times within it, in full, and
    those of up to `fast` turns, in part, as Llama 3.1 has it.
    """
    rates = rotary.base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if rotary.factor == 1:
        return rates
    if not rotary.original_length:
        return rates / rotary.factor
    turns = rotary.original_length * rates / (2 * pi)
    kept = ((turns - rotary.slow) / (rotary.fast - rotary.slow)).clamp(0, 1)
    return kept * rates + (1 - kept) * rates / rotary.factor


def rotated(x: Tensor, positions: Tensor, rotary: Rotary) -> Tensor:
    """`x` `[B H T d]` with pairs of its numbers turned, by `positions` `[1|B T]` times their rate.

    Rotary positions (Su et al. 2021, equation 34): q · k then depends on what was in them and on
    how far apart they stand. Pairs are (i, i + dim/2), as in Llama, or neighbours (2i, 2i + 1), as
    in the paper and in GPT-J. With `rotary.dim` below d, the numbers after it stay as they are.
    """
    dim = rotary.dim or x.shape[-1]
    angles = positions.double()[:, None, :, None] * rotary_rates(rotary, dim)  # B 1 T dim/2
    cos, sin = angles.cos().to(x), angles.sin().to(x)
    one, two = (slice(0, dim, 2), slice(1, dim, 2)) if rotary.neighbours else _halves(dim)
    a, b = x[..., one], x[..., two]
    turned = x.new_empty(x.shape)  # contiguous, whatever x is
    turned[..., one], turned[..., two] = a * cos - b * sin, b * cos + a * sin
    turned[..., dim:] = x[..., dim:]
    return turned


def _halves(dim: int) -> tuple[slice, slice]:
    return slice(0, dim // 2), slice(dim // 2, dim)


def distances(queries: Tensor, keys: Tensor) -> Tensor:
    """How far after each query each key stands: keys - queries, int64 `[1|B Tq Tk]`.

    `queries` are `[1|B Tq]`, `keys` `[1|B Tk]`. One table serves all sequences where theirs are the
    same, as in self attention.
    """
    apart = keys[:, None, :] - queries[:, :, None]
    return apart[:1] if bool((apart == apart[:1]).all()) else apart


def alibi_slopes(n_heads: int) -> Tensor:
    """The slope of each head, float64 `[H]`: 2^(-8/H), 2^(-16/H), … for H a power of 2.

    Otherwise those of the power of 2 below, then every other one of the power above: Press et al.
    2022, section 3 and its footnote.
    """
    below = 2 ** floor(log2(n_heads))
    slopes = [2.0 ** (-8 * i / below) for i in range(1, below + 1)]
    slopes += [2.0 ** (-4 * i / below) for i in range(1, 2 * (n_heads - below) + 1, 2)]
    return torch.tensor(slopes, dtype=torch.float64)


def alibi(apart: Tensor, n_heads: int) -> Tensor:
    """What ALiBi adds to the scores: -slope · distance, float64 `[1|B H Tq Tk]`.

    `apart` is what `distances` gives. Press et al. 2022 have it for keys before the query; a key
    after it, which their models never see, is as far away as one before.
    """
    return -alibi_slopes(n_heads)[:, None, None] * apart.abs().double()[:, None]


def distance_buckets(apart: Tensor, buckets: int, furthest: int, both_ways: bool) -> Tensor:
    """The row of T5's table for each distance, int64 of the shape of `apart`.

    Raffel et al. 2020, section 2.1: half of the rows (of each direction) stand for one distance
    each, the others for ranges that grow geometrically up to `furthest`; the last also for all
    beyond. `both_ways`: keys after the query have the second half of the rows; else none of their
    own.
    """
    offset = torch.zeros_like(apart)
    if both_ways:
        buckets //= 2
        offset = (apart > 0).long() * buckets
        distance = apart.abs()
    else:
        distance = (-apart).clamp(min=0)
    exact = buckets // 2
    # float32, as the models were trained: a range may end just beside a whole number
    grown = (distance.clamp(min=1).float() / exact).log() / log(furthest / exact)
    coarse = (exact + (grown * (buckets - exact)).long()).clamp(max=buckets - 1)
    return offset + torch.where(distance < exact, distance, coarse)
