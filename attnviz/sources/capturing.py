"""Attention of anybody's model, caught while it runs: weights before dropout, q, k, v, mask, scale.

transformers lets a model choose its attention function by name. While a model is captured it runs
under the name `eager`, its family's own plain arithmetic with the masks that belong to it (under
another name a model may leave its mask out, and causality is lost without a word), and the function
of that name is one of ours, which calls the family's own and looks at what goes in and comes out.
Modules that do not ask for a function by name are watched from inside (`spying`);
`nn.MultiheadAttention` is asked for its weights.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial, wraps
from threading import RLock
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from attnviz.errors import InputError, printable
from attnviz.sources.attention_modules import (
    INTERFACE,
    OWN_CODE,
    TORCH,
    AttentionPlace,
    own_eager,
    places,
)
from attnviz.sources.captured_calls import TAPS, Call, Capture
from attnviz.sources.layer_trace import LayerTrace
from attnviz.sources.spying import FORBIDDING, Spy, allowed_by, with_heads
from attnviz.wording import plural

__all__ = ["TAPS", "Call", "Capture", "capture"]


@contextmanager
def capture(
    model: nn.Module,
    layers: Collection[int] | None = None,
    keep: Collection[str] = (),
    towers: Collection[str] | None = None,
    trace: bool = False,
    each: Callable[[Call], None] | None = None,
) -> Iterator[Capture]:
    """Catch the attention of every call of `model` inside a `with` block.

        with attnviz.capture(model) as captured:
            model(**inputs)
        captured.of("decoder")[5].weights        # [B H Tq Tk]

    Any transformers model will do, and any `nn.Module` with `nn.MultiheadAttention` inside, in
    eval and in training alike. What the model returns, its gradients and its random numbers do
    not change (to rounding, where it would have used another kernel). Only the `layers` (numbers
    from 0) and `towers` that are wanted are kept. `keep` names taps of `TAPS` to keep as well.
    With `trace`, the first call that is kept has `steps`: its layer's tensors as they were. `each`
    is given every call as it comes, and nothing is kept.

    At the end the model is as it was, also upon an exception. Captures of one model end in the
    reverse order of their beginning, as `with` blocks do. What torch compiled runs uncompiled
    meanwhile; with gradient checkpointing, `backward` belongs inside of the block, since it runs
    the layers again. Raises `InputError` for layers and towers that are not there, and when the
    model ran and none of its attention could be seen.
    """
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        kind = printable(type(model).__name__)
        raise InputError(f"capture takes the model itself, an nn.Module of Python, not a {kind}")
    unknown = next((name for name in keep if name not in TAPS), None)
    if unknown is not None:
        raise InputError(f"keep {printable(unknown)}: known are {', '.join(TAPS)}")
    wanted = None if layers is None else set(layers)
    watch = _Watch(model, wanted, frozenset(keep), towers, each)
    with ExitStack() as undo:
        _install(watch, model, undo)
        first = watch.first() if trace else None
        if first is not None:
            watch.traced = first, LayerTrace(model, first, undo)
        yield watch.caught
        watch.require_something()


# ── what is being watched ────────────────────────────────────────────────────────────────────


class _Watch:
    """One capture in progress: which modules, what is wanted of them, and what came."""

    def __init__(
        self,
        model: nn.Module,
        layers: Collection[int] | None,
        keep: frozenset[str],
        towers: Collection[str] | None,
        each: Callable[[Call], None] | None,
    ) -> None:
        self.caught = Capture()
        self._each = self.caught.calls.append if each is None else each
        self.places = places(model)
        self._model, self._layers, self._keep, self._towers = model, layers, keep, towers
        _require_places(self.places, layers, towers)
        self._step, self._ran, self._running = -1, False, False
        self.traced: tuple[str, LayerTrace] | None = None
        self._seen = 0
        self._alone = ""  # the tower's name where there is one: its mask tells
        self._counts: Counter[str] = Counter()
        self._called: set[nn.Module] = set()
        self._masks: dict[int, tuple[Tensor, Tensor | None]] = {}
        self._met: dict[nn.Module, tuple[ref[Tensor], ref[Tensor]]] = {}

    def begin(self, *_: object) -> None:
        """A forward pass of the whole model begins."""
        self._next()
        self._running = True

    def end(self, *_: object) -> None:
        """It has ended."""
        self._running = False

    def _next(self) -> None:
        self._step += 1
        self._ran = True
        self._called.clear()
        self._counts.clear()
        self._masks.clear()
        self._met.clear()

    def knows(self, module: nn.Module, query: Tensor, key: Tensor) -> bool:
        """Whether `module` has put these very tensors together before in this forward pass.

        It then wants another mean of the same weights (differential attention does).
        """
        before = self._met.get(module)
        self._met[module] = ref(query), ref(key)
        return before is not None and before[0]() is query and before[1]() is key

    def miss(self, module: nn.Module, why: str) -> None:
        """`module` ran, and its weights could not be seen."""
        self.caught.unseen.setdefault(self.places[module].tower, f"{type(module).__name__} {why}")

    def place(
        self, module: nn.Module, weights: Tensor, allowed: Tensor | None
    ) -> tuple[AttentionPlace, str, int]:
        """Where this call of `module` belongs: its place, tower and layer."""
        place = self.places[module]
        if not self._running and (module in self._called or not self._called):
            self._next()  # a part of the model was called by itself
        self._called.add(module)
        tower = place.tower or self._tower_alone(module, weights, allowed)
        layer = self._counts[tower] if place.layer is None else place.layer
        self._counts[tower] += 1
        self._seen += 1
        return place, tower, layer

    def first(self) -> str | None:
        """The name of the first module that is wanted; None where names do not tell."""
        for place in self.places.values():
            if self.wants(place.tower or next(iter(self._towers or ("",))), place.layer or 0):
                return place.name
        return None

    def wants(self, tower: str, layer: int) -> bool:
        return (self._layers is None or layer in self._layers) and (
            self._towers is None or tower in self._towers
        )

    def add(self, call: Call) -> None:
        """Keep what is wanted of `call`, on the CPU."""
        if self.traced is not None and call.name == self.traced[0]:
            call = replace(call, steps=self.traced[1].record(call))
            self.traced = None
        kept: dict[str, Any] = {name: None for name in TAPS if name not in self._keep}
        for name, value in vars(call).items():
            if isinstance(value, Tensor) and name not in kept:
                kept[name] = value.detach().to("cpu")
        self._each(replace(call, **kept))

    def step(self) -> int:
        return max(self._step, 0)

    def allowed(self, mask: Tensor | None, keys: int) -> Tensor | None:
        """A mask that is added to scores, or a boolean one, as bool: True where one may look.

        Most models make one mask for many layers; it is read once.
        """
        if mask is None:
            return None
        known = self._masks.get(id(mask))
        if known is not None:
            return known[1]
        given = mask.detach()[..., :keys]
        allowed = given if given.dtype is torch.bool else given > FORBIDDING
        allowed = allowed.view((1,) * (4 - allowed.ndim) + allowed.shape)
        self._masks[id(mask)] = (mask, allowed)  # held, so that its id stays its own
        return allowed

    def require_something(self) -> None:
        """Raise `InputError` when the model ran, and nothing was seen."""
        kind = type(self._model).__name__
        if self._ran and not self._seen:
            why = "; ".join(dict.fromkeys(self.caught.unseen.values()))
            if not self.places:
                why = "it has no module that transformers or torch knows as attention"
            why = why or "no softmax over keys ran in its attention"
            raise InputError(f"no attention of {kind} could be seen: {why}")

    def _tower_alone(self, module: nn.Module, weights: Tensor, allowed: Tensor | None) -> str:
        """The only tower's name: a decoder is one whose queries look at no later key."""
        if not self._alone:
            causal = getattr(module, "is_causal", None)
            if not isinstance(causal, bool):
                causal = allowed is not None and _is_causal(allowed, *weights.shape[-2:])
            self._alone = "decoder" if causal else "encoder"
        return self._alone


def _require_places(
    there: Mapping[nn.Module, AttentionPlace],
    layers: Collection[int] | None,
    towers: Collection[str] | None,
) -> None:
    """Raise `InputError` for a layer or tower that the model does not have, as far as it tells."""
    names = sorted({place.tower for place in there.values()})
    for tower in towers or ():
        if there and "" not in names and tower not in names:
            raise InputError(f"no tower {printable(tower)}; the model has {', '.join(names)}")
    numbers = {place.layer for place in there.values()}
    for layer in layers or ():
        if there and None not in numbers and layer not in numbers:
            known = ", ".join(str(number) for number in sorted(numbers, key=lambda n: n or 0))
            raise InputError(f"no layer {printable(layer)}; the model has {known}")


def _is_causal(allowed: Tensor, queries: int, keys: int) -> bool:
    """Whether nobody looks at later keys. One query alone says nothing, and counts as causal."""
    later = torch.ones(queries, keys, dtype=torch.bool, device=allowed.device)
    return not bool((allowed & later.triu(1 + keys - queries)).any())


# ── putting it in, and taking it out ─────────────────────────────────────────────────────────

_WATCHES: list[_Watch] = []
_LOCK = RLock()


@dataclass
class _Shared:
    """A setting of the whole process that is another one while anybody needs it.

    `change` makes it so, and returns what puts it back.
    """

    change: Callable[[], Callable[[], None]]
    n_users: int = 0
    restore: Callable[[], None] = lambda: None

    def use(self, undo: ExitStack) -> None:
        with _LOCK:
            if self.n_users == 0:
                self.restore = self.change()
            self.n_users += 1
        undo.callback(self._leave)

    def _leave(self) -> None:
        with _LOCK:
            self.n_users -= 1
            if self.n_users == 0:
                self.restore()


def _put_in_attend() -> Callable[[], None]:
    """`_attend` is the function of the name `eager`."""
    from transformers import AttentionInterface

    known = AttentionInterface._global_mapping  # the interface can register, and not take back
    before = known.get("eager")
    AttentionInterface.register("eager", _attend)

    def restore() -> None:
        del known["eager"]
        if before is not None:
            known["eager"] = before

    return restore


def _close_fast_path() -> Callable[[], None]:
    """No layer runs in one kernel, which keeps its weights to itself."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    return partial(torch.backends.mha.set_fastpath_enabled, before)


_ATTEND, _NO_FAST_PATH = _Shared(_put_in_attend), _Shared(_close_fast_path)


def _install(watch: _Watch, model: nn.Module, undo: ExitStack) -> None:
    undo.callback(model.register_forward_pre_hook(watch.begin).remove)
    undo.callback(model.register_forward_hook(watch.end, always_call=True).remove)
    kinds = {place.how for place in watch.places.values()}
    _choose_eager(model, undo)
    if "torch._dynamo" in sys.modules:  # nothing can be compiled without it
        undo.enter_context(torch.compiler.set_stance("force_eager"))
    if INTERFACE in kinds:
        _ATTEND.use(undo)
        _WATCHES.append(watch)
        undo.callback(_WATCHES.remove, watch)
    if any(isinstance(m, (nn.MultiheadAttention, nn.TransformerEncoder)) for m in model.modules()):
        _NO_FAST_PATH.use(undo)
    for module, place in watch.places.items():
        if place.how == TORCH:
            _replace_forward(module, _asking(watch, module), undo)
        elif place.how == OWN_CODE:
            _replace_forward(module, _spying(watch, module), undo)


def _choose_eager(model: nn.Module, undo: ExitStack) -> None:
    """Every configuration of the model says `eager`, and later again what it said before."""
    name = "_attn_implementation_internal"  # the public setter would reach into sub-configurations
    waiting = [
        config for m in model.modules() if (config := getattr(m, "config", None)) is not None
    ]
    known: set[int] = set()
    while waiting:
        config = waiting.pop()
        if id(config) in known or name not in getattr(config, "__dict__", {}):
            continue
        known.add(id(config))
        undo.callback(setattr, config, name, getattr(config, name))
        setattr(config, name, "eager")
        parts = (getattr(config, part, None) for part in getattr(config, "sub_configs", ()))
        waiting += [part for part in parts if part is not None]


def _replace_forward(module: nn.Module, forward: Callable[..., Any], undo: ExitStack) -> None:
    if "forward" in vars(module):  # somebody else, accelerate say, has put one there
        undo.callback(setattr, module, "forward", module.forward)
    else:
        undo.callback(delattr, module, "forward")
    module.forward = forward


# ── the three ways to see ────────────────────────────────────────────────────────────────────


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """The family's own eager attention; what went in and came out is shown to who watches."""
    eager = own_eager(module)
    assert eager is not None  # a class that asks the interface names its default
    output, weights = eager(module, query, key, value, attention_mask, *args, **kwargs)
    for watch in [watch for watch in _WATCHES if module in watch.places]:
        if _is_in_backward() or watch.knows(module, query, key):
            continue
        allowed = watch.allowed(attention_mask, key.shape[-2])
        place, tower, layer = watch.place(module, weights, allowed)
        if not watch.wants(tower, layer):
            continue
        seen = weights
        if module.training:
            with _evaluated(module):
                _, seen = eager(module, query, key, value, attention_mask, *args, **kwargs)
        scale = kwargs.get("scaling")
        watch.add(
            Call(
                place.name,
                tower,
                layer,
                watch.step(),
                seen,
                allowed,
                query,
                key,
                value,
                output.transpose(1, 2),
                query.shape[-1] ** -0.5 if scale is None else float(scale),
                kwargs.get("softcap"),
                kwargs.get("position_bias"),
                _source(eager),
            )
        )
    return output, weights


def _is_in_backward() -> bool:
    """Whether a layer only runs again for its gradients (gradient checkpointing)."""
    return torch._C._current_graph_task_id() != -1


@contextmanager
def _evaluated(module: nn.Module) -> Iterator[None]:
    """`module` without dropout and without gradients, for a moment."""
    training = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, was in training:
            part.training = was


def _spying(watch: _Watch, module: nn.Module) -> Callable[..., Any]:
    original = module.forward

    @wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if _is_in_backward():
            return original(*args, **kwargs)
        with Spy() as spy:
            result = original(*args, **kwargs)
        n = len(spy.sights) + spy.pieces
        if len(spy.sights) != 1 and n:  # one whole map is the main one of ProphetNet's streams
            watch.miss(module, f"computes its attention in {plural(n, 'piece')}, not whole")
            return result
        for sight in spy.sights:
            weights, allowed = (with_heads(t, module) for t in (sight.weights, sight.allowed))
            if weights is None or allowed is None:
                shape = list(sight.weights.shape)
                watch.miss(module, f"has weights of shape {shape}, not [B H Tq Tk]")
                continue
            place, tower, layer = watch.place(module, weights, allowed)
            if watch.wants(tower, layer):
                watch.add(
                    Call(
                        place.name,
                        tower,
                        layer,
                        watch.step(),
                        weights,
                        _same_for_heads(allowed),
                        sight.q,
                        sight.k,
                        sight.v,
                        scale=sight.scale,
                        source=_source(type(module).forward),
                    )
                )
        return result

    return forward


def _same_for_heads(allowed: Tensor) -> Tensor:
    """`[B H Tq Tk]` → `[B 1 Tq Tk]` where the heads do not differ."""
    return allowed[:, :1] if bool((allowed == allowed[:, :1]).all()) else allowed


def _asking(watch: _Watch, module: nn.Module) -> Callable[..., Any]:
    """`nn.MultiheadAttention.forward` that computes its weights in any case."""
    original = module.forward
    signature = inspect.signature(original)

    @wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if _is_in_backward():
            return original(*args, **kwargs)
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        asked = given.arguments
        wanted, averaged = asked["need_weights"], asked["average_attn_weights"]
        asked.update(need_weights=True, average_attn_weights=False)
        output, weights = original(*given.args, **given.kwargs)
        seen = weights
        if module.training:
            with _evaluated(module):
                _, seen = original(*given.args, **given.kwargs)
        seen = seen if seen.ndim == 4 else seen[None]
        allowed = allowed_by(seen, asked["attn_mask"], asked["key_padding_mask"])
        place, tower, layer = watch.place(module, seen, allowed)
        if watch.wants(tower, layer):
            source = _source(type(module).forward)
            watch.add(Call(place.name, tower, layer, watch.step(), seen, allowed, source=source))
        if not wanted:
            return output, None
        return output, weights.mean(-3) if averaged else weights

    return forward


def _source(function: Callable[..., Any]) -> str:
    """File and line of a function, as the trace shows them."""
    code = inspect.unwrap(function).__code__
    return f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}"
