"""What went wrong with sizes that cannot work, and with masks that do not fit: by axis, in words.

PyTorch's messages give two numbers. Here each has the name of its axis, how it is made up, and the
nearest value that works. Nothing is computed with tensors, so an answer costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from attnviz.config import AttentionConfig, check_size, divisors, head_count_advice
from attnviz.trace import Step
from attnviz.wording import plural

USUAL_HEAD_WIDTHS = (128, 64, 32)
"""Published models have one of these almost always, 64 and 128 above all."""

SCORE_AXES = ("B", "H", "Tq", "Tk")
WORDS = {"B": "batch", "H": "heads", "Tq": "queries", "Tk": "keys"}


@dataclass(frozen=True)
class Operand:
    """A tensor that takes part in a step: a name, and each axis with its name and length."""

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} [{' '.join(self.axes)}] = {shown(self.shape)}"


@dataclass(frozen=True)
class Diagnosis:
    """Why a step cannot work. `step` is its name in the trace; `fixes` begin with the nearest.

    `operands` are what meets in that step; `factors` show how their numbers are made up.
    """

    step: str
    problem: str
    operands: tuple[Operand, ...]
    factors: tuple[str, ...]
    fixes: tuple[str, ...]

    @property
    def message(self) -> str:
        """All of it in one line, for an error."""
        return f"{self.problem}: {'; '.join((*self.factors, *self.fixes))}"


@dataclass(frozen=True)
class Sizes:
    """Sizes as a person gives them, whether they can work or not.

    `d_k` left out is d_model / n_heads, `d_v` is `d_k`, `n_kv_heads` is `n_heads`, `keys` is
    `queries`. `k_width` is what the projection of keys gives, where that is not heads times width.
    """

    d_model: int
    n_heads: int
    d_k: int | None = None
    d_v: int | None = None
    n_kv_heads: int | None = None
    batch: int = 1
    queries: int = 6
    keys: int | None = None
    k_width: int | None = None

    @property
    def tk(self) -> int:
        return self.queries if self.keys is None else self.keys


def shown(shape: Sequence[int]) -> str:
    """A shape as the trace writes it: `[2 8 6 64]`."""
    return f"[{' '.join(map(str, shape))}]"


def usual_head_counts(d_model: int) -> list[tuple[int, int]]:
    """(n_heads, d_k) for each usual head width that divides `d_model`, fewest heads first."""
    return [(d_model // d_k, d_k) for d_k in USUAL_HEAD_WIDTHS if d_model % d_k == 0]


def diagnose(sizes: Sizes) -> Diagnosis | None:
    """The first step that cannot work at these sizes, or None when all do.

    Raises `ConfigError` when a size cannot be the length of any axis.
    """
    for flag, value in (
        ("--d-model", sizes.d_model),
        ("--n-heads", sizes.n_heads),
        ("--d-k", sizes.d_k),
        ("--d-v", sizes.d_v),
        ("--n-kv-heads", sizes.n_kv_heads),
        ("batch", sizes.batch),
        ("queries", sizes.queries),
        ("keys", sizes.keys),
        ("k width", sizes.k_width),
    ):
        if value is not None:
            check_size(flag, value)
    return _head_count(sizes) or _key_heads(sizes) or _key_width(sizes)


def _head_count(sizes: Sizes) -> Diagnosis | None:
    d_model, heads = sizes.d_model, sizes.n_heads
    if sizes.d_k is not None or d_model % heads == 0:
        return None
    whole, rest = divmod(d_model, heads)
    fixes = [head_count_advice(d_model, heads).partition("; ")[2]]
    usual = usual_head_counts(d_model)
    if usual:
        each = ", ".join(f"{n} (d_k {d_k})" for n, d_k in usual)
        fixes.append(f"heads that give a usual d_k: {each}")
    return Diagnosis(
        step="q",
        problem=f"d_model {d_model} cannot be cut into {heads} heads of equal width",
        operands=(
            Operand("q", ("B", "Tq", "d_model"), (sizes.batch, sizes.queries, d_model)),
            Operand(
                "view", ("B", "Tq", "H", "d_k"), (sizes.batch, sizes.queries, heads, max(whole, 1))
            ),
        ),
        factors=(f"{d_model} = {heads}·{whole} + {rest}", f"{d_model} = {factored(d_model)}"),
        fixes=tuple(fixes),
    )


def factored(n: int) -> str:
    """`n` as a product of primes: 1600 is `2⁶·5²`; a prime is itself."""
    superscript = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
    parts, p = [], 2
    while p * p <= n:
        power = 0
        while n % p == 0:
            n, power = n // p, power + 1
        if power:
            parts.append(f"{p}{str(power).translate(superscript) if power > 1 else ''}")
        p += 1
    if n > 1 or not parts:
        parts.append(str(n))
    return "·".join(parts)


def _head_width(sizes: Sizes) -> int:
    return sizes.d_model // sizes.n_heads if sizes.d_k is None else sizes.d_k


def _key_heads(sizes: Sizes) -> Diagnosis | None:
    heads, groups = sizes.n_heads, sizes.n_kv_heads
    if groups is None or heads % groups == 0:
        return None
    d_k = _head_width(sizes)
    near = sorted(divisors(heads), key=lambda n: (abs(n - groups), n))[:2]
    return Diagnosis(
        step="k_repeated",
        problem=f"{groups} key/value heads cannot be shared evenly by {heads} heads",
        operands=(
            Operand("q", (*SCORE_AXES[:3], "d_k"), (sizes.batch, heads, sizes.queries, d_k)),
            Operand("k", ("B", "Hkv", "Tk", "d_k"), (sizes.batch, groups, sizes.tk, d_k)),
        ),
        factors=(f"{heads} = {groups}·{heads // groups} + {heads % groups}",),
        fixes=(
            f"use {' or '.join(map(str, sorted(near)))} key/value heads "
            f"(all that divide {heads}: {', '.join(map(str, divisors(heads)))})",
        ),
    )


def _key_width(sizes: Sizes) -> Diagnosis | None:
    width, d_k = sizes.k_width, _head_width(sizes)
    groups = sizes.n_heads if sizes.n_kv_heads is None else sizes.n_kv_heads
    if width is None or width == groups * d_k:
        return None
    kind, axis = ("heads", "H") if groups == sizes.n_heads else ("key/value heads", "Hkv")
    whole, rest = divmod(width, d_k)
    factors = [f"{width} = {whole}·{d_k}" + (f" + {rest}" if rest else "")]
    fixes = [f"project K to {groups * d_k}"]
    if rest == 0:
        fixes.append(f"or keep {width} with {whole} {kind}")
    if width % groups == 0:
        fixes.append(f"or keep {width} with d_k {width // groups}")
    return Diagnosis(
        step="k",
        problem=f"K holds {width} numbers a token, and "
        f"{groups} {kind} of d_k {d_k} need {groups}·{d_k} = {groups * d_k}",
        operands=(
            Operand("k", ("B", "Tk", f"{axis}·d_k"), (sizes.batch, sizes.tk, width)),
            Operand("view", ("B", "Tk", axis, "d_k"), (sizes.batch, sizes.tk, groups, d_k)),
        ),
        factors=tuple(factors),
        fixes=tuple(fixes),
    )


def steps_until(steps: Sequence[Step], diagnosis: Diagnosis) -> tuple[Step, ...]:
    """The steps that still work, out of a trace made with a width that does fit.

    Where the heads do not divide d_model, q, k and v have been projected to d_model, and that is
    what those steps then show.
    """
    stop = {"k_repeated": "products"}.get(diagnosis.step, diagnosis.step)
    kept: list[Step] = []
    for step in steps:
        if step.name == stop:
            break
        kept.append(step)
    if diagnosis.step != "q" or diagnosis.operands[0].axes[-1] != "d_model":
        return tuple(kept)
    width = diagnosis.operands[0].shape[-1]
    return tuple(_as_wide_as_the_model(step, width) for step in kept)


def _as_wide_as_the_model(step: Step, d_model: int) -> Step:
    if not step.name.endswith("_projected"):
        return step
    parameters = tuple(
        (name, ("d_model", *axes[1:]), (d_model, *shape[1:]))
        for name, axes, shape in step.parameters
    )
    return replace(
        step,
        axes=(*step.axes[:-1], "d_model"),
        shape=(*step.shape[:-1], d_model),
        parameters=parameters,
    )


# ── sizes that do work, and surprise ─────────────────────────────────────────────────────────


def notes_on_sizes(config: AttentionConfig) -> list[str]:
    """What is legal here and looks like a mistake."""
    width, values = config.n_heads * config.d_k, config.n_heads * config.d_v
    notes = []
    if width != config.d_model:
        notes.append(
            f"n_heads·d_k = {config.n_heads}·{config.d_k} = {width} is not d_model "
            f"{config.d_model}, and need not be: the projections are "
            f"{config.d_model}→{width} and {values}→{config.d_model}"
        )
    if config.d_k == 1:
        notes.append("d_k is 1: a head compares one number of a query with one of a key")
    return notes


def compare(
    a: AttentionConfig, b: AttentionConfig, batch: int, queries: int, keys: int
) -> list[str]:
    """What of two layers side by side deserves a word: above all, why a number did not change."""
    if a.n_heads == b.n_heads or a.n_parameters != b.n_parameters:
        return []
    few, many = sorted((a, b), key=lambda config: config.n_heads)
    cells = [batch * config.n_heads * queries * keys for config in (few, many)]
    return [
        f"{few.n_heads} and {many.n_heads} heads have the same {a.n_parameters:,} parameters, and "
        f"that is no mistake: d_k shrinks from {few.d_k} to {many.d_k} as heads grow, and "
        f"n_heads·d_k stays {few.n_heads * few.d_k}; the scores do grow, from {cells[0]:,} to "
        f"{cells[1]:,} numbers"
    ]


# ── masks ────────────────────────────────────────────────────────────────────────────────────


def mask_misfit(mask: Sequence[int], scores: Sequence[int]) -> str:
    """Why a mask does not fit scores `[B H Tq Tk]`, and what would; "" where it does.

    Shapes meet as broadcasting has them meet: from the last axis backwards, a length of 1 fits any.
    """
    mask, scores = tuple(mask), tuple(scores)
    batch, heads, queries, keys = scores
    if len(mask) > 4:
        extra = len(mask) - 4
        fix = "drop the leading axes of length 1" if prod(mask[:extra]) == 1 else "use [B H Tq Tk]"
        return f"{len(mask)} axes, not 4; {fix}"
    met = zip(SCORE_AXES[4 - len(mask) :], mask, scores[4 - len(mask) :], strict=True)
    differences = [f"{WORDS[axis]} {n} ≠ {want}" for axis, n, want in met if n not in (1, want)]
    if not differences:
        return ""
    if (
        len(mask) == 3
        and mask[0] == batch
        and all(n in (1, size) for n, size in zip(mask[1:], (queries, keys), strict=True))
    ):  # what was meant for sequences lies along the heads
        shape = shown((batch, 1, *mask[1:]))
        return (
            f"B meets H: batch {batch} ≠ heads {heads}; add the head axis: mask[:, None] is "
            f"[B 1 Tq Tk] = {shape}"
        )
    if mask == (batch, keys):  # as padding often comes: its rows lie along the queries
        return (
            f"B meets Tq: batch {batch} ≠ queries {queries}; for padded keys, "
            f"mask[:, None, None, :] is [B 1 1 Tk] = {shown((batch, 1, 1, keys))}"
        )
    return "; ".join((", ".join(differences), *_mask_fixes(mask, scores)))


def _mask_fixes(mask: tuple[int, ...], scores: tuple[int, ...]) -> tuple[str, ...]:
    """What to do about a mask that does not fit, where its numbers show what it was meant to be."""
    batch, heads, queries, keys = scores
    fixes = []
    if len(mask) == 3 and mask == (batch * heads, queries, keys):
        fixes.append(f"its first axis is B·H: mask.view({batch}, {heads}, {queries}, {keys})")
    if len(mask) == 4 and mask[:2] == (heads, batch) != (batch, heads):
        fixes.append("batch and heads are swapped: mask.transpose(0, 1)")
    elif len(mask) == 4 and mask[0] not in (1, batch):
        fixes.append(f"make the mask for the same {plural(batch, 'sequence')}, or mask[:1]")
    if len(mask) >= 2 and mask[-2:] == (keys, queries) and keys != queries:
        fixes.append("queries and keys are swapped: mask.transpose(-2, -1)")
    if mask and mask[-1] not in (1, keys, queries):
        verb = "pad" if mask[-1] < keys else "cut"
        fixes.append(
            f"make it from the {keys} keys that the scores have, or {verb} its last axis to {keys}"
        )
    return tuple(fixes) or (f"a mask is {shown(scores)}, with 1 where an axis is the same for all",)


def torch_mask_misfit(
    mask_shape: Sequence[int], batch: int, heads: int, queries: int, keys: int
) -> str:
    """Why a mask does not fit `nn.MultiheadAttention`, which takes `[Tq Tk]` or `[B·H Tq Tk]`."""
    mask = tuple(mask_shape)
    want = (batch * heads, queries, keys)
    wants = f"[B·H Tq Tk] = {shown(want)} ({batch}·{heads} maps, heads fastest)"
    if mask == (batch, queries, keys):
        return (
            f"mask {shown(mask)} has one map for each of {batch} sequences; nn.MultiheadAttention "
            f"wants {wants}: mask.repeat_interleave({heads}, 0), not repeat (heads slowest)"
        )
    if mask == (batch, heads, queries, keys):
        return f"mask {shown(mask)}: nn.MultiheadAttention wants {wants}: mask.flatten(0, 1)"
    if mask == (batch, keys):
        return (
            f"mask {shown(mask)} marks padded keys: give it as key_padding_mask; attn_mask wants "
            f"[Tq Tk] = {shown((queries, keys))} or {wants}"
        )
    return (
        f"mask {shown(mask)} does not fit nn.MultiheadAttention: it wants "
        f"[Tq Tk] = {shown((queries, keys))} or {wants}"
    )
