"""The sizes of a layer in a file of weights, and what it does otherwise than the paper's.

Shapes tell most; the file's metadata or a `config.json` beside it tell more, and a person the rest.
Where two of them differ, both are named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnviz.config import AttentionConfig, Rotary, Variant, check_size, divisors
from attnviz.errors import ConfigError, InputError, printable
from attnviz.sources.layouts import OURS, PLAIN, Found
from attnviz.sources.saved_layers import LAYER, LAYERS
from attnviz.sources.weight_files import WeightFile

HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "nhead")
KEY_HEADS = ("num_key_value_heads",)
WIDTHS = ("head_dim", "d_kv", "kv_channels")
EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon")
"""What `config.json` files call these numbers."""

LARGEST_NUMBER = 1e15
"""Bases of rotary positions go up to 10⁸; NaN and infinity are beyond it as well."""


@dataclass(frozen=True)
class Asked:
    """What a person says of the weights; None is left to the file."""

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
    notices: list[str],
) -> AttentionConfig:
    """The sizes of a layer, from its shapes and whatever else tells them."""
    layout, beside = found.layout, file.config if found.layout is not OURS else {}
    model_type = beside.get("model_type")
    checked = layout.model_types or layout in PLAIN
    if checked and model_type is not None and model_type not in layout.model_types:
        raise InputError(
            f"{file.shown} has the names of {layout.name}'s layout, but the config.json beside it "
            f"says model_type {printable(model_type)}, whose attention may differ; --model runs it"
        )
    d_model, rows, d_key, d_value = _shapes(file, found)

    known = _Known(file.shown)
    known.heads(own.n_heads if own else None, "its metadata")
    known.heads(_whole(beside, HEADS), "config.json")
    if "distances.weight" in found.names:
        columns = file.entries[found.names["distances.weight"]].shape[-1:]
        known.heads(columns[0] if columns else None, "its table of distances")
    known.width(own.d_k if own else None, "its metadata")
    known.width(_whole(beside, WIDTHS), "config.json")
    if "norm_q.weight" in found.names:
        known.width(file.entries[found.names["norm_q.weight"]].shape[-1], "its norm of q")
    known.heads(asked.n_heads, "--n-heads")
    known.width(asked.d_k, "--d-k")
    n_heads, d_k = known.split(rows["q"])
    n_kv_heads = _key_heads(file, beside, asked, own, rows["k"], d_k, n_heads)
    if rows["v"] % n_kv_heads:
        raise InputError(
            f"{file.shown}: W_V gives {rows['v']} numbers, which {n_kv_heads} heads cannot share"
        )

    positions = (layout.positions if own is None else own.positions) or asked.positions or "none"
    if asked.positions not in (None, positions):
        raise ConfigError(
            f"--positions {asked.positions}, but the layers of {file.shown} have {positions}; "
            "leave it out"
        )
    dtype = asked.dtype
    if dtype is None:
        kind = file.entries[found.anchor].dtype
        dtype = "float64" if kind == "float64" else "float32"
        if kind in ("bfloat16", "float16"):
            notices.append(
                f"{kind} weights are computed in float32, which holds them exactly; "
                f"--dtype {kind} computes in their own type"
            )
    variant = own.variant if own is not None else _variant(file, found, asked, d_k, notices)
    if own is not None and (asked.norm_first or asked.zero_attn):
        flag = "--norm-first" if asked.norm_first else "--add-zero-attn"
        raise ConfigError(f"{flag} goes with layers of torch; {file.shown} says what its own do")
    variant = replace(
        variant,
        d_key=d_key if d_key != d_model else 0,
        d_value=d_value if d_value != d_model else 0,
        norm=variant.norm if "norm.weight" in found.names else "none",
    )
    return AttentionConfig(
        d_model,
        n_heads,
        d_k,
        rows["v"] // n_kv_heads,
        n_kv_heads,
        positions=positions,
        dtype=dtype,
        device=asked.device,
        variant=variant,
    )


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
    beside: Mapping[str, Any],
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
        (_whole(beside, KEY_HEADS), "config.json"),
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
        outputs, inputs = shape[::-1] if found.layout.transposed else shape
        return outputs, inputs

    if "w_qkv.weight" in found.names:
        outputs, inputs = matrix("w_qkv.weight")
        if outputs % 3:
            raise InputError(
                f"{file.shown}: {printable(found.anchor)} gives {outputs} numbers; "
                "a third each for q, k and v are expected"
            )
        return inputs, dict.fromkeys("qkv", outputs // 3), inputs, inputs
    q, k, v = (matrix(f"w_{name}.weight") for name in "qkv")
    return q[1], {"q": q[0], "k": k[0], "v": v[0]}, k[1], v[1]


# ── what a layer does otherwise than the paper's ─────────────────────────────────────────────


def _variant(file: WeightFile, found: Found, asked: Asked, d_k: int, notices: list[str]) -> Variant:
    layout, beside = found.layout, file.config
    norm = layout.norm
    is_torch = layout.name.startswith("nn.")
    if asked.zero_attn and not is_torch:
        raise ConfigError(f"--add-zero-attn goes with torch's layers; this is {layout.name}'s")
    if asked.norm_first:
        if not layout.name.startswith("nn.Transformer"):
            raise ConfigError(f"--norm-first goes with nn.Transformer's layers, not {layout.name}")
        norm = "before"
    elif layout.name.startswith("nn.Transformer") and "norm.weight" in found.names:
        notices.append("the norm is taken to come after the residual; --norm-first for before")
    if norm in ("before", "queries") and "norm.weight" not in found.names:
        notices.append("the file has no norm before the attention: the input is taken as normed")
    if beside.get("scale_attn_by_inverse_layer_idx") is True:
        raise InputError(
            f"{file.shown}: config.json divides scores by the layer's number as well, which "
            "--weights does not do; --model runs it"
        )
    for name in ("sliding_window", "attention_window"):
        size = beside.get(name)
        if isinstance(size, int) and beside.get("use_sliding_window", True):
            notices.append(f"config.json has a window of {size}: --window {size} applies it")
    if layout in PLAIN:
        notices.append(
            f"{layout.name} are names that tell nothing of norms, positions or masks: none of them "
            "is applied but what flags say"
        )
    scaled = layout.scaled and beside.get("scale_attn_weights", True) is not False
    rotary = _rotary(file, found, d_k) if layout.positions == "rope" else Rotary()
    if layout.positions == "rope" and not beside:
        notices.append(
            f"no config.json beside the weights: rotary base {rotary.base:g} and eps "
            f"{layout.eps:g} are taken"
        )
    in_decoder = "decoder" in found.prefix.split(".")
    return Variant(
        norm=norm,
        rms_norm=layout.rms_norm,
        eps=_number(file, beside, EPSILONS, layout.eps),
        scaled=scaled,
        rotary=rotary,
        buckets_both_ways=not (in_decoder or beside.get("is_decoder") is True),
        furthest=int(_number(file, beside, ("relative_attention_max_distance",), 128)),
        zero_key=asked.zero_attn,
    )


def _rotary(file: WeightFile, found: Found, d_k: int) -> Rotary:
    """How a model's `config.json` has queries and keys turned, in its new words or its old ones."""
    layout, beside = found.layout, dict(file.config)
    scaling = beside.get("rope_scaling")
    for inner in (scaling, beside.get("rope_parameters")):
        if isinstance(inner, dict):
            beside.update(inner)
    kind = beside.get("rope_type", beside.get("type", "default"))
    if kind not in ("default", "linear", "llama3"):
        raise InputError(
            f"{file.shown}: config.json has rotary positions of the type {printable(kind)}; "
            "--weights knows default, linear and llama3, --model runs it"
        )
    share = _number(file, beside, ("partial_rotary_factor", "rotary_pct"), layout.rotary_share)
    dim = _whole(beside, ("rotary_dim",)) or layout.rotary_dim or int(d_k * share)
    length = _whole(beside, ("original_max_position_embeddings",)) or 0
    return Rotary(
        base=_number(file, beside, ("rope_theta", "rotary_emb_base"), 10000.0),
        dim=0 if dim == d_k else dim,
        neighbours=layout.neighbours,
        factor=1.0 if kind == "default" else _number(file, beside, ("factor",), 1.0),
        original_length=length if kind == "llama3" else 0,
        slow=_number(file, beside, ("low_freq_factor",), 1.0),
        fast=_number(file, beside, ("high_freq_factor",), 4.0),
    )


def _whole(values: Mapping[str, Any], names: Sequence[str]) -> int | None:
    """The first of `names` that is there as a whole number."""
    found = (values.get(name) for name in names)
    return next((v for v in found if isinstance(v, int) and not isinstance(v, bool)), None)


def _number(
    file: WeightFile, values: Mapping[str, Any], names: Sequence[str], default: float
) -> float:
    """The first of `names` that is there as a number. Raises `InputError` for none that is used."""
    for name in names:
        value = values.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            if not abs(value) < LARGEST_NUMBER:
                raise InputError(
                    f"{file.shown}: config.json has {name} {printable(value, 30)}, which is no "
                    "number for it"
                )
            return float(value)
    return default
