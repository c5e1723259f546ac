"""The page that `attnviz explain` prints: seven steps, each with a sentence and its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

import numpy as np
from rich.console import Console
from rich.text import Text

from attnviz.divergence import entropy
from attnviz.render.console import flow, write
from attnviz.render.explain_digits import (
    choose_digits,
    full_digits,
    holds,
    left_out,
    number,
    printed,
    shown_keys,
    significant,
    weighted,
)
from attnviz.render.explanation import ROUNDING, Explanation, Floats
from attnviz.render.text_page import PageRow, TextPage, widest_text
from attnviz.wording import plural

MOST_ENTRIES = 6
"""Entries that are shown of a vector that does not fit whole."""

AGAIN = {
    "products": "products",
    "scores": "scores",
    "biased": "scores with the bias",
    "masked_scores": "masked scores",
}
"""What a model's own attention shows to nobody, in words."""

WHOLE = 8
"""A vector of up to so many entries is shown whole where it fits."""


def print_explanation(explanation: Explanation, console: Console) -> None:
    """Write the page to `console`; no line is wider than it is."""
    page = TextPage(console)
    _Writer(page, explanation).write()
    write(console, *page.lines)


class _Writer:
    """The sections of the page, in the order of the computation."""

    def __init__(self, page: TextPage, explanation: Explanation) -> None:
        self.page, self.e = page, explanation
        e = explanation
        self.shown = shown_keys(e)
        self.seen = [i for i in self.shown if e.allowed[i]]
        self.rest = left_out(e, self.shown)
        self.example = self._example()
        self.digits = choose_digits(e, self.shown, self._entries_of_values())
        self.n_entries = self._entries_of_keys()
        self.is_whole = self.n_entries == len(e.q)
        if self.is_whole:
            full = full_digits(e, self.shown, self.digits.chain)
            self.digits = replace(self.digits, vector=full)
        self.n_values = self._entries_of_values()

    def write(self) -> None:
        self._title()
        self._query()
        self._products()
        self._scale()
        self._mask()
        self._softmax()
        self._sum()
        self._projection()

    # ── what fits ──

    def _example(self) -> int:
        """The key whose numbers are worked out in full: the second largest weight, or the largest.

        The largest is always exp(0) = 1, which shows little. -1 where the query sees nothing.
        """
        weights = np.nan_to_num(self.e.weights)
        order = sorted(self.seen, key=lambda i: -weights[i])
        if len(order) > 1 and weights[order[1]] > 0.005:
            return order[1]
        return order[0] if order else -1

    def _room(self, *others: int) -> int:
        """Columns left beside a row's name and columns of these widths."""
        places = widest_text(["at", *(self._place(i) for i in self.shown)])
        names = widest_text(["key", self._others(), *(self._name(i)[1] for i in self.shown)])
        return self.page.width - (2 + places + 2 + names) - sum(width + 2 for width in others)

    def _entries(self, values: Floats, decimals: int, room: int) -> int:
        """How many entries of vectors `[n d]` fit in `room`: all of them, or some and a …."""
        length = int(values.shape[1])
        cell = 2 + widest_text(["[0]", *(number(x, decimals) for x in values.ravel())])
        if length <= WHOLE and length * cell <= room:
            return length
        fitting = min((room - 3) // cell, MOST_ENTRIES)
        if fitting > 1:
            return min(length, fitting)
        return length if length <= 4 else 3  # the table becomes blocks

    def _entries_of_keys(self) -> int:
        e, d_k = self.e, len(self.e.q)
        vectors = np.vstack([e.q, e.k[self.shown]])
        room = self._room(widest_text(["q·k", *(self._chain(e.products[i]) for i in self.shown)]))
        full = full_digits(e, self.shown, self.digits.chain)
        if d_k <= 4 or self._entries(vectors, full, room) == d_k:
            return d_k
        return min(self._entries(vectors, self.digits.vector, room), d_k - 1)

    def _entries_of_values(self) -> int:
        values = np.vstack([self.e.v[self.shown], self.e.context])
        return self._entries(values, significant(self.e.v), self._room(6))

    # ── what several sections say ──

    def _place(self, key: int) -> str:
        """A key's index in its own text; padding has none."""
        return "" if self.e.key_is_padding[key] else str(self.e.key_positions[key])

    def _name(self, key: int) -> tuple[str, str]:
        return self._place(key), self.page.label(self.e.key_tokens[key])

    def _quoted(self, key: int) -> str:
        return self.page.quoted(self.e.key_tokens[key])

    def _style(self, key: int) -> str:
        return "bold" if key == self.example else ""

    def _chain(self, x: float) -> str:
        return number(x, self.digits.chain)

    def _weight(self, x: float) -> str:
        return number(x, self.digits.weight)

    def _vector(self, values: Floats, decimals: int) -> list[str]:
        return [number(x, decimals) for x in values]

    def _for_example(self, *terms: str) -> None:
        self.page.say(f"For {self._quoted(self.example)}:", *terms, indent="  ")

    def _run(self, *names: str, derived: str = "") -> None:
        """The taps that a section's numbers come from, with their shapes and source lines."""
        found = {step.name: step for step in self.e.steps}
        if self.e.is_foreign:  # no tap was there for these: they were worked out again
            again = [AGAIN[name] for name in names if name in AGAIN]
            names = tuple(name for name in names if name in found)
            derived = ", ".join([*again, *([derived] if derived else [])])
        pieces = []
        for i, name in enumerate(names):
            end = ";" if i < len(names) - 1 else "."
            before = "" if i else "Run: "
            if name in found:
                step = found[name]
                axes, shape = " ".join(step.axes), " ".join(map(str, step.shape))
                pieces += [f"{before}{name} [{axes}] = [{shape}]", step.source + end]
            else:
                pieces.append(before + name + end)
        if pieces or derived:
            self.page.say(*pieces, *([f"Derived: {derived}."] if derived else []), style="dim")

    # ── the sections ──

    def _title(self) -> None:
        page, e = self.page, self.e
        token = page.quoted(e.query_token)
        page.say(f"What head {e.head} does for {token}", style="bold")
        of_all = f" of {e.n_layers}" if e.layer < e.n_layers > 1 else ""
        facts = [
            "query: padding" if e.query_is_padding else f"query: position {e.query_position}",
            *([f"sequence {e.sequence} of {e.batch_size}"] if e.batch_size > 1 else []),
            *([f"layer {e.layer}" + of_all] if e.names_layer else []),
            f"head {e.head} of {e.n_heads}",
            plural(e.n_keys, "key") + (" of the other text" if e.is_cross else ""),
            f"masks: {', '.join(map(page.name, e.masks)) or 'none'}",
            e.dtype,
        ]
        page.lines += flow([Text(fact, "dim") for fact in facts], page.width)
        page.lines.append(Text())
        slack = ""
        if e.dtype in ("float16", "bfloat16"):
            parts = f"{1 / ROUNDING[e.dtype]:.0f}"
            slack = f", or to within the rounding of {e.dtype} itself, 1 part in {parts}"
        page.say(
            "Every number comes from the run, rounded for print; numbers computed from those are "
            "called derived. You can check every step by hand: each number follows from the "
            f"printed ones before it, to within 1 in its last digit{slack}."
        )
        nth, twins = e.occurrence
        if twins > 1:
            page.say(f"The text contains {token} {twins} times; this is number {nth}.")
        if e.query_is_padding:
            page.say(
                "This query is padding: the layer computes its row like any other, but nothing "
                "should read it."
            )
        if not e.trained:
            page.say("The layer is untrained: it shows how attention works, not what words mean.")

    def _query(self) -> None:
        page, e = self.page, self.e
        d_k, n = len(e.q), self.n_entries
        page.heading("1. The query vector q")
        page.say(
            f"W_Q turns {self._input()} into {plural(d_k, 'number')}, its query vector: a "
            "question to every key."
        )
        if "q_normed" in e.done_to_q:
            page.say("RMSNorm along d_k then scales it, so that no product grows too large.")
        if "q_rotated" in e.done_to_q:
            page.say(
                "Then pairs of its numbers are rotated by angles that grow with the token's "
                "position (rotary positions). Keys are rotated in the same way, so that q·k "
                "depends on their distance. q and k are shown after the rotation."
            )
        entries = [*self._vector(e.q[:n], self.digits.vector), *([] if n == d_k else ["…"])]
        page.say("q =", *_listed(entries), indent="  ")
        some = "" if n == d_k else f"The first {n} of {d_k} entries are shown. "
        page.say(f"{some}Its norm, √(q·q), is {number(_norm(e.q), 4)}.")
        self._run("q", *e.done_to_q, derived="the norm")

    def _input(self) -> str:
        """What W_Q is given: the text, or what the layer below has made of it."""
        e = self.e
        if e.layer == 0:
            given = "the token's input"
        elif e.is_foreign:  # there may be a norm between them, or a sublayer
            given = f"a vector made of the output of layer {e.layer - 1} for the token"
        else:
            given = f"the output of layer {e.layer - 1} for the token"
        return given + (", normed," if e.is_normed else "")

    def _products(self) -> None:
        page, e, digits = self.page, self.e, self.digits
        d_k, n = len(e.q), self.n_entries
        page.heading("2. The dot products q·k")
        other = " of the other text" if e.is_cross else ""
        page.say(
            f"Each key token{other} has a key vector k, the answer to such questions. It is "
            "multiplied with q entry by entry, and the results are added up: the sum is large "
            "if q and k point in the same direction."
        )
        if len(self.shown) < e.n_keys:
            hidden = e.n_keys - len(self.shown)
            weight = self._weight(float(e.weights[self.rest].sum()))
            page.say(
                f"The {len(self.shown)} keys with the largest weights are shown. The other "
                f"{hidden} have a total weight of {weight}."
            )
        more = [] if n == d_k else ["…"]
        rows = [PageRow(["", "q", *self._vector(e.q[:n], digits.vector), *more, ""])]
        for i in self.shown:
            entries = self._vector(e.k[i, :n], digits.vector)
            rows.append(
                PageRow(
                    [*self._name(i), *entries, *more, self._chain(e.products[i])], self._style(i)
                )
            )
        page.table(["at", "key", *_numbered(n), *more, "q·k"], rows)
        if not self.is_whole:
            page.say(f"Each product adds up all {d_k} entries, not only those shown.")
        elif self.example >= 0:
            terms = _terms(e.q, digits.vector, e.k[self.example], digits.vector)
            self._for_example(*terms, f"= {self._chain(e.products[self.example])}")
        of_k = [name for name in ("k_normed", "k_rotated", "k_extended") if self._ran(name)]
        self._run("k", *of_k, "products")

    def _ran(self, name: str) -> bool:
        return any(step.name == name for step in self.e.steps)

    def _scale(self) -> None:
        page, e = self.page, self.e
        d_k = len(e.q)
        if not e.is_scaled:
            page.heading("3. No scale" + (", but a position bias" if e.bias is not None else ""))
            page.say(
                "This layer does not divide the products: its W_Q was trained without a scale."
            )
            self._bias()
            return
        root, is_usual = self._number(e.scale), e.scale == sqrt(d_k)
        name = "√d_k" if is_usual else root
        page.heading(
            f"3. The scale {name}" + (" and the position bias" if e.bias is not None else "")
        )
        wider = "the wider the scores, the more of its weight softmax puts on a single key."
        if is_usual:
            page.say(
                f"Each product is divided by √d_k = √{d_k} = {root}: a sum of d_k terms spreads "
                f"√d_k times as wide as one term, and {wider}"
            )
        else:
            page.say(
                f"Each product is divided by {root}, which this layer has in place of √d_k = "
                f"√{d_k} = {self._number(sqrt(d_k))}: {wider}"
            )
        rows = [
            PageRow(
                [*self._name(i), self._chain(e.products[i]), self._chain(e.scaled[i])],
                self._style(i),
            )
            for i in self.shown
        ]
        page.table(["at", "key", "q·k", "score" if e.bias is None else f"q·k / {name}"], rows)
        if (i := self.example) >= 0:
            self._for_example(
                f"{self._chain(e.products[i])} / {root}", f"= {self._chain(e.scaled[i])}"
            )
        page.say(self._without_scale())
        self._run("scores", derived="what would happen without the scale")
        self._bias(f"q·k / {name}")

    def _number(self, x: float) -> str:
        """A number that others are divided by, with digits enough for the quotients."""
        return number(x, 0 if x.is_integer() else self.digits.chain + 1)

    def _bias(self, before: str = "q·k") -> None:
        """What the places of query and key add to their score; `before` names what they had."""
        page, e = self.page, self.e
        if e.bias is None:
            return
        if self._ran("alibi"):
            page.say(
                "ALiBi then subtracts the distance between query and key, times this head's own "
                "slope: a distant key has to match better."
            )
        elif e.is_foreign:
            page.say("The model then adds a bias of its own, a number for each query and key.")
        else:
            page.say(
                "A number from a learned table is then added, one for this head and the distance "
                "from query to key."
            )
        rows = [
            PageRow(
                [
                    *self._name(i),
                    self._chain(e.scaled[i]),
                    self._chain(e.bias[i]),
                    self._chain(e.scores[i]),
                ],
                self._style(i),
            )
            for i in self.shown
        ]
        page.table(["at", "key", before, "bias", "score"], rows)
        if (i := self.example) >= 0:
            self._for_example(
                f"{self._chain(e.scaled[i])} + {_bracketed(self._chain(e.bias[i]))}",
                f"= {self._chain(e.scores[i])}",
            )
        self._run("alibi" if self._ran("alibi") else "position_bias", "biased")

    def _without_scale(self) -> str:
        e = self.e
        if e.allowed.sum() < 2:
            return "Without it nothing would change here: no two keys share the weight."
        if e.scale == 1:
            return "With d_k = 1 it changes nothing."
        without = e.weights_without_scale
        largest = int(np.nan_to_num(without).argmax())
        before, after = self._weight(e.weights.max()), self._weight(without[largest])
        bits, bits_after = (number(float(entropy(w)), 2) for w in (e.weights, without))
        changes = []
        if before != after:
            on = f"on {self._quoted(largest)}"
            changes.append(f"the largest weight would be {after}, {on}, instead of {before}")
        if bits != bits_after:
            keys, keys_after = (_few(2 ** float(entropy(w))) for w in (e.weights, without))
            changes.append(
                f"the row would have {bits_after} bits of entropy instead of {bits}, as if "
                f"{keys_after} keys shared the weight evenly instead of {keys}"
            )
        if not changes:
            return "Without it nothing that is printed here would change."
        return f"Without it, {'; '.join(changes)}."

    def _mask(self) -> None:
        page, e = self.page, self.e
        page.heading("4. The mask")
        forbidden = e.n_keys - int(e.allowed.sum())
        if not e.masks and not forbidden:
            page.say("A mask forbids keys. This run has none: the query may see every key.")
            return
        page.say(
            "A mask says which keys this query may see. The score of a forbidden key becomes -inf, "
            "and exp(-inf) is exactly 0."
        )
        rows = []
        for i in self.shown:
            score = self._chain(e.scores[i]) if e.allowed[i] else "-inf"
            style = self._style(i) if e.allowed[i] else "dim"
            rows.append(PageRow([*self._name(i), score, self._verdict(i)], style))
        page.table(["at", "key", "score", "verdict"], rows, words=True)
        counts = [(page.name(name), int((~verdict).sum())) for name, verdict in e.verdicts]
        said = ", ".join(f"{name} forbids {n}" for name, n in counts)
        page.say(f"This query may see {e.n_keys - forbidden} of {plural(e.n_keys, 'key')}.", said)
        if said:
            page.lines[-1].append(".")
        self._run("masked_scores")

    def _verdict(self, key: int) -> str:
        if self.e.allowed[key]:
            return "may look"
        names = ", ".join(map(self.page.name, self.e.forbidding(key)))
        return f"no: {names}" if names else "no"

    def _softmax(self) -> None:
        page, e, digits = self.page, self.e, self.digits
        page.heading("5. Softmax")
        if not e.sees_something:
            page.say(
                "Softmax turns scores into weights that add up to 1, but this query may see no "
                "key: all its weights are 0."
            )
            self._run("weights")
            return
        top = self._chain(e.scores[e.largest])
        page.say(
            "Softmax turns scores into weights that are positive and add up to 1: exp of each "
            f"score, divided by the sum of them all. The largest score, {top} of "
            f"{self._quoted(e.largest)}, is subtracted first: this changes no weight, and exp "
            "cannot overflow."
        )
        weights = np.nan_to_num(e.weights)
        longest = float(weights[self.seen].max()) or 1.0
        rows = []
        for i in self.seen:
            cells_of = [
                self._chain(e.shifted[i]),
                self._chain(e.exps[i]),
                self._weight(e.weights[i]),
            ]
            bar = float(weights[i]) / longest
            rows.append(PageRow([*self._name(i), *cells_of], self._style(i), bar))
        if len(self.rest):
            exp, weight = float(e.exps[self.rest].sum()), float(e.weights[self.rest].sum())
            rows.append(PageRow(["+", self._others(), "", self._chain(exp), self._weight(weight)]))
        total = self._weight(e.total) + " " * (digits.chain - digits.weight)
        rows.append(PageRow(["", "sum", "", total, self._sum_of_weights()], is_sum=True))
        page.table(["at", "key", "score - max", "exp", "weight"], rows, bars=True)
        forbidden = e.n_keys - int(e.allowed.sum())
        if forbidden:
            page.say(f"Left out: {plural(forbidden, 'forbidden key')}, whose weight is exactly 0.")
        i, shifted = self.example, self._chain(e.shifted[self.example])
        self._for_example(
            f"{self._chain(e.scores[i])} - {_bracketed(top)} = {shifted};",
            f"exp({shifted}) = {self._chain(e.exps[i])};",
            f"{self._chain(e.exps[i])} / {self._weight(e.total)} = {self._weight(e.weights[i])}",
        )
        self._run("weights", derived="score - max, exp and its sum")

    def _others(self) -> str:
        """The one line that stands for all keys that may be seen and are not shown."""
        return f"{len(self.rest)} others" if len(self.rest) else ""

    def _sum_of_weights(self) -> str:
        """The sum of the weights, with as many decimals as the printed ones add up to."""
        e, digits = self.e, self.digits.weight
        weights = np.append(e.weights[self.seen], e.weights[self.rest].sum())
        on_paper = printed(weights, digits).sum(keepdims=True)
        exact = e.weights.sum(keepdims=True)
        good = (d for d in range(digits, 0, -1) if holds(on_paper, printed(exact, d), d))
        decimals = next(good, 0)
        return number(float(exact[0]), decimals) + " " * (digits - decimals)

    def _sum(self) -> None:
        page, e, digits, n = self.page, self.e, self.digits, self.n_values
        d_v = len(e.context)
        page.heading("6. The weighted sum of values")
        if not e.sees_something:
            page.say(
                "The context is the sum of the keys' value vectors, each times its weight. Here "
                "all weights are 0, and so is the context."
            )
            zeros = [*self._vector(e.context[:n], 1), *([] if n == d_v else ["…"])]
            page.say("context =", *_listed(zeros), indent="  ")
            self._run("context")
            return
        page.say(
            f"Each key token also has a value vector v of {plural(d_v, 'number')}. The sum of "
            "these vectors, each times its weight, is the context: what this head found for the "
            "query."
        )
        weights, values = weighted(e, self.shown)
        names = [(*self._name(i), self._style(i)) for i in self.seen]
        has_others = len(weights) > len(names)
        if has_others:
            names.append(("+", self._others(), ""))
        more = [] if n == d_v else ["…"]
        rows = []
        for (place, name, style), weight, value in zip(names, weights, values, strict=True):
            entries = self._vector(value[:n], digits.value)
            rows.append(PageRow([place, name, self._weight(weight), *entries, *more], style))
        align = " " * (digits.value - digits.context)
        sums = [text + align for text in self._vector(e.context[:n], digits.context)]
        rows.append(PageRow(["", "sum", "", *sums, *more], is_sum=True))
        page.table(["at", "key", "weight", *_numbered(n), *more], rows)
        notes = [] if n == d_v else [f"The first {n} of {d_v} entries are shown."]
        if has_others:
            notes.append("The others have one line: their weights' sum, and their weighted mean.")
        if notes:
            page.say(*notes)
        terms = _terms(weights, digits.weight, values[:, 0], digits.value)
        if len(terms) > 4:
            terms = [*terms[:3], "+ …", terms[-1]]
        page.say("Entry 0:", *terms, f"= {number(e.context[0], digits.context)}", indent="  ")
        self._run("v", "context", derived="the others' sum and mean" if has_others else "")

    def _projection(self) -> None:
        page, e = self.page, self.e
        page.heading("7. The output projection W_O")
        rows: list[tuple[str, Floats]] = []
        if e.parts is not None:
            rows.append((f"head {e.head}", e.parts[e.head]))
        if e.parts is not None and e.projected is not None:
            others = "other heads, bias" if e.n_heads > 1 else "bias"
            rows.append((others, e.projected - e.parts[e.head]))
        if e.projected is not None:
            rows.append(("sum" if rows else "all heads", e.projected))
        if not rows:
            page.say(
                "W_O mixes the contexts of the heads; this run kept neither it nor its result."
            )
            return
        length = len(rows[0][1])
        page.say(
            "The contexts of all heads are laid side by side, and W_O mixes them back to d_model = "
            f"{plural(length, 'number')}. Each head has its own columns of W_O, so the layer's "
            "output is a sum with one part for each head."
        )
        values = np.vstack([row for _, row in rows])
        digits = significant(values)
        norms = [number(_norm(row), digits) for row in values]
        names = widest_text([name for name, _ in rows])
        n = self._entries(values, digits, page.width - 6 - names - widest_text(norms) - 2)
        more = [] if n == length else ["…"]
        table = [
            PageRow(["", name, *self._vector(row[:n], digits), *more, norm], is_sum=name == "sum")
            for (name, row), norm in zip(rows, norms, strict=True)
        ]
        page.table(["", "part", *_numbered(n), *more, "norm"], table)
        if more:
            page.say(f"The first {n} of {length} entries are shown. Norms do not add up.")
        if e.parts is not None and e.n_heads > 1:
            lengths = [_norm(part) for part in e.parts]
            rank = sum(other > lengths[e.head] for other in lengths) + 1
            page.say(f"By norm, this head's part is number {rank} of {e.n_heads}.")
        derived = (
            "" if e.parts is None else f"the context of head {e.head} times its columns of W_O"
        )
        self._run("context" if e.projected is None else "projected", derived=derived)


def _few(x: float) -> str:
    return number(x, 1 if x < 10 else 0)


def _norm(values: Floats) -> float:
    return float(np.sqrt((values * values).sum()))


def _numbered(n: int) -> list[str]:
    return [f"[{i}]" for i in range(n)]


def _listed(entries: Sequence[str]) -> list[str]:
    """`[a, b, c]` in pieces, so that a line can end after each comma."""
    ends = [","] * (len(entries) - 1) + ["]"]
    pieces = [entry + end for entry, end in zip(entries, ends, strict=True)]
    return ["[" + pieces[0], *pieces[1:]]


def _bracketed(text: str) -> str:
    return f"({text})" if text.startswith("-") else text


def _terms(a: Floats, decimals_a: int, b: Floats, decimals_b: int) -> list[str]:
    """a₀ · b₀, + a₁ · b₁, … as one writes them."""
    pairs = [(number(x, decimals_a), number(y, decimals_b)) for x, y in zip(a, b, strict=True)]
    return [
        f"{'+ ' if i else ''}{_bracketed(x)} · {_bracketed(y)}" for i, (x, y) in enumerate(pairs)
    ]
