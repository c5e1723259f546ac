"""What a trace adds up to: parameters, FLOPs, memory, and what grows as T²."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnviz.trace import Step

AXIS_WORDS = {
    "B": "batch",
    "L": "layers",
    "H": "heads",
    "Hkv": "key/value heads",
    "Tq": "queries",
    "Tk": "keys",
    "Ts": "keys that are tokens",
    "d_model": "numbers a token",
    "d_k": "numbers a query or key",
    "d_v": "numbers a value",
    "d_qkv": "numbers for q, k and v",
    "d_key": "numbers a key is made of",
    "d_value": "numbers a value is made of",
    "V": "vocabulary",
    "R": "distances in the table",
}

RESULTS = ("weights", "output")
"""What the layer returns: these stay in memory to the end."""


def own_parameters(step: Step) -> int:
    """Numbers that `step` learns; 0 where they are an earlier step's."""
    return 0 if step.kind.shares else step.n_parameters


def sizes_of(steps: Sequence[Step]) -> dict[str, int]:
    """The length of each axis that stands by itself somewhere in `steps`."""
    found: dict[str, int] = {}
    for step in steps:
        labelled = [(step.axes, step.shape), *((axes, shape) for _, axes, shape in step.parameters)]
        for axes, shape in labelled:
            found.update((a, n) for a, n in zip(axes, shape, strict=True) if a in AXIS_WORDS)
    return {axis: found[axis] for axis in AXIS_WORDS if axis in found}


def reads(steps: Sequence[Step]) -> list[tuple[int, ...]]:
    """For each step, the places in `steps` of those it reads."""
    place = {step.name: i for i, step in enumerate(steps)}
    return [
        tuple(
            place[name]
            for read in step.kind.reads
            if (name := next((n for n in read.split("|") if n in place), ""))
        )
        for step in steps
    ]


def peak(steps: Sequence[Step]) -> tuple[int, int]:
    """(bytes, place in `steps`) of the most that is alive at once.

    While a step is made, its tensor and every earlier one that it or a later step reads are alive;
    a view keeps its owner. Parameters are not counted.
    """
    read = reads(steps)
    owner = list(range(len(steps)))
    last = list(range(len(steps)))
    for i, step in enumerate(steps):
        if step.is_view and read[i]:
            owner[i] = owner[read[i][0]]
        for source in read[i]:
            last[owner[source]] = max(last[owner[source]], i)
        if step.name in RESULTS:
            last[owner[i]] = len(steps) - 1
    alive = [
        sum(earlier.nbytes for j, earlier in enumerate(steps[: i + 1]) if last[j] >= i)
        for i in range(len(steps))
    ]
    most = max(alive, default=0)
    return most, alive.index(most) if alive else 0


@dataclass(frozen=True)
class Totals:
    """Sums over the steps: numbers learned, FLOPs, bytes of all activations, bytes at the peak."""

    parameters: int
    matmul_flops: int
    elementwise_flops: int
    activation_bytes: int
    peak_bytes: int
    peak_step: int


def totals_of(steps: Sequence[Step]) -> Totals:
    """The totals of a trace. `peak_step` counts from 1, as the table does."""
    most, at = peak(steps)
    return Totals(
        parameters=sum(map(own_parameters, steps)),
        matmul_flops=sum(step.matmul_flops for step in steps),
        elementwise_flops=sum(step.elementwise_flops for step in steps),
        activation_bytes=sum(step.nbytes for step in steps),
        peak_bytes=most,
        peak_step=at + 1,
    )


def quadratic(steps: Sequence[Step]) -> list[tuple[int, Step]]:
    """The steps, with their numbers, whose tensor has a number for each query and each key."""
    return [(i, s) for i, s in enumerate(steps, 1) if {"Tq", "Tk"} <= set(s.axes) and s.nbytes]


def quadratic_flops(steps: Sequence[Step]) -> int:
    """FLOPs of the matrix products that grow as T²: q·k, and weights times values."""
    return sum(step.matmul_flops for step in steps if is_quadratic_product(step))


def is_quadratic_product(step: Step) -> bool:
    return bool(step.sums_over) and {"Tq", "Tk"} <= {*step.axes, step.sums_over}
