"""`attnviz render`, end to end: files of every form in, pictures of every form out."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from attnviz.cli.main import call
from attnviz.measures import measure
from attnviz.npy import read_npz
from attnviz.saved_runs import load

SUFFIXES = (".npz", ".safetensors", ".json")


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def weights(*shape: int, seed: int = 0, causal: bool = False) -> np.ndarray:
    """Rows that sum to 1."""
    drawn = np.random.default_rng(seed).random(shape, dtype=np.float32) + 0.01
    if causal:
        drawn *= np.tri(*shape[-2:], dtype=np.float32)
    return drawn / drawn.sum(-1, keepdims=True)


def bert(path: str = "bert.pt", causal: bool = False) -> np.ndarray:
    """What `outputs.attentions` of three layers looks like, saved with torch: `[L B H T T]`."""
    layers = [weights(1, 5, 7, 7, seed=i, causal=causal) for i in range(3)]
    torch.save(tuple(map(torch.from_numpy, layers)), path)
    return np.stack(layers)


def names() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*") if path.is_file())


def said(
    capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0
) -> tuple[list[str], str]:
    """The lines on standard error, and standard output."""
    assert call(["render", *arguments]) == code
    out, err = capsys.readouterr()
    return err.splitlines(), out


# ── what it writes ───────────────────────────────────────────────────────────────────────────


def test_a_run_is_drawn_as_the_run_itself_was(capsys: pytest.CaptureFixture[str]) -> None:
    """The oracle: the pictures that the run made."""
    few = ["--d-model", "24", "--n-heads", "3", "--causal", "-q"]
    assert (
        call(["run", "The cat sat", "猫坐", *few, "-o", "run.npz", "-o", "a.svg", "-o", "first"])
        == 0
    )
    assert call(["render", "run.npz", "-o", "b.svg", "-o", "second", "-q"]) == 0
    for sequence in "01":
        assert (
            Path(f"a-seq{sequence}.svg").read_bytes() == Path(f"b-seq{sequence}.svg").read_bytes()
        )
    drawn = sorted(path.name for path in Path("first").iterdir())
    assert drawn == sorted(path.name for path in Path("second").iterdir())
    assert len(drawn) == 8
    for name in drawn:
        assert (Path("first") / name).read_bytes() == (Path("second") / name).read_bytes()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("start", SUFFIXES)
def test_forms_of_a_saved_run_are_turned_into_each_other(start: str) -> None:
    few = ["--d-model", "24", "--n-heads", "3", "-q", "--keep", "q,scores"]
    outs = [f"-oa{suffix}" for suffix in SUFFIXES]
    assert call(["run", "The cat sat", *few, *outs]) == 0
    turned = [f"-ob{suffix}" for suffix in SUFFIXES]
    assert call(["render", f"a{start}", *turned, "-q"]) == 0
    for suffix in SUFFIXES:
        assert Path(f"a{suffix}").read_bytes() == Path(f"b{suffix}").read_bytes()


def test_every_renderer_draws_a_bare_array(capsys: pytest.CaptureFixture[str]) -> None:
    attention = bert()
    outs = ["-oo.png", "-oo.svg", "-oo.pdf", "-oo.html", "-oo.npz", "-oo.json", "-oo.safetensors"]
    lines, out = said(capsys, "bert.pt", *outs, "-o", "folder", "--heads", "1,3", "--layers", "0,2")
    assert lines == [
        "bert.pt: read as L B H Q K: 3 layers, 1 sequence, 5 heads, 7 queries × 7 keys",
        "a saved run holds every head and sequence, not only those drawn",
        *(f"Wrote {option[2:]}" for option in outs),
        "Wrote folder/: seq0-overview.png … seq0-layer2-head3.png (5 files)",
    ]
    assert out.startswith(
        "source      bert.pt\n"
        "attention   2 layers, 5 heads, 7 queries × 7 keys, float32\n"
        "masks       unknown: a weight of 0 is drawn as 0; --causal, --lengths, --mask and the "
        "like tell what is forbidden\n\nheads of sequence 0: means over 7 query rows\n"
    )
    table = [line.split()[:2] for line in out.splitlines() if line.startswith("L")]
    assert table == [["L0", "H1"], ["L0", "H3"], ["L2", "H1"], ["L2", "H3"]]
    for suffix in SUFFIXES:
        saved = load(f"o{suffix}")
        np.testing.assert_array_equal(saved.attention, attention[[0, 2]])
        assert (saved.layer_numbers, saved.masks) == ((0, 2), ("unknown",))
    assert "layer 2 · head 3" in Path("o.svg").read_text()
    assert "layer 1" not in Path("o.svg").read_text()
    assert [name for name in names() if name.startswith("folder")] == [
        "folder/seq0-layer0-head1.png",
        "folder/seq0-layer0-head3.png",
        "folder/seq0-layer2-head1.png",
        "folder/seq0-layer2-head3.png",
        "folder/seq0-overview.png",
    ]


def test_a_part_of_a_part_keeps_the_numbers_of_its_layers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    attention = bert()
    said(capsys, "bert.pt", "-o", "part.npz", "--layers", "1-2")
    lines, out = said(capsys, "part.npz", "-o", "p.npz", "-o", "p", "--layers", "2", "--heads", "4")
    np.testing.assert_array_equal(load("p.npz").attention, attention[2:])
    assert load("p.npz").layers == (2,)
    assert "\nL2 H4 " in out
    assert lines[-1] == "Wrote p/: seq0-overview.png … seq0-layer2-head4.png (2 files)"
    _, out = said(capsys, "p.npz", "-o", "p.html", "-o", "p.svg", "--heads", "4", "--show")
    assert "\n  L2 H4\n" in out  # the map in the terminal, though the layer is alone
    assert "layer 2 · head 4" in Path("p.svg").read_text()
    page = Path("p.html").read_text()
    assert '"heads":[[2,4]],"namesLayers":true,"layers":1,' in page
    lines, _ = said(capsys, "part.npz", "--layers", "0", code=2)
    assert lines == ["attnviz: --layers 0: the file has layers 1, 2"]
    lines, _ = said(capsys, "part.npz", "--layers", "3", code=2)
    assert lines == ["attnviz: --layers 3: there are 3 layers, 0 to 2"]


def test_the_cells_of_a_picture_are_the_weights(capsys: pytest.CaptureFixture[str]) -> None:
    """One hot cell in each row: the brightest pixels of the map are where they are said to be."""
    hot = [4, 0, 2, 1, 3]
    np.save("hot.npy", np.eye(5, dtype=np.float32)[hot])
    said(capsys, "hot.npy", "-o", "out", "--cmap", "gray")
    pixels = np.asarray(Image.open("out/seq0-head0.png").convert("L")).astype(int)
    dark = pixels < 10  # the map is black but for its hot cells, and larger than any text
    columns = np.flatnonzero(dark.sum(0) > 0.5 * dark.sum(0).max())
    rows = np.flatnonzero(dark.sum(1) > 0.5 * dark.sum(1).max())
    cells = pixels[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    high, wide = cells.shape[0] / 5, cells.shape[1] / 5
    found = [
        [cells[int((i + 0.5) * high), int((j + 0.5) * wide)] for j in range(5)] for i in range(5)
    ]
    np.testing.assert_array_equal(np.array(found) > 200, np.eye(5, dtype=bool)[hot])


def test_the_terminal_shows_maps(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("hot.npy", np.eye(3, dtype=np.float32))
    Path("t.txt").write_text("猫\n坐\n。\n", encoding="utf-8")
    _, out = said(capsys, "hot.npy", "--tokens", "t.txt", "--show", "-o", "o.png")
    assert "sequence 0  3 tokens: 猫 坐 。" in out
    lines = out.splitlines()
    assert [line.rstrip() for line in lines if line[:1] in ("猫", "坐", "。")] == [
        "猫 ██",
        "坐   ██",
        "。     ██",
    ]


def test_looks_and_choices_are_those_of_run(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("a.npy", weights(2, 3, 5, 5))
    said(
        capsys,
        "a.npy",
        "-o",
        "a.png",
        "--dpi",
        "72",
        "--theme",
        "dark",
        "--sequences",
        "1",
        "--annotate",
    )
    assert names() == ["a-seq1.png", "a.npy"]
    picture = Image.open("a-seq1.png")
    assert round(picture.info["dpi"][0]) == 72
    assert picture.convert("L").getpixel((0, 0)) < 60


# ── masks ────────────────────────────────────────────────────────────────────────────────────


def test_masks_that_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    bert(causal=True)
    lines, out = said(capsys, "bert.pt", "--causal", "-o", "a.npz")
    assert lines[1:] == ["Wrote a.npz"]  # no leak
    assert "masks       causal: 21 of 49 cells forbidden\n" in out
    saved = load("a.npz")
    assert saved.masks == ("causal",)
    np.testing.assert_array_equal(saved.allowed[2, 0, 0], np.tri(7, dtype=bool))
    lines, out = said(capsys, "a.npz", "--window", "2", "-o", "b.npz")
    assert load("b.npz").masks == ("causal", "window 2")
    np.testing.assert_array_equal(load("b.npz").allowed[0, 0, 0], np.tri(7) * np.tri(7, k=1).T > 0)
    assert lines[0].startswith("a leak: ")


def test_masks_told_of_a_run_whose_masks_were_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    bert(causal=True)
    said(capsys, "bert.pt", "-o", "a.npz")
    assert load("a.npz").masks == ("unknown",)
    said(capsys, "a.npz", "--causal", "-o", "b.npz")
    assert load("b.npz").masks == ("causal",)


def test_a_leak_is_placed(capsys: pytest.CaptureFixture[str]) -> None:
    attention = weights(2, 3, 5, 5, causal=True)
    attention[1, 2, 1, 3] = 0.25
    np.save("a.npy", attention)
    tokens = [list("abcde"), ["v", "w", "x", "y", "\x1b"]]
    Path("t.json").write_text(json.dumps(tokens))
    lines, _ = said(capsys, "a.npy", "--causal", "--axes", "L H Q K", "-o", "o.png")
    assert lines == [
        "a.npy: read as L H Q K: 2 layers, 3 heads, 5 queries × 5 keys",
        "rows sum to 1 … 1.25, not to 1",
        "a leak: 0.25 where the mask (causal) forbids it, layer 1, head 2, query 1 → key 3; "
        "attnviz check names every place",
        "Wrote o.png",
    ]
    lines, _ = said(capsys, "a.npy", "--causal", "--tokens", "t.json", "-o", "p.png")
    assert lines[2] == (
        "a leak: 0.25 where the mask (causal) forbids it, sequence 1, head 2, query 1 'w' → "
        "key 3 'y'; attnviz check names every place"
    )
    lines, _ = said(capsys, "a.npy", "--causal", "-o", "q.png", "--sequences", "0")
    assert lines[1:] == ["Wrote q-seq0.png"]  # only what is drawn is looked at


def test_padding_is_known_by_lengths(capsys: pytest.CaptureFixture[str]) -> None:
    attention = weights(2, 3, 5, 5)
    np.save("a.npy", attention)
    said(capsys, "a.npy", "--lengths", "5,3", "--pad-side", "left", "-o", "a.npz")
    saved = load("a.npz")
    assert (saved.masks, saved.pad_side, saved.lengths.tolist()) == (("padding",), "left", [5, 3])
    np.testing.assert_array_equal(saved.allowed[0, 1, 0, 4], [False, False, True, True, True])
    said(capsys, "a.npy", "--lengths", "5,3", "--no-padding-mask", "-o", "b.npz")
    assert load("b.npz").masks == ("unknown",)
    assert load("b.npz").allowed.all()
    _, out = said(capsys, "a.npy", "--lengths", "5,3", "--sequences", "1", "-o", "c.png")
    assert "sequence 1  3 tokens and 2 padding on the right: 0 1 2\n" in out
    assert "sequence 0" not in out


def test_a_mask_file_for_each_head(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("a.npy", weights(3, 5, 5))
    mask = np.stack([np.tri(5), np.ones((5, 5)), np.eye(5)])[None]
    np.save("mask.npy", mask)
    lines, _ = said(capsys, "a.npy", "--mask", "mask.npy", "-o", "o.npz")
    assert "mask file mask.npy (1 = keep): 1 means may look" in lines[1]
    np.testing.assert_array_equal(load("o.npz").allowed[0], mask > 0)


def test_scores_under_a_mask(capsys: pytest.CaptureFixture[str]) -> None:
    scores = np.random.default_rng(0).normal(size=(3, 5, 5)).astype(np.float32)
    np.save("s.npy", scores)
    lines, _ = said(capsys, "s.npy", "--softmax", "--causal", "-o", "o.npz")
    assert lines[1:] == ["Wrote o.npz"]
    masked = torch.from_numpy(scores).masked_fill(torch.ones(5, 5).triu(1) > 0, -torch.inf)
    expected = torch.softmax(masked, -1).numpy()
    np.testing.assert_allclose(load("o.npz").attention[0, 0], expected, rtol=1e-5)


# ── what is odd is said ──────────────────────────────────────────────────────────────────────


def test_odd_values_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    good = weights(3, 5, 7)
    odd = good.copy()
    odd[1, 2, 3], odd[0, 0, 0] = np.nan, np.inf
    np.save("odd.npy", odd)
    np.save("scores.npy", np.log(good))
    np.save("large.npy", good * 3)
    np.save("turned.npy", weights(3, 5, 5).transpose(0, 2, 1))
    tail = "; attnviz check names every place"
    expected = {
        "odd.npy": f"2 of the weights are NaN or infinite: they are marked as such{tail}",
        "scores.npy": f"there are weights below 0, down to {np.log(good).min():.3g}: scores become "
        f"weights by --softmax{tail}",
        "large.npy": f"rows sum to 3, not to 1{tail}",
    }
    for name, remark in expected.items():
        assert said(capsys, name, "-o", f"{name}.png")[0][1:] == [remark, f"Wrote {name}.png"]
    [remark] = said(capsys, "turned.npy", "-o", "t.png")[0][1:-1]
    assert remark.endswith(
        f", not to 1, and columns do: are Q and K the other way round? --axes says{tail}"
    )
    assert said(capsys, "odd.npy", "-o", "q.png", "-q")[0] == []


# ── errors ───────────────────────────────────────────────────────────────────────────────────

ERRORS = {
    "render": "Missing argument 'FILE' (see attnviz render --help)",
    "render none.npy": "none.npy: no such file or directory",
    "render .": ". is a folder; a file of attention is expected",
    "render -": "attention is read from files, in parts; save what comes through the pipe",
    "render a.npy -o a.bmp": "-o a.bmp: unknown suffix .bmp; known are .png .svg .pdf .html .json "
    ".npz .safetensors, or a folder (no suffix)",
    "render a.npy --pad-side up": "--pad-side is 'up'; it must be one of right, left",
    "render a.npy --lengths 5,b": "--lengths 5,b: 'b' is no number; 5,7,4, say",
    "render a.npy --key-lengths ²": "--key-lengths ²: '²' is no number; 5,7,4, say",
    "render a.npy --lengths 5,5": "2 lengths given, and the array has 1 sequence",
    "render a.npy --heads 3": "--heads 3: there are 3 heads, 0 to 2",
    "render a.npy --layers 1": "--layers 1: there is 1 layer, 0",
    "render a.npy --tokens none.json": "none.json: no such file or directory",
    "render a.npy --axes QK": "a.npy cannot be read by --axes 'QK': it has 3 axes, shape [3, 5, 7]",
    "render run.npz --axes HQK": "run.npz is a saved run, which knows its axes and tokens; --axes "
    "is for bare arrays",
    "render run.npz --softmax": "run.npz is a saved run, which knows its axes and tokens; "
    "--softmax is for bare arrays",
    "render a.npy --cmap nope": "--cmap nope is no colour map of matplotlib; near ones are copper",
    "render a.npy -o run.npz": "run.npz exists; --force replaces it, or give another path with -o",
}


@pytest.mark.parametrize("command", ERRORS)
def test_errors_are_one_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    np.save("a.npy", weights(3, 5, 7))
    assert call(["render", "a.npy", "-o", "run.npz", "-q"]) == 0
    before = names()
    assert call(command.split()) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"attnviz: {ERRORS[command]}\n")
    assert names() == before


def test_what_does_not_fit_in_memory_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save("a.npy", weights(3, 50, 50))
    monkeypatch.setattr("attnviz.machine.free_memory", lambda: 30_000)
    lines, _ = said(capsys, "a.npy", "-o", "a.png", code=2)
    assert lines == [
        "attnviz: drawing 3 heads of 50 × 50 needs 186 KiB of memory and 29.3 KiB are free; "
        "--layers and --heads choose fewer"
    ]
    said(capsys, "a.npy", "-o", "a.npz")  # which draws nothing
    np.save("heads.npy", np.ones((100, 100, 1, 1), dtype=np.float32))
    lines, _ = said(capsys, "heads.npy", "--axes", "L H Q K", "-o", "b.npz", code=2)
    assert lines == [
        "attnviz: naming 100 layers × 100 heads needs 2.86 MiB of memory and 29.3 KiB are free; "
        "--axes says which axes these are"
    ]
    np.save("long.npy", weights(200, 200))
    monkeypatch.setattr("attnviz.machine.free_memory", lambda: 100_000)
    lines, _ = said(capsys, "long.npy", "--causal", "-o", "c.npz", code=2)
    assert lines == [
        "attnviz: a mask of 1 × 200 × 200 needs 117 KiB of memory and 97.7 KiB are free; "
        "give fewer sequences"
    ]


# ── large files ──────────────────────────────────────────────────────────────────────────────

MEASURED = """
import resource, sys
from attnviz.cli.main import call
code = call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
sys.exit(code)
"""


def test_twenty_gigabytes_are_drawn_in_little_memory() -> None:
    """500 layers, of which one is drawn; the file is sparse, so that it takes no room."""
    shape = (500, 1, 10, 1000, 1000)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": shape}
    )
    start = len(header.getvalue())
    head = weights(1000, 1000)
    with Path("dump.npy").open("wb") as file:
        file.write(header.getvalue())
        file.truncate(start + 4 * int(np.prod(shape)))
        file.seek(start + 4 * 1_000_000 * (10 * 321 + 7))
        file.write(head.tobytes())
    command = [
        "render",
        "dump.npy",
        "--layers",
        "321",
        "--heads",
        "7",
        "-o",
        "one",
        "-o",
        "one.html",
    ]
    for more in ([], ["--softmax", "--force", "-o", "soft.png"]):
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, *command, *more],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        *lines, peak = done.stdout.splitlines()
        assert int(peak) < 1000  # MiB; the whole is 19 000, and torch alone takes some hundred
    entropy = [line.split()[2] for line in lines if line.startswith("L321 H7")]
    assert entropy == ["9.966"]  # of a softmax over weights that are all about 0.001: log2(1000)


def test_nothing_heavy_is_imported_for_a_bad_flag() -> None:
    code = (
        "import sys; from attnviz.cli.main import call; call(['render', 'x.npy', '-o', 'a.bmp']);"
    )
    code += "print([m for m in ('torch', 'matplotlib', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["render", "a.npz", "-o", "a.html", "-o", "a.png", "-o", "b.json", "--words"],
        ["render", "a.npz", "--rows", "0:2", "--no-show"],
        ["render", "long.npz", "-o", "long.html", "-o", "long.svg"],
        ["compare", "a.npz", "a.npz", "-o", "d"],
    ],
)
def test_a_saved_run_is_read_and_drawn_without_torch(arguments: list[str]) -> None:
    text = ["run", "a b c d e f", "--d-model", "8", "--n-heads", "2", "-q"]
    assert call([*text, "-o", "a.npz"]) == 0
    assert call([*text, "--pool", "2", "-o", "long.npz"]) == 0
    code = "import sys; from attnviz.cli.main import call; print(call(sys.argv[1:]));"
    code += "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == ["0", "[]"], done.stderr


def test_measures_are_those_of_the_heads_that_are_drawn() -> None:
    np.save("a.npy", weights(3, 5, 7))
    assert call(["render", "a.npy", "-o", "a.npz", "-q"]) == 0
    result = load("a.npz")
    every, one = measure(result, 0), measure(result, 0, [(0, 1)])
    assert one.rows.tolist() == [[0, 5, 0]]
    np.testing.assert_array_equal(one.sums[0, 1], every.sums[0, 1])
    assert not one.sums[0, [0, 2]].any()
    assert set(read_npz(Path("a.npz"), 9)) >= {"attention", "metadata"}


@pytest.mark.parametrize("suffix", [".pt", ".npz"])
def test_layers_with_different_numbers_of_heads(
    suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is there is drawn; a head that a layer lacks is in no list and in no picture."""
    layers = [weights(1, heads, 5, 5) for heads in (3, 2, 3)]
    path = f"a{suffix}"
    if suffix == ".pt":
        torch.save(tuple(map(torch.from_numpy, layers)), path)
    else:
        np.savez(path, **{f"a.{i}": layer for i, layer in enumerate(layers)})
    assert call(["render", path, "-o", "out", "-o", "a.svg", "-o", "run.npz", "-o", "a.html"]) == 0
    out, err = capsys.readouterr()
    assert "3 layers, 1 sequence, 3 heads, 5 queries × 5 keys; heads of each layer: 3, 2, 3" in err
    names = [line.split()[:2] for line in out.splitlines() if line.startswith("L")]
    pairs = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]
    assert names == [[f"L{layer}", f"H{head}"] for layer, head in pairs]
    pictures = sorted(path.name for path in Path("out").glob("*head*"))
    assert pictures == [f"seq0-layer{layer}-head{head}.png" for layer, head in pairs]
    result = load("run.npz")
    for i, layer in enumerate(layers):
        np.testing.assert_array_equal(result.attention[i, :, : layer.shape[1]], layer)
    assert not result.attention[1, :, 2].any()
    assert not result.allowed[1, :, 2].any()
    assert result.allowed[[0, 2]].all()
    for command in (["check", path], ["compare", path, path]):
        assert call(command) == 2
        assert capsys.readouterr().err == (
            f"attnviz: {path} has layers of different sizes: layer 0 is [1, 3, 5, 5], layer 1 is "
            "[1, 2, 5, 5]; attnviz render draws them\n"
        )
    assert call(["render", path, "--heads", "2", "--layers", "1"]) == 2
    assert capsys.readouterr().err == (
        "attnviz: --heads 2: none of the chosen layers has these heads\n"
    )
