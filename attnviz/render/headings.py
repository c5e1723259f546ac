"""What stands above panels, and the sizes of type and distances of a picture."""

from __future__ import annotations

from dataclasses import dataclass

from attnviz.render.drawing import Text
from attnviz.render.figure_options import SMALLEST_FONT, FigureOptions


@dataclass(frozen=True)
class Measurements:
    """Points of every kind of type, and of the distances between what is placed."""

    label: float
    """Labels along the edges, at most."""
    smallest: float = 5.5
    title: float = 13.0
    text: float = 8.5
    small: float = 7.5
    axis: float = 9.0
    legend: float = 8.0
    margin: float = 18.0
    bar: float = 9.0
    bar_gap: float = 14.0

    @classmethod
    def of(cls, options: FigureOptions, label: float) -> Measurements:
        """Those of a screen, with labels of this size at most, or those of a figure in print."""
        if not options.is_figure:
            return cls(label)
        base = options.font_size or 7.0
        small = max(SMALLEST_FONT, base - 0.5)
        margin, gap = (3.0, 6.0) if options.width else (18.0, 14.0)
        return cls(base, SMALLEST_FONT, 1.25 * base, small, small, base, small, margin, 6.0, gap)


@dataclass(frozen=True)
class Heading:
    """What stands above the panels, and the `footer` below them."""

    title: str = ""
    subtitle: str | None = None
    paragraphs: tuple[str, ...] = ()
    footer: str = ""

    @classmethod
    def chosen(
        cls,
        options: FigureOptions,
        title: str,
        measures: str | None = None,
        caption: str = "",
        measured: str = "",
        footer: str = "",
    ) -> Heading:
        """The parts that a person wants. `measured` says what the measures of the panels are."""
        if not options.has_title:
            title = caption = footer = ""
        if not options.has_measures:
            measures, measured = None, ""
        if title and options.title is not None:
            title = options.title
        return cls(title, measures, (caption, measured), footer)

    def texts(self, sizes: Measurements) -> list[Text]:
        """Title and subtitle in one line each: they differ between pictures of single heads."""
        y, found = sizes.margin, []
        if self.title:
            base = y + 0.85 * sizes.title
            found.append(Text(sizes.margin, base, self.title, sizes.title, bold=True))
            y += 1.46 * sizes.title
        if self.subtitle is not None:
            found.append(Text(sizes.margin, y + 0.95 * sizes.text, self.subtitle, sizes.text, 0.75))
        return found
