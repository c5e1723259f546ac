"""Sources of a corpus: what they give is what a run of one text gives."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from attnviz.corpus.layers import Layers, Reading, open_layer, open_weights_file
from attnviz.corpus.models import Model
from attnviz.corpus.saved import Saved
from one_pass import from_config
from real_models import minilm, smollm2
from tiny_models import BERT, GPT2, LLAMA, T5, tiny

from attnviz.attention import Embedding, MultiHeadAttention
from attnviz.config import AttentionConfig
from attnviz.corpus import layers as layers_module
from attnviz.corpus import models as models_module
from attnviz.corpus import probing as probing_module
from attnviz.corpus import rows as rows_module
from attnviz.corpus.documents import Document
from attnviz.corpus.opening import open_model
from attnviz.corpus.probing import probe_induction
from attnviz.corpus.reader import CorpusReader, Ready
from attnviz.corpus.rolling import layer_means, rolled
from attnviz.errors import ConfigError, InputError
from attnviz.masks import rule
from attnviz.measures.block import Block
from attnviz.measures.flow import rollout
from attnviz.saved_runs import load, save
from attnviz.sources.from_weights import Asked
from attnviz.sources.saved_layers import save_layers
from attnviz.tokens import make_batch

SMALL = {"d_model": 22, "n_heads": 2, "d_k": 7, "dtype": "float64"}
WORDS = ("[PAD]", "[SEP]", "[CLS]", "[MASK]", *(f"w{i}" for i in range(40)))


def config(**changed: object) -> AttentionConfig:
    return AttentionConfig.from_sizes(**{**SMALL, **changed})  # type: ignore[arg-type]


def text(length: int, seed: int = 0) -> str:
    rng = np.random.default_rng(seed)
    return " ".join(f"w{i}" for i in rng.integers(0, 40, length))


def attended(source: CorpusReader, *documents: Document) -> list[Block]:
    """Copies of all blocks of one batch."""
    found: list[Block] = []

    def take(block: Block) -> None:
        assert block.allowed is not None
        found.append(
            Block(
                block.layer, block.weights.copy(), block.texts, block.allowed.copy(),
                block.start, first_head=block.first_head,
            )
        )  # fmt: skip

    source.attend([source.ready(document) for document in documents], take)
    return found


def test_a_layer_from_flags_is_that_of_run() -> None:
    source = open_layer(config(), WORDS, Reading(masks=(("causal", True),)))
    documents = [Document(3, "", text(11)), Document(4, "", text(7, 1))]
    (block,) = attended(source, *documents)
    tokens = [tuple(str(document.content).split()) for document in documents]
    batch = make_batch(tokens, WORDS)
    run = from_config(config(), batch, None, [rule("causal", batch, batch)]).result
    np.testing.assert_allclose(block.weights[0], run.attention[0, 0], atol=1e-14)
    np.testing.assert_allclose(
        block.weights[1, :, :7, :7], run.attention[0, 1, :, :7, :7], atol=1e-14
    )
    assert block.texts.numbers == (3, 4)
    assert block.texts.queries.real.sum(1).tolist() == [11, 7]
    assert block.allowed is not None
    assert not block.allowed[1, :, :, 7:].any()  # nobody looks at padding
    assert (source.n_layers, source.n_heads, source.layer_numbers) == (1, 2, (0,))
    assert source.name == "a layer from flags, untrained, seed 0"
    assert source.tokens(source.ready(documents[1])) == tokens[1]


@pytest.mark.parametrize("positions", ["none", "sinusoidal", "rope", "alibi"])
@pytest.mark.parametrize("heads", [2, 1])
@pytest.mark.parametrize("together", [2, 1])
def test_a_long_text_in_blocks_has_the_weights_of_the_whole(
    positions: str, heads: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = config(positions=positions, n_heads=2, n_kv_heads=heads, d_k=8, d_model=16)
    two = [MultiHeadAttention(sizes), MultiHeadAttention(config(**{**sizes.as_dict(), "seed": 5}))]
    reading = Reading(masks=(("causal", True), ("window", 300)))
    source = Layers(two, Embedding(sizes, len(WORDS)), WORDS, reading, "two")
    whole = attended(source, Document(0, "", text(523)))
    assert [block.weights.shape for block in whole] == [(1, 2, 523, 523)] * 2
    monkeypatch.setattr(layers_module, "LONGEST", 500)
    monkeypatch.setattr(rows_module, "MOST_HELD", 523 * 256 * together)
    parts = attended(source, Document(0, "", text(523)))
    assert len(parts) == 2 * (2 // together) * 3  # layers, heads, blocks of 256 rows
    for part in parts:
        rows = slice(part.start, part.start + part.weights.shape[2])
        one = whole[part.layer]
        np.testing.assert_allclose(part.weights, one.weights[:, part.heads, rows], atol=1e-12)
        assert one.allowed is not None
        assert part.allowed is not None
        np.testing.assert_array_equal(part.allowed[:, 0], one.allowed[:, 0, rows])


def test_what_a_reading_makes_of_documents() -> None:
    reading = Reading(max_len=3, masks=(("prefix", 2), ("segments", True)))
    assert reading.tokens(Document(0, "", "a b c d")) == (("a", "b", "c"), True)
    assert reading.tokens(Document(0, "", ("a b", "c"))) == (("a b", "c"), False)
    with pytest.raises(InputError, match=r"^has no tokens$"):
        reading.tokens(Document(0, "", "\u200b"))
    batch = make_batch([("a", "b")])
    assert [rule.name for rule in reading.rules(batch)] == ["padding", "prefix 2", "segments"]
    source = open_layer(config(), WORDS, Reading(max_len=3))
    assert source.ready(Document(0, "", "w1 w2 w3 w4")).cut
    with pytest.raises(InputError, match=r"^has the token 'w99', not in the vocabulary$"):
        source.ready(Document(0, "", "w99"))
    with pytest.raises(InputError, match=r"^is annotated, and is not cut$"):
        source.ready(Document(0, "", ("w1", "w2", "w3", "w4"), ()))
    with pytest.raises(InputError, match=r"^is annotated, and longer than 2,048 tokens$"):
        open_layer(config(), WORDS, Reading()).ready(Document(0, "", ("w1",) * 2049, ()))
    known = source.ready(Document(0, "", ("w1", "w2"), ((0, 1, ""),)))
    assert known.words == (0, 1)
    assert source.losses([known]) is None


def test_weights_of_a_file(here: Path) -> None:
    path = here / "two.safetensors"
    sizes = config(dtype="float32")
    torch.manual_seed(1)
    made = [MultiHeadAttention(sizes), MultiHeadAttention(config(dtype="float32", seed=9))]
    vocabulary = (*WORDS, "[UNK]")
    save_layers(path, made, Embedding(sizes, len(vocabulary)), vocabulary)
    source = open_weights_file(path, Asked(), vocabulary, Reading())
    blocks = attended(source, Document(0, "", text(5)), Document(1, "", "new w2"))
    own = Layers(made, Embedding(sizes, len(vocabulary)), vocabulary, Reading(), "")
    for found, expected in zip(
        blocks, attended(own, Document(0, "", text(5)), Document(1, "", "new w2")), strict=True
    ):
        np.testing.assert_array_equal(found.weights, expected.weights)
    assert source.ready(Document(1, "", "new w2")).ids == (len(vocabulary) - 1, 6)
    assert source.name == "weights of two.safetensors"


def test_layers_with_keys_of_their_own_are_refused() -> None:
    layer = MultiHeadAttention(config())
    layer.bias_k = torch.nn.Parameter(torch.zeros(14))
    with pytest.raises(InputError) as error:
        Layers([layer], Embedding(config(), 4), WORDS[:4], Reading(), "")
    assert str(error.value) == (
        "layers with keys that are no token's, or with a table of distances, are not measured over "
        "a corpus; attnviz run draws them"
    )


def test_a_probe_of_a_layer() -> None:
    source = open_layer(config(), WORDS, Reading())
    made = source.probe(2, seed=5)
    assert [len(each) for each in made] == [100, 100]
    assert made[0].tokens[:25] == made[0].tokens[25:50]
    assert not set(made[0].tokens) & {"[PAD]", "[SEP]", "[CLS]", "[MASK]"}
    probe = probe_induction(source, 5, sequences=2)
    assert (probe.first_copy, probe.later_copies) == (None, None)
    assert probe.scores["duplicate_token"].shape == (1, 2)
    with pytest.raises(InputError) as error:
        open_layer(config(), WORDS[:20], Reading()).probe(1, 0)
    assert str(error.value) == (
        "--probe induction wants 25 different tokens, and the vocabulary has 16 that are no "
        "special ones"
    )


def test_rollout_of_a_document() -> None:
    source = open_layer(config(), WORDS, Reading())
    ready = source.ready(Document(0, "", text(6)))
    (block,) = attended(source, Document(0, "", text(6)))
    means = layer_means(source, ready)
    np.testing.assert_allclose(means, block.weights.mean(1))
    result = rolled(source, ready, source.tokens(ready), "rollout")
    np.testing.assert_allclose(result.attention[:, 0, 0], rollout(means))
    assert result.query_tokens == (tuple(text(6).split()),)
    flowed = rolled(source, ready, source.tokens(ready), "flow")
    np.testing.assert_allclose(flowed.attention[0, 0, 0], rollout(means)[0], atol=1e-8)


def test_rollout_wants_maps_that_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers_module, "LONGEST", 5)
    source = open_layer(config(), WORDS, Reading())
    with pytest.raises(InputError, match=r"^rollout wants a text that looks at itself"):
        layer_means(source, source.ready(Document(0, "", text(300))))


# ── saved runs ───────────────────────────────────────────────────────────────────────────────


def saved(path: Path, *lengths: int, pad_side: str = "right", **sizes: object) -> None:
    tokens = [tuple(text(n, n).split()) for n in lengths]
    batch = make_batch(tokens, WORDS, pad_side=pad_side)
    save(from_config(config(**sizes), batch).result, path)


@pytest.mark.parametrize("pad_side", ["left", "right"])
def test_saved_runs(here: Path, pad_side: str) -> None:
    saved(here / "a.npz", 5, 3, pad_side=pad_side)
    saved(here / "b.npz", 4)
    source = Saved([here / "a.npz", here / "b.npz"])
    documents = [found for found, _ in source.documents()]
    assert [each.name for each in documents] == [
        "a.npz, sequence 0", "a.npz, sequence 1", "b.npz, sequence 0"
    ]  # fmt: skip
    assert all(isinstance(each, Document) for each in documents)
    second = documents[1]
    assert isinstance(second, Document)
    ready = source.ready(second)
    assert (len(ready), source.tokens(ready)) == (3, tuple(text(3, 3).split()))
    (block,) = attended(source, second)
    run = load(here / "a.npz")
    np.testing.assert_array_equal(block.weights, run.attention[0, 1:2])
    assert block.texts.numbers == (1,)
    assert block.texts.queries.real.sum() == 3
    assert source.losses([ready]) is None
    assert source.name == run.source
    with pytest.raises(InputError, match=r"^--probe wants a model"):
        source.probe(1, 0)


def test_saved_runs_of_other_sizes(here: Path) -> None:
    saved(here / "a.npz", 5)
    saved(here / "b.npz", 4, n_heads=3, d_model=21)
    source = Saved([here / "a.npz", here / "b.npz"])
    other = [found for found, _ in source.documents()][1]
    assert isinstance(other, Document)
    with pytest.raises(InputError) as error:
        source.ready(other)
    assert str(error.value) == "has 1 layer of 3 heads, and a.npz has 1 layer of 2 heads"


# ── pretrained models ────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def encoder() -> Model:
    return open_model(str(minilm()), max_len=12)


def test_a_model_gives_what_it_gives_for_one_text(encoder: Model) -> None:
    texts = [
        "The cat sat on the mat.",
        "A dog.",
        "The quick brown fox jumps over the lazy dog now and",
    ]
    blocks = attended(encoder, *(Document(i, "", each) for i, each in enumerate(texts)))
    assert [block.layer for block in blocks] == list(range(6))
    network, tokenizer = encoder._loaded.network, encoder._tokenizer
    for b, each in enumerate(texts):
        ids = tokenizer(each, truncation=True, max_length=12, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            network.set_attn_implementation("eager")
            expected = network(ids, output_attentions=True).attentions
        n = ids.shape[1]
        for block in blocks:
            np.testing.assert_allclose(
                block.weights[b, :, :n, :n], expected[block.layer][0], atol=2e-6
            )
            assert block.weights[b, :, :n, n:].max(initial=0) == 0
    assert encoder.ready(Document(0, "", texts[2])).cut
    assert encoder.tokens(encoder.ready(Document(0, "", "A dog."))) == (
        "[CLS]", "a", "dog", ".", "[SEP]"
    )  # fmt: skip
    assert blocks[0].texts.keys.kinds[1, :5].tolist() == [4, 0, 0, 2, 5]
    assert encoder.name.endswith("/model, encoder")


def test_words_of_an_annotation(encoder: Model) -> None:
    ready = encoder.ready(Document(0, "", ("Unbelievable", "cats"), ((0, 1, ""),)))
    tokens = encoder.tokens(ready)
    assert (tokens[0], tokens[-1]) == ("[CLS]", "[SEP]")
    assert ready.words == (-1, *([0] * (len(tokens) - 3)), 1, -1)
    with pytest.raises(InputError, match=r"^is annotated, and longer than --max-len$"):
        encoder.ready(Document(0, "", ("word",) * 40, ((0, 1, ""),)))


def test_documents_that_a_model_cannot_take(encoder: Model) -> None:
    free = Model(encoder._loaded)
    with pytest.raises(InputError) as error:
        free.ready(Document(0, "", "word " * 700))
    assert str(error.value) == (
        "has 702 tokens, and the model 512 positions; --max-len 512 cuts it"
    )


WINDOWED = LLAMA | {"sliding_window": 5}
FAMILIES = {
    "BertModel": BERT,
    "GPT2Model": GPT2,
    "LlamaModel": LLAMA,
    "MistralModel": WINDOWED,
    "Gemma2Model": WINDOWED | {"attn_logit_softcapping": 2.0},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_long_text_through_a_model_is_made_of_rows(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "ROWS", 4)
    monkeypatch.setattr(models_module, "LONGEST", 15)
    source = Model(tiny(family, **FAMILIES[family]))
    document = Document(0, "", "the cat sat on the mat because it was tired . a dog ran")
    assert source.longest == 15
    parts = attended(source, document)
    assert source.longest == 15  # it was proved
    annotated = Document(0, "", ("the", "cat") * 9, ((0, 1, ""),))
    with pytest.raises(InputError, match=r"^is annotated, and longer than 15 tokens$"):
        source.ready(annotated)
    source.longest = None
    assert source.ready(annotated).words
    whole = attended(source, document)
    assert [(part.layer, part.start) for part in parts] == [
        (layer, start) for layer in (0, 1) for start in range(0, whole[0].weights.shape[2], 4)
    ]
    for part in parts:
        rows, one = slice(part.start, part.start + 4), whole[part.layer]
        np.testing.assert_allclose(part.weights, one.weights[:, :, rows], atol=1e-6)
        assert one.allowed is not None
        np.testing.assert_array_equal(part.allowed, one.allowed[:, :, rows])


def test_families_that_are_not_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models_module, "LONGEST", 5)
    source = Model(tiny("T5EncoderModel", **T5))  # adds a table to its scores
    document = Document(0, "", "the cat sat on the mat .")
    (first, *_) = attended(source, document)
    assert source.longest is None
    assert first.is_whole
    monkeypatch.setattr(models_module, "free_memory", lambda: 1000)
    with pytest.raises(InputError, match=r"^has 9 tokens, which take .* of memory, since this fam"):
        source.ready(document)
    streamed = Model(tiny("LlamaModel", **LLAMA))
    with pytest.raises(InputError, match=r"^has 9 tokens, which take [^,]* memory, and 0.977 KiB"):
        streamed.ready(document)


def test_a_probe_of_an_encoder_has_no_loss(encoder: Model) -> None:
    made = encoder.probe(1, 0)
    assert len(made[0]) == 102
    assert (made[0].ids[0], made[0].ids[-1]) == (101, 102)
    assert encoder.losses(made) is None


def test_towers_that_want_two_texts(encoder: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError):
        Model(encoder._loaded, "cross")


def test_known_induction_heads_of_smollm2() -> None:
    """Computed elsewhere, on other random tokens: 18.6 has 0.93, 17.3-5 0.86, 0.86 and 0.85."""
    source = open_model(str(smollm2()), generates=True)
    assert (source.n_layers, source.n_heads, source.tower) == (30, 9, "decoder")
    probe = probe_induction(source, seed=0, sequences=4)
    scores = probe.scores["prefix_matching"]
    assert scores[18, 6] == pytest.approx(0.93, abs=0.03)
    for head in (3, 4, 5):
        assert scores[17, head] == pytest.approx(0.855, abs=0.04)
    assert probe.scores["previous_token"][16, 0] > 0.76
    assert probe.first_copy is not None
    assert probe.later_copies is not None
    assert probe.later_copies < probe.first_copy / 4


@pytest.mark.parametrize(("start", "end"), [((), ()), ((1,), ()), ((1,), (2,)), ((), (2,))])
def test_losses_are_those_of_the_copies(
    start: tuple[int, ...], end: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever stands around them: a decoder's tokenizer may close its texts."""
    copies = tuple(range(10, 35)) * 4
    made = Ready(Document(0, "", ""), (*start, *copies, *end))
    # the loss of each token but the first is 1 in the first copy, 5 in later ones, 99 around them
    of_tokens = [99.0] * len(start) + [1.0] * 25 + [5.0] * 75 + [99.0] * len(end)
    fake = SimpleNamespace(
        probe=lambda n, seed: [made], losses=lambda batch: np.array([of_tokens[1:]])
    )
    nothing = SimpleNamespace(result=dict)
    monkeypatch.setattr(probing_module, "measured", lambda *_: nothing)
    probe = probe_induction(cast("CorpusReader", fake), 0, 1)
    assert (probe.first_copy, probe.later_copies) == (1.0, 5.0)


def test_an_opening_can_be_sent_to_another_process() -> None:
    import pickle

    opening = partial(open_layer, config(), WORDS, Reading())
    again = pickle.loads(pickle.dumps(opening))
    one, two = (attended(each(), Document(0, "", text(5))) for each in (opening, again))
    np.testing.assert_array_equal(one[0].weights, two[0].weights)


def test_a_model_without_a_tokenizer_or_with_one_that_fails(
    encoder: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    with pytest.raises(InputError, match=r"has no tokenizer that could be read$"):
        Model(replace(encoder._loaded, tokenizer=None))

    def failing(*_: object, **__: object) -> None:
        raise TypeError("odd\ninput")

    broken = Model(encoder._loaded)
    monkeypatch.setattr(broken, "_tokenizer", failing)
    with pytest.raises(InputError) as error:
        broken.ready(Document(0, "", "a"))
    assert str(error.value) == "fails in the model's tokenizer: odd\\ninput"
    monkeypatch.setattr(broken, "_tokenizer", lambda *_, **__: {"input_ids": []})
    with pytest.raises(InputError, match=r"^has no tokens$"):
        broken.ready(Document(0, "", ""))
