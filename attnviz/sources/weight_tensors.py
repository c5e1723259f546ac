"""The tensors of a layer in a file, in the shapes and under the names of `MultiHeadAttention`."""

from __future__ import annotations

import torch
from torch import Tensor

from attnviz.config import AttentionConfig
from attnviz.errors import InputError, printable
from attnviz.sources.layouts import Found
from attnviz.sources.weight_files import WeightFile


def tensors_of(file: WeightFile, found: Found, config: AttentionConfig) -> dict[str, Tensor]:
    """The tensors of `MultiHeadAttention`, each in its own shape."""
    like = {"dtype": getattr(torch, config.dtype), "device": config.device}
    raw = {ours: file.floats(theirs).to(**like) for ours, theirs in found.names.items()}
    if config.positions == "relative" and "distances.weight" not in raw:
        raise InputError(
            f"{file.shown}: relative positions need a table of distances, which is not in the file"
        )
    for part in ("weight", "bias"):
        if f"w_qkv.{part}" in raw:
            thirds = raw.pop(f"w_qkv.{part}").chunk(3)
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
