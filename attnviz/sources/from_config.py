"""Attention of a layer built from flags: untrained, and the same for the same seed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attnviz.attention import Embedding, MultiHeadAttention
from attnviz.batch import Batch
from attnviz.config import DTYPES, AttentionConfig
from attnviz.errors import ConfigError
from attnviz.machine import require_memory
from attnviz.masks import Rule, build
from attnviz.result import AttentionResult, from_batches
from attnviz.trace import Recorder, Step

SHADOW_SIZES = {"B": 11, "H": 13, "Tq": 17, "Tk": 19, "d_k": 23, "d_v": 29, "d_model": 31, "V": 37}
"""A small prime for each axis: whatever size turns up, its factors name its axes."""


@dataclass(frozen=True)
class Run:
    """One forward pass: what it gave, what ran, and the layer that it ran through."""

    result: AttentionResult
    steps: tuple[Step, ...]
    layer: MultiHeadAttention


def from_config(
    config: AttentionConfig,
    queries: Batch,
    keys: Batch | None = None,
    rules: Sequence[Rule] = (),
    keep: Collection[str] = (),
) -> Run:
    """Build the layer, embed the tokens, run it, and record every step.

    `keys` is the other text's batch for cross attention; None means self attention. `keep` names
    taps whose tensors go into the result. Raises `ConfigError` when the device is absent and
    `InputError` when the run would not fit in memory; both before anything large is made.
    """
    require_device(config.device)
    source = queries if keys is None else keys
    require_run_memory(config, queries.size, queries.width, source.width)
    recorder = Recorder(
        {
            "B": queries.size,
            "H": config.n_heads,
            "Tq": queries.width,
            "Tk": source.width,
            "d_k": config.d_k,
            "d_v": config.d_v,
            "d_model": config.d_model,
            "V": len(queries.vocabulary),
        },
        keep,
    )
    layer = MultiHeadAttention(config)
    embedding = Embedding(config, len(queries.vocabulary))
    allowed = build(rules, queries.size, config.n_heads, queries.width, source.width)
    with torch.no_grad():
        x = embedding(*_on_device(queries, config), recorder)
        y = None if keys is None else embedding(*_on_device(keys, config), recorder, side="key")
        if allowed is not None:
            allowed = allowed.to(config.device)
        _, weights = layer(x, y, allowed=allowed, tap=recorder)
    shape = (
        1,
        queries.size,
        1 if allowed is None else allowed.shape[1],
        queries.width,
        source.width,
    )
    result = from_batches(
        _array(weights)[None],
        np.ones(shape, dtype=bool) if allowed is None else _array(allowed)[None],
        queries,
        source,
        masks=tuple(rule.name for rule in rules),
        config=config.as_dict(),
        source=f"a layer from flags, untrained, seed {config.seed}",
        trained=False,
        kept={name: _array(tensor)[None] for name, tensor in recorder.kept.items()},
    )
    return Run(result, tuple(recorder.steps), layer)


def shadow_steps(
    config: AttentionConfig, cross: bool, masked: bool, per_head: bool = False
) -> tuple[Step, ...]:
    """The steps of the real layer at `SHADOW_SIZES`: a trace for any size, for a few milliseconds.

    The layer runs once, small, with a prime size for each axis; `Step.at` puts the true ones in.
    `per_head` says that the mask differs between heads.
    """
    sizes = SHADOW_SIZES
    small = AttentionConfig(
        sizes["d_model"],
        sizes["H"],
        sizes["d_k"],
        sizes["d_v"],
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


def save_layer(layer: MultiHeadAttention, path: Path) -> None:
    """Write the parameters as safetensors: `w_q.weight`, `w_q.bias`, …, `w_o.*`, `norm.*`."""
    import json

    from safetensors.torch import save

    config = json.dumps(layer.config.as_dict(), separators=(",", ":"))
    tensors = {name: tensor.cpu().contiguous() for name, tensor in layer.state_dict().items()}
    path.write_bytes(save(tensors, metadata={"attnviz.layer": config}))


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


def require_run_memory(config: AttentionConfig, batch: int, queries: int, keys: int) -> None:
    """Raise `InputError` when the layer and its maps would not fit; nothing has been made yet."""
    item = DTYPES[config.dtype]
    cells = batch * config.n_heads * queries * keys
    # products, scores, masked scores and weights live at once; `allowed` and one copy to draw
    maps = cells * (4 * item + 4) + 2 * batch * queries * keys
    flow = (
        batch
        * (queries + keys)
        * (4 * config.d_model + 4 * config.n_heads * (config.d_k + config.d_v))
    )
    # the largest matrix is drawn in float64 before it is rounded to its dtype
    largest = config.d_model * config.n_heads * max(config.d_k, config.d_v)
    layer = config.n_parameters * 8 + 2 * largest * 8
    require_memory(
        maps + flow * item + layer,
        f"attention for {batch} × {config.n_heads} heads × {queries} queries × {keys} keys, "
        f"d_model {config.d_model}, in {config.dtype}",
        "give a shorter text, fewer heads or smaller sizes (attnviz shapes answers for any size)",
    )


def _on_device(batch: Batch, config: AttentionConfig) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(batch.ids).to(config.device), torch.from_numpy(batch.positions)


def _array(tensor: Tensor) -> npt.NDArray[Any]:
    """NumPy has no bfloat16: it becomes float32, which holds every bfloat16 exactly."""
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.float()
    return np.ascontiguousarray(tensor.cpu().numpy())
