"""Pretrained models from a folder: texts in batches, towers and layers, and every refusal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub.constants
import numpy as np
import pytest
import torch
import transformers
from one_pass import from_pretrained
from tiny_models import BERT, GPT2, LLAMA, T5, tiny
from torch import nn

from attnviz.collectors.whole_maps import WholeMaps
from attnviz.errors import AttnvizError, ConfigError, InputError
from attnviz.sources import loading
from attnviz.sources.encoding import encode
from attnviz.sources.loading import LoadedModel, choose_device, load_model, outline_model
from attnviz.sources.model_forward import learned_positions
from attnviz.sources.model_options import ModelOptions
from attnviz.sources.model_source import ModelSource
from attnviz.sources.towers import layer_numbers, n_heads, tower_names
from attnviz.tokens import Texts

LONG, SHORT = "the cat sat on the mat because it was tired .", "the dog ran"
SLIDING = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
BART = {
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 29,
    "decoder_ffn_dim": 29,
    "max_position_embeddings": 31,
    "decoder_start_token_id": 2,
}


# ── batches ──────────────────────────────────────────────────────────────────────────────────

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "BERT": ("BertModel", BERT),
    "RoBERTa": ("RobertaModel", BERT),
    "DistilBERT": ("DistilBertModel", {"dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 29}),
    "DeBERTa-v2": ("DebertaV2Model", BERT | {"relative_attention": True, "position_buckets": 8}),
    "GPT-2": ("GPT2Model", GPT2),
    "OPT": ("OPTModel", BERT | {"ffn_dim": 29, "word_embed_proj_dim": 24}),
    "Bloom": ("BloomModel", {"hidden_size": 24, "n_layer": 2, "n_head": 3}),
    "Falcon": ("FalconModel", BERT),
    "Llama": ("LlamaModel", LLAMA),
    "Gemma 2": ("Gemma2Model", LLAMA | SLIDING),
}


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_batch_gives_the_maps_of_its_texts_alone(name: str, side: str) -> None:
    kind, sizes = FAMILIES[name]
    model, said = tiny(kind, **sizes), []
    alone = [from_pretrained(model, [text]).result for text in (LONG, SHORT)]
    both = from_pretrained(model, [LONG, SHORT], pad_side=side, say=said.append).result
    assert said == []
    assert both.pad_side == side
    assert both.lengths.tolist() == [13, 5]
    for i, one in enumerate(alone):
        n = one.attention.shape[-1]
        rows = slice(0, n) if side == "right" else slice(13 - n, 13)
        maps = both.attention[:, i, :, rows, rows]
        np.testing.assert_allclose(maps, one.attention[:, 0], atol=1e-5, rtol=0)
        assert both.query_tokens[i][rows] == one.query_tokens[0]
        allowed = np.broadcast_to(one.allowed[:, 0], both.allowed[:, i, :, rows, rows].shape)
        assert (both.allowed[:, i, :, rows, rows] == allowed).all()
    assert (both.attention[:, 1].sum(-2)[..., ~both.key_valid[1]] == 0).all()


def test_absolute_positions_that_padding_would_shift_are_said() -> None:
    model, said = tiny("BartModel", **BART), []
    how: dict[str, Any] = {"keys": [LONG], "attention": "decoder", "say": said.append}
    from_pretrained(model, [LONG, SHORT], pad_side="left", **how)
    assert said[-1] == (
        "tiny BartModel counts positions from the padding on the left; --pad-side right gives each "
        "text the positions that it has alone"
    )
    said.clear()
    from_pretrained(model, [LONG, SHORT], pad_side="right", **how)
    assert said == []


def test_padding_that_the_model_takes_for_text_is_said() -> None:
    model, said = tiny("MPNetModel", **BERT), []
    assert model.network.embeddings.position_embeddings.padding_idx == 1  # the tokenizer's is 0
    from_pretrained(model, [LONG, SHORT], pad_side="left", say=said.append)
    assert said == [
        "tiny MPNetModel counts positions from the padding on the left; --pad-side right gives "
        "each text the positions that it has alone"
    ]


def test_an_empty_text_among_others_is_all_padding() -> None:
    model = tiny("LlamaModel", specials=False, **LLAMA)
    result = from_pretrained(model, [SHORT, ""]).result
    assert result.lengths.tolist() == [3, 0]
    assert (result.attention[:, 1] == 0).all()
    with pytest.raises(InputError) as error:
        from_pretrained(model, ["", ""])
    assert str(error.value) == "there are no tokens: every text is empty; give a text"


# ── masks ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "sizes", "masks"),
    [
        ("BertModel", BERT, ("padding",)),
        ("LlamaModel", LLAMA, ("causal", "padding")),
        ("MistralModel", LLAMA | {"sliding_window": 4}, ("causal", "window 4", "padding")),
        ("Gemma2Model", LLAMA | SLIDING, ("causal", "window 4 in layer 0", "padding")),
    ],
)
def test_masks_are_named_by_what_ran(
    kind: str, sizes: dict[str, Any], masks: tuple[str, ...]
) -> None:
    result = from_pretrained(tiny(kind, **sizes), [LONG, SHORT]).result
    assert result.masks == masks
    at = np.arange(13)
    apart = at[:, None] - at[None, :]
    expected = np.ones((13, 13), bool)
    if "causal" in masks:
        expected &= apart >= 0
    if len(masks) == 3:
        expected &= apart < 4
    assert (result.allowed[0, 0, 0] == expected).all()
    assert (result.attention[:, 0, :, ~expected] == 0).all() or len(masks) == 3
    if masks[-2:-1] == ("window 4 in layer 0",):
        assert (result.allowed[1, 0, 0] == (apart >= 0)).all()


def test_sinks_are_said_and_rows_left_as_they_are() -> None:
    sizes = LLAMA | {"num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size": 28}
    model, said = tiny("GptOssModel", **sizes), []
    result = from_pretrained(model, [SHORT], say=said.append).result
    lost = 1 - result.attention.sum(-1)
    assert (lost > 0).all()
    means = lost[:, 0].mean(-1)
    layer, head = np.unravel_index(means.argmax(), means.shape)
    assert said == [
        f"rows sum to less than 1: learned sinks take the rest, {means.mean():.3f} of a row on the "
        f"mean, {means.max():.3f} in layer {layer} head {head}"
    ]


# ── towers and layers ────────────────────────────────────────────────────────────────────────


def test_an_encoder_decoder_shows_each_of_its_towers() -> None:
    model = tiny("T5Model", **T5)
    encoder = from_pretrained(model, [LONG]).result
    assert encoder.attention.shape == (2, 1, 3, 13, 13)
    assert (encoder.source, encoder.masks) == ("tiny, encoder", ())

    cross = from_pretrained(model, [SHORT, "the cat"], keys=[LONG, SHORT]).result
    assert cross.attention.shape == (2, 2, 3, 5, 13)
    assert cross.query_tokens[0] == ("[PAD]", "[CLS]", "the", "dog", "ran")  # it starts with [PAD]
    assert cross.lengths.tolist() == [5, 4]
    assert cross.key_lengths.tolist() == [13, 5]
    assert cross.masks == ("padding",)

    decoder = from_pretrained(model, [SHORT], keys=[LONG], attention="decoder").result
    assert decoder.masks == ("causal",)
    assert decoder.query_tokens == decoder.key_tokens


def test_the_decoder_reads_what_teacher_forcing_gives_it() -> None:
    model = tiny("T5Model", **T5)
    cross = from_pretrained(model, [SHORT], keys=[LONG]).result
    ids = model.tokenizer([LONG, SHORT])["input_ids"]
    labels = torch.tensor([ids[1]])
    shifted = model.network._shift_right(labels) if hasattr(model.network, "_shift_right") else None
    assert shifted is not None
    model.network.set_attn_implementation("eager")
    with torch.no_grad():
        own = model.network(
            input_ids=torch.tensor([ids[0]]), decoder_input_ids=shifted, output_attentions=True
        )
    expected = np.stack([layer.numpy() for layer in own.cross_attentions])
    np.testing.assert_allclose(cross.attention, expected, atol=1e-6, rtol=0)


def test_one_text_of_keys_serves_all() -> None:
    model = tiny("T5Model", **T5)
    result = from_pretrained(model, [SHORT, "a", "cat"], keys=[LONG]).result
    assert result.key_lengths.tolist() == [13, 13, 13]


def test_the_text_of_a_model_of_text_and_images() -> None:
    part = {k: v for k, v in BERT.items() if k != "max_position_embeddings"}
    config = {
        "text_config": part | {"vocab_size": 22, "max_position_embeddings": 31},
        "vision_config": part | {"image_size": 20, "patch_size": 5},
    }
    result = from_pretrained(tiny("CLIPModel", **config), [SHORT]).result
    assert result.config["attention"] == "text"
    assert result.masks == ("causal",)


def test_only_some_layers() -> None:
    model = tiny("BertModel", **BERT | {"num_hidden_layers": 5})
    whole = from_pretrained(model, [SHORT]).result
    some = from_pretrained(model, [SHORT], layers=[4, 1]).result
    assert (some.layers, some.layer_numbers) == ((1, 4), (1, 4))
    assert np.array_equal(some.attention, whole.attention[[1, 4]])


def test_layers_that_mix_tokens_without_softmax() -> None:
    sizes = LLAMA | {"hidden_size": 32, "intermediate_size": 32, "num_local_experts": 2}
    model, said = tiny("MiniMaxModel", **sizes), []
    result = from_pretrained(model, [SHORT], say=said.append).result
    assert result.layers == (0,)
    assert said == ["layer 1 of tiny MiniMaxModel computed no attention weights"]
    with pytest.raises(InputError) as error:
        from_pretrained(model, [SHORT], layers=[0, 1])
    assert str(error.value) == (
        "layer 1 of tiny MiniMaxModel computed no attention weights; --layers 0 leaves out what "
        "has none"
    )
    with pytest.raises(InputError) as error:
        from_pretrained(model, [SHORT], layers=[1])
    assert str(error.value) == (
        "layer 1 of tiny MiniMaxModel computed no attention weights that could be seen"
    )


def test_layers_without_attention_have_no_number() -> None:
    sizes = LLAMA | {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 4}
    kinds = {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False}
    model = tiny("JambaModel", **sizes, **kinds, num_experts=2)
    assert from_pretrained(model, [SHORT]).result.layers == (1, 3)
    with pytest.raises(ConfigError) as error:
        from_pretrained(model, [SHORT], layers=[0])
    assert str(error.value) == "--layers 0: the decoder has attention in layers 1, 3"


@pytest.mark.parametrize(
    ("kind", "sizes", "towers"),
    [
        ("BloomModel", {"hidden_size": 24, "n_layer": 2, "n_head": 3}, ("decoder",)),
        ("MPNetModel", BERT, ("encoder",)),
        ("LlamaModel", LLAMA, ("decoder",)),
        ("T5Model", T5, ("encoder", "decoder", "cross")),
    ],
)
def test_towers_are_known_before_a_model_runs(
    kind: str, sizes: dict[str, Any], towers: tuple[str, ...]
) -> None:
    network = tiny(kind, **sizes).network
    assert tower_names(network) == towers
    assert n_heads(network, towers[-1]) == sizes.get("num_attention_heads", 3)
    assert layer_numbers(network, towers[-1]) == (0, 1)


def test_heads_that_nobody_counts() -> None:
    class SelfAttention(nn.Module):
        pass

    with pytest.raises(InputError) as error:
        n_heads(nn.Sequential(SelfAttention()), "encoder")
    assert str(error.value) == "Sequential does not say how many heads it has"


@pytest.mark.parametrize("kind", ["BertModel", "MPNetModel"])
def test_each_layer_is_told_when_it_is_through(kind: str) -> None:
    model, through = tiny(kind, **BERT), []
    source = ModelSource.of_loaded(model, ModelOptions(""))
    source.run(source.tokens(Texts((SHORT,))), WholeMaps(), [1], through.append)
    assert through == [
        "computing attention",
        "computing attention, 1 of 2 layers are through",
        "computing attention, 2 of 2 layers are through",
    ]


def test_layers_of_different_sizes_are_no_result() -> None:
    class Uneven(nn.Module):
        config = SimpleNamespace(model_type="uneven")

        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(22, 12)
            self.layers = nn.ModuleList(
                nn.MultiheadAttention(12, heads, batch_first=True) for heads in (3, 2, 3)
            )

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> None:
            x = self.embed(input_ids)
            for layer in self.layers:
                x = layer(x, x, x, key_padding_mask=attention_mask == 0)[0]

    model = replace(tiny("BertModel", **BERT), network=Uneven().eval())
    with pytest.raises(InputError) as error:
        from_pretrained(model, [SHORT])
    assert str(error.value) == (
        "the layers' maps differ in size: 0,2 have [B H Tq Tk] = [1, 3, 5, 5]; 1 have [B H Tq Tk] "
        "= [1, 2, 5, 5]; --layers 0,2, say"
    )
    assert from_pretrained(model, [SHORT], layers=[0, 2]).result.layers == (0, 2)


# ── what is kept ─────────────────────────────────────────────────────────────────────────────


def test_scores_are_those_that_softmax_was_given() -> None:
    keep = ("q", "k", "v", "context", "products", "scores", "q_rotated", "k_rotated")
    result = from_pretrained(tiny("LlamaModel", **LLAMA), [LONG], keep=keep).result
    kept = result.kept
    assert sorted(kept) == sorted(keep)
    assert (kept["q"].shape, kept["k"].shape) == ((2, 1, 6, 13, 8), (2, 1, 2, 13, 8))
    assert np.array_equal(kept["q"], kept["q_rotated"])
    np.testing.assert_allclose(kept["scores"], kept["products"] / 8**0.5, rtol=1e-6)
    masked = np.where(result.allowed, kept["scores"], -np.inf)
    exps = np.exp(masked - masked.max(-1, keepdims=True))
    np.testing.assert_allclose(exps / exps.sum(-1, keepdims=True), result.attention, atol=1e-6)


def test_a_bias_for_places_is_kept_where_there_is_one() -> None:
    keep = ("products", "scores", "position_bias", "biased")
    result = from_pretrained(tiny("T5Model", **T5), [SHORT], keep=keep).result
    assert sorted(result.kept) == ["biased", "position_bias", "products"]  # T5 does not scale
    np.testing.assert_allclose(
        result.kept["biased"], result.kept["products"] + result.kept["position_bias"], rtol=1e-6
    )


def test_scores_that_are_not_seen_are_refused() -> None:
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size": 28}
    sinks = tiny("GptOssModel", **LLAMA | experts)
    cap = tiny("Gemma2Model", **LLAMA | {"attn_logit_softcapping": 0.5})
    for model, what in ((sinks, "a sink, say"), (cap, "a cap at 0.5")):
        with pytest.raises(InputError) as error:
            from_pretrained(model, [SHORT], keep=["scores"])
        assert str(error.value) == (
            f"layers.0.self_attn does more to its scores than scale, bias and mask ({what}); "
            "its weights can be shown, and not explained from q and k"
        )
    with pytest.raises(InputError) as error:
        from_pretrained(tiny("MPNetModel", **BERT), [SHORT], keep=["q"])
    assert str(error.value) == (
        "encoder.layer.0.attention.attn computes attention in its own code, and shows no q"
    )


# ── lengths ──────────────────────────────────────────────────────────────────────────────────


def test_texts_that_are_too_long() -> None:
    words = " ".join(["cat"] * 40)
    with pytest.raises(InputError) as error:
        from_pretrained(tiny("BertModel", **BERT), [SHORT, words])
    assert str(error.value) == (
        "sequence 1 has 42 tokens, and tiny BertModel has learned 31 positions; --max-len 31 cuts "
        "it"
    )
    said: list[str] = []
    cut = from_pretrained(tiny("BertModel", **BERT), [words], max_len=31, say=said.append).result
    assert said == ["sequence 0 was cut from 42 to 31 tokens"]
    assert cut.query_tokens[0][-1] == "[SEP]"
    said.clear()
    from_pretrained(tiny("LlamaModel", **LLAMA), [words], say=said.append)
    assert said == ["sequence 0 has 42 tokens, more than the 31 that tiny LlamaModel was made for"]


@pytest.mark.parametrize(
    ("kind", "sizes", "positions"),
    [
        ("BertModel", BERT, 31),
        ("RobertaModel", BERT, 30),  # its first row is that of its padding
        ("OPTModel", BERT | {"ffn_dim": 29, "word_embed_proj_dim": 24}, 31),  # 33 rows
        ("BartModel", BART, 31),
        ("LlamaModel", LLAMA, None),
        ("ViTModel", BERT | {"image_size": 20, "patch_size": 5}, None),
    ],
)
def test_positions_that_were_learned(
    kind: str, sizes: dict[str, Any], positions: int | None
) -> None:
    assert learned_positions(tiny(kind, **sizes).network) == positions
    if positions is not None:
        model = tiny(kind, specials=False, **sizes)
        from_pretrained(model, [" ".join(["cat"] * positions)])
        with pytest.raises(InputError, match=f"has learned {positions} positions"):
            from_pretrained(model, [" ".join(["cat"] * (positions + 1))])


def test_a_model_that_states_no_number_of_positions() -> None:
    model, said = tiny("XLNetModel", d_model=24, n_layer=2, n_head=3, d_inner=29), []
    assert model.config.max_position_embeddings == -1
    from_pretrained(model, [LONG], say=said.append)
    assert said == []


def test_memory_is_known_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnviz.machine.free_memory", lambda: 10_000)
    with pytest.raises(InputError) as error:
        from_pretrained(tiny("BertModel", **BERT), [LONG])
    needed = 2 * 169 * (3 * 4 + 1) + 4 * 169 * 3 * 4
    assert str(error.value) == (
        "attention for 1 × 2 layers × 3 heads × 13 queries × 13 keys needs "
        f"{needed / 1024:.1f} KiB of memory and 9.77 KiB are free; keep fewer layers with "
        "--layers, or cut the text with --max-len"
    )


# ── refusals ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "sizes", "how", "message"),
    [
        (
            "T5Model",
            T5,
            {"attention": "vision"},
            "--attention vision: tiny T5Model has encoder, decoder, cross",
        ),
        (
            "BertModel",
            BERT,
            {"attention": "cross"},
            "--attention cross: tiny BertModel has encoder",
        ),
        (
            "T5Model",
            T5,
            {"attention": "cross"},
            "--attention cross: tiny T5Model needs a text for its encoder as well: give it with "
            "--keys (TEXT is what the decoder writes), or let it write with --generate",
        ),
        (
            "BertModel",
            BERT,
            {"keys": ["the"]},
            "--keys: the encoder of tiny BertModel looks at its own text alone",
        ),
        ("BertModel", BERT, {"layers": [2]}, "--layers 2: the encoder has 2 layers, 0 to 1"),
    ],
)
def test_options_that_cannot_work(
    kind: str, sizes: dict[str, Any], how: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        from_pretrained(tiny(kind, **sizes), [SHORT], **how)
    assert str(error.value) == message


def test_keys_that_do_not_match() -> None:
    with pytest.raises(InputError) as error:
        from_pretrained(tiny("T5Model", **T5), ["a", "b", "c"], keys=["a", "b"])
    assert str(error.value) == "there are 3 texts and 2 --keys; give as many, or 1"


def test_no_tokenizer_and_no_attention() -> None:
    model = tiny("BertModel", **BERT)
    with pytest.raises(InputError) as error:
        from_pretrained(replace(model, tokenizer=None), [SHORT])
    assert str(error.value) == "tiny BertModel has no tokenizer that could be read"
    with pytest.raises(InputError) as error:
        from_pretrained(replace(model, network=nn.Linear(3, 5)), [SHORT])
    assert str(error.value) == ("tiny BertModel has no attention that transformers or torch knows")


def test_a_model_that_reads_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("ViTModel", **BERT | {"image_size": 20, "patch_size": 5})
    with pytest.raises(InputError) as error:
        from_pretrained(model, [SHORT])
    assert str(error.value) == (
        "tiny ViTModel reads no text, it takes pixel_values; --image FILE or --audio FILE is for it"
    )
    model = tiny("BertModel", **BERT)
    monkeypatch.setattr(model.network.embeddings, "forward", lambda **_: {}["a\nb"])
    with pytest.raises(InputError) as error:
        from_pretrained(model, [SHORT])
    assert str(error.value) == "tiny BertModel fails on this text: KeyError: 'a\\nb'"


def test_tokens_that_the_model_does_not_know() -> None:
    model = tiny("BertModel", **BERT)
    model.tokenizer.add_tokens(["zorg"])
    with pytest.raises(InputError) as error:
        from_pretrained(model, [SHORT, "the zorg"])
    assert str(error.value) == (
        "token zorg has number 21, and tiny BertModel knows 21 tokens; is that another model's "
        "tokenizer?"
    )
    with pytest.raises(InputError) as error:
        from_pretrained(model, ["the \udcff cat"])
    assert str(error.value) == (
        "the \\udcff cat: half a character stands there (bytes that are not UTF-8, say), and a "
        "model's tokenizer takes text alone"
    )


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_weights_that_are_no_numbers_are_said(dtype: str) -> None:
    model, said = tiny("BertModel", **BERT), []
    model.network.to(getattr(torch, dtype))
    with torch.no_grad():
        model.network.encoder.layer[1].attention.self.query.weight[8:16] = torch.nan
    result = from_pretrained(model, [LONG], say=said.append).result
    assert np.isnan(result.attention[1, 0, 1]).all()
    assert not np.isnan(result.attention[0]).any()
    hint = "; float16 ends at 65504, --dtype float32 goes further"
    expected = "weights are NaN from layer 1 on, there in 1 of 3 heads"
    assert said == [expected + hint * (dtype == "float16")]


def test_rounding_is_no_sink() -> None:
    model, said = tiny("LlamaModel", spread=1.0, **LLAMA), []
    model.network.to(torch.bfloat16)
    result = from_pretrained(model, [LONG], say=said.append).result
    assert abs(1 - result.attention.sum(-1)).max() > 1e-3
    assert said == []


def test_a_tokenizer_that_fails_and_one_without_places() -> None:
    model = tiny("BertModel", **BERT)

    class Broken:
        is_fast = True

        def __call__(self, *_: object, **__: object) -> None:
            raise RuntimeError("out of\norder")

    with pytest.raises(InputError) as error:
        encode(Broken(), ["a"])
    assert str(error.value) == "the model's tokenizer fails: out of\\norder"

    class Slow:
        def __init__(self) -> None:
            self.is_fast = False

        def __getattr__(self, name: str) -> Any:
            return getattr(model.tokenizer, name)

        def __call__(self, text: str, **options: Any) -> Any:
            assert "return_offsets_mapping" not in options
            return model.tokenizer(text)

    assert encode(Slow(), ["the cat"])[0].spans == (((0, 0),) * 4,)


# ── loading ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the current one, with the tiny model `bert` in it."""
    monkeypatch.chdir(tmp_path)
    model = tiny("BertModel", **BERT)
    model.network.save_pretrained("bert")
    model.tokenizer.save_pretrained("bert")
    return tmp_path


def test_a_model_from_its_folder(folder: Path) -> None:
    said: list[str] = []
    loaded = load_model("bert", progress=said.append)
    assert said == ["reading bert", "loading bert, 38.4 KiB"]
    assert (loaded.source, loaded.name, loaded.processor) == ("bert", "bert", None)
    assert not loaded.network.training
    expected = from_pretrained(tiny("BertModel", **BERT), [LONG]).result
    assert np.array_equal(from_pretrained("bert", [LONG]).result.attention, expected.attention)
    assert loaded.device == torch.device("cpu")


def test_an_outline_has_no_numbers(folder: Path) -> None:
    outline = outline_model("bert")
    assert {parameter.device.type for parameter in outline.network.parameters()} == {"meta"}
    assert {tower: len(found) for tower, found in outline.towers.items()} == {"": 2}
    assert outline.n_bytes("float32") == 2 * outline.n_bytes("bfloat16")


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_the_element_type(folder: Path, dtype: str) -> None:
    loaded = load_model("bert", dtype=dtype)
    assert loaded.network.dtype is getattr(torch, dtype)
    result = from_pretrained(loaded, [SHORT]).result
    assert result.config["dtype"] == dtype
    assert result.attention.dtype == (np.float64 if dtype == "float64" else np.float32)
    np.testing.assert_allclose(result.attention.sum(-1), 1, atol=0.02)


def test_a_checkpoint_that_lacks_parameters(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file("bert/model.safetensors")
    tensors = {name: t for name, t in tensors.items() if "layer.1.attention.self" not in name}
    save_file(tensors, "bert/model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError) as error:
        load_model("bert")
    assert str(error.value) == (
        "--model bert: 6 of 39 parameters are missing from its checkpoint, "
        "encoder.layer.1.attention.self.key.bias among them; is it another model's?"
    )


def test_a_pooler_may_be_missing(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file("bert/model.safetensors")
    tensors = {name: tensor for name, tensor in tensors.items() if "pooler" not in name}
    save_file(tensors, "bert/model.safetensors", metadata={"format": "pt"})
    assert load_model("bert").name == "bert"


def test_a_head_may_be_missing_unless_the_model_is_to_write(here: Path) -> None:
    model = tiny("LlamaModel", **LLAMA)
    model.network.save_pretrained("llama")
    model.tokenizer.save_pretrained("llama")
    assert load_model("llama").name == "llama"
    with pytest.raises(InputError) as error:
        load_model("llama", generates=True)
    assert str(error.value) == (
        "--model llama: 1 of 21 parameters are missing from its checkpoint, lm_head.weight among "
        "them; is it another model's?"
    )


def test_a_model_that_writes_what_it_hears_does_not_go_on_with_a_text(here: Path) -> None:
    Path("whisper").mkdir()
    transformers.WhisperConfig(**BART).save_pretrained("whisper")
    with pytest.raises(ConfigError) as error:
        outline_model("whisper", generates=True)
    assert str(error.value) == "--generate: whisper (whisper) does not generate text"


def test_parameters_that_are_reckoned_need_not_be_stored(here: Path) -> None:
    model = tiny("MarianMTModel", **BART)
    with torch.no_grad():
        for part in (model.network.model.encoder, model.network.model.decoder):
            part.embed_positions.weight.copy_(part.embed_positions.create_weight())
    model.network.save_pretrained("marian")
    model.tokenizer.save_pretrained("marian")
    expected = from_pretrained(model, [LONG, SHORT]).result.attention
    assert np.array_equal(from_pretrained("marian", [LONG, SHORT]).result.attention, expected)


def test_parameters_of_another_size(folder: Path) -> None:
    config = json.loads(Path("bert/config.json").read_text())
    Path("bert/config.json").write_text(json.dumps(config | {"intermediate_size": 31}))
    with pytest.raises(InputError) as error:
        load_model("bert")
    assert str(error.value) == (
        "--model bert: encoder.layer.0.intermediate.dense.bias is [29] among its weights and [31] "
        "by its config.json"
    )


def test_a_tokenizer_made_up_without_its_files(folder: Path) -> None:
    for file in Path("bert").glob("tokenizer*"):
        file.unlink()
    made_up = transformers.AutoTokenizer.from_pretrained("bert")
    assert len(made_up.get_vocab()) == 5  # marks alone: every word would be unknown
    with pytest.raises(InputError) as error:
        from_pretrained("bert", [SHORT])
    assert str(error.value) == "bert has no tokenizer that could be read"


CONFIGS: dict[str, tuple[str, str]] = {
    '{"model_type": "bert", "hidden_size": "wide"}': (
        "config.json",
        "Validation error for field 'hidden_size': TypeError: Field 'hidden_size' expected int, "
        "got str (value: 'wide')",
    ),
    "{": (
        "config.json",
        "It looks like the config file at 'bad/config.json' is not a valid JSON file.",
    ),
    '{"model_type": "non\\u0007sense"}': (
        "config.json",
        f"its model_type 'non\\x07sense' is unknown to transformers {transformers.__version__}",
    ),
    '{"auto_map": {"AutoConfig": "own.Config"}}': (
        "config.json",
        "it needs code that comes with it; --trust-remote-code runs that code, if you trust it",
    ),
    json.dumps({"model_type": "bert", **BERT}): (
        "config.json",
        "Error no file named model.safetensors, or pytorch_model.bin, found in directory bad.",
    ),
}


@pytest.mark.parametrize("text", CONFIGS)
def test_a_folder_that_is_no_model(text: str, here: Path) -> None:
    name, message = CONFIGS[text]
    Path("bad").mkdir()
    (Path("bad") / name).write_text(text)
    with pytest.raises(InputError) as error:
        load_model("bad")
    assert str(error.value) == f"--model bad: {message}"


def test_places_where_no_model_is(here: Path) -> None:
    Path("empty").mkdir()
    Path("several").mkdir()
    for name in ("several/a.gguf", "several/b.gguf", "x.gguf", "notes.txt"):
        Path(name).write_bytes(b"GGUF")
    cases = {
        "empty": "there is no config.json in that folder; a folder made by save_pretrained, or a "
        "snapshot from the hub, is expected",
        "several": "there is no config.json in that folder; name one of its files: a.gguf, say",
        "none.gguf": "there is no such file",
        "./none": "there is no such folder",
        "a name": "there is no such folder",
        "a/b/c": "there is no such folder",
    }
    for source, message in cases.items():
        with pytest.raises(InputError) as error:
            load_model(source)
        assert str(error.value) == f"--model {source}: {message}"
    with pytest.raises(InputError) as error:
        load_model("notes.txt")
    assert str(error.value) == (
        "--model notes.txt is a file; a model's folder, a .gguf file or a name on the hub is "
        "expected (--weights reads the parameters of single layers)"
    )
    with pytest.raises(InputError, match=r"^--model x\.gguf: "):
        load_model("x.gguf")
    with pytest.raises(ConfigError) as error:
        load_model("empty/../several/a.gguf", revision="main")
    assert str(error.value) == (
        "--revision main: empty/../several/a.gguf is a local model, not one on the hub"
    )


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (
            OSError("We couldn't connect to 'https://huggingface.co' to load the files"),
            "not found locally or in the cache, and the hub is unreachable",
        ),
        (
            OSError("nobody/none is not a local folder and is not a valid model identifier"),
            "not found locally, and the hub has no such model",
        ),
        (ValueError("\n  first\x1b[31m line\nsecond"), "first\\x1b[31m line"),
        (ValueError(), "ValueError"),
    ],
)
def test_a_failure_of_the_hub_is_one_line(
    monkeypatch: pytest.MonkeyPatch, here: Path, failure: Exception, message: str
) -> None:
    asked: dict[str, Any] = {}

    def fail(place: str, **options: Any) -> None:
        asked.update(options, place=place)
        raise failure

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", fail)
    monkeypatch.setattr(loading, "_hub_answers", lambda: True)
    said: list[str] = []
    with pytest.raises(InputError) as error:
        outline_model("nobody/none", revision="v2", progress=said.append)
    assert str(error.value) == f"--model nobody/none: {message}"
    assert asked == {"place": "nobody/none", "revision": "v2", "trust_remote_code": False}
    assert said == ["asking the hub for nobody/none"]


@pytest.mark.parametrize("reachable", [True, False])
def test_a_hub_out_of_reach_is_asked_once_and_the_cache_then(
    monkeypatch: pytest.MonkeyPatch, here: Path, reachable: bool
) -> None:
    asked: list[Any] = []

    class Session:
        def head(self, address: str, **_: object) -> None:
            asked.append(address)
            if not reachable:
                raise OSError("no route")

    def fail(place: str, **options: Any) -> None:
        asked.append(options.get("local_files_only", False))
        raise OSError("We couldn't connect")

    monkeypatch.setattr("huggingface_hub.utils.get_session", Session)
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", fail)
    with pytest.raises(InputError, match="the hub is unreachable"):
        outline_model("nobody/none")
    assert asked == [huggingface_hub.constants.ENDPOINT, not reachable]


def test_memory_that_runs_out_while_loading(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outline = outline_model("bert")

    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(outline.origin["kind"], "from_pretrained", fail)
    with pytest.raises(AttnvizError) as error:
        load_model(outline)
    assert str(error.value) == "--model bert: out of memory"
    assert error.value.exit_code == 1
    monkeypatch.setattr("attnviz.machine.free_memory", lambda: 900)
    with pytest.raises(InputError) as refused:
        load_model(outline)
    assert str(refused.value) == (
        "bert in float32 needs 43.2 KiB of memory and 900 B are free; give a smaller model, or "
        "--dtype bfloat16"
    )


def test_libraries_that_are_not_installed(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    Path("x.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name != "gguf" or None)
    with pytest.raises(AttnvizError) as error:
        load_model("x.gguf")
    assert str(error.value) == (
        "--model x.gguf needs gguf, which is not installed: pip install 'attnviz[models]'"
    )
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(AttnvizError) as error:
        load_model("x")
    assert str(error.value) == (
        "--model needs transformers, which is not installed: pip install 'attnviz[models]'"
    )


def test_a_library_that_does_not_fit_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(name: str) -> None:
        raise ImportError(f"{name} wants\nanother torch")

    monkeypatch.setattr(loading, "import_module", without)
    with pytest.raises(AttnvizError) as error:
        load_model("x")
    assert str(error.value) == (
        "transformers cannot be imported: transformers wants\\nanother torch"
    )
    assert error.value.exit_code == 1


def test_the_libraries_speak_again_afterwards() -> None:
    from transformers.utils import logging

    before = (logging.get_verbosity(), logging.is_progress_bar_enabled())
    with pytest.raises(RuntimeError), loading.quiet():
        assert not logging.is_progress_bar_enabled()
        raise RuntimeError
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_device("cpu") == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert choose_device("auto") == "cpu"
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device("auto") == "mps"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto") == "cuda"
    with pytest.raises(ConfigError) as error:
        choose_device("tpu")
    assert str(error.value) == "--device is 'tpu'; it must be one of auto, cpu, cuda, mps"


def test_a_model_by_name_and_a_run_by_model(folder: Path) -> None:
    loaded = load_model(Path("bert"))
    assert isinstance(loaded, LoadedModel)
    ran = from_pretrained(loaded, [LONG], raw_tokens=True)
    done = ran.done
    assert done.keys is None
    assert done.queries.ids[0].tolist() == loaded.tokenizer(LONG)["input_ids"]
    assert done.modules == ()
    assert [step.name for step in done.steps][-1] == "projected"
