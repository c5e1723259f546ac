"""Pretrained models on long texts: what passes by is what their own plain arithmetic attends to."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from attnviz.collectors.pooled_maps import PooledMaps, Pooling
from attnviz.errors import InputError
from attnviz.full_resolution import part_at_full_resolution
from attnviz.result import Attention
from attnviz.scores import Scores
from attnviz.sources import model_blocks
from attnviz.sources.capturing import capture
from attnviz.sources.encoding import Encoded
from attnviz.sources.loading import LoadedModel
from attnviz.sources.model_blocks import in_blocks
from attnviz.sources.model_options import ModelOptions
from attnviz.sources.model_source import EncodedTexts, ModelSource
from attnviz.streaming import window

SMALL: dict[str, Any] = {
    "vocab_size": 37,
    "hidden_size": 24,
    "intermediate_size": 31,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 97,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 6}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", GROUPED),
    "mistral": ("Mistral", {**GROUPED, "sliding_window": 7}),
    "gemma2": (
        "Gemma2",
        {**GROUPED, "sliding_window": 5, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 6},
    ),
    "gpt_oss": (
        "GptOss",
        {
            **GROUPED,
            "sliding_window": 6,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "hidden_size": 32,  # its experts' kernel wants multiples of 16 bytes
            "intermediate_size": 32,
        },
    ),
    "bert": ("Bert", {}),
    "modernbert": ("ModernBert", {"local_attention": 6, "pad_token_id": 0}),
}


def network(family: str) -> nn.Module:
    name, more = FAMILIES[family]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**SMALL, **more})
    model: nn.Module = getattr(transformers, f"{name}Model")(config).eval()
    for parameter in model.parameters():  # fresh weights are near 0, and maps near uniform
        if parameter.ndim > 1:
            parameter.data.normal_(0, 0.25)
    return model


def inputs(side: str | None) -> dict[str, torch.Tensor]:
    """Two texts of 41 tokens, the second of 29 where there is padding on a `side`."""
    ids = torch.randint(3, 37, (2, 41), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, 41, dtype=torch.long)
    if side is not None:
        mask[1, slice(29, None) if side == "right" else slice(12)] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("side", [None, "right", "left"])
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_and_outputs_are_the_model_s_own(family: str, side: str | None) -> None:
    model, given = network(family), inputs(side)
    real = given["attention_mask"].bool()
    with torch.no_grad(), capture(model) as captured:
        expect = model(**given).last_hidden_state
    calls = captured.of()
    implementation = model.config._attn_implementation
    seen: dict[int, Scores] = {}
    with torch.no_grad(), in_blocks(model, captured.towers[0], seen.__setitem__, [0, 2]):
        found = model(**given).last_hidden_state
    assert model.config._attn_implementation == implementation
    assert sorted(seen) == [0, 2]
    torch.testing.assert_close(found[real], expect[real], rtol=1e-3, atol=1e-3)
    for layer, attention in seen.items():
        for b, h in ((0, 1), (1, 3)):
            weights = window(attention, range(41), range(41), b, h)
            torch.testing.assert_close(
                weights[real[b]], calls[layer].weights[b, h][real[b]], rtol=1e-3, atol=1e-4
            )


def encoded(model: nn.Module, length: int) -> Encoded:
    ids = tuple(range(3, 3 + 30)) * 4
    raw = tuple(f"t{n}" for n in ids[:length])
    return Encoded(
        ("text",),
        (ids[:length],),
        (raw,),
        (((0, 0),) * length,),
        ((False,) * length,),
        ((0,) * length,),
        0,
        "right",
    )


def by_rows(model: nn.Module, layers: list[int] | None = None, keep: bool = False) -> Attention:
    """The pooled maps of a model that was loaded without a tokenizer, on 67 tokens."""
    loaded = LoadedModel(
        "a tiny model",
        "tiny",
        model,
        SimpleNamespace(model_input_names=("input_ids", "attention_mask"), model_max_length=10**30),
    )
    source = ModelSource.of_loaded(loaded, ModelOptions(""))
    made = encoded(model, 67)
    tokens = EncodedTexts(made, None, lambda each: each.batch(each.raw))
    maps = PooledMaps(Pooling(7, keep=keep), len(layers or (0, 1, 2)))
    done = source.run(tokens, maps, layers)
    assert done.keys is None
    return maps.result(done)


def test_a_run_is_pooled_layer_by_layer() -> None:
    model = network("mistral")
    pooled = by_rows(model, [0, 2], keep=True)
    assert (pooled.layers, pooled.masks[0], pooled.cells) == ((0, 2), "window 7", (10, 10))
    assert pooled.config == {
        "model": "tiny",
        "model_type": "mistral",
        "attention": "decoder",
        "dtype": "float32",
    }
    with torch.no_grad(), capture(model) as captured:
        model(input_ids=torch.tensor(encoded(model, 67).ids))
    for i, call in enumerate((captured.of()[0], captured.of()[2])):
        part = part_at_full_resolution(pooled, range(67), range(67), 0, [(i, h) for h in range(4)])
        np.testing.assert_allclose(part.attention[0, 0], call.weights[0], atol=1e-4)


def test_layers_after_the_last_that_is_wanted_do_not_run() -> None:
    model, ran = network("llama"), []
    for i, layer in enumerate(model.layers):  # type: ignore[arg-type]
        layer.register_forward_hook(lambda *_, i=i: ran.append(i))
    with torch.no_grad(), in_blocks(model, "decoder", lambda *_: None, [0, 1], stop=True):
        model(**inputs(None))
    assert ran == [0]  # layer 1 had come as far as its attention
    with torch.no_grad():
        assert model(**inputs(None)).last_hidden_state.isfinite().all()


def test_what_differs_from_the_model_s_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network("llama")
    right = model_blocks._attention

    def wrong(*given: Any) -> Scores:
        attention = right(*given)
        return Scores(attention.q, attention.k, attention.rules, scale=9.0)

    monkeypatch.setattr(model_blocks, "_attention", wrong)
    with pytest.raises(InputError) as caught:
        by_rows(model)
    assert re.fullmatch(
        r"a tiny model does more than q · k and mask: block by block, \d\d?\.\d% of the weight of "
        r"layer \d would lie elsewhere; its maps are computed whole only",
        str(caught.value),
    )


def test_masks_of_the_first_layer_are_proved_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queries are right whatever the mask is: it is the weights that tell."""
    model, right = network("llama"), model_blocks._attention
    monkeypatch.setattr(model_blocks, "_attention", lambda *given: replace(right(*given), rules=()))
    with pytest.raises(InputError, match=r"of the weight of layer 0 would lie elsewhere"):
        by_rows(model, [0])


def test_a_weight_that_is_no_number_is_refused() -> None:
    model = network("llama")
    model.layers[1].self_attn.q_proj.weight.data.fill_(float("nan"))  # type: ignore
    with pytest.raises(InputError, match=r"nan% of the weight of layer 1 would lie elsewhere"):
        by_rows(model, [0, 1])


def test_the_proof_ends_with_the_last_layer_that_is_wanted() -> None:
    model, ran = network("llama"), []
    for i, layer in enumerate(model.layers):  # type: ignore[arg-type]
        layer.register_forward_pre_hook(lambda *_, i=i: ran.append(i))
    by_rows(model, [0])
    assert ran == [0, 0, 0]


def test_chunks_that_begin_after_what_is_proved_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FlashAttention's mask leaves them out without a word."""
    monkeypatch.setattr(model_blocks, "PROVED", 16)
    config = transformers.Llama4TextConfig(
        **{**SMALL, **GROUPED, "hidden_size": 32, "intermediate_size": 32},
        intermediate_size_mlp=32,
        num_local_experts=2,
        attention_chunk_size=32,
    )
    torch.manual_seed(0)
    model = transformers.Llama4TextModel(config).eval()
    with pytest.raises(InputError) as caught:
        by_rows(model, [0])
    message = "the model makes a mask of its own; its maps are computed whole only"
    assert str(caught.value) == message


def test_a_window_longer_than_what_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_blocks, "PROVED", 5)
    for family in ("mistral", "modernbert"):
        by_rows(network(family), [0, 2])


def test_a_model_that_computes_by_lines_of_its_own_is_refused() -> None:
    config = transformers.BloomConfig(vocab_size=37, hidden_size=24, n_layer=1, n_head=4)
    model = transformers.BloomModel(config).eval()
    with pytest.raises(InputError) as caught:
        by_rows(model)
    assert str(caught.value) == (
        "a tiny model computes its attention in BloomAttention by lines of its own; its maps are "
        "computed whole only: cut the text with --max-len"
    )


@pytest.mark.parametrize(
    ("mask", "more", "message"),
    [
        (
            torch.ones(1, 1, 3, 3),
            {},
            "the model makes a mask of its own; its maps are computed whole only",
        ),
        (
            None,
            {"position_bias": torch.zeros(1)},
            "the model adds a table to its scores; its maps are computed whole only",
        ),
        (
            torch.tensor([[1, 0, 1]]),
            {},
            "padding stands inside of the text; its maps are computed whole only",
        ),
    ],
)
def test_arguments_that_blocks_cannot_follow(
    mask: torch.Tensor | None, more: dict[str, Any], message: str
) -> None:
    q = torch.zeros(1, 2, 3, 4)
    with pytest.raises(InputError) as caught:
        model_blocks._attention(nn.Identity(), q, q, mask, more)
    assert str(caught.value) == message
