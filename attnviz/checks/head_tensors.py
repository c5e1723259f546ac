"""q, k, v and context as people save them, whatever the order of their axes, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.checks.checked_weights import Array, CheckedWeights
from attnviz.checks.reading_weights import as_array
from attnviz.errors import InputError, printable

Floats = npt.NDArray[np.float64]

ORDERS = (
    "L B H T d",
    "L B T H d",
    "B H T d",
    "B T H d",
    "L H T d",
    "L T H d",
    "L B T M",
    "B T M",
    "L T M",
    "H T d",
    "T H d",
    "T M",
)
"""Axes of a saved tensor; M is H·d, the heads side by side. The first order that fits is taken."""

EXPECTED = "[B H T d], [B T H d] or [B T H·d]"


@dataclass(frozen=True, eq=False)
class Heads:
    """One tensor of all layers; `n_heads` may be fewer than the weights have, each shared."""

    name: str
    array: Array
    order: str
    n_heads: int

    @property
    def merged(self) -> bool:
        """Whether its heads stood side by side."""
        return self.order.endswith("M")

    def layer(self, layer: int) -> Floats:
        """float64 `[B H T d]`, with the number of heads that it has of its own."""
        names = self.order.split()
        array = self.array[layer] if names[0] == "L" else self.array
        names = [name for name in names if name != "L"]
        array = np.asarray(array, dtype=np.float64)
        if "B" not in names:
            array, names = array[None], ["B", *names]
        if names[-1] == "M":
            array = array.reshape(*array.shape[:-1], self.n_heads, -1)
            names = [*names[:-1], "H", "d"]
        if "H" not in names:
            array, names = array[:, None], ["B", "H", *names[1:]]
        return array.transpose([names.index(name) for name in "BHTd"])


def read_heads(
    name: str, values: Any, checked: CheckedWeights, of_keys: bool, width: int | None = None
) -> Heads:
    """`values` as a tensor of heads that fits the weights.

    Keys and values may have fewer heads, each for a group of the queries'. `width` is that of one
    head where it is known: then the number of heads side by side is known. Raises `InputError`
    with both shapes.
    """
    array = as_array(values)
    layers, batch, heads, queries, keys = checked.shape
    sizes = {"L": layers, "B": batch, "T": keys if of_keys else queries}
    if array.dtype.kind != "f":
        raise InputError(f"{name} is {printable(array.dtype)}; floats are expected")
    for order in ORDERS:
        names = order.split()
        if len(names) != array.ndim or 0 in array.shape:
            continue
        found = dict(zip(names, array.shape, strict=True))
        if any(found.get(axis, 1) != size for axis, size in sizes.items()):
            continue
        own = found.get("H", 1)
        if "M" in found:
            own = heads if width is None else found["M"] // width
            if own < 1 or found["M"] % own or (width and own * width != found["M"]):
                continue
        elif "H" not in found and heads > 1:
            continue
        if own == heads or (of_keys and own and heads % own == 0):
            return Heads(name, array, order, own)
    expected = " ".join(f"{axis}={size}" for axis, size in {**sizes, "H": heads}.items())
    raise InputError(
        f"{name} has shape {list(array.shape)}; {EXPECTED} is expected"
        f"{', L in front,' if layers > 1 else ''} for {expected}"
    )


def share(heads: Floats, n_heads: int) -> Floats:
    """`[… Hkv T d]` → `[… H T d]`: each key/value head for a group of neighbours."""
    return np.repeat(heads, n_heads // heads.shape[-3], axis=-3)


def viewed(heads: Floats) -> Floats:
    """What `view(B, H, T, d)` without a transpose makes of `[B T H·d]`, from right heads."""
    return heads.transpose(0, 2, 1, 3).reshape(heads.shape)


def rotated(heads: Floats, positions: npt.NDArray[np.int64], base: float, pairs: bool) -> Floats:
    """Rotary positions (Su et al. 2021, equation 34) on `[B H T d]`; positions are `[B T]`.

    Number i and i + d/2 turn together, as in Llama's code; with `pairs`, 2i and 2i + 1, as in the
    paper. An odd number at the end stays as it is.
    """
    half = heads.shape[-1] // 2
    angles = positions[:, None, :, None] * base ** (-np.arange(half) / half)  # B 1 T d/2
    cos, sin = np.cos(angles), np.sin(angles)
    one, two = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
        if pairs
        else (slice(0, half), slice(half, 2 * half))
    )
    turned = heads.copy()
    turned[..., one] = heads[..., one] * cos - heads[..., two] * sin
    turned[..., two] = heads[..., two] * cos + heads[..., one] * sin
    return turned


def alibi_slopes(n_heads: int) -> Floats:
    """Slopes of Press et al. 2022, section 3; for other numbers than powers of 2, as their code."""
    power = 2 ** int(np.log2(n_heads))
    slopes = [2.0 ** (-8.0 * i / power) for i in range(1, power + 1)]
    slopes += [2.0 ** (-4.0 * i / power) for i in range(1, 2 * (n_heads - power), 2)]
    return np.array(slopes)
