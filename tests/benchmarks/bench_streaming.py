"""Long maps against torch's own attention kernel, against the whole matrix, and in memory.

    python tests/benchmarks/bench_streaming.py [speed|whole|window|memory|truth …] [--longest N]

Each figure is a ratio to a yardstick that is measured in the same run, turn by turn, so that it
holds on another machine. The yardstick is `scaled_dot_product_attention` on the same queries and
keys (one head, d_k 64, float32), which computes as many scores and one product more. All of it
takes half an hour on two cores; `--longest 16384` a minute.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from attnviz import masks
from attnviz.attention import scaled_dot_product_attention as whole_attention
from attnviz.scores import Scores
from attnviz.streaming import pool, weight_blocks, window
from attnviz.tokens import make_batch

BARS = {16384: (0.8, 1.2), 65536: (0.65, 0.9), 131072: (0.6, 0.9)}
"""Of tokens: the most that pooling may take, and pooling with all statistics of the rows."""


def tensors(length: int, n: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 1, length, 64, generator=generator) for _ in range(n)]


def causal(length: int) -> Scores:
    q, k = tensors(length, 2)
    tokens = make_batch([("a",) * length])
    return Scores(q, k, (masks.rule("causal", tokens, tokens),))


def in_turns(
    works: dict[str, Callable[[], object]], repeats: int
) -> dict[str, tuple[float, float]]:
    """The median (CPU, wall) time of each, measured in turns."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            wall, cpu = time.perf_counter(), time.process_time()
            work()
            taken[name].append((time.process_time() - cpu, time.perf_counter() - wall))
    return {
        name: (statistics.median(cpu for cpu, _ in both), statistics.median(w for _, w in both))
        for name, both in taken.items()
    }


def bench_speed(longest: int) -> None:
    pooling: dict[int, dict[int, float]] = {1: {}, 2: {}}
    for length, (bar, bar_with) in BARS.items():
        if length > longest:
            continue
        q, k, v = tensors(length, 3)
        a = Scores(q, k)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            times = in_turns(
                {
                    "sdpa": lambda q=q, k=k, v=v: scaled_dot_product_attention(q, k, v),
                    "pooling": lambda a=a: pool(a, statistics=False),
                    "with statistics": lambda a=a: pool(a),
                },
                {16384: 7, 65536: 3}.get(length, 1),
            )
            cpu, wall = times["sdpa"]
            print(f"{length} tokens, {threads} thread(s): sdpa {cpu:.2f} s CPU, {wall:.2f} s wall")
            for name, most in (("pooling", bar), ("with statistics", bar_with)):
                own = times[name]
                print(
                    f"  {name}: {own[0] / cpu:.2f} × its CPU, {own[1] / wall:.2f} × its wall time "
                    f"(bar: {most} ×)"
                )
            pooling[threads][length] = times["pooling"][0]
    for threads, of_length in pooling.items():
        if 131072 in of_length:
            ratio = of_length[131072] / of_length[65536]
            print(f"131,072 over 65,536 tokens, {threads} thread(s): {ratio:.2f} × (bar: 4.3 ×)")


def bench_whole(longest: int) -> None:
    for length, bar in ((4096, 1), (16384, 6)):
        if length > longest:
            continue
        q, k, v = tensors(length, 3)
        cells = length // 1024

        def full(q=q, k=k, v=v, cells=cells) -> object:  # type: ignore[no-untyped-def]
            weights = whole_attention(q, k, v)[1][0, 0]
            pixels = weights.view(1024, cells, 1024, cells)
            return pixels.mean((1, 3)), pixels.amax((1, 3))

        for threads in (1, 2):
            torch.set_num_threads(threads)
            times = in_turns(
                {
                    "full": full,
                    "pooling": lambda q=q, k=k: pool(Scores(q, k), statistics=False),
                    "with statistics": lambda q=q, k=k: pool(Scores(q, k)),
                },
                5 if length < 9999 else 3,
            )
            print(f"{length} tokens, {threads} thread(s), against pooling the whole matrix:")
            for name, least in (("pooling", f" (bar: {bar} ×)"), ("with statistics", "")):
                cpu, wall = (times["full"][i] / times[name][i] for i in (0, 1))
                print(
                    f"  {name}: {cpu:.1f} × as fast in CPU time, {wall:.1f} × in wall time{least}"
                )


def bench_window(longest: int) -> None:
    length = min(longest, 65536)
    a, part = causal(length), length // 16
    torch.set_num_threads(1)
    times = in_turns(
        {
            "whole": lambda: pool(a, statistics=False),
            "window": lambda: window(a, range(length - part, length), range(part)),
        },
        3,
    )
    ratio = times["whole"][0] / times["window"][0]
    print(f"a window of {part} over {length} tokens: 1/{ratio:.1f} of the causal whole (bar: 1/6)")


MEMORY = """
import sys
sys.path.insert(0, {here!r})
from bench_streaming import measure_memory
measure_memory({length}, {statistics})
"""


def measure_memory(length: int, with_statistics: bool) -> None:
    """In a fresh process: the peak above what the inputs and a first, small map took."""
    q, k = tensors(length, 2)
    torch.set_num_threads(2)
    pool(Scores(q[:, :, :4096], k[:, :, :4096]), 32, top=1)  # what imports and threads take
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pool(Scores(q, k), statistics=with_statistics)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)


def bench_memory(longest: int) -> None:
    from pathlib import Path

    length = min(longest, 131072)
    for name, with_statistics in (("pooling", False), ("with statistics", True)):
        code = MEMORY.format(
            here=str(Path(__file__).parent), length=length, statistics=with_statistics
        )
        answer = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        print(f"{length} tokens, {name}: {float(answer.stdout):.0f} MiB (bar: 150 MiB)")


def bench_truth(longest: int) -> None:
    length = min(longest, 131072)
    a = causal(length)
    rng = np.random.default_rng(0)
    rows = np.sort(rng.integers(0, length, 1000))
    columns = rng.integers(0, rows + 1)
    found, worst = np.zeros(1000), 0.0
    for block, weights in weight_blocks(a):
        worst = max(worst, float((weights.sum(1, dtype=torch.float64) - 1).abs().max()))
        here = (rows >= block.start) & (rows < block.stop)
        found[here] = weights[rows[here] - block.start, columns[here]]
    exact = np.zeros(1000)
    q, k = (x[0, 0].double().numpy() for x in (a.q, a.k))
    for i, (row, column) in enumerate(zip(rows, columns, strict=True)):
        powers = np.exp(k[: row + 1] @ q[row] / 8)
        exact[i] = powers[column] / powers.sum()
    print(f"{length} tokens: rows sum to 1 within {worst:.1e} (bar: 1e-5)")
    error = np.abs(found / exact - 1).max()
    print(f"  1,000 random weights: within {error:.1e} of float64, relative to each")


PARTS = {
    "speed": bench_speed,
    "whole": bench_whole,
    "window": bench_window,
    "memory": bench_memory,
    "truth": bench_truth,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure attnviz.streaming against its bars.")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all when left out")
    parser.add_argument("--longest", type=int, default=131072)
    given = parser.parse_args()
    for part in given.parts or PARTS:
        PARTS[part](given.longest)
