"""Pictures and sound from files that anybody may have made; a line says what cannot be read."""

from __future__ import annotations

import warnings
import wave
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.errors import AttnvizError, InputError, printable, why_unreadable
from attnviz.machine import require_memory

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""What is read of the forms that Pillow knows: those that run no other program."""

Samples = npt.NDArray[np.float32]


def read_picture(path: Path | str) -> Any:
    """The picture in a file, a Pillow image in RGB: the way up that its camera says, on white.

    Raises `InputError` for anything else; of an animation the first picture is taken.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    path, shown = Path(path), printable(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # measured here
            with Image.open(path, formats=FORMATS) as opened:
                width, height = opened.size
                require_memory(
                    16 * width * height,
                    f"{shown}, a picture of {width} × {height},",
                    "give a smaller copy of it",
                )
                upright = ImageOps.exif_transpose(opened).convert("RGBA")
    except AttnvizError:
        raise
    except UnidentifiedImageError:
        raise InputError(f"{shown} is no picture; known are {', '.join(FORMATS)}") from None
    except Image.DecompressionBombError:
        raise InputError(f"{shown} has too many pixels; give a smaller copy of it") from None
    except OSError as error:
        raise InputError(f"{shown}: {why_unreadable(path, error)}") from None
    except Exception as error:  # what a broken file makes a decoder raise
        raise InputError(f"{shown} cannot be read: {printable(error)}") from None
    paper = Image.new("RGBA", upright.size, "white")
    paper.alpha_composite(upright)
    return paper.convert("RGB")


def read_wave(path: Path | str) -> tuple[Samples, int]:
    """The sound in a .wav file of PCM samples, channels averaged: float32 in -1 … 1, and its rate.

    Raises `InputError` for anything else.
    """
    path, shown = Path(path), printable(path)
    try:
        with wave.open(str(path), "rb") as opened:
            channels, width, rate, frames = opened.getparams()[:4]
            require_memory(
                frames * channels * (width + 8), f"{shown}, {frames:,} samples,", "give less of it"
            )
            data = opened.readframes(frames)
    except OSError as error:
        raise InputError(f"{shown}: {why_unreadable(path, error)}") from None
    except (wave.Error, EOFError) as error:
        why = printable(error) or "it ends too early"
        raise InputError(f"{shown} is no .wav file of PCM samples: {why}") from None
    if width not in (1, 2, 3, 4) or rate < 1:
        raise InputError(f"{shown} has samples of {width} bytes, {rate} a second")
    whole = len(data) // (width * channels) * width * channels
    if not whole:
        raise InputError(f"{shown} has no samples")
    samples = _numbers(data[:whole], width).reshape(-1, channels).mean(1)
    return samples.astype(np.float32), rate


def _numbers(data: bytes, width: int) -> npt.NDArray[np.float64]:
    """PCM samples of `width` bytes as numbers in -1 … 1: one byte is unsigned, more are signed."""
    if width == 1:
        return (np.frombuffer(data, np.uint8) - 128.0) / 128
    parts = np.frombuffer(data, np.uint8).reshape(-1, width)
    wide = np.zeros((len(parts), 4), np.uint8)
    wide[:, 4 - width :] = parts  # the upper bytes of a number of four
    numbers: npt.NDArray[np.float64] = wide.view("<i4")[:, 0] / 2.0**31
    return numbers


def resampled(samples: Samples, rate: int, wanted: int) -> Samples:
    """`samples` at another rate, by their spectrum: what is above half of the new rate goes."""
    if rate == wanted or not len(samples):
        return samples
    length = max(1, round(len(samples) * wanted / rate))
    spectrum = np.fft.rfft(samples)
    kept = np.zeros(length // 2 + 1, complex)
    both = min(len(spectrum), len(kept))
    kept[:both] = spectrum[:both]
    return (np.fft.irfft(kept, length) * (length / len(samples))).astype(np.float32)
