"""All checks of weights: from what a scan counted to findings, their causes, and the report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from attnviz.checks import recomputed_context, recomputed_weights
from attnviz.checks.checked_weights import Cells, CheckedWeights
from attnviz.checks.dropout import dropout_of
from attnviz.checks.head_findings import finding_from, note_on_heads
from attnviz.checks.numeric_causes import NumericCauses
from attnviz.checks.precision import NEGLIGIBLE
from attnviz.checks.report import Finding, Report
from attnviz.checks.scan import FEWEST_ROWS, SUNKEN, ScanCounts, least_roundoff, scan
from attnviz.checks.unused_cells import unused

ALWAYS = ("uniform", "blind", "dead", "equal", "sink", "stricter")
"""Checks that need no mask, after those of the numbers and the masks."""

ALMOST_NOTHING = (
    "below the normal numbers of float32, so that no sum changes by it: the mask adds a number "
    "like -100 to the scores, and -inf would leave exactly 0"
)


def report_on(
    checked: CheckedWeights,
    tensors: recomputed_weights.ComparedTensors | None = None,
    sinks: bool = False,
    tolerance: float | None = None,
) -> Report:
    """Check weights, and with `tensors` compute them again.

    `sinks` lets rows sum to less than 1; `tolerance` is how far from 1 a row may sum, None for what
    its precision allows.
    """
    notes = []
    if checked.cut:
        sinks = True
        notes.append(f"rows may sum to less than 1: {checked.cut}")
    names = ["finite", "negative", "rows", *(f"leak:{mask.name}" for mask in checked.expected)]
    names += ALWAYS
    with np.errstate(all="ignore"):  # NaN and infinity are findings, not warnings
        seen = scan(checked, tolerance, sinks)
        found = list(FindingsOfScan(checked, seen).all())
        if tensors is not None:
            found += recomputed_weights.findings_of(checked, tensors, sinks)
            found += recomputed_context.findings_of(checked, tensors)
            names += tensors.checks
    found.sort(key=lambda finding: not finding.fails)  # stable: each kind keeps its order
    return Report(
        sizes=checked.sizes,
        dtype=checked.dtype,
        precision=least_roundoff(seen.precision),
        tolerance=seen.tolerance,
        masks=tuple(mask.name for mask in checked.expected),
        checked=tuple(names),
        findings=tuple(found),
        layers=checked.layer_numbers,
        notes_on_reading=(*notes, *(() if tensors is None else tensors.notes)),
    )


@dataclass(frozen=True)
class FindingsOfScan:
    """What a scan counted, and the weights to look at again to find a cause."""

    checked: CheckedWeights
    seen: ScanCounts

    def all(self) -> Iterator[Finding]:
        """All findings, failures and notes, in the order of `CHECKS`."""
        yield from self.of_numbers()
        yield from self.of_rows()
        yield from self.leaks()
        yield from self.of_blind_rows()
        yield from self.dead_and_sunken()
        yield from self.copies()
        yield from self.stricter()

    @cached_property
    def causes(self) -> NumericCauses:
        return NumericCauses(self.checked, self.seen)

    def of_numbers(self) -> Iterator[Finding]:
        seen, causes = self.seen, self.causes
        for tally, name, what, why in (
            (seen.finite, "finite", "weights that are NaN or infinite", causes.not_finite),
            (seen.negative, "negative", "negative weights", causes.negative),
        ):
            if tally:
                cause = causes.of(tally, why)
                yield finding_from(self.checked, tally, name, what, cause, unit="cell")

    def of_rows(self) -> Iterator[Finding]:
        tally = self.seen.rows
        wrong = {*np.flatnonzero(tally.count.any(1)).tolist()}
        dropped = {}
        for layer in wrong:
            p = dropout_of(self.seen.dropout[layer])
            if p is None:
                p = dropout_of(self.seen.dropout_in_use[layer])
            if p is not None and not self.seen.negative.count[layer].any():
                dropped[layer] = p
        if dropped:
            p = float(np.median(list(dropped.values())))
            yield finding_from(
                self.checked,
                tally,
                "rows",
                f"rows do not sum to 1 since dropout was on, p about {p:.2f}",
                "the weights were saved in training: some are 0, the others are divided by 1 - p. "
                "Call model.eval() first; sums of rows were not checked here",
                fails=False,
                measure="sum",
                layers=dropped,
            )
        wrong -= {*dropped}
        if wrong:
            cause, what = (
                self.causes.of(tally, self.causes.sums, wrong),
                "rows that do not sum to 1",
            )
            yield finding_from(
                self.checked, tally, "rows", what, cause, measure="sum", layers=wrong
            )

    def leaks(self) -> Iterator[Finding]:
        for i, (mask, tally) in enumerate(zip(self.checked.expected, self.seen.leaks, strict=True)):
            if not tally:
                continue
            fails = self.checked.dtype == "float16" or bool(tally.size.max() >= NEGLIGIBLE)
            yield finding_from(
                self.checked,
                tally,
                f"leak:{mask.name}",
                f"weight where the {mask.name} mask forbids it",
                self.causes.of(tally, partial(self.causes.leak, i)) if fails else ALMOST_NOTHING,
                fails=fails,
                unit="cell",
                measure="weight",
            )

    def of_blind_rows(self) -> Iterator[Finding]:
        seen, checked = self.seen, self.checked
        if seen.trap:
            yield finding_from(
                checked,
                seen.trap,
                "uniform",
                "rows that may see nothing, and have weight all the same",
                "every score of such a row became the same large negative number (-1e9, or "
                "finfo.min), and softmax made it uniform; with -inf it would be NaN. Set the row "
                "to 0 after softmax",
                measure="weight",
            )
        some = (seen.flat.count > 0) & (seen.uniform < seen.choices)
        if some.any():
            yield finding_from(
                checked,
                seen.flat,
                "uniform",
                "rows that are exactly uniform over all keys, where others are not",
                "that is what a mask of -1e9 makes of a row that may see nothing, padding for "
                "instance. Give the masks (--causal, --lengths, --mask), and attnviz checks them",
                fails=False,
                measure="weight",
                chosen=some,
            )
        rows = checked.shape[2] * int(checked.query_valid.sum())
        empty = seen.blind.count.sum(1) == rows
        if empty.any() and not checked.expected:
            yield finding_from(
                checked,
                seen.blind,
                "blind",
                "layers of nothing but zeros",
                "the weights were never computed, or not written to where they were saved from",
                measure="sum",
                layers=np.flatnonzero(empty).tolist(),
            )
        if seen.blind.count[~empty].any() or (seen.blind and checked.expected):
            yield finding_from(
                checked,
                seen.blind,
                "blind",
                "rows of zeros: they see nothing",
                "no key is allowed there, and zeros are right for that; is the mask meant so?"
                if checked.expected
                else "right where a mask forbids everything; give the masks (--causal, --lengths, "
                "--mask), and attnviz checks them",
                fails=False,
                measure="sum",
                layers=None if checked.expected else np.flatnonzero(~empty).tolist(),
            )

    def dead_and_sunken(self) -> Iterator[Finding]:
        dead = self._dead
        if dead.any():
            yield note_on_heads(
                self.checked,
                "dead",
                "heads that are uniform for every query",
                "all scores of a row are equal: queries or keys are zero or the same everywhere, "
                "or the scale is far too small; the head only averages",
                dead,
            )
        sunk = (self.seen.sunk > 0) & (self.seen.sunk == self.seen.judged) & ~dead
        if sunk.any():
            yield finding_from(
                self.checked,
                self.seen.sink,
                "sink",
                f"heads with over {SUNKEN:.0%} of their weight on one key",
                "trained models park unused attention so, on the first token above all; elsewhere "
                "look at that token's scores",
                fails=False,
                unit="head",
                measure="mean weight",
                chosen=sunk,
            )

    def copies(self) -> Iterator[Finding]:
        """Heads that are bit for bit the same as an earlier one."""
        firsts: dict[float, list[tuple[int, int]]] = {}
        copies: dict[tuple[int, int], tuple[int, int]] = {}
        prints, dead = self.seen.fingerprint, self._dead
        stricter = {layer for places in self._stricter.values() for layer, _ in places}
        for place in np.ndindex(prints.shape):
            layer, head = place
            if dead[place] or not self.seen.choices[place] or self.seen.finite.count[place]:
                continue
            if layer in stricter and self._has_no_choice(layer, head):
                continue  # under that mask each row has one key, and all heads have to be equal
            others = firsts.setdefault(float(prints[place]), [])
            same = next((other for other in others if self._same(other, place)), None)
            if same is None:
                others.append((layer, head))
            else:
                copies[layer, head] = same
        if not copies:
            return
        chosen = np.zeros(prints.shape, dtype=bool)
        chosen[tuple(zip(*copies, strict=True))] = True
        (layer, head), (of_layer, of_head) = next(iter(copies.items()))
        numbers = self.checked.layer_numbers
        yield note_on_heads(
            self.checked,
            "equal",
            "heads that equal another one exactly",
            f"layer {numbers[layer]} head {head} equals layer {numbers[of_layer]} head {of_head}: "
            "the same weights twice, a head axis that was expanded, or one map saved for all",
            chosen,
        )

    def stricter(self) -> Iterator[Finding]:
        """A whole pattern that the masks allow and no head uses."""
        for words, places in self._stricter.items():
            chosen = np.zeros(self.seen.choices.shape, dtype=bool)
            chosen[[layer for layer, _ in places]] = True
            yield note_on_heads(
                self.checked,
                "stricter",
                words,
                "a mask was in force that is not expected here, or the mask is off by one",
                chosen,
                places[0][1],
            )

    @cached_property
    def _stricter(self) -> dict[str, list[tuple[int, int]]]:
        """The layers and sequences of each such pattern."""
        patterns: dict[str, list[tuple[int, int]]] = {}
        for (layer, sequence), support in self.seen.support.items():
            leaks = any(tally.count[layer].any() for tally in self.seen.leaks)
            words = unused(self.checked, layer, sequence, support, leaks)
            if words:
                patterns.setdefault(words, []).append((layer, sequence))
        return patterns

    @property
    def _dead(self) -> Cells:
        """`[L H]`: uniform in every row that has a choice."""
        choices = self.seen.choices
        return np.asarray((choices >= FEWEST_ROWS) & (self.seen.uniform == choices))

    def _has_no_choice(self, layer: int, head: int) -> bool:
        """Whether every row has all its weight on one key."""
        top = self.checked.layers[layer][:, head].max(-1)
        return bool((top == 1)[self.checked.query_valid].all())

    def _same(self, one: tuple[int, int], other: tuple[int, int]) -> bool:
        a, b = self.checked.layers[one[0]], self.checked.layers[other[0]]
        return all(
            np.array_equal(a[sequence, one[1]], b[sequence, other[1]])
            for sequence in range(self.checked.shape[1])
        )
