"""Train `samples/trained/induction.safetensors`: two layers that continue what they saw before.

A sequence is a walk: each of its words has one successor, new in each sequence, and follows it
most times; now and then the walk jumps. To foresee the next word, a model must find the word now
in the text before, and say what came after it: "… moon river … moon" → "river". Nothing else
helps. Two heads do it together (Elhage et al. 2021, Olsson et al. 2022): one of layer 0 looks at
the previous token, so that each place knows what it follows; one of layer 1, the induction head,
looks at the place that follows what the query is.
"""

from __future__ import annotations

import numpy as np
from training import WORDS, Examples, Recipe, main, vocabulary

BATCH = 32
LENGTHS = (24, 48, 101)
"""One is drawn for each batch. 101: the 100 tokens of Olsson et al.'s probe, and the answer."""

FEWEST, MOST = 4, 30
"""Different words in a sequence."""

JUMPS = 0.15
"""How often the next word is any of the sequence's words."""

VOCABULARY = vocabulary(WORDS)
FIRST_WORD = len(VOCABULARY) - len(WORDS)


def draw(rng: np.random.Generator) -> Examples:
    """A batch of walks; the answer at each place is the next word."""
    length = int(rng.choice(LENGTHS))
    rows = np.arange(BATCH)
    everything = np.tile(np.arange(FIRST_WORD, len(VOCABULARY)), (BATCH, 1))
    words = rng.permuted(everything, axis=1)[:, :MOST]
    n = rng.integers(FEWEST, MOST + 1, BATCH)
    # a random order of each sequence's n words: the i-th is followed by word successor[i]
    keys = np.where(np.arange(MOST) < n[:, None], rng.random((BATCH, MOST)), np.inf)
    successor = keys.argsort(axis=1)
    ids = np.empty((BATCH, length), dtype=np.int64)
    at = rng.integers(n)
    for place in range(length):
        ids[:, place] = words[rows, at]
        at = np.where(rng.random(BATCH) < JUMPS, rng.integers(n), successor[rows, at])
    return Examples(ids[:, :-1], ids[:, 1:])


RECIPE = Recipe(
    task="foresee the next word of a text that repeats itself",
    vocabulary=VOCABULARY,
    draw=draw,
    n_layers=2,
    n_heads=2,
    d_k=16,
    steps=4000,
    learning_rate=0.01,
    entropy_penalty=0.05,
)

if __name__ == "__main__":
    main({"induction": RECIPE})
