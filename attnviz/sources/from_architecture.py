"""The steps of a real architecture's attention, from a small layer of its kind that really runs.

As in `from_config.shadow_steps`, every axis has a size that no other one shares; a tensor's shape
then names its axes, and `Step.at` puts the architecture's own sizes in.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn

from attnviz.architectures import Architecture, LayerKind
from attnviz.attention import Norm, scaled_dot_product_attention
from attnviz.config import Rotary, check_size, choice
from attnviz.positions import rotated
from attnviz.trace import Recorder, Step, Tap, ignore

GROUP = 3
"""Query heads to a key/value head in the small layer."""

SHADOW_SIZES = {
    "B": 11,
    "H": 13 * GROUP,
    "Hkv": 13,
    "Tq": 17,
    "Tk": 19,
    "d_k": 2 * 23,  # even, since rotary positions turn pairs
    "d_v": 29,
    "d_model": 31,
    "R": 37,
}
"""No two axes have the same size. R is the number of rows of T5's table of position biases."""


def architecture_steps(
    architecture: Architecture,
    batch: int,
    queries: int,
    keys: int | None = None,
    kind: str | None = None,
) -> tuple[Step, ...]:
    """The attention of one layer, norm to residual, for `batch` sequences of `queries` tokens.

    `keys` differs from `queries` in cross attention, and where a cache holds earlier tokens; left
    out, it is `queries`. `kind` is one of the architecture's layer kinds, by default the first.
    Sliding and global layers have the same steps: their masks differ, not their shapes.
    """
    check_size("batch", batch)
    check_size("queries", queries)
    check_size("keys", queries if keys is None else keys)
    kinds = {each.name: each for each in architecture.kinds}
    chosen = kinds[choice("layer kind", kind or architecture.kinds[0].name, tuple(kinds))]
    sizes = _small_sizes(architecture)
    recorder = Recorder(sizes)
    dtype = getattr(torch, architecture.dtype or "float32")
    layer = ArchitectureLayer(architecture, chosen, sizes).to(dtype)
    with torch.no_grad():
        x = torch.zeros(sizes["B"], sizes["Tq"], sizes["d_model"], dtype=dtype)
        y = torch.zeros(sizes["B"], sizes["Tk"], sizes["d_model"], dtype=dtype)
        allowed = torch.ones(sizes["B"], 1, sizes["Tq"], sizes["Tk"], dtype=torch.bool)
        layer(x, y, allowed, recorder)
    true = {
        "B": batch,
        "H": architecture.n_heads,
        "Hkv": architecture.n_kv_heads,
        "Tq": queries,
        "Tk": queries if keys is None else keys,
        "d_k": architecture.head_dim,
        "d_v": architecture.head_dim,
        "d_model": architecture.d_model,
        "R": architecture.buckets,
        "d_qkv": (architecture.n_heads + 2 * architecture.n_kv_heads) * architecture.head_dim,
    }
    return tuple(step.at(true) for step in recorder.steps)


def _small_sizes(architecture: Architecture) -> dict[str, int]:
    sizes = dict(SHADOW_SIZES)
    if not architecture.grouped:
        del sizes["Hkv"]  # the key/value heads are the heads, and so are their names
    if architecture.fused:
        keys = sizes.get("Hkv", sizes["H"])
        wide = sizes["H"] * sizes["d_k"] + keys * (sizes["d_k"] + sizes["d_v"])
        sizes["d_qkv"] = wide
    return sizes


def _norm(size: int, rms: bool) -> Norm:
    if rms:
        return Norm(torch.ones(size), rms=True, eps=1e-6)
    return Norm(torch.ones(size), torch.zeros(size))


class ArchitectureLayer(nn.Module):
    """One attention with its norm and residual, as `architecture` has it, at the sizes given.

    Queries and keys come in apart, although self attention has them from one tensor: their
    numbers have to be told apart in a trace.
    """

    def __init__(self, architecture: Architecture, kind: LayerKind, sizes: dict[str, int]) -> None:
        super().__init__()
        self.architecture, self.kind = architecture, kind
        self.heads = sizes["H"]
        self.kv_heads = sizes.get("Hkv", self.heads)
        self.d_k, self.d_v = sizes["d_k"], sizes["d_v"]
        d_model = sizes["d_model"]
        widths = [self.heads * self.d_k, self.kv_heads * self.d_k, self.kv_heads * self.d_v]
        biased = architecture.biases
        if architecture.fused:
            self.w_qkv = nn.Linear(d_model, sum(widths), bias="q" in biased)
        else:
            self.w_q = nn.Linear(d_model, widths[0], bias="q" in biased)
            self.w_k = nn.Linear(d_model, widths[1], bias="k" in biased)
            self.w_v = nn.Linear(d_model, widths[2], bias="v" in biased)
        self.widths = widths
        self.w_o = nn.Linear(self.heads * self.d_v, d_model, bias="o" in biased)
        rms = architecture.norm == "RMSNorm"
        self.norm = _norm(d_model, rms)
        if architecture.norm_at == "both":
            self.norm_after = _norm(d_model, rms)
        if architecture.qk_norm:
            self.norm_q, self.norm_k = _norm(self.d_k, rms=True), _norm(self.d_k, rms=True)
        if architecture.buckets and kind.role == "self":
            self.bias_table = nn.Embedding(sizes["R"], self.heads)

    def forward(self, x: Tensor, y: Tensor, allowed: Tensor, tap: Tap = ignore) -> Tensor:
        """Output `[B Tq d_model]` of queries of `x` `[B Tq d_model]`, keys of `y` `[B Tk d_model]`.

        `allowed`: bool, broadcastable to `[B H Tq Tk]`; True lets a query see a key.
        """
        architecture = self.architecture
        hkv = "Hkv" if architecture.grouped else "H"
        source = x
        if architecture.norm_at != "after":
            x = self.norm(x)
            tap("normed", "B Tq d_model", x, module=self.norm, flops_each=8)
            # a decoder's cross attention reads the encoder's output as it is
            y = y if self.kind.role == "cross" else self.norm(y)

        q, k, v = self._project(x, y, hkv, tap)
        q = q.view(*q.shape[:-1], self.heads, self.d_k).transpose(1, 2)
        tap("q", "B H Tq d_k", q)
        k = k.view(*k.shape[:-1], self.kv_heads, self.d_k).transpose(1, 2)
        tap("k", f"B {hkv} Tk d_k", k)
        v = v.view(*v.shape[:-1], self.kv_heads, self.d_v).transpose(1, 2)
        tap("v", f"B {hkv} Tk d_v", v)
        if architecture.qk_norm:
            q, k = self.norm_q(q), self.norm_k(k)
            tap("q_normed", "B H Tq d_k", q, module=self.norm_q, flops_each=5)
            tap("k_normed", f"B {hkv} Tk d_k", k, module=self.norm_k, flops_each=5)
        if architecture.rotary_dim:
            turned = Rotary()  # a base, and how many numbers are turned, change no shape
            q = rotated(q, torch.arange(q.shape[2])[None], turned)
            k = rotated(k, torch.arange(k.shape[2])[None], turned)
            tap("q_rotated", "B H Tq d_k", q, flops_each=3)
            tap("k_rotated", f"B {hkv} Tk d_k", k, flops_each=3)
        if architecture.grouped:
            k = k.repeat_interleave(self.heads // self.kv_heads, dim=1)
            tap("k_repeated", "B H Tk d_k", k)
            v = v.repeat_interleave(self.heads // self.kv_heads, dim=1)
            tap("v_repeated", "B H Tk d_v", v)

        if architecture.cap or not architecture.scaled:
            context = self._attend(q, k, v, allowed, tap)
        else:
            context, _ = scaled_dot_product_attention(q, k, v, allowed, tap)
        return self._finish(context, source, tap)

    def _finish(self, context: Tensor, source: Tensor, tap: Tap) -> Tensor:
        """Heads merged and projected, the residual, the norms after it."""
        merged = context.transpose(1, 2).flatten(-2)
        tap("merged", "B Tq H·d_v", merged)
        output: Tensor = self.w_o(merged)
        tap("projected", "B Tq d_model", output, module=self.w_o, sums_over="H·d_v")
        if self.architecture.norm_at == "both":
            output = self.norm_after(output)
            tap("projected_normed", "B Tq d_model", output, module=self.norm_after, flops_each=5)
        output = output + source
        tap("residual", "B Tq d_model", output, flops_each=1)
        if self.architecture.norm_at == "after":
            output = self.norm(output)
            tap("output", "B Tq d_model", output, module=self.norm, flops_each=8)
        return output

    def _project(self, x: Tensor, y: Tensor, hkv: str, tap: Tap) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v with all heads side by side, from three matrices or from one."""
        if self.architecture.fused:
            # x and y are one tensor in truth, so one matrix product makes all; rows of both
            # laid end to end keep it so, and keep what follows a view
            made = self.w_qkv(torch.cat([x.flatten(0, 1), y.flatten(0, 1)]))
            rows = x.shape[0] * x.shape[1]
            of_x = made[:rows].view(*x.shape[:2], -1)
            of_y = made[rows:].view(*y.shape[:2], -1)
            tap("qkv", "B Tq d_qkv", of_x, module=self.w_qkv, sums_over="d_model")
            q = of_x.split(self.widths, -1)[0]
            _, k, v = of_y.split(self.widths, -1)
            tap("q_projected", "B Tq H·d_k", q)
            tap("k_projected", f"B Tk {hkv}·d_k", k)
            tap("v_projected", f"B Tk {hkv}·d_v", v)
            return q, k, v
        q = self.w_q(x)
        tap("q_projected", "B Tq H·d_k", q, module=self.w_q, sums_over="d_model")
        k = self.w_k(y)
        tap("k_projected", f"B Tk {hkv}·d_k", k, module=self.w_k, sums_over="d_model")
        v = self.w_v(y)
        tap("v_projected", f"B Tk {hkv}·d_v", v, module=self.w_v, sums_over="d_model")
        return q, k, v

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, tap: Tap) -> Tensor:
        """Attention with what the plain one has not: T5's bias and bare products, Gemma 2's cap."""
        scores = q @ k.transpose(-2, -1)
        tap("products", "B H Tq Tk", scores, sums_over="d_k")
        if self.architecture.scaled:
            scores = scores / sqrt(q.shape[-1])
            tap("scores", "B H Tq Tk", scores, flops_each=1)
        if self.architecture.cap:
            scores = 50 * torch.tanh(scores / 50)
            tap("capped", "B H Tq Tk", scores, flops_each=3)
        if hasattr(self, "bias_table"):
            place = torch.zeros(scores.shape[-2:], dtype=torch.long)
            bias = self.bias_table(place)
            tap("position_bias", "Tq Tk H", bias, module=self.bias_table, rows="R")
            scores = scores + bias.permute(2, 0, 1)
            tap("biased", "B H Tq Tk", scores, flops_each=1)
        tap("allowed", "B 1 Tq Tk", allowed)
        masked = scores.masked_fill(~allowed, -torch.inf)
        tap("masked_scores", "B H Tq Tk", masked, flops_each=1)
        weights = masked.softmax(-1)
        tap("weights", "B H Tq Tk", weights, flops_each=5)
        context = weights @ v
        tap("context", "B H Tq d_v", context, sums_over="Tk")
        return context
