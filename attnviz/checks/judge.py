"""From what a scan saw to findings: what is wrong, what is lawful but odd, and what causes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from attnviz.checks import lookalikes
from attnviz.checks.causes import Causes, dropout_of
from attnviz.checks.finding import Finding, InHead, Place
from attnviz.checks.scan import FEWEST_ROWS, SUNKEN, Evidence, Tally
from attnviz.checks.subject import Mask, Subject


def findings_of(subject: Subject, seen: Evidence, sinks: bool) -> Iterator[Finding]:
    """All findings, failures and notes, in the order of `CHECKS`."""
    judge = Judge(subject, seen, sinks)
    yield from judge.not_finite()
    yield from judge.negative()
    yield from judge.rows()
    yield from judge.leaks()
    yield from judge.blind()
    yield from judge.dead_and_sunken()
    yield from judge.copies()
    yield from judge.stricter()


@dataclass(frozen=True)
class Judge:
    """The evidence, and the weights to look at again where a cause is asked for."""

    subject: Subject
    seen: Evidence
    sinks: bool

    @property
    def causes(self) -> Causes:
        """What to ask for causes."""
        return Causes(self.subject, self.seen)

    # ── each check ───────────────────────────────────────────────────────────────────────────

    def not_finite(self) -> Iterator[Finding]:
        causes = self.causes
        if self.seen.finite:
            yield self._finding(
                "finite",
                True,
                "weights that are NaN or infinite",
                causes.of(self.seen.finite, causes.not_finite),
                "cell",
                self.seen.finite,
            )

    def negative(self) -> Iterator[Finding]:
        if self.seen.negative:
            tally, causes = self.seen.negative, self.causes
            cause = causes.of(tally, causes.negative)
            yield self._finding("negative", True, "negative weights", cause, "cell", tally)

    def rows(self) -> Iterator[Finding]:
        if not self.seen.rows:
            return
        tally, layers = self.seen.rows, np.flatnonzero(self.seen.rows.count.any(1))
        dropped = {}
        for layer in layers.tolist():
            p = dropout_of(self.seen.dropout[layer])
            if p is None:
                p = dropout_of(self.seen.dropout_in_use[layer])
            if p is not None and not self.seen.negative.count[layer].any():
                dropped[layer] = p
        if dropped:
            p = float(np.median(list(dropped.values())))
            yield self._finding(
                "rows",
                False,
                f"rows do not sum to 1 since dropout was on, p about {p:.2f}",
                "the weights were saved in training: some are 0, the others are divided by 1 - p. "
                "Call model.eval() first; sums of rows were not checked here",
                "row",
                tally,
                "sum",
                layers=set(dropped),
            )
        wrong = {*layers.tolist()} - {*dropped}
        if wrong:
            causes = self.causes
            cause = causes.of(tally, causes.sums, wrong)
            yield self._finding(
                "rows", True, "rows that do not sum to 1", cause, "row", tally, "sum", wrong
            )

    def leaks(self) -> Iterator[Finding]:
        for i, (told, tally) in enumerate(zip(self.subject.told, self.seen.leaks, strict=True)):
            if not tally:
                continue
            yield self._finding(
                f"leak:{told.name}",
                True,
                f"weight where the {told.name} mask forbids it",
                self.causes.of(tally, partial(self.causes.leak, i)),
                "cell",
                tally,
                "weight",
            )

    def blind(self) -> Iterator[Finding]:
        if self.seen.trap:
            yield self._finding(
                "uniform",
                True,
                "rows that may see nothing, and have weight all the same",
                "every score of such a row became the same large negative number (-1e9, or "
                "finfo.min), and softmax made it uniform; with -inf it would be NaN. Set the row "
                "to 0 after softmax",
                "row",
                self.seen.trap,
                "weight",
            )
        if self.seen.flat:
            tally = self.seen.flat
            some = (tally.count > 0) & (self.seen.uniform < self.seen.choices)
            if some.any():
                yield self._finding(
                    "uniform",
                    False,
                    "rows that are exactly uniform over all keys, where others are not",
                    "that is what a mask of -1e9 makes of a row that may see nothing, padding for "
                    "instance. Tell the masks (--causal, --lengths, --mask), and they are checked",
                    "row",
                    tally,
                    "weight",
                    chosen=some,
                )
        rows = self.subject.shape[2] * int(self.subject.query_valid.sum())
        empty = self.seen.blind.count.sum(1) == rows
        if empty.any() and not self.subject.told:
            yield self._finding(
                "blind",
                True,
                "layers of nothing but zeros",
                "the weights were never computed, or not written to where they were saved from",
                "row",
                self.seen.blind,
                "sum",
                layers={*np.flatnonzero(empty).tolist()},
            )
        if self.seen.blind.count[~empty].any() or (self.seen.blind and self.subject.told):
            yield self._finding(
                "blind",
                False,
                "rows of zeros: they see nothing",
                "no key is allowed there, and zeros are right for that; is the mask meant so?"
                if self.subject.told
                else "right where a mask forbids everything; tell the masks (--causal, --lengths, "
                "--mask), and they are checked",
                "row",
                self.seen.blind,
                "sum",
                None if self.subject.told else {*np.flatnonzero(~empty).tolist()},
            )

    def dead_and_sunken(self) -> Iterator[Finding]:
        dead = self._dead
        if dead.any():
            yield self._of_heads(
                "dead",
                "heads that are uniform for every query",
                "all scores of a row are equal: queries or keys are zero or the same everywhere, "
                "or the scale is far too small; the head only averages",
                dead,
                lambda layer, head: self._first_place(layer, head),
                "largest weight",
            )
        sunk = (self.seen.sunk > 0) & (self.seen.sunk == self.seen.judged) & ~dead
        if sunk.any():
            yield self._finding(
                "sink",
                False,
                f"heads with over {SUNKEN:.0%} of their weight on one key",
                "trained models park unused attention so, on the first token above all; elsewhere "
                "look at that token's scores",
                "head",
                self.seen.sink,
                "mean weight",
                chosen=sunk,
            )

    def copies(self) -> Iterator[Finding]:
        """Heads that are bit for bit the same as an earlier one."""
        firsts: dict[float, list[tuple[int, int]]] = {}
        copies: dict[tuple[int, int], tuple[int, int]] = {}
        prints, dead = self.seen.fingerprint, self._dead
        for place in np.ndindex(prints.shape):
            layer, head = place
            if dead[place] or not self.seen.choices[place] or self.seen.finite.count[place]:
                continue
            others = firsts.setdefault(float(prints[place]), [])
            same = next((other for other in others if self._same(other, place)), None)
            if same is None:
                others.append((layer, head))
            else:
                copies[layer, head] = same
        if not copies:
            return
        chosen = np.zeros(prints.shape, dtype=bool)
        for place in copies:
            chosen[place] = True
        (layer, head), (of_layer, of_head) = next(iter(copies.items()))
        numbers = self.subject.layer_numbers
        yield self._of_heads(
            "equal",
            "heads that equal another one exactly",
            f"layer {numbers[layer]} head {head} equals layer {numbers[of_layer]} head {of_head}: "
            "the same weights twice, a head axis that was expanded, or one map saved for all",
            chosen,
            lambda layer, head: self._first_place(layer, head),
            "largest weight",
        )

    def stricter(self) -> Iterator[Finding]:
        """A whole pattern that the masks allow and no head uses."""
        if not self.seen.support:
            return
        shapes: dict[str, list[int]] = {}
        for (layer, sequence), support in self.seen.support.items():
            words = lookalikes.unused(self.subject, layer, sequence, support)
            if words:
                shapes.setdefault(words, []).append(layer)
        for words, layers in shapes.items():
            chosen = np.zeros(self.seen.choices.shape, dtype=bool)
            chosen[layers] = True
            yield self._of_heads(
                "stricter",
                words,
                "a mask was in force that was not told here, or the mask is off by one",
                chosen,
                lambda layer, head: self._first_place(layer, head),
                "largest weight",
            )

    # ── building findings ────────────────────────────────────────────────────────────────────

    @property
    def _dead(self) -> Mask:
        """`[L H]`: uniform in every row that has a choice."""
        choices = self.seen.choices
        return np.asarray((choices >= FEWEST_ROWS) & (self.seen.uniform == choices))

    def _same(self, one: tuple[int, int], other: tuple[int, int]) -> bool:
        a, b = self.subject.layers[one[0]], self.subject.layers[other[0]]
        return all(
            np.array_equal(a[sequence, one[1]], b[sequence, other[1]])
            for sequence in range(self.subject.shape[1])
        )

    def _first_place(self, layer: int, head: int) -> tuple[float, list[int]]:
        """The largest weight of the head's first sequence that has real rows, and where it is."""
        sequence = int(np.argmax(self.subject.query_valid.any(1)))
        rows = np.flatnonzero(self.subject.query_valid[sequence])
        query = int(rows[-1])
        row = self.subject.layers[layer][sequence, head, query]
        key = int(np.argmax(row))
        return float(row[key]), [sequence, query, key]

    def _of_heads(
        self,
        name: str,
        what: str,
        cause: str,
        chosen: Mask,
        place: Callable[[int, int], tuple[float, list[int]]],
        measure: str,
    ) -> Finding:
        """A note about whole heads."""
        found = []
        for layer, head in np.argwhere(chosen).tolist():
            value, (sequence, query, key) = place(layer, head)
            worst = self._place(layer, head, (sequence, query, key), value)
            found.append(InHead(worst.layer, head, 1, worst))
        return Finding(name, False, what, cause, "head", tuple(found), found[0].worst, measure)

    def _finding(
        self,
        name: str,
        fails: bool,
        what: str,
        cause: str,
        unit: str,
        tally: Tally,
        measure: str = "",
        layers: set[int] | None = None,
        chosen: Mask | None = None,
    ) -> Finding:
        found = []
        order = []
        for layer, head in np.argwhere(tally.count > 0 if chosen is None else chosen).tolist():
            if layers is not None and layer not in layers:
                continue
            at = tally.place[layer, head].tolist()
            place = self._place(layer, head, at, tally.value[layer, head])
            n = 1 if unit == "head" else int(tally.count[layer, head])
            found.append(InHead(place.layer, head, n, place))
            order.append(tally.size[layer, head])
        worst = found[int(np.argmax(order))].worst
        return Finding(name, fails, what, cause, unit, tuple(found), worst, measure)

    def _place(self, layer: int, head: int, at: Sequence[int], value: float) -> Place:
        """A place from its sequence, query and key, -1 where there is none."""
        sequence, query, key = at
        at_q, at_k = (None if i < 0 else i for i in (query, key))
        token = self.subject.token
        return Place(
            self.subject.layer_numbers[layer],
            head,
            sequence,
            at_q,
            at_k,
            float(value),
            token(sequence, at_q, of_keys=False),
            token(sequence, at_k, of_keys=True),
        )
