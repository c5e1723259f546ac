"""What opens a reader: named in one process, called in another, which alone loads what it needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnviz.config import AttentionConfig
from attnviz.corpus.reader import CorpusReader
from attnviz.errors import ConfigError
from attnviz.pipeline import Source

if TYPE_CHECKING:
    from attnviz.sources.from_weights import Asked
    from attnviz.sources.model_options import ModelOptions
    from attnviz.sources.own_layers import ReadingOptions

Opening = Callable[[], CorpusReader]
"""Opens a reader. It can be pickled, so that another process or machine opens its own."""


def describe(opening: Any) -> str:
    """What tells one source from another, for a checkpoint: the arguments of its opening."""
    return repr((opening.func.__qualname__, opening.args, sorted(opening.keywords.items())))


def open_layer(config: AttentionConfig, reading: ReadingOptions) -> CorpusReader:
    """A layer from flags, in which a word has the same vector in every document."""
    from attnviz.sources.own_layers import LayerSource

    return CorpusReader(LayerSource(config, reading, by_word=True))


def open_weights(path: Path, asked: Asked, reading: ReadingOptions) -> CorpusReader:
    """Layers of the user's own."""
    from attnviz.sources.weights_source import WeightsSource

    return CorpusReader(WeightsSource(path, asked, reading))


def open_model(options: ModelOptions, generates: bool = False) -> CorpusReader:
    """A pretrained model; `generates`: with its language head, where it has one."""
    from attnviz.sources.model_source import ModelSource

    try:
        source = ModelSource(options, generates=generates)
    except ConfigError:
        if not generates:
            raise
        source = ModelSource(options)
    source.require_one_text()
    return CorpusReader(source)


def open_with(open_source: Callable[[Any], Source], request: Any) -> CorpusReader:
    """Any other source, by the function that opens it and what that takes."""
    return CorpusReader(open_source(request))


def open_saved(paths: tuple[Path, ...], axes: str | None = None) -> CorpusReader:
    """Saved runs, or arrays of attention."""
    from attnviz.sources.saved_source import SavedSource

    return CorpusReader(SavedSource(paths, axes))
