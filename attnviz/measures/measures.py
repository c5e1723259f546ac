"""All measures of a corpus together: one thing to update, merge, keep and read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.errors import ConfigError, printable
from attnviz.measures.agreement import DOCUMENTS, Agreement
from attnviz.measures.block import Block, Floats
from attnviz.measures.evenness_rank import Evenness, Rank
from attnviz.measures.gold import Gold
from attnviz.measures.induction import Induction
from attnviz.measures.offsets import Offsets
from attnviz.measures.sharpness import Sharpness
from attnviz.measures.sinks import Sinks
from attnviz.measures.sums import Accumulator
from attnviz.measures.where import FIRST_TOKENS, WINDOW, Where

DEFAULT = ("where", "sharpness", "offsets", "sinks", "evenness", "rank")
GROUPS = (*DEFAULT, "agreement", "gold", "induction")
"""Groups of measures. Those that are no default cost more, or want something to be given."""


@dataclass(frozen=True)
class Options:
    """Which groups are measured, and what they are told.

    Raises `ConfigError` for an unknown group.
    """

    groups: tuple[str, ...] = DEFAULT
    window: int = WINDOW
    first: int = FIRST_TOKENS
    agreement_documents: int = DOCUMENTS

    def __post_init__(self) -> None:
        for group in self.groups:
            if group not in GROUPS:
                raise ConfigError(f"measures '{printable(group)}': known are {', '.join(GROUPS)}")


class Measures:
    """The accumulators of the groups that were asked for."""

    def __init__(self, n_layers: int, n_heads: int, options: Options) -> None:
        self.n_layers, self.n_heads, self.options = n_layers, n_heads, options
        more: dict[str, tuple[Callable[..., Accumulator], tuple[Any, ...]]] = {
            "where": (Where, (options.window, options.first)),
            "sharpness": (Sharpness, ()),
            "offsets": (Offsets, ()),
            "sinks": (Sinks, ()),
            "evenness": (Evenness, ()),
            "rank": (Rank, ()),
            "agreement": (Agreement, (options.agreement_documents,)),
            "gold": (Gold, ()),
            "induction": (Induction, ()),
        }
        self.parts: dict[str, Accumulator] = {}
        for group in options.groups:
            make, given = more[group]
            self.parts[group] = make(n_layers, n_heads, *given)

    def update(self, block: Block) -> None:
        """Add what is in `block`, in pieces whose masks need little memory."""
        self.update_whole(block)
        self.update_pieces(block.pieces())

    def update_whole(self, block: Block) -> None:
        """The part of `update` that wants whole texts."""
        with np.errstate(all="ignore"):  # a weight that is no number spoils its head, and no more
            for part in self.parts.values():
                if part.needs_whole:
                    part.update(block)

    def update_pieces(self, pieces: Iterable[Block]) -> None:
        """The part of `update` that takes rows as they come."""
        with np.errstate(all="ignore"):
            for piece in pieces:
                for part in self.parts.values():
                    if not part.needs_whole:
                        part.update(piece)

    def merge(self, other: Measures) -> Measures:
        """Both together; they must have been made with the same options."""
        both = Measures(self.n_layers, self.n_heads, self.options)
        both.parts = {name: part.merge(other.parts[name]) for name, part in self.parts.items()}
        return both

    def result(self) -> dict[str, Floats]:
        """All figures by name, `[L H]` each."""
        figures: dict[str, Floats] = {}
        for part in self.parts.values():
            figures |= part.result()
        return figures

    def state(self) -> dict[str, npt.NDArray[np.float64]]:
        """All sums, under `group/name`: what a checkpoint keeps, and what workers send."""
        return {
            f"{group}/{name}": array
            for group, part in self.parts.items()
            for name, array in part.sums.items()
        }

    def load(self, state: Mapping[str, npt.NDArray[np.float64]]) -> Measures:
        """Take the sums of `state`; itself."""
        for group, part in self.parts.items():
            mine = f"{group}/"
            part.load(
                {name.removeprefix(mine): a for name, a in state.items() if name.startswith(mine)}
            )
        return self


def merge_all(parts: Iterable[Measures]) -> Measures:
    """The measures of all parts together. There must be one."""
    total, *rest = parts
    for part in rest:
        total = total.merge(part)
    return total
