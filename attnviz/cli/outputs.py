"""Files in every format, and measures and maps in the terminal, made of attention."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from attnviz.cli.files import PAGES, PICTURES, Staging
from attnviz.cli.options import LookFlags
from attnviz.cli.progress import Work
from attnviz.cli.streams import result, warn
from attnviz.errors import ConfigError, printable

if TYPE_CHECKING:
    from rich.console import Console

    from attnviz.combined_heads import Combination
    from attnviz.render.overlay_picture import Photo
    from attnviz.result import Attention
    from attnviz.trace import Step

Done = TypeVar("Done")
"""What a computation gives."""


class PlannedFiles(Generic[Done]):
    """Files that are claimed before the computation and written after it.

    A subclass says how each is made of what was computed.
    """

    def __init__(self, staging: Staging, sequences: Sequence[int], several: bool) -> None:
        """`sequences` are those to draw; `several` says whether there are more than one at all."""
        self.written: list[str] = []
        """What was written, in words."""
        self.warnings: list[str] = []
        """What the renderers had to leave out, and files of earlier runs."""
        self.n_pictures = 0
        self._staging, self._sequences, self._several = staging, sequences, several
        self._writers: list[Callable[[Done], list[str] | None]] = []

    def writers(self, done: Done) -> list[Callable[[], object]]:
        """One call for each output; warnings of the renderers are collected."""
        return [partial(self._write, writer, done) for writer in self._writers]

    def _write(self, writer: Callable[[Done], list[str] | None], done: Done) -> None:
        self.warnings += writer(done) or []

    def _claim(self, path: Path) -> Path:
        """The temporary place of one file."""
        place = self._staging.plan(path)
        self.written.append(printable(path))
        return place

    def _claim_pictures(self, path: Path) -> list[tuple[int, Path]]:
        """(sequence, temporary place) of one picture per sequence."""
        self.n_pictures += len(self._sequences)
        if not self._several:
            return [(sequence, self._claim(path)) for sequence in self._sequences]
        return [
            (sequence, self._claim(path.with_name(f"{path.stem}-seq{sequence}{path.suffix}")))
            for sequence in self._sequences
        ]

    def _claim_folder(self, folder: Path, names: Sequence[str]) -> list[Path]:
        """The temporary places of the pictures in a folder."""
        self.n_pictures += len(names)
        places = [self._staging.plan(folder / name) for name in names]
        self.written.append(f"{printable(folder)}/: {names[0]} … {names[-1]} ({len(names)} files)")
        others = {path.name for path in folder.glob("seq*-*.png")} - set(names)
        if others:
            pictures = f"{len(others)} picture{'s' * (len(others) != 1)}"
            self.warnings.append(f"{printable(folder)}/ still holds {pictures} of an earlier run")
        return places


class Outputs(PlannedFiles["Attention"]):
    """Pictures, pages and saved runs of attention, and what the terminal shows of it."""

    steps: Sequence[Step] = ()
    """The trace, for the page."""

    keeps = True
    """Whether tensors that were kept are saved; those that were kept for the page alone are not."""

    pictured: tuple[Sequence[Photo], Attention] | None = None
    """What a model saw, a view for each sequence, and the maps that go with it."""

    def __init__(
        self,
        staging: Staging,
        look: LookFlags,
        sequences: Sequence[int],
        heads: Sequence[tuple[int, int]],
        several: tuple[bool, bool],
        work: Work,
    ) -> None:
        """`sequences` and `heads`, (layer, head), are those to draw, by a layer's number in its
        model; `several` says whether there are more layers than one, and more sequences."""
        super().__init__(staging, sequences, several[1])
        self._look, self._work, self._heads = look.look(), work, heads
        self._page_theme = look.theme or ""
        self._shown, self._combination = shown_by(look), look.combination()
        self._several_layers = several[0]

    def plan(self, path: Path, kind: str) -> None:
        """Claim the files of one -o."""
        if self._combination is not None and kind in PAGES:
            flag = f"--{self._combination.how}"
            raise ConfigError(f"{flag} makes pictures; -o {printable(path)} would not show it")
        if kind == "folder":
            self._plan_folder(path)
        elif kind in PICTURES:
            for sequence, place in self._claim_pictures(path):
                self._writers.append(partial(self._overview, place, sequence))
        elif kind in PAGES:
            self._writers.append(partial(self._page, self._claim(path)))
        else:
            self._writers.append(partial(self._save, self._claim(path), kind))

    def plan_overlays(self, path: Path, query: str | None) -> None:
        """Claim a picture for each sequence, of a query's attention laid over what was seen."""
        if self._combination is not None:
            raise ConfigError(f"--overlay draws single heads, not --{self._combination.how}")
        for sequence, place in self._claim_pictures(path):
            self._writers.append(partial(self._overlay, place, sequence, query))

    def _plan_folder(self, folder: Path) -> None:
        digits = len(str(max(head for _, head in self._heads)))
        wide = len(str(max(layer for layer, _ in self._heads)))
        heads = [
            f"{f'layer{layer:0{wide}d}-' * self._several_layers}head{head:0{digits}d}.png"
            for layer, head in self._heads
        ]
        if self._combination is not None:
            heads = self._combined_names(self._combination)
        n = 1 + len(heads)
        names = [f"seq{s}-{name}" for s in self._sequences for name in ("overview.png", *heads)]
        places = self._claim_folder(folder, names)
        for i, sequence in enumerate(self._sequences):
            overview, *singles = places[i * n : (i + 1) * n]
            self._writers.append(partial(self._overview, overview, sequence))
            self._writers.append(partial(self._singles, singles, sequence))

    def _combined_names(self, combination: Combination) -> list[str]:
        """A file for each map that combines heads."""
        how = combination.how
        form = {"heads": "layer{}-" + how, "layers": how + "-head{}", "all": how}[combination.over]
        if combination.over == "heads" and not self._several_layers:
            form = how
        return [f"{form.format(key)}.png" for key in combination.groups(self._heads)]

    def _drawn(self, drawn: Attention) -> tuple[Attention, list[tuple[int, int]]]:
        """The maps to draw, and where they are."""
        shown, heads = self._shown(drawn), self._at(drawn)
        if self._combination is None:
            return shown, heads
        return self._combination.apply(shown, heads)

    def _at(self, drawn: Attention) -> list[tuple[int, int]]:
        """The heads to draw by the index of their layer in `drawn`."""
        at = {number: i for i, number in enumerate(drawn.layer_numbers)}
        return [(at[layer], head) for layer, head in self._heads]

    def print_maps(self, drawn: Attention, console: Console, show: bool | None) -> None:
        """Each head's measures, its map where the terminal shows maps, and what was written."""
        from attnviz.render.head_measures import print_heads

        heads = self._at(drawn)
        for sequence in () if drawn.is_part else self._sequences:
            result("")
            print_heads(drawn, sequence, console, heads)
        if console.is_terminal if show is None else show:
            from attnviz.render.terminal_maps import print_maps

            look = self._look
            shown, heads = self._drawn(drawn)
            for sequence in self._sequences:
                result("")
                print_maps(shown, sequence, console, heads, look.vmax, look.cmap)
        for line in self.written:
            warn(f"Wrote {line}")

    def _overview(self, place: Path, sequence: int, drawn: Attention) -> list[str]:
        from attnviz.render.attention_pictures import draw_overview

        shown, heads = self._drawn(drawn)
        warnings = draw_overview(shown, sequence, place, self._look, heads)
        self._work.advance()
        return warnings

    def _singles(self, files: list[Path], sequence: int, drawn: Attention) -> list[str]:
        from attnviz.render.attention_pictures import draw_heads

        shown, heads = self._drawn(drawn)
        targets = [(*pair, file) for pair, file in zip(heads, files, strict=True)]
        return draw_heads(shown, sequence, targets, self._look, self._work.advance)

    def _overlay(
        self, place: Path, sequence: int, query: str | None, drawn: Attention
    ) -> list[str]:
        from attnviz.render.overlay_picture import draw_overlay

        assert self.pictured is not None  # set when the pictures have been seen
        views, seen = self.pictured
        heads = self._at(drawn)
        warnings = draw_overlay(seen, sequence, views[sequence], place, self._look, heads, query)
        self._work.advance()
        return warnings

    def _page(self, place: Path, drawn: Attention) -> list[str]:
        from attnviz.render.page import write_page
        from attnviz.render.page_look import PageLook

        window = None
        if drawn.has_weights_kept and drawn.is_pooled:
            from attnviz.full_resolution import windows_kept

            window = windows_kept(drawn)
        return write_page(
            self._shown(drawn),
            place,
            heads=self._at(drawn),
            sequences=self._sequences,
            steps=self.steps,
            command="attnviz " + shlex.join(sys.argv[1:]),
            window=window,
            look=PageLook(self._look, self._page_theme),
        )

    def _save(self, place: Path, kind: str, drawn: Attention) -> None:
        from dataclasses import replace

        from attnviz.saved_runs import save

        save(drawn if self.keeps else replace(drawn, kept={}), place, kind)


def shown_by(look: LookFlags) -> Callable[[Attention], Attention]:
    """What a result becomes before it is drawn: the marks of its tokens decoded, or itself."""
    if not look.decode:
        return lambda result: result
    from attnviz.merging import decoded_tokens

    return decoded_tokens
