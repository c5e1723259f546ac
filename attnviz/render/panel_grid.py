"""How large the cells of panels are, and in which row and column each panel stands."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log

from attnviz.render.drawing import CellSize
from attnviz.render.figure_options import FigureOptions
from attnviz.render.panel import Pair


def overview_cells(shape: Pair, n_columns: int, options: FigureOptions) -> CellSize:
    """Cells of small panels: fewer columns leave more room; a picture grows with its columns."""
    scale, (n_q, n_k), longest = options.dpi / 72, shape, max(shape)
    limit = (72 * (7.0 + n_columns) * (2 if options.annotate else 1)) / n_columns - 14
    cell = min(limit, max(96, (15.0 if options.annotate else 11.0) * longest)) / longest
    pool = ceil(longest / max(floor(limit * scale), 1))
    n_q, n_k = ceil(n_q / pool), ceil(n_k / pool)
    wide = max(cell * pool, 84 / n_k)
    high = max(cell * pool, 24 / n_q, 7.5 if n_q <= 12 else 0)
    return CellSize(whole_pixels(wide, options), whole_pixels(high, options), pool)


def large_cells(
    shape: Pair,
    options: FigureOptions,
    cell: float = 26.0,
    largest: float = 500.0,
    narrowest: float = 60.0,
    pixels: float = 2048.0,
) -> CellSize:
    """Cells of a panel that has a picture of its own, or shares it with two others."""
    (n_q, n_k), longest = shape, max(shape)
    side = max(150.0, min(cell * longest, largest), 8.6 * longest if longest <= 66 else 0.0)
    if options.annotate and longest <= 60:
        side = max(side, 15.0 * longest)
    pool = ceil(longest / max(side * options.dpi / 72, pixels))
    points = side / ceil(longest / pool)
    wide, high = max(points, narrowest / ceil(n_k / pool)), max(points, 60 / ceil(n_q / pool))
    return CellSize(whole_pixels(wide, options), whole_pixels(high, options), pool)


def whole_pixels(points: float, options: FigureOptions) -> int:
    return max(1, floor(points * options.dpi / 72 + 1e-9))


def grid(
    pairs: Sequence[Pair], aspect: float, columns: int | None = None
) -> tuple[list[Pair], int, int]:
    """(row, column) of each head, the number of rows, the number of columns.

    The heads of one layer, or one head of several layers, are wrapped like words. Several heads of
    several layers are a matrix, a layer a row, unless most of its places would be empty. With many
    more layers than heads it would be a tower: then several layers share a row, each with its heads
    side by side. `aspect` is the width of a panel by its height; `columns` is how many panels a row
    has, where it was chosen.
    """
    layers = sorted({layer for layer, _ in pairs})
    numbers = sorted({number for _, number in pairs})
    is_sparse = len(layers) > 1 and 2 * len(pairs) <= len(layers) * len(numbers)
    if columns is not None:
        wide, n = min(columns, len(pairs)), len(pairs)
        return [(i // wide, i % wide) for i in range(n)], ceil(n / wide), wide
    if len(layers) == 1 or is_sparse:
        units, width, at = len(pairs), 1, [(i, 0) for i in range(len(pairs))]
    else:
        units, width = len(layers), len(numbers)
        at = [(layers.index(layer), numbers.index(number)) for layer, number in pairs]
    is_matrix = units <= width**2 and not is_sparse  # 4 layers of 2 heads, 9 of 3, 16 of 4

    def cost(abreast: int) -> float:
        rows = ceil(units / abreast)
        lopsided = abs(log(abreast * width * aspect / (rows * 1.5)))
        return lopsided + 1.2 * (rows * abreast - units) / units

    abreast = 1 if is_matrix else min(range(1, units + 1), key=cost)
    places = [(unit // abreast, unit % abreast * width + beside) for unit, beside in at]
    return places, ceil(units / abreast), abreast * width
