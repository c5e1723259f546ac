"""What a trace of a person's own module holds: its steps, and what of them looks wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attnviz.errors import InputError


@dataclass(frozen=True)
class ModuleStep:
    """One operation that the module's `forward` called.

    `count` tensors came out of it (3 for a `chunk` into q, k and v); `axes` and `shape` are the
    first one's. `source` is the line of the person's file, `text` what stands there.
    """

    operation: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    count: int
    is_view: bool
    source: str
    text: str


@dataclass(frozen=True)
class ModuleFinding:
    """Something legal that is most likely wrong.

    `kind` is "regroup" (a reshape puts elements of different axes together), "softmax" (it runs
    over samples or heads), "coincidence" (two axes meet only because their sizes are equal),
    "fold" (batch and heads are folded in different orders), "normalised" (the softmax ran over one
    axis, the weighted sum over another), or "untrained" (a layer is made inside `forward`).
    """

    kind: str
    source: str
    text: str
    advice: str

    @property
    def message(self) -> str:
        return f"{self.source}: {self.text}; {self.advice}"


@dataclass(frozen=True)
class ModuleTrace:
    """The steps of a module at the sizes given, with `sizes` for each named axis.

    `notes` say how the trace was made where that is not obvious. `along_keys` of `softmaxes` were
    seen to run along the axis that their weights are then summed over; one over features is no
    softmax of scores and not counted. `failure` is the place, and the code there, where `forward`
    stopped; None where it ran to its end.
    """

    file: str
    class_name: str
    steps: tuple[ModuleStep, ...]
    findings: tuple[ModuleFinding, ...]
    notes: tuple[str, ...]
    sizes: Mapping[str, int]
    n_parameters: int
    softmaxes: int = 0
    along_keys: int = 0
    failure: tuple[str, str] | None = None


class ModuleError(InputError):
    """A module that cannot run at the sizes given; `trace` holds the steps before that."""

    def __init__(self, message: str, trace: ModuleTrace) -> None:
        super().__init__(message)
        self.trace = trace
