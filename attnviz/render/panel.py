"""A panel: one map of cells, ready to be drawn as PNG, SVG, PDF or in a terminal.

It holds the values, what each cell is, the scale, and what is written above it. A `PanelSet` holds
what the panels of one sequence share: axes, caption, notes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.combined_heads import COMBINED
from attnviz.render.axes import PositionAxis, TokenAxis
from attnviz.render.scales import Scale
from attnviz.result import Attention
from attnviz.wording import plural

PADDING, BLIND, FORBIDDEN, WEIGHT, NOT_A_NUMBER, ONLY_A, ONLY_B = range(7)
"""What a cell is. Where cells are pooled, the largest of these wins. A blind cell is that of a
query that may attend to no key; ONLY_A and ONLY_B are allowed by one mask of a comparison."""

QUERY_AXIS, KEY_AXIS = "query: looks", "key: is looked at"

Pair = tuple[int, int]
"""A head: the index of its layer, and its number."""


@dataclass(frozen=True, eq=False)
class CellKinds:
    """What each cell of a panel is, `[rows columns]`. Heads with the same mask share it."""

    cells: npt.NDArray[np.uint8]

    @cached_property
    def present(self) -> frozenset[int]:
        return frozenset(np.unique(self.cells).tolist())

    @cached_property
    def blind(self) -> npt.NDArray[np.bool_]:
        """The rows whose query may attend to nothing."""
        return np.asarray((self.cells == BLIND).any(-1))


@dataclass(frozen=True, eq=False)
class Panel:
    """One map. `values` are 0 where a cell holds none.

    `names` run from the longest form to the shortest and `measures` from the most important on:
    what stands above a small map. `summary` has the measures of a picture of its own, and
    `in_words` its strongest cell.
    """

    values: npt.NDArray[np.float32]
    kinds: CellKinds
    scale: Scale
    names: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()
    summary: str = ""
    in_words: str = ""
    bar: Scale | None = None
    """The scale of the colour bar, where panels with scales of their own share one."""

    @property
    def shown_scale(self) -> Scale:
        return self.bar or self.scale

    @property
    def title(self) -> str:
        """Its name as the title of a picture of its own."""
        return self.names[0][:1].upper() + self.names[0][1:]

    @property
    def terminal_name(self) -> str:
        """`head 3`, or with its layer `L2 H3`."""
        return self.names[1] if self.names[0].startswith("layer") else self.names[0]


@dataclass(eq=False)
class PanelSet:
    """What the panels of one sequence share; `panel` makes one of them when it is needed."""

    pairs: list[Pair]
    panel: Callable[[Pair], Panel]
    rows: TokenAxis | PositionAxis
    columns: TokenAxis | PositionAxis
    title: str
    caption: str
    measured: Callable[[int], str]
    """What the first n measures above each map are, in words."""
    values: str = "weights"
    """What the cells hold."""
    masks: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    """What was done to the maps since they were computed."""
    on_padding: float = 0.0
    """The largest share that a real query gives to padded keys."""
    two_maps: bool = False
    """Whether differences are drawn, beside weights."""
    in_words: str = ""
    """What the panels show; by default the strongest cell of the first ones."""
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.on_padding > 0.0005:
            self.notes.append(
                f"padding is not masked: queries give it up to {self.on_padding:.2g} of their "
                "weight, which is not drawn"
            )

    @property
    def size(self) -> str:
        """`12 tokens`, or `3 queries × 5 keys` where these are two texts."""
        return sizes_in_words(self.rows, self.columns)


class HeadCells:
    """The cells of the heads of one sequence. Padding is padding whatever the array holds there."""

    def __init__(self, result: Attention, sequence: int) -> None:
        self._result = result
        self._sequence = sequence
        self._shared: dict[bytes, CellKinds] = {}

    def cells(self, layer: int, head: int) -> tuple[npt.NDArray[np.float32], CellKinds]:
        """The weights, 0 where a cell holds none, and the kinds. Raises IndexError for no head."""
        own = self._result.attention[layer, self._sequence, head]
        with np.errstate(over="ignore"):  # a float64 beyond float32 is drawn as infinite
            weights = own.astype(np.float32, copy=False)
        kinds = self._kinds(layer, head)
        drawn = kinds.cells == WEIGHT
        odd = drawn & ~np.isfinite(weights)
        if odd.any():
            kinds = CellKinds(np.where(odd, np.uint8(NOT_A_NUMBER), kinds.cells))
            drawn &= ~odd
        if not drawn.all():  # else the result's own array serves, uncopied
            weights = np.where(drawn, weights, np.float32(0))
        return weights, kinds

    def largest(self, pairs: Sequence[Pair]) -> float:
        """The largest weight of these heads, 1 where all are 0: the top of their common scale."""
        top = max(float(self.cells(*pair)[0].max(initial=0)) for pair in pairs)
        return top if top > 0 else 1.0

    def weight_on_padding(self, pairs: Sequence[Pair]) -> float:
        """The largest share that a real query gives to padded keys, which are not drawn."""
        keys = ~self._result.key_valid[self._sequence]
        queries = self._result.query_valid[self._sequence]
        if not keys.any():
            return 0.0
        shares = [
            self._result.attention[layer, self._sequence, head][queries][:, keys].sum(-1)
            for layer, head in pairs
        ]
        return float(np.nan_to_num(np.asarray(shares, dtype=np.float64)).max(initial=0))

    def _kinds(self, layer: int, head: int) -> CellKinds:
        allowed = self._result.allowed[layer, self._sequence]
        allowed = allowed[head if len(allowed) > 1 else 0]
        key = np.packbits(allowed).tobytes()
        if key not in self._shared:
            kinds = np.where(allowed, WEIGHT, FORBIDDEN).astype(np.uint8)
            kinds[~allowed.any(-1)] = BLIND
            if self._result.key_valid[self._sequence].any():
                kinds[:, ~self._result.key_valid[self._sequence]] = PADDING
            kinds[~self._result.query_valid[self._sequence]] = PADDING
            self._shared[key] = CellKinds(kinds)
        return self._shared[key]


def head_names(result: Any, layer: int, head: int) -> tuple[str, ...]:
    """A head's name, from the longest form to the shortest."""
    combined = result.config.get(COMBINED)
    if combined is not None:
        label, how = combined["label"], combined["how"]
        if combined["over"] == "layers":
            number = combined["heads"][head]
            return f"head {number} · {label}", f"H{number} {how}", f"H{number}"
        if not result.names_layers:
            return label, how, "∅"
        number = result.layer_numbers[layer]
        return f"layer {number} · {label}", f"L{number} {how}", f"L{number}"
    if not result.names_layers:
        return f"head {head}", f"H{head}", f"{head}"
    number = result.layer_numbers[layer]
    return f"layer {number} · head {head}", f"L{number} H{head}", f"{number}·{head}"


def token_axes(result: Attention, sequence: int) -> tuple[TokenAxis, TokenAxis]:
    """The queries and the keys of one sequence."""
    answer = result.n_prompt[sequence] if result.n_prompt else None
    return (
        TokenAxis(
            QUERY_AXIS,
            result.query_tokens[sequence],
            result.query_positions[sequence],
            result.query_valid[sequence],
            answer,
        ),
        TokenAxis(
            KEY_AXIS,
            result.key_tokens[sequence],
            result.key_positions[sequence],
            result.key_valid[sequence],
            None if result.is_cross else answer,
        ),
    )


def sizes_in_words(rows: TokenAxis | PositionAxis, columns: TokenAxis | PositionAxis) -> str:
    """`12 tokens`, or `3 queries × 5 keys` where these are two texts."""
    if rows.same_as(columns):
        return plural(columns.length, "token")
    return f"{plural(rows.length, 'query')} × {plural(columns.length, 'key')}"


def why_unmeasured(kinds: CellKinds) -> str:
    """Why a head has no measures."""
    return "not a number" if NOT_A_NUMBER in kinds.present else "sees nothing"
