"""Users' own weights: one layer, or a stack of attnviz's own.

`weight_files` opens the file, `layouts` finds its layers by their names, `weight_sizes` works out
their sizes, and `weight_tensors` reads them; `weights_source` runs them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from attnviz.attention import Embedding, MultiHeadAttention
from attnviz.config import AttentionConfig
from attnviz.errors import InputError, printable
from attnviz.sources.layer_pass import require_device
from attnviz.sources.layouts import Found, pick
from attnviz.sources.saved_layers import VOCABULARY
from attnviz.sources.weight_files import WeightFile
from attnviz.sources.weight_sizes import Asked, config_of, own_configs
from attnviz.sources.weight_tensors import tensors_of
from attnviz.trace import Recorder, Step

__all__ = ["Asked", "Weights", "facts_of", "open_weights", "steps_of"]


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
            MultiHeadAttention(self.config, tensors_of(self.file, each, self.config))
            for each in self.found
        ]

    def load_embedding(self) -> Embedding:
        """Read what turns tokens into vectors; `table` is not empty."""
        like = {"dtype": getattr(torch, self.config.dtype), "device": self.config.device}
        tensors = {name: self.file.floats(theirs).to(**like) for name, theirs in self.table.items()}
        if "kind" in tensors:
            tensors["kind"] = tensors["kind"][0]
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
    own = own_configs(file, found)
    notices: list[str] = []
    configs = [
        config_of(file, each, asked, config, notices if i == 0 else [])
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
    layer = MultiHeadAttention(config, tensors_of(weights.file, weights.found[0], config))
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
