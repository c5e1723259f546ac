"""What really ran, step by step: the layer calls a tap beside each line that makes a tensor.

A tap is a plain callback. `ignore` is the one that does nothing; a `Recorder` checks every label
against the tensor it stands for and keeps the shape, the cost and, on request, the tensor itself.
There is no second table of steps: what is shown is what was computed.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from attnviz.errors import AttnvizError

if TYPE_CHECKING:
    from torch import Tensor, nn


class Tap(Protocol):
    """Called with each tensor as it is made.

    `axes` names the tensor's axes, separated by spaces; `H·d_k` is one axis that holds two, heads
    slowest. `module` is the one whose parameters the step uses: `[out, in]` for a matrix, with
    `in` the axis of `sums_over`, or `[rows, out]` for a table. `sums_over` is the axis that a
    matrix product sums away: 2 FLOPs (multiply, add) for each element of it and of the result.
    `flops_each` estimates the elementwise operations for each element of the result.
    """

    def __call__(
        self,
        name: str,
        axes: str,
        tensor: Tensor,
        *,
        module: nn.Module | None = None,
        sums_over: str = "",
        flops_each: int = 0,
        rows: str = "V",
    ) -> None: ...


def ignore(name: str, axes: str, tensor: Tensor, **_: object) -> None:
    """The tap that records nothing."""


@dataclass(frozen=True)
class StepKind:
    """One row of the table of steps.

    `reads` names the steps that it reads; of `a|b`, the first that is in the trace. `shares`: its
    parameters are those of an earlier step, and count once.
    """

    stage: str
    words: str
    reads: tuple[str, ...] = ()
    shares: bool = False


_PLACED = "query_placed|query_input|embedded"
_STREAM = f"query_embedding_normed|query_typed|{_PLACED}"
_INPUT = f"normed|{_STREAM}"
_KEY_PLACED = "key_placed|key_input|key_embedded"
_KEY_STREAM = f"key_embedding_normed|key_typed|{_KEY_PLACED}"
_KEY_INPUT = f"key_normed|{_KEY_STREAM}|{_INPUT}"
_QUERY = "q_rotated|q_normed|q"
_KEY = "k_rotated|k_normed|k"
_SCORES = "biased|capped|scores|products"

STEP_KINDS: dict[str, StepKind] = {
    "ids": StepKind("input", "each token's number in the vocabulary; padding is 0"),
    "embedded": StepKind(
        "input", "row id of the embedding table: a token becomes a vector", ("ids",)
    ),
    "query_input": StepKind(
        "input", "sinusoids added: each vector now knows its position", ("embedded",)
    ),
    "key_ids": StepKind("input", "the other text's tokens: keys and values come from these"),
    "key_embedded": StepKind(
        "input", "the same embedding table for the other text", ("key_ids",), shares=True
    ),
    "key_input": StepKind(
        "input", "the sinusoid of each position added to the other text", ("key_embedded",)
    ),
    "query_placed": StepKind(
        "input", "the learned row of each position added", ("query_input|embedded",)
    ),
    "key_placed": StepKind(
        "input",
        "the learned row of each position added to the other text",
        ("key_input|key_embedded",),
    ),
    "query_typed": StepKind(
        "input", "the row of token type 0 added, one for all tokens", (_PLACED,)
    ),
    "key_typed": StepKind("input", "the same row added to the other text", (_KEY_PLACED,)),
    "query_embedding_normed": StepKind(
        "input", "LayerNorm over d_model, as before the first layer", (f"query_typed|{_PLACED}",)
    ),
    "key_embedding_normed": StepKind(
        "input",
        "LayerNorm over d_model for the other text",
        (f"key_typed|{_KEY_PLACED}",),
        shares=True,
    ),
    "normed": StepKind(
        "input", "normed before the attention; the residual goes around it", (_STREAM,)
    ),
    "key_normed": StepKind(
        "input", "the other text normed in the same way", (_KEY_STREAM,), shares=True
    ),
    "qkv": StepKind("project", "one matrix for all: H·d_k + 2·Hkv·d_k numbers a token", (_INPUT,)),
    "q_projected": StepKind(
        "project", "W_Q: what each token asks for, all heads side by side", (f"qkv|{_INPUT}",)
    ),
    "q": StepKind("split", "cut into heads: view as (H, d_k), then swap T and H", ("q_projected",)),
    "k_projected": StepKind(
        "project", "W_K: what each token answers to, all heads side by side", (f"qkv|{_KEY_INPUT}",)
    ),
    "k": StepKind("split", "cut into heads in the same way", ("k_projected",)),
    "v_projected": StepKind(
        "project",
        "W_V: what each token has to give, all heads side by side",
        (f"qkv|{_KEY_INPUT}",),
    ),
    "v": StepKind("split", "cut into heads; d_v may differ from d_k", ("v_projected",)),
    "q_normed": StepKind("split", "RMSNorm along d_k in each head: scores cannot run away", ("q",)),
    "k_normed": StepKind("split", "the same for the keys, with a scale of its own", ("k",)),
    "q_rotated": StepKind(
        "split", "rotary: pairs of numbers turned, further at later places", ("q_normed|q",)
    ),
    "k_rotated": StepKind(
        "split", "keys turned alike: q · k depends on the distance alone", ("k_normed|k",)
    ),
    "k_extended": StepKind(
        "split", "an extra key at the end, no token's: no mask forbids it", (_KEY,)
    ),
    "v_extended": StepKind("split", "and its value", ("v",)),
    "k_repeated": StepKind(
        "split", "each key head lent to the H / Hkv query heads of a group", (f"k_extended|{_KEY}",)
    ),
    "v_repeated": StepKind(
        "split", "each value head lent to the same query heads", ("v_extended|v",)
    ),
    "products": StepKind(
        "attend",
        "q · kᵀ: a number for every pair of a query and a key",
        (_QUERY, f"k_repeated|k_extended|{_KEY}"),
    ),
    "scores": StepKind(
        "attend", "divided by √d_k: the spread no longer grows with d_k", ("products",)
    ),
    "capped": StepKind(
        "attend", "50 · tanh(score / 50): no score beyond ±50", ("scores|products",)
    ),
    "position_bias": StepKind("attend", "a number for each head and distance, from a table"),
    "alibi": StepKind("attend", "minus the distance, times a slope of each head's own"),
    "biased": StepKind(
        "attend",
        "bias added to the scores: the only sign of position",
        ("capped|scores|products", "position_bias|alibi"),
    ),
    "allowed": StepKind("attend", "all masks combined by 'and': True where a query may look"),
    "masked_scores": StepKind(
        "attend", "-inf where not allowed, so that exp gives exactly 0 there", (_SCORES, "allowed")
    ),
    "weights": StepKind(
        "attend",
        "softmax along the keys: rows sum to 1 (0: sees nothing)",
        (f"masked_scores|{_SCORES}",),
    ),
    "context": StepKind(
        "attend",
        "each query's mean of the values, weighted by its row",
        ("weights", "v_repeated|v_extended|v"),
    ),
    "merged": StepKind(
        "merge", "H and T swapped back, heads side by side: this one copies", ("context",)
    ),
    "projected": StepKind("merge", "W_O: mixes the heads and returns to d_model", ("merged",)),
    "projected_normed": StepKind(
        "add & norm", "normed once more before it is added", ("projected",)
    ),
    "residual": StepKind(
        "add & norm", "the query's input added back", ("projected_normed|projected", _STREAM)
    ),
    "output": StepKind(
        "add & norm", "LayerNorm over d_model: each token's mean 0, variance 1", ("residual",)
    ),
}
"""For each tap name: its stage, what happens there, and what it reads."""


@dataclass(frozen=True)
class Step:
    """One tensor of the computation.

    `nbytes` is 0 for a view, which shares the memory of an earlier step. `matmul_flops` is exact
    (a multiply-add counts 2); `elementwise_flops` is an estimate. `parameters` has the name,
    the axes and the shape of each parameter that the step uses. `stride_order` lists the axes as
    they lie in memory, slowest first; () stands for the order that they are named in.
    """

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    item_bytes: int
    is_view: bool
    is_contiguous: bool
    parameters: tuple[tuple[str, tuple[str, ...], tuple[int, ...]], ...]
    sums_over: str
    summed: int
    flops_each: int
    source: str
    stride_order: tuple[int, ...] = field(default=(), compare=False)

    @property
    def kind(self) -> StepKind:
        return STEP_KINDS[self.name]

    @property
    def stage(self) -> str:
        return self.kind.stage

    @property
    def words(self) -> str:
        return self.kind.words

    @property
    def n_elements(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return 0 if self.is_view else self.n_elements * self.item_bytes

    @property
    def n_parameters(self) -> int:
        return sum(prod(shape) for _, _, shape in self.parameters)

    @property
    def matmul_flops(self) -> int:
        return 2 * self.n_elements * self.summed if self.sums_over else 0

    @property
    def elementwise_flops(self) -> int:
        return self.n_elements * self.flops_each

    def at(self, sizes: Mapping[str, int]) -> Step:
        """The same step with other sizes: every axis is looked up by its name."""
        shape = tuple(axis_size(axis, sizes) for axis in self.axes)
        strided = [i for i in self.stride_order if shape[i] > 1]  # an axis of length 1 never steps
        # axes in their own order, and yet not contiguous: a slice of something wider
        sliced = not self.is_contiguous and list(self.stride_order) == sorted(self.stride_order)
        return replace(
            self,
            shape=shape,
            is_contiguous=not sliced and strided == sorted(strided),
            summed=axis_size(self.sums_over, sizes) if self.sums_over else 0,
            parameters=tuple(
                (name, axes, tuple(axis_size(axis, sizes) for axis in axes))
                for name, axes, _ in self.parameters
            ),
        )


def axis_size(axis: str, sizes: Mapping[str, int]) -> int:
    """The length of an axis by its name: `H·d_k` is a product, `1` is itself."""
    return prod(int(part) if part.isdigit() else sizes[part] for part in axis.split("·"))


@dataclass
class Recorder:
    """A tap that keeps the steps, and the tensors whose names are in `keep`.

    `sizes` gives each axis name its length. A label that does not fit its tensor, or a parameter
    of the step, raises `AttnvizError`: the trace would be lying.
    """

    sizes: Mapping[str, int]
    keep: Collection[str] = ()
    steps: list[Step] = field(default_factory=list)
    kept: dict[str, Tensor] = field(default_factory=dict)
    _owners: list[weakref.ref[Tensor]] = field(default_factory=list)

    def __call__(
        self,
        name: str,
        axes: str,
        tensor: Tensor,
        *,
        module: nn.Module | None = None,
        sums_over: str = "",
        flops_each: int = 0,
        rows: str = "V",
    ) -> None:
        names = tuple(axes.split())
        self._require_fit(f"step {name}", names, tensor)
        parameters = []
        for key, value in () if module is None else module.named_parameters():
            outputs = names[-1] if sums_over else rows
            own = names[-1:] if value.ndim == 1 else (outputs, sums_over or names[-1])
            self._require_fit(f"parameter {key} of step {name}", own, value)
            parameters.append((key, own, tuple(value.shape)))
        caller, strides = sys._getframe(1), tensor.stride()
        self.steps.append(
            Step(
                name=name,
                axes=names,
                shape=tuple(tensor.shape),
                dtype=str(tensor.dtype).removeprefix("torch."),
                item_bytes=tensor.element_size(),
                is_view=self._shares_memory(tensor),
                is_contiguous=tensor.is_contiguous(),
                parameters=tuple(parameters),
                sums_over=sums_over,
                summed=axis_size(sums_over, self.sizes) if sums_over else 0,
                flops_each=flops_each,
                source=f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}",
                stride_order=tuple(sorted(range(tensor.ndim), key=lambda i: -strides[i])),
            )
        )
        if name in self.keep:
            self.kept[name] = tensor

    def _require_fit(self, what: str, axes: tuple[str, ...], tensor: Tensor) -> None:
        shape = tuple(tensor.shape)
        try:
            expected = tuple(axis_size(axis, self.sizes) for axis in axes)
        except KeyError as unknown:
            raise AttnvizError(f"{what} is labelled with an unknown axis, {unknown}") from None
        if shape != expected:
            raise AttnvizError(
                f"{what} is labelled [{' '.join(axes)}] = {expected}, but its shape is {shape}"
            )

    def _shares_memory(self, tensor: Tensor) -> bool:
        """Whether `tensor` lies in the memory of an earlier step.

        A view knows its owner. Addresses would not do: memory that was freed is used again. Weak
        references, so that recording keeps no tensor alive.
        """
        owner = tensor if tensor._base is None else tensor._base
        if any(known() is owner for known in self._owners):
            return True
        self._owners.append(weakref.ref(owner))
        return False
