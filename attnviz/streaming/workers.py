"""Blocks on several processors: plain threads that run torch one thread each.

Two threads with a tile each are quicker than both on one tile, above all on a busy machine, and
the sums of a block are the same whatever else runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import torch

Job = TypeVar("Job")
Done = TypeVar("Done")


def in_order(
    work: Callable[[Job], Done], jobs: Iterable[Job], device: torch.device
) -> Iterator[Done]:
    """work(job) of each job, in the jobs' order; on a CPU as many at a time as torch has threads.

    No more than two jobs a thread are under way, so that what waits to be taken stays small.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        yield from map(work, jobs)
        return
    jobs = iter(jobs)
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    waiting: deque[Future[Done]] = deque()
    try:
        waiting.extend(pool.submit(work, job) for job in islice(jobs, 2 * threads))
        while waiting:
            done = waiting.popleft().result()
            waiting.extend(pool.submit(work, job) for job in islice(jobs, 1))
            yield done
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)
