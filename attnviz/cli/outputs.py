"""What a command makes of attention: files in every form, measures and maps in the terminal."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from attnviz.cli.console import remark, result
from attnviz.cli.files import PAGES, PICTURES, Staging
from attnviz.cli.options import LookFlags
from attnviz.cli.progress import Work
from attnviz.errors import printable
from attnviz.wording import plural

if TYPE_CHECKING:
    from rich.console import Console

    from attnviz.render.photo import Photo
    from attnviz.result import Attention
    from attnviz.sources.run import Run


Done = TypeVar("Done")
"""What a computation gives."""


class Plans(Generic[Done]):
    """What is to be written where. Planned before the computation, written after it.

    A subclass says how each form is made of what was computed.
    """

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
        self.written: list[str] = []
        self.notices: list[str] = []
        self.n_pictures = 0
        self._staging, self._look, self._work = staging, look.look(), work
        self._shown = shown_by(look)
        self._sequences, self._heads = sequences, heads
        self._several_layers, self._several = several  # layers, sequences
        self._writers: list[Callable[[Done], list[str] | None]] = []

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
            self._writers.append(partial(self._save, self._staging.plan(path), kind))
            self.written.append(printable(path))

    def writers(self, done: Done) -> list[Callable[[], object]]:
        """One call for each output; remarks of the renderers are collected."""
        return [partial(self._write, writer, done) for writer in self._writers]

    def _at(self, layer_numbers: Sequence[int]) -> list[tuple[int, int]]:
        """The heads to draw by where they stand in a result with these layers."""
        at = {number: i for i, number in enumerate(layer_numbers)}
        return [(at[layer], head) for layer, head in self._heads]

    def _overview(self, place: Path, sequence: int, done: Done) -> list[str]:
        raise NotImplementedError

    def _singles(self, files: list[Path], sequence: int, done: Done) -> list[str]:
        raise NotImplementedError

    def _page(self, place: Path, done: Done) -> list[str]:
        raise NotImplementedError

    def _save(self, place: Path, kind: str, done: Done) -> None:
        raise NotImplementedError

    def _write(self, writer: Callable[[Done], list[str] | None], done: Done) -> None:
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
            files = [self._staging.plan(folder / name) for name in singles]
            self._writers.append(partial(self._overview, place, sequence))
            self._writers.append(partial(self._singles, files, sequence))
            self.n_pictures += 1 + len(singles)
        self.written.append(f"{printable(folder)}/: {_summary(names)}")
        others = {path.name for path in folder.glob("seq*-*.png")} - set(names)
        if others:
            pictures = plural(len(others), "picture")
            self.notices.append(f"{printable(folder)}/ still holds {pictures} of an earlier run")

    def _plan_overviews(self, path: Path) -> None:
        for sequence in self._sequences:
            name = self._of_sequence(path, sequence)
            self._writers.append(partial(self._overview, self._staging.plan(name), sequence))
            self.n_pictures += 1
            self.written.append(printable(name))

    def _of_sequence(self, path: Path, sequence: int) -> Path:
        if not self._several:
            return path
        return path.with_name(f"{path.stem}-seq{sequence}{path.suffix}")


class Outputs(Plans["Run"]):
    """Files of whole maps, and what the terminal shows of them.

    `pictured` is what a model saw, a view for each sequence, and the maps that go with it.
    """

    pictured: tuple[Sequence[Photo], Attention] | None = None

    def plan_overlays(self, path: Path, query: str | None) -> None:
        """Claim a picture for each sequence, of a query's attention laid over what was seen."""
        for sequence in self._sequences:
            name = self._of_sequence(path, sequence)
            self._writers.append(partial(self._overlay, self._staging.plan(name), sequence, query))
            self.n_pictures += 1
            self.written.append(printable(name))

    def print_maps(self, drawn: Attention, console: Console, show: bool | None) -> None:
        """Each head's measures, its map where the terminal shows maps, and what was written."""
        from attnviz.render.tables import print_heads

        heads = self._at(drawn.layer_numbers)
        for sequence in () if drawn.is_part else self._sequences:
            result("")
            print_heads(drawn, sequence, console, heads)
        if console.is_terminal if show is None else show:
            from attnviz.render.terminal import heatmaps

            shown, look = self._shown(drawn), self._look
            for sequence in self._sequences:
                result("")
                heatmaps(shown, sequence, console, heads, look.vmax, look.cmap)
        for line in self.written:
            remark(f"Wrote {line}")

    def _overview(self, place: Path, sequence: int, done: Run) -> list[str]:
        from attnviz.render.heatmap import draw_overview

        heads = self._at(done.result.layer_numbers)
        notices = draw_overview(self._shown(done.result), sequence, place, self._look, heads)
        self._work.advance()
        return notices

    def _singles(self, files: list[Path], sequence: int, done: Run) -> list[str]:
        from attnviz.render.heatmap import draw_heads

        places = zip(self._at(done.result.layer_numbers), files, strict=True)
        targets = [(layer, head, file) for (layer, head), file in places]
        return draw_heads(
            self._shown(done.result), sequence, targets, self._look, self._work.advance
        )

    def _overlay(self, place: Path, sequence: int, query: str | None, done: Run) -> list[str]:
        from attnviz.render.photo import draw_photo

        assert self.pictured is not None  # set when the pictures have been seen
        views, seen = self.pictured
        heads = self._at(done.result.layer_numbers)
        notices = draw_photo(seen, sequence, views[sequence], place, self._look, heads, query)
        self._work.advance()
        return notices

    def _page(self, place: Path, done: Run) -> list[str]:
        from attnviz.render.page import write_page

        command = "attnviz " + shlex.join(sys.argv[1:])
        return write_page(
            self._shown(done.result),
            place,
            heads=self._at(done.result.layer_numbers),
            steps=done.steps,
            command=command,
            sequences=self._sequences,
        )

    def _save(self, place: Path, kind: str, done: Run) -> None:  # noqa: ARG002
        from attnviz.saved_runs import save

        save(done.result, place)


def _summary(names: Sequence[str]) -> str:
    return f"{names[0]} … {names[-1]} ({len(names)} files)"


def shown_by(look: LookFlags) -> Callable[[Attention], Attention]:
    """What a result becomes before it is drawn: the marks of its tokens decoded, or itself."""
    if not look.decode:
        return lambda result: result
    from attnviz.merging import decoded_tokens

    return decoded_tokens
