"""Attention whose sizes do not fit: each stops, and the trace until there is shown."""

from torch import nn


class GroupedTooWide(nn.Module):
    """Keys projected to all heads, where two heads were meant to share one of them."""

    def __init__(self, dim, heads, kv=2):
        super().__init__()
        self.h, self.kv, self.d = heads, kv, dim // heads
        self.q, self.k = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, t, _ = x.shape
        k = self.k(x).view(b, t, -1, self.d).transpose(1, 2)
        return k[:, :, None].expand(b, self.kv, self.h // self.kv, t, self.d)  # fails


class FoldsAPiece(nn.Module):
    """A piece of a fused projection does not lie in one, and a reshape would mix tokens."""

    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.d, self.qkv = heads, dim // heads, nn.Linear(dim, 3 * dim)

    def forward(self, x):
        q = self.qkv(x).chunk(3, -1)[0]
        return q.view(x.shape[0] * self.h, -1, self.d)  # fails


class TorchMask(nn.Module):
    batch_first = True

    def __init__(self, dim, heads):
        super().__init__()
        self.m = nn.MultiheadAttention(dim, heads, batch_first=self.batch_first)

    def forward(self, x, mask=None):
        return self.m(x, x, x, attn_mask=mask)[0]  # fails


class TorchMaskTimeFirst(TorchMask):
    batch_first = False
