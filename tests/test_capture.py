"""`attnviz.capture`: what it catches of any module, and that it leaves no trace of itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from tiny_models import BERT, GPT2, LLAMA, T5, tiny
from torch import nn

import attnviz
from attnviz.errors import InputError
from attnviz.sources.attention_modules import places
from attnviz.sources.spying import Spy, with_heads

IDS = torch.tensor([[2, 4, 5, 6, 7, 4, 8], [2, 9, 10, 11, 12, 3, 0]])
MASK = (IDS != 0).long()


@pytest.fixture(autouse=True)
def repeatable() -> None:
    torch.manual_seed(3)


def state(model: nn.Module) -> dict[str, Any]:
    """All that a capture touches."""
    return {
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "eager": "eager" in transformers.AttentionInterface._global_mapping,
        **{
            name: (
                module.training,
                list(vars(module)),
                len(module._forward_pre_hooks) + len(module._forward_hooks),
                getattr(getattr(module, "config", None), "_attn_implementation", None),
            )
            for name, module in model.named_modules()
        },
    }


# ── transformers ─────────────────────────────────────────────────────────────────────────────


def test_the_default_kernel_gives_its_weights_all_the_same() -> None:
    model = tiny("BertModel", **BERT).network
    assert model.config._attn_implementation == "sdpa"
    with torch.no_grad(), attnviz.capture(model) as captured:
        model(IDS, attention_mask=MASK)
    assert captured.towers == ("encoder",)
    calls = captured.of()
    assert [(call.layer, call.name) for call in calls] == [
        (0, "encoder.layer.0.attention.self"),
        (1, "encoder.layer.1.attention.self"),
    ]
    for call in calls:
        assert call.weights.shape == (2, 3, 7, 7)
        torch.testing.assert_close(call.weights.sum(-1), torch.ones(2, 3, 7))
        assert (call.weights[1, ..., 6] == 0).all()
        assert call.allowed is not None
        assert not call.allowed[1, ..., 6].any()
        assert call.source.startswith("modeling_bert.py:")
        assert call.steps == ()


def test_what_is_kept_explains_the_weights() -> None:
    model = tiny("LlamaModel", **LLAMA).network
    with torch.no_grad(), attnviz.capture(model, keep=("q", "k", "v", "context")) as captured:
        model(IDS, attention_mask=MASK)
    for call in captured.of("decoder"):
        q, k, v, context = call.q, call.k, call.v, call.context
        assert q is not None
        assert k is not None
        assert v is not None
        assert context is not None
        assert (q.shape, k.shape) == ((2, 6, 7, 8), (2, 2, 7, 8))
        assert call.allowed is not None
        scores = q.double() @ k.double().repeat_interleave(3, 1).transpose(-1, -2) / 8**0.5
        weights = scores.masked_fill(~call.allowed, -torch.inf).softmax(-1)
        torch.testing.assert_close(call.weights.double(), weights, atol=1e-6, rtol=0)
        expected = weights @ v.double().repeat_interleave(3, 1)
        torch.testing.assert_close(context.double(), expected, atol=1e-5, rtol=0)
        assert call.scale == 8**-0.5


def test_only_the_layers_that_are_wanted_are_kept() -> None:
    model = tiny("GPT2Model", **GPT2).network
    with torch.no_grad(), attnviz.capture(model, layers=[1]) as captured:
        model(IDS)
    assert [call.layer for call in captured.calls] == [1]
    assert captured.calls[0].q is None


def test_each_call_is_handed_on_instead_of_kept() -> None:
    model, seen = tiny("GPT2Model", **GPT2).network, []
    with torch.no_grad(), attnviz.capture(model, each=seen.append) as captured:
        model(IDS)
    assert [call.layer for call in seen] == [0, 1]
    assert captured.calls == []


def test_an_encoder_decoder_has_three_towers() -> None:
    model = tiny("T5Model", **T5).network
    with torch.no_grad(), attnviz.capture(model) as captured:
        model(input_ids=IDS, attention_mask=MASK, decoder_input_ids=IDS[:, :5])
    shapes = {tower: captured.of(tower)[0].weights.shape for tower in captured.towers}
    assert shapes == {"encoder": (2, 3, 7, 7), "decoder": (2, 3, 5, 5), "cross": (2, 3, 5, 7)}
    with torch.no_grad(), attnviz.capture(model, towers=["cross"]) as captured:
        model(input_ids=IDS, decoder_input_ids=IDS[:, :5])
    assert [(call.tower, call.layer) for call in captured.calls] == [("cross", 0), ("cross", 1)]


def test_each_forward_pass_is_a_step() -> None:
    model = tiny("GPT2Model", **GPT2).network
    with torch.no_grad(), attnviz.capture(model) as captured:
        model(IDS[:, :3])
        model(IDS)
    assert [call.weights.shape[-1] for call in captured.of(step=0)] == [3, 3]
    assert [call.weights.shape[-1] for call in captured.of()] == [7, 7]


def test_layers_that_share_a_module_are_told_by_the_order_of_calls() -> None:
    sizes = BERT | {"num_hidden_layers": 4, "num_hidden_groups": 2, "embedding_size": 12}
    model = tiny("AlbertModel", **sizes).network
    with torch.no_grad(), attnviz.capture(model, layers=[1, 2]) as captured:
        model(IDS)
    assert [call.layer for call in captured.calls] == [1, 2]
    groups = [call.name.split(".")[2] for call in captured.calls]
    assert groups == ["0", "1"]


def test_sinks_are_what_the_rows_lack() -> None:
    sizes = LLAMA | {"num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size": 28}
    model = tiny("GptOssModel", **sizes).network
    with torch.no_grad(), attnviz.capture(model) as captured:
        model(IDS)
    sink = captured.calls[0].sink
    assert sink.shape == (2, 6, 7)
    assert ((sink > 0) & (sink < 1)).all()


def test_a_capture_inside_another_sees_the_same() -> None:
    model = tiny("BertModel", **BERT).network
    with torch.no_grad(), attnviz.capture(model) as outer:
        with attnviz.capture(model, layers=[0]) as inner:
            model(IDS)
        model(IDS)
    assert [call.layer for call in inner.calls] == [0]
    assert [call.layer for call in outer.calls] == [0, 1, 0, 1]
    assert torch.equal(inner.calls[0].weights, outer.calls[0].weights)


def test_other_models_are_left_alone() -> None:
    model, other = (tiny(kind, **BERT).network for kind in ("BertModel", "BertModel"))
    other.set_attn_implementation("eager")
    with torch.no_grad(), attnviz.capture(model) as captured:
        expected = other(IDS, output_attentions=True).attentions
        assert captured.calls == []
        model(IDS)
    assert torch.equal(captured.calls[0].weights, expected[0])


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", ["BertModel", "MPNetModel"])
def test_the_model_is_as_it_was_upon_an_exception(kind: str, training: bool) -> None:
    model = tiny(kind, **BERT).network.train(training)
    before = state(model)
    with pytest.raises(RuntimeError, match="stop"), attnviz.capture(model):
        model(IDS)
        raise RuntimeError("stop")
    assert state(model) == before


def test_a_forward_that_somebody_put_on_a_module_stays_there() -> None:
    model = tiny("MPNetModel", **BERT).network
    module = model.encoder.layer[0].attention.attn
    counted = []
    original = module.forward

    def counting(*args: Any, **kwargs: Any) -> Any:
        counted.append(1)
        return original(*args, **kwargs)

    module.forward = counting
    with torch.no_grad(), attnviz.capture(model) as captured:
        model(IDS)
    assert counted == [1]
    assert len(captured.calls) == 2
    assert module.forward is counting


# ── torch's own modules ──────────────────────────────────────────────────────────────────────


def _encoder(dropout: float = 0.0) -> nn.Module:
    layer = nn.TransformerEncoderLayer(24, 4, 29, dropout, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


@pytest.mark.parametrize("training", [False, True])
def test_the_fast_path_of_transformer_encoder_hides_nothing(training: bool) -> None:
    model, x = _encoder().train(training), torch.randn(2, 7, 24)
    before = state(model)
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[1, 5:] = True
    with torch.no_grad():
        plain = model(x, src_key_padding_mask=padding)
        with attnviz.capture(model) as captured:
            seen = model(x, src_key_padding_mask=padding)
    real = ~padding
    torch.testing.assert_close(seen[real], plain[real], atol=1e-5, rtol=0)
    assert state(model) == before
    assert captured.towers == ("encoder",)
    first = captured.of()[0]
    attention = model.layers[0].self_attn
    _, expected = attention(x, x, x, key_padding_mask=padding, average_attn_weights=False)
    torch.testing.assert_close(first.weights, expected, atol=1e-6, rtol=0)
    assert first.allowed is not None
    assert first.allowed[:, 0, 0].tolist() == real.tolist()


def test_multihead_attention_in_training_gives_weights_before_dropout() -> None:
    module, x = nn.MultiheadAttention(24, 3, dropout=0.5, batch_first=True), torch.randn(2, 7, 24)
    later = torch.ones(7, 7, dtype=torch.bool).triu(1)
    torch.manual_seed(5)
    plain, own = module(x, x, x, attn_mask=later)
    drawn = torch.rand(2)
    torch.manual_seed(5)
    with attnviz.capture(module) as captured:
        seen, averaged = module(x, x, x, attn_mask=later)
    assert torch.equal(drawn, torch.rand(2))
    torch.testing.assert_close(seen, plain)
    torch.testing.assert_close(averaged, own)  # those that the caller gets have seen dropout
    (call,) = captured.of("decoder")
    torch.testing.assert_close(call.weights.sum(-1), torch.ones(2, 3, 7))
    assert call.allowed is not None
    assert call.allowed.shape == (1, 1, 7, 7)
    assert (call.weights[..., later] == 0).all()
    assert module.training
    assert seen.requires_grad
    assert not call.weights.requires_grad


def test_what_the_caller_of_multihead_attention_asks_for_is_what_comes() -> None:
    module, x = nn.MultiheadAttention(24, 3, batch_first=True).eval(), torch.randn(5, 24)
    masks = torch.zeros(3, 5, 5)
    masks[1, :, 4] = -torch.inf
    with torch.no_grad(), attnviz.capture(module) as captured:
        assert module(x, x, x, need_weights=False)[1] is None
        assert module(x, x, x, average_attn_weights=False)[1].shape == (3, 5, 5)
        assert module(x, x, x, attn_mask=masks)[1].shape == (5, 5)
    assert [call.weights.shape for call in captured.calls] == [(1, 3, 5, 5)] * 3
    allowed = captured.calls[2].allowed
    assert allowed is not None
    assert allowed.shape == (1, 3, 5, 5)
    assert not allowed[0, 1, :, 4].any()
    assert allowed[0, 0].all()


def test_extra_keys_are_open_to_all() -> None:
    module = nn.MultiheadAttention(24, 3, add_zero_attn=True, batch_first=True).eval()
    x, padding = torch.randn(2, 5, 24), torch.zeros(2, 5, dtype=torch.bool)
    padding[0, 4] = True
    with torch.no_grad(), attnviz.capture(module) as captured:
        module(x, x, x, key_padding_mask=padding)
    call = captured.calls[0]
    assert call.weights.shape == (2, 3, 5, 6)
    assert call.allowed is not None
    assert call.allowed[0, 0, 0].tolist() == [True] * 4 + [False, True]


def test_a_transformer_of_torch_has_three_towers() -> None:
    layer = nn.TransformerDecoderLayer(24, 3, 29, batch_first=True)
    parts = {"custom_encoder": _encoder(), "custom_decoder": nn.TransformerDecoder(layer, 2)}
    model = nn.Transformer(24, 3, batch_first=True, **parts).eval()
    with torch.no_grad(), attnviz.capture(model) as captured:
        model(torch.randn(2, 7, 24), torch.randn(2, 5, 24))
    shapes = {tower: captured.of(tower)[1].weights.shape for tower in captured.towers}
    assert shapes == {"encoder": (2, 4, 7, 7), "decoder": (2, 3, 5, 5), "cross": (2, 3, 5, 7)}


# ── modules with code of their own ───────────────────────────────────────────────────────────


class OwnAttention(nn.Module):
    """Attention in the words of `compute`."""

    def __init__(self, compute: Any) -> None:
        super().__init__()
        self.compute, self.num_heads = compute, 3

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> Any:
        return self.compute(q, k)


def _softmax(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return nn.functional.softmax(q @ k.transpose(-1, -2), dim=-1) @ k


def _sdpa(**how: Any) -> Any:
    return lambda q, k: nn.functional.scaled_dot_product_attention(q, k, k, **how)


Q, K = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8)
LATER = torch.ones(5, 5, dtype=torch.bool).triu(1)


@pytest.mark.parametrize(
    ("how", "scale", "masked"),
    [
        ({}, 8**-0.5, None),
        ({"is_causal": True}, 8**-0.5, LATER),
        ({"attn_mask": ~LATER, "scale": 0.5}, 0.5, LATER),
        ({"attn_mask": torch.zeros(5, 5).masked_fill(LATER, -torch.inf)}, 8**-0.5, LATER),
    ],
    ids=["plain", "causal", "boolean", "added"],
)
def test_a_fused_kernel_is_computed_again_from_what_it_was_given(
    how: dict[str, Any], scale: float, masked: torch.Tensor | None
) -> None:
    model = OwnAttention(_sdpa(**how))
    with torch.no_grad(), attnviz.capture(model, keep=("q",)) as captured:
        model(Q, K)
    scores = Q.double() @ K.double().transpose(-1, -2) * scale
    if masked is not None:
        scores = scores.masked_fill(masked, -torch.inf)
    call = captured.calls[0]
    torch.testing.assert_close(call.weights.double(), scores.softmax(-1), atol=1e-6, rtol=0)
    assert call.scale == pytest.approx(scale)
    assert torch.equal(call.q, Q)
    assert captured.towers == (("encoder",) if masked is None else ("decoder",))


def test_a_fused_kernel_with_grouped_keys() -> None:
    few = torch.randn(2, 1, 5, 8)
    model = OwnAttention(_sdpa(enable_gqa=True))
    with torch.no_grad(), attnviz.capture(model) as captured:
        model(Q, few)
    expected = (Q @ few.transpose(-1, -2) * 8**-0.5).softmax(-1)
    torch.testing.assert_close(captured.calls[0].weights, expected)


def test_heads_folded_into_the_batch_are_unfolded() -> None:
    model = OwnAttention(_softmax)
    with torch.no_grad(), attnviz.capture(model) as captured:
        model(Q.flatten(0, 1), K.flatten(0, 1))
    expected = (Q @ K.transpose(-1, -2)).softmax(-1)
    torch.testing.assert_close(captured.calls[0].weights, expected)
    assert with_heads(torch.ones(7, 5, 5), model) is None


def test_a_softmax_along_another_axis_is_none_of_attention() -> None:
    with Spy() as spy:
        torch.softmax(Q, 1)
        Q[0, 0].softmax(-1)
    assert spy.sights == []


# ── what cannot be seen ──────────────────────────────────────────────────────────────────────


def test_a_model_without_attention() -> None:
    model = nn.Sequential(nn.Linear(3, 5))
    assert places(model) == {}
    with (
        pytest.raises(InputError) as error,
        attnviz.capture(model),
    ):
        model(torch.ones(3))
    assert str(error.value) == (
        "no attention of Sequential could be seen: it has no module that transformers or torch "
        "knows as attention"
    )


def test_attention_in_pieces() -> None:
    model = OwnAttention(lambda q, k: _softmax(q, k) + _softmax(k, q))
    with pytest.raises(InputError) as error, attnviz.capture(model):
        model(Q, K)
    assert str(error.value) == (
        "no attention of OwnAttention could be seen: OwnAttention computes its attention in 2 "
        "pieces, not whole"
    )


def test_weights_of_an_unknown_shape() -> None:
    model = OwnAttention(_softmax)
    with pytest.raises(InputError) as error, attnviz.capture(model):
        model(torch.randn(7, 5, 8), torch.randn(7, 5, 8))
    assert str(error.value) == (
        "no attention of OwnAttention could be seen: OwnAttention has weights of shape "
        "[7, 5, 5], not [B H Tq Tk]"
    )


def test_weights_whose_axes_are_not_what_they_seem() -> None:
    """Longformer has [B Tq H window]."""
    model = OwnAttention(lambda q, k: _softmax(q.transpose(1, 2), k.transpose(1, 2)))
    with pytest.raises(InputError) as error, attnviz.capture(model):
        model(Q, K)
    assert str(error.value) == (
        "no attention of OwnAttention could be seen: OwnAttention has weights of shape "
        "[2, 5, 3, 3], not [B H Tq Tk]"
    )


def test_a_tower_that_cannot_be_seen_beside_others() -> None:
    model = tiny("LongT5Model", **T5).network
    with torch.no_grad(), attnviz.capture(model) as captured:
        model(input_ids=IDS, decoder_input_ids=IDS[:, :5])
    assert captured.towers == ("decoder", "cross")
    with pytest.raises(InputError) as error:
        captured.of("encoder")
    assert str(error.value) == (
        "the encoder's attention cannot be seen: LongT5LocalAttention computes its attention in 1 "
        "piece, not whole"
    )


def test_another_mean_of_the_same_weights_is_no_other_attention() -> None:
    sizes = LLAMA | {"num_attention_heads": 4, "attention_dropout": 0.0}
    model = tiny("DiffLlamaModel", **sizes).network
    with torch.no_grad(), attnviz.capture(model) as captured:
        model(IDS)
    assert [call.layer for call in captured.calls] == [0, 1]


def test_attention_that_did_not_run() -> None:
    model = OwnAttention(lambda q, k: q)
    with pytest.raises(InputError) as error, attnviz.capture(model):
        model(Q, K)
    assert str(error.value) == (
        "no attention of OwnAttention could be seen: no softmax over keys ran in its attention"
    )


def test_a_model_that_did_not_run_is_no_failure() -> None:
    with attnviz.capture(nn.Linear(3, 5)) as captured:
        pass
    with pytest.raises(InputError) as error:
        captured.of()
    assert str(error.value) == "a tower has to be named; captured are none"


def test_unknown_names() -> None:
    model = tiny("T5Model", **T5).network
    with pytest.raises(InputError) as error, attnviz.capture(model, keep=["logits"]):
        pass
    assert str(error.value) == "keep logits: known are q, k, v, context"
    with torch.no_grad(), attnviz.capture(model) as captured:
        model(input_ids=IDS, decoder_input_ids=IDS)
    with pytest.raises(InputError) as error:
        captured.of("vision")
    assert str(error.value) == "no tower vision; captured are encoder, decoder, cross"
    with pytest.raises(InputError) as error:
        captured.of()
    assert str(error.value) == "a tower has to be named; captured are encoder, decoder, cross"


def test_a_capture_inside_another_of_torchs_own_modules() -> None:
    model, x = _encoder().eval(), torch.randn(2, 5, 24)
    before = state(model)
    with torch.no_grad(), attnviz.capture(model) as outer, attnviz.capture(model, [1]) as inner:
        model(x)
    assert state(model) == before
    assert [call.layer for call in inner.calls] == [1]
    assert torch.equal(inner.calls[0].weights, outer.calls[1].weights)


def test_captures_of_two_models_may_end_in_any_order() -> None:
    one, other = (tiny("BertModel", **BERT).network for _ in range(2))
    encoder = _encoder().eval()
    before = [state(model) for model in (one, other, encoder)]
    first, second, third = (attnviz.capture(model) for model in (one, other, encoder))
    caught = [each.__enter__() for each in (first, second, third)]
    assert not torch.backends.mha.get_fastpath_enabled()
    first.__exit__(None, None, None)
    for model, given in ((one, IDS), (other, IDS), (encoder, torch.randn(2, 5, 24))):
        model(given)
    second.__exit__(None, None, None)
    third.__exit__(None, None, None)
    assert [len(each.calls) for each in caught] == [0, 2, 2]
    assert [state(model) for model in (one, other, encoder)] == before


def test_an_eager_function_that_somebody_registered_stays_there() -> None:
    def mine(*_: Any, **__: Any) -> None:
        raise AssertionError("the family's own is wanted")

    known = transformers.AttentionInterface._global_mapping
    transformers.AttentionInterface.register("eager", mine)
    try:
        model = tiny("BertModel", **BERT).network
        with torch.no_grad(), attnviz.capture(model) as captured:
            model(IDS)
        assert known["eager"] is mine
    finally:
        del known["eager"]
    assert len(captured.calls) == 2


def test_layers_that_run_again_for_their_gradients_count_once() -> None:
    model = tiny("LlamaModel", **LLAMA).network.train()
    model.activation_checkpointing_enable()
    with attnviz.capture(model) as captured:
        model(IDS, attention_mask=MASK, use_cache=False).last_hidden_state.sum().backward()
    assert [(call.layer, call.step) for call in captured.calls] == [(0, 0), (1, 0)]
    assert model.layers[0].self_attn.q_proj.weight.grad.abs().sum() > 0


def test_parts_of_a_model_that_are_called_by_themselves() -> None:
    model = tiny("T5Model", **T5).network
    with torch.no_grad(), attnviz.capture(model) as captured:
        seen = model.encoder(IDS).last_hidden_state
        model.encoder(IDS)
        model.decoder(IDS, encoder_hidden_states=seen)
        model(input_ids=IDS, decoder_input_ids=IDS)
    steps = {}
    for call in captured.calls:
        steps.setdefault(call.step, []).append((call.tower, call.layer))
    encoder = [("encoder", 0), ("encoder", 1)]
    rest = [("decoder", 0), ("cross", 0), ("decoder", 1), ("cross", 1)]
    assert steps == {0: encoder, 1: encoder + rest, 2: encoder + rest}


@pytest.mark.parametrize("kind", ["LlamaModel", "MPNetModel", "torch"])
def test_a_compiled_model_is_seen(kind: str) -> None:
    if kind == "torch":
        model, given = _encoder().eval(), torch.randn(2, 5, 24)
    else:
        model, given = tiny(kind, **(LLAMA if kind == "LlamaModel" else BERT)).network, IDS
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        compiled(given)
        with attnviz.capture(model) as plain:
            model(given)
        for captured_of in (compiled, model):
            with attnviz.capture(captured_of) as captured:
                compiled(given)
            assert [call.layer for call in captured.calls] == [0, 1]
            assert torch.equal(captured.calls[1].weights, plain.calls[1].weights)


class SelfAttention(nn.MultiheadAttention):
    """One argument fewer: it looks at itself."""

    def forward(self, x: torch.Tensor, **masks: Any) -> torch.Tensor:
        return super().forward(x, x, x, need_weights=False, **masks)[0]


@pytest.mark.parametrize("training", [False, True])
def test_a_subclass_of_multihead_attention_with_a_forward_of_its_own(training: bool) -> None:
    module = SelfAttention(24, 3, 0.4, batch_first=True).train(training)
    x = torch.randn(2, 5, 24)
    masks = {
        "attn_mask": torch.ones(5, 5, dtype=torch.bool).triu(1),
        "key_padding_mask": torch.tensor([[False] * 5, [False] * 3 + [True] * 2]),
    }
    torch.manual_seed(5)
    alone = module(x, **masks)
    torch.manual_seed(5)
    with attnviz.capture(module) as captured:
        seen = module(x, **masks)
    assert torch.equal(alone, seen)
    _, expected = nn.MultiheadAttention.forward(
        module.eval(), x, x, x, average_attn_weights=False, **masks
    )
    (call,) = captured.calls
    torch.testing.assert_close(call.weights, expected.detach())
    assert torch.equal(call.allowed.expand_as(expected), expected > 0)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"layers": [0, 99]}, "no layer 99; the model has 0, 1"),
        ({"layers": [-1]}, "no layer -1; the model has 0, 1"),
        ({"towers": ["vision"]}, "no tower vision; the model has cross, decoder, encoder"),
    ],
)
def test_layers_and_towers_that_are_not_there(wanted: dict[str, Any], message: str) -> None:
    model = tiny("T5Model", **T5).network
    with pytest.raises(InputError) as error, attnviz.capture(model, **wanted):
        pass
    assert str(error.value) == message


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_what_is_no_model() -> None:
    for given, kind in (("bert", "str"), (torch.jit.script(nn.ReLU()), "RecursiveScriptModule")):
        with pytest.raises(InputError) as error, attnviz.capture(given):
            pass
        assert str(error.value) == (
            f"capture takes the model itself, an nn.Module of Python, not a {kind}"
        )


def test_layers_from_a_generator() -> None:
    model = tiny("BertModel", **BERT).network
    with torch.no_grad(), attnviz.capture(model, (n for n in (0, 1))) as captured:
        model(IDS)
    assert [call.layer for call in captured.calls] == [0, 1]


# ── the layer's trace ────────────────────────────────────────────────────────────────────────


def test_the_trace_of_a_layer_is_what_ran() -> None:
    model = tiny("LlamaModel", **LLAMA).network
    with torch.no_grad(), attnviz.capture(model, layers=[1], trace=True) as captured:
        model(IDS, use_cache=False)
    steps = {step.name: step for step in captured.calls[0].steps}
    axes = {name: (" ".join(step.axes), step.shape) for name, step in steps.items()}
    assert axes == {
        "q_projected": ("B Tq H·d_k", (2, 7, 48)),
        "k_projected": ("B Tk Hkv·d_k", (2, 7, 16)),
        "v_projected": ("B Tk Hkv·d_v", (2, 7, 16)),
        "q_rotated": ("B H Tq d_k", (2, 6, 7, 8)),
        "k_rotated": ("B Hkv Tk d_k", (2, 2, 7, 8)),
        "v": ("B Hkv Tk d_v", (2, 2, 7, 8)),
        "allowed": ("B 1 Tq Tk", (2, 1, 7, 7)),
        "weights": ("B H Tq Tk", (2, 6, 7, 7)),
        "context": ("B H Tq d_v", (2, 6, 7, 8)),
        "projected": ("B Tq d_model", (2, 7, 24)),
    }
    assert steps["v"].is_view
    assert steps["q_projected"].n_parameters == 24 * 48
    assert steps["projected"].matmul_flops == 2 * 2 * 7 * 24 * 48
    assert {step.source for step in steps.values()} == {captured.calls[0].source}


def test_a_matrix_that_lies_the_other_way_is_seen_without_its_parameters() -> None:
    model = tiny("GPT2Model", **GPT2).network
    with torch.no_grad(), attnviz.capture(model, trace=True) as captured:
        model(IDS)
    first = captured.calls[0].steps[0]
    assert (first.name, first.shape, first.summed) == ("qkv", (2, 7, 72), 24)
    assert first.n_parameters == 0
    assert captured.calls[1].steps == ()
