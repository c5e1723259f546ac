"""Attention of a pretrained model on texts: one forward pass, watched."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from attnviz.batch import Batch
from attnviz.config import choice
from attnviz.errors import ConfigError, InputError, printable
from attnviz.machine import require_memory
from attnviz.result import AttentionResult, from_batches
from attnviz.sources.attention_modules import places
from attnviz.sources.capturing import TAPS, Call, capture
from attnviz.sources.encoding import Encoded, Say, encode, shifted_right
from attnviz.sources.loading import LoadedModel, load_model
from attnviz.sources.run import Run
from attnviz.sources.subwords import readable

SCORES = ("products", "scores", "position_bias", "biased")
"""Computed again from the q, k, scale and bias that were captured; checked against the weights."""

KEEPABLE = (*TAPS, *SCORES)
"""What a run of a model can keep."""

BEYOND_ROUNDING = 1e-3
"""A row that sums to less than 1 by more than this has lost something to a sink."""


def from_pretrained(
    model: LoadedModel | str,
    texts: Sequence[str],
    *,
    keys: Sequence[str] | None = None,
    attention: str | None = None,
    layers: Collection[int] | None = None,
    keep: Collection[str] = (),
    max_len: int | None = None,
    pad_side: str | None = None,
    say: Say = lambda _: None,
) -> Run:
    """Run `texts` through a model as one padded batch, and return what its layers attended to.

    Args:
        model: a `LoadedModel`, or what `load_model` takes.
        texts: those of the queries. For `attention` "decoder" or "cross" of an encoder–decoder
            they are what the decoder writes, and `keys` what its encoder reads.
        attention: which tower: encoder, decoder, cross, text. May be left out where there is one;
            an encoder–decoder shows its encoder, or its cross attention where `keys` are given.
        layers: which layers to keep, numbers from 0; None keeps all. The others take no memory.
        keep: names of `KEEPABLE` whose tensors go into the result.
        max_len: cut longer texts to this many tokens.
        pad_side: the tokenizer's own side when left out.
        say: called with remarks for the person.

    Rows that may look at nothing are zeros; rows of padding mean nothing. A row sums to less than
    1 where the model has sinks, which is said and never made up for.

    Raises:
        InputError: no tokenizer, texts too long, no such tower or layer, layers whose maps differ
            in size, no attention to be seen, or too little memory for it; in one line each.
    """
    loaded = model if isinstance(model, LoadedModel) else load_model(model)
    return run_model(
        loaded,
        texts,
        attention,
        layers,
        keep,
        keys=keys,
        max_len=max_len,
        pad_side=pad_side,
        say=say,
    ).run


@dataclass(frozen=True)
class ModelRun:
    """A run with the batches that it ran on; `keys` is None where queries look at themselves."""

    run: Run
    queries: Batch
    keys: Batch | None


def run_model(
    loaded: LoadedModel,
    texts: Sequence[str],
    attention: str | None = None,
    layers: Collection[int] | None = None,
    keep: Collection[str] = (),
    *,
    keys: Sequence[str] | None = None,
    max_len: int | None = None,
    pad_side: str | None = None,
    say: Say = lambda _: None,
) -> ModelRun:
    """What `from_pretrained` does, with the batches beside the run."""
    for name in keep:
        choice("--keep", name, KEEPABLE)
    tower = choose_tower(loaded.network, loaded.source, attention, keys is not None)
    numbers = choose_layers(loaded.network, tower, layers)
    queries, others = _encoded(loaded, tower, texts, keys, max_len, pad_side, say)
    require_maps(loaded.network, tower, len(numbers), queries, others or queries)
    taps = set(keep) & set(TAPS) | ({"q", "k"} if set(keep) & set(SCORES) else set())
    try:
        with torch.no_grad(), capture(loaded.network, numbers, taps, [tower], True) as captured:
            _forward(loaded, tower, queries, others, say)
    except RuntimeError as error:
        if "memory" in str(error).lower():
            raise InputError(f"{loaded.source}: out of memory; give shorter texts") from None
        raise
    calls = captured.of(tower)
    others = others if tower == "cross" else None
    source = queries if others is None else others
    of_queries = queries.batch(readable(loaded.tokenizer, queries))
    of_keys = None if others is None else others.batch(readable(loaded.tokenizer, others))
    result = from_batches(
        *_maps(calls),
        of_queries,
        of_queries if of_keys is None else of_keys,
        masks=mask_names(calls, queries, source, tower),
        config={
            "model": loaded.name,
            "model_type": loaded.config.model_type,
            "attention": tower,
            "dtype": str(calls[0].weights.dtype).removeprefix("torch."),
            "raw_query_tokens": [list(row) for row in queries.raw],
            "raw_key_tokens": [list(row) for row in source.raw],
        },
        source=f"{loaded.name}, {tower}",
        layers=tuple(call.layer for call in calls),
        kept=_kept(calls, keep),
    )
    for remark in remarks(result):
        say(remark)
    return ModelRun(Run(result, calls[0].steps), of_queries, of_keys)


# ── which attention ──────────────────────────────────────────────────────────────────────────


def choose_tower(network: nn.Module, shown: str, wanted: str | None, has_keys: bool) -> str:
    """The tower whose attention is meant; "" stands for the only one of a model."""
    towers = list(dict.fromkeys(place.tower for place in places(network).values()))
    if not towers:
        raise InputError(f"{shown} has no attention that transformers or torch knows")
    alone = len(towers) == 1
    if wanted is None:
        if alone:
            return towers[0] or _name_alone(network)
        for default in ("cross" if has_keys else "encoder", "encoder", "text"):
            if default in towers:
                return default
        return towers[0]
    if alone and not towers[0]:
        towers = [_name_alone(network)]
    if wanted not in towers:
        raise ConfigError(
            f"--attention {printable(wanted)}: {shown} has {', '.join(t or 'one' for t in towers)}"
        )
    return wanted


def _name_alone(network: nn.Module) -> str:
    """encoder or decoder, as the family's own classes tell it."""
    first = next(iter(places(network)))
    causal = getattr(first, "is_causal", None)
    if isinstance(causal, bool):
        return "decoder" if causal else "encoder"
    return "decoder" if getattr(type(network), "_can_generate", None) else "encoder"


def choose_layers(
    network: nn.Module, tower: str, wanted: Collection[int] | None
) -> tuple[int, ...]:
    """The numbers of the layers to keep. Raises `ConfigError` for one that is not there."""
    known = layer_numbers(network, tower)
    if wanted is None:
        return known
    for number in wanted:
        if number not in known:
            there = f"{known[0]} to {known[-1]}" if len(known) > 1 else f"{known[0]}"
            raise ConfigError(f"--layers {number}: there are {len(known)} layers, {there}")
    return tuple(sorted(set(wanted)))


def layer_numbers(network: nn.Module, tower: str) -> tuple[int, ...]:
    """The numbers of a tower's layers."""
    found = places(network)
    members = {m: place for m, place in found.items() if place.tower in (tower, "")}
    numbers = [place.layer for place in members.values()]
    if None in numbers:  # layers share modules
        config: Any = next(iter(members)).config
        return tuple(range(config.num_hidden_layers))
    return tuple(number for number in numbers if number is not None)


# ── running ──────────────────────────────────────────────────────────────────────────────────


def _encoded(
    loaded: LoadedModel,
    tower: str,
    texts: Sequence[str],
    keys: Sequence[str] | None,
    max_len: int | None,
    pad_side: str | None,
    say: Say,
) -> tuple[Encoded, Encoded | None]:
    """The queries' texts and, where a decoder looks at an encoder, the encoder's."""
    if loaded.tokenizer is None:
        raise InputError(f"{loaded.source} has no tokenizer that could be read")
    how: dict[str, Any] = {"max_len": max_len, "pad_side": pad_side, "say": say}
    both = getattr(loaded.config, "is_encoder_decoder", False)
    reads = both and tower in ("decoder", "cross")
    if keys is not None and not reads:
        raise ConfigError(f"--keys: the {tower} of {loaded.source} looks at its own text alone")
    queries = encode(loaded.tokenizer, texts, **how)
    others = None
    if reads:
        if keys is None:
            raise ConfigError(
                f"--attention {tower}: {loaded.source} needs a text for its encoder as well, "
                "with --keys; TEXT is what the decoder writes"
            )
        if len(keys) == 1:
            keys = list(keys) * len(texts)
        if len(keys) != len(texts):
            raise InputError(f"there are {len(texts)} texts and {len(keys)} --keys")
        others = encode(loaded.tokenizer, keys, **how)
        start = loaded.config.decoder_start_token_id
        start = loaded.tokenizer.bos_token_id if start is None else start
        word = str(loaded.tokenizer.convert_ids_to_tokens(start))
        queries = shifted_right(queries, start, loaded.tokenizer.eos_token_id, word)
    for encoded in [queries] if others is None else [queries, others]:
        _require_short(loaded, encoded, say)
    return queries, others


def _require_short(loaded: LoadedModel, encoded: Encoded, say: Say) -> None:
    """Refuse texts longer than the positions that a model has learned; remark on others."""
    longest = getattr(loaded.config, "max_position_embeddings", None)
    own = loaded.tokenizer.model_max_length
    if own < 10**9:
        longest = own if longest is None else min(own, longest)
    if longest is None or encoded.width <= longest:
        return
    at = int(encoded.lengths.argmax())
    if learned_positions(loaded.network):
        raise InputError(
            f"sequence {at} has {encoded.width:,} tokens, and {loaded.source} has learned "
            f"{longest:,} positions; --max-len {longest} cuts it"
        )
    say(f"sequence {at} has {encoded.width:,} tokens, more than the {longest:,} it was made for")


def learned_positions(network: nn.Module) -> bool:
    """Whether the model has a table with a row for each position."""
    names = ("position_embedding", "embed_position", "wpe", "pos_embed")
    return any(
        isinstance(module, nn.Embedding) and any(part in name for part in names)
        for name, module in network.named_modules()
    )


def require_maps(
    network: nn.Module, tower: str, layers: int, queries: Encoded, keys: Encoded
) -> None:
    """Raise `InputError` when the maps would not fit in memory."""
    heads = n_heads(network, tower)
    source = keys if tower == "cross" else queries
    cells = len(queries.ids) * queries.width * source.width
    item = next(iter(network.parameters())).element_size()
    # the maps that are kept with their masks; the scores and weights of one layer, several times
    needed = layers * cells * (heads * max(item, 4) + 1) + 4 * cells * heads * max(item, 4)
    require_memory(
        needed,
        f"attention for {len(queries.ids)} × {layers} layers × {heads} heads × "
        f"{queries.width} queries × {source.width} keys",
        "keep fewer layers with --layers, or cut the text with --max-len",
    )


def n_heads(network: nn.Module, tower: str) -> int:
    """Query heads of a tower's first layer."""
    names = ("num_heads", "num_attention_heads", "n_heads", "n_head")
    found = places(network)
    module = next(m for m, place in found.items() if place.tower in (tower, ""))
    for owner in (module, getattr(module, "config", None), getattr(network, "config", None)):
        for name in names:
            value = getattr(owner, name, None)
            if isinstance(value, int):
                return value
    raise InputError(f"{type(network).__name__} does not say how many heads it has")


def _forward(
    loaded: LoadedModel, tower: str, queries: Encoded, others: Encoded | None, say: Say
) -> None:
    network = loaded.network
    if others is not None:
        given = _inputs(loaded, network, others, say)
        decoder = _inputs(loaded, network, queries, say, "decoder_")
        network(**given, **decoder, use_cache=False)
    elif getattr(loaded.config, "is_encoder_decoder", False):
        encoder = network.get_encoder()
        encoder(**_inputs(loaded, encoder, queries, say))
    elif tower == "text" and hasattr(network, "get_text_features"):
        network.get_text_features(**_inputs(loaded, network.get_text_features, queries, say))
    else:
        accepts = inspect.signature(network.forward).parameters
        cache = {"use_cache": False} if "use_cache" in accepts else {}
        network(**_inputs(loaded, network, queries, say), **cache)


def _inputs(
    loaded: LoadedModel, target: Any, encoded: Encoded, say: Say, prefix: str = ""
) -> dict[str, Tensor]:
    """What `target` takes of: ids, mask, segments, and positions where padding would shift them."""
    accepts = inspect.signature(getattr(target, "forward", target)).parameters
    valid = encoded.valid
    arrays = {
        "input_ids": encoded.padded(encoded.ids, encoded.pad_id),
        "attention_mask": valid.astype(np.int64),
    }
    if not prefix and "token_type_ids" in accepts and "token_type_ids" in _names(loaded.tokenizer):
        arrays["token_type_ids"] = encoded.padded(encoded.types, 0)
    if encoded.pad_side == "left" and not valid.all():
        if prefix + "position_ids" in accepts:
            arrays["position_ids"] = np.maximum(valid.cumsum(1) - 1, 0)
        elif learned_positions(loaded.network):
            say(
                f"{loaded.source} counts positions from the padding on the left; --pad-side right "
                "gives each text the positions that it has alone"
            )
    return {
        prefix + name: torch.from_numpy(array).to(loaded.device) for name, array in arrays.items()
    }


def _names(tokenizer: Any) -> Collection[str]:
    return tuple(getattr(tokenizer, "model_input_names", ()))


# ── what came of it ──────────────────────────────────────────────────────────────────────────


def _maps(calls: Sequence[Call]) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Weights `[L B H Tq Tk]`, 0 where forbidden, and masks `[L B 1|H Tq Tk]` of some layers."""
    _require_alike(calls)
    shape = (len(calls), *calls[0].weights.shape)
    batch, _, queries, keys = shape[1:]
    masks = []
    for call in calls:
        mask = np.ones((1, 1, 1, 1), bool) if call.allowed is None else call.allowed.numpy()
        masks.append(np.broadcast_to(mask, (batch, mask.shape[1], queries, keys)))
    if all(np.array_equal(mask, masks[0]) for mask in masks[1:]):
        allowed = np.broadcast_to(masks[0], (len(calls), *masks[0].shape))
    else:
        heads = max(mask.shape[1] for mask in masks)
        allowed = np.stack([np.broadcast_to(m, (batch, heads, queries, keys)) for m in masks])
    exact = calls[0].weights.dtype is torch.float64
    attention = np.empty(shape, np.float64 if exact else np.float32)
    for i, call in enumerate(calls):
        attention[i] = (call.weights if exact else call.weights.float()).numpy()
        attention[i][~np.broadcast_to(allowed[i], shape[1:])] = 0
    return attention, allowed


def _require_alike(calls: Sequence[Call]) -> None:
    """Raise `InputError` where maps of different sizes cannot stand in one result."""
    shapes: dict[tuple[int, ...], list[int]] = {}
    for call in calls:
        shapes.setdefault(tuple(call.weights.shape), []).append(call.layer)
    if len(shapes) > 1:
        groups = "; ".join(
            f"{','.join(map(str, group))} have [B H Tq Tk] = {list(shape)}"
            for shape, group in shapes.items()
        )
        first = ",".join(map(str, next(iter(shapes.values()))))
        raise InputError(f"the layers' maps differ in size: {groups}; --layers {first}, say")


def _kept(calls: Sequence[Call], keep: Collection[str]) -> dict[str, npt.NDArray[Any]]:
    """The tensors that were asked for, `[L B …]`, but those that a family does not have."""
    found = [{name: _tap(call, name) for name in keep if name in TAPS} for call in calls]
    if set(keep) & set(SCORES):
        for tensors, call in zip(found, calls, strict=True):
            scores = _scores(call)
            tensors.update({name: scores[name] for name in keep if name in scores})
    return {
        name: np.stack([tensors[name].float().numpy() for tensors in found]) for name in found[0]
    }


def _tap(call: Call, name: str) -> Tensor:
    tensor: Tensor | None = getattr(call, name)
    if tensor is None:
        raise InputError(f"{call.name} computes attention in its own code, and shows no {name}")
    return tensor


def _scores(call: Call) -> dict[str, Tensor]:
    """Each of `SCORES`, `[B H Tq Tk]`, from what was captured: before the mask, as it was added up.

    `scores` are products · scale, and are left out where the scale is 1; `position_bias` and
    `biased` are there where a bias was added. Raises `InputError` when softmax of these scores is
    not what the model computed: it does something that was not seen, a cap or a sink.
    """
    q, k = _tap(call, "q"), _tap(call, "k")
    products = q @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).transpose(-1, -2)
    scores = {"products": products}
    if call.scale != 1 or call.bias is None:
        scores["scores"] = products * (1.0 if call.scale is None else call.scale)
    total = scores.get("scores", products)
    if call.bias is not None:
        scores["position_bias"] = call.bias.expand_as(products)
        scores["biased"] = total = total + call.bias
    forbidden = None if call.allowed is None else ~call.allowed
    masked = total if forbidden is None else total.masked_fill(forbidden, -torch.inf)
    weights = call.weights if forbidden is None else call.weights.masked_fill(forbidden, 0)
    if not torch.allclose(masked.softmax(-1).nan_to_num(), weights, atol=1e-3, rtol=0):
        raise InputError(
            f"{call.name} does more to its scores than scale, bias and mask (a cap or a sink, "
            "say); its weights can be shown, and not explained from q and k"
        )
    return scores


def mask_names(
    calls: Sequence[Call], queries: Encoded, keys: Encoded, tower: str
) -> tuple[str, ...]:
    """What the masks that ran amount to, in words: causal, window N, padding."""
    shape = calls[0].weights.shape
    allowed = [
        np.ones(shape, bool) if c.allowed is None else np.broadcast_to(c.allowed.numpy(), shape)
        for c in calls
    ]
    names = []
    at_q = np.cumsum(queries.valid, 1) - 1
    at_k = np.cumsum(keys.valid, 1) - 1
    real = queries.valid[:, :, None] & keys.valid[:, None, :]  # B Tq Tk
    apart = at_q[:, :, None] - at_k[:, None, :]
    causal = (
        tower != "cross" and queries.width > 1 and not allowed[..., real & (apart < 0)].any()
        if False
        else _never(allowed, real & (apart < 0)) and tower != "cross"
    )
    if causal:
        names.append("causal")
    windows: dict[int, list[int]] = {}
    for call, mask in zip(calls, allowed, strict=True):
        seen = mask.any(1) & real
        reach = int(np.abs(apart)[seen].max(initial=0)) + 1
        near = real & (np.abs(apart) < reach) & ((apart >= 0) | (not causal))
        if reach < queries.width and tower != "cross" and (seen == near).all():
            windows.setdefault(reach, []).append(call.layer)
    for reach, where in windows.items():
        some = "" if len(where) == len(calls) else f" in layers {','.join(map(str, where))}"
        names.append(f"window {reach}{some}")
    if not keys.valid.all() and _never(allowed, queries.valid[:, :, None] & ~keys.valid[:, None]):
        names.append("padding")
    return tuple(names)


def _never(allowed: Sequence[npt.NDArray[np.bool_]], cells: npt.NDArray[np.bool_]) -> bool:
    """Whether no layer and head allows any of `cells` `[B Tq Tk]`, of which there are some."""
    return bool(cells.any()) and not any((mask & cells[:, None]).any() for mask in allowed)


def remarks(result: AttentionResult) -> list[str]:
    """What a person should know of these maps: what sinks take."""
    sees = result.allowed.any(-1) & result.query_valid[:, None]  # L B 1|H Tq
    lost = 1 - result.attention.sum(-1, dtype=np.float64)
    lost = np.where(np.broadcast_to(sees, lost.shape), lost, 0.0)
    count = np.broadcast_to(sees, lost.shape).sum((1, 3)).clip(1)
    means = lost.sum((1, 3)) / count  # L H
    if lost.max(initial=0) <= BEYOND_ROUNDING:
        return []
    layer, head = np.unravel_index(int(means.argmax()), means.shape)
    return [
        f"rows sum to less than 1: learned sinks take the rest, {means.mean():.3f} of a row on the "
        f"mean, {means.max():.3f} in layer {result.layer_numbers[layer]} head {head}"
    ]
