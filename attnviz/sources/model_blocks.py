"""Attention of a pretrained model on a long text: queries and keys are caught as they pass.

A model of transformers chooses its attention function by name. Here the name is one of ours, whose
masks are made as for FlashAttention: they tell which tokens are padding, and nothing of Tq × Tk is
ever built. The function hands on what the weights would be made of, and goes on with torch's own
kernel where the mask is plain, or block by block. That these are the model's weights is proved on
the beginning of the text, against the family's own plain arithmetic; that its masks are those of
FlashAttention, on places all over the text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from math import isnan
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnviz.errors import InputError
from attnviz.masks import Rule
from attnviz.scores import Scores
from attnviz.sources.attention_modules import INTERFACE
from attnviz.sources.capturing import Call, capture
from attnviz.sources.encoding import Encoded
from attnviz.sources.loading import LoadedModel
from attnviz.sources.towers import members, tower_names
from attnviz.streaming import context, window

PROVED = 1024
"""Tokens at the beginning of the text on which the blocks are compared with the model's own."""

PROVED_ROWS = 16
"""The last of those: their weights are compared."""

TOLERANCE, TOLERANCE_OF_HALVES = 0.01, 0.1
"""How much of a row's weight may lie elsewhere then, of a head's mean. Plain arithmetic in 16 bits
rounds a score of 16 to the next of steps of 1/8 (bfloat16), where blocks compute in 32."""

PROBES = 64
"""Places along each side at which a mask is asked what it allows."""


class _EnoughError(Exception):
    """All layers that are wanted have been seen."""


Each = Callable[[int, Scores], None]
"""Called with the number of each layer, and with what makes its weights."""


@contextmanager
def in_blocks(
    model: nn.Module, tower: str, each: Each, layers: Collection[int], stop: bool = False
) -> Iterator[None]:
    """While this lasts, `model` computes attention without maps, and `each` sees that of `layers`.

    With `stop` the pass ends, and with it what is done inside, when the last of them was seen. At
    the end the model is as it was.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    functions, masks = AttentionInterface._global_mapping, AttentionMaskInterface._global_mapping
    name = f"attnviz_blocks_{id(each):x}"
    places = members(model, tower)

    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        attention = _attention(module, query, key, attention_mask, kwargs)
        place = places.get(module)
        layer = None if place is None else place.layer
        if layer is not None and layer in layers:
            each(layer, attention)
            if stop and layer == max(layers):
                raise _EnoughError
        return _output(attention, value).transpose(1, 2).contiguous(), None

    with ExitStack() as undo:
        functions[name], masks[name] = attend, _plain_mask(masks["flash_attention_2"])
        undo.callback(functions.pop, name)
        undo.callback(masks.pop, name)
        for config in _configs(model):
            undo.callback(setattr, config, IMPLEMENTATION, getattr(config, IMPLEMENTATION))
            setattr(config, IMPLEMENTATION, name)
        with suppress(_EnoughError):
            yield


def _plain_mask(make: Any) -> Callable[..., Tensor | None]:
    """FlashAttention's masks, made by `make`, where they are what the model asks for.

    It knows causality and a window, and leaves the rest of a mask out without a word.
    """

    def mask(*, mask_function: Callable[..., Tensor], **given: Any) -> Tensor | None:
        _require_plain(mask_function, given)
        made: Tensor | None = make(mask_function=mask_function, **given)
        return made

    return mask


def _require_plain(allows: Callable[..., Tensor], given: Mapping[str, Any]) -> None:
    """Raise `InputError` unless `allows(b, h, q, k)` is causality, a window, both or nothing."""
    queries, keys = given["q_length"], given["kv_length"]
    start, first = (int(given.get(name, 0)) for name in ("q_offset", "kv_offset"))
    shift = start - first
    size = given.get("local_size")
    size = keys if size is None else int(size)
    q = torch.linspace(0, queries - 1, min(PROBES, queries), dtype=torch.float64).long()[:, None]
    edges = torch.tensor([-size - 1, -size, 1 - size, -1, 0, 1, size - 1, size, size + 1])
    spread = torch.linspace(0, keys - 1, min(PROBES, keys), dtype=torch.float64).long()
    spread = spread.expand(len(q), -1)
    k = torch.cat([spread, (q + shift + edges).clamp(0, keys - 1)], 1)
    zero = torch.zeros(1, 1, dtype=torch.int64)
    found = allows(zero, zero, q + start, k + first).expand(k.shape).cpu()
    ahead = k - q - shift
    window, causal = ahead > -size, ahead <= 0
    near = ahead.abs() <= size  # windows that look ahead hold their edges, others do not
    known = (torch.ones_like(causal), causal, window & causal, near)
    if not any(bool((found == each).all()) for each in known):
        raise InputError("the model makes a mask of its own; its maps are computed whole only")


IMPLEMENTATION = "_attn_implementation_internal"
"""Where a configuration has the name; the public setter would reach into sub-configurations."""


def _configs(model: nn.Module) -> list[Any]:
    """Every configuration in the model that names an attention function."""
    waiting = [c for m in model.modules() if (c := getattr(m, "config", None)) is not None]
    found: dict[int, Any] = {}
    while waiting:
        config = waiting.pop()
        if id(config) in found or IMPLEMENTATION not in getattr(config, "__dict__", {}):
            continue
        found[id(config)] = config
        parts = (getattr(config, part, None) for part in getattr(config, "sub_configs", ()))
        waiting += [part for part in parts if part is not None]
    return list(found.values())


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    attention_mask: Tensor | None,
    given: dict[str, Any],
) -> Scores:
    """What the weights are made of, by the arguments that FlashAttention would be given."""
    if given.get("position_bias") is not None:
        raise InputError("the model adds a table to its scores; its maps are computed whole only")
    if attention_mask is not None and attention_mask.ndim != 2:
        raise InputError("the model makes a mask of its own; its maps are computed whole only")
    causal = given.get("is_causal")
    causal = bool(getattr(module, "is_causal", False)) if causal is None else causal
    n_queries, n_keys = query.shape[2], key.shape[2]
    rules = []
    if attention_mask is not None:
        rules.append(_padding(attention_mask))
    size = given.get("sliding_window")
    if size is not None and n_keys > size:
        rules.append(_window(n_queries, n_keys, int(size), causal))
    elif causal and n_queries > 1:
        rules.append(_window(n_queries, n_keys, None, causal))
    scale = given.get("scaling")
    return Scores(
        query,
        key,
        tuple(rules),
        scale=query.shape[-1] ** -0.5 if scale is None else float(scale),
        softcap=given.get("softcap"),
        sinks=given.get("s_aux"),
    )


def _padding(valid: Tensor) -> Rule:
    """Keys that are tokens, [B Tk]; padding stands on one side."""
    real = valid.bool().cpu().numpy()
    first = real.argmax(1)
    if (np.abs(np.diff(real.astype(np.int8), axis=1)).sum(1) > 1).any():
        raise InputError("padding stands inside of the text; its maps are computed whole only")
    return Rule(
        "padding",
        lambda b, h, q, k: real[b, k],
        span=lambda b: (first[b, None], first[b, None] + real[b].sum()),
    )


def _window(n_queries: int, n_keys: int, size: int | None, causal: bool) -> Rule:
    """Queries are the last of the keys; a window of n looks n - 1 tokens back, and ahead where the
    model looks ahead at all."""
    own = np.arange(n_queries) + n_keys - n_queries
    first = np.zeros_like(own) if size is None else own - size + 1
    end = own + 1 if causal or size is None else own + size
    name = "causal" if size is None else f"window {size}"
    return Rule(
        name,
        lambda b, h, q, k: (k >= first[q]) & (k < end[q]),
        span=lambda b: (first, end),
    )


def _output(attention: Scores, value: Tensor) -> Tensor:
    """weights · value: torch's own kernel where it can, else block by block."""
    plain = attention.softcap is None and attention.sinks is None
    names = [rule.name for rule in attention.rules]
    if plain and names in ([], ["causal"]) and attention.queries == attention.keys:
        return torch.nn.functional.scaled_dot_product_attention(
            attention.q,
            attention.k,
            value,
            is_causal=bool(names),
            scale=attention.multiplier,
            enable_gqa=attention.k.shape[1] != attention.n_heads,
        )
    return context(attention, value)


# ── before it runs ───────────────────────────────────────────────────────────────────────────


def require_interface(loaded: LoadedModel, tower: str) -> None:
    """Raise `InputError` where a layer computes attention by lines of its own."""
    for module, place in members(loaded.network, tower).items():
        if place.how != INTERFACE or place.layer is None:
            raise InputError(
                f"{loaded.source} computes its attention in {type(module).__name__} by lines of "
                "its own; its maps are computed whole only: cut the text with --max-len"
            )


def bytes_of_flow(loaded: LoadedModel, tokens: int) -> int:
    """Bytes of what flows through a layer of the model for so many tokens, about."""
    width = int(getattr(loaded.config, "hidden_size", 1024))
    inner = int(getattr(loaded.config, "intermediate_size", 4 * width) or 4 * width)
    item = int(next(loaded.network.parameters()).element_size())
    return tokens * (12 * width + 4 * inner) * item


def prove(
    loaded: LoadedModel, tower: str, layers: Sequence[int], run: Callable[[], object]
) -> None:
    """Raise `InputError` where the blocks give other weights than the family's own arithmetic.

    `run` runs the model on a text short enough for whole maps, `PROVED` tokens say; it is called
    twice.
    """
    blocks: dict[int, Tensor] = {}
    apart: dict[int, float] = {}

    def keep(layer: int, attention: Scores) -> None:
        rows = range(max(0, attention.queries - PROVED_ROWS), attention.queries)
        heads = range(attention.n_heads)
        found = [window(attention, rows, range(attention.keys), 0, head) for head in heads]
        blocks[layer] = torch.stack(found).cpu()

    def compare(call: Call) -> None:
        expect = call.weights[0, :, -PROVED_ROWS:]
        moved = (blocks[call.layer] - expect).abs().sum(-1) / 2
        apart[call.layer] = float(moved.mean(-1).max())
        if call.layer == max(layers):
            raise _EnoughError

    only = [tower] if len(tower_names(loaded.network)) > 1 else None
    with torch.no_grad(), in_blocks(loaded.network, tower, keep, layers, stop=True):
        run()
    with (
        torch.no_grad(),
        suppress(_EnoughError),
        capture(loaded.network, layers, towers=only, each=compare),
    ):
        run()
    layer = max(apart, key=lambda layer: (isnan(apart[layer]), apart[layer]))
    narrow = next(loaded.network.parameters()).element_size() < 4
    if not apart[layer] <= (TOLERANCE_OF_HALVES if narrow else TOLERANCE):
        raise InputError(
            f"{loaded.source} does more than q · k and mask: block by block, {apart[layer]:.1%} of "
            f"the weight of layer {layer} would lie elsewhere; its maps are computed whole only"
        )


def beginning(encoded: Encoded) -> Encoded:
    """The first tokens of the first text, alone."""
    return replace(
        encoded,
        texts=encoded.texts[:1],
        ids=(encoded.ids[0][:PROVED],),
        raw=(encoded.raw[0][:PROVED],),
        spans=(encoded.spans[0][:PROVED],),
        special=(encoded.special[0][:PROVED],),
        types=(encoded.types[0][:PROVED],),
        words=(),
    )
