"""Attention as people write it, right: no trace of these may warn."""

from math import sqrt

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812


class Base(nn.Module):
    def __init__(self, d_model=512, n_heads=8):
        super().__init__()
        assert d_model % n_heads == 0
        self.n_heads, self.d_k = n_heads, d_model // n_heads
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model) for _ in range(4))


class ViewTranspose(Base):
    """As in many tutorials, with a mask, a residual and a norm."""

    def __init__(self, d_model, n_heads, d_k=64, d_v=64):
        nn.Module.__init__(self)
        self.n_heads, self.d_k, self.d_v = n_heads, d_k, d_v
        self.W_Q = nn.Linear(d_model, d_k * n_heads)
        self.W_K = nn.Linear(d_model, d_k * n_heads)
        self.W_V = nn.Linear(d_model, d_v * n_heads)
        self.fc = nn.Linear(n_heads * d_v, d_model)
        self.norm = nn.LayerNorm(d_model)

    def forward(self, Q, K=None, V=None, attn_mask=None):
        K, V = (Q if K is None else K), (Q if V is None else V)
        residual, batch_size = Q, Q.size(0)
        q_s = self.W_Q(Q).view(batch_size, -1, self.n_heads, self.d_k).transpose(1, 2)
        k_s = self.W_K(K).view(batch_size, -1, self.n_heads, self.d_k).transpose(1, 2)
        v_s = self.W_V(V).view(batch_size, -1, self.n_heads, self.d_v).transpose(1, 2)
        scores = torch.matmul(q_s, k_s.transpose(-1, -2)) / sqrt(self.d_k)
        if attn_mask is not None:
            attn_mask = attn_mask.unsqueeze(1).repeat(1, self.n_heads, 1, 1)
            scores.masked_fill_(attn_mask, -1e9)
        attn = nn.Softmax(dim=-1)(scores)
        context = torch.matmul(attn, v_s)
        context = context.transpose(1, 2).contiguous()
        context = context.view(batch_size, -1, self.n_heads * self.d_v)
        return self.norm(self.fc(context) + residual), attn


class Reshape(Base):
    """Permutes instead of transposes, negative sizes, a causal mask of its own."""

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (
            w(x).reshape(b, t, self.n_heads, -1).permute(0, 2, 1, 3)
            for w in (self.w_q, self.w_k, self.w_v)
        )
        scores = q @ k.mT * self.d_k**-0.5
        causal = torch.tril(torch.ones(t, t, dtype=torch.bool))
        scores = scores.masked_fill(~causal, float("-inf"))
        mixed = F.dropout(F.softmax(scores, dim=-1), 0.1, self.training) @ v
        return self.w_o(mixed.permute(0, 2, 1, 3).reshape(b, t, -1))


class Einsum(Base):
    def forward(self, x):
        q, k, v = (
            w(x).unflatten(-1, (self.n_heads, self.d_k)) for w in (self.w_q, self.w_k, self.w_v)
        )
        weights = torch.einsum("bqhd,bkhd->bhqk", q, k).div(sqrt(self.d_k)).softmax(-1)
        return self.w_o(torch.einsum("bhqk, bkhd -> bqhd", weights, v).flatten(2))


class EinsumEllipsis(Base):
    def forward(self, x):
        q, k, v = (
            w(x).unflatten(-1, (self.n_heads, self.d_k)).transpose(1, 2)
            for w in (self.w_q, self.w_k, self.w_v)
        )
        weights = torch.softmax(torch.einsum("...qd,...kd->...qk", q, k), dim=3)
        return self.w_o(torch.einsum("...qk,...kd->...qd", weights, v).transpose(2, 1).flatten(2))


class FusedChunk(nn.Module):
    def __init__(self, n_embd=512, n_head=8, block_size=6):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)
        bias = torch.tril(torch.ones(block_size, block_size))
        self.register_buffer("bias", bias.view(1, 1, block_size, block_size))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).chunk(3, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class FusedPermute(Base):
    """Vision transformers cut q, k, v and heads in one go."""

    def __init__(self, dim=512, num_heads=8):
        super().__init__(dim, num_heads)
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.n_heads, C // self.n_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attn = ((q * self.d_k**-0.5) @ k.transpose(-2, -1)).softmax(dim=-1)
        return self.w_o((attn @ v).transpose(1, 2).reshape(B, N, C))


class Sdpa(Base):
    def forward(self, x, mask=None):
        q, k, v = (
            w(x).view(x.shape[0], -1, self.n_heads, self.d_k).transpose(1, 2)
            for w in (self.w_q, self.w_k, self.w_v)
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.w_o(y.transpose(1, 2).flatten(2))


class Grouped(nn.Module):
    """Grouped heads and rotary positions."""

    def __init__(self, hidden_size, num_heads, num_kv_heads, max_len=16):
        super().__init__()
        self.h, self.kv = num_heads, num_kv_heads
        self.d = hidden_size // num_heads
        self.q = nn.Linear(hidden_size, num_heads * self.d, bias=False)
        self.k = nn.Linear(hidden_size, num_kv_heads * self.d, bias=False)
        self.v = nn.Linear(hidden_size, num_kv_heads * self.d, bias=False)
        self.o = nn.Linear(num_heads * self.d, hidden_size, bias=False)
        rate = 10000.0 ** (-torch.arange(0, self.d, 2) / self.d)
        angle = torch.arange(max_len)[:, None] * rate
        self.register_buffer("cos", torch.cat([angle, angle], -1).cos())
        self.register_buffer("sin", torch.cat([angle, angle], -1).sin())

    def rotate(self, x):
        a, b = x.chunk(2, dim=-1)
        turned = torch.cat((-b, a), dim=-1)
        return x * self.cos[: x.shape[-2]] + turned * self.sin[: x.shape[-2]]

    def forward(self, x):
        b, t, _ = x.shape
        q = self.rotate(self.q(x).view(b, t, self.h, self.d).transpose(1, 2))
        k = self.rotate(self.k(x).view(b, t, self.kv, self.d).transpose(1, 2))
        v = self.v(x).view(b, t, self.kv, self.d).transpose(1, 2)
        k = k.repeat_interleave(self.h // self.kv, dim=1)
        v = v[:, :, None].expand(b, self.kv, self.h // self.kv, t, self.d).flatten(1, 2)
        weights = (q @ k.transpose(2, 3) / self.d**0.5).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).contiguous().view(b, t, -1))


class TorchOwn(nn.Module):
    def __init__(self, embed_dim=512, num_heads=8):
        super().__init__()
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def forward(self, x):
        return self.attn(x, x, x)[0]


class TorchOwnMasked(TorchOwn):
    def forward(self, x, mask):
        mask = mask.repeat_interleave(self.attn.num_heads, 0)
        return self.attn(x, x, x, attn_mask=mask)[0]


class TimeFirst(Base):
    """Input [T B d_model], batch and heads folded beside each other."""

    def forward(self, x):
        t, b, _ = x.shape
        q, k, v = (
            w(x).view(t, b * self.n_heads, self.d_k).transpose(0, 1)
            for w in (self.w_q, self.w_k, self.w_v)
        )
        weights = torch.bmm(q, k.transpose(1, 2)).div(self.d_k**0.5).softmax(dim=-1)
        return self.w_o(torch.bmm(weights, v).transpose(0, 1).reshape(t, b, -1))


class Folded(Base):
    """Batch and heads folded after the swap; the mask folded alike."""

    def forward(self, x, mask):
        b, t, c = x.shape
        q, k, v = (
            w(x).view(b, t, self.n_heads, self.d_k).transpose(1, 2).reshape(-1, t, self.d_k)
            for w in (self.w_q, self.w_k, self.w_v)
        )
        scores = torch.baddbmm(torch.zeros(1, 1, 1), q, k.transpose(1, 2), alpha=self.d_k**-0.5)
        scores = scores.masked_fill(mask.repeat_interleave(self.n_heads, 0), -1e9)
        y = torch.bmm(scores.softmax(2), v).view(b, self.n_heads, t, self.d_k)
        return self.w_o(y.transpose(1, 2).reshape(b, t, c))


class HeadLoop(Base):
    """One head after the other, as a first sketch often is."""

    def forward(self, x):
        outputs = []
        for i in range(self.n_heads):
            at = slice(i * self.d_k, (i + 1) * self.d_k)
            q, k, v = self.w_q(x)[..., at], self.w_k(x)[..., at], self.w_v(x)[..., at]
            outputs.append((q @ k.transpose(1, 2) / self.d_k**0.5).softmax(-1) @ v)
        return self.w_o(torch.cat(outputs, dim=-1))


class Cross(Base):
    """Queries of one text, keys of another, padding marked by a mask of keys."""

    def forward(self, x, memory, padding):
        def split(y):
            return y.view(y.shape[0], y.shape[1], self.n_heads, self.d_k).transpose(1, 2)

        q, k, v = split(self.w_q(x)), split(self.w_k(memory)), split(self.w_v(memory))
        scores = q @ k.transpose(-1, -2)
        scores = scores.masked_fill(padding[:, None, None, :], torch.finfo(x.dtype).min)
        return self.w_o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class OwnGlobals(nn.Module):
    """Sizes written into the file."""

    def __init__(self):
        super().__init__()
        self.w = nn.Linear(512, 3 * 512)
        self.embed = nn.Embedding(100, 512)

    def forward(self, ids):
        x = self.embed(ids)
        q, k, v = self.w(x).view(*x.shape[:2], 3, 8, 64).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) / 8).softmax(-1)
        return (weights @ v).transpose(1, 2).reshape(x.shape)


class TwoWidths(nn.Module):
    """Input and output of different widths, and a dropout that must not be taken for a size."""

    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        self.h, self.d_k = num_heads, d_out // num_heads
        self.q = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.k = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.v = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        mask = torch.triu(torch.ones(context_length, context_length), diagonal=1)
        self.register_buffer("mask", mask)

    def forward(self, x):
        b, t, _ = x.shape
        keys = self.k(x).view(b, t, self.h, self.d_k).transpose(1, 2)
        queries = self.q(x).view(b, t, self.h, self.d_k).transpose(1, 2)
        values = self.v(x).view(b, t, self.h, self.d_k).transpose(1, 2)
        scores = queries @ keys.transpose(2, 3)
        scores.masked_fill_(self.mask.bool()[:t, :t], -torch.inf)
        weights = self.dropout(torch.softmax(scores / keys.shape[-1] ** 0.5, dim=-1))
        return self.out_proj((weights @ values).transpose(1, 2).contiguous().view(b, t, -1))


class Windows(Base):
    """Positions cut into blocks that attend within themselves."""

    def forward(self, x):
        b, t, c = x.shape
        x = x.view(b, t // 4, 4, c).reshape(-1, 4, c)
        q, k, v = (
            w(x).view(-1, 4, self.n_heads, self.d_k).transpose(1, 2)
            for w in (self.w_q, self.w_k, self.w_v)
        )
        y = (q @ k.mT).softmax(-1) @ v
        return self.w_o(y.transpose(1, 2).reshape(b, t, c))


class RelativeShift(Base):
    """Scores of relative positions, shifted by a reshape on purpose."""

    def __init__(self, d_model=512, n_heads=8):
        super().__init__(d_model, n_heads)
        self.w_r = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            w(x).view(b, t, self.n_heads, self.d_k).transpose(1, 2)
            for w in (self.w_q, self.w_k, self.w_v)
        )
        place = torch.arange(t - 1.0, -1, -1)[:, None].expand(t, c)
        r = self.w_r(place).view(t, self.n_heads, self.d_k).transpose(0, 1)
        relative = F.pad(q @ r.mT, (1, 0)).view(b, self.n_heads, t + 1, t)[:, :, 1:]
        scores = q @ k.mT + relative.view(b, self.n_heads, t, t)
        return self.w_o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class LinearAttention(Base):
    """Two softmaxes, one of features and one along positions, and no matrix of scores."""

    def forward(self, x):
        q, k, v = (
            w(x).unflatten(-1, (self.n_heads, self.d_k)).transpose(1, 2)
            for w in (self.w_q, self.w_k, self.w_v)
        )
        y = q.softmax(-1) @ (k.softmax(-2).mT @ v)
        return self.w_o(y.transpose(1, 2).flatten(2))


class TalkingHeads(Base):
    """Heads mixed before and after the softmax, and a bias for each head's distances."""

    def __init__(self, d_model=512, n_heads=8):
        super().__init__(d_model, n_heads)
        self.before = nn.Linear(n_heads, n_heads, bias=False)
        self.after = nn.Parameter(torch.eye(n_heads))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (
            w(x).view(b, t, self.n_heads, self.d_k).permute(0, 2, 1, 3)
            for w in (self.w_q, self.w_k, self.w_v)
        )
        slopes = 2.0 ** -torch.arange(1, self.n_heads + 1.0)
        far = (torch.arange(t)[None, :] - torch.arange(t)[:, None]).abs()
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) - slopes[:, None, None] * far
        scores = self.before(scores.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        weights = torch.einsum("bhqk,hg->bgqk", scores.softmax(dim=-1), self.after)
        return self.w_o((weights @ v).transpose(1, 2).reshape(b, t, -1))


class OneKeyHead(nn.Module):
    """One key/value head for all, learned keys beside the text's, complex rotation."""

    def __init__(self, dim, n_heads, head_dim, n_memory=4):
        super().__init__()
        self.n_heads, self.head_dim = n_heads, head_dim
        self.q = nn.Linear(dim, n_heads * head_dim)
        self.kv = nn.Linear(dim, 2 * head_dim)
        self.memory = nn.Parameter(torch.zeros(1, 1, n_memory, head_dim))
        self.o = nn.Linear(n_heads * head_dim, dim)

    def rotate(self, x):
        turned = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        angle = torch.arange(x.shape[2])[:, None] * torch.arange(x.shape[-1] // 2)
        return torch.view_as_real(
            turned * torch.polar(torch.ones(angle.shape), angle * 0.1)
        ).flatten(3)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.rotate(self.q(x).view(b, t, self.n_heads, self.head_dim).transpose(1, 2))
        k, v = self.kv(x).unsqueeze(1).split(self.head_dim, dim=-1)
        k = torch.cat([self.memory.expand(b, -1, -1, -1), self.rotate(k)], dim=2)
        v = torch.cat([self.memory.expand(b, -1, -1, -1), v], dim=2)
        weights = ((q @ k.mT) / self.head_dim**0.5).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).contiguous().view(b, t, -1))


class Gated(Base):
    """A softmax over experts for each token, which is no matter of attention."""

    def __init__(self, d_model=512, n_heads=8, n_experts=4):
        super().__init__(d_model, n_heads)
        self.gate = nn.Linear(d_model, n_experts)

    def forward(self, x):
        q, k, v = (
            w(x).view(*x.shape[:2], self.n_heads, self.d_k).transpose(1, 2)
            for w in (self.w_q, self.w_k, self.w_v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        gates = self.gate(x).softmax(-1)
        return torch.einsum("bte,btd->btd", gates, self.w_o(y))


class OneKeyHeadEinsum(nn.Module):
    """One key/value head, without an axis for it, and a causal mask made on the spot."""

    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.d = heads, dim // heads
        self.q, self.kv, self.o = nn.Linear(dim, dim), nn.Linear(dim, 2 * self.d), nn.Identity()

    def forward(self, x):
        b, t, c = x.shape
        q = self.q(x).view(b, t, self.h, self.d).transpose(1, 2)
        k, v = self.kv(x).split(self.d, -1)
        scores = torch.einsum("bhtd,bsd->bhts", q, k) / self.d**0.5
        future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        return self.o(torch.einsum("bhts,bsd->bthd", weights, v).reshape(b, t, c))


class AddedMask(Base):
    """Padding added to the scores, as BERT has it."""

    def forward(self, x, attention_mask):
        q, k, v = (
            w(x).view(*x.shape[:2], self.n_heads, self.d_k).permute(0, 2, 1, 3)
            for w in (self.w_q, self.w_k, self.w_v)
        )
        scores = q @ k.mT / self.d_k**0.5
        scores = scores + (1.0 - attention_mask[:, None, None, :].float()) * -1e4
        mixed = (scores.softmax(-1) @ v).permute(0, 2, 1, 3).contiguous()
        return mixed.view((*mixed.shape[:-2], -1))


class Slots(Base):
    """Queries compete for each key, and each query's weights are made to sum to 1 after that."""

    def forward(self, x):
        weights = (self.w_q(x) @ self.w_k(x).mT).softmax(1)
        first = (weights / weights.sum(-1, keepdim=True)) @ self.w_v(x)
        return F.normalize(weights, p=1, dim=-1) @ first


class Biased(Base):
    """A bias for each head, made by the caller, and divided scores."""

    def forward(self, x, position_bias):
        q, k, v = (
            w(x).unflatten(-1, (self.n_heads, self.d_k)).transpose(1, 2)
            for w in (self.w_q, self.w_k, self.w_v)
        )
        scores = (q @ k.mT + position_bias) / self.d_k**0.5
        weights = scores.softmax(-1).div(2.0) * 2
        return self.w_o((weights @ v).transpose(1, 2).flatten(2))


class HeadsSlowest(Base):
    """Batch and heads folded the other way round, and the mask with them."""

    def forward(self, x, mask):
        q, k, v = (torch.cat(w(x).split(self.d_k, -1), 0) for w in (self.w_q, self.w_k, self.w_v))
        y = (q @ k.mT).masked_fill(mask, -1e9).softmax(-1) @ v
        return self.w_o(torch.cat(y.split(x.shape[0], 0), -1))


class FoldedMask(TorchOwn):
    """torch's own layer, its mask folded by the caller."""

    def forward(self, x, mask):
        return self.attn(x, x, x, attn_mask=mask)[0]
