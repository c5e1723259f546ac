"""What `capture` returns: one call for each attention of each layer in each forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from attnviz.errors import InputError, printable
from attnviz.trace import Step

TAPS = ("q", "k", "v", "context")
"""What can be kept of a call beside its weights, mask and scale."""


@dataclass(frozen=True, eq=False)
class Call:
    """One attention of one layer in one forward pass, on the CPU, apart from any gradient.

    `name` is the module's path, `tower` the stack of layers that it belongs to, `step` counts the
    forward passes from 0. `weights` `[B H Tq Tk]` are those before dropout, as the model computed
    them: rows sum to less than 1 where it has sinks. `allowed` is bool `[1|B 1|H 1|Tq Tk]`, None
    where every query may look at every key. `q` `[B H Tq d_k]`, `k` `[B Hkv Tk d_k]`, `v`
    `[B Hkv Tk d_v]` (all after rotary positions and norms) and `context` `[B H Tq d_v]` are there
    when they were asked for and the module shows them. Scores are `cap(q kᵀ · scale) + bias`,
    cap(x) = softcap · tanh(x / softcap). `source` is the file and line that computed it.
    """

    name: str
    tower: str
    layer: int
    step: int
    weights: Tensor
    allowed: Tensor | None = None
    q: Tensor | None = None
    k: Tensor | None = None
    v: Tensor | None = None
    context: Tensor | None = None
    scale: float | None = None
    softcap: float | None = None
    bias: Tensor | None = None
    source: str = ""
    steps: Sequence[Step] = ()

    @property
    def sink(self) -> Tensor:
        """1 - the sum of each row, `[B H Tq]`: what a learned sink took, 0 where there is none."""
        return 1 - self.weights.float().sum(-1)


@dataclass(eq=False)
class Capture:
    """What `capture` has caught so far, in the order of the calls.

    `unseen` names towers that ran without showing their weights, and says why.
    """

    calls: list[Call] = field(default_factory=list)
    unseen: dict[str, str] = field(default_factory=dict)

    @property
    def towers(self) -> tuple[str, ...]:
        """The stacks of layers that were seen."""
        return tuple(dict.fromkeys(call.tower for call in self.calls))

    def of(self, tower: str | None = None, step: int = -1) -> list[Call]:
        """The calls of one tower in one forward pass (-1: its last), in the order of their layers.

        `tower` may be left out where there is one. Raises `InputError` that names the towers.
        """
        towers = self.towers
        if tower is None and len(towers) == 1:
            tower = towers[0]
        if tower in self.unseen and tower not in towers:
            raise InputError(f"the {tower}'s attention cannot be seen: {self.unseen[tower]}")
        if tower not in towers:
            asked = "a tower has to be named" if tower is None else f"no tower {printable(tower)}"
            raise InputError(f"{asked}; captured are {', '.join(towers) or 'none'}")
        calls = [call for call in self.calls if call.tower == tower]
        step = calls[-1].step if step == -1 else step
        return sorted((call for call in calls if call.step == step), key=lambda call: call.layer)
