"""Through a corpus: any cut of it, any number of threads, stopped and gone on from, on Ray."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnviz.config import AttentionConfig
from attnviz.corpus import checkpoint as checkpoint_module
from attnviz.corpus import cluster
from attnviz.corpus import measure_corpus as measure_module
from attnviz.corpus import measured_shards as shards_module
from attnviz.corpus.batches import Shard, batches, shard_as_json, shard_from_json, shards
from attnviz.corpus.checkpoint import Checkpoint, _ranges
from attnviz.corpus.cluster import (
    ShardWorker,
    _begin,
    _unpacked,
    measure_on_ray,
    merge_rows,
    ray_at,
)
from attnviz.corpus.documents import Bad, Corpus, Document
from attnviz.corpus.measure_corpus import measure_corpus
from attnviz.corpus.measured_shards import (
    MOST_NAMED,
    DocumentCounts,
    MeasuredShards,
    SpoiledError,
    measure_shard,
    measured,
)
from attnviz.corpus.opening import describe, open_layer
from attnviz.corpus.reader import CorpusReader, Ready, Take
from attnviz.errors import AttnvizError, ConfigError, InputError
from attnviz.measures.measures import DEFAULT, Options
from attnviz.sources.own_layers import ReadingOptions

WORDS = ("[PAD]", "[SEP]", "[CLS]", "[MASK]", *(f"w{i}" for i in range(30)), ".", ",")
SIZES = AttentionConfig.from_sizes(d_model=14, n_heads=3, d_k=5, dtype="float64")
OPTIONS = Options((*DEFAULT, "agreement"))


CAUSAL = ReadingOptions(masks={"causal": True})
OPENING = partial(open_layer, SIZES, CAUSAL)


class KnownWords(CorpusReader):
    """A reader whose source has a vocabulary."""

    def ready(self, document: Document) -> Ready:
        if "unknown" in document.content:
            raise InputError("has the token 'unknown', not in the vocabulary")
        return super().ready(document)


@pytest.fixture
def source() -> CorpusReader:
    return KnownWords(OPENING().source)


def corpus_of(path: Path, documents: int, bad: Sequence[int] = ()) -> Corpus:
    """A file of random texts of 1 to 40 tokens."""
    rng = np.random.default_rng(3)
    lines = []
    for i in range(documents):
        words = rng.integers(4, len(WORDS), rng.integers(1, 40))
        lines.append("{" if i in bad else json.dumps({"tokens": [WORDS[w] for w in words]}))
    path.write_text("\n".join(lines) + "\n")
    return Corpus((path,))


def cut(corpus: Corpus, size: int) -> Iterator[Shard]:
    return shards(corpus.documents(), size)


def assert_same(one: MeasuredShards, other: MeasuredShards, close: float = 1e-10) -> None:
    assert one.counts == other.counts
    left, right = one.measures.result(), other.measures.result()
    assert left.keys() == right.keys()
    for name, values in left.items():
        np.testing.assert_allclose(values, right[name], rtol=close, atol=close, err_msg=name)
    pairs = [part.measures.parts["agreement"].divergences() for part in (one, other)]  # type: ignore[attr-defined]
    np.testing.assert_allclose(*pairs, rtol=close, atol=close)


def test_any_cut_into_shards_and_batches_and_any_threads(source: CorpusReader, here: Path) -> None:
    corpus = corpus_of(here / "a.jsonl", 60)
    whole = measure_corpus(source, cut(corpus, 60), OPTIONS)
    assert whole.counts == DocumentCounts(60, whole.counts.tokens, 0, 39, 0, ())
    for size in (1, 7, 59):
        assert_same(measure_corpus(source, cut(corpus, size), OPTIONS), whole)
    ready = [source.ready(d) for d, _ in corpus.documents() if isinstance(d, Document)]
    for most in (1, 100, 10**6):
        made = batches(ready, most_tokens=most)
        assert_same(
            MeasuredShards(measured(source, made, OPTIONS), whole.counts, whole.summary), whole
        )
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert_same(measure_corpus(source, cut(corpus, 20), OPTIONS), whole)
    finally:
        torch.set_num_threads(before)


def test_bad_documents_are_counted_and_named(source: CorpusReader, here: Path) -> None:
    corpus = corpus_of(here / "a.jsonl", 30, bad=(4, 17))
    (here / "b.txt").write_text("w1 unknown\nw1 w2\n")
    both = Corpus((here / "a.jsonl", here / "b.txt"))
    part = measure_corpus(source, cut(both, 8), OPTIONS)
    assert (part.counts.documents, part.counts.bad) == (29, 3)
    assert [(bad.number, bad.name) for bad in part.counts.named] == [
        (4, "a.jsonl, line 5"), (17, "a.jsonl, line 18"), (30, "b.txt, line 1")
    ]  # fmt: skip
    assert part.counts.named[2].why == "has the token 'unknown', not in the vocabulary"
    rows = part.measures.state()["where/rows"]
    assert (rows == part.counts.tokens).all()
    good = [found for found, _ in both.documents() if found.number not in (4, 17, 30)]
    assert_same(
        MeasuredShards(
            measure_corpus(source, [Shard(0, tuple(good))], OPTIONS).measures,
            part.counts,
            part.summary,
        ),
        part,
    )
    with pytest.raises(SpoiledError) as error:
        measure_corpus(source, cut(corpus, 8), OPTIONS, strict=True)
    assert str(error.value).startswith("a.jsonl, line 5 is no JSON: ")
    with pytest.raises(SpoiledError, match=r"^b\.txt, line 1 has the token 'unknown'"):
        measure_corpus(source, cut(Corpus((here / "b.txt",)), 8), OPTIONS, strict=True)


def test_only_so_many_bad_documents_are_named(source: CorpusReader) -> None:
    bad = tuple(Bad(i, f"line {i}", "is bad") for i in range(250))
    one, two = (measure_shard(source, Shard(0, part), OPTIONS) for part in (bad[:120], bad[120:]))
    both = two.merge(one).counts
    assert (both.bad, both.named) == (250, bad[:MOST_NAMED])
    assert DocumentCounts.from_dict(json.loads(json.dumps(both.as_dict()))) == both


# ── checkpoints ──────────────────────────────────────────────────────────────────────────────


class Stopping(CorpusReader):
    """A source that is stopped at its n-th batch."""

    left = 0

    def attend(self, batch: Sequence[Ready], take: Take) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        super().attend(batch, take)


def stopping(after: int) -> Stopping:
    made = Stopping(OPENING().source)
    made.left = after
    return made


@pytest.mark.parametrize("every", [0.0, 1e9])
def test_what_was_stopped_ends_at_the_same_figures(
    source: CorpusReader, here: Path, every: float
) -> None:
    corpus = corpus_of(here / "a.jsonl", 64, bad=(9,))
    whole = measure_corpus(source, cut(corpus, 8), OPTIONS)
    checkpoint = Checkpoint(here / "c.npz", "what")
    for after, documents in ((3, 23), (2, 39)):
        with pytest.raises(KeyboardInterrupt):
            measure_corpus(
                stopping(after), cut(corpus, 8), OPTIONS,
                checkpoint=checkpoint, resume=after != 3, every=every,
            )  # fmt: skip
        _, part = checkpoint.load(OPTIONS)
        assert part.counts.documents == documents
    told: list[int] = []
    part = measure_corpus(
        source, cut(corpus, 8), OPTIONS, checkpoint=checkpoint, resume=True,
        tell=lambda progress: told.append(progress.part.counts.documents),
    )  # fmt: skip
    assert_same(part, whole, close=0)  # the very bits
    assert told == [47, 55, 63]
    again = measure_corpus(stopping(0), cut(corpus, 8), OPTIONS, checkpoint=checkpoint, resume=True)
    assert_same(again, whole, close=0)  # all is done: nothing runs
    assert [path.name for path in sorted(here.iterdir())] == ["a.jsonl", "c.npz"]


def test_a_checkpoint_of_something_else(source: CorpusReader, here: Path) -> None:
    corpus = corpus_of(here / "a.jsonl", 3)
    measure_corpus(source, cut(corpus, 8), OPTIONS, checkpoint=Checkpoint(here / "c.npz", "one"))
    other = Checkpoint(here / "c.npz", "other")
    with pytest.raises(InputError) as error:
        other.load(OPTIONS)
    assert str(error.value) == (
        "c.npz is of other documents, another model or other measures, and can only be resumed "
        "with the same; --force starts again"
    )
    (here / "d.npz").write_text("no")
    np.savez(here / "e.npz", a=np.zeros(2))
    facts = {"format": "attnviz.stats.checkpoint", "version": 3}
    np.savez(here / "f.npz", facts=np.array(json.dumps(facts)))
    np.savez(here / "g.npz", facts=np.array('{"format": "x"}'))
    wrong = {
        "d.npz": r"^d\.npz is no \.npz archive, or a damaged one: File is not a zip file$",
        "e.npz": r"^e\.npz is no checkpoint: 'facts'$",
        "f.npz": r"^f\.npz has version 3; this attnviz reads 4$",
        "g.npz": r"^g\.npz is no checkpoint: it has another format$",
    }
    for name, message in wrong.items():
        with pytest.raises(InputError, match=message):
            Checkpoint(here / name, "one").load(OPTIONS)


def test_a_checkpoint_that_is_not_there_yet_starts_from_the_beginning(here: Path) -> None:
    assert Checkpoint(here / "c.npz", "one").load(OPTIONS) == (set(), None)


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(
    source: CorpusReader, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = corpus_of(here / "a.jsonl", 8)
    checkpoint = Checkpoint(here / "c.npz", "one")
    part = measure_corpus(source, cut(corpus, 8), OPTIONS, checkpoint=checkpoint)
    before = (here / "c.npz").read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match=r"No space left on device: 'c\.npz'$"):
        checkpoint.save({0, 1}, part)
    assert (here / "c.npz").read_bytes() == before
    assert len(list(here.iterdir())) == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a file as it opens
@pytest.mark.parametrize("every", [0.0, 1e9])
def test_a_stop_at_any_line_counts_nothing_twice(
    source: CorpusReader, here: Path, every: float
) -> None:
    """Ctrl-C before each line in turn that measures, adds or keeps, then --resume."""
    import sys

    corpus, options = corpus_of(here / "a.jsonl", 8), Options(("where",))
    files = {module.__file__ for module in (measure_module, checkpoint_module)}
    checkpoint = Checkpoint(here / "c.npz", "what")

    def measure(resume: bool) -> MeasuredShards:
        part = measure_corpus(
            source, cut(corpus, 3), options, checkpoint=checkpoint, resume=resume, every=every
        )
        assert part is not None
        return part

    whole, lines = measure(resume=False), 0

    def stop_at(n: int) -> Any:
        seen = 0

        def trace(frame: Any, event: str, _: object) -> Any:
            nonlocal seen
            if frame.f_code.co_filename not in files:
                return None
            if event == "line":
                seen += 1
                if seen == n:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return trace

        return trace

    before = sys.gettrace()
    while True:
        lines += 1
        checkpoint.path.unlink(missing_ok=True)
        sys.settrace(stop_at(lines))
        try:
            measure(resume=False)
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        again = measure(resume=checkpoint.path.exists())
        assert again.counts == whole.counts
        for name, values in whole.measures.result().items():
            np.testing.assert_array_equal(again.measures.result()[name], values, err_msg=name)
    assert lines > 40


def test_ranges_of_shards() -> None:
    assert _ranges({0, 1, 2, 7, 9, 8}) == [(0, 3), (7, 10)]
    assert _ranges(()) == []


def test_what_tells_sources_apart() -> None:
    other = partial(open_layer, SIZES, ReadingOptions())
    assert describe(OPENING) != describe(other)
    again = ReadingOptions(masks={"causal": True})
    assert describe(OPENING) == describe(partial(open_layer, SIZES, again))


# ── Ray ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def ray_of_two() -> Iterator[None]:
    assert _begin(None, 2)
    assert not _begin(None, 2)  # it is there
    yield
    import ray

    ray.shutdown()


@pytest.mark.usefixtures("ray_of_two")
@pytest.mark.filterwarnings("ignore")
def test_ray_gives_the_figures_of_one_machine(
    source: CorpusReader, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = corpus_of(here.resolve() / "a.jsonl", 900, bad=(5, 700))
    whole = measure_corpus(source, shards(corpus.documents()), OPTIONS)
    told: list[Any] = []
    checkpoint = Checkpoint(here / "c.npz", "what")
    found = measure_on_ray(
        OPENING, corpus, OPTIONS, workers=2, checkpoint=checkpoint, tell=told.append
    )
    assert_same(found, whole)
    assert told[-1].part.counts.documents == 898
    done, kept = checkpoint.load(OPTIONS)
    assert done == {0, 1, 2, 3}
    assert_same(kept, found, close=0)
    # some shards are done: only the others run, and the sums are those of all
    first, *_ = shards(corpus.documents())
    checkpoint.save({0}, measure_shard(source, first, OPTIONS))
    resuming = {"checkpoint": checkpoint, "resume": True}
    resumed = measure_on_ray(OPENING, corpus, OPTIONS, workers=2, **resuming)
    assert_same(resumed, whole)
    with pytest.raises(SpoiledError, match=r"a\.jsonl, line 6 is no JSON"):
        measure_on_ray(OPENING, corpus, OPTIONS, workers=2, strict=True)
    # as with many workers: tasks merge first
    monkeypatch.setattr(cluster, "FEW", 1)
    monkeypatch.setattr(cluster, "FAN_IN", 3)
    told.clear()
    found = measure_on_ray(OPENING, corpus, OPTIONS, workers=2, tell=told.append)
    assert_same(found, whole)
    assert [each.part.counts.documents for each in told][-1] == 898
    assert len(told) == 2


def failing_opening(text: str) -> CorpusReader:
    raise InputError(text)


class Spoiled(CorpusReader):
    def attend(self, *_: object) -> None:
        raise AttnvizError("out of memory")


def spoiled_opening() -> CorpusReader:
    return Spoiled(OPENING().source)


@pytest.mark.usefixtures("ray_of_two")
@pytest.mark.filterwarnings("ignore")
def test_what_a_worker_fails_with_is_said_in_its_words(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import sys

    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    corpus = corpus_of(here.resolve() / "a.jsonl", 3)
    with pytest.raises(InputError, match=r"^there is no such model$"):
        measure_on_ray(partial(failing_opening, "there is no such model"), corpus, OPTIONS)
    with pytest.raises(AttnvizError, match=r"^out of memory$") as error:
        measure_on_ray(spoiled_opening, corpus, OPTIONS)
    assert error.value.exit_code == 1
    assert capfd.readouterr().err == ""


def test_signals_wait_for_the_start_of_ray() -> None:
    came: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda *_: came.append("ours"))
    try:
        with cluster._signals(later=True):
            signal.raise_signal(signal.SIGTERM)
            assert came == []
        assert came == ["ours"]
        with cluster._signals(later=False):
            signal.raise_signal(signal.SIGTERM)
            assert came == ["ours"] * 2
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as Ray would
        with cluster._signals(later=True):
            raise SystemExit(15)  # Ray's own answer
        assert came == ["ours"] * 3
        with pytest.raises(KeyboardInterrupt), cluster._signals(later=True):
            signal.raise_signal(signal.SIGINT)
            came.append("afterwards")
        assert came[-1] == "afterwards"
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_ray_writes_as_it_ends_is_not_seen(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import ray

    monkeypatch.setattr(cluster, "_begin", lambda *_: True)
    monkeypatch.setattr(ray, "shutdown", lambda: os.write(2, b"the raylet is dead"))
    with pytest.raises(KeyboardInterrupt), ray_at():
        raise KeyboardInterrupt
    assert capfd.readouterr().err == ""


def slow_opening(folder: Path) -> Slow:
    """Opens a source that tells its process, and takes its time."""
    made = Slow(OPENING().source)
    made.folder = folder
    return made


class Slow(CorpusReader):
    folder = Path()

    def attend(self, batch: Sequence[Ready], take: Take) -> None:
        (self.folder / f"pid-{os.getpid()}").touch()
        time.sleep(0.1)
        super().attend(batch, take)
        (self.folder / f"done-{os.getpid()}").touch()


@pytest.mark.usefixtures("ray_of_two")
@pytest.mark.filterwarnings("ignore")
def test_a_worker_that_is_killed_loses_and_doubles_nothing(
    source: CorpusReader, here: Path
) -> None:
    import sys

    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    folder = here.resolve()
    corpus = corpus_of(folder / "a.jsonl", 1000)
    whole = measure_corpus(source, shards(corpus.documents()), OPTIONS)
    killed: list[int] = []

    def kill_one() -> None:
        """Kill the first worker that has done something and is at its next batch."""
        while not killed:
            for mark in folder.glob("done-*"):
                pid = int(mark.name.split("-")[1])
                time.sleep(0.05)
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
                break
            time.sleep(0.005)

    killer = threading.Thread(target=kill_one, daemon=True)
    killer.start()
    found = measure_on_ray(partial(slow_opening, folder), corpus, OPTIONS, workers=2)
    killer.join(timeout=60)
    assert len(killed) == 1
    workers = {mark.name for mark in folder.glob("pid-*")}
    assert len(workers) == 3  # the two, and the one that took the place of the killed
    assert_same(found, whole)


@pytest.mark.filterwarnings("ignore")
def test_an_address_where_no_ray_is(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def nobody(**_: object) -> None:
        raise ConnectionError("nobody\nthere")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", nobody)
    for address, told in (
        ("auto", "--address auto: no Ray answers: nobody\\nthere; without --address one is begun"),
        (None, "Ray does not begin here: nobody\\nthere"),
    ):
        with pytest.raises(ConfigError) as error:
            cluster._begin(address, 2)
        assert str(error.value) == told


@pytest.mark.filterwarnings("ignore")
def test_a_port_where_nobody_listens_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and not listened at
        port = taken.getsockname()[1]
        for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
            before = signal.getsignal(signal.SIGTERM)
            refused = pytest.raises(ConfigError, match="no Ray answers: Connection refused")
            with refused, ray_at(address):
                pass
            assert signal.getsignal(signal.SIGTERM) is before


def test_documents_survive_the_way_to_a_worker() -> None:
    found = (
        Document(3, "a", "text 猫"),
        Bad(4, "b", "is bad"),
        Document(5, "c", ("x", "y"), ((0, 1, "det"),)),
    )
    shard = Shard(7, found, 99)
    assert shard_from_json(shard_as_json(shard), 7, 99) == shard


def test_the_crew_is_as_large_as_torch_has_threads(
    source: CorpusReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    plain = shards_module.ThreadPoolExecutor

    def pool(n: int) -> Any:
        sizes.append(n)
        return plain(n)

    monkeypatch.setattr(shards_module, "ThreadPoolExecutor", pool)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    measured(source, [[source.ready(Document(0, "", "w1 w2"))]], OPTIONS)
    assert sizes == [3]


@pytest.mark.filterwarnings("ignore")
def test_what_runs_in_the_processes_of_ray(source: CorpusReader, here: Path) -> None:
    """The reading task, the worker and the merging task, called as Ray calls them."""
    from attnviz.corpus.ray_shards import ShardSource

    corpus = corpus_of(here / "a.jsonl", 600, bad=(300,))
    whole = measure_corpus(source, shards(corpus.documents()), OPTIONS)
    first = measure_corpus(source, list(shards(corpus.documents()))[:1], OPTIONS)
    (task,) = ShardSource(corpus, frozenset({0})).get_read_tasks(1)
    tables = [table.to_pydict() for table in task()]
    assert [table["shard"] for table in tables] == [[1], [2]]
    threads = torch.get_num_threads()
    try:
        worker = ShardWorker(OPENING, OPTIONS)
        rows = [
            worker({name: np.array(column, dtype=object) for name, column in table.items()})
            for table in tables
        ]
    finally:
        torch.set_num_threads(threads)
    batch = {
        name: np.array([row[name][0] for row in rows], dtype=object) for name in ("part", "facts")
    }
    merged = merge_rows(batch, OPTIONS)
    row = {name: column[0] for name, column in merged.items()}
    part, numbers, position = _unpacked(row, OPTIONS)
    assert (numbers, position) == ([1, 2], corpus.n_bytes)
    assert_same(first.merge(part), whole)
    failed = ShardWorker(partial(failing_opening, "no"), OPTIONS)(
        {name: np.array(column, dtype=object) for name, column in tables[0].items()}
    )
    torch.set_num_threads(threads)
    both = {name: [row[name][0] for row in (rows[0], failed)] for name in failed}
    merged = merge_rows({n: np.array(c, dtype=object) for n, c in both.items()}, OPTIONS)
    with pytest.raises(InputError, match=r"^no$"):
        _unpacked({name: column[0] for name, column in merged.items()}, OPTIONS)
