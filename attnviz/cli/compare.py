"""`attnviz compare A B`: how far apart two results are, head by head."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnviz.cli.console import remark, result, verdict
from attnviz.cli.facts import print_facts
from attnviz.cli.files import PICTURES, Staging, kind_of
from attnviz.cli.options import (
    OUTPUT,
    ArrayFlags,
    LookFlags,
    OutputFlags,
    choose,
    flag,
    optional,
    spread,
)
from attnviz.cli.outputs import shown_by
from attnviz.cli.progress import Work
from attnviz.errors import ConfigError, InputError, OutputError, printable
from attnviz.wording import plural

if TYPE_CHECKING:
    from attnviz.comparison import Comparison
    from attnviz.render.look import Look
    from attnviz.result import Attention
    from attnviz.sources.from_arrays import BareArray

DIFFERENT = 3
"""The exit code where a weight differs by more than --tolerance."""

COMPARE = "Compare"

EXAMPLES = """Examples:

attnviz run "a cat" -o a.npz; attnviz run "a cat" --causal -o b.npz; attnviz compare a.npz b.npz

attnviz run 猫坐 -o c.npz; attnviz run 猫坐 --seed 1 -o d.npz; attnviz compare c.npz d.npz --match

Of another code: attnviz compare ours.npz theirs.npy --tolerance 1e-5 -o changes/"""


@dataclass(frozen=True)
class ComparisonOutput(OutputFlags):
    """The forms that a comparison can be written in."""

    out: Annotated[
        list[str] | None,
        optional(
            "--out",
            "-o",
            help="The suffix picks the form: a folder (a matrix of distances, the differences of "
            "all heads, and A, B and their difference for each of the --top heads), .png .svg .pdf "
            "(the differences), .json. Repeatable. Nothing is written without it.",
            panel=OUTPUT,
        ),
    ] = None

    def places(self) -> list[tuple[Path, str]]:
        """Each path to write, and its form."""
        places = [(Path(given), kind_of(given)) for given in self.out or ()]
        for path, kind in places:
            if kind not in ("folder", ".json", *PICTURES):
                raise OutputError(
                    f"-o {printable(path)}: a comparison is written as .png .svg .pdf .json, "
                    "or to a folder (no suffix)"
                )
        return places


@spread
def compare(
    a: Annotated[
        Path,
        typer.Argument(
            metavar="A",
            help="A saved run, or an array of attention (.npy .npz .safetensors .pt .pth).",
            show_default=False,
        ),
    ],
    b: Annotated[
        Path,
        typer.Argument(metavar="B", help="Another, over the same tokens.", show_default=False),
    ],
    array: ArrayFlags,
    look: LookFlags,
    output: ComparisonOutput,
    match: Annotated[
        bool,
        flag(
            "--match",
            panel=COMPARE,
            help="Pair the heads of each layer by likeness; otherwise by index.",
        ),
    ] = False,
    tolerance: Annotated[
        float | None,
        optional(
            panel=COMPARE,
            metavar="X",
            help="Exit with 3 where a weight differs by more than X, or is no number: 1e-5, say.",
        ),
    ] = None,
    top: Annotated[
        int,
        flag(panel=COMPARE, metavar="N", help="How many of the most changed heads to show."),
    ] = 10,
    as_json: Annotated[
        bool, flag("--json", help="Print all heads, as JSON, and nothing else.", panel=OUTPUT)
    ] = False,
) -> None:
    """Compare two results over the same tokens: which heads changed, where, by how much."""
    look_of_pictures, places = look.look(), output.places()
    if top < 1:
        raise ConfigError(f"--top is {top}; at least 1 is expected")
    if tolerance is not None and not (isfinite(tolerance) and tolerance >= 0):
        raise ConfigError(f"--tolerance is {tolerance:g}; 0 or more is expected, 1e-5, say")
    names = str(a), str(b)
    with Work() as work:
        work.stage("reading")
        opened = _open(a, array), _open(b, array)
        n_layers, n_sequences, n_heads, _, _ = _shape(opened[0])
        layers = choose("--layers", output.layers, n_layers, "layers")
        heads = choose("--heads", output.heads, n_heads, "heads")
        sequences = output.chosen_sequences(n_sequences)
        with Staging(output.force) as staging:
            n_triptychs = min(top, len(layers) * len(heads))
            outputs = Outputs(staging, sequences, n_sequences > 1, len(layers) > 1, n_triptychs)
            for path, kind in places:
                outputs.plan(path, kind)

            from attnviz import comparison
            from attnviz.render.comparison_report import comparison_as_json

            both, notices = _read(opened, array, (layers, sequences, heads), match)
            work.stage("comparing", len(layers) * (len(heads) + match))
            found = comparison.compare(
                *both,
                layers=layers,
                heads=heads,
                sequences=sequences,
                match=match,
                on_done=work.advance,
            )
            document = comparison_as_json(found, names, tolerance)
            shown = shown_by(look)
            drawn = replace(found, a=shown(found.a), b=shown(found.b))
            work.stage("drawing", outputs.n_pictures)
            staging.write(
                outputs.writers(drawn, look_of_pictures, (a.name, b.name), document, work.advance)
            )
    differs = tolerance is not None and not found.within(tolerance)
    with verdict(DIFFERENT if differs else 0):
        if not output.quiet:
            for notice in (*notices, *dict.fromkeys(outputs.notices)):
                remark(notice)
            if as_json:
                result(json.dumps(document, indent=1, allow_nan=False))
            else:
                _report(found, names, drawn, top, tolerance, output.show, look.vmax)
            for line in outputs.written:
                remark(f"Wrote {line}")


def _report(
    found: Comparison,
    names: tuple[str, str],
    drawn: Comparison,
    top: int,
    tolerance: float | None,
    show: bool | None,
    vmax: float | None,
) -> None:
    """What was compared, the table, the map of the most changed head, the verdict."""
    from attnviz.render.comparison_report import comparison_facts, print_comparison, verdict
    from attnviz.render.console import ascii_only, make_console
    from attnviz.render.visible import notation

    console = make_console()
    facts = [*comparison_facts(found, names), *(("note", note) for note in found.notes)]
    plain = ascii_only(console)
    print_facts(console, [(label, notation(text, plain)) for label, text in facts])
    result("")
    print_comparison(found, console, top)
    if console.is_terminal if show is None else show:
        from attnviz.render.terminal_difference import difference_map

        for sequence in found.sequences:
            result("")
            difference_map(drawn, drawn.heads[0], sequence, console, vmax)
    result("", notation(verdict(found, tolerance), plain))


# ── the two files ────────────────────────────────────────────────────────────────────────────


def _open(path: Path, array: ArrayFlags) -> Attention | BareArray:
    from attnviz.sources.from_arrays import open_attention

    if path == Path("-"):
        raise InputError("attention is read from files, not from standard input; save it first")
    return open_attention(path, axes=array.axes, attention=array.attention)


def _shape(opened: Attention | BareArray) -> tuple[int, ...]:
    from attnviz.result import Attention

    return opened.attention.shape if isinstance(opened, Attention) else opened.shape


def _read(
    opened: tuple[Attention | BareArray, Attention | BareArray],
    array: ArrayFlags,
    places: tuple[Sequence[int], Sequence[int], Sequence[int]],
    match: bool,
) -> tuple[tuple[Attention, Attention], list[str]]:
    """Both as results. A bare array without --tokens has those of the saved run beside it."""
    from attnviz.comparison import with_tokens_of
    from attnviz.result import Attention

    runs = [side for side in opened if isinstance(side, Attention)]
    given = [name for name in array.given if name not in ("--axes", "--attention")]
    if len(runs) == 2 and array.given:
        raise InputError(
            f"both files are saved runs, which know their axes and tokens; {array.given[0]} is for "
            "bare arrays"
        )
    notices: list[str] = []
    sides: list[Attention] = []
    for side in opened:
        if isinstance(side, Attention):
            sides.append(side)
            continue
        layers, sequences, heads = places
        wanted = layers, sequences, range(side.shape[2]) if match else heads
        batches = side.batches(
            array.tokens,
            array.key_tokens,
            array.lengths_of("lengths"),
            array.lengths_of("key_lengths"),
            array.pad_side,
        )
        read = side.read(*batches, softmax=array.softmax, wanted=wanted)
        if runs and not [name for name in given if name != "--softmax"]:
            read = with_tokens_of(read, runs[0], "A" if side is opened[0] else "B")
        sides.append(read)
        notices += side.notices
    return (sides[0], sides[1]), notices


# ── files ────────────────────────────────────────────────────────────────────────────────────


class Outputs:
    """What is to be written where. Planned before the comparison, written after it."""

    def __init__(
        self,
        staging: Staging,
        sequences: Sequence[int],
        several: bool,
        several_layers: bool,
        n_triptychs: int,
    ) -> None:
        """`several` says whether there are more sequences than one, drawn or not."""
        self.written: list[str] = []
        self.notices: list[str] = []
        self._staging, self._sequences, self._several = staging, sequences, several
        self._several_layers, self._n_triptychs = several_layers, n_triptychs
        self._matrices: list[Path] = []
        self._overviews: list[tuple[int, Path]] = []
        self._triptychs: list[tuple[int, list[Path]]] = []
        self._documents: list[Path] = []

    @property
    def n_pictures(self) -> int:
        n_matrices = len(self._matrices)
        return n_matrices + len(self._overviews) + sum(len(places) for _, places in self._triptychs)

    def plan(self, path: Path, kind: str) -> None:
        """Claim the files of one -o."""
        if kind == "folder":
            self._plan_folder(path)
        elif kind in PICTURES:
            for sequence in self._sequences:
                name = path
                if self._several:
                    name = path.with_name(f"{path.stem}-seq{sequence}{path.suffix}")
                self._overviews.append((sequence, self._staging.plan(name)))
                self.written.append(printable(name))
        else:
            self._documents.append(self._staging.plan(path))
            self.written.append(printable(path))

    def _plan_folder(self, folder: Path) -> None:
        digits = len(str(self._n_triptychs))
        names = ["distances.png"] if self._several_layers else []
        self._matrices += [self._staging.plan(folder / name) for name in names]
        for sequence in self._sequences:
            overview = f"seq{sequence}-differences.png"
            ranks = range(1, self._n_triptychs + 1)
            triptychs = [f"seq{sequence}-top{rank:0{digits}d}.png" for rank in ranks]
            self._overviews.append((sequence, self._staging.plan(folder / overview)))
            places = [self._staging.plan(folder / name) for name in triptychs]
            self._triptychs.append((sequence, places))
            names += [overview, *triptychs]
        self.written.append(f"{printable(folder)}/: {names[0]} … {names[-1]} ({len(names)} files)")
        others = {path.name for path in folder.glob("seq*-*.png")} - set(names)
        if others:
            pictures = plural(len(others), "picture")
            self.notices.append(f"{printable(folder)}/ still holds {pictures} of an earlier run")

    def writers(
        self,
        found: Comparison,
        look: Look,
        names: tuple[str, str],
        document: object,
        on_done: Callable[[], object],
    ) -> list[Callable[[], object]]:
        """One call for each output; remarks of the renderers are collected."""

        def matrix(place: Path) -> None:
            from attnviz.render.distances import draw_distances

            self.notices += draw_distances(found, place, look, names)
            on_done()

        def overview(sequence: int, place: Path) -> None:
            from attnviz.render.difference import draw_differences

            self.notices += draw_differences(found, sequence, place, look, names)
            on_done()

        def triptychs(sequence: int, places: list[Path]) -> None:
            from attnviz.render.difference import draw_triptychs

            targets = list(zip(found.heads, places, strict=False))
            self.notices += draw_triptychs(found, sequence, targets, look, names, on_done)

        def save(place: Path) -> None:
            text = json.dumps(document, indent=1, allow_nan=False)
            place.write_text(f"{text}\n", encoding="ascii", newline="\n")

        return [
            *(partial(matrix, place) for place in self._matrices),
            *(partial(overview, *target) for target in self._overviews),
            *(partial(triptychs, *target) for target in self._triptychs),
            *(partial(save, place) for place in self._documents),
        ]
