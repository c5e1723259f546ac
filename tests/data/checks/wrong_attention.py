"""Attention as people write it, wrong without an error: each of these must be caught and named.

Every function gets an `Inputs` and returns the weights `[B H Tq Tk]` (or weights and context) that
the mistake makes.
"""

from dataclasses import dataclass
from math import sqrt

import torch

BATCH, HEADS, TOKENS, WIDTH = 2, 3, 7, 10
LENGTHS = (7, 5)
D_MODEL = HEADS * WIDTH


@dataclass
class Inputs:
    """x `[B T d_model]` and what the projections make of it; masks are True where one may look."""

    q: torch.Tensor  # B T H·d_k, as the projections give them
    k: torch.Tensor
    v: torch.Tensor

    @property
    def causal(self):
        return torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()

    @property
    def real(self):
        """[B T], padding on the right."""
        return torch.arange(TOKENS) < torch.tensor(LENGTHS)[:, None]

    def heads(self, x):
        return x.view(BATCH, TOKENS, HEADS, -1).transpose(1, 2)

    @property
    def scores(self):
        q, k = self.heads(self.q), self.heads(self.k)
        return q @ k.mT / sqrt(WIDTH)


def make_inputs(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(BATCH, TOKENS, D_MODEL, generator=generator)
    w = torch.randn(3, D_MODEL, D_MODEL, generator=generator) * sqrt(1.5 / D_MODEL)
    return Inputs(x @ w[0], x @ w[1], x @ w[2])


# ── masks ────────────────────────────────────────────────────────────────────────────────────


def causal_inverted(x):
    return x.scores.masked_fill(x.causal, float("-inf")).softmax(-1)  # wrong: True means keep


def causal_inverted_large_number(x):
    return x.scores.masked_fill(x.causal, -1e9).softmax(-1)  # wrong


def causal_transposed(x):
    mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu()  # wrong: tril
    return x.scores.masked_fill(~mask, float("-inf")).softmax(-1)


def causal_one_too_many(x):
    future = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(2)  # wrong: triu(1)
    return x.scores.masked_fill(future, float("-inf")).softmax(-1)


def causal_one_too_few(x):
    future = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(0)  # wrong: triu(1)
    return x.scores.masked_fill(future, float("-inf")).softmax(-1)


def causal_one_too_few_large_number(x):
    future = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu()  # wrong
    return x.scores.masked_fill(future, -1e9).softmax(-1)


def causal_forgotten(x):
    return x.scores.softmax(-1)  # wrong


def causal_after_softmax(x):
    return x.scores.softmax(-1) * x.causal  # wrong: rows no longer sum to 1


def causal_times_scores(x):
    return (x.scores * x.causal).softmax(-1)  # wrong: 0 is no -inf


def causal_tiny_fill(x):
    return x.scores.masked_fill(~x.causal, 1e-9).softmax(-1)  # wrong: -1e9


def causal_weak_fill(x):
    return (x.scores + torch.where(x.causal, 0.0, -12.0)).softmax(-1)  # wrong: too small


def padding_forgotten(x):
    return x.scores.softmax(-1)  # wrong: no padding mask


def padding_inverted(x):
    padded = ~x.real
    return x.scores.masked_fill(~padded[:, None, None], float("-inf")).softmax(-1)  # wrong


def padding_on_queries(x):
    return x.scores.masked_fill(~x.real[:, None, :, None], -1e9).softmax(-1)  # wrong axis


def padding_other_side(x):
    left = torch.arange(TOKENS) >= TOKENS - torch.tensor(LENGTHS)[:, None]  # wrong side
    return x.scores.masked_fill(~left[:, None, None], float("-inf")).softmax(-1)


def padding_means_the_opposite(x):
    """Two masks in one, of which one says True for keep and the other True for drop."""
    padded = ~x.real[:, None, None]
    return x.scores.masked_fill(~(x.causal & padded), -1e9).softmax(-1)  # wrong: ~padded


def padding_means_the_opposite_minus_infinity(x):
    padded = ~x.real[:, None, None]
    return x.scores.masked_fill(~(x.causal & padded), float("-inf")).softmax(-1)  # wrong


def zero_times_infinity(x):
    return (x.scores + (1 - x.causal.float()) * float("-inf")).softmax(-1)  # wrong: 0 · -inf


def padding_one_too_many(x):
    real = torch.arange(TOKENS) <= torch.tensor(LENGTHS)[:, None]  # wrong: <
    return x.scores.masked_fill(~real[:, None, None], float("-inf")).softmax(-1)


def masks_of_another_sequence(x):
    """As nn.MultiheadAttention wants them, [B·H T T], but heads outside of sequences."""
    mask = x.real[:, None, :].expand(BATCH, TOKENS, TOKENS).repeat(HEADS, 1, 1)  # wrong
    scores = x.scores.flatten(0, 1).masked_fill(~mask, float("-inf"))
    return scores.softmax(-1).view(BATCH, HEADS, TOKENS, TOKENS)


def blind_rows_large_number(x):
    """Nobody may look from padding or at it; a row of padding then has nothing to see."""
    mask = two_sided(x)
    return x.scores.masked_fill(~mask, -1e9).softmax(-1)  # wrong: such rows are uniform


def blind_rows_minus_infinity(x):
    return x.scores.masked_fill(~two_sided(x), float("-inf")).softmax(-1)  # wrong: NaN


def two_sided(x):
    """[B 1 T T] with rows of False."""
    return x.real[:, None, :, None] & x.real[:, None, None, :]


def window_one_too_wide(x):
    i, j = torch.arange(TOKENS)[:, None], torch.arange(TOKENS)
    mask = (j <= i) & (j >= i - 3)  # wrong: a window of 3 is j > i - 3
    return x.scores.masked_fill(~mask, float("-inf")).softmax(-1)


def window_both_ways(x):
    i, j = torch.arange(TOKENS)[:, None], torch.arange(TOKENS)
    return x.scores.masked_fill((i - j).abs() >= 3, float("-inf")).softmax(-1)  # wrong


def prefix_counts_padding(x):
    """Padding on the left: the prefix must begin at the first real token."""
    i, j = torch.arange(TOKENS)[:, None], torch.arange(TOKENS)
    left = torch.arange(TOKENS) >= TOKENS - torch.tensor(LENGTHS)[:, None]
    mask = ((j <= i) | (j < 4)) & left[:, None, None]  # wrong: j counts the padding
    return x.scores.masked_fill(~mask, float("-inf")).softmax(-1).nan_to_num(0.0)


# ── softmax and after ────────────────────────────────────────────────────────────────────────


def softmax_over_queries(x):
    return x.scores.masked_fill(~x.causal, float("-inf")).softmax(-2)  # wrong


def softmax_over_heads(x):
    return x.scores.softmax(1)  # wrong


def softmax_over_batch(x):
    return x.scores.softmax(0)  # wrong


def no_softmax(x):
    return x.scores  # wrong: scores were saved


def logarithms(x):
    return x.scores.log_softmax(-1)  # wrong: softmax


def softmax_twice(x):
    weights = x.scores.masked_fill(~x.causal, float("-inf")).softmax(-1)
    return weights.softmax(-1)  # wrong: the layer's output is no input of the loss


def powers_alone(x):
    return x.scores.exp()  # wrong: not divided


def sum_without_keepdim(x):
    """Head by head, as people write it in NumPy."""
    powers = [[head.exp() for head in heads] for heads in x.scores]
    made = [torch.stack([p / p.sum(-1) for p in heads]) for heads in powers]  # wrong: keepdim
    return torch.stack(made)


def largest_without_keepdim(x):
    made = (x.scores - x.scores.amax(-1, keepdim=True)).exp()
    return torch.stack([torch.stack([p / p.sum(-1) for p in heads]) for heads in made])  # wrong


def infinite_powers(x):
    powers = (20 * x.scores).half().exp()  # wrong: the largest score was not subtracted
    return powers / powers.sum(-1, keepdim=True)


def never_written(x):
    return torch.zeros_like(x.scores)  # wrong: a buffer that nothing filled


def percent(x):
    return 100 * x.scores.softmax(-1)  # wrong


def thresholded(x):
    weights = x.scores.softmax(-1)
    return weights.masked_fill(weights < 0.1, 0.0)  # wrong: not made to sum to 1 again


def overflow_in_half(x):
    scores = (100 * x.heads(x.q)).half() @ (100 * x.heads(x.k)).half().mT
    return (scores / sqrt(WIDTH)).softmax(-1)  # wrong: beyond 65504


def nan_in_a_key(x):
    k = x.heads(x.k).clone()
    k[1, 2, 4, 3] = float("nan")
    return (x.heads(x.q) @ k.mT / sqrt(WIDTH)).softmax(-1)


def sum_along_the_wrong_dim(x):
    powers = x.scores.exp()
    return powers / powers.sum(-2, keepdim=True)  # wrong


# ── what weights alone cannot tell ───────────────────────────────────────────────────────────


def no_scale(x):
    return (x.heads(x.q) @ x.heads(x.k).mT).softmax(-1)  # wrong


def scale_of_d_model(x):
    return (x.heads(x.q) @ x.heads(x.k).mT / sqrt(D_MODEL)).softmax(-1)  # wrong


def scale_of_d_k(x):
    return (x.heads(x.q) @ x.heads(x.k).mT / WIDTH).softmax(-1)  # wrong


def scale_upside_down(x):
    return (x.heads(x.q) @ x.heads(x.k).mT * sqrt(WIDTH)).softmax(-1)  # wrong


def scale_of_tokens(x):
    k = x.heads(x.k)
    return (x.heads(x.q) @ k.mT / sqrt(k.size(-2))).softmax(-1)  # wrong: size(-1)


def scale_of_ones_own(x):
    return (x.heads(x.q) @ x.heads(x.k).mT / 4).softmax(-1)  # wrong: a number in the code


def heads_interleaved(x):
    q, k = (y.view(BATCH, TOKENS, WIDTH, HEADS).permute(0, 3, 1, 2) for y in (x.q, x.k))  # wrong
    return (q @ k.mT / sqrt(WIDTH)).softmax(-1)


def k_is_q(x):
    return (x.heads(x.q) @ x.heads(x.q).mT / sqrt(WIDTH)).softmax(-1)  # wrong: copied line


def q_is_k(x):
    return (x.heads(x.k) @ x.heads(x.k).mT / sqrt(WIDTH)).softmax(-1)  # wrong: copied line


def heads_by_view(x):
    q, k = (y.view(BATCH, HEADS, TOKENS, WIDTH) for y in (x.q, x.k))  # wrong: no transpose
    return (q @ k.mT / sqrt(WIDTH)).softmax(-1)


def keys_by_view(x):
    k = x.k.view(BATCH, HEADS, TOKENS, WIDTH)  # wrong
    return (x.heads(x.q) @ k.mT / sqrt(WIDTH)).softmax(-1)


def q_and_k_swapped(x):
    return (x.heads(x.k) @ x.heads(x.q).mT / sqrt(WIDTH)).softmax(-1)  # wrong


def mask_added_as_ones(x):
    return (x.scores + x.causal.float()).softmax(-1)  # wrong: added, not filled with -inf


def in_bfloat16(x):
    q, k = x.heads(x.q).bfloat16(), x.heads(x.k).bfloat16()
    return (q @ k.mT / sqrt(WIDTH)).float().softmax(-1)  # lawful, and not exact


def context_by_view(x):
    weights = x.scores.softmax(-1)
    return weights, weights @ x.v.view(BATCH, HEADS, TOKENS, WIDTH)  # wrong


def context_not_transposed(x):
    weights = x.scores.softmax(-1)
    return weights, (weights @ x.heads(x.v)).reshape(BATCH, TOKENS, D_MODEL)  # wrong


def context_of_transposed_weights(x):
    weights = x.scores.softmax(-1)
    return weights, weights.mT @ x.heads(x.v)  # wrong


def context_without_mask(x):
    weights = x.scores.masked_fill(~x.causal, float("-inf")).softmax(-1)
    return weights, x.scores.softmax(-1) @ x.heads(x.v)  # wrong: only the copy is masked


def weights_for_show(x):
    context = x.scores.softmax(-1) @ x.heads(x.v)
    return no_scale(x), context  # wrong: these weights were not used


# ── grouped heads and rotary positions ───────────────────────────────────────────────────────


def grouped(x, n_kv):
    """Keys with fewer heads, [B Hkv T d_k]."""
    return x.heads(x.k)[:, :n_kv]


def heads_tiled(q, k):
    """q has twice the heads of k; head h belongs to key head h // 2."""
    return (q @ k.repeat(1, 2, 1, 1).mT / sqrt(q.shape[-1])).softmax(-1)  # wrong: interleave


def half_turn(x, positions):
    """RoPE as Llama's code has it; positions [B T]."""
    half = x.shape[-1] // 2
    angles = positions[:, None, :, None] * 10000.0 ** (-torch.arange(half) / half)
    cos, sin = angles.cos(), angles.sin()
    one, two = x[..., :half], x[..., half:]
    return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)


def neighbours_turn(x, positions):
    """RoPE as the paper has it: numbers 2i and 2i + 1 turn together."""
    half = x.shape[-1] // 2
    angles = positions[:, None, :, None] * 10000.0 ** (-torch.arange(half) / half)
    turned = torch.view_as_complex(x.unflatten(-1, (half, 2)).contiguous())
    return torch.view_as_real(turned * torch.polar(torch.ones_like(angles), angles)).flatten(-2)
