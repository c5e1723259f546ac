"""What a check finds: where, how often, in which heads, and what usually brings it about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite

from attnviz.errors import printable
from attnviz.wording import noun_for, plural

CHECKS = {
    "finite": "weights are finite",
    "negative": "none is negative",
    "rows": "rows sum to 1",
    "leak": "none where the mask forbids it",
    "uniform": "rows that see nothing have none",
    "blind": "every row sees something",
    "dead": "no head is uniform throughout",
    "equal": "no two heads are equal",
    "sink": "no head is sunk into one token",
    "stricter": "what the masks allow is used",
    "expected": "weights are softmax(QKᵀ/√d_k)",
    "context": "context is weights · V",
}
"""Every check by name, and what holds where it finds nothing."""

LONGEST_TOKEN = 24
"""Characters of a token in a message; the middle of a longer one gives way."""


@dataclass(frozen=True)
class Location:
    """A cell, or a whole row where `key` is None; indices are those of the array, padding counted.

    `layer` is the layer's number in its model, where a run holds but some of them.
    `value` is what stands there: the weight of a cell, the sum of a row. Tokens are None where
    they are not known.
    """

    layer: int
    head: int
    sequence: int
    query: int | None
    key: int | None
    value: float
    query_token: str | None = None
    key_token: str | None = None

    def words(self, with_layer: bool, with_sequence: bool) -> str:
        """`layer 3 head 7 query 5 key 9`; what there is but one of may be left out."""
        parts = [f"layer {self.layer}"] if with_layer else []
        parts += [f"sequence {self.sequence}"] if with_sequence else []
        parts.append(f"head {self.head}")
        for name, index, token in (
            ("query", self.query, self.query_token),
            ("key", self.key, self.key_token),
        ):
            if index is not None:
                name_of = "" if token is None else f" '{printable(token, LONGEST_TOKEN)}'"
                parts.append(f"{name} {index}{name_of}")
        return " ".join(parts)


@dataclass(frozen=True)
class InHead:
    """What one head has of a finding."""

    layer: int
    head: int
    count: int
    worst: Location


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong (`fails`), or lawful but worth a look.

    `name` is a key of `CHECKS`, with the mask's name after a colon where it is about one
    ("leak:causal"). `unit` says what is counted: rows, cells or heads. `cause` is what usually
    brings it about, empty where it is not known. `heads` are those where it was found,
    in order.
    """

    name: str
    fails: bool
    what: str
    cause: str
    unit: str
    heads: tuple[InHead, ...]
    worst: Location
    measure: str = ""
    """What the value of a place is, in words: "weight", "sum", "off by"."""

    @property
    def count(self) -> int:
        """How many rows, cells or heads in all."""
        return sum(head.count for head in self.heads)


@dataclass(frozen=True)
class Report:
    """What was checked, and what was found: failures first, each kind in the order of `CHECKS`."""

    sizes: Mapping[str, int]
    dtype: str
    precision: str
    tolerance: float
    masks: tuple[str, ...]
    checked: tuple[str, ...]
    """The names of the checks that were made; a leak has one for each mask."""
    findings: tuple[Finding, ...]
    layers: tuple[int, ...]
    """The number of each layer in its model."""
    notes_on_reading: tuple[str, ...] = field(default=())
    """How arrays were read, and what that means for the checks."""

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    @property
    def failures(self) -> tuple[Finding, ...]:
        """What is wrong."""
        return tuple(finding for finding in self.findings if finding.fails)

    @property
    def notes(self) -> tuple[Finding, ...]:
        """What is lawful, but worth a look."""
        return tuple(finding for finding in self.findings if not finding.fails)

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.failures

    @property
    def names_layers(self) -> bool:
        """Whether a head's name needs its layer."""
        return self.layers != (0,)

    @property
    def n_heads(self) -> int:
        """Heads of all layers."""
        return self.sizes["L"] * self.sizes["H"]

    def lines(self, finding: Finding) -> list[str]:
        """A finding in two or three lines: what and how often, the worst place, the cause."""
        found = len(finding.heads)
        counted = "" if finding.unit == "head" else f"{plural(finding.count, finding.unit)} in "
        of = f"{found:,} of {plural(self.n_heads, 'head')}"
        lines = [f"{finding.what}: {counted}{of}{self._where(finding)}"]
        measure = f" {finding.measure}" if finding.measure else ""
        place = finding.worst.words(self.names_layers, self.sizes["B"] > 1)
        label = "worst" if finding.unit != "head" or finding.name == "sink" else "for instance"
        lines.append(f"{label}: {place}:{measure} {number(finding.worst.value)}")
        if finding.cause:
            lines.append(finding.cause)
        return lines

    def _where(self, finding: Finding) -> str:
        """` (layer 3: heads 0, 4-7; layer 5: all)`, unless it is everywhere."""
        if len(finding.heads) == self.n_heads:
            return ""
        by_layer: dict[int, list[int]] = {}
        for head in finding.heads:
            by_layer.setdefault(head.layer, []).append(head.head)
        parts: dict[str, list[int]] = {}
        for layer, heads in by_layer.items():
            whole = len(heads) == self.sizes["H"]
            words = "all heads" if whole else f"{noun_for(len(heads), 'head')} {ranges(heads)}"
            parts.setdefault(words, []).append(layer)
        if not self.names_layers:
            return f" ({next(iter(parts))})"
        named = [
            f"{noun_for(len(layers), 'layer')} {ranges(layers)}: {words}"
            for words, layers in parts.items()
        ]
        more = f"; and {len(named) - MOST_LAYERS} more" if len(named) > MOST_LAYERS else ""
        return f" ({'; '.join(named[:MOST_LAYERS])}{more})"

    def __str__(self) -> str:
        """The report as plain text."""
        blocks = []
        for finding in self.findings:
            first, *rest = self.lines(finding)
            mark = "FAILS" if finding.fails else "note "
            blocks.append("\n".join([f"{mark}  {first}", *(f"       {line}" for line in rest)]))
        return "\n".join([*blocks, self.verdict])

    @property
    def verdict(self) -> str:
        """The last line: how many findings fail, of how many."""
        notes = f"; {plural(len(self.notes), 'note')}" if self.notes else ""
        if self.passed:
            return f"nothing is wrong{notes}"
        n = len(self.failures)
        return f"{plural(n, 'finding')} fail{'s' * (n == 1)}{notes}"


MOST_LAYERS = 4
"""Groups of layers that are named in one line; the others are counted."""


def number(value: float) -> str:
    """`value` to three digits; one that is nearly a round number keeps as many as show that."""
    if not isfinite(value):
        return "NaN" if value != value else ("infinity" if value > 0 else "-infinity")
    for digits in (3, 4, 5, 6, 7, 8, 9):
        digits_of = f"{value:.{digits}g}"
        if float(digits_of) not in (0.0, 1.0) or float(digits_of) == value:
            return digits_of
    return f"{value:.12g}"


def ranges(numbers: list[int]) -> str:
    """`0, 4-7`: ascending numbers with their runs drawn together."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
