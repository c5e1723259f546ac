"""Where attention happens inside somebody else's model: its modules, their towers and layers.

A *tower* is one stack of layers whose attention belongs together: `encoder`, `decoder`, `cross`
(the decoder's look at the encoder), `vision`, `audio`, `text`.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import FunctionType
from typing import Any

from torch import nn

INTERFACE, OWN_CODE, TORCH = "interface", "own code", "torch"
"""How a module computes attention: through transformers' interface, by lines of its own, or as
`nn.MultiheadAttention`."""

CROSS = re.compile(r"cross_?att|encoder_?att|enc_?dec|multihead_attn", re.IGNORECASE)
"""What modules are called that look at another sequence."""

TOWERS = (
    ("vision", re.compile(r"visi|visual|image")),
    ("audio", re.compile(r"audio|speech")),
    ("decoder", re.compile(r"(^|_)decoder$")),
    ("text", re.compile(r"text|language")),
    ("encoder", re.compile(r"(^|_)encoder$")),
)
"""Names of towers, each with the parts of a module's path that tell it; the first match counts."""

NO_TEXT = ("vision", "audio")
"""Towers that read no text."""


@dataclass(frozen=True)
class AttentionPlace:
    """Where a module's attention belongs.

    `tower` is "" where names do not tell it, and the mask will: encoder or decoder. `layer` is
    None where a module serves several layers, and the order of calls gives the number.
    """

    name: str
    how: str
    tower: str
    layer: int | None


def places(model: nn.Module) -> dict[nn.Module, AttentionPlace]:
    """Every module of `model` that computes attention, in the model's own order."""
    found = dict(_found(model))
    towers = _towers([place.name for place in found.values()], [*found])
    named = {
        module: replace(place, tower=tower)
        for (module, place), tower in zip(found.items(), towers, strict=True)
    }
    placed: dict[nn.Module, AttentionPlace] = {}
    for tower in dict.fromkeys(towers):
        members = {module: place for module, place in named.items() if place.tower == tower}
        numbers = _layers(members)
        for (module, place), layer in zip(members.items(), numbers, strict=True):
            placed[module] = replace(place, layer=layer)
    alone = len(set(towers)) == 1 and CROSS.search(towers[0]) is None
    return {m: replace(placed[m], tower="" if alone else placed[m].tower) for m in named}


def own_eager(module: nn.Module) -> Callable[..., Any] | None:
    """The eager attention function that `module` gives to transformers' interface as its default.

    It is read from the names that the class's methods use: `eager_attention_forward` in most
    families, `vision_eager_attention_forward` and the like where one file has two. None for a
    module that does not use the interface.
    """
    kind: Any = type(module)
    return _eager_of(kind)


@cache
def _eager_of(kind: type[nn.Module]) -> Callable[..., Any] | None:
    for owner in kind.__mro__:
        for method in vars(owner).values():
            function = inspect.unwrap(method) if callable(method) else None
            if not isinstance(function, FunctionType):
                continue
            for name in function.__code__.co_names:
                if name.endswith("eager_attention_forward"):
                    eager: Callable[..., Any] | None = function.__globals__.get(name)
                    return eager
    return None


def _found(model: nn.Module) -> Iterator[tuple[nn.Module, AttentionPlace]]:
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            plain = "need_weights" in inspect.signature(module.forward).parameters
            yield module, AttentionPlace(name, TORCH if plain else OWN_CODE, "", None)
        elif own_eager(module) is not None:
            yield module, AttentionPlace(name, INTERFACE, "", None)
        elif _is_called_attention(module) and not any(
            _is_called_attention(part) or own_eager(part) is not None
            for part in module.modules()
            if part is not module
        ):
            yield module, AttentionPlace(name, OWN_CODE, "", None)


def _is_called_attention(module: nn.Module) -> bool:
    return "attention" in type(module).__name__.lower()


def _towers(names: Sequence[str], modules: Sequence[nn.Module]) -> list[str]:
    """A tower for each path. Where two stacks would share one, the smaller keeps its own path."""
    stacks = []
    for name, module in zip(names, modules, strict=True):
        parts = name.split(".")
        first = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts))
        crosses = getattr(module, "is_cross_attention", False) or CROSS.search(name)
        stacks.append((".".join(parts[:first]), bool(crosses)))
    sizes = Counter(stacks)
    owner: dict[str, tuple[str, bool]] = {}
    for stack, _ in sizes.most_common():
        owner.setdefault(_tower(*stack), stack)
    return [
        _tower(*stack) if owner[_tower(*stack)] == stack else stack[0] + ".cross" * stack[1]
        for stack in stacks
    ]


def _tower(prefix: str, crosses: bool) -> str:
    if crosses:
        return "cross"
    parts = prefix.lower().split(".")
    for tower, pattern in TOWERS:
        if any(pattern.search(part) for part in parts):
            return tower
    return ""


def _layers(members: dict[nn.Module, AttentionPlace]) -> Sequence[int | None]:
    """The number of each module's layer, or None where the order of calls has to give it."""
    own = [getattr(module, "layer_idx", None) for module in members]
    if all(isinstance(number, int) for number in own) and len(set(own)) == len(own):
        return own
    expected = [
        getattr(getattr(module, "config", None), "num_hidden_layers", None) for module in members
    ]
    if any(isinstance(n, int) and n > len(members) for n in expected):  # layers share modules
        return [None] * len(members)
    in_path = [re.search(r"(?:^|\.)(\d+)(?:\.|$)", place.name) for place in members.values()]
    numbers = [int(found[1]) for found in in_path if found]
    if len(set(numbers)) == len(members):
        return numbers
    return list(range(len(members)))
