"""Pictures against plain matplotlib, against their own encoding, and in memory.

    python tests/benchmarks/bench_pictures.py

Each figure is a ratio to a yardstick that is measured in the same run, in CPU time (medians), so
that it holds on another machine. The last part starts fresh processes.
"""

from __future__ import annotations

import gc
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from attnviz.render.attention_pictures import draw_heads, draw_overview
from attnviz.render.figure_options import FigureOptions
from attnviz.result import Attention


def result(layers: int, heads: int, tokens: int) -> Attention:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((layers, 1, heads, tokens, tokens), dtype=np.float32)
    weights *= 2
    np.exp(weights, out=weights)
    weights /= weights.sum(-1, keepdims=True)
    names = (tuple(f"token{i}" for i in range(tokens)),)
    lengths = np.array([tokens])
    allowed = np.ones((layers, 1, 1, tokens, tokens), dtype=bool)
    return Attention(
        weights, allowed, query_tokens=names, key_tokens=names, lengths=lengths, key_lengths=lengths
    )


def seconds(work: Callable[[], object], repeats: int) -> float:
    """The median CPU time of `work`."""
    taken = []
    for _ in range(repeats):
        gc.collect()
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return statistics.median(taken)


def plain_head(weights: np.ndarray, names: tuple[str, ...], path: Path, size: float) -> None:
    """What one would write by hand: a figure a head, its labels, a title, a colour bar."""
    import matplotlib.pyplot as plt  # noqa: TID251 - the yardstick is the usual way

    figure, axes = plt.subplots(figsize=(size, size), dpi=150)
    image = axes.imshow(weights, vmin=0)
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=6)
    axes.set_yticks(range(len(names)), names, fontsize=6)
    axes.set(title="head", xlabel="key", ylabel="query")
    figure.colorbar(image)
    figure.savefig(path)
    plt.close(figure)


def plain_overview(run: Attention, path: Path) -> None:
    """`subplots(12, 12)` with `imshow`, and labels on the outer edges."""
    import matplotlib.pyplot as plt  # noqa: TID251 - the yardstick is the usual way

    layers, _, heads, tokens, _ = run.attention.shape
    figure, grid = plt.subplots(layers, heads, figsize=(19, 21), dpi=150)
    shown = range(0, tokens, 5)
    names = [run.key_tokens[0][i] for i in shown]
    for (layer, head), axes in np.ndenumerate(grid):
        axes.imshow(run.attention[layer, 0, head], vmin=0)
        axes.set_title(f"layer {layer} head {head}", fontsize=8)
        axes.set_xticks(shown, names if layer == layers - 1 else [], rotation=90, fontsize=6)
        axes.set_yticks(shown, names if head == 0 else [], fontsize=6)
    figure.savefig(path)
    plt.close(figure)


def encode(pages: list[tuple[np.ndarray, bytes]], path: Path) -> None:
    """Nothing but the palette PNGs of the same pixels."""
    for pixels, colours in pages:
        image = Image.fromarray(pixels, "L")
        image.putpalette(colours)
        image.save(path, "png", compress_level=1)


def bench_heads(folder: Path) -> None:
    run = result(12, 12, 64)
    targets = [(la, h, folder / f"{la}-{h}.png") for la in range(12) for h in range(12)]
    draw_heads(run, 0, targets[:1], FigureOptions())  # imports
    plain_head(run.attention[0, 0, 0], run.key_tokens[0], folder / "plain.png", 9)
    ours = seconds(lambda: draw_heads(run, 0, targets, FigureOptions()), 5)
    plain = seconds(
        lambda: plain_head(run.attention[0, 0, 0], run.key_tokens[0], folder / "plain.png", 9), 5
    )
    pages = []
    for _, _, path in targets:
        with Image.open(path) as image:
            pages.append((np.asarray(image), bytes(image.getpalette() or [])))
    encoding = seconds(lambda: encode(pages, folder / "again.png"), 5)
    print(f"144 heads × 64 tokens, one PNG each: {ours:.2f} s, {ours / 144 * 1e3:.1f} ms a head")
    print(f"  a plain figure a head:   1/{plain * 144 / ours:.0f} of its time (bar: 1/50)")
    print(f"  encoding the same pages: {ours / encoding:.2f} × its time (bar: 1.6 ×)")


def bench_overview(folder: Path) -> None:
    run = result(12, 12, 64)
    ours = seconds(lambda: draw_overview(run, 0, folder / "all.png", FigureOptions()), 3)
    plain = seconds(lambda: plain_overview(run, folder / "plain.png"), 1)
    print(f"overview of 144 heads × 64 tokens: {ours:.2f} s")
    print(f"  subplots(12, 12): 1/{plain / ours:.0f} of its time (bar: 1/20)")


MEMORY = """
import psutil, resource, sys
sys.path.insert(0, {here!r})
from pathlib import Path
from bench_pictures import FigureOptions, draw_overview, result
run = result(32, 32, 128)
before = psutil.Process().memory_info().rss // 1024
draw_overview(run, 0, Path({folder!r}) / "all.png", FigureOptions())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, before)
"""


def bench_memory(folder: Path) -> None:
    here = str(Path(__file__).parent)
    code = MEMORY.format(here=here, folder=str(folder))
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    more, inputs = (int(part) / 1024 for part in answer.stdout.split())
    print(f"overview of 1,024 heads × 128 tokens: {more:.0f} MiB over {inputs:.0f} MiB (bar: 300)")


SENTENCE = "The animal didn't cross the street because it was too tired ."


def bench_process(folder: Path) -> None:
    torch = [sys.executable, "-c", "import torch"]
    run = [sys.executable, "-m", "attnviz", "run", SENTENCE, "-o", f"{folder}/out", "--force"]
    wall: dict[str, list[float]] = {"torch": [], "run": []}
    for _ in range(7):
        for name, command in (("torch", torch), ("run", run)):
            start = time.perf_counter()
            subprocess.run(command, capture_output=True, check=True)
            wall[name].append(time.perf_counter() - start)
    ratio = statistics.median(wall["run"]) / statistics.median(wall["torch"])
    print(
        f"attnviz run, 12 tokens, 8 heads, whole process: {ratio:.2f} × import torch (bar: 1.15 ×)"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        for bench in (bench_heads, bench_overview, bench_memory, bench_process):
            bench(Path(name))
