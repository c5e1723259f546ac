"""Counted nouns."""

from __future__ import annotations

import pytest

from attnviz.wording import noun_for, plural


@pytest.mark.parametrize(
    ("n", "noun", "expected"),
    [
        (1, "head", "1 head"),
        (0, "head", "0 heads"),
        (2000, "document", "2,000 documents"),
        (3, "query", "3 queries"),
        (1, "query", "1 query"),
        (2, "key", "2 keys"),
        (2, "query row", "2 query rows"),
        (2, "softmax", "2 softmaxes"),
    ],
)
def test_a_noun_follows_its_number(n: int, noun: str, expected: str) -> None:
    assert plural(n, noun) == expected


def test_a_plural_that_grammar_does_not_tell_is_given() -> None:
    assert plural(2, "axis", "axes") == "2 axes"
    assert plural(1, "axis", "axes") == "1 axis"
    assert noun_for(2, "layer") == "layers"
