"""Pictures and sound: files of every kind, patches and moments as tokens, maps as they ran."""

from __future__ import annotations

import wave
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from media_models import EARS, EYES, NORM, picture, save_ear, save_eye, sound
from one_pass import from_audio, from_files, from_images
from PIL import Image
from tiny_models import BERT, tiny

from attnviz.errors import ConfigError, InputError
from attnviz.machine import free_memory
from attnviz.sources import media_source
from attnviz.sources.loading import LoadedModel, load_model
from attnviz.sources.media import read_picture, read_wave, resampled

# ── files ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "gif", "bmp", "tiff", "ppm"])
def test_pictures_of_every_form(suffix: str, tmp_path: Path) -> None:
    found = read_picture(picture(tmp_path / f"a.{suffix}"))
    assert (found.mode, found.size) == ("RGB", (64, 48))
    expected = np.asarray(read_picture(picture(tmp_path / "b.png")), dtype=float)
    assert np.abs(np.asarray(found) - expected).mean() < 16  # JPEG and GIF lose something


def test_what_shines_through_is_white_and_the_camera_is_turned_back(tmp_path: Path) -> None:
    clear = Image.new("RGBA", (3, 2), (255, 0, 0, 0))
    clear.save(tmp_path / "clear.png")
    assert np.asarray(read_picture(tmp_path / "clear.png")).tolist() == [[[255] * 3] * 3] * 2
    turned = Image.new("RGB", (3, 2), "red")
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    turned.save(tmp_path / "turned.jpg", exif=exif)
    assert read_picture(tmp_path / "turned.jpg").size == (2, 3)


def test_files_that_are_no_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.png").write_bytes(b"")
    Path("text.png").write_text("no picture")
    whole = picture(Path("whole.png")).read_bytes()
    Path("cut.png").write_bytes(whole[: len(whole) // 2])
    Path("a.eps").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 5\n")
    known = "PNG, JPEG, WEBP, GIF, BMP, TIFF, PPM"
    for name, message in {
        "none.png": "none.png: no such file or directory",
        "empty.png": f"empty.png is no picture; known are {known}",
        "text.png": f"text.png is no picture; known are {known}",
        "a.eps": f"a.eps is no picture; known are {known}",  # another program would be run
        "cut.png": "cut.png: image file is truncated",
        ".": ".: is a folder",
    }.items():
        with pytest.raises(InputError) as caught:
            read_picture(name)
        assert str(caught.value).startswith(message)
        assert "\n" not in str(caught.value)


def test_a_decoder_that_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    picture(Path("a.png"))

    def breaks(_: Image.Image) -> Image.Image:
        raise ValueError("bad\ntag")

    monkeypatch.setattr("PIL.ImageOps.exif_transpose", breaks)
    with pytest.raises(InputError) as caught:
        read_picture("a.png")
    assert str(caught.value) == "a.png cannot be read: bad\\ntag"


def test_a_picture_with_more_pixels_than_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    picture(Path("a.png"))
    monkeypatch.setattr("attnviz.machine.free_memory", lambda: 1000)
    with pytest.raises(InputError, match=r"^a\.png, a picture of 64 × 48, .*give a smaller copy"):
        read_picture("a.png")
    assert free_memory() > 1000
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(InputError) as caught:
        read_picture("a.png")
    assert str(caught.value) == "a.png has too many pixels; give a smaller copy of it"


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2])
def test_samples_of_every_width(width: int, channels: int, tmp_path: Path) -> None:
    values = np.array([0.0, 0.5, -0.5, 0.25, -1.0, 0.75])
    if width == 1:
        data = (values * 128 + 128).astype(np.uint8).tobytes()
    else:
        whole = (values * 2 ** (8 * width - 1)).astype(np.int64)
        data = b"".join(int(n).to_bytes(width, "little", signed=True) for n in whole)
    with wave.open(str(tmp_path / "a.wav"), "wb") as out:
        out.setparams((channels, width, 8000, 0, "NONE", ""))
        out.writeframes(data)
    samples, rate = read_wave(tmp_path / "a.wav")
    assert (rate, samples.dtype) == (8000, np.float32)
    np.testing.assert_allclose(samples, values.reshape(-1, channels).mean(1), atol=1e-6)


def test_files_that_are_no_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.wav").write_bytes(b"")
    Path("text.wav").write_text("no sound at all, and long enough to have a header")
    sound(Path("silent.wav"), seconds=0)
    for name, message in {
        "none.wav": "none.wav: no such file or directory",
        "empty.wav": "empty.wav is no .wav file of PCM samples: it ends too early",
        "text.wav": "text.wav is no .wav file of PCM samples: file does not start with RIFF id",
        "silent.wav": "silent.wav has no samples",
    }.items():
        with pytest.raises(InputError) as caught:
            read_wave(name)
        assert str(caught.value) == message
    strange = bytearray(sound(Path("a.wav"), seconds=0.01).read_bytes())
    strange[34] = 40  # bits of a sample
    Path("strange.wav").write_bytes(bytes(strange))
    with pytest.raises(InputError, match=r"^strange\.wav has samples of 5 bytes, 16000 a second$"):
        read_wave("strange.wav")


def test_another_rate_is_the_same_tone() -> None:
    def tone(rate: int) -> Any:
        return np.sin(2 * np.pi * 440 * np.arange(rate) / rate).astype(np.float32)

    for rate, wanted in ((22050, 16000), (8000, 16000)):
        made = resampled(tone(rate), rate, wanted)
        assert made.dtype == np.float32
        np.testing.assert_allclose(made, tone(wanted), atol=1e-4)
    same = tone(16000)
    assert resampled(same, 16000, 16000) is same
    high = np.sin(2 * np.pi * 7000 * np.arange(22050) / 22050).astype(np.float32)
    assert np.abs(resampled(high, 22050, 8000)).max() < 1e-4  # 8000 a second cannot hold it


# ── pictures ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def eyes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LoadedModel]:
    folder = tmp_path_factory.mktemp("eyes")
    return {name: load_model(save_eye(name, folder / name.split()[0])) for name in EYES}


PATCHES = [f"r{row}c{column}" for row in range(4) for column in range(4)]
TOKENS = {
    "ViT": ["[CLS]", *PATCHES],
    "DeiT": ["[CLS]", "[DISTILL]", *PATCHES],
    "DINOv2 with registers": ["[CLS]", "[REG1]", "[REG2]", "[REG3]", *PATCHES[:12]],
    "CLIP": ["[CLS]", *PATCHES],
    "SigLIP": PATCHES,
}


@pytest.mark.parametrize("name", TOKENS)
def test_maps_are_those_that_the_model_computes(
    name: str, eyes: dict[str, LoadedModel], tmp_path: Path
) -> None:
    loaded = eyes[name]
    files = [picture(tmp_path / "a.png"), picture(tmp_path / "b.png", 31, 77)]
    result = from_images(loaded, files)
    assert [list(row) for row in result.query_tokens] == [TOKENS[name]] * 2
    assert result.query_tokens == result.key_tokens
    assert result.masks == ()
    assert result.config["image"] == ["a.png", "b.png"]
    assert result.config["grid"] == [3 if "DINO" in name else 4, 4]
    np.testing.assert_allclose(result.attention.sum(-1), 1, atol=1e-5)

    network = type(loaded.network)._from_config(loaded.config, attn_implementation="eager").eval()
    network.load_state_dict(loaded.network.state_dict())
    values = loaded.processor(images=[read_picture(f) for f in files], return_tensors="pt")
    part = network.vision_model if name == "CLIP" else network
    with torch.no_grad():
        own = part(values["pixel_values"], output_attentions=True).attentions
    np.testing.assert_allclose(result.attention, torch.stack(own).numpy(), atol=1e-6, rtol=0)


def test_the_picture_is_shown_as_it_was_seen(eyes: dict[str, LoadedModel], tmp_path: Path) -> None:
    file = picture(tmp_path / "a.png", 20, 20)
    [view] = from_files("image", eyes["ViT"], [file]).done.views
    assert (view.rows, view.columns, view.n_before) == (4, 4, 1)
    np.testing.assert_array_equal(view.pixels, np.asarray(read_picture(file)))


def test_a_processor_that_does_not_normalize(eyes: dict[str, LoadedModel], tmp_path: Path) -> None:
    loaded = eyes["ViT"]
    size = {"height": 20, "width": 20}
    plain = transformers.ViTImageProcessor(size=size, do_normalize=False, do_rescale=False, **NORM)
    other = LoadedModel("plain", "plain", loaded.network, None, plain)
    file = picture(tmp_path / "a.png", 20, 20)
    [view] = from_files("image", other, [file]).done.views
    np.testing.assert_array_equal(view.pixels, np.asarray(read_picture(file)))


def test_one_layer_alone(eyes: dict[str, LoadedModel], tmp_path: Path) -> None:
    file = picture(tmp_path / "a.png")
    one, both = (from_images(eyes["CLIP"], [file], layers=layers) for layers in ([1], None))
    assert one.layer_numbers == (1,)
    np.testing.assert_array_equal(one.attention[0], both.attention[1])


def test_models_that_look_at_no_pictures(eyes: dict[str, LoadedModel], tmp_path: Path) -> None:
    file = picture(tmp_path / "a.png")

    def refused(loaded: LoadedModel, **more: Any) -> str:
        with pytest.raises((InputError, ConfigError)) as caught:
            from_images(loaded, [file], **more)
        return str(caught.value)

    bert = tiny("BertModel", **BERT)
    assert refused(bert) == (
        "tiny BertModel has no image processor that could be read (preprocessor_config.json)"
    )
    reading = LoadedModel("a reader", "a", bert.network, None, eyes["ViT"].processor)
    assert refused(reading) == (
        "a reader takes no pixel_values: it is a BertModel, which takes input_ids"
    )
    assert refused(eyes["CLIP"], attention="audio").endswith("has text, vision")
    assert refused(eyes["CLIP"], attention="text").endswith("its text did not look at the file")
    assert "maps of" in refused(eyes["Swin"])
    assert "not the 8 × 8 patches of a picture (windows, say" in refused(eyes["Swin"])


def test_processors_that_fail(
    eyes: dict[str, LoadedModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = picture(tmp_path / "a.png")

    class Odd:
        image_mean = 0.5

        def __init__(self, made: Any) -> None:
            self.made = made

        def __call__(self, **_: Any) -> Any:
            if isinstance(self.made, Exception):
                raise self.made
            return {"pixel_values": self.made}

    for made, message in (
        (ValueError("no\nway"), "the image processor of odd fails: no\\nway"),
        (
            torch.zeros(5, 12),
            "the image processor of odd gives [5, 12]; [1, 3, height, width] is expected",
        ),
    ):
        odd = LoadedModel("odd", "odd", eyes["ViT"].network, None, Odd(made))
        with pytest.raises(InputError) as caught:
            from_images(odd, [file])
        assert str(caught.value) == message
    monkeypatch.setattr(media_source, "require_memory", _no_memory)
    with pytest.raises(InputError, match="attention for 1 × 2 layers × 3 heads × 17 tokens"):
        from_images(eyes["ViT"], [file])


def test_patches_that_are_not_square_or_not_told() -> None:
    def size(**config: Any) -> tuple[int, int]:
        network = SimpleNamespace(config=SimpleNamespace(**config))
        return media_source._patch_size(LoadedModel("a model", "a", network))

    assert size(patch_size=(5, 4)) == (5, 4)
    assert size(vision_config=SimpleNamespace(patch_size=7), patch_size=None) == (7, 7)
    with pytest.raises(InputError) as caught:
        size(patch_size=None)
    assert str(caught.value) == "a model does not say how large its patches are"


def _no_memory(needed: int, what: str, instead: str) -> None:
    raise InputError(f"{what} {needed} {instead}")


# ── sound ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def ears(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LoadedModel]:
    folder = tmp_path_factory.mktemp("ears")
    return {name: load_model(save_ear(name, folder / name.split()[0])) for name in EARS}


def test_moments_of_wav2vec(ears: dict[str, LoadedModel], tmp_path: Path) -> None:
    loaded = ears["wav2vec 2.0"]
    files = [sound(tmp_path / "a.wav", 0.5), sound(tmp_path / "b.wav", 0.25, 8000, 700)]
    said: list[str] = []
    result = from_audio(loaded, files, say=said.append)
    assert said == []
    # (8000 - 10) // 5 + 1 = 1599, (1599 - 8) // 64 + 1 = 25; of 4000 samples 13
    assert result.query_tokens[0][:3] == ("0.00s", "0.02s", "0.04s")
    assert result.lengths.tolist() == [25, 13]
    assert result.query_tokens[1][12:14] == ("0.24s", "[PAD]")
    assert result.config["audio"] == ["a.wav", "b.wav"]
    assert result.masks == ("padding",)

    network = type(loaded.network)._from_config(loaded.config, attn_implementation="eager").eval()
    network.load_state_dict(loaded.network.state_dict())
    samples, _ = read_wave(files[0])
    values = loaded.processor(samples, sampling_rate=16000, return_tensors="pt")["input_values"]
    with torch.no_grad():
        own = network(values, output_attentions=True).attentions
    np.testing.assert_allclose(result.attention[:, 0], torch.cat(own).numpy(), atol=1e-6, rtol=0)


def test_moments_of_whispers_encoder(ears: dict[str, LoadedModel], tmp_path: Path) -> None:
    said: list[str] = []
    file = sound(tmp_path / "a.wav", 0.5)
    result = from_audio(ears["Whisper"], [file], layers=[1], say=said.append)
    assert result.config["attention"] == "encoder"
    assert result.attention.shape == (1, 1, 3, 50, 50)
    assert result.query_tokens[0][-1] == "0.98s"
    assert said == ["the model hears 1.0 s in any case; after 0.5 s it is silence"]
    said.clear()
    from_audio(ears["Whisper"], [sound(tmp_path / "b.wav", 1.5)], say=said.append)
    assert said[0].endswith("b.wav has 1.5 s, of which the model hears 1.0 s")


def test_models_that_do_not_hear(
    ears: dict[str, LoadedModel], eyes: dict[str, LoadedModel], tmp_path: Path
) -> None:
    file = sound(tmp_path / "a.wav")
    with pytest.raises(InputError) as caught:
        from_audio(eyes["ViT"], [file])
    assert str(caught.value).endswith(
        "has no feature extractor that could be read (preprocessor_config.json)"
    )
    with pytest.raises(InputError) as caught:
        from_audio(ears["AST"], [file])
    assert str(caught.value).endswith(
        "hears patches of a spectrogram, not one moment after the other; "
        "Whisper and wav2vec 2.0 hear moments"
    )
    mute = LoadedModel("mute", "mute", ears["wav2vec 2.0"].network, None, ears["Whisper"].processor)
    with pytest.raises(InputError) as caught:
        from_audio(mute, [file])
    assert str(caught.value) == (
        "mute takes no input_features: it is a Wav2Vec2Model, which takes input_values"
    )
