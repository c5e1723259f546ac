"""Attention as people write it, wrong without an error: each of these must be named."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812


class Base(nn.Module):
    def __init__(self, d_model=512, n_heads=8):
        super().__init__()
        self.n_heads, self.d_k = n_heads, d_model // n_heads
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.n_heads, self.d_k).transpose(1, 2)

    def merge(self, x):
        return self.w_o(x.transpose(1, 2).flatten(2))

    def qkv(self, x):
        return self.split(self.w_q(x)), self.split(self.w_k(x)), self.split(self.w_v(x))


class ViewNoTranspose(Base):
    def split(self, x):
        return x.view(x.shape[0], self.n_heads, -1, self.d_k)  # wrong

    def forward(self, x):
        q, k, v = self.qkv(x)
        return self.merge((q @ k.mT).softmax(-1) @ v)


class FoldByView(Base):
    def split(self, x):
        return x.view(x.shape[0] * self.n_heads, -1, self.d_k)  # wrong

    def forward(self, x):
        q, k, v = self.qkv(x)
        y = torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v)
        return self.w_o(y.view(x.shape))


class MergeNoTranspose(Base):
    def forward(self, x):
        q, k, v = self.qkv(x)
        y = (q @ k.mT).softmax(-1) @ v
        return self.w_o(y.reshape(x.shape[0], x.shape[1], -1))  # wrong


class MergeFold(Base):
    """Unfolds batch and heads, and forgets to swap."""

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.flatten(0, 1) for y in self.qkv(x))
        y = torch.bmm(torch.bmm(q, k.mT).softmax(-1), v)
        return self.w_o(y.view(b, t, c))  # wrong


class KeysByView(Base):
    def forward(self, x):
        q, k, v = self.qkv(x)
        k = k.reshape(k.shape[0], self.n_heads, self.d_k, -1)  # wrong
        return self.merge((q @ k).softmax(-1) @ v)


class FlattenFirst(Base):
    def split(self, x):
        return x.flatten().view(x.shape[0], self.n_heads, -1, self.d_k)  # wrong

    def forward(self, x):
        q, k, v = self.qkv(x)
        return self.merge((q @ k.mT).softmax(-1) @ v)


class HeadsAttend(Base):
    def forward(self, x):
        q, k, v = (y.transpose(1, 2) for y in self.qkv(x))
        weights = F.softmax(q @ k.transpose(-2, -1), dim=-1)  # wrong
        return self.w_o((weights @ v).flatten(2))


class SoftmaxOverHeads(Base):
    def forward(self, x):
        q, k, v = self.qkv(x)
        weights = torch.softmax(q @ k.mT, dim=1)  # wrong
        return self.merge(weights @ v)


class SoftmaxNoDim(Base):
    def forward(self, x):
        q, k, v = self.qkv(x)
        weights = F.softmax(q @ k.mT)  # wrong
        return self.merge(weights @ v)


class SoftmaxOverBatch(Base):
    def forward(self, x):
        q, k, v = self.qkv(x)
        weights = (q @ k.mT).softmax(0)  # wrong
        return self.merge(weights @ v)


class SoftmaxOverQueries(Base):
    def forward(self, x):
        q, k, v = self.qkv(x)
        weights = (q @ k.mT).softmax(-2)
        return self.merge(weights @ v)  # wrong


class SdpaUnswapped(Base):
    def forward(self, x):
        q, k, v = (y.transpose(1, 2) for y in self.qkv(x))
        return self.w_o(F.scaled_dot_product_attention(q, k, v).flatten(2))  # wrong


class TimeFirstLayer(nn.Module):
    def __init__(self, embed_dim=512, num_heads=8):
        super().__init__()
        self.attn = nn.MultiheadAttention(embed_dim, num_heads)

    def forward(self, x):
        return self.attn(x, x, x)[0]  # wrong


class TimeFirstByHand(Base):
    def forward(self, x):
        t, b, _ = x.shape
        q, k, v = (
            w(x).view(t, b * self.n_heads, self.d_k).transpose(0, 1)
            for w in (self.w_q, self.w_k, self.w_v)
        )
        weights = torch.bmm(q, k.mT).softmax(-1)  # wrong
        return self.w_o(torch.bmm(weights, v).transpose(0, 1).reshape(t, b, -1))


class MaskMeetsHeads(Base):
    def forward(self, x, mask):
        q, k, v = self.qkv(x)
        scores = (q @ k.mT).masked_fill(mask, -1e9)  # wrong
        return self.merge(scores.softmax(-1) @ v)


class MaskMeetsHeadsAdded(Base):
    def forward(self, x, mask):
        q, k, v = self.qkv(x)
        scores = q @ k.mT + mask.float().mul(-1e9)  # wrong
        return self.merge(scores.softmax(-1) @ v)


class PaddingMeetsQueries(Base):
    def forward(self, x, mask):
        q, k, v = self.qkv(x)
        scores = torch.where(mask, q @ k.mT, torch.tensor(-1e9))  # wrong
        return self.merge(scores.softmax(-1) @ v)


class SdpaMaskMeetsHeads(Base):
    def forward(self, x, mask):
        q, k, v = self.qkv(x)
        return self.merge(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))  # wrong


class MaskRepeated(Base):
    def forward(self, x, mask):
        q, k, v = (y.flatten(0, 1) for y in self.qkv(x))
        mask = mask.repeat(self.n_heads, 1, 1)
        scores = (q @ k.mT).masked_fill(mask, -1e9)  # wrong
        y = (scores.softmax(-1) @ v).unflatten(0, (x.shape[0], self.n_heads))
        return self.merge(y)


class TorchMaskRepeated(nn.Module):
    def __init__(self, embed_dim=512, num_heads=8):
        super().__init__()
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def forward(self, x, mask):
        mask = mask.repeat(self.attn.num_heads, 1, 1)
        return self.attn(x, x, x, attn_mask=mask)[0]  # wrong


class HardCodedMaskMeetsHeads(nn.Module):
    """Sizes written into the file: 8 heads meet 8 sequences."""

    def __init__(self):
        super().__init__()
        self.w = nn.Linear(64, 3 * 64)

    def forward(self, x, mask):
        q, k, v = self.w(x).view(*x.shape[:2], 3, 8, 8).permute(2, 0, 3, 1, 4)
        scores = (q @ k.mT).masked_fill(mask, -1e9)  # wrong
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class LayerInForward(Base):
    """As a widely copied tutorial has it: an output layer that nothing trains."""

    def forward(self, x):
        q, k, v = self.qkv(x)
        y = ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2)
        return nn.Linear(y.shape[-1], x.shape[-1])(y) + x  # wrong


class QueriesByEinsum(Base):
    """One key/value head and a causal mask: the softmax runs along the wrong positions."""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__(d_model, n_heads)
        self.kv = nn.Linear(d_model, 2 * self.d_k)

    def forward(self, x):
        b, t, c = x.shape
        q = self.w_q(x).view(b, t, self.n_heads, self.d_k).transpose(1, 2)
        k, v = self.kv(x).split(self.d_k, -1)
        scores = torch.einsum("bhtd,bsd->bhts", q, k) / self.d_k**0.5
        future = torch.ones(t, t, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -torch.inf).softmax(-2)
        return torch.einsum("bhts,bsd->bthd", weights, v).reshape(b, t, c)  # wrong


class AddedMaskMeetsQueries(Base):
    """Padding added to the scores without its two middle axes."""

    def forward(self, x, attention_mask):
        q, k, v = self.qkv(x)
        scores = q @ k.mT / self.d_k**0.5
        scores = scores + (1.0 - attention_mask) * -1e4  # wrong
        return self.merge(scores.softmax(-1) @ v)
