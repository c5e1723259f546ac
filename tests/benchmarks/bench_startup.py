"""How long whole commands take, against `import torch` in the same run.

    python tests/benchmarks/bench_startup.py [ROUNDS]

Each command and the yardstick run in turn, so that a busy machine slows both; what counts is the
ratio of the medians. The bars are what the project holds itself to.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

PROGRAM = [sys.executable, "-m", "attnviz"]
TORCH = [sys.executable, "-c", "import torch"]
SENTENCE = "The vase fell off the shelf because it was too narrow"  # 11 words; a full stop makes 12

SAVED = ["run", SENTENCE, "--causal", "-q", "-o"]  # what the other commands read

COMMANDS = {
    "run, 12 tokens, 8 heads, all pictures": (["run", SENTENCE + ".", "--force", "-q"], 1.15),
    "shapes": (["shapes", "--len", "1024"], 0.95),
    "explain": (["explain", SENTENCE], 1.0),
    "render a saved run, all pictures": (["render", "a.npz", "--force", "-q"], 1.15),
    "render a saved run, a page": (["render", "a.npz", "--force", "-q", "-o", "a.html"], 0.35),
    "check a saved run": (["check", "a.npz"], 1.0),
    "compare two saved runs": (["compare", "a.npz", "b.npz"], 0.3),
    "stats of a text, no model": (["stats", SENTENCE], 1.0),
    "run --help": (["run", "--help"], 0.15),  # rich lays out over seventy flags
    "--help": (["--help"], 0.12),
}


def seconds(command: list[str], folder: str) -> tuple[float, float]:
    """(wall, CPU) of one whole process."""
    before, start = os.times(), time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL, check=False
    )
    wall, after = time.perf_counter() - start, os.times()
    if done.returncode:
        sys.exit(done.stderr.decode())
    user = after.children_user - before.children_user
    return wall, user + after.children_system - before.children_system


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    with tempfile.TemporaryDirectory() as folder:
        for saved in ("a.npz", "b.npz"):
            seconds([*PROGRAM, *SAVED, saved], folder)
        for name, (arguments, bar) in COMMANDS.items():
            ours, theirs = [], []
            for _ in range(rounds + 1):  # the first round warms the disk cache
                theirs.append(seconds(TORCH, folder))
                ours.append(seconds(PROGRAM + arguments, folder))
            wall, cpu = (
                statistics.median(t[i] for t in ours[1:])
                / statistics.median(t[i] for t in theirs[1:])
                for i in (0, 1)
            )
            verdict = "holds" if max(wall, cpu) <= bar else "MISSED"
            ratios = f"wall {wall:.3f}x  CPU {cpu:.3f}x  of import torch"
            print(f"{name:40} {ratios}; bar {bar}x: {verdict}")


if __name__ == "__main__":
    main()
