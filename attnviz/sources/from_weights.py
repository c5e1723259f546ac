"""Attention of a person's own weights: one layer, or a stack of attnviz's own.

The file's names tell the layout, its shapes the sizes. What they leave open (how many heads, for
most) is read from what stands beside the weights, or asked for; where two sources of a number
differ, both are named.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnviz.attention import Embedding, MultiHeadAttention
from attnviz.batch import Batch
from attnviz.config import AttentionConfig, Rotary, Variant, check_size, divisors
from attnviz.errors import ConfigError, InputError, printable
from attnviz.masks import Rule
from attnviz.sources.from_config import embedded, require_device, require_run_memory
from attnviz.sources.layouts import OURS, Found, pick
from attnviz.sources.run import Inputs, Run, require_fit, run_layers, sizes_of_run
from attnviz.sources.saved_layers import LAYER, LAYERS, VOCABULARY
from attnviz.sources.weight_files import WeightFile
from attnviz.trace import Recorder, Step

HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "nhead")
KEY_HEADS = ("num_key_value_heads",)
WIDTHS = ("head_dim", "d_kv", "kv_channels")
EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon")
"""What `config.json` files call these numbers."""

SHIFTED_PLACES = ("roberta", "xlm-roberta", "camembert")
"""Models whose first token stands at row pad_token_id + 1 of the table of positions."""


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


@dataclass(frozen=True)
class Weights:
    """Layers in a file, known by their sizes; the numbers are read by `load`.

    `table` has the names of the embedding's tensors, empty where there is none; `vocabulary` the
    token of each of its rows, where the file has that.
    """

    file: WeightFile
    found: tuple[Found, ...]
    config: AttentionConfig
    table: Mapping[str, str]
    vocabulary: tuple[str, ...] | None
    notices: tuple[str, ...]

    @property
    def layout(self) -> str:
        return self.found[0].layout.name

    @property
    def is_causal(self) -> bool:
        """Whether the model that the layer is of never looks at later tokens."""
        one = self.found[0]
        return one.layout.is_causal or (
            one.layout.positions == "relative" and not self.config.variant.buckets_both_ways
        )

    @property
    def number(self) -> int:
        """Which layer of its model it is, as far as its place tells; 0 for a stack."""
        numbers = [int(part) for part in self.found[0].prefix.split(".") if part.isdigit()]
        return numbers[0] if numbers and len(self.found) == 1 else 0

    @property
    def n_rows(self) -> int:
        """Rows of the embedding's table."""
        return self.file.entries[self.table["weight"]].shape[0] if self.table else 0

    def load(self) -> list[MultiHeadAttention]:
        """Read the layers. Raises `InputError` where a tensor has no proper shape or numbers."""
        return [
            MultiHeadAttention(self.config, _tensors(self.file, each, self.config))
            for each in self.found
        ]

    def load_embedding(self) -> Embedding:
        """Read what turns tokens into vectors; `table` is not empty."""
        like = {"dtype": getattr(torch, self.config.dtype), "device": self.config.device}
        tensors = {name: self.file.floats(theirs).to(**like) for name, theirs in self.table.items()}
        if "kind" in tensors:
            tensors["kind"] = tensors["kind"][0]
        if "places" in tensors and self.file.config.get("model_type") in SHIFTED_PLACES:
            tensors["places"] = tensors["places"][self.file.config.get("pad_token_id", 1) + 1 :]
        return Embedding(self.config, self.n_rows, tensors, eps=self.config.variant.eps)


def open_weights(file: WeightFile, asked: Asked | None = None) -> Weights:
    """Find the layer, or the stack of attnviz's own, that is meant, and its sizes.

    Raises `InputError` where the file does not have one, `ConfigError` where what was asked for
    contradicts it or where a number is missing.
    """
    asked = Asked() if asked is None else asked
    require_device(asked.device)
    if "attnviz" in file.metadata:
        raise InputError(f"{file.shown} is a saved run, not weights: attnviz render draws it")
    found = tuple(pick(list(file.entries), file.shown, asked.prefix))
    own = _own_configs(file, found)
    notices: list[str] = []
    configs = [
        _config(file, each, asked, config, notices if i == 0 else [])
        for i, (each, config) in enumerate(zip(found, own, strict=True))
    ]
    for i, config in enumerate(configs):
        if replace(config, seed=0) != replace(configs[0], seed=0):
            raise InputError(
                f"{file.shown}: layers 0 and {i} differ in their sizes; --weights-prefix picks one"
            )
    table = _table(file, found[0], configs[0])
    config = configs[0]
    if config.positions == "learned" and "places" not in table:
        config = replace(config, positions="none")
    vocabulary = _vocabulary(file, table) if table else None
    return Weights(file, found, config, table, vocabulary, tuple(notices))


def from_weights(
    weights: Weights,
    queries: Batch,
    keys: Batch | None = None,
    rules: Sequence[Rule] = (),
    keep: Collection[str] = (),
    inputs: Inputs | None = None,
) -> Run:
    """Run the layers on `inputs`, or on the tokens, through the file's embedding.

    Batches, `rules` and `keep` are as in `from_config`. Raises `InputError` where they do not go
    together, or would not fit in memory.
    """
    source, config = (queries if keys is None else keys), weights.config
    require_fit(keep, queries, source)
    n = len(weights.found)
    require_run_memory(config, queries.size, queries.width, source.width, weights.n_rows, n)
    layers = weights.load()
    rows = {"V": weights.n_rows}
    if layers[0].distances is not None:
        rows["R"] = len(layers[0].distances.weight)
    sizes = sizes_of_run(config, queries, source, layers[0].extra_keys, **rows)
    # keys and values are kept as they are used, with those that are no token's
    recorder = Recorder(
        sizes, {*keep, *(f"{name}_extended" for name in ("k", "v") if name in keep)}
    )
    if inputs is None:
        embedding = weights.load_embedding()
        n_places, longest = embedding.n_places, max(queries.width, source.width)
        if n_places is not None and longest > n_places:
            raise InputError(
                f"{weights.file.shown} has a table of {n_places} positions; "
                f"{longest} tokens are more"
            )
        inputs = embedded(embedding, queries, keys, recorder)
    return run_layers(layers, inputs, queries, source, rules, recorder, **facts_of(weights))


def facts_of(weights: Weights) -> dict[str, Any]:
    """The fields of a result that say what ran."""
    place = weights.found[0].place if len(weights.found) == 1 else ""
    where = f" at {printable(place)}" if place else ""
    config = weights.config.as_dict()
    return {
        "config": {name: value for name, value in config.items() if name != "seed"},
        "source": f"weights of {printable(weights.file.path.name)}, layout {weights.layout}{where}",
        "trained": True,
    }


def steps_of(
    weights: Weights, lengths: Mapping[str, int], rule_heads: int = 0, embeds: bool = True
) -> tuple[tuple[Step, ...], dict[str, int]]:
    """(the steps of the first layer at any size, the length of each axis by name).

    The layer runs once, on a few zeros; `Step.at` puts in the `lengths` of "B", "Tq" and "Ts", the
    last only in cross attention. `rule_heads` is 0 without a mask, else the heads that it tells
    apart, or 1. `embeds`: the input is tokens.
    """
    config = weights.config
    layer = MultiHeadAttention(config, _tensors(weights.file, weights.found[0], config))
    cross = "Ts" in lengths
    small = {"B": 2, "Tq": 3, "Ts": 5 if cross else 3}
    own = {
        "H": config.n_heads,
        "Hkv": config.n_kv_heads,
        "d_model": config.d_model,
        "d_k": config.d_k,
        "d_v": config.d_v,
        **{name: n for name in ("d_key", "d_value") if (n := getattr(config.variant, name))},
        **({"V": weights.n_rows} if embeds else {}),
        **({"R": len(layer.distances.weight)} if layer.distances is not None else {}),
    }
    recorder = Recorder({**own, **small, "Tk": small["Ts"] + layer.extra_keys})
    like = {"dtype": getattr(torch, config.dtype), "device": config.device}
    with torch.no_grad():
        if embeds:
            embedding = weights.load_embedding()
            sides = [("Tq", "query"), ("Ts", "key")][: 1 + cross]
            ids = [
                torch.zeros(2, small[t], dtype=torch.long, device=config.device) for t, _ in sides
            ]
            vectors = [
                embedding(each, torch.zeros_like(each), recorder, side=side)
                for each, (_, side) in zip(ids, sides, strict=True)
            ]
        else:
            widths = [config.d_model, config.variant.d_key or config.d_model]
            sizes = zip((small["Tq"], small["Ts"]), widths, strict=True)
            vectors = [torch.zeros(2, n, width, **like) for n, width in sizes][: 1 + cross]
        x, y = vectors[0], vectors[1] if cross else None
        width = config.variant.d_value
        v = torch.zeros(2, small["Ts"], width, **like) if width else None
        shape = (2, config.n_heads if rule_heads > 1 else 1, small["Tq"], small["Ts"])
        allowed = torch.ones(shape, dtype=torch.bool, device=config.device) if rule_heads else None
        layer(x, y, v, allowed, recorder)
    n_keys = lengths.get("Ts", lengths["Tq"])
    true = {**own, **lengths, "Ts": n_keys, "Tk": n_keys + layer.extra_keys}
    steps = tuple(step.at(true) for step in recorder.steps)
    if not layer.extra_keys:  # then all keys are tokens
        del true["Ts"]
    if not config.is_grouped:
        del true["Hkv"]
    return steps, true


# ── sizes ────────────────────────────────────────────────────────────────────────────────────


def _own_configs(file: WeightFile, found: Sequence[Found]) -> list[AttentionConfig | None]:
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


def _config(
    file: WeightFile,
    found: Found,
    asked: Asked,
    own: AttentionConfig | None,
    notices: list[str],
) -> AttentionConfig:
    """The sizes of a layer, from its shapes and whatever else tells them."""
    layout, beside = found.layout, file.config if found.layout is not OURS else {}
    model_type = beside.get("model_type")
    if layout.model_types and model_type is not None and model_type not in layout.model_types:
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
        eps=_number(beside, EPSILONS, layout.eps),
        scaled=scaled,
        rotary=rotary,
        buckets_both_ways=not (in_decoder or beside.get("is_decoder") is True),
        furthest=int(_number(beside, ("relative_attention_max_distance",), 128)),
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
    share = _number(beside, ("partial_rotary_factor", "rotary_pct"), layout.rotary_share)
    dim = _whole(beside, ("rotary_dim",)) or layout.rotary_dim or int(d_k * share)
    length = _whole(beside, ("original_max_position_embeddings",)) or 0
    return Rotary(
        base=_number(beside, ("rope_theta", "rotary_emb_base"), 10000.0),
        dim=0 if dim == d_k else dim,
        neighbours=layout.neighbours,
        factor=1.0 if kind == "default" else _number(beside, ("factor",), 1.0),
        original_length=length if kind == "llama3" else 0,
        slow=_number(beside, ("low_freq_factor",), 1.0),
        fast=_number(beside, ("high_freq_factor",), 4.0),
    )


def _whole(values: Mapping[str, Any], names: Sequence[str]) -> int | None:
    """The first of `names` that is there as a whole number."""
    found = (values.get(name) for name in names)
    return next((v for v in found if isinstance(v, int) and not isinstance(v, bool)), None)


def _number(values: Mapping[str, Any], names: Sequence[str], default: float) -> float:
    found = (values.get(name) for name in names)
    number = (float(v) for v in found if isinstance(v, int | float) and not isinstance(v, bool))
    return next(number, default)


# ── tensors ──────────────────────────────────────────────────────────────────────────────────


def _tensors(file: WeightFile, found: Found, config: AttentionConfig) -> dict[str, Tensor]:
    """The tensors of `MultiHeadAttention`, each in its own shape."""
    like = {"dtype": getattr(torch, config.dtype), "device": config.device}
    raw = {ours: file.floats(theirs).to(**like) for ours, theirs in found.names.items()}
    shared = _shared_distances(file, found)
    if shared is not None:
        raw["distances.weight"] = file.floats(shared).to(**like)
    elif config.positions == "relative" and "distances.weight" not in raw:
        raise InputError(
            f"{file.shown}: the layers of {found.layout.name} add a table of distances to the "
            "scores, which is not in the file"
        )
    if found.layout.transposed:
        raw = {name: t.T if name.startswith("w_") and t.ndim == 2 else t for name, t in raw.items()}
    for part in ("weight", "bias"):
        if f"w_qkv.{part}" in raw:
            thirds = _thirds(raw.pop(f"w_qkv.{part}"), found.layout.fused, config)
            raw.update(zip((f"w_{name}.{part}" for name in "qkv"), thirds, strict=True))
    for name in ("bias_k", "bias_v"):
        if name in raw:
            raw[name] = raw[name].flatten()
    for name, shape in _expected(config).items():
        if name in raw and not _fits(tuple(raw[name].shape), shape):
            theirs = printable(found.names.get(name, name))
            raise InputError(
                f"{file.shown}: {theirs} has shape {list(raw[name].shape)}; "
                f"{[size or 'any' for size in shape]} is expected"
            )
    if ("bias_k" in raw) != ("bias_v" in raw):
        raise InputError(f"{file.shown} has one of bias_k and bias_v; both or none are expected")
    return {name: tensor.contiguous() for name, tensor in raw.items()}


def _thirds(fused: Tensor, order: str, config: AttentionConfig) -> Sequence[Tensor]:
    """W_Q, W_K and W_V, or their biases, out of one matrix `[outputs …]`."""
    if order == "heads":
        by_head = fused.view(config.n_heads, 3, config.d_k, *fused.shape[1:])
        return [part.flatten(0, 1) for part in by_head.unbind(1)]
    return fused.chunk(3)


def _expected(config: AttentionConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor; 0 stands for any length."""
    d_model, variant = config.d_model, config.variant
    of_q, of_k = config.n_heads * config.d_k, config.n_kv_heads * config.d_k
    of_v, merged = config.n_kv_heads * config.d_v, config.n_heads * config.d_v
    return {
        "w_q.weight": (of_q, d_model),
        "w_q.bias": (of_q,),
        "w_k.weight": (of_k, variant.d_key or d_model),
        "w_k.bias": (of_k,),
        "w_v.weight": (of_v, variant.d_value or d_model),
        "w_v.bias": (of_v,),
        "w_o.weight": (d_model, merged),
        "w_o.bias": (d_model,),
        "norm.weight": (d_model,),
        "norm.bias": (d_model,),
        "norm_q.weight": (config.d_k,),
        "norm_k.weight": (config.d_k,),
        "bias_k": (of_k,),
        "bias_v": (of_v,),
        "distances.weight": (0, config.n_heads),
    }


def _fits(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    return len(shape) == len(expected) and all(
        size == wanted or (not wanted and size > 0)
        for size, wanted in zip(shape, expected, strict=True)
    )


def _shared_distances(file: WeightFile, found: Found) -> str | None:
    """T5's table of distances stands in the first layer, for all."""
    theirs = found.layout.names.get("distances.weight")
    if theirs is None or "distances.weight" in found.names or found.layout is OURS:
        return None
    before, _, _ = found.prefix.partition(".block.")
    first = f"{before}.block.0.layer.0.{theirs}"
    return first if first in file.entries else None


# ── what turns tokens into vectors ───────────────────────────────────────────────────────────


def _table(file: WeightFile, found: Found, config: AttentionConfig) -> dict[str, str]:
    """Our name → the file's for each tensor of its embedding; empty where none fits the layer."""
    wanted = found.layout.embedding
    for tail in wanted.get("weight", "").split("|"):
        places = [name for name in file.entries if name == tail or name.endswith(f".{tail}")]
        for name in sorted(places, key=len):
            shape = file.entries[name].shape
            if not tail or len(shape) != 2 or shape[1] != config.d_model or not shape[0]:
                continue
            base = name.removesuffix(tail)
            names = {"weight": name}
            for ours, theirs in wanted.items():
                there = [base + each for each in theirs.split("|") if base + each in file.entries]
                if there and ours != "weight":
                    names[ours] = there[0]
            return names
    return {}


def _vocabulary(file: WeightFile, table: Mapping[str, str]) -> tuple[str, ...] | None:
    text = file.metadata.get(VOCABULARY)
    if text is None:
        return None
    rows = file.entries[table["weight"]].shape[0]
    try:
        tokens = json.loads(text)
    except (ValueError, RecursionError):
        tokens = None
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise InputError(f"{file.shown}: its metadata {VOCABULARY} is no JSON list of tokens")
    if len(tokens) != rows or len(set(tokens)) != rows:
        raise InputError(
            f"{file.shown}: its vocabulary has {len(set(tokens))} different tokens for "
            f"{rows} rows of the embedding"
        )
    return tuple(tokens)
