"""What a pretrained model is opened with; nothing is loaded for it."""

from __future__ import annotations

from dataclasses import dataclass

from attnviz.config import DTYPES, choice


@dataclass(frozen=True)
class ModelOptions:
    """Which model, which of its towers, and how it reads and writes."""

    model: str
    attention: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    dtype: str = "float32"
    device: str = "cpu"
    max_len: int | None = None
    pad_side: str | None = None
    raw_tokens: bool = False
    generate: int | None = None
    temperature: float = 0.0
    seed: int = 0
    has_keys: bool = False
    """Whether keys of their own will come, which is what an encoder–decoder's cross attention
    takes."""

    def __post_init__(self) -> None:
        choice("--dtype", self.dtype, tuple(DTYPES))
