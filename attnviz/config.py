"""The sizes of a layer, checked once, with the numbers in every message."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from math import isqrt
from typing import Any

from attnviz.errors import ConfigError, printable

DTYPES = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}
"""Known element types and their size in bytes."""

DEVICES = ("cpu", "cuda", "mps")
POSITIONS = ("sinusoidal", "none", "rope", "alibi")

HEAD_COUNTS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "nhead", "heads")
KV_HEAD_COUNTS = ("num_key_value_heads", "n_kv_heads", "num_kv_heads", "n_kv_head", "kv_heads")
HEAD_WIDTHS = ("head_dim", "d_kv", "kv_channels", "d_head", "dim_head", "head_size")
"""What other people's configurations, modules and constructors call n_heads, n_kv_heads and d_k."""

LARGEST_SIZE = 10**12
"""No axis may be longer: beyond this a size is a typing error, not a plan."""

LARGEST_NUMBER = 1e300

LARGEST_SEED = 2**63 - 1


def check_size(flag: str, value: int) -> int:
    """Return `value` when it can be the length of an axis; `flag` names it in the message."""
    if value < 1:
        raise ConfigError(f"{flag} is {value}; it must be at least 1")
    if value > LARGEST_SIZE:
        raise ConfigError(f"{flag} is {value}; the largest size is {LARGEST_SIZE}")
    return value


def first_number(source: object, names: Iterable[str]) -> int | None:
    """The first whole number that a mapping or object holds under one of `names`."""
    values = (
        source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
        for name in names
    )
    return next((n for n in values if isinstance(n, int) and not isinstance(n, bool)), None)


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
class Rotary:
    """How rotary positions turn a head's queries and keys (Su et al. 2021).

    `dim` numbers of each head are turned, 0 stands for all. Pairs are (i, i + dim/2) or, with
    `neighbours`, (2i, 2i + 1). `factor`, `original_length`, `slow` and `fast` stretch a model to
    longer texts; see `positions.rotary_rates`.
    """

    base: float = 10000.0
    dim: int = 0
    neighbours: bool = False
    factor: float = 1.0
    original_length: int = 0
    slow: float = 1.0
    fast: float = 4.0

    def __post_init__(self) -> None:
        for name in ("base", "factor", "slow", "fast"):
            value = getattr(self, name)
            if not 0 < value < LARGEST_NUMBER:
                raise ConfigError(f"rotary {name} is {value}; a number above 0 is expected")
        if self.dim % 2 or self.dim < 0:
            raise ConfigError(f"rotary dim is {self.dim}; it must be even, as pairs are turned")
        if self.original_length and self.fast <= self.slow:
            raise ConfigError(f"rotary fast is {self.fast}; it must be above slow, {self.slow}")


@dataclass(frozen=True)
class Variant:
    """What a trained layer may do otherwise than figure 2 of Vaswani et al. 2017.

    The defaults are the paper's. What is there or not (biases, norms of q and k, a table of
    distances) the weights tell.

    Attributes:
        norm: "after" the residual, "before" the attention (of queries and keys), "queries" (before
            it, of queries alone), or "none": no norm and no residual.
        rms_norm: RMSNorm (Zhang and Sennrich 2019) in place of LayerNorm.
        eps: what the norms add to a variance.
        scaled: whether scores are divided by √d_k; T5's are not.
        rotary: how queries and keys are turned, where `positions` is "rope".
        buckets_both_ways, furthest: T5's table of distances; see `positions.distance_buckets`.
        d_key, d_value: widths of the vectors that keys and values are made of, 0 for d_model.
        zero_key: a key and a value of zeros stand at the end (`add_zero_attn` of torch).
    """

    norm: str = "after"
    rms_norm: bool = False
    eps: float = 1e-5
    scaled: bool = True
    rotary: Rotary = field(default_factory=Rotary)
    buckets_both_ways: bool = True
    furthest: int = 128
    d_key: int = 0
    d_value: int = 0
    zero_key: bool = False

    def __post_init__(self) -> None:
        choice("norm", self.norm, ("after", "before", "queries", "none"))
        for name, width in (("d_key", self.d_key), ("d_value", self.d_value)):
            if width:
                check_size(name, width)
        if self.furthest < 2:
            raise ConfigError(f"furthest is {self.furthest}; at least 2 is expected")
        if not 0 <= self.eps < LARGEST_NUMBER:
            raise ConfigError(f"eps is {self.eps}; a number of at least 0 is expected")


@dataclass(frozen=True)
class AttentionConfig:
    """The sizes of one multi-head attention layer.

    `d_model`, `n_heads` (the h of Vaswani et al. 2017), `d_k` and `d_v` as in section 3.2.2 of
    that paper. `n_heads · d_k` need not equal `d_model`. Each of `n_kv_heads` key/value heads is
    shared by n_heads / n_kv_heads query heads (grouped-query attention, Ainslie et al. 2023); left
    out, or 0, it is `n_heads`. `positions` says how places enter: "sinusoidal" or "learned" (added
    to the input), "rope" (queries and keys turned), "alibi" or "relative" (added to the scores; a
    table of T5's), or "none".
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
    variant: Variant = field(default_factory=Variant)

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
        if self.positions not in ("learned", "relative"):  # which weights alone can have
            choice("--positions", self.positions, POSITIONS)
        if self.positions == "rope":
            self._require_pairs()
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

    def _require_pairs(self) -> None:
        dim = self.variant.rotary.dim or self.d_k
        if dim % 2:
            raise ConfigError(
                f"d_k {self.d_k} is odd, and rope turns pairs of numbers; "
                f"use --d-k {self.d_k + 1}, or other --positions"
            )
        if dim > self.d_k:
            raise ConfigError(f"rope turns {dim} numbers of each head, which has d_k {self.d_k}")

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, ready for JSON; of `variant`, what is not as in the paper."""
        changed = _changed(self.variant)
        if "rotary" in changed:
            changed["rotary"] = _changed(self.variant.rotary)
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "variant"}
        return {**own, **({"variant": changed} if changed else {})}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> AttentionConfig:
        """The configuration that `as_dict` wrote. Raises `ConfigError` for what is not one."""
        values = _checked(cls, found)
        variant = _checked(Variant, values.pop("variant", {}))
        if "rotary" in variant:
            variant["rotary"] = Rotary(**_checked(Rotary, variant["rotary"]))
        missing = [f.name for f in fields(cls)[:4] if f.name not in values]
        if missing:
            raise ConfigError(f"the layer's configuration has no {', '.join(missing)}")
        return cls(**values, variant=Variant(**variant))


def _changed(variant: Variant | Rotary) -> dict[str, Any]:
    """The fields that are not at their defaults."""
    default = type(variant)()
    return {
        f.name: getattr(variant, f.name)
        for f in fields(variant)
        if getattr(variant, f.name) != getattr(default, f.name)
    }


def _checked(kind: type, found: object) -> dict[str, Any]:
    """`found` as arguments of a dataclass: known names, each of the type that its field has."""
    if not isinstance(found, Mapping):
        raise ConfigError("the layer's configuration is not a JSON object")
    kinds = {f.name: str(f.type) for f in fields(kind)}
    for name, value in found.items():
        if name not in kinds:
            raise ConfigError(
                f"the layer's configuration has an unknown field '{printable(name)}'; "
                "a newer attnviz may know it"
            )
        fits = {
            "int": isinstance(value, int) and not isinstance(value, bool),
            "float": isinstance(value, int | float) and not isinstance(value, bool),
            "str": isinstance(value, str),
            "bool": isinstance(value, bool),
        }.get(kinds[name], isinstance(value, Mapping))
        if not fits:
            raise ConfigError(
                f"the layer's configuration has {name} = {printable(value, 40)}; "
                f"{kinds[name]} is expected"
            )
    return dict(found)
