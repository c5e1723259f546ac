"""A comparison in words: its first lines, the table of heads, JSON."""

from __future__ import annotations

from math import floor, isfinite, isnan, log10
from typing import TYPE_CHECKING, Any

from rich.text import Text

from attnviz.comparison import ComparedCell, Comparison, HeadDifference
from attnviz.errors import printable
from attnviz.render.console import flow, write
from attnviz.render.head_measures import name_of_head
from attnviz.render.text_grid import Paper, grid, widest
from attnviz.render.visible import shorten, signed, visible
from attnviz.wording import plural

if TYPE_CHECKING:
    from rich.console import Console

    from attnviz.result import Attention

FORMAT, VERSION = "attnviz.comparison", 1

BAR = 10
"""Columns of the bar of the largest distance."""

LONGEST_TOKEN = 16

MORE, LESS = "red", "blue"
"""As in the pictures: B gives more, B gives less."""


def comparison_facts(comparison: Comparison, names: tuple[str, str]) -> list[tuple[str, str]]:
    """What was compared with what, as (label, text)."""
    both = zip("AB", names, (comparison.a, comparison.b), strict=True)
    facts = [(letter, f"{printable(name)}: {_about(result)}") for letter, name, result in both]
    pairing = "by likeness" if comparison.matched else "by index"
    parts = [f"{plural(len(comparison.heads), 'head')} {pairing}"]
    if comparison.a.batch_size > 1:
        parts.append(plural(len(comparison.sequences), "sequence"))
    rows = sorted({head.rows for head in comparison.heads})
    counted = " to ".join(f"{n:,}" for n in dict.fromkeys((rows[0], rows[-1])))
    parts.append(f"means over {counted} query rows")
    facts.append(("compared", ", ".join(parts)))
    if comparison.matched:
        for layer, pairs in comparison.moved.items():
            moved = " ".join(f"{a}~{b}" for a, b in pairs if a != b)
            number = comparison.a.layer_numbers[layer]
            where = f"layer {number}: " if comparison.a.names_layers else ""
            facts.append(("matched", f"{where}{moved or 'each head with its own number'}"))
    return facts


def _about(result: Attention) -> str:
    sizes = [plural(result.n_heads, "head"), str(result.attention.dtype)]
    if result.n_layers > 1:
        sizes.insert(0, plural(result.n_layers, "layer"))
    masks = ", ".join(printable(name) for name in result.masks)
    return ", ".join([*sizes, f"masks: {masks}" if masks else "no mask"])


def print_comparison(comparison: Comparison, console: Console, top: int) -> None:
    """Print the `top` heads that changed most, each with its largest difference of a weight."""
    paper = Paper.of(console)
    changed = [head for head in comparison.heads if head.broken or head.difference != 0]
    same = len(comparison.heads) - len(changed)
    if same:
        text = f"{plural(same, 'head')} in which no weight differs"
        write(console, *flow([paper.text(text)], paper.width, "  "))
    if not changed:
        return
    heads = changed[:top]
    title = "heads that changed, the most first"
    title += f": {len(heads):,} of {len(changed):,}" if len(heads) < len(changed) else ""
    write(console, *flow([paper.text(title, "bold")], paper.width, "  "))
    longest = max((head.bits for head in heads if not isnan(head.bits)), default=0.0)
    table = [_row(comparison, head, rank, longest, paper) for rank, head in enumerate(heads, 1)]
    columns = ["#", "head", "bits", "", "B − A", "A", "B", "query → key"]
    lines = grid([paper.text(name).plain for name in columns], table, {0, 2, 4, 5, 6})
    if widest(lines) <= paper.width:
        write(console, lines[0], paper.rule(widest(lines)), *lines[1:])
    else:
        for _, head, bits, _, difference, a, b, place in table:
            pieces = [head, bits + Text(" bits"), difference, Text("A ") + a, Text("B ") + b, place]
            if not difference.plain:
                pieces = [head, bits + Text(" bits"), place]
            write(console, *flow(pieces, paper.width, "  "))
    units = [
        "bits: mean Jensen–Shannon divergence of a row, 0 to 1",
        "B − A: the largest difference of a weight",
    ]
    write(console, *flow([paper.text(text, "dim") for text in units], min(paper.width, 100), "  "))


def _row(
    comparison: Comparison, head: HeadDifference, rank: int, longest: float, paper: Paper
) -> list[Text]:
    bits = "-" if isnan(head.bits) else f"{head.bits:.3g}"
    length = 0 if isnan(head.bits) or not longest else round(BAR * head.bits / longest)
    bar = Text(("#" if paper.ascii_only else "━") * length, "yellow")
    row = [Text(str(rank), "dim"), Text(head_name(comparison, head), "bold"), Text(bits), bar]
    if head.broken:
        which = "A" if not isfinite(head.broken.a) else "B"
        where = place_name(comparison, head.broken, paper.ascii_only)
        return [*row, Text(), Text(), Text(), paper.text(f"{which} is no number at {where}", "red")]
    place = head.largest
    if place is None:
        return [*row, Text(), Text(), Text(), Text("no rows to compare", "dim")]
    a, b = (f"{value:.{_decimals(place)}f}" for value in (place.a, place.b))
    return [
        *row,
        paper.text(signed(place.difference), MORE if place.difference > 0 else LESS),
        Text(a),
        Text(b),
        paper.text(place_name(comparison, place, paper.ascii_only)),
    ]


def _decimals(place: ComparedCell) -> int:
    """As many as show the first two digits of the difference."""
    return min(max(2 - floor(log10(abs(place.difference))), 3), 16)


def head_name(comparison: Comparison, head: HeadDifference) -> str:
    """`3`, `L1 H3`, and with the head of B where it has another number, `3 ~ 5`."""
    name = name_of_head(comparison.a, (head.layer, head.head))
    return f"{name} ~ {head.other}" if head.other != head.head else name


def place_name(comparison: Comparison, place: ComparedCell, ascii_only: bool = False) -> str:
    """`3 cat → 0 The`, with the sequence before it where there are several."""
    sides = ((place.query, place.query_token), (place.key, place.key_token))
    named = [
        str(i)
        if token == str(i)
        else f"{i} {shorten(visible(token, ascii_only), LONGEST_TOKEN, ascii_only)}"
        for i, token in sides
    ]
    where = f"sequence {place.sequence}: " if comparison.a.batch_size > 1 else ""
    return f"{where}{' → '.join(named)}"


def comparison_verdict(comparison: Comparison, tolerance: float | None) -> str:
    """One sentence: the largest difference of a weight, and whether the tolerance allows it."""
    place, broken = comparison.largest, comparison.broken
    limit = "" if tolerance is None else f"tolerance {tolerance:g}: "
    if broken is not None:
        return f"{limit}not the same: there are weights that are no numbers"
    if place is None:
        return f"{limit}there is nothing to compare"
    size = abs(place.difference)
    if not size:
        return f"{limit}the same: no weight differs"
    if tolerance is None:
        return f"weights differ by up to {size:.3g}"
    if size <= tolerance:
        return f"{limit}the same: weights differ by up to {size:.3g}"
    return f"{limit}not the same: weights differ by up to {size:.3g}"


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────


def comparison_as_json(
    comparison: Comparison, names: tuple[str, str] = ("", ""), tolerance: float | None = None
) -> dict[str, Any]:
    """The comparison as one JSON document, version 1; its schema is `compare.schema.json`.

    Numbers are exact; what is no number is null.
    """
    from attnviz import __version__

    numbers = comparison.a.layer_numbers
    sides = zip("ab", names, (comparison.a, comparison.b), strict=True)
    return {
        "format": FORMAT,
        "version": VERSION,
        "attnviz": __version__,
        **{letter: _side(name, result) for letter, name, result in sides},
        "matched": comparison.matched,
        "sequences": list(comparison.sequences),
        "tolerance": tolerance,
        "within": None if tolerance is None else comparison.within(tolerance),
        "largest": _place(comparison.largest, numbers),
        "broken": _place(comparison.broken, numbers),
        "notes": list(comparison.notes),
        "heads": [
            {
                "layer": numbers[head.layer],
                "head": head.head,
                "other": head.other,
                "bits": _number(head.bits),
                "bits_by_sequence": [_number(bits) for bits in head.by_sequence],
                "rows": head.rows,
                "largest": _place(head.largest, numbers),
                "broken": _place(head.broken, numbers),
                "allowed_in_a_only": head.only_a,
                "allowed_in_b_only": head.only_b,
            }
            for head in comparison.heads
        ],
    }


def _side(name: str, result: Attention) -> dict[str, Any]:
    return {
        "file": name,
        "source": result.source,
        "dtype": str(result.attention.dtype),
        "shape": list(result.attention.shape),
        "layers": list(result.layer_numbers),
        "masks": list(result.masks),
    }


def _place(place: ComparedCell | None, layer_numbers: tuple[int, ...]) -> dict[str, Any] | None:
    if place is None:
        return None
    return {
        "layer": layer_numbers[place.layer],
        "head": place.head,
        "other": place.other,
        "sequence": place.sequence,
        "query": place.query,
        "key": place.key,
        "query_token": place.query_token,
        "key_token": place.key_token,
        "a": _number(place.a),
        "b": _number(place.b),
        "difference": _number(place.difference),
    }


def _number(value: float) -> float | None:
    return value if isfinite(value) else None
