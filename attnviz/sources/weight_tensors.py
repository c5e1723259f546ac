"""The tensors of a layer in a file, in the shapes and under the names of `MultiHeadAttention`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attnviz.config import AttentionConfig
from attnviz.errors import InputError, printable
from attnviz.sources.layouts import OURS, Found
from attnviz.sources.weight_files import WeightFile


def tensors_of(file: WeightFile, found: Found, config: AttentionConfig) -> dict[str, Tensor]:
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
