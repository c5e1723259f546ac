"""What usually brings a finding about, by a second look at the worst head of each layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attnviz.checks import mask_in_force
from attnviz.checks.checked_weights import Array, CheckedWeights
from attnviz.checks.dropout import LEAST_DROPOUT
from attnviz.checks.precision import row_tolerance
from attnviz.checks.report import number
from attnviz.checks.scan import HeadTally, ScanCounts

MOST_DIAGNOSES = 16
"""Layers whose worst head is looked at again."""

TRIED = 16
"""Rows or columns of a head that are looked at for a sum over another axis."""

LOGARITHMS = (
    "these are logarithms of weights: exp of a row sums to 1 (log_softmax where softmax belongs); "
    "--softmax turns them into weights"
)
SCORES = "these look like scores, before softmax; --softmax turns them into weights"

Why = Callable[[int, int, Array], str]
"""(layer, head, place) → a cause, or "" for none. A place is (sequence, query, key)."""


@dataclass(frozen=True)
class NumericCauses:
    """What a scan counted, and the weights to look at again."""

    checked: CheckedWeights
    seen: ScanCounts

    def of(self, tally: HeadTally, why: Why, layers: set[int] | None = None) -> str:
        """The commonest cause among the worst heads of the layers."""
        found: Counter[str] = Counter()
        rows = [i for i in np.flatnonzero(tally.count.any(1)).tolist() if not layers or i in layers]
        for layer in rows[:MOST_DIAGNOSES]:
            head = int(np.argmax(tally.size[layer]))
            found[why(layer, head, tally.place[layer, head])] += 1
        found.pop("", None)
        return found.most_common(1)[0][0] if found else ""

    def not_finite(self, layer: int, head: int, place: Array) -> str:
        """Why there is a NaN or an infinity."""
        sequence, query, _ = place.tolist()
        weights = self.checked.layers[layer]
        allowed = self.checked.allowed(layer, sequence, slice(query, query + 1))
        if allowed is not None and not allowed[head if len(allowed) > 1 else 0].any():
            real = bool(self.checked.query_valid[sequence, query])
            where = "" if real else ", here a row of padding,"
            return (
                f"a row that may see nothing{where} is NaN: softmax of a row that is -inf "
                "everywhere. Set such rows to 0; in the next layer NaN reaches the other tokens"
            )
        shape = self._obeyed(layer, head, place) or mask_in_force.blinded(self.checked, layer)
        if shape:
            return f"{shape}; a row that sees nothing by it is NaN"
        row = weights[sequence, head, query]
        if not np.isnan(row).all():
            if np.isnan(row).any() and (np.isnan(row) | (row == 0)).all():
                return (
                    "NaN stands among zeros: exponentials were infinite, and infinity / infinity "
                    "is NaN; subtract the row's largest score before exp, as softmax does"
                )
            return "single weights are: they were changed after softmax, which gives whole rows"
        if self.checked.dtype == "float16":
            return "whole rows are NaN: in float16 a score beyond 65504 is infinite"
        if self.seen.finite.count[layer].sum() == np.prod(weights.shape):
            return (
                "every row of the layer is NaN: a mask made as (1 - mask) * -inf, where 0 · -inf "
                "is NaN (masked_fill takes -inf as it is), or a NaN in the layer's own weights"
            )
        rows = slice(0, min(self.checked.shape[3], mask_in_force.LARGEST_PART))
        if np.isnan(weights[sequence, head, rows]).all() and rows.stop > 1:
            return (
                "all rows of the head are NaN: a NaN in one key, or in the layer's own weights, "
                "reaches every query"
            )
        return "whole rows are NaN: a NaN in the query, or a mask that left it nothing to see"

    def negative(self, layer: int, head: int, place: Array) -> str:
        """Why a weight is below 0."""
        sequence, query, _ = place.tolist()
        total = float(self.checked.layers[layer][sequence, head, query].sum(dtype=np.float64))
        with np.errstate(over="ignore"):
            powers = np.exp(self.checked.layers[layer][sequence, head, query].astype(np.float64))
        if abs(powers.sum() - 1) < LEAST_DROPOUT:
            return LOGARITHMS
        if abs(total - 1) < 0.02:
            return "softmax gives none: a difference of two maps, or weights changed afterwards"
        return SCORES

    def sums(self, layer: int, head: int, place: Array) -> str:
        """Why rows do not sum to 1: the axis, the mask, or what came after softmax."""
        sequence = int(place[0])
        if self.seen.negative.count[layer].any():
            worst = int(np.argmax(self.seen.negative.size[layer]))
            return self.negative(layer, worst, self.seen.negative.place[layer, worst])
        axis = self._axis(layer, sequence, head)
        if axis:
            return axis
        if self.seen.empty.count[layer, head] == self.seen.rows.count[layer, head]:
            return self._obeyed(layer, head, place) or (
                "rows of zeros: what ran let them see nothing, though the expected masks allow it"
            )
        return self._after_softmax(layer, sequence, head)

    def _axis(self, layer: int, sequence: int, head: int) -> str:
        """Whether the weights sum to 1 along another axis than the keys."""
        _, batch, heads, queries, keys = self.checked.shape
        weights = self.checked.layers[layer]
        columns = slice(0, min(keys, TRIED))
        rows = slice(0, min(queries, TRIED))
        if queries > 1 and _are_ones(weights[sequence, head, :, columns].sum(0, dtype=np.float64)):
            return (
                "each column sums to 1: softmax ran along the queries; along the keys it is "
                "softmax(dim=-1)"
            )
        if heads > 1 and _are_ones(weights[sequence, :, rows].sum(0, dtype=np.float64)):
            return "the heads of a cell sum to 1: softmax ran along the heads, dim=1 for dim=-1"
        if batch > 1 and _are_ones(weights[:, head, rows].sum(0, dtype=np.float64)):
            return "the sequences of a cell sum to 1: softmax ran along the batch, dim=0 for dim=-1"
        return ""

    def _after_softmax(self, layer: int, sequence: int, head: int) -> str:
        """What was done to rows that once summed to 1."""
        checked = self.checked
        rows = slice(0, min(checked.shape[3], mask_in_force.LARGEST_PART))
        real = checked.query_valid[sequence, rows]
        sums = checked.layers[layer][sequence, head, rows].sum(-1, dtype=np.float64)
        allowed = checked.allowed(layer, sequence, rows)
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
            by_luck = ", or dropout was on and took nothing here" if good[0] > 1.005 else ""
            scaled = "the weights were scaled after softmax"
            return f"every row sums to {number(good[0])}: {scaled}{by_luck}"
        if off[real].max(initial=0) <= row_tolerance("bfloat16", checked.shape[-1]):
            return (
                "the sums are off by little: softmax in a lower precision than that of the file "
                "(bfloat16 or float16), or heads averaged in it; --tolerance accepts it"
            )
        if off[real].max(initial=0) > 1 and (good > 1).mean() > 0.2:
            weights = checked.layers[layer][sequence, head, rows][real]
            if weights.max() < 1 and weights.min() >= 0:
                return (
                    "rows sum to far more than 1, and every weight is below 1: sigmoid, which "
                    "makes each weight by itself, where softmax shares a row among its keys"
                )
            return (
                "rows sum to far more than 1, each to another number: exponentials that were not "
                "divided by the sum of their own row (sum(-1, keepdim=True))"
            )
        return "weights were changed after softmax: thresholded, averaged, or cut off"

    def leak(self, mask: int, layer: int, head: int, place: Array) -> str:
        """What the mask of that number became."""
        words = (
            mask_in_force.of_other_sequences(self.checked, mask, layer)
            or mask_in_force.explain(self.checked, mask, layer, head, place)
            or self._obeyed(layer, head, place)
            or mask_in_force.blinded(self.checked, layer)
        )
        if words:
            return words
        sequence, query, _ = place.tolist()
        row = self.checked.layers[layer][sequence, head, query]
        if row.min() == row.max() and row.size > 1:
            return (
                "the row is uniform over all keys, forbidden ones too: what ran let it see "
                "nothing, and -1e9 in place of -inf made it uniform. Is it padding (--lengths)?"
            )
        return (
            "forbidden cells have weight here and there: the mask that was used has holes, or "
            "weights were changed afterwards"
        )

    def _obeyed(self, layer: int, head: int, place: Array) -> str:
        """What one of the masks became, by where weight leaked, or by where the head has any."""
        for i, leaks in enumerate(self.seen.leaks):
            if leaks.count[layer].any():
                worst = int(np.argmax(leaks.size[layer]))
                at = leaks.place[layer, worst]
                words = mask_in_force.explain(self.checked, i, layer, worst, at)
                if words:
                    return words
        for i in range(len(self.checked.expected)):
            words = mask_in_force.explain(self.checked, i, layer, head, place)
            if words:
                return words
        return ""


def _are_ones(sums: Array) -> bool:
    """Whether these sums, two at least, are all 1 but for those of forbidden cells, which are 0."""
    counted = sums[sums != 0]
    limit = 4 * row_tolerance("bfloat16", 2)  # what is found is gross
    return len(counted) > 1 and bool((np.abs(counted - 1) <= limit).all())
