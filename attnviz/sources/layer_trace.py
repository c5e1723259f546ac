"""The steps of one attention layer of somebody else's model, as they ran: projections, q, k, v …

The layer's own code cannot be given a tap, but its linear maps are modules, which hooks see, and
its attention function is watched anyway. What lies between (norms, rotary positions, repeated
heads) is seen by what it leaves behind.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from attnviz.sources.captured_calls import Call
from attnviz.trace import Recorder, Step, axis_size

PROJECTIONS = {
    "q_projected": ("q_proj", "query", "q_lin", "q", "query_proj", "wq", "to_q"),
    "k_projected": ("k_proj", "key", "k_lin", "k", "key_proj", "wk", "to_k"),
    "v_projected": ("v_proj", "value", "v_lin", "v", "value_proj", "wv", "to_v"),
    "qkv": ("qkv_proj", "qkv", "query_key_value", "wqkv", "c_attn", "in_proj"),
    "projected": ("o_proj", "out_proj", "out_lin", "o", "dense", "c_proj", "wo", "to_out"),
}
"""What families call the linear maps of an attention layer, in lower case."""

LABELS = {
    "q_projected": ("B Tq H·d_k", "d_model"),
    "k_projected": ("B Tk Hkv·d_k", "d_model"),
    "v_projected": ("B Tk Hkv·d_v", "d_model"),
    "qkv": ("B Tq d_qkv", "d_model"),
    "projected": ("B Tq d_model", "H·d_v"),
}
"""The axes of each, and the axis that it sums away."""


class LayerTrace:
    """Records one layer in its first call. `steps` grows while the layer runs."""

    def __init__(self, model: nn.Module, name: str, undo: ExitStack) -> None:
        self.steps: list[Step] = []
        self._made: list[tuple[str, nn.Module, Tensor]] = []
        self._recorder: Recorder | None = None
        self._rotary = any("rotary" in type(m).__name__.lower() for m in model.modules())
        for path, module in _linear_maps(model, name):
            step = _step_of(path)
            if step is not None:
                hook = module.register_forward_hook(partial(self._see, step))
                undo.callback(hook.remove)

    def record(self, call: Call) -> list[Step]:
        """The steps up to this call's context; what W_O makes of it is added when it comes."""
        sizes = _sizes(call)
        grouped = sizes.get("Hkv") != sizes["H"]
        inner = next((m for step, m, _ in self._made if step in ("q_projected", "qkv")), None)
        if inner is not None:
            sizes["d_model"] = _inputs_of(inner)
        for step, _, made in self._made:
            if step == "qkv":
                sizes["d_qkv"] = made.shape[-1]
        self._recorder = Recorder(sizes)
        for step, module, made in self._made:
            self._tap(step, module, made, call.source, grouped)
        q, k = ("q_rotated", "k_rotated") if self._rotary else ("q", "k")
        hkv = "Hkv" if grouped else "H"
        labels = {q: "B H Tq d_k", k: f"B {hkv} Tk d_k", "v": f"B {hkv} Tk d_v"}
        if call.allowed is not None:
            axes = zip(("B", "H", "Tq", "Tk"), call.allowed.shape, strict=True)
            labels["allowed"] = " ".join(a if size == sizes[a] > 1 else "1" for a, size in axes)
        labels |= {"weights": "B H Tq Tk", "context": "B H Tq d_v"}
        tensors: dict[str, Tensor | None] = {q: call.q, k: call.k}
        for name, label in labels.items():
            tensor = tensors[name] if name in tensors else getattr(call, name)
            if tensor is not None:
                summed = "Tk" if name == "context" else ""
                tap = partial(self._recorder, name, label, tensor, sums_over=summed)
                self._add(partial(tap, flops_each=5) if name == "weights" else tap, call.source)
        self._made = []
        self._source, self._grouped = call.source, grouped
        return self.steps

    def _see(self, step: str, module: nn.Module, _: object, made: Any) -> None:
        if not isinstance(made, Tensor) or made.ndim != 3:
            return
        if step != "projected" and self._recorder is None:
            self._made.append((step, module, made))
        elif step == "projected" and self._recorder is not None and not self._is_whole():
            self._tap(step, module, made, self._source, self._grouped)

    def _is_whole(self) -> bool:
        return bool(self.steps) and self.steps[-1].name == "projected"

    def _tap(self, step: str, module: nn.Module, made: Tensor, source: str, grouped: bool) -> None:
        """Record a linear map, if its sizes are those that its name makes one expect."""
        assert self._recorder is not None
        sizes = self._recorder.sizes
        axes, summed = LABELS[step]
        axes = axes if grouped else axes.replace("Hkv", "H")
        try:
            fits = tuple(made.shape) == tuple(axis_size(axis, sizes) for axis in axes.split())
            fits = fits and _inputs_of(module) == axis_size(summed, sizes)
        except KeyError:  # a width that nothing has told
            return
        if fits:
            # Conv1D (GPT-2) has its matrix the other way round: it is counted, and not named
            owner = module if isinstance(module, nn.Linear) else None
            self._add(
                partial(self._recorder, step, axes, made, module=owner, sums_over=summed), source
            )

    def _add(self, tap: Callable[[], None], source: str) -> None:
        assert self._recorder is not None
        tap()
        self.steps.append(replace(self._recorder.steps[-1], source=source))


def _linear_maps(model: nn.Module, name: str) -> list[tuple[str, nn.Module]]:
    """Those inside the attention module, and BERT's W_O, which stands beside it."""
    inside = model.get_submodule(name)
    found = [(path, m) for path, m in inside.named_modules() if _inputs_of(m)]
    parent = model.get_submodule(name.rpartition(".")[0])
    beside = getattr(getattr(parent, "output", None), "dense", None)
    if name and isinstance(beside, nn.Linear) and all(m is not beside for _, m in found):
        found.append(("output.dense", beside))
    return found


def _step_of(path: str) -> str | None:
    last = path.rpartition(".")[2].lower()
    return next((step for step, names in PROJECTIONS.items() if last in names), None)


def _inputs_of(module: nn.Module) -> int:
    """The numbers that a linear map reads of each token; 0 for what is none."""
    if isinstance(module, nn.Linear):
        return module.in_features
    if type(module).__name__ == "Conv1D":
        return int(getattr(module, "nx", 0))
    return 0


def _sizes(call: Call) -> dict[str, int]:
    batch, heads, queries, keys = call.weights.shape
    sizes = {"B": batch, "H": heads, "Tq": queries, "Tk": keys, "Hkv": heads}
    if call.q is not None and call.k is not None and call.v is not None:
        sizes |= {"Hkv": call.k.shape[1], "d_k": call.q.shape[-1], "d_v": call.v.shape[-1]}
    return sizes
