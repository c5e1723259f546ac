"""Arrays that somebody else made: axes, tokens, layers, scores; and files that are none of it."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from attnviz.errors import InputError
from attnviz.result import Attention
from attnviz.saved_runs import load, metadata_of, save
from attnviz.sources.bare_arrays import BareArray, open_attention, read_attention, softmax_of

SIZES = {"L": 2, "B": 3, "H": 5, "Q": 7, "K": 11}


def weights(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """Rows that sum to 1."""
    drawn = np.random.default_rng(seed).random(shape) + 0.01
    return (drawn / drawn.sum(-1, keepdims=True)).astype(dtype)


def fails(*given: Any, **more: Any) -> str:
    with pytest.raises(InputError) as caught:
        read_attention(*given, **more)
    message = str(caught.value)
    assert message.isprintable()
    return message


# ── axes ─────────────────────────────────────────────────────────────────────────────────────


@given(st.data())
def test_every_order_of_every_axes_is_the_same_attention(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """The oracle: where a letter stands is where einsum takes its axis from."""
    some = data.draw(st.sets(st.sampled_from("LBH")))
    letters = "".join(data.draw(st.permutations([*some, "Q", "K"])))
    array = np.arange(np.prod([SIZES[c] for c in letters]), dtype=np.float64)
    array = array.reshape([SIZES[c] for c in letters])
    path = tmp_path_factory.getbasetemp() / "any.npy"
    order = "F" if data.draw(st.booleans()) else "C"
    np.save(path, np.asarray(array, dtype=data.draw(st.sampled_from(["<f4", ">f8"])), order=order))
    typed = data.draw(st.sampled_from([letters, " ".join(letters), ", ".join(letters.lower())]))
    result, notices = read_attention(path, axes=typed)
    there = "".join(c for c in "LBHQK" if c in letters)
    expected = np.einsum(f"{letters.lower()}->{there.lower()}", array)
    expected = expected.reshape([SIZES[c] if c in letters else 1 for c in "LBHQK"])
    np.testing.assert_array_equal(result.attention, expected)
    assert notices[0].split(": ")[1] == f"read as {' '.join(letters)}"


READ_AS = {
    2: "a.npy: read as Q K: 7 queries × 11 keys",
    3: "a.npy: read as H Q K: 5 heads, 7 queries × 11 keys; for layers or sequences, "
    '--axes "L Q K" or "B Q K"',
    4: "a.npy: read as B H Q K: 3 sequences, 5 heads, 7 queries × 11 keys; "
    'for layers × heads, --axes "L H Q K"',
    5: "a.npy: read as L B H Q K: 2 layers, 3 sequences, 5 heads, 7 queries × 11 keys",
}


@pytest.mark.parametrize("n", READ_AS)
def test_the_usual_order_is_assumed_and_said(here: Path, n: int) -> None:
    array = weights(*list(SIZES.values())[5 - n :])
    np.save("a.npy", array)
    result, notices = read_attention("a.npy")
    assert notices == [READ_AS[n]]
    np.testing.assert_array_equal(result.attention.reshape(array.shape), array)
    assert result.attention.ndim == 5
    assert (result.source, result.masks, result.trained) == ("a.npy", ("unknown",), True)
    assert result.allowed.all()


@pytest.mark.parametrize(
    ("shape", "axes", "message"),
    [
        ((11,), None, "a.npy has 1 axis, shape [11]; attention has from 2 to 5 axes"),
        ((), None, "a.npy has 0 axes, shape []; attention has from 2 to 5 axes"),
        (
            (1, 1, 1, 1, 2, 3),
            None,
            "a.npy has 6 axes, shape [1, 1, 1, 1, 2, 3]; attention has from 2 to 5 axes",
        ),
        ((3, 0, 5), None, "a.npy has shape [3, 0, 5]: there is nothing in it"),
        (
            (3, 5, 7),
            "H Q",
            "a.npy cannot be read by --axes 'H Q': Q and K, queries and keys, are needed",
        ),
        (
            (3, 5, 7),
            "Q K",
            "a.npy cannot be read by --axes 'Q K': it has 3 axes, shape [3, 5, 7]",
        ),
        ((3, 5, 7), "H Q Q", "a.npy cannot be read by --axes 'H Q Q': Q stands twice"),
        ((3, 5, 7), "H Q X", "a.npy cannot be read by --axes 'H Q X': X is none of L B H Q K"),
        ((3, 5, 7), "\x1b", "a.npy cannot be read by --axes '\\x1b': \\x1b is none of L B H Q K"),
    ],
)
def test_axes_that_do_not_fit(
    here: Path, shape: tuple[int, ...], axes: str | None, message: str
) -> None:
    np.save("a.npy", np.ones(shape, dtype=np.float32))
    assert fails("a.npy", axes=axes) == message


# ── numbers ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("given", "becomes", "said"),
    [
        ("<f2", "float16", ""),
        (">f2", "float16", ""),
        (">f4", "float32", ""),
        ("<f8", "float64", ""),
        ("longdouble", "float64", "; float128 becomes float64"),
        ("?", "float32", "; bool becomes float32"),
        ("u1", "float32", "; uint8 becomes float32"),
        (">i8", "float32", "; int64 becomes float32"),
    ],
)
def test_each_type_of_number(here: Path, given: str, becomes: str, said: str) -> None:
    array = np.eye(5)[None].repeat(3, axis=0).astype(given)
    np.save("a.npy", array)
    result, notices = read_attention("a.npy", axes="HQK")
    assert result.attention.dtype == becomes
    assert result.attention.dtype.isnative
    assert result.config == {"dtype": becomes}
    np.testing.assert_array_equal(result.attention[0, 0], np.eye(5)[None].repeat(3, axis=0))
    assert notices == [f"a.npy: read as H Q K: 3 heads, 5 queries × 5 keys{said}"]


def test_bfloat16_as_jax_saves_it_and_as_safetensors_does(here: Path) -> None:
    tensor = torch.rand(3, 5, 7).bfloat16()
    np.save("a.npy", np.asarray(tensor.view(torch.int16)).view("V2"))
    save_torch({"a": tensor}, "a.safetensors")
    torch.save(tensor, "a.pt")
    for name in ("a.npy", "a.safetensors", "a.pt"):
        result, notices = read_attention(name)
        assert notices[0].endswith("; bfloat16 becomes float32")
        np.testing.assert_array_equal(result.attention[0, 0], tensor.float().numpy())
        turned, _ = read_attention(name, axes="K H Q")
        expected = tensor.float().numpy().transpose(1, 2, 0)
        np.testing.assert_array_equal(turned.attention[0, 0], expected)


@given(
    arrays.arrays(
        np.float64,
        (3, 5),
        elements=st.one_of(st.floats(-1e300, 1e300), st.sampled_from([-np.inf, -1e9, 0.0])),
    ),
    arrays.arrays(bool, (3, 5)),
)
def test_softmax_is_torchs_and_finite(scores: np.ndarray, allowed: np.ndarray) -> None:
    given_to_torch = torch.from_numpy(np.where(allowed, scores, -np.inf))
    expected = torch.softmax(given_to_torch, -1).nan_to_num(0).numpy()  # NaN: nothing is allowed
    got = softmax_of(scores, allowed)
    assert got.dtype == scores.dtype
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    assert not got[~allowed].any()


def test_scores_become_weights(here: Path) -> None:
    scores = np.random.default_rng(0).normal(size=(2, 5, 7)).astype(np.float16) * 9
    scores[0, 1] = -np.inf  # a row that sees nothing
    scores[1, 2, 3] = np.nan
    np.save("s.npy", scores)
    result, _ = read_attention("s.npy", softmax=True)
    assert (result.source, result.attention.dtype) == ("softmax of s.npy", np.float32)
    expected = torch.softmax(torch.from_numpy(scores).double(), -1).numpy()
    expected[0, 1] = 0
    np.testing.assert_allclose(result.attention[0, 0], expected, rtol=1e-5)
    assert np.isnan(result.attention[0, 0, 1, 2]).all()


def test_scores_are_shared_among_the_keys_that_the_mask_allows(here: Path) -> None:
    scores = np.random.default_rng(0).normal(size=(3, 5, 5))
    np.save("s.npy", scores)
    bare = open_attention("s.npy")
    assert isinstance(bare, BareArray)
    for allowed in (
        np.tri(5, dtype=bool)[None, None],
        np.eye(5, dtype=bool)[None, None].repeat(3, 1),
    ):
        result = bare.read(*bare.batches(), softmax=True, allowed=allowed, masks=("mine",))
        expected = torch.softmax(
            torch.from_numpy(scores).masked_fill(~torch.from_numpy(allowed[0]), -torch.inf), -1
        )
        np.testing.assert_allclose(result.attention[0, 0], expected, rtol=1e-12)
        assert result.masks == ("mine",)
        np.testing.assert_array_equal(result.allowed[0], allowed)


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (np.ones((2, 2), dtype=complex), "complex128"),
        (np.array([["a", "b"]]), "<U1"),
        (np.ones((2, 2), dtype="M8[s]"), "datetime64[s]"),
        (np.ones((2, 2), dtype="V3"), "|V3"),
        (np.ones((2, 2), dtype=[("a", "f4")]), "[('a', '<f4')]"),
    ],
)
def test_what_is_no_number(here: Path, array: np.ndarray, kind: str) -> None:
    np.save("a.npy", array)
    assert fails("a.npy") == f"a.npy holds {kind}; attention is real numbers"


# ── layers, and several in a file ────────────────────────────────────────────────────────────

LAYERS = [weights(1, 5, 7, 7, seed=i) for i in range(3)]


def as_pt(path: str, layers: list[np.ndarray], kind: Callable[[Any], Any] = tuple) -> None:
    torch.save(kind(torch.from_numpy(layer) for layer in layers), path)


def test_layers_of_every_form_are_one_attention(here: Path) -> None:
    as_pt("tuple.pt", LAYERS)
    as_pt("list.pth", LAYERS, list)
    torch.save({"attentions": tuple(map(torch.from_numpy, LAYERS)), "step": 3}, "dict.pt")
    torch.save({"model": {"a": tuple(map(torch.from_numpy, LAYERS))}}, "nested.pt")
    torch.save(
        OrderedDict((f"layer.{i}", torch.from_numpy(a)) for i, a in enumerate(LAYERS)), "od.pt"
    )
    np.savez("each.npz", *LAYERS)
    np.savez_compressed("small.npz", *LAYERS)
    save_file({f"attn.{i}": layer for i, layer in enumerate(LAYERS)}, "each.safetensors")
    expected = np.stack(LAYERS)
    said = "read as L B H Q K: 3 layers, 1 sequence, 5 heads, 7 queries × 7 keys"
    names = {
        "tuple.pt": "",
        "list.pth": "",
        "dict.pt": "attentions ",
        "nested.pt": "a ",
        "od.pt": "layer ",
        "each.npz": "arr ",
        "small.npz": "arr ",
        "each.safetensors": "attn ",
    }
    for file, name in names.items():
        result, notices = read_attention(file)
        assert notices == [f"{file}: {name}{said}"]
        np.testing.assert_array_equal(result.attention, expected, err_msg=file)


def test_layers_of_other_axes(here: Path) -> None:
    as_pt("a.pt", [layer[0] for layer in LAYERS])
    expected = np.stack(LAYERS)
    for axes in (None, "H Q K", "L H Q K"):
        np.testing.assert_array_equal(read_attention("a.pt", axes=axes)[0].attention, expected)
    turned = read_attention("a.pt", axes="K H Q")[0].attention
    np.testing.assert_array_equal(turned, np.stack([a.transpose(0, 2, 3, 1) for a in LAYERS]))
    as_pt("one.pt", LAYERS[:1])
    np.testing.assert_array_equal(read_attention("one.pt")[0].attention, expected[:1])
    assert fails("a.pt", axes="Q L H K") == (
        "a.pt cannot be read by --axes 'Q L H K': L stands twice"
    )
    torch.save([torch.ones(5), torch.ones(5)], "flat.pt")
    assert fails("flat.pt") == (
        "flat.pt has 1 axis, shape [5]; attention has from 2 to 4 axes for a layer"
    )


def test_mixed_types_meet_in_one_that_holds_both(here: Path) -> None:
    torch.save((torch.eye(5)[None].half(), torch.eye(5)[None].bfloat16()), "a.pt")
    result, notices = read_attention("a.pt")
    assert result.attention.dtype == np.float32
    assert notices[0].endswith("; bfloat16 and float16 become float32")
    np.testing.assert_array_equal(result.attention[:, 0, 0], np.stack([np.eye(5)] * 2))


def test_one_of_an_encoder_decoders_three(here: Path) -> None:
    parts = {"encoder": 7, "decoder": 5, "cross": 11}
    everything = {
        f"{name}_attentions": tuple(torch.full((1, 2, 5, n), 1 / n) for _ in range(3))
        for name, n in parts.items()
    }
    torch.save({**everything, "loss": 3.0, "tokens": ["a"]}, "t5.pt")
    for name, n in parts.items():
        result, notices = read_attention("t5.pt", attention=name)
        assert result.attention.shape == (3, 1, 2, 5, n)
        assert result.source == f"t5.pt, {name}_attentions"
        assert notices[0].startswith(f"t5.pt: {name}_attentions read as L B H Q K: ")
    held = "encoder_attentions, decoder_attentions, cross_attentions"
    assert fails("t5.pt") == f"t5.pt holds {held}; --attention NAME says which"
    assert fails("t5.pt", attention="self") == f"t5.pt has no attention 'self'; it holds {held}"


def test_the_one_that_is_called_attention(here: Path) -> None:
    """What a model of transformers returns, as a dict."""
    hidden = torch.ones(1, 7, 11)
    layers = tuple(map(torch.from_numpy, LAYERS))
    torch.save({"last_hidden_state": hidden, "pooler_output": hidden, "attentions": layers}, "a.pt")
    result, notices = read_attention("a.pt")
    assert notices[0].startswith("a.pt: attentions read as L B H Q K: 3 layers, ")
    np.testing.assert_array_equal(result.attention, np.stack(LAYERS))
    save_file({"k": LAYERS[0], "Self_Attn": LAYERS[1]}, "a.safetensors")
    np.testing.assert_array_equal(read_attention("a.safetensors")[0].attention[0], LAYERS[1])


def test_a_models_own_output_is_read_when_saved_with_torch(here: Path) -> None:
    """The oracle is transformers: what its model returned is what is drawn."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 30, "num_hidden_layers": 2, "num_attention_heads": 3}
    config = BertConfig(vocab_size=11, intermediate_size=13, attn_implementation="eager", **sizes)
    with torch.no_grad():
        outputs = BertModel(config).eval()(
            input_ids=torch.randint(11, (2, 7)),
            attention_mask=torch.arange(7)[None] < torch.tensor([[7], [5]]),
            output_attentions=True,
        )
    torch.save(outputs.attentions, "a.pt")
    result, _ = read_attention("a.pt", lengths=[7, 5])
    np.testing.assert_array_equal(result.attention, torch.stack(outputs.attentions))
    assert not result.attention[:, 1, :, :5, 5:].any()  # padding was masked by the model
    torch.save(outputs, "b.pt")
    assert "holds pickled Python objects (transformers.modeling_outputs" in fails("b.pt")


def test_one_array_among_several(here: Path) -> None:
    both = {"mine": weights(5, 7, 7), "yours": weights(3, 7, 7)}
    np.savez("a.npz", **both)
    save_file(both, "a.safetensors")
    for file in ("a.npz", "a.safetensors"):
        assert fails(file) == f"{file} holds mine, yours; --attention NAME says which"
        result, _ = read_attention(file, attention="yours")
        np.testing.assert_array_equal(result.attention[0, 0], both["yours"])
    np.savez("many.npz", **{f"a{i}b": weights(2, 2) for i in range(10)})
    assert fails("many.npz") == (
        "many.npz holds a0b, a1b, a2b, a3b, a4b, a5b, a6b, a7b and 2 more; "
        "--attention NAME says which"
    )
    np.savez("gap.npz", a_0=weights(2, 2), a_2=weights(2, 2))  # no layer 1: not one attention
    assert fails("gap.npz") == "gap.npz holds a_0, a_2; --attention NAME says which"
    np.save("a.npy", both["mine"])
    torch.save(torch.from_numpy(both["mine"]), "a.pt")
    one = "without a name; --attention is for files of several"
    assert fails("a.npy", attention="mine") == f"a.npy holds one array, {one}"
    assert fails("a.pt", attention="mine") == f"a.pt holds one attention, {one}"


def test_layers_that_do_not_fit_each_other(here: Path) -> None:
    as_pt("a.pt", [weights(1, 5, 7, 7), weights(1, 5, 7, 7), weights(1, 5, 7, 11)])
    assert fails("a.pt") == (
        "a.pt has layers of different sizes: layer 0 is [1, 5, 7, 7], layer 2 is [1, 5, 7, 11]"
    )
    torch.save((torch.ones(1, 5, 7, 7), None), "b.pt")
    assert fails("b.pt") == (
        "b.pt is no attention: layer 1 of it is None; transformers returns attention with "
        'attn_implementation="eager" only'
    )
    torch.save({"cross_attentions": (None, None), "loss": 3.0}, "c.pt")
    assert fails("c.pt").startswith("c.pt is no attention: layer 0 of it is None; ")


# ── tokens ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def two(here: Path) -> str:
    """Two sequences of five."""
    np.save("two.npy", weights(2, 3, 5, 5))
    return "two.npy"


def test_positions_name_what_has_no_tokens(two: str) -> None:
    result, _ = read_attention(two)
    assert result.query_tokens == (tuple("01234"),) * 2
    assert not result.is_cross
    result, _ = read_attention(two, lengths=[5, 3])
    assert result.query_tokens == (tuple("01234"), ("0", "1", "2", "[PAD]", "[PAD]"))
    assert result.lengths.tolist() == result.key_lengths.tolist() == [5, 3]
    result, _ = read_attention(two, lengths=[2, 5], pad_side="left")
    assert result.query_tokens == (("[PAD]",) * 3 + ("0", "1"), tuple("01234"))
    assert result.pad_side == "left"


CAT, DOG = list("猫坐在垫子"), ["狗", "跑", "[PAD]", "[PAD]", "[PAD]"]


def test_tokens_from_each_kind_of_file(two: str) -> None:
    Path("t.json").write_text(json.dumps([CAT, DOG]))
    Path("t.jsonl").write_text(f"{json.dumps(CAT)}\n\n{json.dumps({'tokens': DOG[:2]})}\n")
    Path("t.txt").write_text("\n".join([*CAT, "", "", *DOG]) + "\n", encoding="utf-8-sig")
    Path("w.txt").write_bytes("\r\n".join([*CAT, "", *DOG[:2], ""]).encode())
    for name in ("t.json", "t.jsonl", "t.txt", "w.txt"):
        result, _ = read_attention(two, tokens=Path(name))
        assert result.query_tokens == (tuple(CAT), tuple(DOG)), name
        assert result.key_tokens == result.query_tokens
        assert (result.lengths.tolist(), result.pad_side) == ([5, 2], "right")


def test_tokens_stand_as_they_are(two: str) -> None:
    hostile = ["$\\frac", "[red]", " ", "\u202e", "</script>"]
    Path("t.txt").write_text("\n".join(hostile), encoding="utf-8")
    result, _ = read_attention(two, tokens=Path("t.txt"))
    assert result.query_tokens == (tuple(hostile),) * 2  # one list serves both
    assert read_attention(two, tokens=[hostile])[0].query_tokens == result.query_tokens


def test_padding_on_the_left_is_told_by_the_tokens(two: str) -> None:
    left = [list("abcde"), ["<pad>", "<pad>", "x", "[PAD]", "y"]]
    result, _ = read_attention(two, tokens=left)
    assert (result.lengths.tolist(), result.pad_side) == ([5, 3], "left")
    assert result.query_tokens[1] == ("[PAD]", "[PAD]", "x", "[PAD]", "y")
    result, _ = read_attention(two, tokens=[list("abcde"), ["[PAD]"] * 5])
    assert result.lengths.tolist() == [5, 0]


def test_lengths_cut_tokens(two: str) -> None:
    result, _ = read_attention(two, tokens=[list("abcde")], lengths=[5, 3])
    assert result.query_tokens == (tuple("abcde"), ("a", "b", "c", "[PAD]", "[PAD]"))
    result, _ = read_attention(two, tokens=[list("abcde")], lengths=[5, 3], pad_side="left")
    assert result.query_tokens[1] == ("[PAD]", "[PAD]", "c", "d", "e")
    result, _ = read_attention(two, tokens=[list("abc"), list("de")], lengths=[3, 2])
    assert result.query_tokens == (tuple("abc") + ("[PAD]",) * 2, tuple("de") + ("[PAD]",) * 3)


def test_keys_of_their_own(here: Path) -> None:
    np.save("x.npy", weights(2, 3, 5, 7))
    result, _ = read_attention("x.npy", tokens=[list("abcde")], key_tokens=[list("tuvwxyz")])
    assert result.is_cross
    assert result.key_tokens == (tuple("tuvwxyz"),) * 2
    result, _ = read_attention("x.npy", lengths=[5, 4], key_lengths=[7, 2])
    assert (result.lengths.tolist(), result.key_lengths.tolist()) == ([5, 4], [7, 2])
    result, _ = read_attention("x.npy", lengths=[5, 4])
    assert result.key_lengths.tolist() == [7, 7]  # the keys' own are not told


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"tokens": [list("abcd")]}, "the queries: 4 tokens, and the array has 5 queries"),
        (
            {"tokens": [list("abcdefg")]},
            "the queries: 7 tokens, and the array has 5 queries; --key-tokens names its keys",
        ),
        ({"key_tokens": [list("abcd")]}, "the keys: 4 tokens, and the array has 7 keys"),
        (
            {"tokens": [list("abcde")] * 3},
            "the queries: tokens of 3 sequences, and the array has 2 sequences",
        ),
        ({"lengths": [5]}, "1 length given, and the array has 2 sequences"),
        ({"lengths": [5, 6]}, "a length of 6, and the array has 5 queries"),
        ({"key_lengths": [-1, 2]}, "a length of -1, and the array has 7 keys"),
        (
            {"tokens": [list("abc"), list("de")], "lengths": [3, 3]},
            "sequence 1 has 2 tokens, and a length of 3 is given",
        ),
        (
            {"tokens": [["[PAD]", *"abcd"], [*"abcd", "[PAD]"]]},
            "there is padding on the left and on the right; one side is expected",
        ),
        (
            {"tokens": [[*"abcd", "[PAD]"]], "pad_side": "left"},
            "there is padding on the left and on the right; one side is expected",
        ),
        (
            {"lengths": [0, 0]},
            "there are no tokens: every sequence is empty or all padding; give a text",
        ),
        ({"tokens": Path("none.txt")}, "none.txt: no such file or directory"),
        ({"tokens": Path("empty.txt")}, "empty.txt holds no tokens"),
        ({"tokens": Path("bad.json")}, "bad.json, token 1 is 3; a non-empty string is expected"),
        ({"tokens": Path("bad.txt")}, "bad.txt is not utf-8: byte 1 is 0xFF; save it as UTF-8"),
        (
            {"tokens": Path("wide.txt")},
            "wide.txt is not utf-8: byte 0 is 0xFF; it begins as UTF-16 does: save it as UTF-8",
        ),
    ],
)
def test_tokens_that_do_not_fit(here: Path, more: dict[str, Any], message: str) -> None:
    np.save("x.npy", weights(2, 3, 5, 7))
    Path("empty.txt").write_text("\n\n")
    Path("wide.txt").write_bytes("a b".encode("utf-16"))
    Path("bad.json").write_text('["a", 3]')
    Path("bad.txt").write_bytes(b"a\xff")
    got = fails("x.npy", **more)
    assert got.startswith(message) if message.endswith("; ") else got == message


def test_names_that_would_not_fit_in_memory(two: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnviz.machine.free_memory", lambda: 10)
    assert fails(two) == (
        "naming 2 × 10 tokens needs 3.91 KiB of memory and 10 B are free; give fewer"
    )


# ── saved runs ───────────────────────────────────────────────────────────────────────────────


def test_a_saved_run_comes_as_it_is(two: str) -> None:
    first, _ = read_attention(two, tokens=[CAT, DOG])
    save(first, Path("run.npz"))
    again, notices = read_attention("run.npz")
    assert notices == []
    assert metadata_of(again) == metadata_of(first) == metadata_of(load("run.npz"))
    np.testing.assert_array_equal(again.attention, first.attention)
    for flag, value in {"axes": "H Q K", "tokens": [CAT], "softmax": True, "lengths": [1]}.items():
        assert fails("run.npz", **{flag: value}) == (
            f"run.npz is a saved run, which knows its axes and tokens; --{flag} is for bare arrays"
        )


# ── memory ───────────────────────────────────────────────────────────────────────────────────


def test_numbers_that_need_no_change_stay_on_disk(here: Path) -> None:
    """A sparse file of 20 GB, of which one row is not zero."""
    shape = (500, 1, 10, 1000, 1000)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": shape}
    )
    row = np.arange(1000, dtype=np.float32)
    start = len(header.getvalue())
    with Path("huge.npy").open("wb") as file:
        file.write(header.getvalue())
        file.truncate(start + 4 * 500 * 10 * 1000 * 1000)
        file.seek(start + 4 * 1000 * 1000 * (10 * 321 + 7))
        file.write(row.tobytes())
    result, _ = read_attention("huge.npy")
    assert result.attention.shape == shape
    np.testing.assert_array_equal(result.attention[321, 0, 7, 0], row)
    assert not result.attention[321, 0, 7, 1].any()
    assert not result.attention.flags.writeable


def test_only_wanted_heads_are_changed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = np.random.default_rng(0).normal(size=(2, 3, 5, 7, 7))
    np.save("s.npy", scores)
    bare = open_attention("s.npy")
    assert isinstance(bare, BareArray)
    expected = np.zeros_like(scores)
    expected[1, 2, [0, 3]] = torch.softmax(torch.from_numpy(scores[1, 2, [0, 3]]), -1)
    result = bare.read(*bare.batches(), softmax=True, wanted=([1], [2], [0, 3]))
    np.testing.assert_allclose(result.attention, expected[1:], rtol=1e-12)
    assert result.layers == (1,)
    unchanged = bare.read(*bare.batches(), wanted=([1], [2], [0]))
    np.testing.assert_array_equal(unchanged.attention, scores[1:])
    assert unchanged.layers == (1,)
    turned = bare.read(*bare.batches(), softmax=True, wanted=([1, 0], range(3), range(5)))
    assert turned.layers == (1, 0)
    np.testing.assert_allclose(turned.attention[0, 2, 3], expected[1, 2, 3], rtol=1e-12)
    monkeypatch.setattr("attnviz.machine.free_memory", lambda: 10**4)
    with pytest.raises(InputError) as caught:
        bare.read(*bare.batches(), softmax=True)
    assert str(caught.value) == (
        "s.npy: 30 heads of 7 × 7 needs 13.8 KiB of memory and 9.77 KiB are free; "
        "choose fewer layers, heads or sequences"
    )


# ── files that are none of it ────────────────────────────────────────────────────────────────


class Evil:
    """A pickle that would leave a trace."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("pwned",))


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def bomb(path: str) -> None:
    """An archive of a few KiB that says it holds 4 GiB of zeros, and does hold 32 MiB."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1024, 1024, 1024)}\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        start = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
        archive.writestr("a.npy", start + bytes(2**25))


def pickled_bomb(path: str) -> None:
    """An archive of torch.save whose pickle is 32 MiB of zeros in a few KiB."""
    torch.save(torch.from_numpy(weights(3, 5, 5)), "plain.pt")
    with (
        zipfile.ZipFile("plain.pt") as plain,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name in plain.namelist():
            of_pickle = name.endswith("data.pkl")
            archive.writestr(name, bytes(2**25) if of_pickle else plain.read(name))


def on_two_disks(path: str) -> None:
    """The end of a zip64 archive that says it goes on elsewhere."""
    Path(path).write_bytes(
        b"PK\x06\x07" + bytes(12) + b"\x02" + bytes(3) + b"PK\x05\x06" + bytes(18)
    )


def safetensors(path: str, entry: dict[str, Any], size: int) -> None:
    header = json.dumps({"a": entry}).encode()
    Path(path).write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))


PICKLED = "which are never loaded; save tensors: torch.save(tuple(outputs.attentions), FILE)"

HOSTILE: dict[str, tuple[Callable[[str], object], str]] = {
    "object.npy": (
        lambda p: np.save(p, np.array([None], dtype=object), allow_pickle=True),
        " holds pickled Python objects, which are never loaded; save numbers",
    ),
    "pickle.npy": (
        lambda p: Path(p).write_bytes(pickle.dumps(weights(3, 5, 5))),
        " is not in NumPy's .npy form",
    ),
    "pickle.pt": (
        lambda p: Path(p).write_bytes(pickle.dumps({"a": Evil()})),
        " is not a file of torch.save, or is damaged",
    ),
    "evil.pt": (
        lambda p: torch.save({"attentions": Evil()}, p),
        f" holds pickled Python objects (posix.mkdir), {PICKLED}",
    ),
    "evil.npz": (
        lambda p: np.savez(p, a=np.array([Evil()], dtype=object)),
        " holds pickled Python objects, which are never loaded; save numbers",
    ),
    "short.npy": (
        lambda p: Path(p).write_bytes(npy(weights(3, 5, 5))[:-10]),
        " is damaged: shape [3, 5, 5] of float32 takes 300 bytes, and 290 are there",
    ),
    "bomb.npz": (
        bomb,
        " is damaged: shape [1024, 1024, 1024] of float32 takes 4294967296 bytes, "
        "and 33554432 are there",
    ),
    "bomb.pt": (pickled_bomb, " is a compressed archive, which torch.save never writes"),
    "disks.pt": (
        on_two_disks,
        " is a damaged file of torch.save: zipfiles that span multiple disks are not supported",
    ),
    "none.npz": (lambda p: np.savez(p), " holds no array"),
    "empty.npz": (lambda p: Path(p).touch(), " is empty"),
    "empty.pt": (lambda p: Path(p).touch(), " is empty"),
    "header.safetensors": (
        lambda p: Path(p).write_bytes((2**62).to_bytes(8, "little") + b"{}"),
        " is not a .safetensors file, or is damaged: Error while deserializing header: "
        "header too large",
    ),
    "far.safetensors": (
        lambda p: safetensors(
            p, {"dtype": "F32", "shape": [3, 5], "data_offsets": [0, 10**15]}, 60
        ),
        " is not a .safetensors file, or is damaged: Error while deserializing header: "
        "invalid shape, data type, or offset for tensor",
    ),
    "f8.safetensors": (
        lambda p: safetensors(
            p, {"dtype": "F8_E4M3", "shape": [3, 5], "data_offsets": [0, 15]}, 15
        ),
        " holds a as F8_E4M3, which NumPy lacks; save it as F32",
    ),
    "noise.pt": (
        lambda p: Path(p).write_bytes(bytes(range(256))),
        " is not a file of torch.save, or is damaged",
    ),
    "half.pt": (
        lambda p: (torch.save(torch.ones(5, 5), p), os.truncate(p, 500)),
        " is not a file of torch.save, or is damaged: ",
    ),
    "string.pt": (
        lambda p: torch.save("hello", p),
        " is no attention: it is a str; a tensor is expected",
    ),
    "number.pt": (lambda p: torch.save({"loss": 3.0}, p), " holds no array"),
    "nothing.pt": (
        lambda p: torch.save([], p),
        " is no attention: it is an empty list; transformers returns attention with "
        'attn_implementation="eager" only',
    ),
    "generated.pt": (
        lambda p: torch.save(((torch.ones(1, 3, 1, 5),),), p),
        " holds lists of lists, as `generate` returns them, step by step; save those of one "
        "forward pass",
    ),
    "sparse.pt": (
        lambda p: torch.save(torch.eye(5).to_sparse(), p),
        " is no attention: it is no dense tensor of numbers",
    ),
    "meta.pt": (
        lambda p: torch.save(torch.empty(3, 5, device="meta"), p),
        " is no attention: it is no dense tensor of numbers",
    ),
    "f8.pt": (
        lambda p: torch.save(torch.eye(5).to(torch.float8_e4m3fn), p),
        " is no attention: it is torch.float8_e4m3fn",
    ),
    "expanded.pt": (
        lambda p: torch.save(torch.ones(5, 5).expand(10**6, 10**6, 5, 5), p),
        " is no attention: it has shape [1000000, 1000000, 5, 5] and fewer numbers, which it "
        "repeats; save tensor.contiguous()",
    ),
    "bare.json": (
        lambda p: Path(p).write_text("[[1.0]]"),
        " is not a saved run: its metadata has no format 'attnviz.run'",
    ),
    "folder.npy": (lambda p: Path(p).mkdir(), ": is a folder"),
    "folder": (lambda p: Path(p).mkdir(), " is a folder; a file of attention is expected"),
    "a.txt": (
        lambda p: Path(p).write_text("1"),
        " has the suffix '.txt'; attention is read from .npy, .npz, .safetensors, .pt, .pth, .json",
    ),
    "a": (
        lambda p: Path(p).write_text("1"),
        " has no suffix; attention is read from .npy, .npz, .safetensors, .pt, .pth, .json",
    ),
    "a.npy.gz": (
        lambda p: Path(p).write_text("1"),
        " has the suffix '.gz'; attention is read from .npy, .npz, .safetensors, .pt, .pth, .json; "
        "unpack it first",
    ),
    "missing.npy": (lambda p: None, ": no such file or directory"),
    "missing": (lambda p: None, ": no such file or directory"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(here: Path, name: str) -> None:
    make, message = HOSTILE[name]
    make(name)
    got = fails(name).removeprefix(name)
    assert got.startswith(message) if message.endswith(": ") else got == message
    assert not Path("pwned").exists()


@given(
    st.binary(max_size=300), st.integers(0, 1500), st.sampled_from([".pt", ".npz", ".safetensors"])
)
def test_any_bytes_give_attention_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, place: int, suffix: str
) -> None:
    path = tmp_path_factory.getbasetemp() / f"noise{suffix}"
    stream = io.BytesIO()
    if suffix == ".pt":
        torch.save((torch.ones(1, 2, 3, 3),) * 2, stream)
    elif suffix == ".npz":
        np.savez(stream, weights(2, 3, 3))
    else:
        save_file({"a": weights(2, 3, 3)}, path)
        stream.write(path.read_bytes())
    data = stream.getvalue()
    path.write_bytes(data[:place] + noise + data[place + len(noise) :])
    try:
        result, _ = read_attention(path)
    except InputError as error:
        failure = str(error)
    else:
        assert isinstance(result, Attention)
        return
    assert failure.isprintable()


def test_old_files_of_torch_are_read(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.from_numpy(weights(3, 5, 5))
    torch.save(tensor.requires_grad_(), "old.pt", _use_new_zipfile_serialization=False)
    result, _ = read_attention("old.pt")
    np.testing.assert_array_equal(result.attention[0, 0], tensor.detach().numpy())
    monkeypatch.setattr("attnviz.machine.free_memory", lambda: 10)
    size = Path("old.pt").stat().st_size
    assert fails("old.pt") == (
        f"old.pt is a file of {size} B, which needs {2 * size / 1024:.3g} KiB of memory and 10 B "
        "are free; save it again"
    )
