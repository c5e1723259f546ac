"""The attention of a real architecture, from its `config.json` alone: no weights, no transformers.

`KINDS` has one reader for each family. A reader knows the family's defaults, which such files leave
out, and what the family's code does that its configuration does not say: which projections have a
bias, where the norms stand, how positions enter. The tests compare every family with transformers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnviz.config import DTYPES, LARGEST_SIZE, divisors
from attnviz.errors import InputError, printable

LARGEST_FILE = 2**24
"""Bytes: a configuration is some kilobytes, so a larger file is something else."""

MOST_LAYERS = 10**5


@dataclass(frozen=True)
class LayerKind:
    """Layers of one sort. `window` is the number of keys that a query may see, itself included.

    `cached`: keys and values are kept while text is generated. `role` is "self" or "cross"; a
    cross layer keeps those of the other text, once.
    """

    name: str
    count: int
    window: int | None = None
    cached: bool = True
    role: str = "self"


@dataclass(frozen=True)
class CacheRow:
    """The cache of one kind: `tokens` kept in each of `count` layers, `nbytes` for all of them."""

    kind: str
    count: int
    tokens: int
    bytes_per_token: int
    nbytes: int


@dataclass(frozen=True)
class Architecture:
    """What a `config.json` says about attention.

    `biases` are those of "q", "k", "v", "o" that have one. `norm` ("RMSNorm" or "LayerNorm") stands
    "before" the attention, "after" the residual, or at "both" ends of the attention. `fused`: one
    matrix makes q, k and v. `positions`: "rope", "learned", "sinusoidal" or "relative bias" (T5's,
    a table of `buckets` rows for each stack). `rotary_dim` numbers of each head are turned. `cap`
    is Gemma 2's bound of the scores; `scaled` is false where nothing divides them (T5).
    """

    model_type: str
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    kinds: tuple[LayerKind, ...]
    norm: str = "RMSNorm"
    norm_at: str = "before"
    positions: str = "rope"
    rotary_dim: int = 0
    buckets: int = 0
    biases: tuple[str, ...] = ()
    qk_norm: bool = False
    fused: bool = False
    scaled: bool = True
    cap: bool = False
    longest: int | None = None
    dtype: str | None = None

    @property
    def n_layers(self) -> int:
        """Attention layers of all kinds; in an encoder-decoder, each decoder block has two."""
        return sum(kind.count for kind in self.kinds)

    @property
    def grouped(self) -> bool:
        """Whether several query heads share a key/value head."""
        return self.n_kv_heads != self.n_heads

    @property
    def attention_parameters(self) -> int:
        """Of one layer: the four projections with their biases, and the norms of q and k."""
        width, keys = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        bias = {"q": width, "k": keys, "v": keys, "o": self.d_model}
        return (
            2 * self.d_model * (width + keys)
            + sum(bias[name] for name in self.biases)
            + (2 * self.head_dim if self.qk_norm else 0)
        )

    @property
    def position_parameters(self) -> int:
        """Of the whole model: T5's bias tables, one for each stack of self-attention layers."""
        return self.buckets * self.n_heads * sum(kind.role == "self" for kind in self.kinds)

    @property
    def all_attention_parameters(self) -> int:
        """Attention of all layers with T5's tables; the norms beside it are not counted."""
        return self.n_layers * self.attention_parameters + self.position_parameters

    def cache_bytes_per_token(self, dtype: str) -> int:
        """One token's keys and values in one layer: 2 · n_kv_heads · head_dim numbers."""
        return 2 * self.n_kv_heads * self.head_dim * DTYPES[dtype]

    def cache(
        self, length: int, dtype: str, batch: int = 1, source_length: int | None = None
    ) -> tuple[CacheRow, ...]:
        """What `length` tokens of each of `batch` sequences keep, kind by kind.

        A sliding layer never holds more than its window. Cross layers hold the `source_length`
        tokens of the other text (`length` when left out).
        """
        rows = []
        for kind in self.kinds:
            if not kind.cached:
                continue
            tokens = length
            if kind.role == "cross" and source_length is not None:
                tokens = source_length
            if kind.window is not None:
                tokens = min(tokens, kind.window)
            each = self.cache_bytes_per_token(dtype)
            rows.append(
                CacheRow(kind.name, kind.count, tokens, each, batch * kind.count * tokens * each)
            )
        return tuple(rows)


def read_architecture(path: Path) -> Architecture:
    """Read a `config.json`, or the one in the folder `path`.

    A configuration that nests its language model (`text_config`, as Gemma 3's and other models
    that also see pictures) is followed. Raises `InputError`, one line, for whatever is not such a
    file: unreadable, not JSON, of an unknown kind (the known ones are listed), or with sizes that
    cannot be.
    """
    where = path / "config.json" if path.is_dir() else path
    shown = printable(where)
    if where.suffix == ".gguf":
        raise InputError(f"{shown} has no config.json in it; run --model reads .gguf files")
    try:
        with where.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise InputError(f"{shown}: {printable((error.strerror or str(error)).lower())}") from None
    if len(content) > LARGEST_FILE:
        raise InputError(f"{shown} is larger than {LARGEST_FILE} bytes; a config.json is expected")
    try:
        found = json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError(f"{shown} is not UTF-8 at byte {error.start}; JSON is expected") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{shown} is not JSON: {printable(error)}") from None
    return from_dict(found, shown)


def from_dict(found: object, shown: str = "config") -> Architecture:
    """`read_architecture` for JSON that has been read; `shown` names it in messages."""
    if not isinstance(found, dict):
        raise InputError(f"{shown} holds {_json_type(found)}; a JSON object is expected")
    kind = found.get("model_type")
    nested = found.get("text_config")
    if isinstance(nested, dict) and not (isinstance(kind, str) and kind in KINDS):
        inner = nested.get("model_type")
        # files of 2025 and before leave the nested kind out where there is only one
        nested = {**nested, "model_type": f"{kind}_text" if inner is None else inner}
        # the outer object may hold the dtype for both
        nested.setdefault("dtype", found.get("dtype", found.get("torch_dtype")))
        return from_dict({k: v for k, v in nested.items() if k != "text_config"}, shown)
    known = ", ".join(KINDS)
    if kind is None:
        raise InputError(f'{shown} has no "model_type"; known are {known}')
    if not isinstance(kind, str) or kind not in KINDS:
        raise InputError(f"{shown}: unknown model_type {printable(repr(kind))}; known are {known}")
    fields = _Fields(found, shown)
    architecture = KINDS[kind](fields)
    longest = fields.optional("max_position_embeddings", "n_positions")
    return replace(architecture, model_type=kind, longest=longest, dtype=fields.dtype())


# ── reading fields that a stranger wrote ─────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Fields:
    """A configuration object whose values are checked as they are read."""

    values: Mapping[str, Any]
    shown: str

    def optional(self, *names: str, at_least: int = 1) -> int | None:
        """The first of `names` that is there and not null, as a whole number in range."""
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise InputError(
                    f"{self.shown}: {name} is {printable(json.dumps(value), 40)}; "
                    "a whole number is expected"
                )
            if not at_least <= value <= LARGEST_SIZE:
                raise InputError(
                    f"{self.shown}: {name} is {printable(value, 40)}; "
                    f"it must be between {at_least} and {LARGEST_SIZE}"
                )
            return value
        return None

    def size(self, *names: str, default: int) -> int:
        """As `optional`; `default` is what the family's own code takes when the file is silent."""
        found = self.optional(*names)
        return default if found is None else found

    def layers(self, *names: str, default: int) -> int:
        """A number of layers: small enough that a list of them can be made."""
        n = self.size(*names, default=default)
        if n > MOST_LAYERS:
            raise InputError(f"{self.shown}: {names[0]} is {n}; at most {MOST_LAYERS} are expected")
        return n

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InputError(
                f"{self.shown}: {name} is {printable(json.dumps(value), 40)}; "
                "true or false is expected"
            )
        return value

    def dtype(self) -> str | None:
        """The weights' type, where the file names one that is known."""
        value = self.values.get("dtype") or self.values.get("torch_dtype")
        return value if isinstance(value, str) and value in DTYPES else None

    def rotary_share(self) -> float:
        """Which share of each head is turned: `partial_rotary_factor`, at its old or new place."""
        new = self.values.get("rope_parameters")
        value = self.values.get("partial_rotary_factor")
        if value is None and isinstance(new, dict):
            value = new.get("partial_rotary_factor")
        if value is None:
            return 1.0
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise InputError(
                f"{self.shown}: partial_rotary_factor is {printable(json.dumps(value), 40)}; "
                "a number above 0, at most 1, is expected"
            )
        return float(value)

    def layer_types(self, n_layers: int) -> list[bool] | None:
        """For each layer whether it slides, where the file lists `layer_types`."""
        types = self.values.get("layer_types")
        if types is None:
            return None
        if not isinstance(types, list) or len(types) != n_layers:
            what = f"a list of {len(types)}" if isinstance(types, list) else _json_type(types)
            raise InputError(
                f"{self.shown}: layer_types is {what}; a list of {n_layers} (one a layer) "
                "is expected"
            )
        known = {"sliding_attention": True, "full_attention": False}
        for i, name in enumerate(types):
            if not isinstance(name, str) or name not in known:
                raise InputError(
                    f"{self.shown}: layer_types[{i}] is {printable(json.dumps(name), 40)}; "
                    f"known are {', '.join(known)}"
                )
        return [known[name] for name in types]


def _json_type(value: object) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}"
    names = {dict: "an object", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _heads(fields: _Fields, d_model: int, n_heads: int, head_dim: int | None) -> int:
    """The width of a head, d_model / n_heads when the file does not give it."""
    if head_dim is not None:
        return head_dim
    if d_model % n_heads:
        raise InputError(
            f"{fields.shown}: hidden size {d_model} is not divisible by {n_heads} heads "
            f"({d_model} = {n_heads}·{d_model // n_heads} + {d_model % n_heads}) "
            "and head_dim is missing"
        )
    return d_model // n_heads


def _key_heads(fields: _Fields, n_heads: int, default: int) -> int:
    """`default` where the file is silent; null means as many as there are heads."""
    silent = "num_key_value_heads" not in fields.values
    n = fields.size("num_key_value_heads", default=default if silent else n_heads)
    if n_heads % n:
        raise InputError(
            f"{fields.shown}: num_key_value_heads is {n}, which does not divide {n_heads} heads; "
            f"{', '.join(map(str, divisors(n_heads)))} do"
        )
    return n


def _sliding(
    fields: _Fields, n_layers: int, window: int | None, slides: Callable[[int], bool]
) -> tuple[LayerKind, ...]:
    """Sliding and global layers: as `layer_types` lists them, or as the family's rule has it.

    A kind without layers is left out.
    """
    listed = fields.layer_types(n_layers)
    if listed is None:
        listed = [window is not None and slides(i) for i in range(n_layers)]
    if any(listed) and window is None:
        raise InputError(
            f"{fields.shown}: layer_types names sliding layers, but sliding_window is missing"
        )
    kinds = (
        LayerKind("sliding", sum(listed), window=window),
        LayerKind("global", n_layers - sum(listed)),
    )
    return tuple(kind for kind in kinds if kind.count)


# ── one reader for each family ───────────────────────────────────────────────────────────────

ALL_BIASES = ("q", "k", "v", "o")


def _llama(
    fields: _Fields,
    *,
    d_model: int = 4096,
    layers: int = 32,
    heads: int = 32,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    always: tuple[str, ...] = (),
    asks_for_bias: bool = False,
    kinds: Callable[[_Fields, int], tuple[LayerKind, ...]] | None = None,
    **rest: Any,
) -> Architecture:
    """RMSNorm first, rotary positions, grouped heads: what Llama and its descendants share.

    `always` are the biases that the family has in any case; with `asks_for_bias` the file's
    `attention_bias` gives all four. Without `kinds` every layer sees everything.
    """
    width = fields.size("hidden_size", default=d_model)
    n_layers = fields.layers("num_hidden_layers", default=layers)
    n_heads = fields.size("num_attention_heads", default=heads)
    n_kv_heads = _key_heads(fields, n_heads, n_heads if kv_heads is None else kv_heads)
    given = fields.optional("head_dim") if "head_dim" in fields.values else head_dim
    size = _heads(fields, width, n_heads, given)
    rotary = int(size * fields.rotary_share())
    if rotary % 2 or not rotary:
        raise InputError(
            f"{fields.shown}: rotary positions turn pairs of numbers, and {rotary} of each "
            f"head's {size} are to be turned; an even number is expected"
        )
    return Architecture(
        "",
        width,
        n_heads,
        n_kv_heads,
        size,
        (LayerKind("global", n_layers),) if kinds is None else kinds(fields, n_layers),
        rotary_dim=rotary,
        biases=ALL_BIASES if asks_for_bias and fields.flag("attention_bias") else always,
        **rest,
    )


def _mistral_kinds(fields: _Fields, n_layers: int, default: int | None) -> tuple[LayerKind, ...]:
    """All layers slide, unless `sliding_window` is null (as it is from Mistral 7B v0.2 on)."""
    window = default if "sliding_window" not in fields.values else fields.optional("sliding_window")
    return _sliding(fields, n_layers, window, lambda i: True)


def _qwen_kinds(fields: _Fields, n_layers: int) -> tuple[LayerKind, ...]:
    """With `use_sliding_window`, the layers from `max_window_layers` on slide."""
    first = fields.optional("max_window_layers", at_least=0)
    first = 28 if first is None else first
    window = None
    if fields.flag("use_sliding_window"):
        window = (
            4096 if "sliding_window" not in fields.values else fields.optional("sliding_window")
        )
    return _sliding(fields, n_layers, window, lambda i: i >= first)


def _gemma2_kinds(fields: _Fields, n_layers: int) -> tuple[LayerKind, ...]:
    """Every second layer slides, the first one too."""
    window = fields.size("sliding_window", default=4096)
    return _sliding(fields, n_layers, window, lambda i: i % 2 == 0)


def _gemma3_kinds(fields: _Fields, n_layers: int) -> tuple[LayerKind, ...]:
    """Every `sliding_window_pattern`-th layer sees everything; the others slide."""
    window = fields.size("sliding_window", default=4096)
    pattern = fields.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return _sliding(fields, n_layers, window, lambda i: (i + 1) % pattern != 0)


def _gpt2(fields: _Fields) -> Architecture:
    d_model = fields.size("n_embd", "hidden_size", default=768)
    n_heads = fields.size("n_head", "num_attention_heads", default=12)
    return Architecture(
        "",
        d_model,
        n_heads,
        n_heads,
        _heads(fields, d_model, n_heads, None),
        (LayerKind("global", fields.layers("n_layer", "num_hidden_layers", default=12)),),
        norm="LayerNorm",
        positions="learned",
        biases=ALL_BIASES,
        fused=True,
    )


def _bert(
    fields: _Fields,
    width: str = "hidden_size",
    layers: str = "num_hidden_layers",
    heads: str = "num_attention_heads",
    n_layers: int = 12,
) -> Architecture:
    if fields.values.get("position_embedding_type", "absolute") != "absolute":
        raise InputError(
            f"{fields.shown}: position_embedding_type is "
            f"{printable(json.dumps(fields.values['position_embedding_type']), 40)}; "
            'only "absolute" is known'
        )
    d_model = fields.size(width, default=768)
    n_heads = fields.size(heads, default=12)
    return Architecture(
        "",
        d_model,
        n_heads,
        n_heads,
        _heads(fields, d_model, n_heads, None),
        (
            LayerKind(
                "decoder" if fields.flag("is_decoder") else "encoder",
                fields.layers(layers, default=n_layers),
                cached=fields.flag("is_decoder"),
            ),
        ),
        norm="LayerNorm",
        norm_at="after",
        positions="sinusoidal" if fields.flag("sinusoidal_pos_embds") else "learned",
        biases=ALL_BIASES,
    )


def _t5(fields: _Fields) -> Architecture:
    encoder = fields.layers("num_layers", default=6)
    decoder = fields.layers("num_decoder_layers", default=encoder)
    n_heads = fields.size("num_heads", default=8)
    return Architecture(
        "",
        fields.size("d_model", default=512),
        n_heads,
        n_heads,
        fields.size("d_kv", default=64),
        (
            LayerKind("encoder", encoder, cached=False),
            LayerKind("decoder", decoder),
            LayerKind("cross", decoder, role="cross"),
        ),
        positions="relative bias",
        buckets=fields.size("relative_attention_num_buckets", default=32),
        scaled=False,
    )


_GEMMA_2B: dict[str, Any] = {
    "d_model": 2304,
    "layers": 26,
    "heads": 8,
    "kv_heads": 4,
    "head_dim": 256,
    "asks_for_bias": True,
    "norm_at": "both",
}

KINDS: dict[str, Callable[[_Fields], Architecture]] = {
    "llama": lambda f: _llama(f, asks_for_bias=True),
    "mistral": lambda f: _llama(f, kv_heads=8, kinds=lambda g, n: _mistral_kinds(g, n, 4096)),
    "mixtral": lambda f: _llama(f, kv_heads=8, kinds=lambda g, n: _mistral_kinds(g, n, None)),
    "qwen2": lambda f: _llama(f, kv_heads=32, always=("q", "k", "v"), kinds=_qwen_kinds),
    "qwen3": lambda f: _llama(
        f, kv_heads=32, head_dim=128, asks_for_bias=True, qk_norm=True, kinds=_qwen_kinds
    ),
    "phi3": lambda f: _llama(
        f, d_model=3072, fused=True, kinds=lambda g, n: _mistral_kinds(g, n, None)
    ),
    "gemma": lambda f: _llama(
        f, d_model=3072, layers=28, heads=16, kv_heads=16, head_dim=256, asks_for_bias=True
    ),
    "gemma2": lambda f: _llama(
        f,
        **_GEMMA_2B,
        cap=f.values.get("attn_logit_softcapping", 50.0) is not None,
        kinds=_gemma2_kinds,
    ),
    "gemma3_text": lambda f: _llama(f, **_GEMMA_2B, qk_norm=True, kinds=_gemma3_kinds),
    "gpt2": _gpt2,
    "bert": _bert,
    "roberta": _bert,
    "distilbert": lambda f: _bert(f, "dim", "n_layers", "n_heads", n_layers=6),
    "t5": _t5,
}
"""A reader for each `model_type`. One more family is one more line."""
