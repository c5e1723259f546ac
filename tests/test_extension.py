"""A new source is one class and one row, a new collector one class: every command takes them."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import pytest
from one_pass import from_config

from attnviz.cli import open_source as opening
from attnviz.cli.main import call
from attnviz.cli.open_source import SourceKind, SourceRequest
from attnviz.config import AttentionConfig
from attnviz.layer_attention import LayerAttention
from attnviz.masks import rule
from attnviz.pipeline import Collector, Line, Pass, Progress, Tokenized
from attnviz.saved_runs import load
from attnviz.sources.own_layers import LayerSource, ReadingOptions, TokenizedBatch
from attnviz.tokens import Texts, cut, make_batch


class Even:
    """A toy source: every query attends to all keys alike, in layers 2 and 5 of a model."""

    name, layer_numbers, n_heads, needs_text = "even weights", (2, 5), 3, True

    def tokens(self, texts: Texts) -> TokenizedBatch:
        rows, notes = cut(texts.queries)
        return TokenizedBatch(make_batch(rows), notes=tuple(notes))

    def join(self, parts: Sequence[Tokenized]) -> TokenizedBatch:
        return TokenizedBatch(make_batch([row for part in parts for row in part.queries.tokens]))

    def bytes_needed(
        self, tokens: Tokenized, layers: Collection[int] | None = None, by_rows: bool = False
    ) -> int:
        return 0

    def can_stream(self, tokens: Tokenized) -> bool:
        return False

    def run(
        self,
        tokens: Tokenized,
        collector: Collector,
        layers: Collection[int] | None = None,
        progress: Progress | None = None,
    ) -> Pass:
        real = tokens.queries.valid
        for number in self.layer_numbers:
            if layers is None or number in layers:
                seen = np.broadcast_to(real[:, None, None], (len(real), 1, *real.shape[1:] * 2))
                even = seen / seen.sum(-1, keepdims=True)
                weights = np.repeat(even, self.n_heads, 1).astype(np.float32)
                collector.visit(LayerAttention.of_weights(number, weights, seen))
        about = {"source": self.name, "trained": False, "layers": tuple(sorted(layers or (2, 5)))}
        return Pass(tokens.queries, None, lambda: about)

    def report(self, done: Pass) -> list[Line]:
        return [("toy", self.name)]


@pytest.fixture(autouse=True)
def even(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def is_asked(request: SourceRequest) -> bool:
        return request.layer.n_heads == 3

    monkeypatch.chdir(tmp_path)
    row = SourceKind(is_asked, lambda request: Even())
    monkeypatch.setattr(opening, "SOURCES", [row, *opening.SOURCES])


ASKED = ("--d-model", "33", "--n-heads", "3")


def test_run_draws_and_saves_a_toy_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["run", "a b c", "d", *ASKED, "-o", "x.npz", "-o", "x.png", "-o", "x.html"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("toy         even weights\n")
    saved = load(Path("x.npz"))
    assert saved.layer_numbers == (2, 5)
    np.testing.assert_allclose(saved.attention[0, 0, 0], np.full((3, 3), 1 / 3), atol=1e-7)
    assert Path("x-seq0.png").exists()
    assert call(["render", "x.npz", "-o", "y.svg", "--layers", "5"]) == 0
    assert call(["check", "x.npz"]) == 0
    assert call(["compare", "x.npz", "x.npz"]) == 0


def test_run_refuses_an_absent_layer_of_a_toy_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["run", "a b", *ASKED, "--layers", "3", "-o", "x.npz"]) == 2
    assert capsys.readouterr().err == "attnviz: --layers 3: layer 3 has no attention\n"


def test_stats_measures_a_toy_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["stats", "a b c", "d e f", *ASKED, "--json"]) == 0
    heads = json.loads(capsys.readouterr().out)["heads"]
    assert [(head["layer"], head["head"]) for head in heads] == [
        (layer, head) for layer in (2, 5) for head in range(3)
    ]
    for head in heads:
        assert head["entropy"] == pytest.approx(np.log2(3))


class LargestWeight:
    """A toy collector: the largest weight of each layer."""

    by_rows, is_traced, keep = False, False, ()

    def __init__(self) -> None:
        self.largest: dict[int, float] = {}

    def bytes_of_maps(self, n_maps: int, n_queries: int) -> int:
        return 0

    def visit(self, attention: LayerAttention) -> None:
        self.largest[attention.layer] = float(attention.weights().max())


def test_every_source_takes_a_toy_collector() -> None:
    texts = Texts(("the cat sat", "a dog"))
    toy = LargestWeight()
    Even().run(Even().tokens(texts), toy)
    assert toy.largest == {2: pytest.approx(0.5), 5: pytest.approx(0.5)}
    config = AttentionConfig.from_sizes(d_model=22, n_heads=2)
    layer, of_layer = LayerSource(config, ReadingOptions()), LargestWeight()
    tokens = layer.tokens(texts)
    layer.run(tokens, of_layer)
    padding = rule("padding", tokens.queries, tokens.queries)
    expected = from_config(config, tokens.queries, rules=[padding]).result.attention.max()
    assert of_layer.largest == {0: pytest.approx(float(expected), abs=1e-7)}
