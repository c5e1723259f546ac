"""Attention of a layer built from flags: untrained, and the same for the same seed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from attnviz.attention import Embedding, MultiHeadAttention
from attnviz.config import DTYPES, AttentionConfig
from attnviz.errors import ConfigError
from attnviz.machine import require_memory
from attnviz.masks import Rule
from attnviz.sources.run import Inputs, Run, require_fit, run_layers, sizes_of_run
from attnviz.tokens import Batch
from attnviz.trace import Recorder, Step

SHADOW_SIZES = {"B": 11, "H": 13, "Tq": 17, "Tk": 19, "d_k": 23, "d_v": 29, "d_model": 31, "V": 37}
"""A small prime for each axis: whatever size turns up, its factors name its axes."""


def from_config(
    config: AttentionConfig,
    queries: Batch,
    keys: Batch | None = None,
    rules: Sequence[Rule] = (),
    keep: Collection[str] = (),
) -> Run:
    """Build the layer, embed the tokens, run it, and record every step.

    `keys` is the other text's batch for cross attention; None means self attention. `keep` names
    taps whose tensors go into the result. Raises `ConfigError` when the device is absent or a tap
    is unknown, and `InputError` when the batches do not go together or the run would not fit in
    memory; all before anything large is made.
    """
    require_device(config.device)
    source = queries if keys is None else keys
    require_fit(keep, queries, source)
    require_run_memory(config, queries.size, queries.width, source.width, len(queries.vocabulary))
    recorder = Recorder(sizes_of_run(config, queries, source, V=len(queries.vocabulary)), keep)
    layer = MultiHeadAttention(config)
    embedding = Embedding(config, len(queries.vocabulary))
    return run_layers(
        [layer],
        embedded(embedding, queries, keys, recorder),
        queries,
        source,
        rules,
        recorder,
        config=config.as_dict(),
        source=f"a layer from flags, untrained, seed {config.seed}",
        trained=False,
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


def shadow_steps(
    config: AttentionConfig, cross: bool, masked: bool, per_head: bool = False
) -> tuple[Step, ...]:
    """The steps of the real layer at `SHADOW_SIZES`: a trace for any size, for a few milliseconds.

    The layer runs once, small, with a prime size for each axis; `Step.at` puts the true ones in.
    `per_head` says that the mask differs between heads.
    """
    sizes = dict(SHADOW_SIZES)
    if config.positions == "rope":  # pairs of numbers are turned
        sizes["d_k"] *= 2
    if config.is_grouped:  # the query heads have to be a multiple of the key/value heads
        sizes |= {"H": 2 * SHADOW_SIZES["H"], "Hkv": SHADOW_SIZES["H"]}
    small = AttentionConfig(
        sizes["d_model"],
        sizes["H"],
        sizes["d_k"],
        sizes["d_v"],
        sizes.get("Hkv", sizes["H"]),
        positions=config.positions,
        dtype=config.dtype,
    )
    recorder = Recorder(sizes)
    layer, embedding = MultiHeadAttention(small), Embedding(small, sizes["V"])

    def ids(width: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(sizes["B"], width, dtype=torch.long), torch.arange(width).expand(
            sizes["B"], -1
        )

    with torch.no_grad():
        x = embedding(*ids(sizes["Tq"]), recorder)
        if cross:
            y = embedding(*ids(sizes["Tk"]), recorder, side="key")
        else:  # keys are the queries' own input; only their number has to be told apart
            y = torch.zeros(sizes["B"], sizes["Tk"], sizes["d_model"], dtype=x.dtype)
        shape = (sizes["B"], sizes["H"] if per_head else 1, sizes["Tq"], sizes["Tk"])
        layer(x, y, allowed=torch.ones(shape, dtype=torch.bool) if masked else None, tap=recorder)
    return tuple(recorder.steps)


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


def require_run_memory(
    config: AttentionConfig,
    batch: int,
    queries: int,
    keys: int,
    vocabulary: int = 0,
    n_layers: int = 1,
) -> None:
    """Raise `InputError` when the run would not fit in memory; nothing has been made yet."""
    require_memory(
        bytes_of_run(config, batch, queries, keys, vocabulary, n_layers),
        f"attention for {batch} × {config.n_heads} heads × {queries} queries × {keys} keys, "
        f"d_model {config.d_model}, in {config.dtype}",
        "give a shorter text, fewer heads or smaller sizes (attnviz shapes answers for any size)",
    )


def bytes_of_run(
    config: AttentionConfig,
    batch: int,
    queries: int,
    keys: int,
    vocabulary: int = 0,
    n_layers: int = 1,
) -> int:
    """The memory of a run with whole maps: the peak of all tensors that are alive together, on the
    way from the layer's first parameter to its output."""
    item, d_model = DTYPES[config.dtype], config.d_model
    n_q, n_k, cells = batch * queries, batch * keys, batch * config.n_heads * queries * keys
    of_keys, of_values = config.n_heads * config.d_k, config.n_heads * config.d_v
    layer, table = config.n_parameters, vocabulary * d_model
    largest = d_model * max(of_keys, of_values)

    # parameters are drawn in float64, then rounded one after the other
    making = max(layer * 8 + largest * item, layer * item + table * (8 + item))
    held = (layer + table + n_q * d_model + n_k * d_model) * item + 24 * (n_q + n_k)
    # angles, sines and cosines, and both together, in float64
    embedding = max(n_q, n_k) * d_model * (20 + item)
    # products, scores, masked scores, softmax, weights; the masks; q, k, v, copies; context; and
    # what places add to the scores, in float64 at first
    projected = (n_q * of_keys + n_k * (of_keys + of_values)) * item
    biases = cells * (item + 24) if config.positions in ("alibi", "relative") else 0
    attending = biases + cells * (5 * item + 4) + 2 * projected + n_q * of_values * item
    # weights and scores, context, merged, projected, residual, output, and their transients
    others = (n_layers - 1) * (cells + layer) * item
    after = 2 * cells * item + projected + n_q * (2 * of_values + 4 * d_model) * item
    return others + max(making, held + max(embedding, attending, after))


def _on_device(batch: Batch, config: AttentionConfig) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(batch.ids).to(config.device), torch.from_numpy(batch.positions)
