"""Attention as people write it, right: no check of these may fail.

Each gets q `[B H Tq d]`, k `[B Hkv Tk d]` and a bool mask (True = may look) that broadcasts to
`[B H Tq Tk]`, or None, and returns weights.
"""

from math import sqrt

import numpy as np
import torch
from torch import nn


def _scores(q, k):
    return q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT / sqrt(q.shape[-1])


def minus_infinity(q, k, allowed):
    """Rows that see nothing become NaN, and then zeros."""
    scores = _scores(q, k)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, float("-inf"))
    return scores.softmax(-1).nan_to_num(0.0)


def smallest_number(q, k, allowed):
    """finfo.min in place of scores, never added to them: in float16 that would be -inf."""
    scores = _scores(q, k)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    wide = torch.promote_types(q.dtype, torch.float32)  # float64's smallest is -inf in float32
    weights = scores.softmax(-1, dtype=wide).to(q.dtype)
    return weights if allowed is None else weights * allowed.any(-1, keepdim=True)


def large_number(q, k, allowed):
    """masked_fill with -1e9 where the dtype has it, and blind rows set to 0."""
    scores = _scores(q, k)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -1e9 if q.dtype != torch.float16 else -60000.0)
    weights = scores.softmax(-1)
    return weights if allowed is None else weights.masked_fill(~allowed, 0.0)


def by_logarithms(q, k, allowed):
    scores = _scores(q, k)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, float("-inf"))
    return scores.log_softmax(-1).exp().nan_to_num(0.0)


def by_hand_in_numpy(q, k, allowed):
    """In the dtype itself, sums and all; NumPy has no bfloat16."""
    scores = _scores(q, k)
    scores = scores.float().numpy() if q.dtype == torch.bfloat16 else scores.numpy()
    may = np.ones(1, bool) if allowed is None else allowed.numpy()
    masked = np.where(may, scores, -np.inf)
    top = masked.max(-1, keepdims=True)
    powers = np.exp(masked - np.where(np.isfinite(top), top, 0).astype(masked.dtype))
    total = powers.sum(-1, keepdims=True)
    return powers / np.where(total > 0, total, 1).astype(powers.dtype)


def saved_as_float32(q, k, allowed):
    """Autocast: computed in a short form, saved in a longer one."""
    return minus_infinity(q, k, allowed).float()


WAYS = (
    minus_infinity,
    smallest_number,
    large_number,
    by_logarithms,
    by_hand_in_numpy,
    saved_as_float32,
)


def with_sink(q, k, allowed, sink):
    """A learned logit for each head takes part in softmax, and its share is dropped (gpt-oss)."""
    scores = _scores(q, k)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, float("-inf"))
    extra = sink.view(1, -1, 1, 1).to(scores.dtype).expand(*scores.shape[:3], 1)
    return torch.cat([scores, extra], -1).softmax(-1)[..., :-1]


def in_training(q, k, allowed, p, seed):
    torch.manual_seed(seed)
    return torch.dropout(minus_infinity(q, k, allowed), p, train=True)


def of_torch(x, lengths, n_heads):
    """nn.MultiheadAttention on `[B T d_model]`, causal and padded on the right."""
    tokens = x.shape[1]
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(x.shape[-1], n_heads, batch_first=True)
    padded = torch.arange(tokens) >= lengths[:, None]
    future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    with torch.no_grad():
        return layer(
            x, x, x, key_padding_mask=padded, attn_mask=future, average_attn_weights=False
        )[1]
