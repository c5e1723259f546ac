"""Heads against a gold annotation: does the word that a head looks at most stand in a relation?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnviz.measures.block import Annotation, Block, Floats
from attnviz.measures.sums import Accumulator, ratio

ANY = ""
"""The label of pairs that have none."""


class Gold(Accumulator):
    """The share of pairs whose second word is the one that a head looks at most from the first.

    As Clark et al. 2019, section 4.1: the weight to a word of several tokens is the sum over
    them, that from it the mean; special tokens are no words. A word's weight on itself does not
    count, since no word stands in a relation to itself. Of words that get the same the first is
    looked at most, and none where no other word gets anything: the first word of a causal model, a
    word that the tokenizer makes nothing of. Beside each head stands the best fixed offset (section
    4.2 there; Voita et al. 2019, section 5.2.1): the word at that distance.
    """

    needs_whole = True

    def update(self, block: Block) -> None:
        if not block.is_whole:
            return
        for b, number in enumerate(block.texts.numbers):
            annotation = block.texts.annotations.get(number)
            if annotation is None or not annotation.pairs:
                continue
            if block.layer == 0 and block.first_head == 0:
                self._count_offsets(annotation)
            n_words = 1 + max(max(annotation.words), *(max(pair[:2]) for pair in annotation.pairs))
            looks_at = _most_looked_at(block.text(b).exact[0], annotation.words, n_words)
            for source, target, label in annotation.pairs:
                found = looks_at[:, source]
                right = np.where(np.isnan(found), np.nan, found == target)
                self._add(f"right {label}", block, right)
                self._add(f"pairs {label}", block, np.ones_like(right))

    def result(self) -> dict[str, Floats]:
        """Accuracy over all pairs: `gold`; and of each label: `gold LABEL`."""
        labels = self.labels()
        right = sum((self._sum(f"right {label}") for label in labels), self._sum("nothing"))
        pairs = sum((self._sum(f"pairs {label}") for label in labels), self._sum("nothing"))
        figures = {"gold": ratio(right, pairs)}
        for label in labels:
            if label != ANY:
                by = ratio(self._sum(f"right {label}"), self._sum(f"pairs {label}"))
                figures[f"gold {label}"] = by
        return figures

    def _count_offsets(self, annotation: Annotation) -> None:
        """How often a word's partner stands at each distance, `[1 1 2w + 1]`, once a document."""
        for source, target, label in annotation.pairs:
            for name in sorted({label, ANY}):
                half = abs(target - source)
                one = np.zeros((1, 1, 2 * half + 1))
                one[..., half + target - source] = 1.0
                self._add_widened(f"offsets {name}", one)

    def best_offsets(self) -> dict[str, tuple[int, float]]:
        """For each label, and `ANY` for all: the best fixed offset between words, its accuracy."""
        best = {}
        for name, counts in self.sums.items():
            what, _, label = name.partition(" ")
            if what == "offsets":
                row = counts[0, 0]
                top = int(row.argmax())
                best[label] = (top - len(row) // 2, float(row[top] / row.sum()))
        return best

    def labels(self) -> list[str]:
        """The labels of the pairs that were met."""
        kept = (name.split(" ", 1) for name in self.sums)
        return sorted(label for what, label in kept if what == "pairs")


def _most_looked_at(weights: Floats, words: Sequence[int], n_words: int) -> Floats:
    """`[H T T]` → `[H W]`: for each word, the other word that most of its weight goes to.

    -1 where no other word gets any, NaN where a weight is no number.
    """
    one_hot = (np.array(words)[:, None] == np.arange(n_words)).astype(np.float64)
    to_words = weights @ one_hot  # H T W: sums
    by_words = (one_hot / np.maximum(one_hot.sum(0), 1)).T @ to_words  # H W W: means
    own = np.eye(n_words, dtype=np.bool_)
    others = np.where(own, 0.0, by_words)
    most = others.argmax(-1)
    weight = np.take_along_axis(others, most[..., None], -1)[..., 0]
    return np.where(np.isnan(weight), np.nan, np.where(weight > 0, most, -1.0))
