"""Through a corpus on Ray: many processes, on one machine or on a cluster.

Ray Data reads the corpus and cuts it into shards, in one task that streams them; a pool of actors,
each with a source of its own, measures a shard at a time; tasks merge the measures of several
shards; the driver merges those. A shard that was with an actor that died is measured again by
another, and since its measures exist only when all of it is done, nothing is counted twice or lost.
"""

from __future__ import annotations

import io
import json
import logging
import os
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.errors import AttnvizError, ConfigError, printable
from attnviz.measuring.batches import Shard
from attnviz.measuring.checkpoint import Checkpoint
from attnviz.measuring.documents import Bad, Corpus, Document
from attnviz.measuring.drive import EVERY, Tell, keeping
from attnviz.measuring.source import Opening, Source
from attnviz.measuring.tally import Part, SpoiledError, Tally, measure_shard
from attnviz.stats.measures import Measures, Options

FAN_IN = 8
"""Measures that one task merges."""


def drive_on_ray(
    opening: Opening,
    source: Source,
    corpus: Corpus,
    options: Options,
    *,
    address: str | None = None,
    workers: int | None = None,
    strict: bool = False,
    checkpoint: Checkpoint | None = None,
    resume: bool = False,
    tell: Tell = lambda _: None,
    every: float = EVERY,
    gpus: float = 0,
) -> Part:
    """Measure a corpus on Ray; the figures are those of `drive`, but for the order of sums.

    `opening` is called in each of the `workers`, as many as there are CPUs when None, and `source`
    is what it opens here. `address` is that of a running cluster; a Ray of one's own is begun, and
    ended, without. Each worker has one CPU and `gpus` GPUs. Raises `ConfigError` where there is no
    Ray, or no cluster at the address.
    """
    with keeping(source, options, checkpoint, resume, tell, every) as keeper:
        begun = _begin(address, workers)
        try:
            for row in _measured(opening, corpus, keeper.done, options, workers, gpus):
                part, numbers, position = _unpacked(row, options)
                if strict and part.tally.bad:
                    first = part.tally.named[0]
                    raise SpoiledError(f"{first.name} {first.why}")
                keeper.add(part, numbers, position)
        finally:
            if begun:
                import ray

                ray.shutdown()
        return keeper.part


def _begin(address: str | None, workers: int | None) -> bool:
    """Connect to Ray; whether one was begun."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # it speaks of what it retries
    try:
        import ray
        import ray.data
    except ModuleNotFoundError:
        raise ConfigError("--engine ray needs Ray: pip install 'attnviz[ray]'") from None
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    if ray.is_initialized():
        return False
    wanted: dict[str, Any] = {"address": address}
    if address is None:
        wanted = {"num_cpus": workers, "include_dashboard": False}
    try:
        with warnings.catch_warnings(), _silence():
            warnings.simplefilter("ignore")
            ray.init(**wanted, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        shown = "a local Ray" if address is None else f"--address {printable(address)}"
        raise ConfigError(f"{shown}: no Ray answers: {printable(error)}") from None
    return True


@contextmanager
def _silence() -> Iterator[None]:
    """Nothing on standard error for a moment, from below Python either."""
    try:
        kept = os.dup(2)
    except OSError:  # it is closed
        yield
        return
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _measured(
    opening: Opening,
    corpus: Corpus,
    done: Collection[int],
    options: Options,
    workers: int | None,
    gpus: float,
) -> Iterator[dict[str, Any]]:
    """Rows of merged measures, as the tree gives them."""
    import ray
    from ray.data import ActorPoolStrategy, DataContext

    from attnviz.measuring.ray_reading import ShardSource

    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.target_max_block_size = 1  # a shard a block: what an actor is given at a time
    here = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}  # where the files are
    rows = ray.data.read_datasource(
        ShardSource(corpus, frozenset(done)),
        override_num_blocks=1,
        num_cpus=0,
        label_selector=here,
    )
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    n = workers or int(resources.get("CPU", 1))
    measured = rows.map_batches(
        Worker,
        batch_size=1,
        fn_constructor_args=(opening, options),
        compute=ActorPoolStrategy(size=n),
        num_cpus=1,
        num_gpus=gpus,
    )
    merged = measured.map_batches(merge_rows, batch_size=FAN_IN, fn_args=(options,), num_cpus=0)
    try:
        yield from merged.iter_rows()
    except ray.exceptions.RayTaskError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, AttnvizError):
            cause = cause.__cause__ or getattr(cause, "cause", None)
        raise (cause or AttnvizError(printable(error, 300))) from None


class Worker:
    """An actor's own source; called with a shard, it returns what it measured of it."""

    def __init__(self, opening: Opening, options: Options) -> None:
        import torch

        torch.set_num_threads(1)  # an actor has one CPU
        self._source, self._options = opening(), options

    def __call__(self, batch: dict[str, npt.NDArray[Any]]) -> dict[str, list[Any]]:
        shard = shard_of(batch["documents"][0], int(batch["shard"][0]), int(batch["position"][0]))
        part = measure_shard(self._source, shard, self._options)
        return _row(part, [shard.number], shard.position, self._source.n_layers)


def merge_rows(batch: dict[str, npt.NDArray[Any]], options: Options) -> dict[str, list[Any]]:
    """One row of several: the tree's inner node."""
    rows = [{name: column[i] for name, column in batch.items()} for i in range(len(batch["part"]))]
    found = [_unpacked(row, options) for row in rows]
    part = found[0][0]
    for other, _, _ in found[1:]:
        part = part.merge(other)
    numbers = [number for _, shards, _ in found for number in shards]
    position = max(position for _, _, position in found)
    return _row(part, numbers, position, part.measures.n_layers)


# ── rows of Ray Data ─────────────────────────────────────────────────────────────────────────


def packed_shard(shard: Shard) -> bytes:
    """A shard's documents as JSON."""
    rows = [
        [each.number, each.name, each.why]
        if isinstance(each, Bad)
        else [each.number, each.name, each.content, each.pairs]
        for each in shard.found
    ]
    return json.dumps(rows).encode("ascii")


def shard_of(documents: bytes, number: int, position: int) -> Shard:
    """What `packed_shard` packed."""
    found: list[Document | Bad] = []
    for row in json.loads(documents):
        if len(row) == 3:
            found.append(Bad(*row))
        else:
            content = row[2] if isinstance(row[2], str) else tuple(row[2])
            pairs = None if row[3] is None else tuple(tuple(pair) for pair in row[3])
            found.append(Document(row[0], row[1], content, pairs))
    return Shard(number, tuple(found), position)


def _row(part: Part, shards: list[int], position: int, n_layers: int) -> dict[str, list[Any]]:
    stream = io.BytesIO()
    np.savez(stream, allow_pickle=False, **part.measures.state())
    facts = {
        "shards": shards,
        "position": position,
        "tally": part.tally.as_dict(),
        "sizes": [n_layers, part.measures.n_heads],
    }
    return {"part": [stream.getvalue()], "facts": [json.dumps(facts)]}


def _unpacked(row: dict[str, Any], options: Options) -> tuple[Part, list[int], int]:
    facts = json.loads(row["facts"])
    with np.load(io.BytesIO(row["part"]), allow_pickle=False) as state:
        n_layers, n_heads = facts["sizes"]
        measures = Measures(n_layers, n_heads, options).load(dict(state))
    return Part(measures, Tally.from_dict(facts["tally"])), facts["shards"], facts["position"]
