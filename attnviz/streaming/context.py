"""What the weights of a long text make of the values, for the layer that comes next."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from attnviz.scores import Scores
from attnviz.streaming.head import Head, Rows, cuts, heads_of, is_sound, tiles
from attnviz.streaming.pool import usual_block
from attnviz.streaming.workers import in_order


def context(attention: Scores, v: Tensor) -> Tensor:
    """weights · v, `[B H Tq d_v]` of v `[B Hkv Tk d_v]`, in v's dtype; no map is held whole.

    A query that may see nothing has zeros.
    """
    block, width = usual_block(attention)
    edges = cuts(attention.keys, 1, width)
    own = threading.local()

    def work(job: tuple[Head, Tensor, int]) -> tuple[Head, int, Tensor]:
        head, values, start = job
        if not hasattr(own, "scratch"):
            own.scratch = head.k.new_empty(block * width)
        with torch.inference_mode():
            rows = head.rows(start, min(start + block, attention.queries))
            return head, start, _context(head, rows, values, edges, own.scratch)

    groups = attention.n_heads // v.shape[1]
    jobs = (
        (head, v[head.b, head.h // groups].detach().to(head.k.dtype), start)
        for head in heads_of(attention)
        for start in range(0, attention.queries, block)
    )
    found = v.new_empty(*attention.q.shape[:3], v.shape[3])
    for head, start, part in in_order(work, jobs, v.device):
        found[head.b, head.h, start : start + len(part)] = part
    return found


def _context(head: Head, rows: Rows, v: Tensor, edges: list[int], scratch: Tensor) -> Tensor:
    """`[R d_v]` of one block of rows."""

    def add_up(rows: Rows) -> tuple[Tensor, Tensor]:
        sums = torch.zeros(len(rows), dtype=torch.float64, device=v.device)
        products = v.new_zeros(len(rows), v.shape[1])
        for start, stop in tiles(rows.sees, edges, edges[1]):
            powers = head.scores(rows, start, stop, scratch).exp2_()
            sums += powers.sum(0)
            products.addmm_(powers.T, v[start:stop])
        return sums, products

    sums, products = add_up(rows)
    if not is_sound(sums, rows):
        rows = head.at_maxima(rows, scratch)
        sums, products = add_up(rows)
    return products * head.logs(sums, rows).neg().exp2().to(products.dtype)[:, None]
