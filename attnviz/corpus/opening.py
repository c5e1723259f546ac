"""What opens a source: named in one process, called in another, which alone loads what it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attnviz.corpus.source import Source
from attnviz.errors import ConfigError

if TYPE_CHECKING:
    from attnviz.corpus.models import Model

Opening = Callable[[], Source]
"""Opens a source. It can be pickled, so that another process or machine opens its own."""


def describe(opening: Any) -> str:
    """What tells one source from another, for a checkpoint: the arguments of its opening."""
    return repr((opening.func.__qualname__, opening.args, sorted(opening.keywords.items())))


def open_model(
    source: str,
    *,
    attention: str | None = None,
    max_len: int | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    generates: bool = False,
    **how: Any,
) -> Model:
    """Load a model; `how` are further arguments of `outline_model`.

    `generates` asks for the language head, which `losses` wants; a model without one has no losses.
    """
    from attnviz.corpus.models import Model
    from attnviz.sources.loading import load_model, outline_model

    try:
        outline = outline_model(source, generates=generates, **how)
    except ConfigError:
        if not generates:
            raise
        outline = outline_model(source, **how)
    return Model(load_model(outline, dtype=dtype, device=device), attention, max_len)
