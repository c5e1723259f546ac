"""Scaled dot-product and multi-head attention (Vaswani et al. 2017, sections 3.2.1 and 3.2.2).

Axis order is always batch, head, query, key: B H Tq Tk. Each reshape carries its shape.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn

from attnviz.config import AttentionConfig
from attnviz.errors import InputError
from attnviz.positions import sinusoidal
from attnviz.trace import Tap, ignore

SCORE_SPREAD = 2.0
"""Standard deviation that untrained scores are given, so that heads look at something."""

INPUT_VARIANCE = {"sinusoidal": 1.5, "none": 1.0}
"""Of each of an input's d_model numbers: a normal embedding has 1, sines and cosines add 1/2."""


def scaled_dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None = None, tap: Tap = ignore
) -> tuple[Tensor, Tensor]:
    """softmax(q kᵀ / √d_k) v, equation 1 of the paper, with the weights beside the result.

    Args:
        q: `[B H Tq d_k]`, k: `[B H Tk d_k]`, v: `[B H Tk d_v]`.
        allowed: bool, `[Tq Tk]` or `[B H Tq Tk]`, where an axis may have length 1 and is then the
            same for all; True lets a query see a key. None: every query sees every key.
        tap: called with each tensor on the way.

    Returns:
        (context `[B H Tq d_v]`, weights `[B H Tq Tk]`). A forbidden weight is exactly 0. A query
        that may see nothing has weights and context of zeros, as in
        `torch.nn.functional.scaled_dot_product_attention`. A NaN or infinity in a key or value
        reaches the queries that may see it, and no others. Products are scaled after they are
        made, as equation 1 has it: in float16 one beyond 65504 is infinite, and its row NaN.

    Raises:
        InputError: `allowed` is not boolean, or does not fit; both shapes are named by axis.
    """
    products = q @ k.transpose(-2, -1)  # B H Tq d_k @ B H d_k Tk -> B H Tq Tk
    tap("products", "B H Tq Tk", products, sums_over="d_k")
    scores = products / sqrt(q.shape[-1])
    tap("scores", "B H Tq Tk", scores, flops_each=1)
    if allowed is None:
        weights = scores.softmax(-1)
    else:
        tap("allowed", _mask_axes(allowed, scores), allowed)
        forbidden = ~allowed
        masked = scores.masked_fill(forbidden, -torch.inf)
        tap("masked_scores", "B H Tq Tk", masked, flops_each=1)
        # a row of -inf alone, or with a NaN in it, has a softmax that is NaN everywhere
        weights = masked.softmax(-1).masked_fill(forbidden, 0.0)
    tap("weights", "B H Tq Tk", weights, flops_each=5)
    context = weights @ v  # B H Tq Tk @ B H Tk d_v -> B H Tq d_v
    if allowed is not None and not (v.amax() - v.amin()).isfinite():  # no copy of v, as isfinite(v)
        context = _shielded(weights, v, allowed)
    tap("context", "B H Tq d_v", context, sums_over="Tk")
    return context, weights


def _mask_axes(allowed: Tensor, scores: Tensor) -> str:
    """The axes of a mask that fits `scores`, by name; an axis that is the same for all is `1`."""
    if allowed.dtype is not torch.bool:
        kind = str(allowed.dtype).removeprefix("torch.")
        raise InputError(
            f"the mask is {kind}; bool is expected, True where a query may look: mask == 1 where 1 "
            "means that, mask == 0 where the mask is one to add to the scores"
        )
    if allowed.ndim not in (2, 4):
        hint = ": mask[:, None] adds the head axis to [B Tq Tk]" if allowed.ndim == 3 else ""
        raise InputError(
            f"the mask has shape {list(allowed.shape)}; [Tq Tk] or [B H Tq Tk] is expected{hint}"
        )
    names = ("B", "H", "Tq", "Tk")[-allowed.ndim :]
    axes = list(zip(names, allowed.shape, scores.shape[-allowed.ndim :], strict=True))
    wrong = [f"{name} {size} ≠ {full}" for name, size, full in axes if size not in (1, full)]
    if wrong:
        given = " ".join(f"{name}={size}" for name, size, _ in axes)
        expected = " ".join(f"{name}={full}" for name, _, full in axes)
        raise InputError(f"the mask is [{given}], the scores are [{expected}]: {', '.join(wrong)}")
    # one mask for all heads is 1 even where there is one head; other axes go by their length
    return " ".join(n if size == full and (n != "H" or size > 1) else "1" for n, size, full in axes)


def _shielded(weights: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    """weights @ v for a v with NaN or infinity in it, which reaches only rows that may see it.

    A forbidden weight is 0, but 0 · NaN is NaN, so a matrix product alone would let it through.
    """
    allowed = allowed.expand_as(weights)
    broken = ~torch.isfinite(v)
    context = weights @ v.masked_fill(broken, 0.0)
    for key in broken.any(-1).flatten(0, -2).any(0).nonzero().flatten().tolist():
        sees = allowed[..., key, None] & broken[..., None, key, :]  # B H Tq 1 & B H 1 d_v
        harm = weights[..., key, None] * v[..., None, key, :]
        context = torch.where(sees, context + harm, context)
    return context


class Projection(nn.Module):
    """x Wᵀ + b, as `nn.Linear` has it, with W normal of a given spread, drawn from a generator.

    `nn.Linear` would draw twice, and from the global generator. The draw is in float64, so that a
    layer has the same numbers, rounded, in every dtype; the bias is 0.
    """

    def __init__(
        self, inputs: int, outputs: int, spread: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        drawn = torch.randn(outputs, inputs, generator=generator, dtype=torch.float64)
        self.weight = nn.Parameter(drawn.mul_(spread))
        self.bias = nn.Parameter(torch.zeros(outputs, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


class MultiHeadAttention(nn.Module):
    """n_heads attentions side by side, with residual and LayerNorm: section 3.2.2 and figure 2.

    head_i = Attention(x W_Qi, y W_Ki, y W_Vi); output = LayerNorm(x + Concat(head_i) W_O).
    `w_q`, `w_k`, `w_v` and `w_o` hold all heads, heads slowest: rows i·d_k … (i+1)·d_k of `w_q`
    are head i. With `config.n_kv_heads` fewer key/value heads, each serves a group of neighbours.

    A new layer is untrained. Its numbers come from `config.seed` alone: W_Q and W_K are normal
    with a variance that gives scores a standard deviation of about `SCORE_SPREAD` (PyTorch's own
    default gives about 0.5, and nearly uniform maps); W_V and W_O are normal with variance
    1 / inputs, which keeps the size of what flows through; biases are 0.
    """

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        self.config = config
        d_model, n_heads, d_k, d_v = config.d_model, config.n_heads, config.d_k, config.d_v
        generator = torch.Generator().manual_seed(config.seed)
        # Var(q) = d_model · Var(W) · Var(x), and Var(score) = Var(q) · Var(k).
        query_key = sqrt(SCORE_SPREAD / INPUT_VARIANCE[config.positions] / d_model)
        self.w_q = Projection(d_model, n_heads * d_k, query_key, generator)
        self.w_k = Projection(d_model, config.n_kv_heads * d_k, query_key, generator)
        self.w_v = Projection(d_model, config.n_kv_heads * d_v, 1 / sqrt(d_model), generator)
        self.w_o = Projection(n_heads * d_v, d_model, 1 / sqrt(n_heads * d_v), generator)
        self.norm = nn.LayerNorm(d_model)
        self.to(config.device, getattr(torch, config.dtype)).eval()

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        allowed: Tensor | None = None,
        tap: Tap = ignore,
    ) -> tuple[Tensor, Tensor]:
        """(output `[B Tq d_model]`, weights `[B H Tq Tk]`) of query `[B Tq d_model]`.

        `key` `[B Tk d_model]` is `query` when left out (self attention); `value` is `key`.
        `allowed`: bool, `[Tq Tk]` or `[B 1|H Tq Tk]`, True lets a query see a key.
        """
        key = query if key is None else key
        value = key if value is None else value
        heads, groups = self.config.n_heads, self.config.n_kv_heads
        d_k, d_v = self.config.d_k, self.config.d_v
        hkv = "Hkv" if self.config.is_grouped else "H"

        q = self.w_q(query)
        tap("q_projected", "B Tq H·d_k", q, module=self.w_q, sums_over="d_model")
        q = q.unflatten(-1, (heads, d_k)).transpose(1, 2)
        tap("q", "B H Tq d_k", q)
        k = self.w_k(key)
        tap("k_projected", f"B Tk {hkv}·d_k", k, module=self.w_k, sums_over="d_model")
        k = k.unflatten(-1, (groups, d_k)).transpose(1, 2)
        tap("k", f"B {hkv} Tk d_k", k)
        v = self.w_v(value)
        tap("v_projected", f"B Tk {hkv}·d_v", v, module=self.w_v, sums_over="d_model")
        v = v.unflatten(-1, (groups, d_v)).transpose(1, 2)
        tap("v", f"B {hkv} Tk d_v", v)
        if self.config.is_grouped:  # each key/value head serves the query heads of its group
            k = k.repeat_interleave(heads // groups, dim=1)
            tap("k_repeated", "B H Tk d_k", k)
            v = v.repeat_interleave(heads // groups, dim=1)
            tap("v_repeated", "B H Tk d_v", v)

        context, weights = scaled_dot_product_attention(q, k, v, allowed, tap)

        # B H Tq d_v -> B Tq H d_v -> B Tq H·d_v. contiguous() would copy as well, but for one head.
        heads_last = context.transpose(1, 2).clone(memory_format=torch.contiguous_format)
        merged = heads_last.flatten(-2)
        tap("merged", "B Tq H·d_v", merged)
        projected = self.w_o(merged)
        tap("projected", "B Tq d_model", projected, module=self.w_o, sums_over="H·d_v")
        residual = projected + query
        tap("residual", "B Tq d_model", residual, flops_each=1)
        output: Tensor = self.norm(residual)
        tap("output", "B Tq d_model", output, module=self.norm, flops_each=8)
        return output, weights


class Embedding(nn.Module):
    """Token ids `[B T]` → vectors `[B T d_model]`: a table, and the position added where wanted.

    Untrained: the table is standard normal, drawn from `config.seed`, a row for each token of the
    vocabulary. That is the paper's embedding times √d_model (section 3.4) in one step.
    """

    def __init__(self, config: AttentionConfig, n_tokens: int) -> None:
        super().__init__()
        self.config = config
        generator = torch.Generator().manual_seed(config.seed ^ 0x5EED)  # apart from the layer's
        # In sixteens, as torch draws: the last, incomplete ones would be drawn differently, and a
        # token's vector would depend on how many tokens come after it.
        n = n_tokens * config.d_model
        drawn = torch.randn(-(-n // 16) * 16, generator=generator, dtype=torch.float64)
        table = drawn[:n].view(n_tokens, config.d_model)
        self.weight = nn.Parameter(table.to(config.device, getattr(torch, config.dtype)))

    def forward(
        self, ids: Tensor, positions: Tensor, tap: Tap = ignore, side: str = "query"
    ) -> Tensor:
        """Vectors for `ids`, whose places in their sequences are `positions`, both `[B T]`.

        `side` ("query" or "key") only names the steps.
        """
        before, t = ("", "Tq") if side == "query" else ("key_", "Tk")
        tap(f"{before}ids", f"B {t}", ids)
        x = nn.functional.embedding(ids, self.weight)
        tap(f"{before}embedded", f"B {t} d_model", x, module=self)
        if self.config.positions == "sinusoidal":
            place = sinusoidal(positions, self.config.d_model)
            # padding stands at positions before 0 or after the end; its sinusoid is harmless
            x = x + place.to(x)
            tap(f"{side}_input", f"B {t} d_model", x, flops_each=1)
        return x
