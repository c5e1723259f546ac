"""The forward pass of attnviz's own layers: one after the other, each handed over as it comes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from attnviz.attention import Embedding, MultiHeadAttention
from attnviz.config import AttentionConfig
from attnviz.errors import ConfigError, InputError, printable
from attnviz.layer_attention import LayerAttention, as_array
from attnviz.masks import Rule, build
from attnviz.positions import alibi_slopes
from attnviz.result import KEEPABLE
from attnviz.scores import Scores
from attnviz.streaming import context
from attnviz.tokens import Batch
from attnviz.trace import STEP_KINDS, Recorder


@dataclass(frozen=True)
class Inputs:
    """What the first layer is given, all `[B T width]`; `key` None stands for self attention.

    `value` None: values are made of what keys are made of.
    """

    query: Tensor
    key: Tensor | None = None
    value: Tensor | None = None


def sizes_of_run(
    config: AttentionConfig, queries: Batch, keys: Batch, extra_keys: int = 0, **more: int
) -> dict[str, int]:
    """The length of each axis of a trace, by name."""
    return {
        "B": queries.size,
        "H": config.n_heads,
        "Hkv": config.n_kv_heads,
        "Tq": queries.width,
        "Ts": keys.width,
        "Tk": keys.width + extra_keys,
        "d_k": config.d_k,
        "d_v": config.d_v,
        "d_model": config.d_model,
        "d_key": config.variant.d_key,
        "d_value": config.variant.d_value,
        **more,
    }


def require_fit(keep: Collection[str], queries: Batch, keys: Batch) -> None:
    """Raise `ConfigError` for an unknown tap, `InputError` for batches that do not go together."""
    for name in keep:
        if name not in STEP_KINDS:
            raise ConfigError(f"--keep {printable(name)}: known are {', '.join(KEEPABLE)}")
    for what in ("size", "pad_side", "vocabulary"):
        if getattr(queries, what) != getattr(keys, what):
            raise InputError(f"the batches of queries and keys differ in {what}")


def steps_kept(keep: Collection[str]) -> set[str]:
    """The taps to keep: keys and values are kept as they are used, with those of no token."""
    return {*keep, *(f"{name}_extended" for name in ("k", "v") if name in keep)}


def run_layers(
    layers: Sequence[MultiHeadAttention],
    inputs: Inputs,
    queries: Batch,
    keys: Batch,
    rules: Sequence[Rule],
    recorder: Recorder,
    visit: Callable[[LayerAttention], None],
) -> None:
    """Run `inputs` through `layers`, the output of each the queries' input of the next.

    In cross attention every layer has the same keys. `visit` is given each layer before what
    comes after its weights; a full map is made only where `visit` asks for it, and the next layer's
    input is then computed by rows. `recorder` has the steps of the input, and names what is kept of
    every layer.
    """
    first = layers[0]
    if first.extra_keys and keys.pad_side == "right" and not keys.valid.all():
        raise InputError(
            "the layer has a key of its own after the last token, and padding would stand between "
            "them; --pad-side left puts the padding first"
        )
    positions = (torch.from_numpy(queries.positions), torch.from_numpy(keys.positions))

    @cache
    def allowed() -> Tensor | None:
        made = build(rules, queries.size, first.config.n_heads, queries.width, keys.width)
        return None if made is None else torch.from_numpy(made).to(first.config.device)

    @cache
    def mask() -> Tensor | None:
        made = allowed()
        if made is None or not first.extra_keys:
            return made
        return nn.functional.pad(made, (0, first.extra_keys), value=True)

    x = inputs.query
    with torch.no_grad():
        for i, layer in enumerate(layers):
            tap = recorder if i == 0 else Recorder(recorder.sizes, recorder.keep)
            q, k, v = layer.project(x, inputs.key, inputs.value, positions, tap)
            attention = LayerAttention(
                i,
                _scores(layer, q, k, rules, queries, keys),
                compute=partial(_attend, layer, q, k, v, allowed, positions, tap),
                mask=mask,
                kept=partial(_as_used, tap.kept, queries.size),
            )
            visit(attention)
            mixed = attention.context
            if mixed is None and i + 1 < len(layers):
                assert attention.scores is not None
                mixed = context(attention.scores, v)
            if mixed is not None:
                x = layer.finish(mixed, x, tap)


def _attend(
    layer: MultiHeadAttention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    allowed: Callable[[], Tensor | None],
    positions: tuple[Tensor, Tensor],
    tap: Recorder,
) -> tuple[Tensor, Tensor]:
    return layer.attend(q, k, v, allowed(), positions, tap)


def _scores(
    layer: MultiHeadAttention,
    q: Tensor,
    k: Tensor,
    rules: Sequence[Rule],
    queries: Batch,
    keys: Batch,
) -> Scores:
    """What makes the weights of a layer, for whoever asks for rows.

    Rows of padding are forbidden everything there: they mean nothing.
    """
    config = layer.config
    if layer.extra_keys:
        rules = [_beside(rule, keys.width) for rule in rules]
    return Scores(
        q,
        k,
        (*rules, real_rows(queries)),
        scale=None if config.variant.scaled else 1.0,
        slopes=alibi_slopes(config.n_heads) if config.positions == "alibi" else None,
        query_starts=queries.starts.tolist(),
        key_starts=keys.starts.tolist(),
        distances=layer.distance_table(),
        n_extra=layer.extra_keys,
    )


def _beside(rule: Rule, n_tokens: int) -> Rule:
    """`rule` among the keys that are tokens; those after them are forbidden to no query."""
    return Rule(
        rule.name,
        lambda b, h, q, k: (k >= n_tokens) | rule.allows(b, h, q, k.clip(max=n_tokens - 1)),
        rule.per_head,
    )


def real_rows(queries: Batch) -> Rule:
    """Padded queries see nothing: in a long map they are forbidden, and cost nothing."""
    valid, far = queries.valid, np.iinfo(np.int64).max
    return Rule(
        "real rows",
        lambda b, h, q, k: valid[b, q] & (k >= 0),
        span=lambda b: (0, np.where(valid[b], far, 0)),
    )


def _as_used(kept: Mapping[str, Tensor], batch: int) -> dict[str, npt.NDArray[Any]]:
    """Kept tensors, each with all sequences; keys and values as the attention had them in the end.

    With keys that are no token's, `k` and `v` are those of `k_extended` and `v_extended`.
    """
    found = {
        name: as_array(tensor.expand(batch, *tensor.shape[1:])) for name, tensor in kept.items()
    }
    for name in ("k", "v"):
        if f"{name}_extended" in found:
            found[name] = found.pop(f"{name}_extended")
            for earlier in (f"{name}_normed", f"{name}_rotated"):
                found.pop(earlier, None)
    return found


def with_extra_keys(keys: Batch, layer: MultiHeadAttention) -> Batch:
    """`keys` with names for the keys that are no token's; only tokens and lengths are read."""
    names = ("[bias_k]",) * (layer.bias_k is not None) + ("[zero]",) * layer.config.variant.zero_key
    if not names:
        return keys
    tokens = tuple(row + names for row in keys.tokens)
    ids = np.pad(keys.ids, [(0, 0), (0, len(names))])
    return replace(keys, tokens=tokens, ids=ids, lengths=keys.lengths + len(names))


def require_device(device: str) -> None:
    """Raise `ConfigError` when torch does not find `device` on this machine."""
    here = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if not here[device]:
        found = ", ".join(name for name, present in here.items() if present)
        raise ConfigError(
            f"--device {device} is not on this machine; torch {torch.__version__} finds {found}"
        )


def embedded(
    embedding: Embedding, queries: Batch, keys: Batch | None, recorder: Recorder
) -> Inputs:
    """The vectors of the tokens, with their positions where the embedding adds them."""
    with torch.no_grad():
        x = embedding(*_on_device(queries, embedding.config), recorder)
        if keys is None:
            return Inputs(x)
        return Inputs(x, embedding(*_on_device(keys, embedding.config), recorder, side="key"))


def _on_device(batch: Batch, config: AttentionConfig) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(batch.ids).to(config.device), torch.from_numpy(batch.positions)
