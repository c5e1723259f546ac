"""Through a corpus on Ray: many processes, on one machine or on a cluster.

Ray Data reads the corpus and cuts it into shards, in one task that streams them; a pool of actors,
each with a source of its own, measures a shard at a time; the measures are merged in a tree, of
which the driver is the root, and tasks the nodes below where there are more actors than a node
takes from. A shard that was with an actor that died is measured again by another, and since its
measures exist only when all of it is done, nothing is counted twice or lost.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import signal
import socket
import threading
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.corpus.batches import shard_from_json
from attnviz.corpus.checkpoint import Checkpoint
from attnviz.corpus.documents import Corpus
from attnviz.corpus.measure_corpus import EVERY, Tell, keeping
from attnviz.corpus.measured_shards import MeasuredShards, SpoiledError, measure_shard
from attnviz.corpus.opening import Opening
from attnviz.corpus.reader import CorpusReader
from attnviz.errors import AttnvizError, ConfigError, InputError, printable
from attnviz.machine import require_package
from attnviz.measures.measures import Options

FAN_IN = 8
"""Measures that a task merges."""

FEW = 8
"""Workers whose measures the driver merges by itself: a task would only cost a process."""

PATIENCE = 10.0
"""Seconds in which a cluster has to answer at all."""


@contextmanager
def ray_at(address: str | None = None, workers: int | None = None) -> Iterator[None]:
    """Be connected to Ray.

    `address` is that of a running cluster, or else Ray's own variable RAY_ADDRESS is; without both
    a Ray of one's own is begun, with as many CPUs as there are `workers`, and ended. Raises
    `ConfigError` where there is no Ray, or no cluster at the address.
    """
    begun, address = False, address or os.environ.get("RAY_ADDRESS") or None
    try:
        with _signals(later=address is None):
            begun = _begin(address, workers)
        with warnings.catch_warnings():  # Ray Data's advice is for who wrote the pipeline
            warnings.filterwarnings("ignore", module=r"ray\.")
            yield
    finally:
        if begun:
            import ray

            with _silence():  # after Ctrl-C, Ray's own threads report that their raylet is gone
                ray.shutdown()


def measure_on_ray(
    opening: Opening,
    corpus: Corpus,
    options: Options,
    *,
    workers: int | None = None,
    strict: bool = False,
    checkpoint: Checkpoint | None = None,
    resume: bool = False,
    tell: Tell = lambda _: None,
    every: float = EVERY,
    gpus: float = 0,
) -> MeasuredShards | None:
    """Measure a corpus on the Ray that one is connected to.

    The measures are those of `measure_corpus`, but for the order of sums. `opening` is called in
    each of the `workers` (None: as many as there are CPUs) and nowhere else: this machine needs
    neither the memory for the model nor a GPU. Each worker has one CPU and `gpus` GPUs.
    """
    with keeping(options, checkpoint, resume, tell, every) as keeper:
        for row in _measured(opening, corpus, keeper.done, options, workers, gpus):
            part, numbers, position = _unpacked(row, options)
            if strict and part.counts.bad:
                first = part.counts.named[0]
                raise SpoiledError(f"{first.name} {first.why}")
            keeper.add(part, numbers, position)
        return keeper.part


def _begin(address: str | None, workers: int | None) -> bool:
    """Connect to Ray; whether one was begun."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # it speaks of what it retries
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told what is measured
    require_package("ray", "--engine ray", "ray")
    import ray
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # what fails is told in one line
    if ray.is_initialized():
        return False
    wanted: dict[str, Any] = {"address": address}
    if address is None:
        wanted = {"num_cpus": workers, "include_dashboard": False}
    try:
        if address is not None:
            _require_listener(address)
        with warnings.catch_warnings(), _silence():
            warnings.simplefilter("ignore")
            ray.init(**wanted, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        why = printable(getattr(error, "strerror", None) or error)
        if address is None:
            raise ConfigError(f"Ray does not begin here: {why}") from None
        raise ConfigError(
            f"--address {printable(address)}: no Ray answers: {why}; without --address one is begun"
        ) from None
    return True


def _require_listener(address: str) -> None:
    """Raise `OSError` where nobody listens at HOST:PORT: Ray would try for minutes."""
    found = re.fullmatch(r"(?:ray://)?\[?(.+?)\]?:(\d+)", address)
    if found is not None:
        socket.create_connection((found[1], int(found[2])), timeout=PATIENCE).close()


@contextmanager
def _signals(later: bool) -> Iterator[None]:
    """What ends the program does so afterwards as before: Ray takes SIGTERM for itself.

    Or it comes `later` altogether: stopped in the midst of its start, Ray leaves processes behind.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    kept = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number, handler in kept.items():
        if later and handler is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    except SystemExit:  # Ray's answer to SIGTERM
        came.append(signal.SIGTERM)
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
        for each in came:
            signal.raise_signal(each)


@contextmanager
def _silence() -> Iterator[None]:
    """Nothing goes to standard error meanwhile, not even what is written below Python."""
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

    from attnviz.corpus.ray_shards import ShardSource

    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.target_max_block_size = 1  # a shard a block: what an actor is given at a time
    context.memory_usage_poll_interval_s = None  # each time it reads all pages of the process
    here = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}  # where the files are
    rows = ray.data.read_datasource(
        ShardSource(corpus, frozenset(done)),
        override_num_blocks=1,
        num_cpus=0,
        label_selector=here,
    )
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    if gpus > resources.get("GPU", 0):
        raise ConfigError("--device cuda: this Ray has no GPU; --device cpu runs everywhere")
    n = workers or int(resources.get("CPU", 1))
    measured = rows.map_batches(
        ShardWorker,
        batch_size=1,
        fn_constructor_args=(opening, options),
        compute=ActorPoolStrategy(size=n),
        num_cpus=1,
        num_gpus=gpus,
    )
    if n > FEW:
        measured = measured.map_batches(
            merge_rows, batch_size=FAN_IN, fn_args=(options,), num_cpus=0
        )
    try:
        # the next block is not waited for: what is done is told, and kept, at once
        for batch in measured.iter_batches(batch_size=1, prefetch_batches=0):
            yield {name: column[0] for name, column in batch.items()}
    except ray.exceptions.RayError as error:
        last = str(error).strip().rpartition("\n")[2]
        raise AttnvizError(f"a process of Ray fails: {printable(last, 300)}") from error


class ShardWorker:
    """An actor's own source; called with a shard, it returns what it measured of it."""

    def __init__(self, opening: Opening, options: Options) -> None:
        import torch

        torch.set_num_threads(1)  # an actor has one CPU
        self._options = options
        self._source: CorpusReader | AttnvizError
        try:
            self._source = opening()
        except AttnvizError as error:
            self._source = error

    def __call__(self, batch: dict[str, npt.NDArray[Any]]) -> dict[str, list[Any]]:
        shard = shard_from_json(
            batch["documents"][0], int(batch["shard"][0]), int(batch["position"][0])
        )
        try:
            if isinstance(self._source, AttnvizError):
                raise self._source
            part = measure_shard(self._source, shard, self._options)
        except AttnvizError as error:  # raised here, it would come as Ray's, with a traceback
            return {"part": [b""], "facts": [json.dumps({"error": [error.exit_code, str(error)]})]}
        return _row(part, [shard.number], shard.position)


def merge_rows(batch: dict[str, npt.NDArray[Any]], options: Options) -> dict[str, list[Any]]:
    """One row of several: the tree's inner node."""
    rows = [{name: column[i] for name, column in batch.items()} for i in range(len(batch["part"]))]
    failed = next((row for row in rows if not row["part"]), None)
    if failed is not None:
        return {name: [value] for name, value in failed.items()}
    found = [_unpacked(row, options) for row in rows]
    part = found[0][0]
    for other, _, _ in found[1:]:
        part = part.merge(other)
    numbers = [number for _, shards, _ in found for number in shards]
    position = max(position for _, _, position in found)
    return _row(part, numbers, position)


# ── rows of Ray Data ─────────────────────────────────────────────────────────────────────────


def _row(part: MeasuredShards, shards: list[int], position: int) -> dict[str, list[Any]]:
    stream = io.BytesIO()
    np.savez(stream, allow_pickle=False, **part.measures.state())
    facts = {"shards": shards, "position": position, **part.header()}
    return {"part": [stream.getvalue()], "facts": [json.dumps(facts)]}


def _unpacked(row: dict[str, Any], options: Options) -> tuple[MeasuredShards, list[int], int]:
    """(part, numbers of its shards, position). Raises what a worker failed with."""
    facts = json.loads(row["facts"])
    if "error" in facts:
        code, text = facts["error"]
        raise (InputError if code == InputError.exit_code else AttnvizError)(text)
    with np.load(io.BytesIO(row["part"]), allow_pickle=False) as sums:
        part = MeasuredShards.of_state(facts, dict(sums), options)
    return part, facts["shards"], facts["position"]
