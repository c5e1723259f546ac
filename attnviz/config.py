"""The sizes of a layer, checked once, with the numbers in every message."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import asdict, dataclass
from math import isqrt
from typing import Any

from attnviz.errors import ConfigError, printable

DTYPES = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}
"""Known element types and their size in bytes."""

DEVICES = ("cpu", "cuda", "mps")
POSITIONS = ("sinusoidal", "none")

LARGEST_SIZE = 10**12
"""No axis may be longer: beyond this a size is a typing error, not a plan."""

LARGEST_SEED = 2**63 - 1


def check_size(flag: str, value: int) -> int:
    """Return `value` when it can be the length of an axis; `flag` names it in the message."""
    if value < 1:
        raise ConfigError(f"{flag} is {value}; it must be at least 1")
    if value > LARGEST_SIZE:
        raise ConfigError(f"{flag} is {value}; the largest size is {LARGEST_SIZE}")
    return value


def choice(flag: str, value: str, known: tuple[str, ...]) -> str:
    """Return `value` when it is one of `known`."""
    if value not in known:
        raise ConfigError(f"{flag} is '{printable(value)}'; it must be one of {', '.join(known)}")
    return value


def head_count_advice(d_model: int, n_heads: int) -> str:
    """Say why `n_heads` does not divide `d_model`, and which numbers near it work."""
    whole, rest = divmod(d_model, n_heads)
    if whole == 0:
        return (
            f"d_model {d_model} is smaller than n_heads {n_heads}, so a head would have no width; "
            f"use {d_model} heads or fewer that divide it, or give d_k "
            f"(with --d-k 1 they project to {n_heads})"
        )
    working = divisors(d_model)
    at = bisect_left(working, n_heads)
    near = working[at - 1], working[at]  # 1 and d_model divide, so both neighbours exist
    usual = ""
    if d_model % 64 == 0 and d_model // 64 not in near:
        usual = f" ({d_model // 64} give the usual d_k of 64)"
    return (
        f"d_model {d_model} is not divisible by n_heads {n_heads}: "
        f"{d_model} = {n_heads}·{whole} + {rest}; use {near[0]} or {near[1]} heads{usual}, "
        f"or keep {n_heads} heads with --d-k {whole} "
        f"(they project to {n_heads}·{whole} = {n_heads * whole})"
    )


def group_advice(n_heads: int, n_kv_heads: int) -> str:
    """Say why `n_kv_heads` cannot serve `n_heads` heads evenly, and which numbers near it can."""
    if n_kv_heads > n_heads:
        return f"n_kv_heads {n_kv_heads} is more than n_heads {n_heads}; use at most {n_heads}"
    working = divisors(n_heads)
    at = bisect_left(working, n_kv_heads)
    return (
        f"n_heads {n_heads} is not divisible by n_kv_heads {n_kv_heads}: the groups would differ; "
        f"use {working[at - 1]} or {working[at]} key/value heads"
    )


def divisors(n: int) -> list[int]:
    """All divisors of `n`, ascending."""
    small = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


@dataclass(frozen=True)
class AttentionConfig:
    """The sizes of one multi-head attention layer.

    `d_model`, `n_heads` (the h of Vaswani et al. 2017), `d_k` and `d_v` as in section 3.2.2 of
    that paper. `n_heads · d_k` need not equal `d_model`. Each of `n_kv_heads` key/value heads is
    shared by n_heads / n_kv_heads query heads (grouped-query attention, Ainslie et al. 2023); left
    out, or 0, it is `n_heads`.
    """

    d_model: int
    n_heads: int
    d_k: int
    d_v: int
    n_kv_heads: int = 0
    positions: str = "sinusoidal"
    seed: int = 0
    dtype: str = "float32"
    device: str = "cpu"

    def __post_init__(self) -> None:
        check_size("--d-model", self.d_model)
        check_size("--n-heads", self.n_heads)
        check_size("--d-k", self.d_k)
        check_size("--d-v", self.d_v)
        if self.n_kv_heads == 0:
            object.__setattr__(self, "n_kv_heads", self.n_heads)
        check_size("--n-kv-heads", self.n_kv_heads)
        if self.n_heads % self.n_kv_heads:
            raise ConfigError(group_advice(self.n_heads, self.n_kv_heads))
        choice("--positions", self.positions, POSITIONS)
        choice("--dtype", self.dtype, tuple(DTYPES))
        choice("--device", self.device, DEVICES)
        if not 0 <= self.seed <= LARGEST_SEED:
            raise ConfigError(f"--seed is {self.seed}; it must be between 0 and {LARGEST_SEED}")

    @classmethod
    def from_sizes(
        cls,
        d_model: int = 512,
        n_heads: int = 8,
        d_k: int | None = None,
        d_v: int | None = None,
        n_kv_heads: int | None = None,
        **rest: Any,
    ) -> AttentionConfig:
        """Fill in what was left out: d_k is d_model / n_heads, d_v is d_k, n_kv_heads is n_heads.

        Raises `ConfigError` when d_k is needed and d_model is not divisible by n_heads.
        """
        check_size("--d-model", d_model)
        check_size("--n-heads", n_heads)
        if d_k is None:
            if d_model % n_heads:
                raise ConfigError(head_count_advice(d_model, n_heads))
            d_k = d_model // n_heads
        d_v = d_k if d_v is None else d_v
        groups = n_heads if n_kv_heads is None else check_size("--n-kv-heads", n_kv_heads)
        return cls(d_model, n_heads, d_k, d_v, groups, **rest)

    @property
    def is_grouped(self) -> bool:
        """Whether several query heads share a key/value head."""
        return self.n_kv_heads != self.n_heads

    @property
    def n_parameters(self) -> int:
        """Numbers in the layer itself: W_Q, W_K, W_V, W_O with biases, and the LayerNorm."""
        keys = (self.n_heads + self.n_kv_heads) * self.d_k
        projections = (self.d_model + 1) * (keys + self.n_kv_heads * self.d_v)
        return projections + (self.n_heads * self.d_v + 1) * self.d_model + 2 * self.d_model

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, ready for JSON."""
        return asdict(self)
