"""What every source of attention returns, and the forward pass that attnviz's own layers share."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attnviz.attention import MultiHeadAttention
from attnviz.config import AttentionConfig
from attnviz.errors import ConfigError, InputError, printable
from attnviz.masks import Rule, build
from attnviz.result import KEEPABLE, Attention, from_batches
from attnviz.tokens import Batch
from attnviz.trace import EXPLANATIONS, Recorder, Step


@dataclass(frozen=True)
class Run:
    """One forward pass: what it gave, what ran, and the layers that it ran through.

    `steps` are those of the input and of the first layer; the others have the same. `layers` is
    empty where the attention is not computed by a layer of attnviz's own.
    """

    result: Attention
    steps: tuple[Step, ...]
    layers: tuple[MultiHeadAttention, ...] = ()


@dataclass(frozen=True)
class Inputs:
    """What the first layer is given, all `[B T width]`; `key` None stands for self attention.

    `value` None: values are made of what keys are made of.
    """

    query: Tensor
    key: Tensor | None = None
    value: Tensor | None = None


def sizes_of_run(
    config: AttentionConfig, queries: Batch, keys: Batch, extra_keys: int = 0, **more: int
) -> dict[str, int]:
    """The length of each axis of a trace, by name."""
    return {
        "B": queries.size,
        "H": config.n_heads,
        "Hkv": config.n_kv_heads,
        "Tq": queries.width,
        "Ts": keys.width,
        "Tk": keys.width + extra_keys,
        "d_k": config.d_k,
        "d_v": config.d_v,
        "d_model": config.d_model,
        "d_key": config.variant.d_key,
        "d_value": config.variant.d_value,
        **more,
    }


def require_fit(keep: Collection[str], queries: Batch, keys: Batch) -> None:
    """Raise `ConfigError` for an unknown tap, `InputError` for batches that do not go together."""
    for name in keep:
        if name not in EXPLANATIONS:
            raise ConfigError(f"--keep {printable(name)}: known are {', '.join(KEEPABLE)}")
    for what in ("size", "pad_side", "vocabulary"):
        if getattr(queries, what) != getattr(keys, what):
            raise InputError(f"the batches of queries and keys differ in {what}")


def run_layers(
    layers: Sequence[MultiHeadAttention],
    inputs: Inputs,
    queries: Batch,
    keys: Batch,
    rules: Sequence[Rule],
    recorder: Recorder,
    **facts: Any,
) -> Run:
    """Run `inputs` through `layers`, the output of each the queries' input of the next.

    In cross attention every layer has the same keys. `recorder` has the steps of the input, and
    names what is kept of every layer. `facts` are those fields of the result that say what ran.
    """
    first = layers[0]
    config, extra = first.config, first.extra_keys
    if extra and keys.pad_side == "right" and not keys.valid.all():
        raise InputError(
            "the layer has a key of its own after the last token, and padding would stand between "
            "them; --pad-side left puts the padding first"
        )
    mask = build(rules, queries.size, config.n_heads, queries.width, keys.width)
    allowed = None if mask is None else torch.from_numpy(mask).to(config.device)
    positions = (torch.from_numpy(queries.positions), torch.from_numpy(keys.positions))
    x, weights, kept = inputs.query, [], []
    with torch.no_grad():
        for i, layer in enumerate(layers):
            tap = recorder if i == 0 else Recorder(recorder.sizes, recorder.keep)
            x, found = layer(x, inputs.key, inputs.value, allowed, tap, positions)
            weights.append(as_array(found))
            kept.append(_as_used(tap.kept, queries.size))
    shape = (len(layers), queries.size, 1, queries.width, keys.width + extra)
    seen = np.ones(shape, dtype=bool)
    if mask is not None:
        seen = np.broadcast_to(mask, (len(layers), *mask.shape))
        seen = np.pad(seen, [(0, 0)] * 4 + [(0, extra)], constant_values=True) if extra else seen
    result = from_batches(
        np.stack(weights),
        seen,
        queries,
        _with_extra_keys(keys, first),
        masks=tuple(rule.name for rule in rules),
        kept={name: np.stack([each[name] for each in kept]) for name in kept[0]},
        **facts,
    )
    return Run(result, tuple(recorder.steps), tuple(layers))


def _as_used(kept: Mapping[str, Tensor], batch: int) -> dict[str, npt.NDArray[Any]]:
    """Kept tensors, each with all sequences; keys and values as the attention had them in the end.

    With keys that are no token's, `k` and `v` are those of `k_extended` and `v_extended`.
    """
    found = {
        name: as_array(tensor.expand(batch, *tensor.shape[1:])) for name, tensor in kept.items()
    }
    for name in ("k", "v"):
        if f"{name}_extended" in found:
            found[name] = found.pop(f"{name}_extended")
            for earlier in (f"{name}_normed", f"{name}_rotated"):
                found.pop(earlier, None)
    return found


def _with_extra_keys(keys: Batch, layer: MultiHeadAttention) -> Batch:
    """`keys` with names for the keys that are no token's; only tokens and lengths are read."""
    names = ("[bias_k]",) * (layer.bias_k is not None) + ("[zero]",) * layer.config.variant.zero_key
    if not names:
        return keys
    tokens = tuple(row + names for row in keys.tokens)
    ids = np.pad(keys.ids, [(0, 0), (0, len(names))])
    return replace(keys, tokens=tokens, ids=ids, lengths=keys.lengths + len(names))


def as_array(tensor: Tensor) -> npt.NDArray[Any]:
    """NumPy has no bfloat16: it becomes float32, which holds every bfloat16 exactly."""
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.float()
    return np.ascontiguousarray(tensor.cpu().numpy())
