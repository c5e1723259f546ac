"""From what a scan saw to findings: what is wrong, what is lawful but odd, and what causes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from attnviz.checks import lookalikes
from attnviz.checks.finding import Finding, InHead, Place
from attnviz.checks.precision import row_tolerance
from attnviz.checks.scan import FEWEST_ROWS, SUNKEN, DropoutSums, Evidence, Tally
from attnviz.checks.subject import Array, Mask, Subject

MOST_DIAGNOSES = 16
"""Layers whose worst head is looked at again for the cause."""

ROWS_TRIED = 16
"""Rows of a head that are looked at for a sum over another axis."""


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

    # ── each check ───────────────────────────────────────────────────────────────────────────

    def not_finite(self) -> Iterator[Finding]:
        if self.seen.finite:
            yield self._finding(
                "finite",
                True,
                "weights that are NaN or infinite",
                self._cause(self.seen.finite, self._why_not_finite),
                "cell",
                self.seen.finite,
            )

    def negative(self) -> Iterator[Finding]:
        if self.seen.negative:
            tally = self.seen.negative
            cause = self._cause(tally, self._why_negative)
            yield self._finding("negative", True, "negative weights", cause, "cell", tally)

    def rows(self) -> Iterator[Finding]:
        if not self.seen.rows:
            return
        tally, layers = self.seen.rows, np.flatnonzero(self.seen.rows.count.any(1))
        dropped = {}
        for layer in layers.tolist():
            p = dropout_of(self.seen.dropout[layer])
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
            cause = self._cause(tally, self._why_sum, wrong)
            yield self._finding(
                "rows", True, "rows that do not sum to 1", cause, "row", tally, "sum", wrong
            )

    def leaks(self) -> Iterator[Finding]:
        for i, (told, tally) in enumerate(zip(self.subject.told, self.seen.leaks, strict=True)):
            if not tally:
                continue

            def why(layer: int, head: int, place: Array, number: int = i) -> str:
                return self._why_leak(number, layer, head, place)

            yield self._finding(
                f"leak:{told.name}",
                True,
                f"weight where the {told.name} mask forbids it",
                self._cause(tally, why),
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
        if self.seen.blind:
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
        yield self._of_heads(
            "equal",
            "heads that equal another one exactly",
            f"layer {layer} head {head} equals layer {of_layer} head {of_head}: the same weights "
            "twice, a head axis that was expanded, or one map saved for all",
            chosen,
            lambda layer, head: self._first_place(layer, head),
            "largest weight",
        )

    def stricter(self) -> Iterator[Finding]:
        """A whole pattern that the masks allow and no head uses."""
        if not self.seen.support:
            return
        shapes: dict[str, list[int]] = {}
        for (layer, _), support in self.seen.support.items():
            words = self._unused(support)
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

    # ── causes ───────────────────────────────────────────────────────────────────────────────

    def _cause(
        self,
        tally: Tally,
        why: Callable[[int, int, Array], str],
        layers: set[int] | None = None,
    ) -> str:
        """The commonest cause among the worst heads of the layers."""
        found: Counter[str] = Counter()
        rows = [i for i in np.flatnonzero(tally.count.any(1)).tolist() if not layers or i in layers]
        for layer in rows[:MOST_DIAGNOSES]:
            head = int(np.argmax(tally.size[layer]))
            found[why(layer, head, tally.place[layer, head])] += 1
        found.pop("", None)
        return found.most_common(1)[0][0] if found else ""

    def _why_not_finite(self, layer: int, head: int, place: Array) -> str:
        sequence, query, _ = place.tolist()
        rows = slice(query, query + 1)
        row = self.subject.layers[layer][sequence, head, query]
        allowed = self.subject.allowed(layer, sequence, rows)
        if allowed is not None and not allowed[head if len(allowed) > 1 else 0].any():
            real = bool(self.subject.query_valid[sequence, query])
            where = "" if real else ", here a row of padding,"
            return (
                f"a row that may see nothing{where} is NaN: softmax of a row that is -inf "
                "everywhere. Set such rows to 0; in the next layer NaN reaches the other tokens"
            )
        shape = self._obeyed(layer, head, place)
        if shape:
            return f"{shape}; the row that sees nothing by it is NaN"
        if np.isnan(row).all():
            return (
                "whole rows are NaN: a score was infinite (in float16, beyond 65504) or NaN, or "
                "the mask left nothing to see"
            )
        return "a NaN in q, k or the layer's weights reaches every row of that token"

    def _why_negative(self, layer: int, head: int, place: Array) -> str:
        sequence, query, _ = place.tolist()
        total = float(self.subject.layers[layer][sequence, head, query].sum(dtype=np.float64))
        if abs(total - 1) < 0.02:
            return "softmax gives none: a difference of two maps, or weights changed afterwards"
        return "these look like scores, before softmax; --softmax turns them into weights"

    def _why_sum(self, layer: int, head: int, place: Array) -> str:
        """Why rows do not sum to 1: the axis, the mask, or what came after softmax."""
        sequence = int(place[0])
        if self.seen.negative.count[layer].any():
            return "these look like scores, before softmax; --softmax turns them into weights"
        axis = self._axis(layer, sequence, head)
        if axis:
            return axis
        if (
            self.seen.empty.count[layer, head]
            and self.seen.empty.count[layer, head] == (self.seen.rows.count[layer, head])
        ):
            shape = self._obeyed(layer, head, place)
            return shape or (
                "rows of zeros: what ran let them see nothing, though the masks told here allow it"
            )
        return self._after_softmax(layer, sequence, head)

    def _axis(self, layer: int, sequence: int, head: int) -> str:
        """Whether the weights sum to 1 along another axis than the keys."""
        subject = self.subject
        _, batch, heads, queries, keys = subject.shape
        weights = subject.layer(layer)
        limit = 4 * row_tolerance("bfloat16", 2)  # what is found is gross
        tried = slice(0, min(keys, ROWS_TRIED))
        rows = slice(0, min(queries, ROWS_TRIED))
        allowed = subject.allowed(layer, sequence, slice(0, queries))
        may: Mask = np.ones((queries, keys), dtype=bool)
        if allowed is not None:
            may = allowed[head if len(allowed) > 1 else 0]
        along_queries = weights[sequence, head, :, tried].sum(0, dtype=np.float64)
        if queries > 1 and _are_ones(along_queries, np.asarray(may[:, tried].any(0)), limit):
            return (
                "each column sums to 1: softmax ran along the queries; along the keys it is "
                "softmax(dim=-1)"
            )
        if heads > 1 and _are_ones(
            weights[sequence, :, rows].sum(0, dtype=np.float64), may[rows], limit
        ):
            return "the heads of a cell sum to 1: softmax ran along the heads, dim=1 for dim=-1"
        if batch > 1 and _are_ones(
            weights[:, head, rows].sum(0, dtype=np.float64), may[rows], limit
        ):
            return "the sequences of a cell sum to 1: softmax ran along the batch, dim=0 for dim=-1"
        return ""

    def _after_softmax(self, layer: int, sequence: int, head: int) -> str:
        """What was done to rows that once summed to 1."""
        subject = self.subject
        rows = slice(0, min(subject.shape[3], lookalikes.LARGEST_VIEW))
        real = subject.query_valid[sequence, rows]
        sums = subject.layers[layer][sequence, head, rows].sum(-1, dtype=np.float64)
        allowed = subject.allowed(layer, sequence, rows)
        off = np.abs(sums - 1)
        if allowed is not None:
            may = allowed[head if len(allowed) > 1 else 0]
            whole, cut = real & may.all(-1), real & may.any(-1) & ~may.all(-1)
            short = bool((sums[cut] < 1).all()) and cut.any()
            if short and (off[whole] <= self.seen.tolerance).all() and whole.any():
                return (
                    "rows with a forbidden key fall short, others do not: the mask was multiplied "
                    "in after softmax; it belongs before, as -inf"
                )
            if short and not whole.any():
                return (
                    "every row falls short: the mask was multiplied in after softmax, where it "
                    "belongs before, as -inf; or a sink takes the rest (--sinks)"
                )
        good = sums[real & (sums != 0)]
        if len(good) and (good < 1).all() and not np.allclose(good, good[0], rtol=1e-3):
            return (
                "every row falls short by a share of its own: keys were left out after softmax, or "
                "a sink or softmax-off-by-one takes the rest (--sinks)"
            )
        if len(good) > 1 and np.allclose(good, good[0], rtol=1e-3):
            return f"every row sums to {good[0]:.4g}: the weights were scaled after softmax"
        if off[real].max(initial=0) <= row_tolerance("bfloat16", subject.shape[-1]):
            return (
                "the sums are off by little: softmax in a lower precision than that of the file "
                "(bfloat16 or float16), or heads averaged in it; --tolerance accepts it"
            )
        return "weights were changed after softmax: thresholded, averaged, or cut off"

    def _why_leak(self, number: int, layer: int, head: int, place: Array) -> str:
        words = lookalikes.explain(self.subject, number, layer, head, place)
        if words:
            return words
        sequence, query, _ = place.tolist()
        row = self.subject.layers[layer][sequence, head, query]
        if row.min() == row.max() and row.size > 1:
            return (
                "the row is uniform over all keys, forbidden ones too: what ran let it see "
                "nothing, and -1e9 in place of -inf made it uniform. Is it padding (--lengths)?"
            )
        return ""

    def _obeyed(self, layer: int, head: int, place: Array) -> str:
        """What one of the masks became, by where the head has weight."""
        for number in range(len(self.subject.told)):
            words = lookalikes.explain(self.subject, number, layer, head, place)
            if words:
                return words
        return ""

    def _unused(self, support: Mask) -> str:
        """What no head of a layer looks at, where that is a whole pattern; "" otherwise."""
        shape = lookalikes.pattern_of(support)
        told = {mask.kind for mask in self.subject.told}
        if not told and shape.endswith("anticausal"):
            return "nobody looks at earlier keys: a causal mask, transposed or inverted"
        if "strictly" in shape and not told & {"mask", "run"}:
            return "nobody looks at itself: a mask that is shifted by one"
        return ""

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
            found.append(InHead(layer, head, 1, worst))
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
            found.append(InHead(layer, head, n, place))
            order.append(tally.size[layer, head])
        worst = found[int(np.argmax(order))].worst
        return Finding(name, fails, what, cause, unit, tuple(found), worst, measure)

    def _place(self, layer: int, head: int, at: Sequence[int], value: float) -> Place:
        """A place from its sequence, query and key, -1 where there is none."""
        sequence, query, key = at
        at_q, at_k = (None if i < 0 else i for i in (query, key))
        token = self.subject.token
        return Place(
            layer,
            head,
            sequence,
            at_q,
            at_k,
            float(value),
            token(sequence, at_q, of_keys=False),
            token(sequence, at_k, of_keys=True),
        )


def _are_ones(sums: Array, counts: Mask, limit: float) -> bool:
    """Whether the sums that count, two at least, are all 1."""
    counted = sums[counts]
    return len(counted) > 1 and bool((np.abs(counted - 1) <= limit).all())


def dropout_of(sums: DropoutSums) -> float | None:
    """The p of dropout that explains how rows add up; None where it does not.

    Dropout makes zeros of a share p of the weights and divides the others by 1 - p (Srivastava et
    al. 2014, as libraries have it): rows without a zero sum to 1/(1 - p), no row to more, and the
    mean of all is 1.
    """
    if sums.rows < 2 or not sums.zeros or sums.largest <= 1:
        return None
    share = sums.zeros / sums.cells
    if not 0.0 < share < 0.95:
        return None
    p = share
    if sums.whole_high > 0:  # rows without a zero tell p exactly
        if sums.whole_high - sums.whole_low > 0.02 * sums.whole_high or sums.whole_low <= 1:
            return None
        p = 1 - 1 / sums.whole_high
    spread = 5 * sqrt(share * (1 - share) / sums.cells) + 0.02
    mean = sums.total / sums.rows
    deviation = sqrt(max(sums.squares / sums.rows - mean**2, 0.0))
    fits = (
        abs(p - share) <= spread
        and sums.largest <= 1 / (1 - p) * 1.02 + 5 * spread
        and abs(mean - 1) <= 5 * deviation / sqrt(sums.rows) + 0.02
    )
    return p if fits else None
