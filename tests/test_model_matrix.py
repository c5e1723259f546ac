"""Every family of model that people bring: what is captured is what the family itself computes.

Each model is tiny, randomly initialised and two layers deep. Its own `eager` attention with
`output_attentions=True` is the oracle.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from attnviz.sources.capturing import capture

SMALL = {
    "vocab_size": 53,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 29,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = SMALL | {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8}
IMAGE = {"image_size": 20, "patch_size": 5, "num_channels": 3}


@dataclass(frozen=True)
class Family:
    """How to build a tiny model, and what to give it."""

    model: str
    config: dict[str, Any]
    inputs: str = "text"
    towers: dict[str, str] = field(default_factory=dict)
    heads: int = 3
    reported: tuple[int, ...] = (0, 1)  # layers whose weights the family hands out itself


ENCODER, DECODER = {"encoder": "attentions"}, {"decoder": "attentions"}
BOTH = {
    "encoder": "encoder_attentions",
    "decoder": "decoder_attentions",
    "cross": "cross_attentions",
}
BART = {
    "vocab_size": 53,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 29,
    "decoder_ffn_dim": 29,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
VISION = {k: v for k, v in SMALL.items() if "token" not in k and k != "vocab_size"} | IMAGE
TEXT_PART = SMALL | {"projection_dim": 8, "max_position_embeddings": 31}
DEEPSEEK = GROUPED | {
    "head_dim": 4,
    "num_key_value_heads": 6,
    "moe_intermediate_size": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 7,
    "q_lora_rank": 7,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 5,
}
EXPERTS = {"intermediate_size": 28, "num_local_experts": 4, "num_experts_per_tok": 2}
SLIDING = {
    "sliding_window": 3,
    "layer_types": ["sliding_attention", "full_attention"],
}

FAMILIES = {
    "BERT": Family("BertModel", SMALL, towers=ENCODER),
    "RoBERTa": Family("RobertaModel", SMALL, towers=ENCODER),
    "XLM-RoBERTa": Family("XLMRobertaModel", SMALL, towers=ENCODER),
    "DistilBERT": Family(
        "DistilBertModel",
        {"vocab_size": 53, "dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 29},
        towers=ENCODER,
    ),
    "ALBERT": Family("AlbertModel", SMALL | {"embedding_size": 12}, towers=ENCODER),
    "ELECTRA": Family("ElectraModel", SMALL | {"embedding_size": 12}, towers=ENCODER),
    "ModernBERT": Family(
        "ModernBertModel",
        SMALL | {"local_attention": 4, "global_attn_every_n_layers": 2, "cls_token_id": 1},
        towers=ENCODER,
    ),
    "DeBERTa": Family(
        "DebertaModel",
        SMALL | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
        towers=ENCODER,
    ),
    "DeBERTa-v2": Family(
        "DebertaV2Model",
        SMALL | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8},
        towers=ENCODER,
    ),
    "MPNet": Family("MPNetModel", SMALL, towers=ENCODER),
    "ESM": Family("EsmModel", SMALL | {"position_embedding_type": "rotary"}, towers=ENCODER),
    "XLNet": Family(
        "XLNetModel",
        {"vocab_size": 53, "d_model": 24, "n_layer": 2, "n_head": 3, "d_inner": 29},
        towers=ENCODER,
    ),
    "GPT-2": Family(
        "GPT2Model", {"vocab_size": 53, "n_embd": 24, "n_layer": 2, "n_head": 3}, towers=DECODER
    ),
    "GPT-Neo": Family(
        "GPTNeoModel",
        SMALL
        | {"num_layers": 2, "num_heads": 3, "attention_types": [[["global", "local"], 1]]}
        | {"window_size": 3},
        towers=DECODER,
    ),
    "GPT-NeoX": Family("GPTNeoXModel", SMALL, towers=DECODER),
    "GPT-J": Family(
        "GPTJModel",
        {"vocab_size": 53, "n_embd": 24, "n_layer": 2, "n_head": 3, "rotary_dim": 4},
        towers=DECODER,
    ),
    "OPT": Family(
        "OPTModel",
        {k: v for k, v in SMALL.items() if k != "intermediate_size"}
        | {"ffn_dim": 29, "word_embed_proj_dim": 24},
        towers=DECODER,
    ),
    "Bloom": Family(
        "BloomModel",
        {"vocab_size": 53, "hidden_size": 24, "n_layer": 2, "n_head": 3},
        towers=DECODER,
    ),
    "MPT": Family(
        "MptModel", {"vocab_size": 53, "d_model": 24, "n_layers": 2, "n_heads": 3}, towers=DECODER
    ),
    "Falcon": Family("FalconModel", SMALL, towers=DECODER),
    "Falcon, ALiBi": Family("FalconModel", SMALL | {"alibi": True}, towers=DECODER),
    "Llama": Family("LlamaModel", GROUPED, towers=DECODER, heads=6),
    "Mistral": Family("MistralModel", GROUPED | {"sliding_window": 3}, towers=DECODER, heads=6),
    "Mixtral": Family("MixtralModel", GROUPED | EXPERTS, towers=DECODER, heads=6),
    "Qwen2": Family("Qwen2Model", GROUPED, towers=DECODER, heads=6),
    "Qwen3": Family("Qwen3Model", GROUPED, towers=DECODER, heads=6),
    "Phi-3": Family(
        "Phi3Model", {k: v for k, v in GROUPED.items() if k != "head_dim"}, towers=DECODER, heads=6
    ),
    "Gemma 2": Family("Gemma2Model", GROUPED | SLIDING, towers=DECODER, heads=6),
    "Gemma 3": Family("Gemma3TextModel", GROUPED | SLIDING, towers=DECODER, heads=6),
    "gpt-oss": Family("GptOssModel", GROUPED | SLIDING | EXPERTS, towers=DECODER, heads=6),
    "DeepSeek-V3": Family("DeepseekV3Model", DEEPSEEK, towers=DECODER, heads=6),
    "T5": Family(
        "T5Model",
        {"vocab_size": 53, "d_model": 24, "d_kv": 8, "d_ff": 29, "num_layers": 2, "num_heads": 3}
        | {"decoder_start_token_id": 0},
        "both",
        BOTH,
    ),
    "BART": Family("BartModel", BART, "both", BOTH),
    "Marian": Family("MarianModel", BART, "both", BOTH),
    "Whisper": Family(
        "WhisperModel",
        BART | {"num_mel_bins": 10, "max_source_positions": 11, "max_target_positions": 13},
        "audio",
        BOTH,
    ),
    "wav2vec 2.0": Family(
        "Wav2Vec2Model",
        {k: v for k, v in SMALL.items() if k != "vocab_size"}
        | {"conv_dim": [8, 8], "conv_kernel": [5, 3], "conv_stride": [4, 2]}
        | {"num_conv_pos_embedding_groups": 2, "num_conv_pos_embeddings": 4},
        "waves",
        ENCODER,
    ),
    "ViT": Family("ViTModel", VISION, "image", ENCODER),
    "DINOv2": Family("Dinov2Model", VISION, "image", ENCODER),
    "Swin": Family(
        "SwinModel",
        {"image_size": 16, "patch_size": 2, "embed_dim": 12, "depths": [2, 1], "num_heads": [2, 4]}
        | {"window_size": 4},
        "image",
        ENCODER,
        heads=0,
        reported=(1, 2),  # of each stage the last block, shifted in stages of two
    ),
    "CLIP": Family(
        "CLIPModel",
        {"text_config": TEXT_PART, "vision_config": VISION | {"projection_dim": 8}}
        | {"projection_dim": 8},
        "text and image",
        {"text": "text_model_output", "vision": "vision_model_output"},
    ),
}


def _build(family: Family, attention: str | None = None) -> nn.Module:
    """The same numbers each time. `attention` is the kernel, the family's default when None."""
    torch.manual_seed(0)
    kind = getattr(transformers, family.model)
    config = kind.config_class(**copy.deepcopy(family.config))
    model = kind._from_config(config, attn_implementation=attention).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # larger than usual: heads that look at something
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
    return model


def _inputs(family: Family) -> dict[str, Any]:
    random = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 53, (2, 7), generator=random)
    ids[:, 0], ids[:, -1] = 1, 2
    padded = torch.ones(2, 7, dtype=torch.long)
    padded[1, 5:] = 0
    text = {"input_ids": ids, "attention_mask": padded}
    decoder = {"decoder_input_ids": ids[:, :5].flip(1)}

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random)

    side = family.config.get("image_size", IMAGE["image_size"])
    return {
        "text": lambda: text,
        "both": lambda: text | decoder,
        "audio": lambda: {"input_features": noise(2, 10, 22)} | decoder,
        "waves": lambda: {"input_values": noise(2, 160)},
        "image": lambda: {"pixel_values": noise(2, 3, side, side)},
        "text and image": lambda: text | {"pixel_values": noise(2, 3, side, side)},
    }[family.inputs]()


def _output(out: Any) -> torch.Tensor:
    for name in ("last_hidden_state", "logits_per_image"):
        if getattr(out, name, None) is not None:
            return getattr(out, name)
    raise AssertionError(f"no output in {list(out)}")


def _state(model: nn.Module) -> dict[str, Any]:
    """All that a capture touches."""
    return {
        name: (
            module.training,
            list(vars(module)),
            len(module._forward_pre_hooks) + len(module._forward_hooks),
            getattr(getattr(module, "config", None), "_attn_implementation", None),
        )
        for name, module in model.named_modules()
    }


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_captured_is_what_the_family_computes(name: str) -> None:
    family = FAMILIES[name]
    model, inputs = _build(family), _inputs(family)
    before = _state(model)
    with torch.no_grad():
        default = _output(model(**inputs))
        with capture(model, trace=True) as captured:
            seen = _output(model(**inputs))
    assert _state(model) == before

    with torch.no_grad():
        reference = _build(family, "eager")(**inputs, output_attentions=True)
    real = inputs.get("attention_mask", torch.ones(seen.shape[:2])).bool()
    close = _closeness(seen, _output(reference), real)
    assert close <= 1e-6, "the capture changed what the model says"
    if name != "Falcon, ALiBi":  # whose default kernel adds its mask before it scales
        assert _closeness(seen, default, real) <= 1e-4

    assert "weights" in [step.name for call in captured.calls for step in call.steps]
    assert sorted(captured.towers) == sorted(family.towers)
    for tower, attribute in family.towers.items():
        own = getattr(reference, attribute)
        own = own if isinstance(own, tuple) else own.attentions
        calls = captured.of(tower)
        assert [call.layer for call in calls] == list(range(max(family.reported) + 1))
        for layer, weights in zip(family.reported, own, strict=True):
            call = calls[layer]
            torch.testing.assert_close(call.weights, weights, atol=1e-6, rtol=0)
            assert family.heads in (0, call.weights.shape[1])
            _assert_mask_is_kept(call, inputs, tower)


def _closeness(a: torch.Tensor, b: torch.Tensor, real: torch.Tensor) -> float:
    """The largest difference, relative to the largest number, on real tokens."""
    if real.shape == a.shape[:2]:
        a, b = a[real], b[real]
    return float((a - b).abs().max() / b.abs().max())


def _assert_mask_is_kept(call: Any, inputs: dict[str, Any], tower: str) -> None:
    weights = call.weights
    allowed = torch.ones_like(weights, dtype=torch.bool)
    if call.allowed is not None:
        allowed = call.allowed.expand_as(weights)
    sees = allowed.any(-1, keepdim=True)
    assert (weights[(~allowed & sees).expand_as(weights)] == 0).all()
    if tower in ("decoder", "text"):
        later = torch.ones(weights.shape[-2:], dtype=torch.bool).triu(1)
        assert not (allowed & later).any()
    mask = inputs.get("attention_mask")
    if mask is not None and weights.shape[-1] == mask.shape[-1] and tower != "vision":
        assert not allowed[1, :, :5, 5:].any()  # real queries do not see padding


DROPPING = {
    "BERT": {"attention_probs_dropout_prob": 0.5, "hidden_dropout_prob": 0.0},
    "MPNet": {"attention_probs_dropout_prob": 0.5, "hidden_dropout_prob": 0.0},
    "GPT-2": {"attn_pdrop": 0.5, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
    "gpt-oss": {"attention_dropout": 0.5},
}


@pytest.mark.parametrize("name", DROPPING)
def test_in_training_the_weights_are_those_before_dropout(name: str) -> None:
    family = FAMILIES[name]
    family = replace(family, config=family.config | DROPPING[name])
    model, inputs = _build(family), _inputs(family)
    with torch.no_grad(), capture(model, layers=[0]) as captured:
        model(**inputs)
    expected = captured.calls[0].weights

    model.train()
    before = _state(model)
    torch.manual_seed(7)
    with capture(model, layers=[0]) as captured:
        watched = _output(model(**inputs))
    drawn = torch.rand(3)
    assert _state(model) == before
    torch.testing.assert_close(captured.calls[0].weights, expected, atol=1e-6, rtol=0)

    # DeBERTa and the like choose no kernel by name: the model itself is the oracle
    other = model if name == "MPNet" else _build(family, "eager").train()
    torch.manual_seed(7)
    plain = other(**inputs, output_attentions=True)
    assert torch.equal(_output(plain), watched)
    assert torch.equal(torch.rand(3), drawn)
    assert watched.requires_grad
    assert not captured.calls[0].weights.requires_grad
