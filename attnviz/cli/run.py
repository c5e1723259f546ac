"""`attnviz run`: text → attention → pictures, trace, saved run."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from attnviz.cli.console import remark, result
from attnviz.cli.facts import mask_facts, print_facts, token_facts
from attnviz.cli.files import DEFAULT_FOLDER, PAGES, PICTURES, RUNS, Staging, kind_of
from attnviz.cli.options import (
    OUTPUT,
    InputFlags,
    LayerFlags,
    LookFlags,
    MaskFlags,
    choose,
    flag,
    optional,
    spread,
)
from attnviz.cli.progress import Work
from attnviz.cli.source import Computed, Source, open_source
from attnviz.errors import ConfigError, OutputError, printable
from attnviz.render.look import Look

if TYPE_CHECKING:
    from rich.console import Console

    from attnviz.result import AttentionResult
    from attnviz.sources.run import Run

KEEPABLE = ("q", "k", "v", "scores", "context", "output")
"""What --keep can name; `attnviz.result` says what each is."""

EXAMPLES = """Examples:

attnviz run "The cat sat on the mat because it was tired." --causal

attnviz run "猫坐在垫子上" --d-model 64 --n-heads 4 -o cat.png --force"""


@spread
def run(
    inputs: InputFlags,
    layer: LayerFlags,
    masking: MaskFlags,
    look: LookFlags,
    out: Annotated[
        list[str] | None,
        optional(
            "--out",
            "-o",
            help="The suffix picks the form: a folder (an overview and a picture a head), .png "
            ".svg .pdf (the overview), .html (a page), .json .npz .safetensors (a saved run). "
            "Repeatable. \\[default: attnviz-out/]",
            panel=OUTPUT,
        ),
    ] = None,
    force: Annotated[
        bool, flag("--force", help="Replace files that are there.", panel=OUTPUT)
    ] = False,
    heads: Annotated[
        str | None,
        optional(help="Which heads to draw, from 0: 0,3-5.", panel=OUTPUT),
    ] = None,
    layers: Annotated[
        str | None,
        optional(help="Which layers to draw, from 0: 0,3-5.", panel=OUTPUT),
    ] = None,
    sequences: Annotated[
        str | None,
        optional(help="Which sequences to draw, from 0: 0,2.", panel=OUTPUT),
    ] = None,
    keep: Annotated[
        str | None,
        optional(
            help=f"Tensors to add to a saved run: {','.join(KEEPABLE)}.",
            metavar="NAMES",
            panel=OUTPUT,
        ),
    ] = None,
    save_layer: Annotated[
        Path | None,
        optional(
            help="Write the layer's parameters to this .safetensors file.",
            panel=OUTPUT,
        ),
    ] = None,
    show: Annotated[
        bool | None,
        optional(
            "--show/--no-show",
            help="Heatmaps in the terminal (on when it is one).",
            panel=OUTPUT,
        ),
    ] = None,
    trace: Annotated[
        bool,
        flag("--trace/--no-trace", help="The shape of every step.", panel=OUTPUT),
    ] = True,
    quiet: Annotated[
        bool,
        flag("--quiet", "-q", help="Print nothing but errors.", panel=OUTPUT),
    ] = False,
) -> None:
    """Run text through multi-head attention; draw every head, print every shape."""
    # What the flags alone can tell comes first: a wrong one is answered before torch is loaded.
    source = open_source(inputs, layer, masking)
    look_of_pictures, kept = look.look(), _kept(keep)
    places = [(Path(given), kind_of(given)) for given in out or [DEFAULT_FOLDER]]
    if kept and not any(kind in RUNS for _, kind in places):
        raise OutputError(f"--keep {','.join(kept)} needs a saved run: -o run.npz, say")
    if save_layer is not None and save_layer.suffix.lower() != ".safetensors":
        raise OutputError(f"--save-layer {printable(save_layer)}: the suffix must be .safetensors")
    chosen_layers = choose("--layers", layers, source.n_layers, "layers")
    numbers = choose("--heads", heads, source.n_heads, "heads")
    chosen_heads = [(layer_number, head) for layer_number in chosen_layers for head in numbers]

    text = source.read()
    chosen = choose("--sequences", sequences, len(text.queries), "sequences")
    with Staging(force) as staging, Work() as work:
        shown = spaced if look.spaces else _as_it_is
        several = (source.n_layers > 1, len(text.queries) > 1)
        outputs = Outputs(staging, look_of_pictures, chosen, chosen_heads, several, work, shown)
        for path, kind in places:
            outputs.plan(path, kind)
        layer_place = None if save_layer is None else staging.plan(save_layer)

        work.stage("computing attention")
        done = source.compute(text, kept)
        writers = outputs.writers(done.run)
        if layer_place is not None:
            from attnviz.sources.from_config import save_layer as write_layer

            writers.append(partial(write_layer, done.run.layers[0], layer_place))
            outputs.written.append(printable(save_layer))
        work.stage("drawing", outputs.n_pictures)
        staging.write(writers)
    if quiet:
        return
    from attnviz.render.console import make_console
    from attnviz.render.tables import print_heads

    console = make_console()
    for notice in (*text.notices, *done.notices, *dict.fromkeys(outputs.notices)):
        remark(notice)
    _report(source, done, console, trace)
    drawn = done.run.result
    for sequence in chosen:
        result("")
        print_heads(drawn, sequence, console, chosen_heads)
    if console.is_terminal if show is None else show:
        from attnviz.render.terminal import heatmaps

        for sequence in chosen:
            result("")
            heatmaps(shown(drawn), sequence, console, chosen_heads, look.vmax, look.cmap)
    for line in outputs.written:
        remark(f"Wrote {line}")


class Outputs:
    """What is to be written where. Planned before the computation, written after it."""

    def __init__(
        self,
        staging: Staging,
        look: Look,
        sequences: Sequence[int],
        heads: Sequence[tuple[int, int]],
        several: tuple[bool, bool],
        work: Work,
        shown: Callable[[AttentionResult], AttentionResult],
    ) -> None:
        self.written: list[str] = []
        self.notices: list[str] = []
        self.n_pictures = 0
        self._staging, self._look, self._work, self._shown = staging, look, work, shown
        self._sequences, self._heads = sequences, heads
        self._several_layers, self._several = several  # layers, sequences
        self._writers: list[Callable[[Run], list[str] | None]] = []

    def plan(self, path: Path, kind: str) -> None:
        """Claim the files of one -o."""
        if kind == "folder":
            self._plan_folder(path)
        elif kind in PICTURES:
            self._plan_overviews(path)
        elif kind in PAGES:
            self._writers.append(partial(self._page, self._staging.plan(path)))
            self.written.append(printable(path))
        else:
            self._writers.append(partial(_save, self._staging.plan(path), kind))
            self.written.append(printable(path))

    def writers(self, done: Run) -> list[Callable[[], object]]:
        """One call for each output; remarks of the renderers are collected."""
        return [partial(self._write, writer, done) for writer in self._writers]

    def _write(self, writer: Callable[[Run], list[str] | None], done: Run) -> None:
        self.notices += writer(done) or []

    def _plan_folder(self, folder: Path) -> None:
        digits = len(str(max(head for _, head in self._heads)))
        wide = len(str(max(layer for layer, _ in self._heads)))
        names = []
        for sequence in self._sequences:
            overview = f"seq{sequence}-overview.png"
            singles = [
                f"seq{sequence}-{f'layer{layer:0{wide}d}-' * self._several_layers}"
                f"head{head:0{digits}d}.png"
                for layer, head in self._heads
            ]
            names += [overview, *singles]
            place = self._staging.plan(folder / overview)
            targets = [
                (layer, head, self._staging.plan(folder / name))
                for (layer, head), name in zip(self._heads, singles, strict=True)
            ]
            self._writers.append(partial(self._overview, place, sequence))
            self._writers.append(partial(self._singles, targets, sequence))
            self.n_pictures += 1 + len(singles)
        self.written.append(f"{printable(folder)}/: {_summary(names)}")
        others = {path.name for path in folder.glob("seq*-*.png")} - set(names)
        if others:
            pictures = f"{len(others)} picture{'s' * (len(others) != 1)}"
            self.notices.append(f"{printable(folder)}/ still holds {pictures} of an earlier run")

    def _plan_overviews(self, path: Path) -> None:
        for sequence in self._sequences:
            name = path
            if self._several:
                name = path.with_name(f"{path.stem}-seq{sequence}{path.suffix}")
            self._writers.append(partial(self._overview, self._staging.plan(name), sequence))
            self.n_pictures += 1
            self.written.append(printable(name))

    def _overview(self, place: Path, sequence: int, done: Run) -> list[str]:
        from attnviz.render.heatmap import draw_overview

        notices = draw_overview(self._shown(done.result), sequence, place, self._look, self._heads)
        self._work.advance()
        return notices

    def _singles(self, targets: list[tuple[int, int, Path]], sequence: int, done: Run) -> list[str]:
        from attnviz.render.heatmap import draw_heads

        return draw_heads(
            self._shown(done.result), sequence, targets, self._look, self._work.advance
        )

    def _page(self, place: Path, done: Run) -> list[str]:
        from attnviz.render.page import write_page

        command = "attnviz " + shlex.join(sys.argv[1:])
        return write_page(
            self._shown(done.result),
            place,
            heads=self._heads,
            steps=done.steps,
            command=command,
            sequences=self._sequences,
        )


def _save(place: Path, kind: str, done: Run) -> None:
    from attnviz.result import save_json, save_npz, save_safetensors

    save = {".json": save_json, ".npz": save_npz, ".safetensors": save_safetensors}
    save[kind](done.result, place)


def _summary(names: Sequence[str]) -> str:
    return f"{names[0]} … {names[-1]} ({len(names)} files)"


def spaced(result: AttentionResult) -> AttentionResult:
    """`result` with the marks of subword tokenizers as the spaces and line ends they stand for."""
    from attnviz.render.tokens import unmarked

    def tokens(rows: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(map(unmarked, row)) for row in rows)

    return replace(
        result,
        query_tokens=tokens(result.query_tokens),
        key_tokens=tokens(result.key_tokens),
    )


def _as_it_is(result: AttentionResult) -> AttentionResult:
    return result


def _kept(keep: str | None) -> tuple[str, ...]:
    names = () if keep is None else tuple(dict.fromkeys(name.strip() for name in keep.split(",")))
    for name in names:
        if name not in KEEPABLE:
            raise ConfigError(f"--keep {printable(name)}: known are {','.join(KEEPABLE)}")
    return names


def _report(source: Source, done: Computed, console: Console, trace: bool) -> None:
    """What ran, on standard output: the facts, the tokens, the trace."""
    from attnviz.render.console import ascii_only
    from attnviz.render.tables import print_trace

    queries, keys = done.queries, done.keys
    names, allowed = done.run.result.masks, done.run.result.allowed[0]
    facts = [
        *source.facts(done.run),
        *mask_facts(names, allowed if names else None, queries, queries if keys is None else keys),
        *token_facts(queries, keys, ascii_only(console)),
    ]
    print_facts(console, facts)
    if trace:
        result("")
        print_trace(done.run.steps, console, cross=keys is not None)
