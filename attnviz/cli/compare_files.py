"""What `attnviz compare` does: reads two files, compares them, draws and reports what differs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from attnviz.cli.compare_flags import ComparisonFlags, ComparisonOutput
from attnviz.cli.facts import print_facts
from attnviz.cli.files import PICTURES, Staging
from attnviz.cli.options import ArrayFlags, LookFlags, choose, choose_layers
from attnviz.cli.outputs import PlannedFiles, shown_by
from attnviz.cli.progress import Work
from attnviz.cli.streams import result, verdict, warn
from attnviz.comparison import Comparison, check_sizes, compare, with_tokens_of
from attnviz.errors import InputError
from attnviz.render.comparison_report import (
    comparison_as_json,
    comparison_facts,
    comparison_verdict,
    print_comparison,
)
from attnviz.render.console import ascii_only, make_console
from attnviz.render.figure_options import FigureOptions
from attnviz.render.visible import notation
from attnviz.result import Attention, only_layers
from attnviz.sources.bare_arrays import BareArray, Places, open_attention

DIFFERENT = 3
"""The exit code where a weight differs by more than --tolerance."""


def compare_files(
    paths: tuple[Path, Path],
    array: ArrayFlags,
    look: LookFlags,
    output: ComparisonOutput,
    how: ComparisonFlags,
) -> None:
    """Compare the attention in two files, draw what differs, and report it."""
    names = str(paths[0]), str(paths[1])
    with Work() as work:
        work.stage("reading")
        a, b = (_open(path, array) for path in paths)
        _check_sizes(a, b, how.match)
        layers = choose_layers(output.layers, a.layer_numbers)
        heads = choose("--heads", output.heads, a.shape[2], "heads")
        sequences = output.chosen_sequences(a.shape[1])
        with Staging(output.force) as staging:
            several = len(layers) > 1, a.shape[1] > 1
            outputs = ComparisonOutputs(staging, look, sequences, several, paths, work)
            outputs.n_three_panels = min(how.top, len(layers) * len(heads))
            for path, kind in output.places():
                outputs.plan(path, kind)
            indices = [a.layer_numbers.index(layer) for layer in layers]
            both, notes = _read((a, b), array, (indices, sequences, heads), how.match)
            work.stage("comparing", len(layers) * (len(heads) + how.match))
            found = compare(
                *both, heads=heads, sequences=sequences, match=how.match, on_done=work.advance
            )
            outputs.document = comparison_as_json(found, names, how.tolerance)
            work.stage("drawing", outputs.n_pictures)
            staging.write(outputs.writers(found))
    differs = how.tolerance is not None and not found.within(how.tolerance)
    with verdict(DIFFERENT if differs else 0):
        if output.quiet:
            return
        for note in (*notes, *dict.fromkeys(outputs.warnings)):
            warn(note)
        if how.as_json:
            result(json.dumps(outputs.document, indent=1, allow_nan=False))
        else:
            _print(found, outputs.as_shown(found), names, how, output.show, look.vmax)
        for line in outputs.written:
            warn(f"Wrote {line}")


def _print(
    found: Comparison,
    drawn: Comparison,
    names: tuple[str, str],
    how: ComparisonFlags,
    show: bool | None,
    vmax: float | None,
) -> None:
    """What was compared, the table, the map of the most changed head, the verdict."""
    console = make_console()
    facts = [*comparison_facts(found, names), *(("note", note) for note in found.notes)]
    plain = ascii_only(console)
    print_facts(console, [(label, notation(text, plain)) for label, text in facts])
    result("")
    print_comparison(found, console, how.top)
    if console.is_terminal if show is None else show:
        from attnviz.render.terminal_maps import print_difference_map

        for sequence in found.sequences:
            result("")
            print_difference_map(drawn, drawn.heads[0], sequence, console, vmax)
    result("", notation(comparison_verdict(found, how.tolerance), plain))


# ── the two files ────────────────────────────────────────────────────────────────────────────


Opened = Attention | BareArray
"""One of the two files, whose numbers are not read yet."""


def _open(path: Path, array: ArrayFlags) -> Opened:
    found = open_attention(path, axes=array.axes, attention=array.attention)
    if isinstance(found, BareArray):
        found.require_as_many_heads()
    return found


def _check_sizes(a: Opened, b: Opened, match: bool) -> None:
    """Raise `InputError` where the two differ in size, and say how bare arrays were read."""
    try:
        check_sizes(a.shape, b.shape, match)
    except InputError as error:
        arrays = [side for side in (a, b) if isinstance(side, BareArray)]
        raise InputError("; ".join([str(error), *(each.notes[0] for each in arrays)])) from None


def _read(
    sides: tuple[Opened, Opened], array: ArrayFlags, places: Places, match: bool
) -> tuple[tuple[Attention, Attention], list[str]]:
    """The wanted layers of both. A bare array without --tokens has those of the saved run beside
    it."""
    layers, sequences, heads = places
    runs = [
        only_layers(side, layers) if len(layers) < side.n_layers else side
        for side in sides
        if isinstance(side, Attention)
    ]
    if len(runs) == 2:
        if array.given:
            raise InputError(
                f"both files are saved runs, which know their axes and tokens; {array.given[0]} is "
                "for bare arrays"
            )
        return (runs[0], runs[1]), []
    names_tokens = set(array.given) - {"--axes", "--attention", "--softmax"}
    notes: list[str] = []
    both: list[Attention] = []
    for name, side in zip("AB", sides, strict=True):
        if isinstance(side, Attention):
            both.append(runs[0])
            continue
        wanted = layers, sequences, range(side.shape[2]) if match else heads
        batches = array.batches(side)
        read = side.read(*batches, softmax=array.softmax, wanted=wanted)
        both.append(with_tokens_of(read, runs[0], name) if runs and not names_tokens else read)
        notes += side.notes
    return (both[0], both[1]), notes


# ── files ────────────────────────────────────────────────────────────────────────────────────


class ComparisonOutputs(PlannedFiles[Comparison]):
    """Pictures and JSON of a comparison."""

    document: object = None
    """The comparison as JSON."""

    n_three_panels = 0
    """Heads that have a picture of their own, in a folder."""

    def __init__(
        self,
        staging: Staging,
        look: LookFlags,
        sequences: Sequence[int],
        several: tuple[bool, bool],
        paths: tuple[Path, Path],
        work: Work,
    ) -> None:
        """`several` says whether there are more layers than one, and more sequences, drawn or
        not."""
        super().__init__(staging, sequences, several[1])
        self._look: FigureOptions = look.look()
        self._names, self._advance = (paths[0].name, paths[1].name), work.advance
        self._shown: Callable[[Attention], Attention] = shown_by(look)
        self._several_layers = several[0]

    def plan(self, path: Path, kind: str) -> None:
        """Claim the files of one -o."""
        if kind == "folder":
            self._plan_folder(path)
        elif kind in PICTURES:
            for sequence, place in self._claim_pictures(path):
                self._writers.append(partial(self._differences, sequence, place))
        else:
            self._writers.append(partial(self._save, self._claim(path)))

    def _plan_folder(self, folder: Path) -> None:
        digits = len(str(self.n_three_panels))
        ranks = range(1, self.n_three_panels + 1)
        pictures = ["differences.png", *(f"top{rank:0{digits}d}.png" for rank in ranks)]
        names = ["distances.png"] if self._several_layers else []
        names += [f"seq{sequence}-{name}" for sequence in self._sequences for name in pictures]
        places = iter(self._claim_folder(folder, names))
        if self._several_layers:
            self._writers.append(partial(self._distances, next(places)))
        for sequence in self._sequences:
            self._writers.append(partial(self._differences, sequence, next(places)))
            three_panels = [next(places) for _ in ranks]
            self._writers.append(partial(self._three_panels, sequence, three_panels))

    def as_shown(self, found: Comparison) -> Comparison:
        """The comparison with its tokens as they are drawn."""
        return replace(found, a=self._shown(found.a), b=self._shown(found.b))

    def _distances(self, place: Path, found: Comparison) -> list[str]:
        from attnviz.render.comparison_pictures import draw_distances

        warnings = draw_distances(self.as_shown(found), place, self._look, self._names)
        self._advance()
        return warnings

    def _differences(self, sequence: int, place: Path, found: Comparison) -> list[str]:
        from attnviz.render.comparison_pictures import draw_differences

        drawn = self.as_shown(found)
        warnings = draw_differences(drawn, sequence, place, self._look, self._names)
        self._advance()
        return warnings

    def _three_panels(self, sequence: int, places: list[Path], found: Comparison) -> list[str]:
        from attnviz.render.comparison_pictures import draw_three_panels

        targets = list(zip(found.heads, places, strict=False))
        drawn = self.as_shown(found)
        return draw_three_panels(drawn, sequence, targets, self._look, self._names, self._advance)

    def _save(self, place: Path, _: Comparison) -> None:
        text = json.dumps(self.document, indent=1, allow_nan=False)
        place.write_text(f"{text}\n", encoding="ascii", newline="\n")
