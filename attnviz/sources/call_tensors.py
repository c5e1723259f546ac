"""What the captured calls of a model tell: its masks by name, and tensors that are kept."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attnviz.errors import InputError
from attnviz.result import Attention
from attnviz.sources.captured_calls import TAPS, Call
from attnviz.trace import Step
from attnviz.wording import noun_for

Array = npt.NDArray[Any]

SCORES = ("products", "scores", "position_bias", "biased")
"""Computed again from the q, k, scale and bias that were captured; checked against the weights."""

TURNED = ("q_rotated", "k_rotated")
"""q and k by the names that they have where positions have turned them."""

KEEPABLE = (*TAPS, *TURNED, *SCORES)
"""What a run of a model can keep."""

BEYOND_ROUNDING = 1e-3
"""A row that sums to less than 1 by more than this has lost something to a sink; by more than the
steps between numbers near 1 where those are larger (bfloat16)."""


def taps_for(keep: Collection[str]) -> set[str]:
    """What has to be captured so that `keep` can be had."""
    return set(keep) & set(TAPS) | ({"q", "k"} if set(keep) & {*SCORES, *TURNED} else set())


def kept_of(call: Call, keep: Collection[str], steps: Sequence[Step]) -> dict[str, Array]:
    """The tensors of a layer that are wanted, `[B …]`, but those that its family does not have.

    `steps` are those of the first layer: they tell whether positions turn queries and keys.
    """
    turned = {step.name for step in steps} & set(TURNED)
    tensors = {name: _tap(call, name) for name in keep if name in TAPS}
    if set(keep) & set(SCORES):
        scores = _scores(call)
        tensors |= {name: scores[name] for name in keep if name in scores}
    tensors |= {name: _tap(call, name[0]) for name in keep if name in turned}
    return {name: tensor.float().numpy() for name, tensor in tensors.items()}


def _tap(call: Call, name: str) -> Tensor:
    tensor: Tensor | None = getattr(call, name)
    if tensor is None:
        raise InputError(f"{call.name} computes attention in its own code, and shows no {name}")
    return tensor


def _scores(call: Call) -> dict[str, Tensor]:
    """Each of `SCORES`, `[B H Tq Tk]`, from what was captured: before the mask, as it was added up.

    `scores` are products · scale, and are left out where the scale is 1; `position_bias` and
    `biased` are there where a bias was added. Raises `InputError` when softmax of these scores is
    not what the model computed: it does something that was not seen, a cap or a sink.
    """
    q, k = _tap(call, "q"), _tap(call, "k")
    products = q @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).transpose(-1, -2)
    scores = {"products": products}
    if call.scale != 1 or call.bias is None:
        scores["scores"] = products * (1.0 if call.scale is None else call.scale)
    total = scores.get("scores", products)
    if call.bias is not None:
        scores["position_bias"] = call.bias.expand_as(products)
        scores["biased"] = total = total + call.bias
    forbidden = None if call.allowed is None else ~call.allowed
    masked = total if forbidden is None else total.masked_fill(forbidden, -torch.inf)
    weights = call.weights if forbidden is None else call.weights.masked_fill(forbidden, 0)
    near = 1e-4 if call.weights.element_size() > 2 else 1e-2
    same = torch.allclose(masked.softmax(-1).nan_to_num(), weights, atol=near, rtol=0)
    if call.softcap is not None or not same:
        does = "a sink, say" if call.softcap is None else f"a cap at {call.softcap:g}"
        raise InputError(
            f"{call.name} does more to its scores than scale, bias and mask ({does}); "
            "its weights can be shown, and not explained from q and k"
        )
    return scores


def mask_names(
    masks: Sequence[tuple[int, tuple[int, ...], Tensor | None]],
    query_valid: npt.NDArray[np.bool_],
    key_valid: npt.NDArray[np.bool_],
    tower: str,
) -> tuple[str, ...]:
    """What the masks that ran amount to, in words: causal, window N, padding.

    `masks` has each layer's number, the shape of its weights, and its mask.
    """
    allowed = [
        np.ones(shape, bool) if mask is None else np.broadcast_to(mask.numpy(), shape)
        for _, shape, mask in masks
    ]
    names = []
    at_q = np.cumsum(query_valid, 1) - 1
    at_k = np.cumsum(key_valid, 1) - 1
    real = query_valid[:, :, None] & key_valid[:, None, :]  # B Tq Tk
    apart = at_q[:, :, None] - at_k[:, None, :]
    causal = tower != "cross" and _never(allowed, real & (apart < 0))
    if causal:
        names.append("causal")
    windows: dict[int, list[int]] = {}
    for (layer, _, _), mask in zip(masks, allowed, strict=True):
        seen = mask.any(1) & real
        reach = int(np.abs(apart)[seen].max(initial=0)) + 1
        near = real & (np.abs(apart) < reach) & ((apart >= 0) | (not causal))
        if reach < query_valid.shape[1] and tower != "cross" and (seen == near).all():
            windows.setdefault(reach, []).append(layer)
    for reach, where in windows.items():
        some = (
            ""
            if len(where) == len(masks)
            else f" in {noun_for(len(where), 'layer')} {','.join(map(str, where))}"
        )
        names.append(f"window {reach}{some}")
    if not key_valid.all() and _never(allowed, query_valid[:, :, None] & ~key_valid[:, None]):
        names.append("padding")
    return tuple(names)


def _never(allowed: Sequence[npt.NDArray[np.bool_]], cells: npt.NDArray[np.bool_]) -> bool:
    """Whether no layer and head allows any of `cells` `[B Tq Tk]`, of which there are some."""
    return bool(cells.any()) and not any((mask & cells[:, None]).any() for mask in allowed)


def review(result: Attention, dtype: str) -> list[str]:
    """What a user should know of these maps: what is no number, what sinks take."""
    for number, maps_of_layer in zip(result.layer_numbers, result.attention, strict=True):
        odd = [bool(np.isnan(maps_of_layer[:, head]).any()) for head in range(result.n_heads)]
        if any(odd):
            said = (
                f"weights are NaN from layer {number} on, there in {sum(odd)} of {len(odd)} heads"
            )
            reach = "; float16 ends at 65504, --dtype float32 goes further"
            return [said + reach * (dtype == "float16")]
    sees = result.allowed.any(-1) & result.query_valid[:, None]  # L B 1|H Tq
    lost = 1 - result.attention.sum(-1, dtype=np.float64)
    lost = np.where(np.broadcast_to(sees, lost.shape), lost, 0.0)
    count = np.broadcast_to(sees, lost.shape).sum((1, 3)).clip(1)
    means = lost.sum((1, 3)) / count  # L H
    steps = torch.finfo(getattr(torch, dtype)).eps
    if lost.max(initial=0) <= max(BEYOND_ROUNDING, steps):
        return []
    layer, head = np.unravel_index(int(means.argmax()), means.shape)
    return [
        f"rows sum to less than 1: learned sinks take the rest, {means.mean():.3f} of a row on the "
        f"mean, {means.max():.3f} in layer {result.layer_numbers[layer]} head {head}"
    ]
