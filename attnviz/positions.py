"""Where a token stands, as numbers that are added to its embedding."""

from __future__ import annotations

import torch
from torch import Tensor


def sinusoidal(positions: Tensor, d_model: int) -> Tensor:
    """Sines and cosines of geometrically growing wavelengths, float64 `[... d_model]`.

    PE(pos, 2i) = sin(pos / 10000^(2i/d_model)) and PE(pos, 2i+1) = cos(the same): section 3.5 of
    Vaswani et al. 2017. `positions` is an integer tensor of any shape; an odd d_model ends on a
    sine.
    """
    even = torch.arange(0, d_model, 2, dtype=torch.float64)
    angles = positions.double()[..., None] * 10000.0 ** (-even / d_model)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., :d_model]
