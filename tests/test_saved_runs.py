"""A saved run comes back as it was, in every format; what is no saved run gives one line."""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pooled_runs import made
from runs_by_hand import HOSTILE, run, uniform
from safetensors.numpy import load_file, save_file

from attnviz import __version__
from attnviz.config import AttentionConfig
from attnviz.errors import InputError, printable
from attnviz.full_resolution import part_at_full_resolution
from attnviz.result import KEEPABLE, Attention
from attnviz.saved_runs import WRITERS, arrays_of, load, metadata_of, save

DATA = Path(__file__).parent / "data" / "saved"

ALL = "[L=1 B=2 H=3 Tq=2 Tk=4]"

SUFFIXES = pytest.mark.parametrize("suffix", WRITERS)


def assert_same(back: Attention, result: Attention) -> None:
    assert metadata_of(back) == metadata_of(result)
    assert arrays_of(back).keys() == arrays_of(result).keys()
    for name, array in arrays_of(result).items():
        got = arrays_of(back)[name]
        assert got.dtype == array.dtype, name
        np.testing.assert_array_equal(got, array, err_msg=name)


@SUFFIXES
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_round_trip(here: Path, suffix: str, cross: bool, dtype: str) -> None:
    result = run(dtype, cross, KEEPABLE)
    assert sorted(result.kept) == sorted(KEEPABLE)
    save(result, here / f"run{suffix}")
    assert_same(load(here / f"run{suffix}"), result)


@SUFFIXES
def test_what_was_done_and_what_was_written_is_saved(here: Path, suffix: str) -> None:
    result = uniform(n_prompt=(2, 0), notes=("pieces merged into words", "猫"))
    save(result, here / f"run{suffix}")
    back = load(here / f"run{suffix}")
    assert (back.n_prompt, back.notes) == (result.n_prompt, result.notes)
    assert not {"n_prompt", "notes"} & metadata_of(uniform()).keys()


@SUFFIXES
def test_the_same_run_gives_the_same_bytes(here: Path, suffix: str) -> None:
    first, second = here / f"a{suffix}", here / f"b{suffix}"
    save(run(keep=KEEPABLE), first)
    save(run(keep=KEEPABLE), second)
    assert first.read_bytes() == second.read_bytes()


def test_the_documented_layout(here: Path) -> None:
    result = run(keep=KEEPABLE, cross=True)
    save(result, here / "run.npz")
    save(result, here / "run.safetensors")
    save(result, here / "run.json")
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
        "version": 2,
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
    save(uniform(attention=attention, config={"dtype": f"float{width}"}), path)
    expected = np.where(np.isfinite(attention), attention, np.nan)
    np.testing.assert_array_equal(load(path).attention, expected)
    json.loads(path.read_text(), parse_constant=pytest.fail)  # no NaN, no Infinity


@SUFFIXES
def test_a_nan_comes_back(here: Path, suffix: str) -> None:
    attention = uniform().attention.copy()
    attention[0, 1, 2, 0, 3] = np.nan
    path = here / f"run{suffix}"
    save(uniform(attention=attention), path)
    np.testing.assert_array_equal(load(path).attention, attention)
    if suffix == ".json":
        assert path.read_text().count("null") == 1


def test_a_large_run_is_mapped_and_outlives_its_file(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is written over the file it came from keeps its numbers meanwhile."""
    monkeypatch.setattr("attnviz.npy.MAPPED_FROM", 1)
    monkeypatch.setattr("attnviz.saved_runs.MAPPED_FROM", 1)
    first = run(keep=KEEPABLE)
    for suffix in (".npz", ".safetensors"):
        path, link = here / f"run{suffix}", here / f"link{suffix}"
        save(first, path)
        link.symlink_to(path)
        before = path.read_bytes()
        mapped = load(path)
        assert not mapped.attention.flags.writeable
        assert_same(mapped, first)
        save(mapped, link)
        assert path.read_bytes() == before
        assert link.is_symlink()
        assert_same(mapped, first)


def test_a_broadcast_mask_is_saved_as_one_that_is_written_out(here: Path) -> None:
    written = uniform()
    broadcast = uniform(allowed=np.broadcast_to(np.True_, (1, 2, 1, 2, 4)))
    for suffix in WRITERS:
        save(written, here / f"a{suffix}")
        save(broadcast, here / f"b{suffix}")
        assert (here / f"a{suffix}").read_bytes() == (here / f"b{suffix}").read_bytes()


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
    for suffix in WRITERS:
        assert fails(here / f"none{suffix}").startswith(": no such file or directory")
        (here / f"folder{suffix}").mkdir()
        assert fails(here / f"folder{suffix}") == ": is a folder"


@SUFFIXES
def test_every_truncation_and_other_noise_is_one_line(here: Path, suffix: str) -> None:
    whole = here / f"whole{suffix}"
    save(uniform(), whole)
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
    save(uniform(), path)
    document = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in document.items() if v is not ...}))
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "x"}, " is not a saved run: its metadata has no format 'attnviz.run'"),
        ({"format": ...}, " is not a saved run: its metadata has no format 'attnviz.run'"),
        ({"version": 3}, " has version 3; this attnviz reads 1 and 2"),
        ({"version": True}, " has version True; this attnviz reads 1 and 2"),
        ({"version": "\x1b"}, " has version \\x1b; this attnviz reads 1 and 2"),
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
    arrays = {**arrays_of(uniform()), "metadata": np.array(json.dumps(metadata_of(uniform())))}

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
    save_file(arrays_of(uniform()), path)
    assert fails(path) == " is not a saved run: it has no metadata"
    save_file(arrays_of(uniform()), path, metadata={"attnviz": "[]"})
    assert fails(path) == " is not a saved run: its metadata has no format 'attnviz.run'"


@SUFFIXES
def test_a_file_that_does_not_fit_in_memory_is_refused(
    here: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = here / f"run{suffix}"
    save(uniform(), path)
    monkeypatch.setattr("attnviz.machine.free_memory", lambda: 10)
    assert " of memory and 10 B are free; " in fails(path)


def test_a_safetensors_file_that_cannot_be_made_in_memory(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnviz.machine.free_memory", lambda: 10)
    with pytest.raises(InputError) as caught:
        save(uniform(), here / "run.safetensors")
    assert str(caught.value) == (
        "a .safetensors file of 240 B needs 720 B of memory and 10 B are free; "
        "save the run as .npz, which is written in parts"
    )
    save(uniform(), here / "run.npz")


def test_a_copy_under_another_name_still_loads(here: Path) -> None:
    save(uniform(), here / "run.npz")
    shutil.copy(here / "run.npz", here / "日本 $x.NPZ")
    assert_same(load(here / "日本 $x.NPZ"), uniform())


# ── pixels ───────────────────────────────────────────────────────────────────────────────────


def pooled(keep: bool = True, **more: Any) -> Attention:
    """Pixels of 4 × 4 weights of two texts, padded on the left."""
    texts = [HOSTILE, HOSTILE[:5]]
    return made(
        texts, layers=2, heads=3, pixels=3, pad_side="left", keep=keep, more=more, top=2
    ).run


@SUFFIXES
@pytest.mark.parametrize("keep", [True, False])
def test_pixels_come_back(here: Path, suffix: str, keep: bool) -> None:
    result = pooled(keep, slopes=torch.rand(3).double(), sinks=torch.rand(3), softcap=5.0)
    assert (result.cells, bool(result.kept)) == ((3, 3), keep)
    path, again = here / f"run{suffix}", here / f"again{suffix}"
    save(result, path)
    save(result, again)
    assert path.read_bytes() == again.read_bytes()
    back = load(path)
    assert_same(back, result)
    assert (back.cells, back.allowed.tolist()) == (result.cells, result.allowed.tolist())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention": ...}, "is not a saved run: it has no array attention"),
        ({"largest": ...}, "is not a saved run: it has no array largest"),
        ({"row.entropy": ...}, "is not a saved run: it has no array row.entropy"),
        ({"extra": np.zeros(3)}, "has an array 'extra' that no saved run has"),
        ({"near": "many"}, "is not a saved run: its near are no list of numbers"),
        ({"cells": [1.5, 2]}, "is not a saved run: its cells are no list of numbers"),
        ({"cells": [3]}, "is not a saved run: its cells are not two numbers"),
        (
            {"allowed": np.ones((2, 2, 1, 3, 3), bool)},
            "is not a saved run: its pixels do not count what is allowed",
        ),
        (
            {"format": "attnviz.pooled", "version": 2},
            "has version 2; this attnviz reads 1",
        ),
        (
            {"format": "attnviz.pooled", "version": 1, "scale": ["x"], "softcap": [None]},
            "is not a saved run: its metadata has no proper scale",
        ),
    ],
)
def test_pixels_that_are_not_right(here: Path, changes: dict[str, Any], message: str) -> None:
    arrays, metadata = arrays_of(pooled()), metadata_of(pooled())
    for name, value in changes.items():
        is_array = isinstance(value, np.ndarray) or value is ...
        target: dict[str, Any] = arrays if is_array else metadata
        target[name] = value
    path = here / "run.safetensors"
    save_file(
        {name: value for name, value in arrays.items() if value is not ...},
        path,
        metadata={"attnviz": json.dumps(metadata)},
    )
    assert fails(path).removeprefix(":").strip() == message


# ── version 1 ────────────────────────────────────────────────────────────────────────────────


def test_whole_runs_of_version_1() -> None:
    first, *others = (load(DATA / f"v1-whole{suffix}") for suffix in WRITERS)
    for other in others:
        assert_same(other, first)
    with np.load(DATA / "v1-whole.npz") as archive:
        for name in ("attention", "allowed", "lengths"):
            np.testing.assert_array_equal(getattr(first, name), archive[name])
        for name in ("q", "k", "output"):
            np.testing.assert_array_equal(first.kept[name], archive[name])
    assert first.query_tokens[1] == ("[PAD]", "[PAD]", "猫", "坐", "b")
    assert (first.masks, first.trained, first.is_pooled) == (("padding", "causal"), False, False)


@pytest.mark.parametrize("name", ["v1-pooled.npz", "v1-pooled.safetensors", "v1-pooled-alibi.npz"])
def test_pooled_runs_of_version_1(name: str) -> None:
    run = load(DATA / name)
    assert (run.cells, run.attention.shape, run.counts.dtype) == ((2, 2), (1, 2, 3, 3, 3), int)
    if name.endswith(".npz"):
        with np.load(DATA / name) as archive:
            np.testing.assert_array_equal(run.mean, archive["mean"])
            np.testing.assert_array_equal(run.largest, archive["largest"])
            np.testing.assert_array_equal(run.counts, archive["allowed"])
            np.testing.assert_array_equal(run.kept["q"], archive["kept.q"])
    assert run.rows is not None
    assert run.rows.near == 64
    # what was kept still computes the weights, whose largest is that of the pixels
    part = part_at_full_resolution(run, range(2, 5), range(2, 5), 1, [(0, h) for h in range(3)])
    np.testing.assert_allclose(part.attention.sum(-1), 1, rtol=1e-6)
    corner = part.attention[0, 0, :, 2, 2]
    np.testing.assert_allclose(corner, run.mean[0, 1, :, 2, 2], rtol=1e-5)


def test_a_pooled_run_of_version_1_without_its_queries() -> None:
    run = load(DATA / "v1-pooled-alone.npz")
    assert not run.kept
    assert run.is_pooled
    kept = load(DATA / "v1-pooled.npz")
    assert_same(replace(kept, kept={}), run)
