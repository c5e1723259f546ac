"""What watching costs: `OMP_NUM_THREADS=1 python tests/benchmarks/bench_capture.py`.

MiniLM (BERT, 6 layers, 12 heads) on a batch of texts. Ratios of medians, the sides taking turns:

- all layers: a forward pass under `capture` over the model's own eager one with
  `output_attentions=True`; the bar is 1.15.
- one layer: under `capture(layers=[5])` over the plain eager one; the bar is 1.05.
- memory: the peak of a pass with one layer kept, less that of the plain one, over the size of that
  layer's maps and masks; the bar is 1, and a little for the allocator. Each peak is measured in a
  process of its own, from before the pass on (Linux alone can forget an earlier peak).
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from real_models import minilm

from attnviz.sources.capturing import capture
from attnviz.sources.loading import load_model

BATCH, LENGTH, LAYER, ROUNDS = 4, 256, 5, 15
LONG = 480


def prepared(batch: int, length: int) -> tuple[Any, dict[str, torch.Tensor]]:
    network = load_model(minilm()).network
    network.set_attn_implementation("eager")
    ids = torch.randint(1000, 20000, (batch, length), generator=torch.Generator().manual_seed(0))
    return network, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def ratio(ours: Callable[[], object], theirs: Callable[[], object]) -> tuple[float, float, float]:
    """Medians in milliseconds, and the median of the ratios of neighbouring runs."""
    times: list[tuple[float, float]] = []
    for n in range(ROUNDS + 2):
        pair = []
        for side in (ours, theirs) if n % 2 else (theirs, ours):
            start = time.process_time()
            side()
            pair.append((time.process_time() - start) * 1e3)
        times.append((pair[0], pair[1]) if n % 2 else (pair[1], pair[0]))
    times = times[2:]  # warm-up
    a, b = (statistics.median(column) for column in zip(*times, strict=True))
    return a, b, statistics.median(x / y for x, y in times)


def peak(layers: str) -> int:
    """Bytes that one pass, keeping `layers`, adds at its peak to a process of its own."""
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    code += f"import bench_capture; bench_capture.one_pass({layers!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout)


def one_pass(layers: str) -> None:
    """Run once, and print how many bytes the process held at most beyond what it began with."""
    network, inputs = prepared(BATCH, LONG)
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    with torch.no_grad():
        if layers == "none":
            network(**inputs)
        else:
            with capture(network, [LAYER] if layers == "one" else None) as captured:
                network(**inputs)
            assert captured.calls
    print(memory("VmHWM") - before)


def memory(entry: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(entry))


def main() -> None:
    network, inputs = prepared(BATCH, LENGTH)

    def plain(**options: bool) -> object:
        with torch.no_grad():
            return network(**inputs, **options)

    def watched(layers: list[int] | None) -> object:
        with torch.no_grad(), capture(network, layers) as captured:
            network(**inputs)
        return captured

    a, b, bar = ratio(lambda: watched(None), lambda: plain(output_attentions=True))
    print(f"all layers   {a:7.1f} ms over {b:7.1f} ms: {bar:.3f}  (bar 1.15)")
    a, b, bar = ratio(lambda: watched([LAYER]), plain)
    print(f"one layer    {a:7.1f} ms over {b:7.1f} ms: {bar:.3f}  (bar 1.05)")

    maps = BATCH * 12 * LONG * LONG * 4 + BATCH * LONG * LONG
    base = peak("none")
    print(f"memory, none {base / 2**20:7.1f} MiB at the peak of a plain pass")
    for layers, n in (("one", 1), ("all", 6)):
        grown = peak(layers) - base
        print(
            f"memory, {layers}  {grown / 2**20:7.1f} MiB more; maps and masks are "
            f"{n * maps / 2**20:.1f} MiB: {grown / n / maps:.2f}"
        )


if __name__ == "__main__":
    main()
