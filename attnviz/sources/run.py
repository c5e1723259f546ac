"""What every source of attention returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnviz.attention import MultiHeadAttention
    from attnviz.result import AttentionResult
    from attnviz.trace import Step


@dataclass(frozen=True)
class Run:
    """One forward pass: what it gave, what ran, and the layers that it ran through.

    `steps` are those of the input and of the first layer that ran. `layers` is empty where the
    attention is not computed by a layer of attnviz's own.
    """

    result: AttentionResult
    steps: tuple[Step, ...]
    layers: tuple[MultiHeadAttention, ...] = ()
