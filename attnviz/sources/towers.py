"""Which stack of layers of a model is meant, and what it holds: its layers, its heads."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import nn

from attnviz.config import HEAD_COUNTS, first_number
from attnviz.errors import ConfigError, InputError, printable
from attnviz.sources.attention_modules import AttentionPlace, places
from attnviz.wording import noun_for


def choose_tower(network: nn.Module, shown: str, wanted: str | None, has_keys: bool) -> str:
    """The tower that `wanted` names; when None, the only one, or the one that is seen first.

    That is an encoder–decoder's encoder, or its cross attention where `has_keys`. Raises
    `ConfigError` that names the towers, and `InputError` when there is no attention.
    """
    towers = tower_names(network)
    if not towers:
        raise InputError(f"{shown} has no attention that transformers or torch knows")
    if wanted is None:
        usual = ("cross", "encoder", "text") if has_keys else ("encoder", "text")
        return next((tower for tower in usual if tower in towers), towers[0])
    if wanted not in towers:
        raise ConfigError(f"--attention {printable(wanted)}: {shown} has {', '.join(towers)}")
    return wanted


def tower_names(network: nn.Module) -> tuple[str, ...]:
    """The names of a model's towers."""
    names = dict.fromkeys(place.tower for place in places(network).values())
    return tuple(name or _name_alone(network) for name in names)


def _name_alone(network: nn.Module) -> str:
    """What the only tower is, as far as it can be known before it runs."""
    causal = getattr(next(iter(places(network))), "is_causal", None)
    if isinstance(causal, bool):
        return "decoder" if causal else "encoder"
    from transformers.models.auto import modeling_auto

    kind = getattr(getattr(network, "config", None), "model_type", None)
    writes = kind in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    fills_in = kind in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return "decoder" if writes and not fills_in else "encoder"


def members(network: nn.Module, tower: str) -> dict[nn.Module, AttentionPlace]:
    """The modules of a tower; "" as a module's tower stands for the only one."""
    return {m: place for m, place in places(network).items() if place.tower in (tower, "")}


def layer_numbers(network: nn.Module, tower: str) -> tuple[int, ...]:
    """The numbers of a tower's layers; some may be missing, where layers have no attention."""
    found = members(network, tower)
    numbers = [place.layer for place in found.values()]
    if None in numbers:  # layers share modules
        config: Any = next(iter(found)).config
        return tuple(range(config.num_hidden_layers))
    return tuple(sorted(number for number in numbers if number is not None))


def choose_layers(
    network: nn.Module, tower: str, wanted: Collection[int] | None
) -> tuple[int, ...]:
    """The numbers of the layers to keep. Raises `ConfigError` for one that is not there."""
    known = layer_numbers(network, tower)
    if wanted is None:
        return known
    for number in wanted:
        if number not in known:
            there = f"{len(known)} layers, {known[0]} to {known[-1]}"
            if len(known) < known[-1] + 1 - known[0] or len(known) == 1:
                there = f"attention in {noun_for(len(known), 'layer')} {', '.join(map(str, known))}"
            raise ConfigError(f"--layers {number}: the {tower} has {there}")
    return tuple(sorted(set(wanted)))


def n_heads(network: nn.Module, tower: str) -> int:
    """Query heads of a tower's first layer."""
    module = next(iter(members(network, tower)))
    for owner in (module, getattr(module, "config", None), getattr(network, "config", None)):
        value = first_number(owner, HEAD_COUNTS)
        if value is not None:
            return value
    raise InputError(f"{type(network).__name__} does not say how many heads it has")
