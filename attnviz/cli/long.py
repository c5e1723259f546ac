"""What `run` does with texts whose maps are too large to be held whole, and with parts of a map."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnviz.cli.console import remark, result
from attnviz.cli.facts import Fact, mask_names, print_facts, token_facts
from attnviz.cli.files import PAGES, Staging
from attnviz.cli.options import LongFlags, LookFlags, OutputFlags
from attnviz.cli.outputs import Outputs
from attnviz.cli.progress import Work
from attnviz.cli.source import ComputedLong, Source
from attnviz.errors import ConfigError, printable
from attnviz.machine import free_memory, human_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from attnviz.cli.inputs import TextInput
    from attnviz.result import Attention

PIXELS = 1024
"""Pixels along a side, where --pool does not say."""

LARGEST_MAPS = 2**29
"""Bytes that the pictures of all heads may take, where --pool does not say: many heads have fewer
pixels."""

PAGE_PIXELS = 2**24
"""Pixels of all maps of a page together, where --pool does not say: what can be zoomed into."""

KEEPABLE = ("q", "k")
"""What a long run can keep, both together."""


@dataclass(frozen=True)
class Demand:
    """Why a text is run in blocks, in words, and what is wanted of it."""

    why: str
    flags: LongFlags


def demand(
    flags: LongFlags, source: Source, text: TextInput, layers: Collection[int]
) -> Demand | None:
    """Whether the text is to be run in blocks; None where whole maps will do."""
    if flags.given:
        return Demand("a part of the map", flags)
    if flags.pool is not None:
        return Demand(f"--pool {flags.pool}", flags)
    needed, budget = source.bytes_needed(text, layers), flags.budget()
    limit = free_memory() // 2 if budget is None else budget
    if needed <= limit:
        return None
    said = (
        f"half of the free memory, {human_bytes(limit)}"
        if budget is None
        else f"--memory {printable(flags.memory)}"
    )
    return Demand(f"whole maps would take {human_bytes(needed)}, more than {said}", flags)


def run_in_blocks(
    source: Source,
    text: TextInput,
    demanded: Demand,
    look: LookFlags,
    output: OutputFlags,
    keep: Sequence[str],
    trace: bool,
) -> None:
    """Run `text` through `source` without ever holding a map; draw it, save it, report it."""
    heads = output.chosen_heads(source.n_layers, source.n_heads, source.absent)
    chosen = output.chosen_sequences(len(text.queries))
    if demanded.flags.given:
        _run_window(source, text, demanded, look, output, keep, heads, chosen, trace)
    else:
        _run_pooled(source, text, demanded, look, output, keep, heads, chosen, trace)


def _run_pooled(
    source: Source,
    text: TextInput,
    demanded: Demand,
    look: LookFlags,
    output: OutputFlags,
    keep: Sequence[str],
    heads: list[tuple[int, int]],
    chosen: list[int],
    trace: bool,
) -> None:
    wrong = next((name for name in keep if name not in KEEPABLE), None)
    if wrong is not None:
        raise ConfigError(
            f"--keep {wrong}: this text is pooled ({demanded.why}), and q,k is all that can be kept"
        )
    places = output.places()
    pages = any(kind in PAGES for _, kind in places)
    n_maps = len({layer for layer, _ in heads}) * source.n_heads * len(text.queries)
    pixels = demanded.flags.pool or _usual_pixels(n_maps, pages)
    with Staging(output.force) as staging, Work() as work:
        several = (source.n_layers > 1, len(text.queries) > 1)
        outputs = Outputs(staging, look, chosen, heads, several, work)
        for path, kind in places:
            outputs.plan(path, kind)
        from attnviz.sources.long import Pooler, Pooling

        pooling = Pooling(pixels, keep=bool(keep), lend=pages)
        layers = sorted({layer for layer, _ in heads})

        def progress(done: int, total: int) -> None:
            if done == 0 or not progressing:
                progressing.append(True)
                work.stage("pooling attention", total, "weights")
            work.reach(done, total)

        progressing: list[bool] = []
        pooler = Pooler(pooling, len(layers), progress, layers)
        work.stage("reading")
        done = source.compute_long(text, pooling, pooler.each, layers, work.stage)
        queries, keys = done.queries, done.queries if done.keys is None else done.keys
        pooled = pooler.result(queries, keys, done.run.facts)
        outputs.steps, outputs.keeps = done.run.steps, bool(keep)
        work.stage("drawing", outputs.n_pictures)
        staging.write(outputs.writers(pooled))
    if output.quiet:
        return
    from attnviz.render.console import make_console

    console = make_console()
    for notice in (*text.notices, *done.notices, *dict.fromkeys(outputs.warnings)):
        remark(notice)
    _report(source, done, pooled_facts(pooled, demanded.why), console, trace)
    outputs.print_maps(pooled, console, output.show)


def _usual_pixels(n_maps: int, pages: bool) -> int:
    """Pixels along a side, so that all maps together stay within bounds."""
    most = PIXELS
    if pages:
        most = 4 * PIXELS
        while most > PIXELS and most**2 * n_maps > PAGE_PIXELS:
            most //= 2
    while most > 128 and most**2 * 8 * n_maps > LARGEST_MAPS:
        most //= 2
    return most


def _run_window(
    source: Source,
    text: TextInput,
    demanded: Demand,
    look: LookFlags,
    output: OutputFlags,
    keep: Sequence[str],
    heads: list[tuple[int, int]],
    chosen: list[int],
    trace: bool,
) -> None:
    if keep:
        raise ConfigError(f"--keep {','.join(keep)} keeps whole tensors; --rows and --cols a part")
    require_one_sequence(chosen)
    from attnviz.sources.long import Pooling, Windows

    with Staging(output.force) as staging, Work() as work:
        outputs = Outputs(staging, look, [0], heads, (source.n_layers > 1, False), work)
        for path, kind in output.places():
            outputs.plan(path, kind)
        layers = sorted({layer for layer, _ in heads})
        windows = Windows(demanded.flags.ranges, chosen[0], heads)
        work.stage("computing attention")
        done = source.compute_long(text, Pooling(1, 0), windows.each, layers, work.stage)
        keys = done.queries if done.keys is None else done.keys
        drawn = windows.result(done.queries, keys, done.run.facts)
        work.stage("drawing", outputs.n_pictures)
        outputs.steps = done.run.steps
        staging.write(outputs.writers(drawn))
    if output.quiet:
        return
    from attnviz.render.console import make_console

    console = make_console()
    for notice in (*text.notices, *done.notices, *dict.fromkeys(outputs.warnings)):
        remark(notice)
    _report(source, done, [mask_names(drawn.masks), *part_facts(drawn)], console, trace)
    outputs.print_maps(drawn, console, output.show)


def require_one_sequence(chosen: Sequence[int]) -> None:
    """Raise `ConfigError` where a window would be one of several sequences."""
    if len(chosen) > 1:
        raise ConfigError(
            f"--rows and --cols draw a part of one sequence, there are {len(chosen)}: "
            f"--sequences {chosen[0]}, say"
        )


def part_facts(drawn: Attention) -> list[Fact]:
    """Which part of the map it is; its weights are those of the whole."""
    (first, end), (key, last) = drawn.config["part"]
    return [
        ("part", f"queries {first:,} to {end - 1:,}, keys {key:,} to {last - 1:,}, exactly"),
        ("", "a weight is its share of all keys, not of those shown"),
    ]


def pooled_facts(pooled: Attention, why: str) -> list[Fact]:
    """Why a run was pooled, what a pixel is, and what is exact."""
    rows, keys = pooled.cells
    pixels = f"{pooled.mean.shape[3]} × {pooled.mean.shape[4]} pixels"
    size = f"{pooled.n_queries:,} × {pooled.n_keys:,} weights"
    exact = "means, largest weights and each row's numbers are of every weight; none is left out"
    return [
        mask_names(pooled.masks),
        ("pooled", why or "a saved long run"),
        ("", f"{size} a head as {pixels} of {rows} × {keys}; {exact}"),
    ]


def _report(
    source: Source, done: ComputedLong, more: list[Fact], console: Console, trace: bool
) -> None:
    from attnviz.render.console import ascii_only
    from attnviz.render.tables import print_trace

    facts = [
        *source.facts(done.run),
        *more,
        *token_facts(done.queries, done.keys, ascii_only(console)),
    ]
    print_facts(console, facts)
    if trace and done.run.steps:
        result("")
        print_trace(done.run.steps, console, cross=done.keys is not None)
