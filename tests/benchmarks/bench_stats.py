"""What `attnviz stats` costs: against the model's own forward pass, in memory, and on Ray.

    python tests/benchmarks/bench_stats.py [forward|memory|ray] [DOCUMENTS]

The model is all-MiniLM-L6-v2 with eager attention. In `forward` the yardstick and the work take
turns over the same batches, with one thread, so that a busy machine slows both; `ray` compares
whole commands, from start to end, on the same documents. The bars are those of the project.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

WINDOWS = Path(__file__).parents[1] / "data" / "stats" / "minilm_windows.npz"
PROGRAM = [sys.executable, "-m", "attnviz", "stats"]


def clock(work: Callable[[], object]) -> tuple[float, float]:
    """(wall, CPU) seconds of `work`."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def against_forward(rounds: int = 5) -> None:
    """Measures, and stats as a whole, in units of the model's own forward pass."""
    import torch
    from real_models import minilm

    from attnviz.corpus.documents import Document
    from attnviz.corpus.measured_shards import measured
    from attnviz.corpus.opening import open_model
    from attnviz.corpus.reader import Ready, Take
    from attnviz.measures.block import Block
    from attnviz.measures.measures import Options
    from attnviz.sources.model_options import ModelOptions
    from attnviz.sources.subwords import respelled

    reader = open_model(ModelOptions(str(minilm()), pad_side="right"))
    source: Any = reader.source
    network = source.loaded().network
    windows = np.load(WINDOWS)["input_ids"]

    def spelled(ids: Any) -> Any:
        return respelled(source._tokenizer, [tuple(map(int, ids))], "right")

    # documents of a large corpus: one in a hundred is in the sample whose rank is taken
    numbers = [1280 if i == 30 else 1281 + i for i in range(len(windows))]
    ready = [
        Ready(Document(number, "", ""), source._encoded(spelled(ids), None, ()))
        for number, ids in zip(numbers, windows, strict=True)
    ]
    made = [ready[at : at + 32] for at in range(0, 96, 32)]
    network.set_attn_implementation("eager")
    spent = [0.0, 0.0]

    class Timed:
        """The same source; the time that its blocks take is kept."""

        def __getattr__(self, name: str) -> object:
            return getattr(reader, name)

        def attend(self, batch: Sequence[Ready], take: Take) -> None:
            def timed(block: Block) -> None:
                for i, seconds in enumerate(clock(lambda: take(block))):
                    spent[i] += seconds

            reader.attend(batch, timed)

    def forward() -> None:
        with torch.inference_mode():
            for batch in made:
                network(input_ids=torch.tensor([each.ids for each in batch]))

    ratios: dict[str, list[list[float]]] = {"all measures": [], "stats": []}
    for i in range(rounds + 1):  # the first round warms up
        theirs = clock(forward)
        spent[:] = [0.0, 0.0]
        ours = clock(lambda: measured(Timed(), made, Options()))  # type: ignore[arg-type]
        if i:
            ratios["all measures"].append([s / t for s, t in zip(spent, theirs, strict=True)])
            ratios["stats"].append([o / t for o, t in zip(ours, theirs, strict=True)])
    for name, bar in (("all measures", 0.3), ("stats", 1.3)):
        wall, cpu = (statistics.median(r[i] for r in ratios[name]) for i in (0, 1))
        verdict = "holds" if cpu <= bar else "MISSED"
        print(f"{name:14} {cpu:.3f}x CPU  {wall:.3f}x wall  of forward; bar {bar}x: {verdict}")


def documents(path: Path, n: int, words: int) -> None:
    """`n` documents of about so many words, drawn like a language's: a few of them often."""
    rng = np.random.default_rng(0)
    from real_models import minilm

    known = (minilm() / "vocab.txt").read_text("utf-8").splitlines()
    plain = [word for word in known[2000:12000] if word.isalpha() and word.isascii()]
    with path.open("w") as stream:
        for _ in range(n):
            ranks = rng.zipf(1.3, rng.integers(words // 2, words * 3 // 2)) % len(plain)
            stream.write(" ".join(plain[rank] for rank in ranks) + ".\n")


def peak(arguments: list[str], folder: str) -> int:
    """Peak resident KiB of one command."""
    script = (
        "import resource, subprocess, sys\n"
        "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *PROGRAM, *arguments],
        cwd=folder, capture_output=True, check=True,
    )  # fmt: skip
    return int(done.stdout)


def memory() -> None:
    """Peak memory over 1,000 and over 10,000 documents."""
    from real_models import minilm

    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for n in (1_000, 10_000):
            documents(Path(folder) / f"{n}.txt", n, 16)
            flags = ["--model", str(minilm()), "--max-len", "32", "-q"]
            found[n] = peak(["--file", f"{n}.txt", *flags], folder)
            print(f"{n:6,} documents  peak {found[n] / 1024:.0f} MiB")
        growth = found[10_000] / found[1_000] - 1
        verdict = "holds" if growth <= 0.05 else "MISSED"
        print(f"growth {growth:+.1%}; bar +5%: {verdict}")


def on_ray(n: int) -> None:
    """Two workers of Ray against two plain processes, whole commands, documents a second."""
    from real_models import minilm

    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    flags = ["--model", str(minilm()), "--max-len", "64", "--json"]
    with tempfile.TemporaryDirectory() as folder:
        documents(Path(folder) / "all.txt", n, 24)
        lines = (Path(folder) / "all.txt").read_text().splitlines(keepends=True)
        for half in (0, 1):
            (Path(folder) / f"{half}.txt").write_text("".join(lines[half::2]))

        def run(names: list[str], *more: str) -> tuple[float, list[dict]]:
            start = time.perf_counter()
            begun = [
                subprocess.Popen(
                    [*PROGRAM, "--file", str(Path(folder) / name), *flags, *more],
                    cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                )
                for name in names
            ]  # fmt: skip
            out = [process.communicate()[0] for process in begun]
            return time.perf_counter() - start, [json.loads(each) for each in out]

        plain, _ = run(["0.txt", "1.txt"])
        ray, (found,) = run(["all.txt"], "--engine", "ray", "--workers", "2")
        assert found["documents"] == n
        ratio = plain / ray
        verdict = "holds" if ratio >= 0.8 else "MISSED"
        print(
            f"{n:,} documents: two processes {n / plain:.0f}/s, Ray with two workers "
            f"{n / ray:.0f}/s: {ratio:.2f}x; bar 0.8x: {verdict}"
        )


def main() -> None:
    wanted = sys.argv[1:2] or ["forward", "memory", "ray"]
    if "forward" in wanted:
        against_forward()
    if "memory" in wanted:
        memory()
    if "ray" in wanted:
        on_ray(int(sys.argv[2]) if len(sys.argv) > 2 else 10_000)


if __name__ == "__main__":
    main()
