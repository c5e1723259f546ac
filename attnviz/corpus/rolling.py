"""Rollout and flow of one document, from what a source gives."""

from __future__ import annotations

from typing import Literal

import numpy as np

from attnviz.corpus.reader import CorpusReader, Ready
from attnviz.errors import InputError
from attnviz.measures.block import Block, Floats
from attnviz.measures.flow import flow, rollout
from attnviz.result import Attention


def layer_means(source: CorpusReader, ready: Ready) -> Floats:
    """`[L T T]`: the mean over the heads of each layer, of one document that is run whole."""
    means: dict[int, Floats] = {}

    def take(block: Block) -> None:
        piece = block.text(0)
        if not block.is_whole or piece.weights.shape[2] != piece.weights.shape[3]:
            raise InputError("rollout wants a text that looks at itself, and is not streamed")
        means[block.layer] = piece.exact[0].mean(0)

    source.attend([ready], take)
    return np.stack([means[layer] for layer in range(source.n_layers)])


def rolled(source: CorpusReader, ready: Ready, how: Literal["rollout", "flow"]) -> Attention:
    """Rollout up to each layer, or the flow to the last, as maps of one head each."""
    means, tokens = layer_means(source, ready), ready.tokens
    maps = rollout(means) if how == "rollout" else flow(means)[None]
    size = np.array([len(tokens)])
    return Attention(
        attention=maps[:, None, None],
        allowed=np.ones((len(maps), 1, 1, *maps.shape[1:]), dtype=np.bool_),
        query_tokens=(tokens,),
        key_tokens=(tokens,),
        lengths=size,
        key_lengths=size,
        source=f"attention {how} (Abnar and Zuidema 2020)",
        layers=() if how == "rollout" else (source.n_layers - 1,),
    )
