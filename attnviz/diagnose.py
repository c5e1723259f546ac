"""What went wrong with sizes that cannot work, and with masks that do not fit: by axis, in words.

PyTorch's messages give two numbers. Here each has the name of its axis, how it is made up, and the
nearest value that works. Nothing is computed with tensors, so an answer costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from attnviz.config import AttentionConfig, check_size, divisors, head_count_advice
from attnviz.errors import InputError
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
    `queries`. `input_width` is the last axis of what goes in, where it is not d_model; `q_width`,
    `k_width` and `v_width` are what their projections give, where that is not heads times width.
    `mask` is the shape of a mask over the scores.
    """

    d_model: int
    n_heads: int
    d_k: int | None = None
    d_v: int | None = None
    n_kv_heads: int | None = None
    batch: int = 1
    queries: int = 6
    keys: int | None = None
    input_width: int | None = None
    q_width: int | None = None
    k_width: int | None = None
    v_width: int | None = None
    mask: tuple[int, ...] | None = None

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
        ("input width", sizes.input_width),
        ("q width", sizes.q_width),
        ("k width", sizes.k_width),
        ("v width", sizes.v_width),
    ):
        if value is not None:
            check_size(flag, value)
    return (
        _input_width(sizes)
        or _head_count(sizes)
        or _key_heads(sizes)
        or _projected_widths(sizes)
        or _mask(sizes)
    )


def _input_width(sizes: Sizes) -> Diagnosis | None:
    width = sizes.input_width
    if width is None or width == sizes.d_model:
        return None
    return Diagnosis(
        step="q_projected",
        problem=f"the input is {width} wide, and W_Q takes d_model {sizes.d_model}",
        operands=(
            Operand("x", ("B", "Tq", "?"), (sizes.batch, sizes.queries, width)),
            Operand("W_Q", ("d_model", "H·d_k"), (sizes.d_model, _width(sizes))),
        ),
        factors=(f"the last axis of x, {width}, is summed with d_model, {sizes.d_model}",),
        fixes=(
            f"set d_model to {width}",
            f"or embed the input into {sizes.d_model} numbers a token",
        ),
    )


def _width(sizes: Sizes) -> int:
    """What W_Q projects to: heads times their width, d_model where no width is given."""
    return sizes.d_model if sizes.d_k is None else sizes.n_heads * sizes.d_k


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


def _projected_widths(sizes: Sizes) -> Diagnosis | None:
    d_k = _head_width(sizes)
    d_v = d_k if sizes.d_v is None else sizes.d_v
    groups = sizes.n_heads if sizes.n_kv_heads is None else sizes.n_kv_heads
    grouped = groups != sizes.n_heads
    kind, h = ("key/value heads", "Hkv") if grouped else ("heads", "H")
    for step, width, count, each, what, axis in (
        ("q", sizes.q_width, sizes.n_heads, d_k, "heads", "H"),
        ("k", sizes.k_width, groups, d_k, kind, h),
        ("v", sizes.v_width, groups, d_v, kind, h),
    ):
        need = count * each
        if width is None or width == need:
            continue
        d, t = ("d_v" if step == "v" else "d_k"), ("Tq" if step == "q" else "Tk")
        length = sizes.queries if step == "q" else sizes.tk
        whole, rest = divmod(width, each)
        factors = [f"{width} = {whole}·{each}" + (f" + {rest}" if rest else "")]
        fixes = [f"project {step.upper()} to {need}"]
        if rest == 0:
            fixes.append(f"or keep {width} with {whole} {what}")
        if width % count == 0:
            fixes.append(f"or keep {width} with {d} {width // count}")
        return Diagnosis(
            step=step,
            problem=f"{step.upper()} holds {width} numbers a token, and "
            f"{count} {what} of {d} {each} need {count}·{each} = {need}",
            operands=(
                Operand(step, ("B", t, f"{axis}·{d}"), (sizes.batch, length, width)),
                Operand("view", ("B", t, axis, d), (sizes.batch, length, count, each)),
            ),
            factors=tuple(factors),
            fixes=tuple(fixes),
        )
    return None


def _mask(sizes: Sizes) -> Diagnosis | None:
    if sizes.mask is None:
        return None
    scores = (sizes.batch, sizes.n_heads, sizes.queries, sizes.tk)
    verdict = check_mask_shape(sizes.mask, scores)
    if verdict.fits:
        return None
    return Diagnosis(
        step="masked_scores",
        problem="the mask does not fit the scores",
        operands=(
            Operand("mask", verdict.axes, sizes.mask),
            Operand("scores", SCORE_AXES, scores),
        ),
        factors=verdict.differences,
        fixes=verdict.fixes,
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


def remarks(config: AttentionConfig) -> list[str]:
    """What is legal here and looks like a mistake."""
    width, values = config.n_heads * config.d_k, config.n_heads * config.d_v
    said = []
    if width != config.d_model:
        said.append(
            f"n_heads·d_k = {config.n_heads}·{config.d_k} = {width} is not d_model "
            f"{config.d_model}, and need not be: the projections are "
            f"{config.d_model}→{width} and {values}→{config.d_model}"
        )
    if config.d_k == 1:
        said.append("d_k is 1: a head compares one number of a query with one of a key")
    return said


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


@dataclass(frozen=True)
class MaskVerdict:
    """Whether a mask's shape fits scores; `suspicious` where it fits by a coincidence of sizes."""

    fits: bool
    suspicious: bool
    axes: tuple[str, ...]
    differences: tuple[str, ...]
    fixes: tuple[str, ...]
    text: str


def explain_mask_shape(mask_shape: Sequence[int], scores_shape: Sequence[int]) -> str:
    """How a mask meets scores `[B H Tq Tk]`, axis by axis, in one line; see `check_mask_shape`."""
    return check_mask_shape(mask_shape, scores_shape).text


def check_mask_shape(mask_shape: Sequence[int], scores_shape: Sequence[int]) -> MaskVerdict:
    """Compare a mask's shape with that of scores `[B H Tq Tk]`.

    Shapes meet as broadcasting has them meet: from the last axis backwards, a length of 1 fits any.
    Raises `InputError` when `scores_shape` has not four axes, or a length is negative.
    """
    mask, scores = tuple(mask_shape), tuple(scores_shape)
    if len(scores) != 4:
        raise InputError(f"scores {shown(scores)} have {len(scores)} axes; [B H Tq Tk] is expected")
    for name, shape in (("mask", mask), ("scores", scores)):
        if any(n < 0 for n in shape):
            raise InputError(f"{name} {shown(shape)} has a negative length")
    batch, _, queries, keys = scores
    if len(mask) > 4:
        extra = len(mask) - 4
        fix = "drop the leading axes of length 1" if prod(mask[:extra]) == 1 else "use [B H Tq Tk]"
        return _verdict(mask, scores, ("?",) * len(mask), (f"{len(mask)} axes, not 4",), (fix,))
    met = SCORE_AXES[4 - len(mask) :]
    differences = tuple(
        f"{WORDS[axis]} {n} ≠ {want}"
        for axis, n, want in zip(met, mask, scores[4 - len(mask) :], strict=True)
        if n not in (1, want)
    )
    if len(mask) == 3 and mask[0] == batch != 1 and _rest_fits(mask[1:], (queries, keys)):
        return _batch_meets_heads(mask, scores)
    if len(mask) == 2 and mask == (batch, keys) and batch != 1:
        return _batch_meets_queries(mask, scores)
    if not differences:
        return _verdict(mask, scores, met, (), ())
    return _verdict(mask, scores, met, differences, _mask_fixes(mask, scores))


def _rest_fits(rest: tuple[int, ...], want: tuple[int, ...]) -> bool:
    return all(n in (1, size) for n, size in zip(rest, want, strict=True))


def _batch_meets_heads(mask: tuple[int, ...], scores: tuple[int, ...]) -> MaskVerdict:
    """`[B Tq Tk]`: what was meant for sequences lies along the heads."""
    batch, heads = scores[:2]
    fix = f"add the head axis: mask[:, None] is [B 1 Tq Tk] = {shown((mask[0], 1, *mask[1:]))}"
    axes = ("B", "Tq", "Tk")
    if batch != heads:
        return _verdict(mask, scores, axes, (f"B meets H: batch {batch} ≠ heads {heads}",), (fix,))
    why = f"B meets H: it fits only since both are {batch}"
    other = f"a map for each head would be [1 H Tq Tk] = {shown((1, heads, *mask[1:]))}"
    return _verdict(mask, scores, axes, (why,), (fix, other), by_chance=True)


def _batch_meets_queries(mask: tuple[int, ...], scores: tuple[int, ...]) -> MaskVerdict:
    """`[B Tk]`, as padding often comes: its rows lie along the queries."""
    batch, _, queries, keys = scores
    padding = f"mask[:, None, None, :] is [B 1 1 Tk] = {shown((batch, 1, 1, keys))}"
    if batch != queries:
        why = f"B meets Tq: batch {batch} ≠ queries {queries}"
        return _verdict(mask, scores, ("B", "Tk"), (why,), (f"for padded keys, {padding}",))
    why = f"fits as [Tq Tk], the same for all sequences; B is {batch} as well"
    fix = f"if its rows are sequences, {padding}"
    return _verdict(mask, scores, ("Tq", "Tk"), (why,), (fix,), by_chance=True)


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


def _verdict(
    mask: tuple[int, ...],
    scores: tuple[int, ...],
    axes: tuple[str, ...],
    differences: tuple[str, ...],
    fixes: tuple[str, ...],
    by_chance: bool = False,
) -> MaskVerdict:
    fits = not differences or by_chance
    met = f"mask {_named(axes, mask)} on scores {_named(SCORE_AXES, scores)}"
    if differences:
        text = f"{met}: {', '.join(differences)}; {'; '.join(fixes)}"
    else:
        absent = SCORE_AXES[: 4 - len(mask)]
        ones = (
            a for a, n, want in zip(axes, mask, scores[4 - len(mask) :], strict=True) if n < want
        )
        same = [{"B": "sequences"}.get(a, WORDS[a]) for a in (*absent, *ones)]
        shared = f"the same for all {' and '.join(same)}" if same else "one for each cell"
        text = f"{met}: fits, {shared}"
    return MaskVerdict(fits, by_chance, axes, differences, fixes, text)


def _named(axes: tuple[str, ...], shape: tuple[int, ...]) -> str:
    return f"[{' '.join(f'{a}={n}' for a, n in zip(axes, shape, strict=True))}]"


def explain_torch_mask(
    mask_shape: Sequence[int], batch: int, heads: int, queries: int, keys: int
) -> str:
    """How a mask meets `nn.MultiheadAttention`, whose `attn_mask` is `[Tq Tk]` or `[B·H Tq Tk]`."""
    mask = tuple(mask_shape)
    want = (batch * heads, queries, keys)
    wants = f"[B·H Tq Tk] = {shown(want)} ({batch}·{heads} maps, heads fastest)"
    if mask == (queries, keys):
        return (
            f"mask {shown(mask)} fits nn.MultiheadAttention: the same for all sequences and heads"
        )
    if mask == want:
        return (
            f"mask {shown(mask)} fits nn.MultiheadAttention if heads are fastest, as "
            f"repeat_interleave({heads}, 0) has it; repeat gives the same shape and wrong maps"
        )
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
