"""attnviz's own form of weights: one layer or several, with what turns tokens into vectors.

A `.safetensors` file. One layer: `w_q.weight`, `w_q.bias`, …, `w_o.*`, `norm.*`, as in
`MultiHeadAttention.state_dict()`, and the metadata `attnviz.layer`, its `AttentionConfig` as JSON.
Several layers, which run one after the other: `layers.0.w_q.weight`, …, and `attnviz.layers`, a
list of such configurations. Beside them may stand `embedding.weight` `[V d_model]` with
`attnviz.vocabulary`, a JSON list of the tokens, and `unembedding.weight`, which is not read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from attnviz.attention import Embedding, MultiHeadAttention
from attnviz.errors import InputError

LAYER, LAYERS, VOCABULARY = "attnviz.layer", "attnviz.layers", "attnviz.vocabulary"


def save_layers(
    path: Path,
    layers: Sequence[MultiHeadAttention],
    embedding: Embedding | Tensor | None = None,
    vocabulary: Sequence[str] | None = None,
    unembedding: Tensor | None = None,
    notes: Mapping[str, str] | None = None,
) -> None:
    """Write `layers` to `path`; the same layers give the same bytes.

    `embedding` is `[V d_model]`, with the token of each row in `vocabulary`; `unembedding` is
    `[V d_model]` as well, and `notes` is further metadata. Raises `InputError` where the vocabulary
    does not fit the table.
    """
    from safetensors.torch import save

    one = len(layers) == 1
    tensors = {
        f"{'' if one else f'layers.{i}.'}{name}": tensor
        for i, layer in enumerate(layers)
        for name, tensor in layer.state_dict().items()
    }
    configs = [layer.config.as_dict() for layer in layers]
    metadata = {LAYER: _compact(configs[0])} if one else {LAYERS: _compact(configs)}
    if embedding is not None:
        table = embedding.weight if isinstance(embedding, Embedding) else embedding
        tensors["embedding.weight"] = table
        if vocabulary is not None:
            if len(vocabulary) != len(table):
                raise InputError(
                    f"the embedding has {len(table)} rows for {len(vocabulary)} tokens; "
                    "one each is expected"
                )
            metadata[VOCABULARY] = _compact(list(vocabulary))
    if unembedding is not None:
        tensors["unembedding.weight"] = unembedding
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    path.write_bytes(_in_order(save(plain, metadata={**(notes or {}), **metadata})))


def _in_order(data: bytes) -> bytes:
    """A safetensors file with its header in order: `save` has metadata in a new one each time.

    A file is the length of the header in 8 bytes, the header as JSON, and the numbers.
    """
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # the numbers begin at a multiple of 8
    return len(header).to_bytes(8, "little") + header + data[end:]


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
