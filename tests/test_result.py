"""A saved run comes back as it was, in every form; what is no saved run gives one line."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from attnviz import __version__, masks
from attnviz.config import AttentionConfig
from attnviz.errors import InputError, printable
from attnviz.result import (
    KEEPABLE,
    Attention,
    batches_of,
    load,
    only_layers,
    save_json,
    save_npz,
    save_safetensors,
)
from attnviz.sources.from_config import from_config
from attnviz.tokens import make_batch

SAVERS: dict[str, Callable[[Attention, Path], None]] = {
    ".npz": save_npz,
    ".safetensors": save_safetensors,
    ".json": save_json,
}
SUFFIXES = pytest.mark.parametrize("suffix", SAVERS)

HOSTILE = ("$\\frac", "</script>", "\x1b[31m", "\u202e", "猫", "👩\u200d👧", "a\nb", '"', "\0")


def run(dtype: str = "float32", cross: bool = False, keep: tuple[str, ...] = ()) -> Attention:
    """Two sequences, padded on the left, with hostile tokens."""
    queries, keys = [HOSTILE[:5], HOSTILE[2:4]], [HOSTILE, ("x",)]
    known = ("[PAD]", "[SEP]", "x", *HOSTILE)
    a = make_batch(queries, known, pad_side="left")
    b = make_batch(keys, known, pad_side="left") if cross else a
    config = AttentionConfig(17, 3, 11, 13, dtype=dtype)
    rules = [masks.padding(b), masks.causal(a, b)]
    return from_config(config, a, b if cross else None, rules, keep).result


def uniform(**changes: Any) -> Attention:
    """A small result by hand, `[L=1 B=2 H=3 Tq=2 Tk=4]`."""
    fields: dict[str, Any] = {
        "attention": np.full((1, 2, 3, 2, 4), 0.25, dtype=np.float32),
        "allowed": np.ones((1, 2, 1, 2, 4), dtype=bool),
        "query_tokens": (("a", "b"),) * 2,
        "key_tokens": (("w", "x", "y", "z"),) * 2,
        "lengths": np.array([2, 1]),
        "key_lengths": np.array([4, 3]),
    }
    return Attention(**{**fields, **changes})


def assert_same(back: Attention, result: Attention) -> None:
    assert back.metadata() == result.metadata()
    assert back.arrays().keys() == result.arrays().keys()
    for name, array in result.arrays().items():
        got = back.arrays()[name]
        assert got.dtype == array.dtype, name
        np.testing.assert_array_equal(got, array, err_msg=name)


@SUFFIXES
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_round_trip(here: Path, suffix: str, cross: bool, dtype: str) -> None:
    result = run(dtype, cross, KEEPABLE)
    assert sorted(result.kept) == sorted(KEEPABLE)
    SAVERS[suffix](result, here / f"run{suffix}")
    assert_same(load(here / f"run{suffix}"), result)


@SUFFIXES
def test_what_was_done_and_what_was_written_is_saved(here: Path, suffix: str) -> None:
    result = uniform(n_prompt=(2, 0), notes=("pieces merged into words", "猫"))
    SAVERS[suffix](result, here / f"run{suffix}")
    back = load(here / f"run{suffix}")
    assert (back.n_prompt, back.notes) == (result.n_prompt, result.notes)
    assert not {"n_prompt", "notes"} & uniform().metadata().keys()


@SUFFIXES
def test_the_same_run_gives_the_same_bytes(here: Path, suffix: str) -> None:
    first, second = here / f"a{suffix}", here / f"b{suffix}"
    SAVERS[suffix](run(keep=KEEPABLE), first)
    SAVERS[suffix](run(keep=KEEPABLE), second)
    assert first.read_bytes() == second.read_bytes()


def test_the_documented_layout(here: Path) -> None:
    result = run(keep=KEEPABLE, cross=True)
    save_npz(result, here / "run.npz")
    save_safetensors(result, here / "run.safetensors")
    save_json(result, here / "run.json")
    shapes = {
        "attention": (1, 2, 3, 5, 9),
        "allowed": (1, 2, 1, 5, 9),
        "lengths": (2,),
        "key_lengths": (2,),
        "q": (1, 2, 3, 5, 11),
        "k": (1, 2, 3, 9, 11),
        "v": (1, 2, 3, 9, 13),
        "scores": (1, 2, 3, 5, 9),
        "context": (1, 2, 3, 5, 13),
        "output": (1, 2, 5, 17),
    }
    with np.load(here / "run.npz", allow_pickle=False) as archive:
        assert {name: archive[name].shape for name in archive.files if name != "metadata"} == shapes
        metadata = json.loads(str(archive["metadata"]))
    assert metadata == {
        "format": "attnviz.run",
        "version": 1,
        "attnviz": __version__,
        "source": "a layer from flags, untrained, seed 0",
        "trained": False,
        "config": AttentionConfig(17, 3, 11, 13).as_dict(),
        "masks": ["padding", "causal"],
        "pad_side": "left",
        "query_tokens": [list(HOSTILE[:5]), ["[PAD]"] * 3 + list(HOSTILE[2:4])],
        "key_tokens": [list(HOSTILE), ["[PAD]"] * 8 + ["x"]],
    }
    assert {k: v.shape for k, v in load_file(here / "run.safetensors").items()} == shapes
    text = (here / "run.json").read_text(encoding="ascii")
    assert text.count("\n") == 1
    document = json.loads(text)
    assert {name: np.array(document[name]).shape for name in shapes} == shapes
    assert {name: document[name] for name in metadata} == metadata
    assert document["allowed"][0][0][0][0] == [True] + [False] * 8


@given(st.lists(st.floats(width=32), min_size=4, max_size=4), st.sampled_from([16, 32, 64]))
def test_json_gives_every_finite_float_back(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[float], width: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "floats.json"
    with np.errstate(over="ignore"):
        row = np.array(numbers).astype(f"float{width}")
    attention = np.broadcast_to(row, (1, 2, 3, 2, 4)).copy()
    save_json(uniform(attention=attention, config={"dtype": f"float{width}"}), path)
    expected = np.where(np.isfinite(attention), attention, np.nan)
    np.testing.assert_array_equal(load(path).attention, expected)
    json.loads(path.read_text(), parse_constant=pytest.fail)  # no NaN, no Infinity


@SUFFIXES
def test_a_nan_comes_back(here: Path, suffix: str) -> None:
    attention = uniform().attention.copy()
    attention[0, 1, 2, 0, 3] = np.nan
    path = here / f"run{suffix}"
    SAVERS[suffix](uniform(attention=attention), path)
    np.testing.assert_array_equal(load(path).attention, attention)
    if suffix == ".json":
        assert path.read_text().count("null") == 1


def test_positions_and_what_is_valid() -> None:
    right, left = uniform(), uniform(pad_side="left")
    assert right.query_positions.tolist() == [[0, 1], [0, 1]]
    assert left.query_positions.tolist() == [[0, 1], [-1, 0]]
    assert right.query_valid.tolist() == [[True, True], [True, False]]
    assert left.query_valid.tolist() == [[True, True], [False, True]]
    assert left.key_valid.tolist() == [[True] * 4, [False, True, True, True]]
    assert right.key_positions.tolist() == [[0, 1, 2, 3]] * 2
    assert (right.n_layers, right.batch_size, right.n_heads) == (1, 2, 3)
    assert right.is_cross
    assert not run().is_cross


ALL = "[L=1 B=2 H=3 Tq=2 Tk=4]"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"attention": np.ones((3, 2, 4))},
            "attention has shape [3, 2, 4]; [L B H Tq Tk] is expected, none of them 0",
        ),
        (
            {"attention": np.ones((1, 2, 0, 2, 4))},
            "attention has shape [1, 2, 0, 2, 4]; [L B H Tq Tk] is expected, none of them 0",
        ),
        (
            {"attention": np.ones((1, 2, 3, 2, 4), dtype=int)},
            "attention is int64; known are float16, float32, float64",
        ),
        ({"pad_side": "\x1b"}, "pad_side is '\\x1b'; right or left is expected"),
        (
            {"allowed": np.ones((1, 2, 2, 2, 4), dtype=bool)},
            f"allowed does not fit attention {ALL}",
        ),
        ({"allowed": np.ones((1, 2, 1, 2, 4))}, f"allowed does not fit attention {ALL}"),
        ({"query_tokens": (("a", "b"),)}, f"query_tokens does not fit attention {ALL}"),
        ({"key_tokens": (("a",),) * 2}, f"key_tokens does not fit attention {ALL}"),
        ({"lengths": np.array([2, 3])}, f"lengths does not fit attention {ALL}"),
        ({"lengths": np.array([2.0, 1.0])}, f"lengths does not fit attention {ALL}"),
        ({"key_lengths": np.array([-1, 0])}, f"key_lengths does not fit attention {ALL}"),
        ({"key_lengths": np.array([[4, 4]])}, f"key_lengths does not fit attention {ALL}"),
        ({"kept": {"q": np.ones((1, 2, 3, 4, 5))}}, f"q does not fit attention {ALL}"),
        ({"kept": {"scores": np.ones((1, 2, 3, 2))}}, f"scores does not fit attention {ALL}"),
        ({"kept": {"ids": np.ones((2, 2))}}, f"ids does not fit attention {ALL}"),
    ],
)
def test_parts_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        uniform(**changes)
    assert str(caught.value) == message


def test_a_large_run_is_mapped_and_outlives_its_file(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is written over the file it came from keeps its numbers meanwhile."""
    monkeypatch.setattr("attnviz.npy.MAPPED_FROM", 1)
    monkeypatch.setattr("attnviz.result.MAPPED_FROM", 1)
    first = run(keep=KEEPABLE)
    for suffix in (".npz", ".safetensors"):
        path, link = here / f"run{suffix}", here / f"link{suffix}"
        SAVERS[suffix](first, path)
        link.symlink_to(path)
        before = path.read_bytes()
        mapped = load(path)
        assert not mapped.attention.flags.writeable
        assert_same(mapped, first)
        SAVERS[suffix](mapped, link)
        assert path.read_bytes() == before
        assert link.is_symlink()
        assert_same(mapped, first)


def test_a_broadcast_mask_is_saved_as_one_that_is_written_out(here: Path) -> None:
    written = uniform()
    broadcast = uniform(allowed=np.broadcast_to(np.True_, (1, 2, 1, 2, 4)))
    for suffix, save in SAVERS.items():
        save(written, here / f"a{suffix}")
        save(broadcast, here / f"b{suffix}")
        assert (here / f"a{suffix}").read_bytes() == (here / f"b{suffix}").read_bytes()


def test_some_layers_keep_their_numbers() -> None:
    layers = np.random.default_rng(0).random((5, 2, 3, 2, 4))
    q = np.arange(5 * 2 * 3 * 2 * 7.0).reshape(5, 2, 3, 2, 7)
    allowed = np.broadcast_to(np.arange(5)[:, None, None, None, None] > 1, (5, 2, 1, 2, 4))
    every = uniform(attention=layers, allowed=allowed, kept={"q": q})
    assert (every.layer_numbers, every.names_layers) == ((0, 1, 2, 3, 4), True)
    for places in ([3], [1, 2, 3], [4, 0], [0, 2]):
        some = only_layers(every, places)
        assert some.layer_numbers == tuple(places)
        assert some.names_layers
        np.testing.assert_array_equal(some.attention, layers[places])
        np.testing.assert_array_equal(some.allowed, allowed[places])
        np.testing.assert_array_equal(some.kept["q"], q[places])
    assert only_layers(only_layers(every, [1, 2, 3]), [2, 0]).layers == (3, 1)
    assert only_layers(every, [1, 2]).attention.base is layers
    assert not uniform().names_layers


def test_batches_are_those_that_made_the_run() -> None:
    for cross in (False, True):
        result = run(cross=cross)
        queries, keys = batches_of(result)
        assert (keys is queries) is not cross
        assert queries.tokens == (HOSTILE[:5], HOSTILE[2:4])
        assert keys.tokens == ((HOSTILE, ("x",)) if cross else queries.tokens)
        assert queries.padded_tokens == result.query_tokens
        assert keys.padded_tokens == result.key_tokens
        assert (queries.pad_side, keys.pad_side) == ("left", "left")


# ── files that are no saved run ──────────────────────────────────────────────────────────────


def fails(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        load(path)
    message = str(caught.value)
    assert message.isprintable()
    shown = printable(path)  # the middle of a long path is cut
    assert message.startswith(shown)
    return message.removeprefix(shown)


def test_paths_that_are_no_file(here: Path) -> None:
    assert fails(here / "run.pt") == (
        " has the suffix '.pt'; a saved run has one of .npz, .safetensors, .json"
    )
    for suffix in SAVERS:
        assert fails(here / f"none{suffix}").startswith(": no such file or directory")
        (here / f"folder{suffix}").mkdir()
        assert fails(here / f"folder{suffix}") == ": is a folder"


@SUFFIXES
def test_every_truncation_and_other_noise_is_one_line(here: Path, suffix: str) -> None:
    whole = here / f"whole{suffix}"
    SAVERS[suffix](uniform(), whole)
    data = whole.read_bytes()
    part = here / f"part{suffix}"
    for end in (0, 1, 7, len(data) // 3, len(data) // 2, len(data) - 2):
        part.write_bytes(data[:end])
        fails(part)
    for noise in (b"\0" * 200, b"\xff" * 200, pickle.dumps({"attention": [1]}), b"[" * 10**5):
        part.write_bytes(noise)
        fails(part)


def as_json(here: Path, **changes: Any) -> Path:
    """A saved run with some entries of its JSON replaced; ... removes one."""
    path = here / "run.json"
    save_json(uniform(), path)
    document = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in document.items() if v is not ...}))
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "x"}, " is not a saved run: its metadata has no format 'attnviz.run'"),
        ({"format": ...}, " is not a saved run: its metadata has no format 'attnviz.run'"),
        ({"version": 2}, " has version 2; this attnviz reads 1"),
        ({"version": "\x1b"}, " has version \\x1b; this attnviz reads 1"),
        ({"masks": ...}, " is not a saved run: its metadata has no proper masks"),
        ({"config": []}, " is not a saved run: its metadata has no proper config"),
        ({"trained": 1}, " is not a saved run: its metadata has no proper trained"),
        ({"masks": [1]}, " is not a saved run: its masks are not lists of strings"),
        ({"notes": [1]}, " is not a saved run: its notes are not lists of strings"),
        ({"n_prompt": "12"}, " is not a saved run: its n_prompt are no list of numbers"),
        ({"n_prompt": [1, 0.5]}, " is not a saved run: its n_prompt are no list of numbers"),
        ({"n_prompt": [1, -1]}, ": n_prompt does not fit attention [L=1 B=2 H=3 Tq=2 Tk=4]"),
        ({"n_prompt": [1, 2]}, ": n_prompt does not fit attention [L=1 B=2 H=3 Tq=2 Tk=4]"),
        ({"n_prompt": [1]}, ": n_prompt does not fit attention [L=1 B=2 H=3 Tq=2 Tk=4]"),
        (
            {"query_tokens": ["ab"]},
            " is not a saved run: its query_tokens are not lists of strings",
        ),
        (
            {"key_tokens": [["\ud800", "b", "c", "d"]] * 2},
            " is not a saved run: its key_tokens hold lone surrogates",
        ),
        ({"attention": ...}, " is not a saved run: it has no array attention"),
        ({"key_lengths": ...}, " is not a saved run: it has no array key_lengths"),
        ({"pad_side": "top"}, ": pad_side is 'top'; right or left is expected"),
        ({"lengths": [2, 10**30]}, f": lengths does not fit attention {ALL}"),
        ({"allowed": [[[["false"]]]]}, f": allowed does not fit attention {ALL}"),
        ({"q": [1]}, f": q does not fit attention {ALL}"),
        (
            {"attention": [[1], [2, 3]]},
            " is not a saved run: its array attention is no even list of numbers",
        ),
        ({"k": {"a": 1}}, " is not a saved run: its array k is no even list of numbers"),
        (
            {"lengths": [[1], 2]},
            " is not a saved run: its array lengths is no even list of numbers",
        ),
    ],
)
def test_json_that_is_no_saved_run(here: Path, changes: dict[str, Any], message: str) -> None:
    assert fails(as_json(here, **changes)) == message


def test_json_of_another_kind(here: Path) -> None:
    path = here / "run.json"
    path.write_text("[1, 2]")
    assert fails(path) == " is not a saved run: its metadata has no format 'attnviz.run'"
    # a dtype is a name to look up, never one to build
    assert load(as_json(here, config={"dtype": "O"})).attention.dtype == np.float32


def test_npz_that_is_no_saved_run(here: Path) -> None:
    path = here / "run.npz"
    arrays = {**uniform().arrays(), "metadata": np.array(json.dumps(uniform().metadata()))}

    def save(**changes: Any) -> str:
        everything = {k: v for k, v in {**arrays, **changes}.items() if v is not None}
        np.savez(path, **everything)
        return fails(path)

    assert save(metadata=None) == " is not a saved run: it has no metadata"
    assert save(metadata=np.array(3)) == " is not a saved run: it has no metadata"
    assert save(metadata=np.array("{")).startswith(" is not a saved run: Expecting property name")
    assert save(extra=np.ones(2)) == " has an array 'extra' that no saved run has"
    assert save(attention=np.array([None])) == (
        " holds pickled Python objects, which are never loaded; save numbers"
    )
    assert save(lengths=np.array(["a", "b"])) == f": lengths does not fit attention {ALL}"
    big_endian = {
        name: array.astype(array.dtype.newbyteorder(">")) for name, array in arrays.items()
    }
    np.savez(path, **big_endian)
    assert_same(load(path), uniform())


def test_safetensors_that_are_no_saved_run(here: Path) -> None:
    path = here / "run.safetensors"
    save_file(uniform().arrays(), path)
    assert fails(path) == " is not a saved run: it has no metadata"
    save_file(uniform().arrays(), path, metadata={"attnviz": "[]"})
    assert fails(path) == " is not a saved run: its metadata has no format 'attnviz.run'"


@SUFFIXES
def test_a_file_that_does_not_fit_in_memory_is_refused(
    here: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = here / f"run{suffix}"
    SAVERS[suffix](uniform(), path)
    monkeypatch.setattr("attnviz.machine.free_memory", lambda: 10)
    assert " of memory and 10 B are free; " in fails(path)


def test_a_safetensors_file_that_cannot_be_made_in_memory(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnviz.machine.free_memory", lambda: 10)
    with pytest.raises(InputError) as caught:
        save_safetensors(uniform(), here / "run.safetensors")
    assert str(caught.value) == (
        "a .safetensors file of 240 B needs 720 B of memory and 10 B are free; "
        "save the run as .npz, which is written in parts"
    )
    save_npz(uniform(), here / "run.npz")


def test_a_copy_under_another_name_still_loads(here: Path) -> None:
    save_npz(uniform(), here / "run.npz")
    shutil.copy(here / "run.npz", here / "日本 $x.NPZ")
    assert_same(load(here / "日本 $x.NPZ"), uniform())
