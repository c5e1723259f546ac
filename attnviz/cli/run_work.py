"""The work of `attnviz run`: one pass through a source, one collector, and what is made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from attnviz.cli.facts import (
    mask_facts,
    mask_names,
    part_facts,
    pooled_facts,
    print_facts,
    token_facts,
)
from attnviz.cli.files import PAGES, Staging
from attnviz.cli.options import (
    LongFlags,
    LookFlags,
    OutputFlags,
    TokenFlags,
    require_one_sequence,
)
from attnviz.cli.outputs import Outputs
from attnviz.cli.progress import Work
from attnviz.cli.streams import result, warn
from attnviz.collectors.map_windows import MapWindows
from attnviz.collectors.pooled_maps import PooledMaps, Pooling
from attnviz.collectors.whole_maps import WholeMaps
from attnviz.errors import ConfigError, OutputError, printable
from attnviz.machine import free_memory, human_bytes
from attnviz.pipeline import Line, Pass, Source, Tokenized, n_layers
from attnviz.render.console import ascii_only, make_console
from attnviz.render.visible import visible_text
from attnviz.tokens import Texts

if TYPE_CHECKING:
    from rich.console import Console

    from attnviz.result import Attention

PIXELS = 1024
"""Pixels along a side, where --pool does not say."""

LARGEST_MAPS = 2**29
"""Bytes that the pictures of all heads may take, where --pool does not say: many heads have fewer
pixels."""

PAGE_PIXELS = 2**24
"""Pixels of all maps of a page together, where --pool does not say: what can be zoomed into."""

KEPT_BY_ROWS = ("q", "k")
"""What a run by rows can keep, both together."""


@dataclass(frozen=True)
class RunRequest:
    """What `run` was asked for, apart from the source and its texts; every flag is checked."""

    look: LookFlags
    tokens: TokenFlags
    output: OutputFlags
    long: LongFlags
    keep: tuple[str, ...]
    save_layer: Path | None
    overlay: Path | None
    overlay_query: str | None
    trace: bool
    heads: list[tuple[int, int]]

    @property
    def layers(self) -> set[int]:
        """The layers that are drawn, by number."""
        return {layer for layer, _ in self.heads}


def run_texts(source: Source, texts: Texts, request: RunRequest) -> None:
    """Run `texts` through `source`; draw what comes, save it, report it."""
    output = request.output
    with Work() as work:
        if needs_loading(source):
            work.stage("opening")
        tokens = source.tokens(texts)
    why = _why_by_rows(source, tokens, request)
    if why is not None:
        _require_rows_suffice(request, why)
    chosen = output.chosen_sequences(tokens.queries.size)
    drawn_sequences = chosen
    if request.long.given:
        require_one_sequence(chosen)
        drawn_sequences = [0]
    with Staging(output.force) as staging, Work() as work:
        several = n_layers(source) > 1, tokens.queries.size > 1 and not request.long.given
        outputs = Outputs(staging, request.look, drawn_sequences, request.heads, several, work)
        for path, kind in output.places():
            outputs.plan(path, kind)
        if request.overlay is not None:
            outputs.plan_overlays(request.overlay, request.overlay_query)
        layer_file = None if request.save_layer is None else staging.plan(request.save_layer)
        collector = _collector(source, tokens, request, why, chosen[0], work)
        work.stage("reading" if isinstance(collector, PooledMaps) else "computing attention")
        done = source.run(tokens, collector, request.layers, work.stage)
        whole = collector.result(done)
        outputs.pictured = done.views, whole
        outputs.steps, outputs.keeps = done.steps, bool(request.keep)
        seen = request.tokens.seen(whole) if request.tokens.given else whole
        writers = outputs.writers(seen)
        if layer_file is not None:
            from attnviz.sources.saved_layers import save_layers

            writers.append(partial(save_layers, layer_file, done.modules))
            outputs.written.append(printable(request.save_layer))
        work.stage("drawing", outputs.n_pictures)
        staging.write(writers)
    if output.quiet:
        return
    console = make_console()
    missing = [name for name in request.keep if name not in whole.kept]
    if missing:
        warn(f"--keep {','.join(missing)}: this layer has no such step")
    unmet = request.tokens.unmet(whole, seen)
    notes = (*tokens.notes, *done.notes, *done.review(whole), *unmet, *outputs.warnings)
    for note in dict.fromkeys(notes):
        warn(note)
    _report(source, done, whole, seen.notes, console, request.trace, why)
    outputs.print_maps(seen, console, output.show)


def needs_loading(source: Source) -> bool:
    """Whether a source has to be opened before it can cut texts into tokens."""
    return hasattr(source, "loaded")


def _why_by_rows(source: Source, tokens: Tokenized, request: RunRequest) -> str | None:
    """Why the text is run by rows, in words; None where full maps fit."""
    flags = request.long
    if flags.given:
        return "a part of the map"
    if flags.pool is not None:
        return f"--pool {flags.pool}"
    needed, budget = source.bytes_needed(tokens, request.layers), flags.budget()
    limit = free_memory() // 2 if budget is None else budget
    if needed <= limit:
        return None
    most = (
        f"half of the free memory, {human_bytes(limit)}"
        if budget is None
        else f"--memory {printable(flags.memory)}"
    )
    return f"whole maps would take {human_bytes(needed)}, more than {most}"


def _require_rows_suffice(request: RunRequest, why: str) -> None:
    """Raise where something was asked for that needs full maps."""
    blocks = f"whole maps, and this text is run in blocks ({why})"
    if request.save_layer is not None:
        raise OutputError(f"--save-layer goes with {blocks}")
    if request.tokens.given:
        raise ConfigError(f"{request.tokens.given[0]} goes with {blocks}")
    if request.long.given and request.keep:
        raise ConfigError(
            f"--keep {','.join(request.keep)} keeps whole tensors; --rows and --cols a part"
        )
    wrong = next((name for name in request.keep if name not in KEPT_BY_ROWS), None)
    if wrong is not None:
        raise ConfigError(
            f"--keep {wrong}: this text is pooled ({why}), and q,k is all that can be kept"
        )


def _collector(
    source: Source,
    tokens: Tokenized,
    request: RunRequest,
    why: str | None,
    sequence: int,
    work: Work,
) -> WholeMaps | PooledMaps | MapWindows:
    if why is None:
        return WholeMaps(request.keep)
    if request.long.given:
        return MapWindows(request.long.ranges, sequence, request.heads)
    pages = any(kind in PAGES for _, kind in request.output.places())
    n_maps = len(request.layers) * source.n_heads * tokens.queries.size
    pixels = request.long.pool or usual_pixels(n_maps, pages)
    pooling = Pooling(pixels, keep=bool(request.keep), lend=pages)
    started: list[bool] = []

    def progress(done: int, total: int) -> None:
        if done == 0 or not started:
            started.append(True)
            work.stage("pooling attention", total, "weights")
        work.reach(done, total)

    return PooledMaps(pooling, len(request.layers), progress)


def usual_pixels(n_maps: int, pages: bool) -> int:
    """Pixels along a side, so that all maps together stay within bounds."""
    most = PIXELS
    if pages:
        most = 4 * PIXELS
        while most > PIXELS and most**2 * n_maps > PAGE_PIXELS:
            most //= 2
    while most > 128 and most**2 * 8 * n_maps > LARGEST_MAPS:
        most //= 2
    return most


def _report(
    source: Source,
    done: Pass,
    whole: Attention,
    notes: Sequence[str],
    console: Console,
    trace: bool,
    why: str | None,
) -> None:
    """What ran, on standard output: the source, the masks, the tokens, the trace."""
    from attnviz.render.trace_table import print_trace

    queries, keys = done.queries, done.keys
    report = [(label, visible_text(text)) for label, text in source.report(done)]
    lines = [*report, *_mask_lines(done, whole, why)]
    lines += [(label, visible_text(text)) for label, text in done.lines] or token_facts(
        queries, keys, ascii_only(console)
    )
    lines += [("shown", printable(note)) for note in notes]
    print_facts(console, lines)
    if trace and (done.steps or why is None):
        result("")
        print_trace(done.steps, console, cross=keys is not None)


def _mask_lines(done: Pass, drawn: Attention, why: str | None) -> Sequence[Line]:
    if drawn.is_part:
        return [mask_names(drawn.masks), *part_facts(drawn)]
    if drawn.is_pooled:
        return pooled_facts(drawn, why or "")
    masked = done.queries if done.keys is None else done.keys
    allowed = drawn.allowed[0, ..., : masked.width]  # a key of the layer's own is no cell
    return mask_facts(drawn.masks, allowed if drawn.masks else None, done.queries, masked)
