"""Attention of modules with code of their own: what their softmax gives, seen as it runs.

Families older than transformers' attention interface (DeBERTa, MPNet, Bloom, Falcon, XLNet …)
compute attention in their own lines. Inside such a module each call of softmax is watched; one
along the keys of `[B H Tq Tk]` scores gives the weights, before dropout, and the scores' most
negative numbers are the mask.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnviz.config import HEAD_COUNTS, first_number

FORBIDDING = -1e4
"""A number as low as this, added to a score, gives weight 0; models use this or a lower one."""

Function = Callable[..., Any]

SOFTMAX: tuple[Function, ...] = (torch.softmax, Tensor.softmax, nn.functional.softmax)
SDPA: Function = nn.functional.scaled_dot_product_attention
MULTIHEAD: Function = nn.functional.multi_head_attention_forward


@dataclass
class Sight:
    """One attention as it was seen: weights `[… Tq Tk]`, where a query may look, q, k, v."""

    weights: Tensor
    allowed: Tensor
    q: Tensor | None = None
    k: Tensor | None = None
    v: Tensor | None = None
    scale: float | None = None


@dataclass
class Spy(TorchFunctionMode):
    """While active, remembers each attention that torch computes.

    `pieces` counts softmaxes over more axes than batch, heads, queries and keys: blocks of a map.
    """

    sights: list[Sight] = field(default_factory=list)
    pieces: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(
        self,
        func: Function,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func in SOFTMAX:
            self._see_softmax(result, *args, **kwargs)
        elif func is SDPA:
            with torch.no_grad():
                self._see_sdpa(*args, **kwargs)
        elif func is MULTIHEAD:
            with torch.no_grad():
                self._see_multihead(*args, **kwargs)
        return result

    def _see_softmax(
        self, result: Tensor, input: Tensor, dim: int | None = None, *_: object, **__: object
    ) -> None:
        if dim not in (-1, result.ndim - 1):
            return
        if result.ndim > 4:
            self.pieces += 1
        elif result.ndim > 2:
            self.sights.append(Sight(result.detach(), input.detach() > FORBIDDING))

    def _see_sdpa(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,  # noqa: ARG002 - weights are those before dropout
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        scale = 1 / sqrt(query.shape[-1]) if scale is None else scale
        keys = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3) if enable_gqa else key
        scores = query @ keys.transpose(-1, -2) * scale
        if is_causal:  # torch counts from the upper left corner
            scores = scores.masked_fill(
                ~torch.ones_like(scores, dtype=torch.bool).tril(), -torch.inf
            )
        if attn_mask is not None and attn_mask.dtype is torch.bool:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        allowed = scores > FORBIDDING
        weights = scores.softmax(-1).masked_fill(~allowed, 0.0)
        self.sights.append(Sight(weights, allowed, query, key, value, scale))

    def _see_multihead(self, *args: Any, **kwargs: Any) -> None:
        """What a subclass of `nn.MultiheadAttention` calls: once more, for its weights alone."""
        given = inspect.signature(MULTIHEAD).bind(*args, **kwargs)
        asked = given.arguments
        asked.update(need_weights=True, average_attn_weights=False, training=False)
        weights = MULTIHEAD(*given.args, **given.kwargs)[1]
        weights = weights if weights.ndim == 4 else weights[None]
        allowed = allowed_by(weights, asked.get("attn_mask"), asked.get("key_padding_mask"))
        every = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=weights.device)
        open_ = every if allowed is None else allowed
        self.sights.append(Sight(weights, open_.expand_as(weights)))


def with_heads(tensor: Tensor, module: nn.Module) -> Tensor | None:
    """`tensor` as `[B H Tq Tk]`; `[B·H Tq Tk]` is cut by the module's own number of heads.

    None where that number is another: axes that are not what they seem.
    """
    heads = first_number(module, HEAD_COUNTS) or None
    if tensor.ndim == 4:
        return tensor if heads in (None, tensor.shape[1]) else None
    if heads is None or len(tensor) % heads:
        return None
    return tensor.view(-1, heads, *tensor.shape[1:])


def allowed_by(weights: Tensor, mask: Tensor | None, padding: Tensor | None) -> Tensor | None:
    """The masks of `nn.MultiheadAttention` as one: bool, True where a query may look."""
    allowed: Tensor | None = None
    for given in (mask, padding):
        if given is None:
            continue
        open_ = ~given if given.dtype is torch.bool else given > FORBIDDING
        if given is padding:
            open_ = open_.view(-1, 1, 1, open_.shape[-1])
        else:  # Tq Tk, or B·H Tq Tk
            open_ = open_.view(1, 1, *open_.shape) if open_.ndim == 2 else open_
            open_ = open_.view(-1, weights.shape[1] if len(open_) > 1 else 1, *open_.shape[-2:])
        allowed = open_ if allowed is None else allowed & open_
    if allowed is None:
        return None
    # extra keys (bias_k, zero_attn) stand at the end, open to all
    return nn.functional.pad(allowed, (0, weights.shape[-1] - allowed.shape[-1]), value=True)
