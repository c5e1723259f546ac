"""Train `samples/trained/brackets.safetensors`: for each closing bracket, where was it opened?

Head 0 of layer 1 is to point: from a closing bracket at its opening one, from every other token at
itself. What the other heads do, and all of layer 0, is left to training. To point right, layer 0
has to find out how many brackets are open at each token, and layer 1 the last one that opened at
the same depth (Ebrahimi et al. 2020 and Yao et al. 2021 show how heads can).
"""

from __future__ import annotations

import string

import numpy as np
from training import Examples, Recipe, main, vocabulary

BATCH = 64
SHORTEST, LONGEST = 6, 40
DEEPEST = 4
PAIRS = ("()", "[]", "{}")
OTHERS = (*string.ascii_lowercase, *string.digits, *",.:=+-*/")

VOCABULARY = vocabulary((*"".join(PAIRS), *OTHERS))


def nested(rng: np.random.Generator, length: int) -> tuple[list[str], list[int]]:
    """(tokens, the place that each points at); every bracket is closed."""
    tokens: list[str] = []
    points_at: list[int] = []
    open_now: list[tuple[int, str]] = []  # place, the bracket that closes it
    while len(tokens) < length:
        left = length - len(tokens)
        wish = rng.random()
        at = len(tokens)
        if open_now and (len(open_now) == left or wish < 0.3):
            at, token = open_now.pop()
        elif wish < 0.6 and len(open_now) < min(DEEPEST, left - 1):
            token, closing = PAIRS[rng.integers(len(PAIRS))]
            open_now.append((len(tokens), closing))
        else:
            token = OTHERS[rng.integers(len(OTHERS))]
        tokens.append(token)
        points_at.append(at)
    return tokens, points_at


def draw(rng: np.random.Generator) -> Examples:
    """A batch of texts of one length."""
    length = int(rng.integers(SHORTEST, LONGEST + 1))
    texts, answers = zip(*(nested(rng, length) for _ in range(BATCH)), strict=True)
    ids = [[VOCABULARY.index(token) for token in tokens] for tokens in texts]
    return Examples(np.array(ids), np.array(answers))


RECIPE = Recipe(
    task="point from each closing bracket at its opening one, from other tokens at themselves",
    vocabulary=VOCABULARY,
    draw=draw,
    n_layers=2,
    n_heads=4,
    d_k=16,
    steps=4000,
    learning_rate=0.006,
    points=True,
)

if __name__ == "__main__":
    main({"brackets": RECIPE})
