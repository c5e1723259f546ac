"""Who may look at whom: the rules, their files, and what does not fit."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from one_pass import from_config

from attnviz import masks
from attnviz.attention import scaled_dot_product_attention
from attnviz.config import AttentionConfig
from attnviz.errors import ConfigError, InputError
from attnviz.mask_files import read_mask
from attnviz.masks import Rule, build, from_array
from attnviz.saved_runs import load
from attnviz.tokens import SEP, Batch, after_cache, make_batch


def text(*lengths: int, side: str = "right", width: int | None = None) -> Batch:
    """Sequences of these lengths: t0 t1 …"""
    tokens = [tuple(f"t{i}" for i in range(n)) for n in lengths]
    return make_batch(tokens, pad_to=width, pad_side=side)


def rows(rules: list[Rule], queries: Batch, keys: Batch | None = None, heads: int = 1) -> list[str]:
    """The mask of the last sequence's last head, a string a row: `x` may look, `.` may not."""
    keys = queries if keys is None else keys
    allowed = build(rules, queries.size, heads, queries.width, keys.width)
    assert allowed is not None
    return ["".join("x" if cell else "." for cell in row) for row in allowed[-1, -1].tolist()]


# ── rules ────────────────────────────────────────────────────────────────────────────────────


def test_no_rule_is_no_mask() -> None:
    assert build([], 2, 3, 5, 7) is None


def test_padding_right_and_left() -> None:
    right, left = text(3, 2), text(3, 2, side="left")
    assert rows([masks.rule("padding", right, right)], right) == ["xx.", "xx.", "xx."]
    assert rows([masks.rule("padding", left, left)], left) == [".xx", ".xx", ".xx"]
    assert masks.rule("padding", right, right).name == "padding"


def test_causal_self_and_cross() -> None:
    four = text(4)
    assert rows([masks.rule("causal", four, four)], four) == ["x...", "xx..", "xxx.", "xxxx"]
    two, three = text(2), text(3)
    assert rows([masks.rule("causal", two, three)], two, three) == ["x..", "xx."]
    assert rows([masks.rule("causal", three, two)], three, two) == ["x.", "xx", "xx"]


def test_window_of_three_on_six_tokens() -> None:
    six = text(6)
    shown = rows([masks.rule("window", six, six, 3)], six)
    assert shown == ["x.....", "xx....", "xxx...", ".xxx..", "..xxx.", "...xxx"]
    assert [row.count("x") for row in shown] == [1, 2, 3, 3, 3, 3]
    assert masks.rule("window", six, six, 3).name == "window 3"


def test_window_of_one_and_of_more_than_there_is() -> None:
    three = text(3)
    assert rows([masks.rule("window", three, three, 1)], three) == ["x..", ".x.", "..x"]
    assert rows([masks.rule("window", three, three, 10**12)], three) == ["x..", "xx.", "xxx"]


def test_window_two_with_two_of_four_padded_leaves_a_row_blind() -> None:
    four = text(2, width=4)
    rules = [masks.rule("padding", four, four), masks.rule("window", four, four, 2)]
    assert rows(rules, four) == ["x...", "xx..", ".x..", "...."]


def test_prefix() -> None:
    four = text(4)
    assert rows([masks.rule("prefix", four, four, 2)], four) == ["xx..", "xx..", "xxx.", "xxxx"]
    assert rows([masks.rule("prefix", four, four, 9)], four) == ["xxxx"] * 4
    assert masks.rule("prefix", four, four, 2).name == "prefix 2"


def test_segments_and_each_sep_closes_its_own() -> None:
    tokens = make_batch([("a", SEP, "b", "c", SEP, "d")])
    assert rows([masks.rule("segments", tokens, tokens)], tokens) == [
        *["xx...."] * 2,
        *["..xxx."] * 3,
        ".....x",
    ]


def test_segments_across_two_texts_pair_first_with_first() -> None:
    vocabulary = ("[PAD]", SEP, "a", "b", "c")
    queries = make_batch([("a", SEP, "b")], vocabulary)
    keys = make_batch([("c", "c", SEP, "a", "a")], vocabulary)
    assert rows([masks.rule("segments", queries, keys)], queries, keys) == [
        "xxx..",
        "xxx..",
        "...xx",
    ]


@pytest.mark.parametrize("name", ["window", "prefix"])
@pytest.mark.parametrize("n", [0, -1, 10**13])
def test_sizes_that_cannot_be(name: str, n: int) -> None:
    three = text(3)
    limit = f"the largest size is {10**12}" if n > 0 else "it must be at least 1"
    with pytest.raises(ConfigError) as caught:
        masks.rule(name, three, three, n)
    assert str(caught.value) == f"--{name} is {n}; {limit}"


@st.composite
def rule_lists(draw: st.DrawFn) -> tuple[Batch, list[Rule]]:
    lengths = draw(st.lists(st.integers(0, 5), min_size=1, max_size=3).filter(any))
    width = max(lengths) + draw(st.integers(0, 3))
    batch = text(*lengths, side=draw(st.sampled_from(["right", "left"])), width=width)
    n = draw(st.integers(1, 7))
    known = [
        masks.rule("padding", batch, batch),
        masks.rule("causal", batch, batch),
        masks.rule("window", batch, batch, n),
        masks.rule("prefix", batch, batch, n),
        masks.rule("segments", batch, batch),
    ]
    return batch, draw(st.lists(st.sampled_from(known), min_size=1, max_size=4))


@given(rule_lists())
def test_rules_combine_by_and_in_any_order(case: tuple[Batch, list[Rule]]) -> None:
    batch, rules = case
    size = (batch.size, 2, batch.width, batch.width)
    together = build(rules, *size)
    assert together is not None
    assert together.shape == (batch.size, 1, batch.width, batch.width)
    one_by_one = [build([rule], *size) for rule in rules]
    assert np.array_equal(together, np.all(one_by_one, axis=0))
    assert np.array_equal(together, build(rules[::-1], *size))


@given(rule_lists(), st.integers(0, 3))
def test_padding_moves_no_mask(case: tuple[Batch, list[Rule]], kind: int) -> None:
    """Between a sequence's own tokens the mask is the same, wherever the padding stands."""
    batch, _ = case
    name = ("causal", "window", "prefix", "segments")[kind]
    padded = build([masks.rule(name, batch, batch, 2)], batch.size, 1, batch.width, batch.width)
    assert padded is not None
    for b, tokens in enumerate(batch.tokens):
        if tokens:
            alone = make_batch([tokens], batch.vocabulary)
            expected = build([masks.rule(name, alone, alone, 2)], 1, 1, alone.width, alone.width)
            start = int(batch.starts[b])
            own = slice(start, start + len(tokens))
            assert np.array_equal(padded[b, :, own, own], expected[0])


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", ["none", "causal", "window", "prefix"])
def test_a_padded_batch_gives_the_maps_of_its_texts_alone(side: str, kind: str) -> None:
    config = AttentionConfig.from_sizes(34, 2, dtype="float64")
    tokens = [tuple("thequickbrown"), tuple("fox"), tuple("j"), ()]

    def run(batch: Batch) -> np.ndarray:
        rules = {
            "none": [],
            "causal": [masks.rule("causal", batch, batch)],
            "window": [masks.rule("window", batch, batch, 2)],
            "prefix": [masks.rule("prefix", batch, batch, 2)],
        }[kind]
        return from_config(
            config, batch, rules=[masks.rule("padding", batch, batch), *rules]
        ).result.attention[0]

    batch = make_batch(tokens, pad_to=15, pad_side=side)
    padded = run(batch)
    for b, sequence in enumerate(tokens):
        start = int(batch.starts[b])
        own = slice(start, start + len(sequence))
        outside = np.ones(batch.width, dtype=bool)
        outside[own] = False
        assert (padded[b][:, :, outside] == 0).all()
        if sequence:
            alone = run(make_batch([sequence], batch.vocabulary))[0]
            np.testing.assert_allclose(padded[b][:, own, own], alone, atol=1e-13)


# ── arrays ───────────────────────────────────────────────────────────────────────────────────


def test_arrays_of_each_form() -> None:
    rng = np.random.default_rng(0)
    for shape in [
        (5, 7),
        (2, 5, 7),
        (1, 5, 7),
        (2, 3, 5, 7),
        (1, 3, 5, 7),
        (2, 1, 5, 7),
        (1, 1, 5, 7),
    ]:
        array = rng.random(shape) < 0.5
        four = array[:, None] if array.ndim == 3 else array
        rule = from_array(array, "m", 2, 3, 5, 7)
        assert rule.per_head == (array.ndim == 4 and shape[1] == 3)
        allowed = build([rule], 2, 3, 5, 7)
        assert allowed is not None
        assert allowed.shape == (2, 3 if rule.per_head else 1, 5, 7)
        expected = np.broadcast_to(four, (2, four.shape[1] if four.ndim == 4 else 1, 5, 7))
        assert np.array_equal(allowed, expected)


def test_a_mask_a_head_is_combined_with_one_for_all() -> None:
    five = text(5)
    per_head = np.ones((1, 3, 5, 5), dtype=bool)
    per_head[0, 1] = False
    allowed = build(
        [masks.rule("causal", five, five), from_array(per_head, "m", 1, 3, 5, 5)], 1, 3, 5, 5
    )
    assert allowed is not None
    triangle = np.tri(5, dtype=bool)
    assert np.array_equal(allowed[0, 0], triangle)
    assert not allowed[0, 1].any()
    assert np.array_equal(allowed[0, 2], triangle)
    q = torch.randn(1, 3, 5, 4, generator=torch.Generator().manual_seed(0))
    context, weights = scaled_dot_product_attention(q, q, q, torch.from_numpy(allowed))
    assert weights[0, 1].count_nonzero() == context[0, 1].count_nonzero() == 0
    assert torch.allclose(weights[0, ::2].sum(-1), torch.ones(2, 5))


def test_an_array_of_columns_first_or_read_only_is_taken() -> None:
    array = np.asfortranarray(np.tril(np.ones((5, 7), dtype=bool)))
    array.setflags(write=False)
    allowed = build([from_array(array, "m", 1, 1, 5, 7)], 1, 1, 5, 7)
    assert allowed is not None
    assert np.array_equal(allowed[0, 0], array)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((5, 6), "mask m is [Tq=5 Tk=6], expected [Tq=5 Tk=7]: Tk 6 ≠ 7"),
        (
            (7, 5),
            "mask m is [Tq=7 Tk=5], expected [Tq=5 Tk=7]: Tq 7 ≠ 5, Tk 5 ≠ 7; "
            "it looks transposed: rows are queries, columns are keys",
        ),
        (
            (3, 5, 7),
            "mask m is [B=3 Tq=5 Tk=7], expected [B=2 Tq=5 Tk=7]: B 3 ≠ 2; "
            "that is one mask a head: add the batch axis, [1 H Tq Tk]",
        ),
        (
            (2, 1, 1, 1024),
            "mask m is [B=2 H=1 Tq=1 Tk=1024], expected [B=2 H=3 Tq=5 Tk=7]: Tk 1024 ≠ 7",
        ),
        ((7,), "mask m has 1 axes, shape [7]; [Tq Tk], [B Tq Tk] or [B H Tq Tk] is expected"),
        ((), "mask m has 0 axes, shape []; [Tq Tk], [B Tq Tk] or [B H Tq Tk] is expected"),
        ((0, 7), "mask m is [Tq=0 Tk=7], expected [Tq=5 Tk=7]: Tq 0 ≠ 5"),
        (
            (6, 5, 7),
            "mask m is [B=6 Tq=5 Tk=7], expected [B=2 Tq=5 Tk=7]: B 6 ≠ 2; 6 = B·H: reshape it to "
            "[B H Tq Tk], [2 3 …]",
        ),
    ],
)
def test_arrays_that_do_not_fit(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError) as caught:
        from_array(np.ones(shape, dtype=bool), "m", 2, 3, 5, 7)
    assert str(caught.value) == message


# ── files ────────────────────────────────────────────────────────────────────────────────────

GRID = np.array([[1, 0, 1], [0, 1, 1]])


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def npz(*members: tuple[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", how) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return stream.getvalue()


def written(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("m.npy", npy(GRID)),
        ("m.NPY", npy(GRID.astype(bool))),
        ("m.npy", npy(GRID.astype(">f8"))),
        ("m.npy", npy(np.asfortranarray(GRID.astype(np.float16)))),
        ("m.npy", npy(GRID.astype(np.uint8))),
        ("m.npz", npz(("mask.npy", npy(GRID)))),
        ("m.npz", npz(("arr_0.npy", npy(GRID)), how=zipfile.ZIP_STORED)),
        ("m.csv", b"1,0,1\n0,1,1\n"),
        ("m.csv", b"\xef\xbb\xbf1;0;1\r\n0;1;1\r\n\r\n"),
        ("m.csv", b"True, False, True\nFALSE,TRUE,true"),
        ("m.csv", b"1.0,0e0,1\n0.0,1,1"),
        ("m.txt", b"1 0 1\n0 1 1\n"),
        ("m.txt", b"1\t0\t1\r0\t1\t1"),
        ("m.txt", "１ ０ 1\n\n0 1 1\n".encode()),
    ],
)
def test_mask_files(here: Path, name: str, data: bytes) -> None:
    path = written(here, name, data)
    keep, keep_name, _ = read_mask(path)
    drop, drop_name, _ = read_mask(path, "drop")
    assert keep.dtype == drop.dtype == bool
    assert keep.tolist() == (GRID == 1).tolist()
    assert drop.tolist() == (GRID == 0).tolist()
    assert keep_name == f"file {name} (1 = keep)"
    assert drop_name == f"file {name} (1 = drop)"


def test_a_mask_file_goes_through_to_the_weights(here: Path) -> None:
    """tril(ones) as floats, the mask that people pass to an API that adds it."""
    four = text(4)
    path = written(here, "m.npy", npy(np.tril(np.ones((4, 4)))))
    rule = from_array(*read_mask(path)[:2], 1, 2, 4, 4)
    run = from_config(AttentionConfig.from_sizes(8, 2), four, rules=[rule])
    assert run.result.masks == ("file m.npy (1 = keep)",)
    assert (run.result.attention[0, 0][:, ~np.tril(np.ones((4, 4), dtype=bool))] == 0).all()
    np.testing.assert_allclose(run.result.attention.sum(-1), 1, atol=1e-6)


WRONG_FILES = [
    ("m.png", b"", "mask {} has the suffix '.png'; known are .npy, .npz, .csv, .txt"),
    ("m", b"", "mask {} has the suffix ''; known are .npy, .npz, .csv, .txt"),
    ("m.npy", b"", "mask {} is not in NumPy's .npy form"),
    ("m.npy", npy(np.array([["1", "0"]])), "mask {} holds <U1; 0 and 1 are expected"),
    ("m.npy", npy(GRID * 1j), "mask {} holds complex128; 0 and 1 are expected"),
    ("m.npy", npy(GRID * 2), "mask {} holds 2 at [0, 0]; only 0 and 1 are expected"),
    ("m.npy", npy(GRID / 2), "mask {} holds 0.5 at [0, 0]; only 0 and 1 are expected"),
    (
        "m.npy",
        npy(np.full((2, 2), np.nan)),
        "mask {} holds nan at [0, 0]; only 0 and 1 are expected",
    ),
    (
        "m.npy",
        npy(np.triu(np.full((2, 2), -np.inf), 1)),
        "mask {} holds -inf at [0, 1]; only 0 and 1 are expected; "
        "of a mask that is added to scores, save (mask == 0)",
    ),
    (
        "m.npz",
        b"PK\x03\x04",
        "mask {} is no .npz archive, or a damaged one: File is not a zip file",
    ),
    ("m.npz", npz(), "mask {} holds no array"),
    (
        "m.npz",
        npz(("a.npy", npy(GRID)), ("b.npy", npy(GRID))),
        "mask {} holds 2 arrays; 1 at most are expected",
    ),
    ("m.csv", b"", "mask {} is empty"),
    ("m.csv", b"\n \n", "mask {} is empty"),
    ("m.csv", b"1,0\n1\n", "mask {} has rows of 2 and of 1 cells; all must be of one length"),
    ("m.csv", b"a,b\n1,0\n", "mask {} has 'a' in line 1; only 0 and 1 are expected"),
    ("m.csv", b"1,,0\n", "mask {} has '' in line 1; only 0 and 1 are expected"),
    ("m.csv", b"1,0,\n", "mask {} has '' in line 1; only 0 and 1 are expected"),
    ("m.csv", b"1,nan\n", "mask {} holds nan at [0, 1]; only 0 and 1 are expected"),
    ("m.csv", b"\n1,1e999\n", "mask {} holds inf at [0, 1]; only 0 and 1 are expected"),
    ("m.txt", b"1 \x1b[31m\n", "mask {} has '\\x1b[31m' in line 1; only 0 and 1 are expected"),
    ("m.txt", b"\xff\xfe1\0", "mask {} is not UTF-8 text: byte 0 is 0xFF"),
]


@pytest.mark.parametrize(("name", "data", "message"), WRONG_FILES)
def test_files_that_are_no_mask(here: Path, name: str, data: bytes, message: str) -> None:
    path = written(here, name, data)
    with pytest.raises(InputError) as caught:
        read_mask(path)
    assert str(caught.value) == message.format(path)


def test_paths_that_are_no_file(here: Path) -> None:
    (here / "folder.npy").mkdir()
    for name, reason in [("none.csv", "no such file or directory"), ("folder.npy", "is a folder")]:
        with pytest.raises(InputError) as caught:
            read_mask(here / name)
        assert str(caught.value) == f"mask {here / name}: {reason}"


def test_an_unknown_meaning(here: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_mask(written(here, "m.txt", b"1"), "hide")
    assert str(caught.value) == "--mask-means is 'hide'; it must be one of keep, drop"


def test_what_would_not_fit_in_memory_is_refused_before_it_is_read(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnviz.machine.free_memory", lambda: 1000)
    bomb = npz(("m.npy", npy(np.ones((100, 100), dtype=bool))))
    assert len(bomb) < 1000
    for name, data, message in [
        (
            "m.npz",
            bomb,
            "holds an array of shape [100, 100], which needs 9.77 KiB of memory and "
            "0.977 KiB are free; give a smaller one",
        ),
        (
            "m.txt",
            b"1 " * 50,
            "is a text of 100 B, which needs 1.95 KiB of memory and 0.977 KiB are free; "
            "save it as .npy",
        ),
    ]:
        path = written(here, name, data)
        with pytest.raises(InputError) as caught:
            read_mask(path)
        assert str(caught.value) == f"mask {path} {message}"


# ── spans ────────────────────────────────────────────────────────────────────────────────────


@given(
    lengths=st.lists(st.integers(0, 11), min_size=1, max_size=3).filter(any),
    key_lengths=st.lists(st.integers(0, 11), min_size=3, max_size=3).filter(all),
    side=st.sampled_from(["right", "left"]),
    n=st.integers(1, 13),
    data=st.data(),
)
def test_a_rule_s_span_says_what_its_predicate_says(
    lengths: list[int], key_lengths: list[int], side: str, n: int, data: st.DataObject
) -> None:
    letters = st.sampled_from(["a", "b", SEP])
    queries, keys = (
        make_batch([tuple(data.draw(letters) for _ in range(t)) for t in row], pad_side=side)
        for row in (lengths, key_lengths[: len(lengths)])
    )
    for rule in (
        masks.rule("padding", keys, keys),
        masks.rule("causal", queries, keys),
        masks.rule("window", queries, keys, n),
        masks.rule("prefix", queries, keys, n),
        masks.rule("segments", queries, keys),
    ):
        allowed = build([rule], queries.size, 1, queries.width, keys.width)
        assert allowed is not None
        assert rule.span is not None
        k = np.arange(keys.width)
        for b in range(queries.size):
            first, end = rule.span(b)
            within = (k >= np.reshape(first, (-1, 1))) & (k < np.reshape(end, (-1, 1)))
            expected = np.broadcast_to(within, allowed[b, 0].shape)
            assert np.array_equal(expected, allowed[b, 0]), rule.name


# ── the table ────────────────────────────────────────────────────────────────────────────────


def test_names_are_read_back() -> None:
    three = text(3)
    for name, value in [("padding", True), ("causal", True), ("window", 5), ("prefix", 11)]:
        found = masks.mask_from_name(masks.rule(name, three, three, value).name)
        assert found == (masks.mask_named(name), value, None)
    in_some = masks.mask_from_name("window 5 in layers 0,2")
    assert in_some == (masks.mask_named("window"), 5, (0, 2))
    assert masks.mask_from_name("window 5 in layer 3") == (masks.mask_named("window"), 5, (3,))
    for name in ("", "unknown", "window", "window x", "window -1", "mask", "file m.npy (1 = keep)"):
        assert masks.mask_from_name(name) is None
    assert masks.mask_from_name("window 5 in layers all") is None


def test_the_reason_is_the_mask_that_forbids_the_cell() -> None:
    """Against each rule by itself, with distinct sizes; a file forbids what no other mask does."""
    queries = make_batch([("a", SEP, "b", "c", "d"), ("e", "f")], pad_to=7)
    file = np.ones((7, 7), dtype=bool)
    file[3, 0] = file[4, 1] = False
    settings = {"causal": True, "window": 3, "mask": masks.MaskArray(file, "file m.npy (1 = keep)")}
    rules = masks.rules_from(settings, queries, queries, 2)
    assert [rule.name for rule in rules] == [
        "padding",
        "causal",
        "window 3",
        "file m.npy (1 = keep)",
    ]
    result = from_config(AttentionConfig.from_sizes(8, 2), queries, rules=rules).result
    reasons = masks.reasons_of(result)
    by_rule = {rule.name: build([rule], 2, 2, 7, 7) for rule in rules}
    words = {
        "padding": "padding: it is padding",
        "causal": "causal: it comes later",
        "window 3": "window 3: it is not among the 3 tokens that end with the query",
    }
    for b in range(2):
        codes, sentences = reasons.of_head(0, b, 1)
        assert codes.max() < len(sentences)
        for q, k in np.ndindex(7, 7):
            by = [text for name, text in words.items() if not np.asarray(by_rule[name])[b, 0, q, k]]
            forbidden = not result.allowed[0, b, 0, q, k]
            expected = "; ".join(by) or ("file m.npy (1 = keep)" if forbidden else "")
            assert sentences[codes[q, k]] == expected, (b, q, k)
    assert reasons.of_head(0, 0, 0)[1][0] == ""


def test_a_reason_holds_in_the_layers_that_the_name_tells() -> None:
    shape = (2, 1, 1, 5, 5)
    allowed = np.tril(np.ones(shape, dtype=bool))
    allowed[1] &= np.triu(np.ones((5, 5), dtype=bool), -1)
    at = masks.places_of(text(5), text(5))
    reasons = masks.Reasons(("causal", "window 2 in layer 7"), at, allowed, (4, 7))
    codes, sentences = reasons.of_head(0, 0, 0)
    assert {sentences[code] for code in codes[~allowed[0, 0, 0]]} == {"causal: it comes later"}
    codes, sentences = reasons.of_head(1, 0, 0)
    assert sentences[codes[4, 0]].startswith("window 2 in layer 7: it is not among the 2 tokens")
    # a window that looks both ways is not the one of the table
    near = np.abs(np.subtract.outer(np.arange(5), np.arange(5))) < 2
    codes, sentences = masks.Reasons(("window 2",), at, near[None, None, None], (0,)).of_head(
        0, 0, 0
    )
    assert {sentences[code] for code in codes[~near]} == {"window 2"}
    # masks that do not explain a cell are all named: what a name tells is held against the run
    codes, sentences = masks.Reasons(("padding",), at, allowed, (4, 7)).of_head(0, 0, 0)
    assert sentences[codes[0, 4]] == "padding: it is padding"


TOY = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from attnviz import masks

masks.MASKS.append(
    masks.Mask(
        "every",
        "Look at every N-th key only.",
        lambda at, n, b, h, q, k: at.k[b, k] % n == 0,
        "its position is no multiple of {n}",
        takes=masks.NUMBER,
        mistakes=lambda at, n: {"it counted from 1": lambda q, k: (k + 1) % n == 0},
    )
)

from attnviz.cli.main import call

for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = call(words)
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


def test_one_row_is_a_mask_of_every_command(here: Path) -> None:
    """A new row has a flag everywhere, and is obeyed, checked and worded."""
    words = ["a b c d e f g", "--every", "3", "--d-model", "8", "--n-heads", "2"]
    commands = [
        ["run", "--help"],
        ["run", *words, "-o", "run.npz", "-q"],
        ["run", *words, "--every", "0"],
        ["explain", *words],
        ["shapes", *words],
        ["shapes", *words, "--vs", "--every 2"],
        ["stats", *words, "--quiet"],
        ["render", "weights.npy", "--every", "3", "-o", "page.html", "-q"],
        ["check", "weights.npy", "--every", "3"],
        ["check", "late.npy", "--every", "3"],
    ]
    # weights that obey the mask, and those of somebody who counts keys from 1
    for name, start in [("weights", 0), ("late", 2)]:
        scores = np.random.default_rng(0).random((2, 7, 7))
        weights = np.where(np.arange(7) % 3 == start, np.exp(scores), 0)
        np.save(f"{name}.npy", weights / weights.sum(-1, keepdims=True))
    program = [sys.executable, "-c", TOY, json.dumps(commands)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    (help_, _, wrong, explained, shapes, other, _, _, right, late) = found = [
        json.loads(line) for line in done.stdout.splitlines()
    ]
    assert [code for code, *_ in found] == [0, 0, 2, 0, 0, 0, 0, 0, 0, 3]
    assert "Look at every N-th key only." in help_[1]
    assert wrong[2] == "attnviz: --every is 0; it must be at least 1\n"
    result = load(Path("run.npz"))
    assert result.masks == ("every 3",)
    assert np.array_equal(result.allowed[0, 0, 0], np.tile(np.arange(7) % 3 == 0, (7, 1)))
    assert "no: every 3" in explained[1]
    assert "every 3: 28 of 49 cells forbidden" in shapes[1]
    assert "every" not in other[2]
    assert "every 3" in Path("page.html").read_text(encoding="utf-8")
    assert "none where every 3 forbids it" in right[1]
    assert "the every 3 mask is as if it counted from 1" in late[1]


def test_the_table_loads_no_array_library() -> None:
    script = "import sys, attnviz.masks; print({'numpy', 'torch'} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("name", [mask.name for mask in masks.MASKS])
@pytest.mark.parametrize("cached", [False, True])
def test_every_mistake_of_a_row_is_another_mask(name: str, cached: bool) -> None:
    keys = make_batch([tuple("abcdefg")])
    queries = make_batch([tuple("abcde")])
    if cached:
        queries = after_cache(queries, keys)
    mask, at = masks.mask_named(name), masks.places_of(queries, keys)
    assert mask.help.endswith(".")
    assert mask.reason
    if mask.takes == masks.FILE:
        return
    own = build([masks.rule(name, queries, keys, 4)], 1, 1, 5, 7)
    assert own is not None
    k = np.arange(7)
    for words, cells in mask.mistakes(at, 4).items():
        seen = cells(at.q[0][:, None], k)
        counts_padding = words == "positions counted the padding"  # of which there is none here
        assert np.array_equal(seen, own[0, 0]) == counts_padding, words


def test_what_a_person_who_sets_masks_should_know() -> None:
    three = text(3)
    given = masks.MaskArray(np.ones((3, 3), dtype=bool), "m", "1 means may look")
    settings = {"causal": True, "prefix": 2, "window": None, "segments": True, "mask": given}
    assert masks.notes_on(settings, three, three) == [
        "--causal cancels --prefix 2; --prefix alone is causal after its prefix",
        "--segments: no [SEP] in the text, so all is one segment",
        "1 means may look",
    ]
    split = make_batch([("a", SEP, "b")])
    assert masks.notes_on({"segments": True, "prefix": 2}, split, split) == []


@pytest.mark.parametrize("side", ["right", "left"])
def test_spans_follow_from_the_names_of_a_result(side: str) -> None:
    batch = make_batch([("a", SEP, "b", "c", SEP), ("d", "e")], pad_to=7, pad_side=side)
    settings = {"causal": True, "window": 3, "prefix": 2, "segments": True}
    rules = masks.rules_from(settings, batch, batch, 2)
    result = from_config(AttentionConfig.from_sizes(8, 2), batch, rules=rules).result
    at = masks.places_in(result)
    for b in range(2):
        spans = masks.spans_from_names(result.masks, at, b, 0)
        assert spans is not None
        first, end = spans
        within = (np.arange(7) >= first[:, None]) & (np.arange(7) < end[:, None])
        assert np.array_equal(within, result.allowed[0, b, 0])
    assert masks.spans_from_names(("causal", "unknown"), at, 0, 0) is None
    elsewhere = masks.spans_from_names(("window 1 in layer 3",), at, 0, 0)
    assert elsewhere is not None
    assert (elsewhere[0] == 0).all()
    assert (elsewhere[1] == 7).all()
