"""From encoded texts to a forward pass of the part of a model that holds one tower."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnviz.errors import InputError, printable
from attnviz.sources.attention_modules import NO_TEXT, TOWERS
from attnviz.sources.encoding import Encoded
from attnviz.sources.loading import LoadedModel, blaming

Say = Callable[[str], None]
"""Called with a note for the user."""


def forward(
    loaded: LoadedModel,
    tower: str,
    queries: Encoded,
    others: Encoded | None,
    say: Say,
    masks_all: bool = True,
) -> Any:
    """Run the part of the model that holds the tower, and return what it gives.

    With `masks_all` False, a batch without padding runs without a mask: it costs a pass over each
    layer's scores. Raises `InputError` in one line when the model cannot.
    """
    network = loaded.network

    def inputs(target: Any, encoded: Encoded, prefix: str = "") -> dict[str, Tensor]:
        made = _inputs(loaded, target, encoded, say, prefix)
        if not masks_all and encoded.valid.all():
            made.pop(f"{prefix}attention_mask", None)
        return made

    with blaming(loaded, "this text"):
        if others is not None:
            given = inputs(network, others)
            return network(**given, **inputs(network, queries, "decoder_"), use_cache=False)
        if getattr(loaded.config, "is_encoder_decoder", False):
            encoder = network.get_encoder()
            return encoder(**inputs(encoder, queries))
        if tower == "text" and hasattr(network, "get_text_features"):
            return network.get_text_features(**inputs(network.get_text_features, queries))
        accepts = inspect.signature(network.forward).parameters
        cache = {"use_cache": False} if "use_cache" in accepts else {}
        return network(**inputs(network, queries), **cache)


def _inputs(
    loaded: LoadedModel, target: Any, encoded: Encoded, say: Say, prefix: str = ""
) -> dict[str, Tensor]:
    """What `target` takes: ids, mask, segments, and positions where padding would shift them."""
    accepts = inspect.signature(getattr(target, "forward", target)).parameters
    if prefix + "input_ids" not in accepts:
        raise InputError(
            f"{loaded.source} reads no text, it takes {printable(next(iter(accepts)))}; "
            "--image FILE or --audio FILE is for it"
        )
    valid = encoded.valid
    arrays = {
        "input_ids": encoded.padded(encoded.ids, encoded.pad_id),
        "attention_mask": valid.astype(np.int64),
    }
    segments = "token_type_ids" in getattr(loaded.tokenizer, "model_input_names", ())
    if segments and not prefix and "token_type_ids" in accepts:
        arrays["token_type_ids"] = encoded.padded(encoded.types, 0)
    tables = _position_tables(loaded.network)
    # RoBERTa numbers what is no padding, from the row after that of its padding on
    padding = [table.padding_idx for table in tables if table.padding_idx is not None]
    if encoded.pad_side == "left" and not valid.all() and encoded.pad_id not in padding:
        if prefix + "position_ids" in accepts and not padding:
            arrays["position_ids"] = np.maximum(valid.cumsum(1) - 1, 0)
        elif tables:
            say(
                f"{loaded.source} counts positions from the padding on the left; --pad-side right "
                "gives each text the positions that it has alone"
            )
    return {
        prefix + name: torch.from_numpy(array).to(loaded.device) for name, array in arrays.items()
    }


# ── positions ────────────────────────────────────────────────────────────────────────────────


def longest_text(loaded: LoadedModel) -> int | None:
    """How many tokens the model, or its tokenizer, was made for; None where neither says it."""
    known = (
        learned_positions(loaded.network),
        getattr(loaded.config, "max_position_embeddings", None),
        loaded.tokenizer.model_max_length,
    )
    return min((n for n in known if n is not None and 0 < n < 10**9), default=None)


def learned_positions(network: nn.Module) -> int | None:
    """How many positions of a text the model has learned; None where it reckons with any number.

    Some families leave the first rows of their table free: RoBERTa up to that of its padding, OPT
    and BART an offset of 2.
    """
    tables = _position_tables(network)
    return min((t.num_embeddings - _rows_before(t) for t in tables), default=None)


def _rows_before(table: nn.Embedding) -> int:
    """The rows of a table of positions that stand before that of a text's first token."""
    padding = table.padding_idx
    return int(getattr(table, "offset", 0 if padding is None else padding + 1))


def _position_tables(network: nn.Module) -> list[nn.Embedding]:
    """The tables with a row for each position of a text."""
    names = ("position_embedding", "embed_position", "wpe", "pos_embed")
    return [
        module
        for name, module in network.named_modules()
        if isinstance(module, nn.Embedding)
        and any(part in name for part in names)
        and not any(pattern.search(name) for tower, pattern in TOWERS if tower in NO_TEXT)
    ]


def require_known(loaded: LoadedModel, encoded: Encoded) -> None:
    """Raise `InputError` for tokens that the model has no vector for."""
    embed = getattr(loaded.network, "get_input_embeddings", lambda: None)
    try:
        rows = getattr(embed(), "num_embeddings", None)
    except NotImplementedError:  # a model with no table of tokens
        return
    for ids, raw in zip(encoded.ids, encoded.raw, strict=True):
        for number, token in zip(ids, raw, strict=True):
            if rows is not None and number >= rows:
                raise InputError(
                    f"token {printable(token, 40)} has number {number}, and {loaded.source} knows "
                    f"{rows:,} tokens; is that another model's tokenizer?"
                )
