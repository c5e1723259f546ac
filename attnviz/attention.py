"""Scaled dot-product and multi-head attention (Vaswani et al. 2017, sections 3.2.1 and 3.2.2).

Axis order is always batch, head, query, key: B H Tq Tk. Each reshape carries its shape.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from math import sqrt

import torch
from torch import Tensor, nn

from attnviz.config import AttentionConfig
from attnviz.errors import InputError
from attnviz.positions import alibi, distance_buckets, distances, rotated, sinusoidal
from attnviz.trace import Tap, ignore

SCORE_SPREAD = 2.0
"""Standard deviation that untrained scores are given, so that heads look at something."""

INPUT_VARIANCE = {"sinusoidal": 1.5}
"""Of each of an input's d_model numbers: a normal embedding has 1, sines and cosines add 1/2."""


def scaled_dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    allowed: Tensor | None = None,
    tap: Tap = ignore,
    *,
    bias: Tensor | None = None,
    scaled: bool = True,
) -> tuple[Tensor, Tensor]:
    """softmax(q kᵀ / √d_k) v, equation 1 of the paper, with the weights beside the result.

    Args:
        q: `[B H Tq d_k]`, k: `[B H Tk d_k]`, v: `[B H Tk d_v]`.
        allowed: bool, `[Tq Tk]` or `[B H Tq Tk]`, where an axis may have length 1 and is then the
            same for all; True lets a query see a key. None: every query sees every key.
        tap: called with each tensor on the way.
        bias: added to the scores before the softmax, `[1|B H Tq Tk]`: ALiBi, or T5's table.
        scaled: False leaves out the division by √d_k, as T5 does.

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
    scores = products
    if scaled:
        scores = products / sqrt(q.shape[-1])
        tap("scores", "B H Tq Tk", scores, flops_each=1)
    if bias is not None:
        scores = scores + bias
        tap("biased", "B H Tq Tk", scores, flops_each=1)
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
    """x Wᵀ + b, as `nn.Linear` has it: `weight` is `[outputs inputs]`; `bias` may be absent."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


class Norm(nn.Module):
    """LayerNorm, or with `rms` RMSNorm, x / √(mean of x² + eps) · w, along the last axis."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, *, rms: bool = False, eps: float = 1e-5
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)
        self.rms, self.eps = rms, eps

    def forward(self, x: Tensor) -> Tensor:
        if self.rms:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight
        return nn.functional.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)


class Table(nn.Module):
    """Rows of numbers that are looked up, `[rows width]`."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, rows: Tensor) -> Tensor:
        return nn.functional.embedding(rows, self.weight)


def untrained(config: AttentionConfig) -> dict[str, Tensor]:
    """The weights of a new layer, drawn from `config.seed` alone.

    W_Q and W_K are normal with a variance that gives scores a standard deviation of about
    `SCORE_SPREAD` (PyTorch's own default gives about 0.5, and nearly uniform maps); W_V and W_O are
    normal with variance 1 / inputs, which keeps the size of what flows through; biases are 0. The
    draws are in float64, so that a layer has the same numbers, rounded, in every dtype.
    """
    d_model, of_values = config.d_model, config.n_heads * config.d_v
    # Var(q) = d_model · Var(W) · Var(x), and Var(score) = Var(q) · Var(k).
    query_key = sqrt(SCORE_SPREAD / INPUT_VARIANCE.get(config.positions, 1.0) / d_model)
    matrices = {
        "w_q": (config.n_heads * config.d_k, d_model, query_key),
        "w_k": (config.n_kv_heads * config.d_k, d_model, query_key),
        "w_v": (config.n_kv_heads * config.d_v, d_model, 1 / sqrt(d_model)),
        "w_o": (d_model, of_values, 1 / sqrt(of_values)),
    }
    generator = torch.Generator().manual_seed(config.seed)
    like = {"dtype": getattr(torch, config.dtype), "device": config.device}
    weights = {}
    for name, (outputs, inputs, spread) in matrices.items():
        drawn = torch.randn(outputs, inputs, generator=generator, dtype=torch.float64).mul_(spread)
        weights[f"{name}.weight"] = drawn.to(**like)
        weights[f"{name}.bias"] = torch.zeros(outputs, **like)
    weights["norm.weight"] = torch.ones(d_model, **like)
    weights["norm.bias"] = torch.zeros(d_model, **like)
    return weights


class MultiHeadAttention(nn.Module):
    """n_heads attentions side by side, with residual and LayerNorm: section 3.2.2 and figure 2.

    head_i = Attention(x W_Qi, y W_Ki, y W_Vi); output = LayerNorm(x + Concat(head_i) W_O).
    `w_q`, `w_k`, `w_v` and `w_o` hold all heads, heads slowest: rows i·d_k … (i+1)·d_k of `w_q`
    are head i. With `config.n_kv_heads` fewer key/value heads, each serves a group of neighbours.
    `config.variant` says what a trained layer does otherwise.

    Args:
        weights: by the names of `state_dict`. `w_q.weight` `[H·d_k d_model]`, `w_k.weight` and
            `w_v.weight` have to be there; `w_o.weight`, biases, `norm.*` and what some layers have
            besides: `norm_q.weight` and `norm_k.weight` `[d_k]`, `bias_k` `[Hkv·d_k]` and `bias_v`
            (a key and a value that are no token's), `distances.weight` `[R H]` (T5's table). Left
            out, the layer is a new one, `untrained`.
    """

    def __init__(
        self, config: AttentionConfig, weights: Mapping[str, Tensor] | None = None
    ) -> None:
        super().__init__()
        self.config = config
        w = untrained(config) if weights is None else weights
        variant = config.variant

        def norm(name: str, rms: bool) -> Norm | None:
            weight, bias = w.get(f"{name}.weight"), w.get(f"{name}.bias")
            return None if weight is None else Norm(weight, bias, rms=rms, eps=variant.eps)

        self.w_q = Projection(w["w_q.weight"], w.get("w_q.bias"))
        self.w_k = Projection(w["w_k.weight"], w.get("w_k.bias"))
        self.w_v = Projection(w["w_v.weight"], w.get("w_v.bias"))
        self.w_o = Projection(w["w_o.weight"], w.get("w_o.bias")) if "w_o.weight" in w else None
        self.norm = norm("norm", variant.rms_norm)
        self.norm_q, self.norm_k = norm("norm_q", True), norm("norm_k", True)
        self.bias_k = nn.Parameter(w["bias_k"]) if "bias_k" in w else None
        self.bias_v = nn.Parameter(w["bias_v"]) if "bias_v" in w else None
        self.distances = Table(w["distances.weight"]) if "distances.weight" in w else None
        self.eval()

    @property
    def extra_keys(self) -> int:
        """Keys beside those of the tokens; they stand at the end, and no mask forbids them."""
        return (self.bias_k is not None) + self.config.variant.zero_key

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        allowed: Tensor | None = None,
        tap: Tap = ignore,
        positions: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(output `[B Tq d_model]`, weights `[B H Tq Tk]`) of query `[B Tq d_model]`.

        `key` `[B Tk d_model]` is `query` when left out (self attention); `value` is `key`.
        `allowed`: bool, `[Tq Tk]` or `[B 1|H Tq Tk]`, True lets a query see a key. `positions` of
        queries `[1|B Tq]` and keys `[1|B Tk]` count from 0 when left out. With `extra_keys`, Tk of
        the weights has so many more. Without `w_o`, the output is the heads side by side.
        """
        at = self._places(query, query if key is None else key, positions)
        q, k, v = self.project(query, key, value, at, tap)
        context, weights = self.attend(q, k, v, allowed, at, tap)
        return self.finish(context, query, tap), weights

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        allowed: Tensor | None,
        positions: tuple[Tensor, Tensor],
        tap: Tap = ignore,
    ) -> tuple[Tensor, Tensor]:
        """(context `[B H Tq d_v]`, weights `[B H Tq Tk]`) of what `project` gives.

        `allowed` and `positions` are those of `forward`.
        """
        heads, extra = self.config.n_heads, self.extra_keys
        if extra and allowed is not None:
            allowed = nn.functional.pad(allowed, (0, extra), value=True)
        if self.config.is_grouped:  # each key/value head serves the query heads of its group
            k = k.repeat_interleave(heads // self.config.n_kv_heads, dim=1)
            tap("k_repeated", "B H Tk d_k", k)
            v = v.repeat_interleave(heads // self.config.n_kv_heads, dim=1)
            tap("v_repeated", "B H Tk d_v", v)

        bias = self._position_bias(*positions, tap)
        return scaled_dot_product_attention(
            q, k, v, allowed, tap, bias=bias, scaled=self.config.variant.scaled
        )

    def project(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        positions: tuple[Tensor, Tensor] | None = None,
        tap: Tap = ignore,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q `[B H Tq d_k]`, k `[B Hkv Tk d_k]`, v `[B Hkv Tk d_v]`: all that comes before a score.

        Arguments are those of `forward`.
        """
        is_self = key is None
        key = query if key is None else key
        value = key if value is None else value
        config, variant = self.config, self.config.variant
        heads, groups, d_k, d_v = config.n_heads, config.n_kv_heads, config.d_k, config.d_v
        hkv = "Hkv" if config.is_grouped else "H"
        ts = "Ts" if self.extra_keys else "Tk"
        q_at, k_at = self._places(query, key, positions)

        if self.norm is not None and variant.norm in ("before", "queries"):
            query = self.norm(query)
            tap("normed", "B Tq d_model", query, module=self.norm, flops_each=8)
            if is_self:
                key = value = query
            elif variant.norm == "before":
                key = value = self.norm(key)
                tap("key_normed", f"B {ts} d_model", key, module=self.norm, flops_each=8)

        q = self.w_q(query)
        tap("q_projected", "B Tq H·d_k", q, module=self.w_q, sums_over="d_model")
        q = q.unflatten(-1, (heads, d_k)).transpose(1, 2)
        tap("q", "B H Tq d_k", q)
        k = self.w_k(key)
        width = "d_key" if variant.d_key else "d_model"
        tap("k_projected", f"B {ts} {hkv}·d_k", k, module=self.w_k, sums_over=width)
        k = k.unflatten(-1, (groups, d_k)).transpose(1, 2)
        tap("k", f"B {hkv} {ts} d_k", k)
        v = self.w_v(value)
        width = "d_value" if variant.d_value else "d_model"
        tap("v_projected", f"B {ts} {hkv}·d_v", v, module=self.w_v, sums_over=width)
        v = v.unflatten(-1, (groups, d_v)).transpose(1, 2)
        tap("v", f"B {hkv} {ts} d_v", v)
        if self.norm_q is not None and self.norm_k is not None:
            q, k = self.norm_q(q), self.norm_k(k)
            tap("q_normed", "B H Tq d_k", q, module=self.norm_q, flops_each=5)
            tap("k_normed", f"B {hkv} {ts} d_k", k, module=self.norm_k, flops_each=5)
        if config.positions == "rope":
            q, k = rotated(q, q_at, variant.rotary), rotated(k, k_at, variant.rotary)
            tap("q_rotated", "B H Tq d_k", q, flops_each=3)
            tap("k_rotated", f"B {hkv} {ts} d_k", k, flops_each=3)
        if self.extra_keys:
            k, v = self._extended(k, self.bias_k), self._extended(v, self.bias_v)
            tap("k_extended", f"B {hkv} Tk d_k", k)
            tap("v_extended", f"B {hkv} Tk d_v", v)
        return q, k, v

    def distance_table(self) -> Tensor | None:
        """What distance adds to the scores, `[H 2F+1]`: see `Scores.distances`; None: nothing."""
        if self.distances is None:
            return None
        furthest, variant = self.config.variant.furthest, self.config.variant
        apart = torch.arange(-furthest, furthest + 1)
        n_buckets = len(self.distances.weight)
        rows = distance_buckets(apart, n_buckets, furthest, variant.buckets_both_ways)
        found: Tensor = self.distances(rows.to(self.distances.weight.device))
        return found.T

    def finish(self, context: Tensor, query: Tensor, tap: Tap = ignore) -> Tensor:
        """The output `[B Tq d_model]` of context `[B H Tq d_v]`: all that comes after the weights.

        `query` is what `forward` was given.
        """
        # B H Tq d_v -> B Tq H d_v -> B Tq H·d_v. contiguous() would copy as well, but for one head.
        heads_last = context.transpose(1, 2).clone(memory_format=torch.contiguous_format)
        merged = heads_last.flatten(-2)
        tap("merged", "B Tq H·d_v", merged)
        if self.w_o is None:
            return merged
        output: Tensor = self.w_o(merged)
        tap("projected", "B Tq d_model", output, module=self.w_o, sums_over="H·d_v")
        variant = self.config.variant
        if variant.norm == "none":
            return output
        output = output + query
        tap("residual", "B Tq d_model", output, flops_each=1)
        if variant.norm == "after" and self.norm is not None:
            output = self.norm(output)
            tap("output", "B Tq d_model", output, module=self.norm, flops_each=8)
        return output

    def _places(
        self, query: Tensor, key: Tensor, positions: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        """Positions of queries `[1|B Tq]` and keys `[1|B Tk]`; they count from 0 when left out."""
        if positions is not None:
            return positions
        q_at, k_at = (torch.arange(x.shape[1], device=x.device)[None] for x in (query, key))
        return q_at, k_at

    def _extended(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """`x` `[B Hkv Ts d]` with the keys or values that are no token's at the end."""
        batch, groups, _, width = x.shape
        parts = [x]
        if bias is not None:
            parts.append(bias.view(groups, 1, width).expand(batch, -1, -1, -1))
        if self.config.variant.zero_key:
            parts.append(x.new_zeros(batch, groups, 1, width))
        return torch.cat(parts, dim=2)

    def _position_bias(self, queries: Tensor, keys: Tensor, tap: Tap) -> Tensor | None:
        """What places add to the scores, `[1|B H Tq Tk]`."""
        if self.distances is None and self.config.positions != "alibi":
            return None
        apart = distances(queries, keys)
        batch, like = ("B" if len(apart) > 1 else "1"), self.w_q.weight
        if self.distances is None:
            bias = alibi(apart, self.config.n_heads).to(like)
            if self.extra_keys:  # which stand nowhere
                bias = nn.functional.pad(bias, (0, self.extra_keys))
            tap("alibi", f"{batch} H Tq Tk", bias, flops_each=1)
            return bias
        variant, n_buckets = self.config.variant, len(self.distances.weight)
        rows = distance_buckets(apart, n_buckets, variant.furthest, variant.buckets_both_ways)
        found: Tensor = self.distances(rows.to(like.device))
        if self.extra_keys:
            found = nn.functional.pad(found, (0, 0, 0, self.extra_keys))
        tap("position_bias", f"{batch} Tq Tk H", found, module=self.distances, rows="R")
        return torch.movedim(found, -1, 1)


class Embedding(nn.Module):
    """Token ids `[B T]` → vectors `[B T d_model]`: a table, and the position added where wanted.

    Args:
        weights: `weight` `[V d_model]`, and what BERT and GPT-2 have besides: `places` `[P
            d_model]`, a row for each position, `kind` `[d_model]`, the row of token type 0, and
            `norm.weight`, `norm.bias`. Left out, the table has `n_tokens` rows of standard normal
            numbers, drawn from `config.seed`: the paper's embedding times √d_model (section 3.4)
            in one step.
    """

    def __init__(
        self,
        config: AttentionConfig,
        n_tokens: int,
        weights: Mapping[str, Tensor] | None = None,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.config = config
        w = {"weight": self._drawn(n_tokens)} if weights is None else weights
        self.weight = nn.Parameter(w["weight"])
        self.places = w.get("places")
        self.kind = w.get("kind")
        scale = w.get("norm.weight")
        self.norm = None if scale is None else Norm(scale, w.get("norm.bias"), eps=eps)

    @property
    def n_places(self) -> int | None:
        """The length of the longest text that it can place; None where any will do."""
        return None if self.places is None else len(self.places)

    def _drawn(self, n_tokens: int) -> Tensor:
        generator = torch.Generator().manual_seed(
            self.config.seed ^ 0x5EED
        )  # apart from the layer's
        # In sixteens, as torch draws: the last, incomplete ones would be drawn differently, and a
        # token's vector would depend on how many tokens come after it.
        n = n_tokens * self.config.d_model
        drawn = torch.randn(-(-n // 16) * 16, generator=generator, dtype=torch.float64)
        table = drawn[:n].view(n_tokens, self.config.d_model)
        return table.to(self.config.device, getattr(torch, self.config.dtype))

    def forward(
        self, ids: Tensor, positions: Tensor, tap: Tap = ignore, side: str = "query"
    ) -> Tensor:
        """Vectors for `ids`, whose places in their sequences are `positions`, both `[B T]`.

        `side` ("query" or "key") only names the steps.
        """
        before, t = ("", "Tq") if side == "query" else ("key_", "Tk")
        tap(f"{before}ids", f"B {t}", ids)
        x = nn.functional.embedding(ids, self.weight)
        tap(f"{before}embedded", f"B {t} d_model", x, module=Table(self.weight))
        if self.config.positions == "sinusoidal":
            place = sinusoidal(positions, self.config.d_model)
            # padding stands at positions before 0 or after the end; its sinusoid is harmless
            x = x + place.to(x)
            tap(f"{side}_input", f"B {t} d_model", x, flops_each=1)
        if self.places is not None:
            rows = positions.clamp(0, len(self.places) - 1).to(self.places.device)
            x = x + nn.functional.embedding(rows, self.places)
            tap(f"{side}_placed", f"B {t} d_model", x, flops_each=1)
        if self.kind is not None:
            x = x + self.kind
            tap(f"{side}_typed", f"B {t} d_model", x, flops_each=1)
        if self.norm is not None:
            x = self.norm(x)
            tap(f"{side}_embedding_normed", f"B {t} d_model", x, module=self.norm, flops_each=8)
        return x


def vector_of_word(word: str, config: AttentionConfig) -> Tensor:
    """A standard normal vector `[d_model]` that depends on the word and the seed alone."""
    digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=7).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") ^ config.seed)
    drawn = torch.randn(config.d_model, generator=generator, dtype=torch.float64)
    return drawn.to(config.device, getattr(torch, config.dtype))
