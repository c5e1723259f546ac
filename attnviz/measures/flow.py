"""What reaches a token over several layers: attention rollout and attention flow."""

from __future__ import annotations

import numpy as np

from attnviz.errors import InputError
from attnviz.measures.block import Floats

LONGEST_FLOW = 64
"""Tokens: each pair of a token and a token is a maximum flow of its own."""

UNITS = 2**30
"""Capacities are whole numbers of this part: SciPy's algorithm knows no others."""


def with_residual(maps: Floats) -> Floats:
    """½ A + ½ I, rows made to sum to 1: the path that goes around a layer.

    Abnar & Zuidema 2020, section 3. `maps` `[L T T]` are means over a layer's heads. A row that
    sees nothing keeps to itself.
    """
    own = np.eye(maps.shape[-1])
    mixed = maps / 2 + own / 2
    return np.asarray(mixed / mixed.sum(-1, keepdims=True))


def rollout(maps: Floats) -> Floats:
    """Abnar & Zuidema 2020, equation 1: Ã_l … Ã_1 for each layer l, `[L T T]` → `[L T T]`.

    Row i of the last: how much of each input token is in position i of the output, when only
    attention moves things.
    """
    mixed = with_residual(maps)
    rolled = [mixed[0]]
    for layer in mixed[1:]:
        rolled.append(layer @ rolled[-1])
    return np.stack(rolled)


def flow(maps: Floats) -> Floats:
    """Abnar & Zuidema 2020, section 3: the maximum flow from each output to each input token.

    `[L T T]` → `[T T]`. A layer's edges have Ã as capacities, rounded to 2⁻³⁰; the flow is the most
    that can go from position i of the last layer down to input token j. Raises `InputError` for
    texts over `LONGEST_FLOW` tokens.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    layers, size, _ = maps.shape
    if size > LONGEST_FLOW:
        raise InputError(
            f"attention flow of {size} tokens is {size * size:,} maximum flows; at most "
            f"{LONGEST_FLOW} tokens are taken: cut the text with --max-len {LONGEST_FLOW}"
        )
    capacities = np.rint(with_residual(maps) * UNITS).astype(np.int32)
    nodes = size * (layers + 1)  # node l·T + i: position i below layer l; l = L is the output
    graph = np.zeros((nodes, nodes), dtype=np.int32)
    for layer in range(layers):
        rows = slice((layer + 1) * size, (layer + 2) * size)
        graph[rows, layer * size : (layer + 1) * size] = capacities[layer]
    edges = csr_array(graph)
    flows = np.zeros((size, size))
    for i, j in np.ndindex(size, size):
        found = maximum_flow(edges, layers * size + i, j)
        flows[i, j] = found.flow_value / UNITS
    return flows
