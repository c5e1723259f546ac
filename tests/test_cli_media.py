"""`--image` and `--audio` from the shell: files, attention laid over the picture, refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from media_models import picture, save_ear, save_eye, sound
from one_pass import from_audio, from_images
from PIL import Image

import attnviz
from attnviz.cli.main import call


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny models vit and wav2vec."""
    folder = tmp_path_factory.mktemp("models")
    save_eye("ViT", folder / "vit")
    save_ear("wav2vec 2.0", folder / "wav2vec")
    return folder


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    picture(Path("a.png"))
    picture(Path("b.png"), 33, 70)
    sound(Path("a.wav"))
    return tmp_path


def test_pictures(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(models / "vit")
    flags = ["run", "--model", model, "--image", "a.png", "--image", "b.png", "--dpi", "60"]
    out_files = ["-o", "run.npz", "-o", "maps.png", "--overlay", "over.png", "--no-trace"]
    assert call([*flags, *out_files]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[:6] == [
        "model       vit (vit), its encoder: 2 layers of 3 heads",
        "            d_k 8, d_v 8, float32, trained",
        "            the trace is of layer 0, as its code handed it over",
        "masks       none: every query may look at every key",
        "image 0     a.png: 4 × 4 patches, after [CLS]",
        "image 1     b.png: 4 × 4 patches, after [CLS]",
    ]
    assert [line for line in err.splitlines() if line.startswith("Wrote")] == [
        "Wrote run.npz",
        "Wrote maps-seq0.png",
        "Wrote maps-seq1.png",
        "Wrote over-seq0.png",
        "Wrote over-seq1.png",
    ]
    saved = attnviz.load("run.npz")
    assert np.array_equal(saved.attention, from_images(model, ["a.png", "b.png"]).attention)
    assert saved.query_tokens[0][:3] == ("[CLS]", "r0c0", "r0c1")
    with Image.open("over-seq1.png") as page:
        assert page.info["Title"] == "Attention on the picture: query [CLS]"


def test_the_overlay_shows_what_is_hidden_elsewhere(models: Path) -> None:
    """--hide-special takes [CLS] out of the maps; the overlay is still its."""
    flags = ["run", "--model", str(models / "vit"), "--image", "a.png", "-q", "--layers", "1"]
    assert call([*flags, "--overlay", "plain.png", "-o", "a.npz"]) == 0
    assert call([*flags, "--overlay", "same.png", "--hide-special", "-o", "b.npz"]) == 0
    assert Path("plain.png").read_bytes() == Path("same.png").read_bytes()
    hidden = attnviz.load("b.npz")
    assert hidden.query_tokens[0][0] == "r0c0"
    [note] = hidden.notes
    assert note.startswith("special tokens hidden: 0.")
    flags[-1] = "0"
    assert call([*flags, "--overlay", "patch.png", "--overlay-query", "r3c2", "-o", "c.npz"]) == 0
    with Image.open("patch.png") as page:
        assert page.info["Title"] == "Attention on the picture: query r3c2"


def test_sound(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(models / "wav2vec")
    assert call(["run", "--model", model, "--audio", "a.wav", "-o", "run.npz", "--no-trace"]) == 0
    assert "audio 0     a.wav: 25 moments, 0.00s to 0.48s\n" in capsys.readouterr().out
    saved = attnviz.load("run.npz")
    assert np.array_equal(saved.attention, from_audio(model, ["a.wav"]).attention)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            "TEXT --model vit --image a.png",
            "--image and TEXT both say what the model looks at; give one of them",
        ),
        (
            "--model wav2vec --audio a.wav --keys x",
            "--audio and --keys both say what the model looks at; give one of them",
        ),
        (
            "--model vit --image a.png --audio a.wav",
            "--image and --audio both say what is looked at; give one of them",
        ),
        (
            "--model vit --image a.png --generate 3",
            "--generate and --image: a model goes on with a text",
        ),
        ("--image a.png", "--image goes with --model"),
        (
            "TEXT --model vit",
            "{folder}/vit reads no text; --image FILE or --audio FILE is for it",
        ),
        ("--overlay o.png", "--overlay goes with --image FILE"),
        ("--model vit --image a.png --overlay o.svg", "--overlay o.svg: the suffix must be .png"),
        (
            "--model vit --image a.png --overlay-query r0c0",
            "--overlay-query goes with --overlay FILE.png",
        ),
        (
            "--model vit --image a.png --keep q -o r.npz",
            "--keep and --image: nothing but weights is kept of files",
        ),
        (
            "--model vit --image a.png --pool 8",
            "--image needs whole maps: leave the flags for long texts out",
        ),
        ("--model vit --image none.png", "none.png: no such file or directory"),
        (
            "--model vit --image a.png --attention text",
            "--attention text: {folder}/vit has encoder",
        ),
        (
            "--model vit --image a.png --overlay o.png --overlay-query r7c7",
            "query r7c7 is not a token of sequence 0; near it: r3c3 (16), r3c2 (15), r3c1 (14), "
            "r3c0 (13), r2c3 (12), r2c2 (11), r2c1 (10), r2c0 (9)",
        ),
    ],
)
def test_flags_that_do_not_go_together(
    flags: str, message: str, models: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(here.iterdir())
    words = [str(models / w) if w in ("vit", "wav2vec") else w for w in flags.split()]
    assert call(["run", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"attnviz: {message.format(folder=models)}\n")
    assert sorted(here.iterdir()) == before
