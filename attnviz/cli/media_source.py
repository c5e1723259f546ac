"""`--model` with `--image` or `--audio`: what a model sees in a picture, or hears."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attnviz.cli.facts import Fact
from attnviz.cli.inputs import TextInput
from attnviz.cli.model_source import ModelSource
from attnviz.cli.source import Computed, ComputedLong
from attnviz.errors import ConfigError, printable

if TYPE_CHECKING:
    from attnviz.sources.from_media import MediaRun
    from attnviz.sources.long import Each, Pooling


class MediaSource(ModelSource):
    """A pretrained model that is given files in place of text."""

    @property
    def _kind(self) -> str:
        return "image" if self._flags.image else "audio"

    @property
    def _files(self) -> list[Path]:
        return [*(self._flags.image or ()), *(self._flags.audio or ())]

    def _choose_tower(self) -> str:
        from attnviz.sources.from_media import media_tower

        outline = self._outline
        return media_tower(outline.network, outline.source, self._kind, self._flags.attention)

    def read(self) -> TextInput:
        """The files by name: a sequence each."""
        inputs = self._inputs
        for name in ("text", "file", "keys", "key_file"):
            if getattr(inputs, name):
                other = "TEXT" if name == "text" else f"--{name.replace('_', '-')}"
                raise ConfigError(
                    f"--{self._kind} and {other} both say what the model looks at; give one of them"
                )
        return TextInput(tuple((printable(file.name),) for file in self._files), None, ())

    def compute(
        self,
        text: TextInput,  # noqa: ARG002 - names of the files
        keep: Collection[str] = (),
        layers: Collection[int] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Computed:
        from attnviz.sources.from_media import run_media

        if keep:
            raise ConfigError(f"--keep and --{self._kind}: nothing but weights is kept of files")
        loaded = self._load(progress)
        if progress is not None:
            progress("computing attention")
        notices: list[str] = []
        found = run_media(loaded, self._kind, self._files, self.tower, layers, notices.append)
        done = found.done
        said = _said(self._kind, self._files, found)
        return Computed(done.run, done.queries, None, (), notices, found.views, said)

    def bytes_needed(self, text: TextInput, layers: Collection[int] | None = None) -> int:  # noqa: ARG002
        """0: the number of tokens is known when the model has seen a file; it asks then."""
        return 0

    def compute_long(
        self,
        text: TextInput,  # noqa: ARG002
        pooling: Pooling,  # noqa: ARG002
        each: Each,  # noqa: ARG002
        layers: Collection[int] | None = None,  # noqa: ARG002
        progress: Callable[[str], None] | None = None,  # noqa: ARG002
    ) -> ComputedLong:
        raise ConfigError(f"--{self._kind} needs whole maps: leave the flags for long texts out")


def _said(kind: str, files: Sequence[Path], found: MediaRun) -> list[Fact]:
    """What each file became: `photo.png: 14 × 14 patches, after [CLS]`."""
    facts = []
    for i, (file, tokens) in enumerate(zip(files, found.done.queries.tokens, strict=True)):
        said = f"{len(tokens)} moments, {tokens[0]} to {tokens[-1]}"
        if found.views:
            view = found.views[i]
            before = f", after {', '.join(tokens[: view.n_before])}" if view.n_before else ""
            said = f"{view.rows} × {view.columns} patches{before}"
        facts.append((f"{kind} {i}", f"{printable(file.name)}: {said}"))
    return facts
