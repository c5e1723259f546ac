"""`explain` of layers that are not the first, and of models that attnviz did not write."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from one_pass import Ran, from_pretrained
from test_explain import agrees, examples, grid, make, page
from tiny_models import BERT, GPT2, LLAMA, T5, tiny

from attnviz.render.explanation import Explanation, explain
from attnviz.render.explanation_json import explanation_as_json

KEPT = ("q", "k", "v", "context", "q_rotated", "k_rotated", "products", "scores")
BIASED = (*KEPT, "position_bias", "biased")
TEXT = "the cat sat on the mat"


def ran(kind: str, sizes: dict[str, Any], layer: int = 1, **more: Any) -> Ran:
    keys = more.pop("keys", None)
    model = tiny(kind, **sizes)
    return from_pretrained(model, [TEXT], keys=keys, layers=[layer], keep=BIASED, **more)


def explained(run: Ran, query: int = 2, head: int = 1) -> Explanation:
    return explain(run.result, run.steps, 0, 0, head, query)


def flat(explanation: Explanation) -> str:
    return " ".join(page(explanation, 100).split())


def follow(text: str, divisor: float, eps: float = 2.0**-24) -> None:
    """Section 3 to 5 on paper: product / divisor (+ bias) = score, softmax of the scores."""
    softmax, scored = grid(text, 5), grid(text, 3)
    total, _ = softmax.pop("sum")
    largest = max(float(scored[name][-1]) for name in softmax)
    for name, (shifted, exp, weight) in softmax.items():
        product, *rest = map(float, scored[name])
        assert scored[name][0] == grid(text, 2)[name][-1]
        bias = rest[0] if len(rest) == 2 else 0.0
        agrees(product / divisor + bias, scored[name][-1], eps * abs(product))
        agrees(float(scored[name][-1]) - largest, shifted)
        agrees(math.exp(float(shifted)), exp)
        agrees(float(exp) / float(total), weight)
    assert examples(text) >= 3


# ── layers above the first ──


def test_a_layer_above_the_first_is_given_what_the_one_below_made(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = make(TEXT)
    one = made.result
    second = type(one)(**{**vars(one), "layers": (1,)})
    assert "W_Q turns the token's input into 4 numbers" in flat(made.explain(2))
    said = flat(explain(second, made.run.steps, 0, 0, 1, 2))
    assert "W_Q turns the output of layer 0 for the token into 4 numbers" in said
    assert "layer 1" in said.split("Every number")[0]


def test_what_is_normed_first_is_called_so() -> None:
    made = make(TEXT)
    normed = replace(made.run.steps[0], name="normed")
    said = flat(explain(made.result, (normed, *made.run.steps), 0, 0, 1, 2))
    assert "W_Q turns the token's input, normed, into 4 numbers" in said


# ── without the scale ──


def test_what_would_not_change_is_not_told() -> None:
    made = make("a b c")
    e = made.explain(2)
    sharp = np.array([300.0, 0.0, 0.0])
    sure = replace(
        e,
        products=2 * sharp,
        scaled=sharp,
        scores=sharp,
        weights=np.array([1.0, 0.0, 0.0]),
    )
    assert "Without it nothing that is printed here would change." in flat(sure)
    assert "instead of 1.0000" not in flat(sure)
    scores = np.array([9.0, 0.0, 0.0])
    weights = np.exp(scores) / np.exp(scores).sum()
    nearly = replace(e, products=2 * scores, scaled=scores, scores=scores, weights=weights)
    assert (
        'Without it, the largest weight would be 1.0000, on "a", instead of 0.9998. Run:'
        in flat(nearly)
    )


# ── models ──


@pytest.mark.parametrize(
    ("kind", "sizes", "divisor"),
    [
        ("BertModel", BERT, math.sqrt(8)),
        ("GPT2Model", GPT2, math.sqrt(8)),
        ("LlamaModel", LLAMA, math.sqrt(8)),
        ("GraniteModel", LLAMA | {"attention_multiplier": 0.04}, 25.0),
        (
            "Gemma3TextModel",
            LLAMA | {"query_pre_attn_scalar": 13, "layer_types": ["full_attention"] * 2},
            math.sqrt(13),
        ),
    ],
)
def test_a_model_on_paper(kind: str, sizes: dict[str, Any], divisor: float) -> None:
    e = explained(ran(kind, sizes))
    assert e.scale == pytest.approx(divisor, rel=1e-6)
    text = page(e, 100)
    follow(text, float(f"{e.scale:.9f}"))
    said = " ".join(text.split())
    assert "W_Q turns a vector made of the output of layer 0 for the token into 8 numbers" in said
    assert "Derived: products." in said
    assert "Run: scores" not in said
    usual = divisor == math.sqrt(8)
    assert ("in place of √d_k = √8 = 2.828427" in said) is not usual
    assert ("Each product is divided by √d_k = √8 = 2.828427" in said) is usual


def test_a_bias_of_a_model_is_that_of_its_own_head() -> None:
    run = ran("T5Model", T5, attention="encoder")
    for head in (0, 2):
        e = explained(run, head=head)
        assert e.scale == 1
        assert not e.is_scaled
        assert np.array_equal(e.bias, run.result.kept["position_bias"][0, 0, head, 2])
        text = page(e, 100)
        assert "\n3. No scale, but a position bias\n" in text
        assert "The model then adds a bias of its own" in " ".join(text.split())
        follow(text, 1.0)


def test_cross_attention_of_a_model_without_a_scale() -> None:
    run = ran("T5Model", T5, attention="cross", keys=["a dog ran"])
    e = explained(run)
    assert e.is_cross
    assert len(e.weights) == run.result.attention.shape[-1]
    follow(page(e, 100), 1.0)


def test_json_says_what_was_worked_out_again() -> None:
    own = explanation_as_json(make(TEXT).explain(2))
    model = explanation_as_json(explained(ran("BertModel", BERT)))
    again = ["keys.product", "keys.scaled", "keys.score"]
    assert model["derived"] == [*again, *own["derived"]]
    assert (own["scale"], model["scale"]) == (2.0, math.sqrt(8))
    json.dumps(model, allow_nan=False)


def test_the_scale_of_a_row_without_numbers_is_the_usual_one() -> None:
    made = make(TEXT)
    kept = {name: np.zeros_like(value) for name, value in made.result.kept.items()}
    empty = type(made.result)(**{**vars(made.result), "kept": kept})
    assert explain(empty, made.run.steps, 0, 0, 0, 2).scale == 2.0
