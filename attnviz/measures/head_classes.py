"""What a head is, by rules: a name from its figures, with the thresholds and who set them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from attnviz.measures.block import Floats
from attnviz.measures.offsets import POSITIONAL
from attnviz.measures.sinks import EPSILON

MOST, BROAD = 0.5, 0.1

THRESHOLDS = {
    "induction": f"prefix-matching score ≥ {MOST} (half; Olsson et al. 2022 set no limit)",
    "previous": f"≥ {POSITIONAL} of the largest weights at offset -1 (Voita et al. 2019, sec. 5.1)",
    "next": f"≥ {POSITIONAL} of them at offset +1 (Voita et al. 2019)",
    "self": f"≥ {POSITIONAL} of them at offset 0 (Voita et al. 2019)",
    "offset": f"≥ {POSITIONAL} of them at another fixed offset (Voita et al. 2019)",
    "separator": f"≥ {MOST} of the weight on separators (half: Clark et al. 2019, section 3.2)",
    "sink": f"α₀ > {EPSILON} (Gu et al. 2024, section 3.2, on texts of 64 tokens: in shorter ones "
    "α₀ is larger, whatever the head)",
    "same token": f"≥ {MOST} of the weight on the same token elsewhere (half)",
    "block": "≥ 0.8 of the weight on ordinary tokens in the own segment, and at most half as much "
    "in others as the head's distances alone would give them (Kovaleva et al. 2019 show the kind, "
    "section 4.1; the numbers are this program's)",
    "broad": f"largest weight ≤ {BROAD} on average (Clark et al. 2019, section 3.3)",
    "mixed": "none of these",
}
"""Classes in the order in which they are tried: a head has the first that fits."""

FORM_THRESHOLDS = {
    "vertical": "≥ 0.6 of the weight on the first token, specials and separators",
    "diagonal": "≥ 0.6 of it within one position",
    "vertical + diagonal": "≥ 0.6 of it on both together, ≥ 0.2 on each alone",
    "block": THRESHOLDS["block"],
    "mixed": "none of these",
}
"""The five kinds of Kovaleva et al. 2019 (section 4.1, figure 1), who told them apart by eye and a
trained classifier; these rules are this program's. `mixed` is their heterogeneous."""

IN_SEGMENT, LEAK = 0.8, 0.5
CLEAR, SOME = 0.6, 0.2


@dataclass(frozen=True)
class HeadClass:
    """A head's class, and how clear it is: the figure that the class was told by."""

    name: str
    figure: str
    value: float
    offset: int | None = None


def classify(figures: Mapping[str, Floats], layer: int, head: int) -> HeadClass:
    """The first class of `THRESHOLDS` that fits a head. Figures that were not taken do not fit."""

    def value(name: str) -> float:
        return float(figures[name][layer, head]) if name in figures else np.nan

    if value("prefix_matching") >= MOST:
        return HeadClass("induction", "prefix_matching", value("prefix_matching"))
    if value("at_offset") >= POSITIONAL:
        offset = int(value("offset"))
        name = {-1: "previous", 1: "next", 0: "self"}.get(offset, "offset")
        return HeadClass(name, "at_offset", value("at_offset"), offset)
    if value("separator") >= MOST:
        return HeadClass("separator", "separator", value("separator"))
    if value("sink") > EPSILON:
        return HeadClass("sink", "sink", value("sink"))
    if value("same_token") >= MOST:
        return HeadClass("same token", "same_token", value("same_token"))
    if _is_block(value("segment"), value("segment_evenly")):
        return HeadClass("block", "segment", value("segment"))
    if value("largest") <= BROAD:
        return HeadClass("broad", "keys", value("keys"))
    return HeadClass("mixed", "entropy", value("entropy"))


def form_of(figures: Mapping[str, Floats], layer: int, head: int) -> str:
    """Which of the five kinds of Kovaleva et al. 2019 a head's maps are, by `FORM_THRESHOLDS`."""
    names = ("fixed", "band", "segment", "segment_evenly")
    fixed, band, segment, evenly = (float(figures[name][layer, head]) for name in names)
    twice = float(figures["fixed_band"][layer, head]) if "fixed_band" in figures else 0.0
    if fixed + band - twice >= CLEAR and min(fixed, band) - twice >= SOME:
        return "vertical + diagonal"
    if fixed >= CLEAR:
        return "vertical"
    if band >= CLEAR:
        return "diagonal"
    if _is_block(segment, evenly):
        return "block"
    return "mixed"


def _is_block(segment: float, evenly: float) -> bool:
    """Whether the weight stays in its segment, more than the head's distances explain."""
    return segment >= IN_SEGMENT and 1 - segment <= LEAK * (1 - evenly)
