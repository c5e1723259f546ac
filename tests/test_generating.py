"""A model that writes: its steps stitched into one map, equal to one pass over the whole text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from one_pass import from_pretrained
from tiny_models import BERT, GPT2, LLAMA, T5, tiny

from attnviz.errors import ConfigError, InputError
from attnviz.sources.capturing import Call, capture
from attnviz.sources.generating import Writing, write

SLIDING = {"sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]}
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
    "bos_token_id": 2,
    "forced_eos_token_id": None,
}
WRITERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("LlamaForCausalLM", LLAMA),
    "Mistral, all layers sliding": ("MistralForCausalLM", LLAMA | {"sliding_window": 3}),
    "Gemma 3, one layer sliding": ("Gemma3ForCausalLM", LLAMA | SLIDING),
    "gpt-oss, sinks": (
        "GptOssForCausalLM",
        LLAMA
        | SLIDING
        | {"intermediate_size": 28, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "GPT-2": ("GPT2LMHeadModel", GPT2),
    "Bloom": ("BloomForCausalLM", {"hidden_size": 24, "n_layer": 2, "n_head": 3}),
    "GPT-NeoX": ("GPTNeoXForCausalLM", BERT),
}
TRANSLATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "T5": ("T5ForConditionalGeneration", T5),
    "BART": ("BartForConditionalGeneration", BART),
}
PROMPT = (2, 5, 9, 4, 11)
NO_END = {"eos_token_id": None}


def _alike(stitched: Sequence[Call], whole: Sequence[Call]) -> None:
    """Both have the same weights, and the same cells are allowed, where the one pass has a mask."""
    assert [call.layer for call in stitched] == [call.layer for call in whole] == [0, 1]
    for ours, theirs in zip(stitched, whole, strict=True):
        assert ours.weights.shape == theirs.weights.shape
        torch.testing.assert_close(ours.weights, theirs.weights, atol=1e-5, rtol=0)
        if theirs.allowed is not None:
            assert torch.equal(ours.allowed, theirs.allowed.expand_as(ours.allowed))
        assert (ours.weights[~ours.allowed.expand_as(ours.weights)] == 0).all()


@pytest.mark.parametrize("name", WRITERS)
def test_steps_are_one_pass_over_prompt_and_answer(name: str) -> None:
    kind, sizes = WRITERS[name]
    loaded = tiny(kind, **sizes | NO_END)
    done = write(loaded, "decoder", PROMPT, [0, 1], Writing(6))
    assert done.n_prompt == len(PROMPT)
    assert done.ids[:5] == PROMPT
    assert len(done.ids) == 11
    ids = torch.tensor([done.ids])
    with torch.no_grad(), capture(loaded.network) as captured:
        logits = loaded.network(input_ids=ids, use_cache=False).logits
    _alike(done.calls, captured.of())
    # greedy: each token of the answer is the likeliest one
    assert logits[0, 4:-1].argmax(-1).tolist() == list(done.ids[5:])


@pytest.mark.parametrize("tower", ["decoder", "cross"])
@pytest.mark.parametrize("name", TRANSLATORS)
def test_steps_of_a_decoder_that_looks_at_an_encoder(name: str, tower: str) -> None:
    kind, sizes = TRANSLATORS[name]
    loaded = tiny(kind, **sizes | NO_END)
    done = write(loaded, tower, PROMPT, [0, 1], Writing(4))
    assert done.n_prompt == 1
    assert len(done.ids) == 5
    given = torch.tensor([PROMPT])
    with torch.no_grad(), capture(loaded.network) as captured:
        loaded.network(input_ids=given, decoder_input_ids=torch.tensor([done.ids]), use_cache=False)
    _alike(done.calls, captured.of(tower))
    assert done.calls[0].weights.shape == (1, 3, 5, 5)  # five were given, and five were written


def test_it_stops_where_the_model_ends() -> None:
    loaded = tiny("LlamaForCausalLM", **LLAMA | NO_END)
    free = write(loaded, "decoder", PROMPT, [0], Writing(6)).ids
    loaded.network.generation_config.eos_token_id = free[7]
    first = free[5:].index(free[7]) + 5
    ended = write(loaded, "decoder", PROMPT, [0], Writing(6))
    assert ended.ids == free[:first]  # the end itself is read by no step


def test_a_seed_gives_one_answer_and_torchs_own_numbers_stay() -> None:
    loaded = tiny("LlamaForCausalLM", spread=0.05, **LLAMA | NO_END)

    def drawn(seed: int, temperature: float = 5.0) -> tuple[int, ...]:
        return write(loaded, "decoder", PROMPT, [0], Writing(9, temperature, seed)).ids

    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    assert drawn(1) == drawn(1)
    assert torch.equal(torch.rand(2), expected)
    assert len({drawn(seed) for seed in range(5)}) > 1
    assert drawn(7, 1e-4) == write(loaded, "decoder", PROMPT, [0], Writing(9)).ids


def test_several_prompts_are_those_alone() -> None:
    loaded = tiny("GPT2LMHeadModel", False, **GPT2 | {"eos_token_id": None})
    texts = ["the cat sat", "it was unbelievable because"]
    said: list[str] = []
    ran = from_pretrained(loaded, texts, generate=4, say=said.append)
    both, done = ran.result, ran.done
    assert both.lengths.tolist() == [7, 10]  # 3 + 4 and 6 + 4
    assert both.n_prompt == (3, 6)
    assert "causal" in both.masks
    assert said == []
    for i, text in enumerate(texts):
        alone = from_pretrained(loaded, [text], generate=4).result
        n = int(both.lengths[i])
        assert both.query_tokens[i][:n] == alone.query_tokens[0]
        np.testing.assert_allclose(
            both.attention[:, i, :, :n, :n], alone.attention[:, 0], atol=1e-6, rtol=0
        )
        assert (both.allowed[:, i, :, :n, :n] == alone.allowed[:, 0]).all()
        assert alone.n_prompt == (both.n_prompt[i],)
        tokenizer = loaded.tokenizer
        ids = tokenizer.convert_tokens_to_ids(list(done.queries.tokens[i][both.n_prompt[i] :]))
        assert len(ids) == 4
    assert not both.allowed[:, 0, :, :, 7:].any()


def test_cross_attention_of_what_is_written_has_the_encoders_keys() -> None:
    loaded = tiny("T5ForConditionalGeneration", **T5 | NO_END)
    result = from_pretrained(loaded, ["the cat sat"], generate=3, layers=[1]).result
    assert result.key_tokens == (("[CLS]", "the", "cat", "sat", "[SEP]"),)
    assert result.query_tokens[0][0] == "[PAD]"  # T5 starts with it
    assert result.lengths.tolist() == [4]
    assert result.n_prompt == (1,)
    assert result.layer_numbers == (1,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "--generate is 0; it must be at least 1"),
        ((2, -0.5), "--temperature is -0.5; 0 (greedy) to 100 will do"),
        ((2, float("nan")), "--temperature is nan; 0 (greedy) to 100 will do"),
    ],
)
def test_what_cannot_be_written(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Writing(*arguments)
    assert str(caught.value) == message


def test_models_that_do_not_write() -> None:
    with pytest.raises(ConfigError) as caught:
        from_pretrained(tiny("BertModel", **BERT), ["the cat"], generate=2)
    assert str(caught.value) == "--generate: tiny BertModel shows its encoder, which writes nothing"
    with pytest.raises(InputError) as failed:
        from_pretrained(tiny("GPT2Model", False, **GPT2), ["the cat"], generate=2)
    assert str(failed.value) == "tiny GPT2Model cannot generate: it has no language head"
    with pytest.raises(ConfigError) as both:
        from_pretrained(tiny("GPT2LMHeadModel", False, **GPT2), ["the cat"], keys=["a"], generate=2)
    assert str(both.value) == (
        "--keys and --generate: the model writes the queries; give it TEXT alone"
    )


def test_positions_that_run_out_are_said() -> None:
    loaded = tiny("GPT2LMHeadModel", False, **GPT2 | {"eos_token_id": None, "n_positions": 7})
    with pytest.raises(InputError) as caught:
        from_pretrained(loaded, ["the cat sat on"], generate=9)
    assert str(caught.value) == (
        "--generate 9 after 4 tokens: tiny GPT2LMHeadModel has learned 7 positions; "
        "--generate 3 fits"
    )
    assert from_pretrained(loaded, ["the cat sat on"], generate=3).result.lengths.tolist() == [7]
    with pytest.raises(InputError, match=r"7 positions; --max-len cuts it$"):
        from_pretrained(loaded, ["the cat sat on the mat because"], generate=1)


def test_numbers_that_are_none_are_no_answer() -> None:
    loaded = tiny("GPT2LMHeadModel", False, **GPT2)
    with torch.no_grad():
        loaded.network.lm_head.weight.fill_(torch.nan)
    with pytest.raises(InputError, match=r"^tiny GPT2LMHeadModel cannot go on: probability tensor"):
        write(loaded, "decoder", PROMPT, [0], Writing(2, 1.0))
