"""Attention of long texts: a layer's weights are pooled block by block, and never held whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attnviz.attention import Embedding, MultiHeadAttention
from attnviz.config import DTYPES, AttentionConfig
from attnviz.errors import InputError
from attnviz.full_resolution import windows_of
from attnviz.machine import require_memory
from attnviz.masks import Rule
from attnviz.positions import alibi_slopes
from attnviz.result import Attention, Pixels, RowStatistics, about_batches, as_window, from_batches
from attnviz.sources.from_config import embedded, require_device
from attnviz.sources.from_weights import Weights, facts_of
from attnviz.sources.run import Inputs, require_fit, sizes_of_run
from attnviz.streaming import LongAttention, Pooled, context, pool
from attnviz.streaming.pool import NEAR
from attnviz.tokens import Batch
from attnviz.trace import Recorder, Step

Progress = Callable[[int, int], None]
"""(weights done, weights in all)."""

LENT = 2**30
"""Bytes of q and k that are kept unasked while a page is written."""

TOP = 8
"""Keys of each row that are told one by one."""


@dataclass(frozen=True)
class Pooling:
    """What is made of each map: at most `pixels` a side, and the `top` largest keys of each row.
    `keep` says whether q and k stay, for a later zoom; with `lend` they stay for a page that is
    written next, where they are not large."""

    pixels: int = 1024
    top: int = TOP
    near: int = NEAR
    keep: bool = False
    lend: bool = False

    def bytes_of_maps(self, maps: int, queries: int) -> int:
        """Memory that the pooled maps of `maps` heads take, and the numbers of their rows."""
        pixels = self.pixels**2 * (4 + 4) * maps + self.pixels**2 * 8
        return pixels + maps * queries * (8 * 4 + 12 * self.top)


Each = Callable[[int, LongAttention], None]
"""Called with the number of each layer, and with what its weights are made of."""


@dataclass(frozen=True)
class LongRun:
    """What a forward pass over a long text leaves behind, beside what `Each` made of its maps.

    `facts` are those fields of a result that say what ran. The steps are those that ran: what comes
    before the scores, and, where another layer follows, what comes after the weights.
    """

    steps: tuple[Step, ...]
    layers: tuple[MultiHeadAttention, ...]
    facts: Mapping[str, Any]


def run_long(
    layers: Sequence[MultiHeadAttention],
    inputs: Inputs,
    queries: Batch,
    keys: Batch,
    rules: Sequence[Rule],
    recorder: Recorder,
    each: Each,
    **facts: Any,
) -> LongRun:
    """As `run_layers`, but nothing of Tq × Tk is made: `each` gets a layer's queries and keys.

    Rows of padding are forbidden everything: they mean nothing.
    """
    for layer in layers:
        _require_blocks(layer)
    positions = (torch.from_numpy(queries.positions), torch.from_numpy(keys.positions))
    x = inputs.query
    with torch.no_grad():
        for i, layer in enumerate(layers):
            tap = recorder if i == 0 else Recorder(recorder.sizes)
            q, k, v = layer.project(x, inputs.key, inputs.value, positions, tap)
            attention = LongAttention(
                q,
                k,
                (*rules, real_rows(queries)),
                scale=None if layer.config.variant.scaled else 1.0,
                slopes=_slopes(layer.config),
                query_starts=queries.starts.tolist(),
                key_starts=keys.starts.tolist(),
            )
            each(i, attention)
            if i + 1 < len(layers):
                x = layer.finish(context(attention, v), x, tap)
    told = {"masks": tuple(rule.name for rule in rules), **facts}
    return LongRun(tuple(recorder.steps), tuple(layers), told)


def long_from_config(
    config: AttentionConfig,
    queries: Batch,
    keys: Batch | None,
    rules: Sequence[Rule],
    pooling: Pooling,
    each: Each,
) -> LongRun:
    """As `from_config`, for a long text: see `run_long`."""
    require_device(config.device)
    source = queries if keys is None else keys
    require_fit((), queries, source)
    vocabulary = len(queries.vocabulary)
    require_long_memory(config, queries, source, pooling, vocabulary=vocabulary)
    recorder = Recorder(sizes_of_run(config, queries, source, V=vocabulary))
    return run_long(
        [MultiHeadAttention(config)],
        embedded(Embedding(config, vocabulary), queries, keys, recorder),
        queries,
        source,
        rules,
        recorder,
        each,
        config=config.as_dict(),
        source=f"a layer from flags, untrained, seed {config.seed}",
        trained=False,
    )


def long_from_weights(
    weights: Weights,
    queries: Batch,
    keys: Batch | None,
    rules: Sequence[Rule],
    pooling: Pooling,
    each: Each,
    inputs: Inputs | None = None,
) -> LongRun:
    """As `from_weights`, for a long text: see `run_long`."""
    config, source = weights.config, (queries if keys is None else keys)
    require_fit((), queries, source)
    n = len(weights.found)
    require_long_memory(config, queries, source, pooling, n, weights.n_rows)
    layers = weights.load()
    sizes = sizes_of_run(config, queries, source, layers[0].extra_keys, V=weights.n_rows)
    recorder = Recorder(sizes)
    if inputs is None:
        inputs = embedded(weights.load_embedding(), queries, keys, recorder)
    return run_long(layers, inputs, queries, source, rules, recorder, each, **facts_of(weights))


class Pooler:
    """Pools each layer as it comes, and lets it go unless it is to be kept."""

    def __init__(
        self, pooling: Pooling, n_layers: int, progress: Progress, wanted: Collection[int] | None
    ) -> None:
        """`n_layers` will come, all alike; only those in `wanted` are pooled, None for all."""
        self._pooling, self._n, self._progress = pooling, n_layers, progress
        self._wanted = wanted
        self._pooled: list[Pooled] = []
        self._kept: list[LongAttention] = []

    def each(self, layer: int, attention: LongAttention) -> None:
        if self._wanted is not None and layer not in self._wanted:
            return
        if self._pooling.keep:
            _require_spans(attention)
        size = self._n * (attention.q.nbytes + attention.k.nbytes)
        lends = self._pooling.lend and not attention.unbounded and size <= LENT
        before = len(self._pooled)
        self._pooled.append(
            pool(
                attention,
                self._pooling.pixels,
                top=self._pooling.top,
                near=self._pooling.near,
                progress=lambda done, total: self._progress(before * total + done, self._n * total),
            )
        )
        if self._pooling.keep or lends:
            self._kept.append(attention)

    def result(self, queries: Batch, keys: Batch, facts: Mapping[str, Any]) -> Attention:
        """What all layers gave."""
        return gather(self._pooled, self._kept, queries, keys, **facts)


class Windows:
    """Computes one window of each layer as it comes, at full resolution."""

    def __init__(
        self,
        ranges: Callable[[int, int], tuple[range, range]],
        sequence: int,
        heads: Sequence[tuple[int, int]],
    ) -> None:
        """`ranges` tells, of so many queries and keys, those that are wanted; `heads` are (layer
        number, head)."""
        self._ranges, self._sequence, self._heads = ranges, sequence, heads
        self._rows, self._columns = range(0), range(0)
        self._found: list[tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]] = []

    def each(self, layer: int, attention: LongAttention) -> None:
        heads = [head for number, head in self._heads if number == layer]
        if not heads:
            return
        if not self._found:
            self._begin(attention)
        weights, allowed = windows_of(attention, self._rows, self._columns, self._sequence, heads)
        whole = np.zeros((attention.n_heads, *weights.shape[1:]), np.float32)
        whole[heads] = weights
        masks = np.zeros((attention.n_heads, *weights.shape[1:]), np.bool_)
        masks[heads] = allowed
        self._found.append((whole, masks))

    def _begin(self, attention: LongAttention) -> None:
        """Find where the window stands, and whether there is memory for it."""
        starts = [
            0 if each is None else each[self._sequence]
            for each in (attention.query_starts, attention.key_starts)
        ]
        found = self._ranges(attention.queries - starts[0], attention.keys - starts[1])
        self._rows, self._columns = (
            range(part.start + start, part.stop + start)
            for part, start in zip(found, starts, strict=True)
        )
        n_layers = len({number for number, _ in self._heads})
        cells = len(self._rows) * len(self._columns) * attention.n_heads * n_layers
        require_memory(
            13 * cells,
            f"a window of {len(self._rows):,} × {len(self._columns):,} weights of each head",
            "give fewer rows or columns, or pool the whole: --pool 1024",
        )

    def result(self, queries: Batch, keys: Batch, facts: Mapping[str, Any]) -> Attention:
        """The window of all layers that were wanted."""
        weights = np.stack([weights for weights, _ in self._found])[:, None]
        allowed = np.stack([allowed for _, allowed in self._found])[:, None]
        about = about_batches(queries, keys, **facts)
        return as_window(about, weights, allowed, self._rows, self._columns, self._sequence)


def gather(
    pooled: Sequence[Pooled],
    kept: Sequence[LongAttention],
    queries: Batch,
    keys: Batch,
    **facts: Any,
) -> Attention:
    """The layers' pooled maps as one result; `kept` is what they were made of, if it stays."""
    first = pooled[0]

    def stacked(arrays: Iterable[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        return np.stack(list(arrays))

    counts = stacked(one.allowed for one in pooled)
    rows = RowStatistics(
        first.near,
        {name: stacked(one.statistics[name] for one in pooled) for name in first.statistics},
        stacked(one.top_keys for one in pooled),
        stacked(one.top_weights for one in pooled),
    )
    return from_batches(
        stacked(one.mean for one in pooled),
        counts > 0,
        queries,
        keys,
        kept=_kept(kept) if kept else {},
        pixels=Pixels(first.cells, stacked(one.largest for one in pooled), counts),
        rows=rows,
        **facts,
    )


def _kept(attentions: Sequence[LongAttention]) -> Mapping[str, npt.NDArray[Any]]:
    """What weights can be computed from again."""
    spans = [
        tuple(map(torch.stack, zip(*(one.spans(b) for b in range(one.batch_size)), strict=True)))
        for one in attentions
    ]
    arrays = {
        "q": [one.q for one in attentions],
        "k": [one.k for one in attentions],
        "first_key": [first for first, _ in spans],
        "end_key": [end for _, end in spans],
    }
    for name in ("slopes", "sinks"):
        found = [getattr(one, name) for one in attentions]
        if found[0] is not None:
            arrays[name] = found
    caps = [np.nan if one.softcap is None else one.softcap for one in attentions]
    return {
        **{name: np.stack([_array(x) for x in tensors]) for name, tensors in arrays.items()},
        "scale": np.array([one.multiplier for one in attentions]),
        "softcap": np.array(caps, np.float64),
    }


def _require_spans(attention: LongAttention) -> None:
    """Raise `InputError` where q and k do not tell the weights: a mask is known cell by cell."""
    if attention.unbounded:
        raise InputError(
            f"--keep q,k: the mask {attention.unbounded[0].name} would have to be kept as well, "
            "whole; draw the part that matters now: --rows A:B --cols C:D"
        )


def _array(tensor: Tensor) -> npt.NDArray[Any]:
    tensor = tensor.detach().cpu()
    if tensor.dtype in (torch.bfloat16, torch.float16):  # what is computed with
        tensor = tensor.float()
    return tensor.numpy()


def _slopes(config: AttentionConfig) -> Tensor | None:
    return alibi_slopes(config.n_heads) if config.positions == "alibi" else None


def real_rows(queries: Batch) -> Rule:
    """Padded queries see nothing: in a long map they are forbidden, and cost nothing."""
    valid, far = queries.valid, np.iinfo(np.int64).max
    return Rule(
        "real rows",
        lambda b, h, q, k: valid[b, q] & (k >= 0),
        span=lambda b: (0, np.where(valid[b], far, 0)),
    )


def _require_blocks(layer: MultiHeadAttention) -> None:
    """Raise `InputError` where a layer does what is not done block by block."""
    if layer.extra_keys:
        raise InputError(
            "the layer has keys that are no token's (bias_k, add_zero_attn); its maps are computed "
            "whole only: give a shorter text, or a larger --memory"
        )
    if layer.distances is not None:
        raise InputError(
            "the layer adds a table of distances to its scores (T5); its maps are computed whole "
            "only: give a shorter text, or a larger --memory"
        )


def require_long_memory(
    config: AttentionConfig,
    queries: Batch,
    keys: Batch,
    pooling: Pooling,
    n_layers: int = 1,
    vocabulary: int = 0,
) -> None:
    """Raise `InputError` when a long run would not fit in memory; nothing has been made yet."""
    item, batch, n_q, n_k = DTYPES[config.dtype], queries.size, queries.width, keys.width
    layers = n_layers * config.n_parameters * item + config.n_parameters * 8
    table = vocabulary * config.d_model * (8 + item)
    vectors = batch * max(n_q, n_k) * config.d_model * (20 + 4 * item)
    of_queries, of_keys = config.n_heads * config.d_k, config.n_kv_heads * (config.d_k + config.d_v)
    projected = batch * (n_q * of_queries + n_k * of_keys) * item
    held = projected * (2 * n_layers if pooling.keep else 1) + projected
    maps = pooling.bytes_of_maps(n_layers * batch * config.n_heads, n_q)
    blocks = 2**27
    require_memory(
        layers + table + vectors + held + 2 * maps + blocks,
        f"a long run of {batch} × {config.n_heads} heads × {n_q} queries × {n_k} keys, pooled to "
        f"{pooling.pixels} × {pooling.pixels}",
        "give a shorter text, fewer heads or a smaller --pool",
    )
