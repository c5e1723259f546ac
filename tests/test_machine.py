"""What is free, what is needed, and that too much is refused before it is made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from attnviz.config import AttentionConfig
from attnviz.errors import ConfigError, InputError
from attnviz.machine import free_memory, human_bytes, n_threads, require_memory, require_package
from attnviz.sources.layer_memory import bytes_of_run

MACHINE = 1000


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=MACHINE))


def group(folder: Path, version: int, limit: object, used: int, cache: int = 0) -> None:
    """The files of a control group."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ("memory.max", "memory.current", "inactive_file"),
    ][version - 1]
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {cache}\nfile 7\n")


def free(root: Path, own: str | None = None) -> int:
    lines = root / "own"
    if own is not None:
        lines.write_text(own)
    return free_memory(root, lines)


def test_no_control_groups(tmp_path: Path) -> None:
    assert free(tmp_path) == MACHINE


@pytest.mark.parametrize("version", [1, 2])
def test_a_container(tmp_path: Path, version: int) -> None:
    group(tmp_path / "memory" if version == 1 else tmp_path, version, limit=800, used=300)
    assert free(tmp_path) == 500


@pytest.mark.parametrize(("version", "limit"), [(2, "max"), (1, 2**63 - 4096), (2, 10**6)])
def test_a_container_without_a_limit_below_the_machine(
    tmp_path: Path, version: int, limit: object
) -> None:
    group(tmp_path / "memory" if version == 1 else tmp_path, version, limit, used=300)
    assert free(tmp_path) == MACHINE


def test_cache_that_would_be_given_back_is_free(tmp_path: Path) -> None:
    group(tmp_path, 2, limit=800, used=700, cache=600)
    assert free(tmp_path) == 700


def test_a_container_that_is_full(tmp_path: Path) -> None:
    group(tmp_path, 2, limit=800, used=900)
    assert free(tmp_path) == 0


@pytest.mark.parametrize(
    ("version", "own"),
    [(2, "0::/slurm/job_7/step_0\n"), (1, "9:cpu:/\n4:memory:/slurm/job_7/step_0\n")],
)
def test_the_tightest_of_nested_groups_counts(tmp_path: Path, version: int, own: str) -> None:
    root = tmp_path / "memory" if version == 1 else tmp_path
    group(root / "slurm", version, limit=900, used=100)
    group(root / "slurm/job_7", version, limit=500, used=100)
    group(root / "slurm/job_7/step_0", version, "max" if version == 2 else 2**62, used=50)
    group(root / "slurm/job_8", version, limit=1, used=0)  # somebody else's
    assert free(tmp_path, own) == 400


def test_a_group_outside_of_what_the_container_is_shown(tmp_path: Path) -> None:
    group(tmp_path, 2, limit=700, used=100)
    assert free(tmp_path, "0::/../../elsewhere\n") == 600


def test_a_group_without_statistics_or_with_other_ones(tmp_path: Path) -> None:
    group(tmp_path, 2, limit=700, used=100)
    (tmp_path / "memory.stat").write_text("anon 5\n")
    assert free(tmp_path) == 600
    (tmp_path / "memory.stat").unlink()
    assert free(tmp_path) == MACHINE


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(InputError) as caught:
        require_memory(10**9, "a map", "give less")
    shown = str(caught.value)
    assert shown.startswith("a map needs 954 MiB of memory and ")
    assert shown.endswith(" are free; give less")
    require_memory(0, "nothing", "")


@pytest.mark.parametrize(
    ("n", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.977 KiB"),
        (1536, "1.5 KiB"),
        (1023487, "999 KiB"),
        (1023489, "0.976 MiB"),
        (64 << 30, "64 GiB"),
        (999 << 50, "999 PiB"),
        (10**21, "888178 PiB"),
    ],
)
def test_human_bytes(n: int, shown: str) -> None:
    assert human_bytes(n) == shown


@pytest.mark.parametrize(
    ("config", "batch", "queries"),
    [
        (AttentionConfig(8, 1, 8, 8), 1, 10**9),
        (AttentionConfig(10**12, 10**12, 10**12, 1), 1, 1),
        (AttentionConfig(8, 10**12, 1, 1), 10**12, 10**12),
        (AttentionConfig(8, 1, 1, 10**12), 1, 1),
    ],
)
def test_absurd_sizes_are_refused(config: AttentionConfig, batch: int, queries: int) -> None:
    with pytest.raises(InputError) as caught:
        require_memory(bytes_of_run(config, batch, queries, queries), "such a layer", "less")
    assert str(caught.value).startswith("such a layer needs ")


PEAK = """
import sys, threading
import psutil
import torch
from attnviz.tokens import make_batch
from attnviz.config import AttentionConfig
from attnviz.collectors.whole_maps import WholeMaps
from attnviz.sources import own_layers

torch.set_num_threads(1)
needed = []
own_layers.require_memory = lambda n, what, instead: needed.append(n)

def run(batch, width, dtype, d_model, n_heads, d_k, d_v):
    text = make_batch([tuple(f"t{i}" for i in range(width))] * batch)
    config = AttentionConfig(d_model, n_heads, d_k, d_v, dtype=dtype)
    options = own_layers.ReadingOptions({"causal": True})
    maps = WholeMaps()
    done = own_layers.LayerSource(config, options).run(own_layers.TokenizedBatch(text), maps)
    return maps.result(done)

def taken():  # not ru_maxrss, which a child inherits from its parent
    return psutil.Process().memory_info().rss

def watch():
    while not done.wait(0.0005):
        seen.append(taken())

run(1, 3, sys.argv[1], 8, 2, 4, 4)
before, seen, done = taken(), [], threading.Event()
watcher = threading.Thread(target=watch)
watcher.start()
run(*map(int, sys.argv[2:4]), sys.argv[1], *map(int, sys.argv[4:]))
done.set()
watcher.join()
print(needed[-1], max(seen) - before)
"""


@pytest.mark.parametrize(
    "sizes",
    [
        "float32 1 1000 64 8 8 8",  # maps
        "float64 64 64 512 1 512 512",  # what flows
        "bfloat16 1 4 2048 8 256 256",  # the layer
    ],
)
def test_the_estimate_is_not_below_the_peak(sizes: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *sizes.split()], capture_output=True, text=True, check=True
    )
    needed, peak = map(int, done.stdout.split())
    slack = 4 << 20  # the allocator's own pages
    assert 30 << 20 < peak <= needed + slack
    assert needed < 2 * peak  # nor is it far above: what fits must not be refused


def test_a_package_that_is_there_is_enough() -> None:
    require_package("json", "--x", "corpus")


def test_a_package_that_is_not_installed_names_its_extra() -> None:
    with pytest.raises(ConfigError) as caught:
        require_package("no_such_package", "--x", "corpus")
    assert str(caught.value) == (
        "--x needs no_such_package, which is not installed: pip install 'attnviz[corpus]'"
    )


def test_threads_are_those_of_torch_or_those_it_would_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = SimpleNamespace(get_num_threads=lambda: 7)
    monkeypatch.setitem(sys.modules, "torch", fake)  # type: ignore[arg-type]
    assert n_threads() == 7
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert n_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")  # one number for each level: torch's own affair
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 5, 6, 9}, raising=False)
    assert n_threads() == 5
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 11)
    assert n_threads() == 11
