"""What a corpus reads through a source is what a run of one text gives."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from one_pass import from_config
from real_models import minilm, smollm2
from tiny_models import BERT, GPT2, LLAMA, T5, tiny

from attnviz.attention import Embedding, MultiHeadAttention
from attnviz.config import AttentionConfig
from attnviz.corpus import probing as probing_module
from attnviz.corpus import reader as reader_module
from attnviz.corpus.documents import Document
from attnviz.corpus.opening import open_layer, open_model, open_saved, open_weights
from attnviz.corpus.probing import probe_induction
from attnviz.corpus.reader import CorpusReader, Ready
from attnviz.corpus.rolling import layer_means, rolled
from attnviz.corpus.saved_documents import documents_of
from attnviz.errors import ConfigError, InputError
from attnviz.masks import rule
from attnviz.measures.block import Block
from attnviz.measures.flow import rollout
from attnviz.saved_runs import load, save
from attnviz.sources.from_weights import Asked
from attnviz.sources.layer_pass import Inputs, embedded
from attnviz.sources.loading import LoadedModel
from attnviz.sources.model_options import ModelOptions
from attnviz.sources.model_source import ModelSource
from attnviz.sources.own_layers import LayerSource, OwnLayers, ReadingOptions
from attnviz.sources.saved_layers import save_layers
from attnviz.sources.saved_source import SavedSource
from attnviz.streaming import windows
from attnviz.tokens import Batch, make_batch

SMALL = {"d_model": 22, "n_heads": 2, "d_k": 7, "dtype": "float64"}
WORDS = ("[PAD]", "[SEP]", "[CLS]", "[MASK]", *(f"w{i}" for i in range(40)))


def config(**changed: object) -> AttentionConfig:
    return AttentionConfig.from_sizes(**{**SMALL, **changed})  # type: ignore[arg-type]


def text(length: int, seed: int = 0) -> str:
    rng = np.random.default_rng(seed)
    return " ".join(f"w{i}" for i in rng.integers(0, 40, length))


class FixedLayers(OwnLayers):
    """Layers and an embedding that are made already."""

    def __init__(
        self,
        layers: list[MultiHeadAttention],
        words: tuple[str, ...],
        options: ReadingOptions,
    ) -> None:
        super().__init__(options)
        self.config, self.n_layers, self.name = layers[0].config, len(layers), "fixed"
        self._layers, self.vocabulary = layers, words  # type: ignore[misc]
        self._embedding = Embedding(self.config, len(words))

    def _load(self) -> list[MultiHeadAttention]:
        self.extra_keys = self._layers[0].extra_keys
        return self._layers

    def _inputs(self, queries: Batch, keys: Batch | None, recorder: Any) -> Inputs:
        return embedded(self._embedding, queries, keys, recorder)

    def about(self) -> dict[str, Any]:
        return {}


def fixed(*layers: MultiHeadAttention, **options: Any) -> CorpusReader:
    """A reader of such layers; padding is never looked at."""
    masks = {"padding": True, **options.pop("masks", {})}
    made = layers or (MultiHeadAttention(config()),)
    words = options.pop("words", WORDS)
    return CorpusReader(FixedLayers(list(made), words, ReadingOptions(masks, **options)))


def model(loaded: LoadedModel, **options: Any) -> CorpusReader:
    """A reader of a model that is loaded already."""
    chosen = ModelOptions("", pad_side="right", **options)
    return CorpusReader(ModelSource.of_loaded(loaded, chosen))


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
    source = fixed(masks={"causal": True})
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
    assert source.ready(documents[1]).tokens == tokens[1]


@pytest.mark.parametrize("positions", ["none", "sinusoidal", "rope", "alibi"])
@pytest.mark.parametrize("heads", [2, 1])
@pytest.mark.parametrize("together", [2, 1])
def test_a_long_text_in_blocks_has_the_weights_of_the_whole(
    positions: str, heads: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = config(positions=positions, n_heads=2, n_kv_heads=heads, d_k=8, d_model=16)
    two = [MultiHeadAttention(sizes), MultiHeadAttention(config(**{**sizes.as_dict(), "seed": 5}))]
    source = fixed(*two, masks={"causal": True, "window": 300})
    whole = attended(source, Document(0, "", text(523)))
    assert [block.weights.shape for block in whole] == [(1, 2, 523, 523)] * 2
    monkeypatch.setattr(reader_module, "LONGEST", 500)
    monkeypatch.setattr(windows, "MOST_HELD", 523 * 256 * together)
    parts = attended(source, Document(0, "", text(523)))
    assert len(parts) == 2 * (2 // together) * 3  # layers, heads, blocks of 256 rows
    for part in parts:
        rows = slice(part.start, part.start + part.weights.shape[2])
        one = whole[part.layer]
        np.testing.assert_allclose(part.weights, one.weights[:, part.heads, rows], atol=1e-12)
        assert one.allowed is not None
        assert part.allowed is not None
        np.testing.assert_array_equal(part.allowed[:, 0], one.allowed[:, 0, rows])


def test_what_a_layer_makes_of_documents() -> None:
    source = fixed(max_len=3)
    assert source.ready(Document(0, "", "w1 w2 w3")).tokens == ("w1", "w2", "w3")
    assert source.ready(Document(0, "", "w1 w2 w3 w4")).cut
    with pytest.raises(InputError, match=r"^has no tokens$"):
        source.ready(Document(0, "", "\u200b"))
    with pytest.raises(InputError, match=r"^has the token 'w99', not in the vocabulary"):
        source.ready(Document(0, "", "w99"))
    with pytest.raises(InputError, match=r"^is annotated, and longer than --max-len$"):
        source.ready(Document(0, "", ("w1", "w2", "w3", "w4"), ()))
    with pytest.raises(InputError, match=r"^is annotated, and longer than 2,048 tokens$"):
        fixed().ready(Document(0, "", ("w1",) * 2049, ()))
    known = source.ready(Document(0, "", ("w1", "w2"), ((0, 1, ""),)))
    assert known.words == (0, 1)
    assert source.losses([known]) is None


def test_a_word_has_the_same_vector_in_every_document() -> None:
    """Whatever stands before it, and in whichever worker."""
    source = open_layer(config(positions="none"), ReadingOptions({"padding": True}))
    assert source.name == "a layer from flags, untrained, seed 0"
    (alone,) = attended(source, Document(0, "", "cat dog"))
    other = open_layer(config(positions="none"), ReadingOptions({"padding": True}))
    (among,) = attended(other, Document(0, "", "a bird saw"), Document(1, "", "dog cat"))
    swapped = among.weights[1, :, :2, :2][:, ::-1, ::-1]
    np.testing.assert_allclose(alone.weights[0], swapped, atol=1e-14)
    words = LayerSource(config(seed=3), ReadingOptions(), by_word=True)
    table = words._table(tuple(f"w{i}" for i in range(400)))
    assert abs(float(table.mean())) < 0.05
    assert float(table.std()) == pytest.approx(1, abs=0.03)


def test_weights_of_a_file(here: Path) -> None:
    path = here / "two.safetensors"
    sizes = config(dtype="float32")
    torch.manual_seed(1)
    made = [MultiHeadAttention(sizes), MultiHeadAttention(config(dtype="float32", seed=9))]
    vocabulary = (*WORDS, "[UNK]")
    save_layers(path, made, Embedding(sizes, len(vocabulary)), vocabulary)
    source = open_weights(path, Asked(), ReadingOptions({"padding": True}))
    blocks = attended(source, Document(0, "", text(5)), Document(1, "", "new w2"))
    own = fixed(*made, words=vocabulary)
    for found, expected in zip(
        blocks, attended(own, Document(0, "", text(5)), Document(1, "", "new w2")), strict=True
    ):
        np.testing.assert_array_equal(found.weights, expected.weights)
    assert source.ready(Document(1, "", "new w2")).ids == (len(vocabulary) - 1, 6)
    assert source.name == "weights of two.safetensors"


@pytest.mark.parametrize("longest", [2048, 3])
def test_keys_that_are_no_token_s_are_left_out(
    longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take a share of each row, as a sink does, and have no column among the tokens."""
    monkeypatch.setattr(reader_module, "LONGEST", longest)
    layer = MultiHeadAttention(config())
    layer.bias_k = torch.nn.Parameter(torch.randn(14, dtype=torch.float64))
    layer.bias_v = torch.nn.Parameter(torch.randn(14, dtype=torch.float64))
    (block,) = attended(fixed(layer), Document(0, "", text(5)))
    assert block.weights.shape == (1, 2, 5, 5)
    assert (block.weights.sum(-1) < 1).all()
    made = make_batch([tuple(text(5).split())], WORDS)
    embedding = Embedding(config(), len(WORDS))
    with torch.no_grad():
        x = embedding(torch.from_numpy(made.ids), torch.from_numpy(made.positions))
        _, whole = layer(x)
    np.testing.assert_allclose(block.weights, whole[..., :5].numpy(), atol=1e-12)


def test_a_probe_of_a_layer() -> None:
    source = fixed()
    made = source.probe(2, seed=5)
    assert [len(each) for each in made] == [100, 100]
    assert made[0].tokens[:25] == made[0].tokens[25:50]
    assert not set(made[0].tokens) & {"[PAD]", "[SEP]", "[CLS]", "[MASK]"}
    probe = probe_induction(source, 5, sequences=2)
    assert (probe.first_copy, probe.later_copies) == (None, None)
    assert probe.scores["duplicate_token"].shape == (1, 2)
    with pytest.raises(InputError) as error:
        fixed(words=WORDS[:20]).probe(1, 0)
    assert str(error.value) == (
        "--probe induction wants 25 different tokens, and the vocabulary has 16 that are no "
        "special ones"
    )


def test_rollout_of_a_document() -> None:
    source = fixed()
    ready = source.ready(Document(0, "", text(6)))
    (block,) = attended(source, Document(0, "", text(6)))
    means = layer_means(source, ready)
    np.testing.assert_allclose(means, block.weights.mean(1))
    result = rolled(source, ready, "rollout")
    np.testing.assert_allclose(result.attention[:, 0, 0], rollout(means))
    assert result.query_tokens == (tuple(text(6).split()),)
    flowed = rolled(source, ready, "flow")
    np.testing.assert_allclose(flowed.attention[0, 0, 0], rollout(means)[0], atol=1e-8)


def test_rollout_wants_maps_that_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "LONGEST", 5)
    source = fixed()
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
    source = open_saved((here / "a.npz", here / "b.npz"))
    documents = [found for found, _ in documents_of(saved_source(source))]
    assert [each.name for each in documents] == [
        "a.npz, sequence 0", "a.npz, sequence 1", "b.npz, sequence 0"
    ]  # fmt: skip
    assert all(isinstance(each, Document) for each in documents)
    second = documents[1]
    assert isinstance(second, Document)
    ready = source.ready(second)
    assert (len(ready), ready.tokens) == (3, tuple(text(3, 3).split()))
    (block,) = attended(source, second)
    run = load(here / "a.npz")
    np.testing.assert_array_equal(block.weights, run.attention[0, 1:2])
    assert block.texts.numbers == (1,)
    assert block.texts.queries.real.sum() == 3
    assert source.losses([ready]) is None
    assert source.name == run.source
    with pytest.raises(InputError, match=r"^--probe wants a model"):
        source.probe(1, 0)


def saved_source(reader: CorpusReader) -> SavedSource:
    assert isinstance(reader.source, SavedSource)
    return reader.source


def test_saved_runs_of_other_sizes(here: Path) -> None:
    saved(here / "a.npz", 5)
    saved(here / "b.npz", 4, n_heads=3, d_model=21)
    source = open_saved((here / "a.npz", here / "b.npz"))
    other = [found for found, _ in documents_of(saved_source(source))][1]
    assert isinstance(other, Document)
    with pytest.raises(InputError) as error:
        source.ready(other)
    assert str(error.value) == "has 1 layer of 3 heads, and a.npz has 1 layer of 2 heads"


# ── pretrained models ────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def encoder() -> CorpusReader:
    return open_model(ModelOptions(str(minilm()), max_len=12, pad_side="right"))


def loaded_of(reader: CorpusReader) -> LoadedModel:
    assert isinstance(reader.source, ModelSource)
    return reader.source.loaded()


def test_a_model_gives_what_it_gives_for_one_text(encoder: CorpusReader) -> None:
    texts = [
        "The cat sat on the mat.",
        "A dog.",
        "The quick brown fox jumps over the lazy dog now and",
    ]
    blocks = attended(encoder, *(Document(i, "", each) for i, each in enumerate(texts)))
    assert [block.layer for block in blocks] == list(range(6))
    network, tokenizer = loaded_of(encoder).network, loaded_of(encoder).tokenizer
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
    assert encoder.ready(Document(0, "", "A dog.")).tokens == (
        "[CLS]", "a", "dog", ".", "[SEP]"
    )  # fmt: skip
    assert blocks[0].texts.keys.kinds[1, :5].tolist() == [4, 0, 0, 2, 5]
    assert encoder.name.endswith("/model, encoder")


def test_words_of_an_annotation(encoder: CorpusReader) -> None:
    ready = encoder.ready(Document(0, "", ("Unbelievable", "cats"), ((0, 1, ""),)))
    tokens = ready.tokens
    assert (tokens[0], tokens[-1]) == ("[CLS]", "[SEP]")
    assert ready.words == (-1, *([0] * (len(tokens) - 3)), 1, -1)
    with pytest.raises(InputError, match=r"^is annotated, and longer than --max-len$"):
        encoder.ready(Document(0, "", ("word",) * 40, ((0, 1, ""),)))


def test_documents_that_a_model_cannot_take(encoder: CorpusReader) -> None:
    free = model(loaded_of(encoder))
    with pytest.raises(InputError) as error:
        free.ready(Document(0, "", "word " * 700))
    assert str(error.value) == (
        f"has 702 tokens, and {loaded_of(encoder).source} has learned 512 positions; "
        "--max-len 512 cuts it"
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
    monkeypatch.setattr(windows, "ROWS", 4)
    monkeypatch.setattr(reader_module, "LONGEST", 15)
    source = model(tiny(family, **FAMILIES[family]))
    document = Document(0, "", "the cat sat on the mat because it was tired . a dog ran")
    parts = attended(source, document)
    annotated = Document(0, "", ("the", "cat") * 9, ((0, 1, ""),))
    with pytest.raises(InputError, match=r"^is annotated, and longer than 15 tokens$"):
        source.ready(annotated)
    monkeypatch.setattr(reader_module, "LONGEST", 2048)
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
    monkeypatch.setattr(reader_module, "LONGEST", 5)
    source = model(tiny("T5EncoderModel", **T5))  # adds a table to its scores
    document = Document(0, "", "the cat sat on the mat .")
    (first, *_) = attended(source, document)
    assert first.is_whole
    monkeypatch.setattr(reader_module, "free_memory", lambda: 1000)
    with pytest.raises(InputError, match=r"^has 9 tokens, which take .* of memory, since this fam"):
        source.ready(document)
    streamed = model(tiny("LlamaModel", **LLAMA))
    with pytest.raises(InputError, match=r"^has 9 tokens, which take [^,]* memory, and 0.977 KiB"):
        streamed.ready(document)


def test_a_probe_of_an_encoder_has_no_loss(encoder: CorpusReader) -> None:
    made = encoder.probe(1, 0)
    assert len(made[0]) == 102
    assert (made[0].ids[0], made[0].ids[-1]) == (101, 102)
    assert encoder.losses(made) is None


def test_towers_that_want_two_texts(encoder: CorpusReader) -> None:
    with pytest.raises(ConfigError):
        model(loaded_of(encoder), attention="cross")
    crosses = ModelSource.of_loaded(tiny("T5Model", **T5), ModelOptions("", attention="cross"))
    with pytest.raises(InputError, match=r"^--attention cross: a corpus has one text a document"):
        crosses.require_one_text()


def test_known_induction_heads_of_smollm2() -> None:
    """Computed elsewhere, on other random tokens: 18.6 has 0.93, 17.3-5 0.86, 0.86 and 0.85."""
    source = open_model(ModelOptions(str(smollm2()), pad_side="right"), generates=True)
    assert (source.n_layers, source.n_heads) == (30, 9)
    assert source.name.endswith(", decoder")
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
    ids = (*start, *copies, *end)
    made = SimpleNamespace(ids=ids, __len__=lambda: len(ids))
    # the loss of each token but the first is 1 in the first copy, 5 in later ones, 99 around them
    of_tokens = [99.0] * len(start) + [1.0] * 25 + [5.0] * 75 + [99.0] * len(end)
    fake = SimpleNamespace(
        probe=lambda n, seed: [cast("Ready", made)], losses=lambda batch: np.array([of_tokens[1:]])
    )
    nothing = SimpleNamespace(result=dict)
    monkeypatch.setattr(probing_module, "measured", lambda *_: nothing)
    probe = probe_induction(cast("CorpusReader", fake), 0, 1)
    assert (probe.first_copy, probe.later_copies) == (1.0, 5.0)


def test_an_opening_can_be_sent_to_another_process() -> None:
    import pickle

    opening = partial(open_layer, config(), ReadingOptions({"padding": True}))
    again = pickle.loads(pickle.dumps(opening))
    one, two = (attended(each(), Document(0, "", text(5))) for each in (opening, again))
    np.testing.assert_array_equal(one[0].weights, two[0].weights)


def test_a_model_without_a_tokenizer_or_with_one_that_fails(
    encoder: CorpusReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    without = model(replace(loaded_of(encoder), tokenizer=None))
    with pytest.raises(InputError, match=r"has no tokenizer that could be read$"):
        without.ready(Document(0, "", "a"))

    class Failing:
        is_fast = False

        def __call__(self, *_: object, **__: object) -> None:
            raise TypeError("odd\ninput")

    broken = model(replace(loaded_of(encoder), tokenizer=Failing()))
    with pytest.raises(InputError) as error:
        broken.ready(Document(0, "", "a"))
    assert str(error.value) == "fails in the model's tokenizer: odd\\ninput"
    with pytest.raises(InputError, match=r"^has no tokens$"):
        broken.ready(Document(0, "", ""))
