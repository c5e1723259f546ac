"""Tiny models with random numbers that look at pictures and hear, in folders; files for them."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image

from attnviz.sources.loading import quiet

SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 29,
}
EYE = SIZES | {"image_size": 20, "patch_size": 5}
SQUARE = {"height": 20, "width": 20}
NORM = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.25, 0.3]}

EYES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "ViT": ("ViTModel", EYE, {"size": SQUARE}),
    "DeiT": ("DeiTModel", EYE, {"size": SQUARE}),
    "DINOv2 with registers": (
        "Dinov2WithRegistersModel",
        EYE | {"num_register_tokens": 3},
        {"size": {"height": 15, "width": 20}},  # 3 × 4 patches: not the size it was made for
    ),
    "CLIP": (
        "CLIPModel",
        {
            "text_config": SIZES | {"vocab_size": 53, "projection_dim": 8},
            "vision_config": EYE | {"projection_dim": 8},
            "projection_dim": 8,
        },
        {"size": SQUARE},
    ),
    "SigLIP": ("SiglipVisionModel", EYE, {"size": SQUARE}),
    "Swin": (
        "SwinModel",
        {"image_size": 16, "patch_size": 2, "embed_dim": 12, "depths": [2, 1]}
        | {"num_heads": [2, 4], "window_size": 4},
        {"size": {"height": 16, "width": 16}},
    ),
}
TOWERS = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 29,
    "decoder_ffn_dim": 29,
}
EARS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "wav2vec 2.0": (
        "Wav2Vec2Model",
        SIZES
        | {"conv_dim": [8, 8], "conv_kernel": [10, 8], "conv_stride": [5, 64]}
        | {"num_conv_pos_embedding_groups": 2, "num_conv_pos_embeddings": 4},
        "Wav2Vec2FeatureExtractor",
        {},
    ),
    "Whisper": (
        "WhisperModel",
        TOWERS
        | {"vocab_size": 53, "d_model": 24, "num_mel_bins": 80, "max_source_positions": 50}
        | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2},
        "WhisperFeatureExtractor",
        {"chunk_length": 1},
    ),
    "AST": (
        "ASTModel",
        SIZES | {"max_length": 64, "num_mel_bins": 32},
        "ASTFeatureExtractor",
        {"max_length": 64, "num_mel_bins": 32},
    ),
}


def save_eye(name: str, folder: Path) -> Path:
    """The model of that name with a processor that resizes, scales and normalizes."""
    kind, sizes, processing = EYES[name]
    return _save(kind, sizes, transformers.ViTImageProcessor(**processing, **NORM), folder)


def save_ear(name: str, folder: Path) -> Path:
    kind, sizes, extractor, processing = EARS[name]
    return _save(kind, sizes, getattr(transformers, extractor)(**processing), folder)


def _save(kind: str, sizes: dict[str, Any], processor: Any, folder: Path) -> Path:
    torch.manual_seed(0)
    family = getattr(transformers, kind)
    model = family(family.config_class(**sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
    with quiet():
        model.save_pretrained(folder)
        processor.save_pretrained(folder)
    return folder


def picture(path: Path, width: int = 64, height: int = 48) -> Path:
    """A picture with a different colour everywhere."""
    y, x = np.mgrid[:height, :width]
    pixels = np.stack([255 * x / width, 255 * y / height, 128 + 0 * x], -1)
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    return path


def sound(path: Path, seconds: float = 0.5, rate: int = 16000, hertz: float = 440) -> Path:
    """A tone, 16 bits, one channel."""
    at = np.arange(round(seconds * rate)) / rate
    samples = (20000 * np.sin(2 * np.pi * hertz * at)).astype("<i2")
    with wave.open(str(path), "wb") as out:
        out.setparams((1, 2, rate, 0, "NONE", ""))
        out.writeframes(samples.tobytes())
    return path
