"""attnviz: see what multi-head attention does, from a shell.

`import attnviz` is light; torch is loaded when one of the names below is first used.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as `typing` has it, which takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

    from attnviz.attention import MultiHeadAttention, scaled_dot_product_attention
    from attnviz.checks import assert_attention, check
    from attnviz.comparison import compare
    from attnviz.config import AttentionConfig
    from attnviz.result import Attention
    from attnviz.saved_runs import load
    from attnviz.sources.bare_arrays import read_attention
    from attnviz.sources.capturing import capture

__version__ = "0.1.0"

__all__ = [
    "Attention",
    "AttentionConfig",
    "MultiHeadAttention",
    "assert_attention",
    "capture",
    "check",
    "compare",
    "load",
    "read_attention",
    "scaled_dot_product_attention",
]

_HOMES = {
    "AttentionConfig": "attnviz.config",
    "Attention": "attnviz.result",
    "MultiHeadAttention": "attnviz.attention",
    "assert_attention": "attnviz.checks",
    "capture": "attnviz.sources.capturing",
    "check": "attnviz.checks",
    "compare": "attnviz.comparison",
    "load": "attnviz.saved_runs",
    "read_attention": "attnviz.sources.bare_arrays",
    "scaled_dot_product_attention": "attnviz.attention",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'attnviz' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
