"""Train `copy.safetensors` and `reverse.safetensors` in `samples/trained`: cross attention.

The queries are the places of the output, "1 2 3 …", and the keys are a text of as many words. The
answer at place i of a copy is the text's i-th word; of a reversal, its i-th word from the end. Half
of the examples ask for the places in some other order, so that the number counts and not where it
stands. One layer is enough to copy. To reverse takes two, since the length has to be known:
layer 0 looks for the end of the text, and layer 1 counts back from there.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from training import WORDS, Examples, Recipe, main, vocabulary

BATCH = 128
LONGEST = 12
PLACES = tuple(str(i + 1) for i in range(LONGEST))

VOCABULARY = vocabulary((*PLACES, *WORDS))
FIRST_WORD = len(VOCABULARY) - len(WORDS)
FIRST_PLACE = FIRST_WORD - LONGEST


def draw(rng: np.random.Generator, backwards: bool) -> Examples:
    """A batch of random words of one length, and the places that are asked for."""
    length = int(rng.integers(1, LONGEST + 1))
    words = rng.integers(FIRST_WORD, len(VOCABULARY), (BATCH, length))
    places = np.tile(np.arange(length), (BATCH, 1))
    places[BATCH // 2 :] = rng.permuted(places[BATCH // 2 :], axis=1)
    looks_at = length - 1 - places if backwards else places
    return Examples(FIRST_PLACE + places, np.take_along_axis(words, looks_at, axis=1), words)


COPY = Recipe(
    task="say the words of another text, place by place",
    vocabulary=VOCABULARY,
    draw=partial(draw, backwards=False),
    n_layers=1,
    n_heads=1,
    d_k=32,
    steps=1500,
    learning_rate=0.005,
    entropy_penalty=0.3,
)

REVERSE = Recipe(
    task="say the words of another text from its end to its beginning",
    vocabulary=VOCABULARY,
    draw=partial(draw, backwards=True),
    n_layers=2,
    n_heads=1,
    d_k=32,
    steps=6000,
    learning_rate=0.006,
    entropy_penalty=0.5,
)

if __name__ == "__main__":
    main({"copy": COPY, "reverse": REVERSE})
