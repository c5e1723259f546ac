"""`attnviz explain` on the command line."""

from __future__ import annotations

import json

import numpy as np
import pytest

from attnviz.cli.main import call

SMALL = ["--d-model", "8", "--n-heads", "2"]


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert call(["explain", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_page_names_the_query_and_its_masks(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["explain", "The cat sat", *SMALL, "--query", "sat", "--causal"]) == 0
    out = capsys.readouterr().out
    assert out.startswith('What head 0 does for "sat"\n')
    for heading in ("1. The query vector q", "5. Softmax", "7. The output projection W_O"):
        assert heading in out


def test_the_numbers_are_those_of_a_run(capsys: pytest.CaptureFixture[str], tmp_path) -> None:
    flags = ["the cat sat", "a dog", *SMALL, "--causal", "--seed", "5"]
    found = document(capsys, *flags, "--head", "1", "--query", "cat", "--sequence", "0")
    assert call(["run", *flags, "-q", "-o", str(tmp_path / "r.npz"), "--keep", "scores,q"]) == 0
    with np.load(tmp_path / "r.npz") as run:
        weights, q = run["attention"][0, 0, 1, 1], run["q"][0, 0, 1, 1]
    assert found["query"]["token"] == "cat"
    assert found["query"]["q"] == q.astype(float).tolist()
    assert [key["weight"] for key in found["keys"]] == weights.astype(float).tolist()


def test_the_default_is_the_last_token_of_the_first_sequence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = document(capsys, "a b c", "d", *SMALL)
    assert (found["sequence"], found["query"]["token"], found["head"]) == (0, "c", 0)


def test_remarks_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["explain", "a b", "--keys", "x y z", *SMALL, "--segments"]) == 0
    said = capsys.readouterr()
    assert said.err == "--segments: no [SEP] in the text, so all is one segment\n"
    assert '"b"' in said.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--head", "2"], "--head 2: there are 2 heads, 0 to 1"),
        (["--head", "-1"], "--head -1: there are 2 heads, 0 to 1"),
        (["--sequence", "1"], "--sequence 1: there is 1 sequence, 0"),
        (
            ["--query", "dog"],
            "query dog is not a token of sequence 0; its tokens: the (0), cat (1)",
        ),
        (["--query", "2"], "query 2: sequence 0 has 2 tokens, 0 to 1 or -2 to -1"),
    ],
)
def test_what_is_not_there(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["explain", "the cat", *SMALL, *arguments]) == 2
    assert capsys.readouterr().err == f"attnviz: {message}\n"
