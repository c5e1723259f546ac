"""A layer in words, for the lines at the top of a report."""

from __future__ import annotations

from attnviz.config import AttentionConfig
from attnviz.pipeline import Line
from attnviz.wording import plural


def layer_lines(config: AttentionConfig) -> list[Line]:
    """The sizes of the layer."""
    heads = plural(config.n_heads, "head")
    if config.is_grouped:
        heads += f" on {plural(config.n_kv_heads, 'key/value head')}"
    sizes = f"d_model {config.d_model}, d_k {config.d_k}, d_v {config.d_v}"
    rest = f"{config.dtype}, positions {config.positions}"
    return [("layer", f"{heads}, {sizes}, {rest}")]


def untrained_lines(config: AttentionConfig) -> list[Line]:
    """That the layer's numbers are random."""
    numbers = f"untrained (random numbers, seed {config.seed})"
    return [("", f"{numbers}: it shows the mechanism, not what a model has learned")]


def trained_lines(name: str, layout: str, place: str, n_layers: int) -> list[Line]:
    """Which file the layer's numbers are of, and where in it."""
    at = f", {place}" if place else ""
    lines = [("", f"weights of {name} in the layout of {layout}{at}")]
    if n_layers > 1:
        lines.append(
            ("", f"{n_layers} layers one after the other; the trace is of layer 0, all are alike")
        )
    return lines
