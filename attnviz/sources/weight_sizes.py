"""The sizes of a layer in a file of weights, and where it differs from the paper's layer.

Most sizes follow from shapes; the others come from the file's metadata, from a `config.json` beside
it, or from flags. Where two of these contradict each other, the message names both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from attnviz.config import (
    HEAD_COUNTS,
    HEAD_WIDTHS,
    KV_HEAD_COUNTS,
    AttentionConfig,
    Variant,
    check_size,
    divisors,
    first_number,
)
from attnviz.errors import ConfigError, InputError, printable
from attnviz.sources.layouts import OURS, PLAIN, Found, not_read
from attnviz.sources.saved_layers import LAYER, LAYERS
from attnviz.sources.weight_files import WeightFile

EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon")
"""What `config.json` files call this number."""


@dataclass(frozen=True)
class Asked:
    """What flags say about the weights; None leaves it to the file."""

    prefix: str | None = None
    n_heads: int | None = None
    n_kv_heads: int | None = None
    d_k: int | None = None
    positions: str | None = None
    dtype: str | None = None
    device: str = "cpu"
    norm_first: bool = False
    zero_attn: bool = False


def own_configs(file: WeightFile, found: Sequence[Found]) -> list[AttentionConfig | None]:
    """The configurations that attnviz's own metadata has, one for each layer found."""
    if found[0].layout is not OURS:
        return [None] * len(found)
    text = file.metadata.get(LAYERS) or file.metadata.get(LAYER)
    if text is None:
        return [None] * len(found)
    try:
        value = json.loads(text)
        values = value if isinstance(value, list) else [value]
        configs = [AttentionConfig.from_dict(each) for each in values]
    except (ValueError, RecursionError, ConfigError) as error:
        reason = printable(error, 300)
        raise InputError(f"{file.shown}: its metadata attnviz.layer is wrong: {reason}") from None
    numbers = [each.prefix.rstrip(".").rpartition(".")[2] for each in found]
    if len(configs) > 1 and all(number.isdigit() for number in numbers):
        picked = [int(number) for number in numbers]
        if max(picked) < len(configs):
            return [configs[i] for i in picked]
    if len(configs) != len(found):
        raise InputError(
            f"{file.shown}: its metadata has {len(configs)} configurations for {len(found)} layers"
        )
    return list(configs)


def config_of(
    file: WeightFile,
    found: Found,
    asked: Asked,
    own: AttentionConfig | None,
    notes: list[str],
) -> AttentionConfig:
    """The sizes of a layer, from its shapes and whatever else tells them."""
    _require_no_model(file, found)
    d_model, rows, d_key, d_value = _shapes(file, found)
    n_heads, d_k = _known_sizes(file, found, asked, own).split(rows["q"])
    n_kv_heads = _key_heads(file, _beside(file, found), asked, own, rows["k"], d_k, n_heads)
    if rows["v"] % n_kv_heads:
        raise InputError(
            f"{file.shown}: W_V gives {rows['v']} numbers, which {n_kv_heads} heads cannot share"
        )
    if own is None:
        variant = _variant(file, found, asked, notes)
    elif asked.norm_first or asked.zero_attn:
        flag = "--norm-first" if asked.norm_first else "--add-zero-attn"
        raise ConfigError(f"{flag} goes with torch's layers; {file.shown} describes its own")
    else:
        variant = own.variant
    return AttentionConfig(
        d_model,
        n_heads,
        d_k,
        rows["v"] // n_kv_heads,
        n_kv_heads,
        positions=_positions(file, found, asked, own),
        dtype=asked.dtype or _dtype(file.entries[found.anchor].dtype, notes),
        device=asked.device,
        variant=replace(
            variant,
            d_key=d_key if d_key != d_model else 0,
            d_value=d_value if d_value != d_model else 0,
            norm=variant.norm if "norm.weight" in found.names else "none",
        ),
    )


def _beside(file: WeightFile, found: Found) -> Mapping[str, object]:
    """The `config.json` beside the weights; attnviz's own files do not need one."""
    return {} if found.layout is OURS else file.config


def _require_no_model(file: WeightFile, found: Found) -> None:
    """Raise `InputError` for a model of transformers that has the names of a known layout."""
    model_type = _beside(file, found).get("model_type")
    if model_type is not None and not found.layout.is_torch:
        raise InputError(
            f"{file.shown} has the names of {found.layout.name}'s layout, but the config.json "
            f"beside it says model_type {printable(model_type)}, whose attention may differ; "
            "--model FOLDER runs it"
        )


def _positions(file: WeightFile, found: Found, asked: Asked, own: AttentionConfig | None) -> str:
    positions = found.layout.positions if own is None else own.positions
    if positions is not None and asked.positions not in (None, positions):
        raise ConfigError(
            f"--positions {asked.positions}, but the layers of {file.shown} have {positions}; "
            "leave it out"
        )
    return positions or asked.positions or "none"


def _dtype(stored: str, notes: list[str]) -> str:
    """The type to compute in, if flags do not give one."""
    if stored in ("bfloat16", "float16"):
        notes.append(
            f"{stored} weights are computed in float32, which holds them exactly; "
            f"--dtype {stored} computes in their own type"
        )
    return "float64" if stored == "float64" else "float32"


def _known_sizes(
    file: WeightFile, found: Found, asked: Asked, own: AttentionConfig | None
) -> _Known:
    """What metadata, `config.json`, tensors and flags tell about the heads; all have to agree."""
    beside, known = _beside(file, found), _Known(file.shown)
    known.heads(own.n_heads if own else None, "its metadata")
    known.heads(first_number(beside, HEAD_COUNTS), "config.json")
    if "distances.weight" in found.names:
        columns = file.entries[found.names["distances.weight"]].shape[-1:]
        known.heads(columns[0] if columns else None, "its table of distances")
    known.width(own.d_k if own else None, "its metadata")
    known.width(first_number(beside, HEAD_WIDTHS), "config.json")
    if "norm_q.weight" in found.names:
        known.width(file.entries[found.names["norm_q.weight"]].shape[-1], "its norm of q")
    known.heads(asked.n_heads, "--n-heads")
    known.width(asked.d_k, "--d-k")
    return known


@dataclass
class _Known:
    """How many heads there are, and how wide they are, with who says so; all have to agree."""

    shown: str
    n_heads: tuple[int, str] | None = None
    d_k: tuple[int, str] | None = None

    def heads(self, value: int | None, who: str) -> None:
        self.n_heads = self._agree(self.n_heads, value, who, "heads")

    def width(self, value: int | None, who: str) -> None:
        self.d_k = self._agree(self.d_k, value, who, "numbers a head")

    def _agree(
        self, known: tuple[int, str] | None, value: int | None, who: str, what: str
    ) -> tuple[int, str] | None:
        if value is None:
            return known
        check_size(who, value)
        if known is not None and known[0] != value:
            raise ConfigError(
                f"{self.shown}: {known[1]} says {known[0]} {what}, {who} says {value}"
            )
        return known or (value, who)

    def split(self, rows: int) -> tuple[int, int]:
        """(n_heads, d_k) of a W_Q with `rows` outputs."""
        if self.n_heads is None and self.d_k is None:
            some = [n for n in divisors(rows) if 1 < n < rows][:12] if rows < 10**7 else []
            working = f" ({', '.join(map(str, some))} would do)" if some else ""
            raise ConfigError(
                f"{self.shown} does not say how many heads share the {rows} numbers of a query: "
                f"give --n-heads{working}"
            )
        n, who = self.n_heads or (0, "")
        d_k, whose = self.d_k or (0, "")
        if n and d_k and n * d_k != rows:
            raise ConfigError(
                f"{self.shown}: {who} says {n} heads and {whose} {d_k} numbers a head, "
                f"{n}·{d_k} = {n * d_k}, but W_Q gives {rows}"
            )
        one, word = (n, f"{n} heads ({who})") if n else (d_k, f"{d_k} numbers a head ({whose})")
        if rows % one:
            raise ConfigError(
                f"{self.shown}: W_Q gives {rows} numbers, which {word} do not divide: "
                f"{rows} = {one}·{rows // one} + {rows % one}"
            )
        return (n, rows // n) if n else (rows // d_k, d_k)


def _key_heads(
    file: WeightFile,
    beside: Mapping[str, object],
    asked: Asked,
    own: AttentionConfig | None,
    rows: int,
    d_k: int,
    n_heads: int,
) -> int:
    """Key/value heads: W_K's rows tell. Whoever else says a number has to say the same."""
    if rows % d_k:
        raise ConfigError(
            f"{file.shown}: with {n_heads} heads, d_k is {d_k}, which does not divide the {rows} "
            f"numbers that W_K gives"
        )
    n = rows // d_k
    said = (
        (own.n_kv_heads if own else None, "its metadata"),
        (first_number(beside, KV_HEAD_COUNTS), "config.json"),
        (asked.n_kv_heads, "--n-kv-heads"),
    )
    for value, who in said:
        if value not in (None, n):
            raise ConfigError(
                f"{file.shown}: {who} says {value} key/value heads; W_K has {n}, {rows} numbers "
                f"of {d_k} each"
            )
    return n


def _shapes(file: WeightFile, found: Found) -> tuple[int, dict[str, int], int, int]:
    """(d_model, outputs of W_Q, W_K and W_V, inputs of W_K, inputs of W_V)."""

    def matrix(ours: str) -> tuple[int, int]:
        name = found.names[ours]
        shape = file.entries[name].shape
        if len(shape) != 2 or 0 in shape:
            raise InputError(
                f"{file.shown}: {printable(name)} has shape {list(shape)}; a matrix is expected"
            )
        return shape[0], shape[1]

    if "w_qkv.weight" in found.names:
        outputs, inputs = matrix("w_qkv.weight")
        if found.layout.name == "nanoGPT" and inputs == 3 * outputs:
            raise InputError(not_read(file.shown, "GPT-2"))  # the same names, transposed matrices
        if outputs % 3:
            raise InputError(
                f"{file.shown}: {printable(found.anchor)} gives {outputs} numbers; "
                "a third each for q, k and v are expected"
            )
        return inputs, dict.fromkeys("qkv", outputs // 3), inputs, inputs
    q, k, v = (matrix(f"w_{name}.weight") for name in "qkv")
    return q[1], {"q": q[0], "k": k[0], "v": v[0]}, k[1], v[1]


# ── where a layer differs from the paper's ──────────────────────────────────────────────────


def _variant(file: WeightFile, found: Found, asked: Asked, notes: list[str]) -> Variant:
    layout, variant = found.layout, found.layout.variant
    is_transformer = layout.name.startswith("nn.Transformer")
    if asked.zero_attn and not layout.is_torch:
        raise ConfigError(f"--add-zero-attn goes with torch's layers; this is {layout.name}'s")
    if asked.norm_first:
        if not is_transformer:
            raise ConfigError(f"--norm-first goes with nn.Transformer's layers, not {layout.name}")
        variant = replace(variant, norm="before")
    elif is_transformer and "norm.weight" in found.names:
        notes.append("the norm is assumed to follow the residual; --norm-first puts it before")
    if variant.norm == "before" and "norm.weight" not in found.names:
        notes.append("the file has no norm before the attention: the input must be normed already")
    if layout in PLAIN:
        notes.append(
            f"the names {layout.name} show nothing about norms, positions or masks: attnviz "
            "applies only those that flags give"
        )
    if layout.positions == "rope":
        notes.append(f"the file does not give its rotary base: {variant.rotary.base:g} is assumed")
    return replace(variant, eps=_eps(file, variant.eps), zero_key=asked.zero_attn)


def _eps(file: WeightFile, default: float) -> float:
    """The eps of the norms. Raises `InputError` for a number that cannot be one."""
    for name in EPSILONS:
        value = file.config.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            if not 0 <= value < 1:
                raise InputError(
                    f"{file.shown}: config.json has {name} {printable(value, 30)}; a number from 0 "
                    "to 1 is expected"
                )
            return float(value)
    return default
