"""Exact attention over texts of any length: block by block, so that no map is ever held whole.

`pool` folds every weight into a picture of bounded size and into numbers for each row; `window`
and `weight_blocks` give the weights themselves, of one part or of some rows at a time. All three
take a `Scores`: queries, keys, and what makes scores of them. Nothing is sampled and nothing
is left out. float32 inputs give weights within about 1e-6 of their exact values, and entropies
within 1e-5 bits: that is what float32 scores of 20 bits leave of them, however they are added up.
float64 inputs are computed in float64.
"""

from attnviz.streaming.context import context
from attnviz.streaming.pool import Pooled, pool
from attnviz.streaming.windows import head_rows, weight_blocks, window

__all__ = [
    "Pooled",
    "context",
    "head_rows",
    "pool",
    "weight_blocks",
    "window",
]
