"""From the calls that were caught to what a result holds: maps, masks by name, kept tensors."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attnviz.errors import InputError
from attnviz.result import Attention
from attnviz.sources.capturing import TAPS, Call
from attnviz.wording import noun_for

SCORES = ("products", "scores", "position_bias", "biased")
"""Computed again from the q, k, scale and bias that were captured; checked against the weights."""

TURNED = ("q_rotated", "k_rotated")
"""q and k by the names that they have where positions have turned them."""

KEEPABLE = (*TAPS, *TURNED, *SCORES)
"""What a run of a model can keep."""

BEYOND_ROUNDING = 1e-3
"""A row that sums to less than 1 by more than this has lost something to a sink; by more than the
steps between numbers near 1 where those are larger (bfloat16)."""


def maps(calls: Sequence[Call]) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Weights `[L B H Tq Tk]`, 0 where forbidden, and masks `[L B 1|H Tq Tk]` of some layers."""
    _require_alike(calls)
    shape = (len(calls), *calls[0].weights.shape)
    batch, _, queries, keys = shape[1:]
    masks = []
    for call in calls:
        mask = np.ones((1, 1, 1, 1), bool) if call.allowed is None else call.allowed.numpy()
        masks.append(np.broadcast_to(mask, (batch, mask.shape[1], queries, keys)))
    if all(np.array_equal(mask, masks[0]) for mask in masks[1:]):
        allowed = np.broadcast_to(masks[0], (len(calls), *masks[0].shape))
    else:
        heads = max(mask.shape[1] for mask in masks)
        allowed = np.stack([np.broadcast_to(m, (batch, heads, queries, keys)) for m in masks])
    exact = calls[0].weights.dtype is torch.float64
    attention = np.empty(shape, np.float64 if exact else np.float32)
    for i, call in enumerate(calls):
        attention[i] = (call.weights if exact else call.weights.float()).numpy()
        attention[i][~np.broadcast_to(allowed[i], shape[1:])] = 0
    return attention, allowed


def _require_alike(calls: Sequence[Call]) -> None:
    """Raise `InputError` where maps of different sizes cannot stand in one result."""
    shapes: dict[tuple[int, ...], list[int]] = {}
    for call in calls:
        shapes.setdefault(tuple(call.weights.shape), []).append(call.layer)
    if len(shapes) > 1:
        groups = "; ".join(
            f"{','.join(map(str, group))} have [B H Tq Tk] = {list(shape)}"
            for shape, group in shapes.items()
        )
        first = ",".join(map(str, next(iter(shapes.values()))))
        raise InputError(f"the layers' maps differ in size: {groups}; --layers {first}, say")


def kept(calls: Sequence[Call], keep: Collection[str]) -> dict[str, npt.NDArray[Any]]:
    """The tensors that were asked for, `[L B …]`, but those that a family does not have."""
    turned = {step.name for call in calls for step in call.steps} & set(TURNED)
    found = [{name: _tap(call, name) for name in keep if name in TAPS} for call in calls]
    if set(keep) & set(SCORES):
        for tensors, call in zip(found, calls, strict=True):
            scores = _scores(call)
            tensors.update({name: scores[name] for name in keep if name in scores})
    for tensors, call in zip(found, calls, strict=True):
        tensors.update({name: _tap(call, name[0]) for name in keep if name in turned})
    return {
        name: np.stack([tensors[name].float().numpy() for tensors in found]) for name in found[0]
    }


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
    calls: Sequence[Call],
    query_valid: npt.NDArray[np.bool_],
    key_valid: npt.NDArray[np.bool_],
    tower: str,
) -> tuple[str, ...]:
    """What the masks that ran amount to, in words: causal, window N, padding."""
    shape = calls[0].weights.shape
    allowed = [
        np.ones(shape, bool) if c.allowed is None else np.broadcast_to(c.allowed.numpy(), shape)
        for c in calls
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
    for call, mask in zip(calls, allowed, strict=True):
        seen = mask.any(1) & real
        reach = int(np.abs(apart)[seen].max(initial=0)) + 1
        near = real & (np.abs(apart) < reach) & ((apart >= 0) | (not causal))
        if reach < query_valid.shape[1] and tower != "cross" and (seen == near).all():
            windows.setdefault(reach, []).append(call.layer)
    for reach, where in windows.items():
        some = (
            ""
            if len(where) == len(calls)
            else f" in {noun_for(len(where), 'layer')} {','.join(map(str, where))}"
        )
        names.append(f"window {reach}{some}")
    if not key_valid.all() and _never(allowed, query_valid[:, :, None] & ~key_valid[:, None]):
        names.append("padding")
    return tuple(names)


def _never(allowed: Sequence[npt.NDArray[np.bool_]], cells: npt.NDArray[np.bool_]) -> bool:
    """Whether no layer and head allows any of `cells` `[B Tq Tk]`, of which there are some."""
    return bool(cells.any()) and not any((mask & cells[:, None]).any() for mask in allowed)


def remarks(result: Attention) -> list[str]:
    """What a person should know of these maps: what is no number, what sinks take."""
    for number, maps_of_layer in zip(result.layer_numbers, result.attention, strict=True):
        odd = [bool(np.isnan(maps_of_layer[:, head]).any()) for head in range(result.n_heads)]
        if any(odd):
            said = (
                f"weights are NaN from layer {number} on, there in {sum(odd)} of {len(odd)} heads"
            )
            reach = "; float16 ends at 65504, --dtype float32 goes further"
            return [said + reach * (result.config["dtype"] == "float16")]
    sees = result.allowed.any(-1) & result.query_valid[:, None]  # L B 1|H Tq
    lost = 1 - result.attention.sum(-1, dtype=np.float64)
    lost = np.where(np.broadcast_to(sees, lost.shape), lost, 0.0)
    count = np.broadcast_to(sees, lost.shape).sum((1, 3)).clip(1)
    means = lost.sum((1, 3)) / count  # L H
    steps = torch.finfo(getattr(torch, result.config["dtype"])).eps
    if lost.max(initial=0) <= max(BEYOND_ROUNDING, steps):
        return []
    layer, head = np.unravel_index(int(means.argmax()), means.shape)
    return [
        f"rows sum to less than 1: learned sinks take the rest, {means.mean():.3f} of a row on the "
        f"mean, {means.max():.3f} in layer {result.layer_numbers[layer]} head {head}"
    ]
