"""Which sample, position and feature each element of a tensor stands for, followed op by op.

**The method.** A tensor's provenance is a set of *coordinates*: for each family (B: the sample, T:
the position, F: the feature of one projection) a number for each element. The inputs have them by
definition. An operation that only moves elements (`view`, `transpose`, `cat`, indexing …) is done
to the coordinates themselves, held as integer tensors, so that its effect on them is exact and
needs no rule. A product sums an axis away, and with it what varied along it; where both operands
have the same coordinate along different axes, as queries and keys do, the right one's becomes a
second role (`T'`). A projection gives its last axis features of its own.

**What a reshape may do.** In every tensor made by splitting, merging and swapping whole axes, a
coordinate is a sum of functions of one index each: position = f(i) + g(j), as when T is cut into
blocks. A reshape across axes that are not adjacent in memory breaks that: after
`view(B, H, T, d_k)` of `[B T H·d_k]` the position is ⌊(h·T + t) / H⌋, which is no such sum
wherever T is not a multiple of H. So with sizes that have no common factor, a coordinate that is
not a sum after a reshape proves that elements were regrouped, and one that is a sum proves that
they were not. Coordinates are therefore kept as one vector for each axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Coordinate = tuple[Tensor | None, ...]
"""For each axis, what it adds to the coordinate, int64; None where it adds nothing."""

LARGEST = 2**22
"""Elements: a larger tensor's coordinates are let go rather than laid out."""

SOFTMAX = "softmax"
"""A mark with the form of a coordinate: it varies along the axis that a softmax ran over.

Its name carries a number, so that each softmax is followed to the sum that its weights go into.
"""

RESHAPES = {"view", "reshape", "flatten", "unflatten", "view_as", "reshape_as", "ravel"}
MOVES = RESHAPES | {
    "transpose", "permute", "squeeze", "unsqueeze", "expand", "expand_as", "contiguous", "clone",
    "chunk", "split", "split_with_sizes", "tensor_split", "unbind", "narrow", "select",
    "__getitem__", "repeat", "repeat_interleave", "movedim", "moveaxis", "swapaxes", "swapdims",
    "t", "T", "mT", "data", "detach", "flip", "roll", "cat", "concat", "concatenate", "stack",
    "tile", "broadcast_to", "index_select",
}  # fmt: skip
PRODUCTS = {"matmul", "__matmul__", "bmm", "mm"}
REDUCTIONS = {
    "sum", "mean", "amax", "amin", "max", "min", "any", "all", "logsumexp", "prod", "norm",
}  # fmt: skip
DIVISIONS = {
    "div", "div_", "__truediv__", "__itruediv__", "divide", "divide_", "true_divide", "normalize",
}  # fmt: skip
SOFTMAXES = {"softmax", "log_softmax", "_safe_softmax"}


@dataclass(frozen=True)
class Info:
    """A tensor's coordinates by name, and whether it is a product of two activations (scores)."""

    coordinates: dict[str, Coordinate] = field(default_factory=dict)
    product: bool = False

    def along(self, axis: int) -> set[str]:
        """The coordinates that vary along `axis`."""
        return {key for key, parts in self.coordinates.items() if parts[axis] is not None}


@dataclass(frozen=True)
class Trouble:
    """A finding before it is put into words: an axis of an operand, and the one that it meets.

    `meets` counts in the result, except for "normalised", where it is the operand's summed axis.
    """

    kind: str
    operand: int = 0
    axis: int = 0
    meets: int = 0


def family(key: str) -> str:
    """B, T or F of a coordinate's name: the role's mark and the projection's number left out."""
    return key.rstrip("'").split("#")[0]


def laid_out(parts: Coordinate, shape: Sequence[int]) -> Tensor:
    """The coordinate of each element, int64 of `shape`."""
    whole = torch.zeros(tuple(shape), dtype=torch.long)
    for axis, part in enumerate(parts):
        if part is not None:
            whole += part.view(*(-1 if i == axis else 1 for i in range(len(shape))))
    return whole


def separated(whole: Tensor) -> Coordinate | None:
    """The coordinate as a sum of one vector for each axis, or None when it is no such sum."""
    if whole.numel() == 0:
        return (None,) * whole.ndim
    start = whole[(0,) * whole.ndim]
    parts: list[Tensor | None] = []
    offset: Tensor | int = start
    for axis in range(whole.ndim):
        line = whole[tuple(slice(None) if i == axis else 0 for i in range(whole.ndim))] - start
        if bool((line == 0).all()):
            parts.append(None)
        else:
            parts.append(line + offset)  # the constant goes with the first axis that varies
            offset = 0
    if all(part is None for part in parts):
        return tuple(parts) if bool((whole == start).all()) else None
    return tuple(parts) if torch.equal(laid_out(tuple(parts), whole.shape), whole) else None


def fresh(shape: Sequence[int], number: int) -> dict[str, Coordinate]:
    """Features of a new projection along the last axis."""
    if not shape or shape[-1] == 1:
        return {}
    return {f"F#{number}": (*(None,) * (len(shape) - 1), torch.arange(shape[-1]))}


def _varying(coordinates: dict[str, Coordinate]) -> dict[str, Coordinate]:
    return {k: parts for k, parts in coordinates.items() if any(p is not None for p in parts)}


@dataclass
class Ledger:
    """Coordinates of every tensor seen, and the rules that carry them from inputs to outputs."""

    known: dict[int, tuple[Tensor, Info]] = field(default_factory=dict)
    projections: int = 0
    softmaxes: int = 0
    """Softmaxes of scores, or of what cannot be told: those of features are not counted."""
    along_keys: set[str] = field(default_factory=set)
    """The marks of those that were seen to run along the axis that is summed with the values."""

    def of(self, tensor: Tensor) -> Info:
        return self.known[id(tensor)][1] if id(tensor) in self.known else Info()

    def set(self, tensor: Tensor, info: Info) -> None:
        # the tensor is kept as well: an id is only its own while it lives
        self.known[id(tensor)] = (tensor, info)

    def follow(
        self,
        name: str,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        results: Sequence[Tensor],
        call: Callable[..., Any],
    ) -> list[Trouble]:
        """Work out the results' coordinates; return what looks wrong. `call` repeats the op."""
        if name in MOVES:
            return self._move(name, args, kwargs, results, call)
        rule = getattr(self, f"_on_{name.strip('_')}", None)
        if name in PRODUCTS:
            return self._product(args[0], args[1], results[0])
        if name in ("baddbmm", "addmm", "addbmm") and len(args) > 2:
            return self._product(args[1], args[2], results[0])
        if name in SOFTMAXES:
            return self._softmax(args, kwargs, results[0])
        if rule is not None:
            found: list[Trouble] = rule(args, kwargs, results)
            return found
        if name in REDUCTIONS and tensors_in(args):
            return self._reduce(args, kwargs, results)
        operands = [*tensors_in(args), *tensors_in(kwargs)]
        troubles = self._elementwise(operands, results)
        if name in DIVISIONS:
            self._divided(operands if name != "normalize" else operands * 2, results)
        return troubles

    # ── moving elements ──────────────────────────────────────────────────────────────────────

    def _move(
        self,
        name: str,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        results: Sequence[Tensor],
        call: Callable[..., Any],
    ) -> list[Trouble]:
        joins = isinstance(args[0], list | tuple)
        operands: list[Tensor] = list(args[0]) if joins else [args[0]]
        infos = [self.of(operand) for operand in operands]
        keys = {key for info in infos for key in info.coordinates}
        found: dict[str, list[Coordinate | None]] = {}
        if all(operand.numel() <= LARGEST for operand in operands):
            for key in keys:
                moved = [
                    laid_out(info.coordinates[key], operand.shape)
                    if key in info.coordinates
                    else torch.zeros(operand.shape, dtype=torch.long)
                    for info, operand in zip(infos, operands, strict=True)
                ]
                again = self._again(name, moved if joins else moved[0], args, kwargs, call, results)
                if again is not None:
                    found[key] = [separated(whole) for whole in again]
        troubles = []
        regroups = any(parts is None for key in found for parts in found[key] if key[0] in "BT")
        if name in RESHAPES and regroups and _holds_features(infos[0]):
            troubles.append(Trouble("regroup"))
        product = any(info.product for info in infos)
        for i, result in enumerate(results):
            coordinates = {k: each[i] for k, each in found.items()}
            kept = {k: parts for k, parts in coordinates.items() if parts is not None}
            self.set(result, Info(_varying(kept), product))
        return troubles

    def _again(
        self,
        name: str,
        moved: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        call: Callable[..., Any],
        results: Sequence[Tensor],
    ) -> list[Tensor] | None:
        """The same op on coordinates: None where they do not bear it."""
        if name in RESHAPES:  # coordinates lie otherwise in memory than their tensor
            return [moved.reshape(results[0].shape)]
        done = tensors_in((call(moved, *args[1:], **kwargs),))
        same = len(done) == len(results) and all(
            a.shape == b.shape for a, b in zip(done, results, strict=True)
        )
        return done if same else None

    # ── one element from the same places ─────────────────────────────────────────────────────

    def _elementwise(self, operands: list[Tensor], results: Sequence[Tensor]) -> list[Trouble]:
        """Ops on operands laid over each other; other results lose their coordinates."""
        result = results[0]
        shape = result.shape
        if not operands or not all(_broadcasts(operand.shape, shape) for operand in operands):
            for each in results:
                self.set(each, Info())
            return []
        infos = [broadcast(self.of(t), t.shape, shape) for t in operands]
        # the tensor with most coordinates says what the result is; a mask has fewer than scores
        order = sorted(range(len(infos)), key=lambda i: -len(infos[i].coordinates))
        first = infos[order[0]]
        merged = dict(first.coordinates)
        troubles = []
        for i in order[1:]:
            for key, parts in infos[i].coordinates.items():
                if key not in merged:
                    # what is added to scores, a mask or a bias, does not make features of positions
                    if not (first.product and family(key) == "F"):
                        merged[key] = parts
                elif key == "B":
                    missing = result.ndim - operands[i].ndim
                    troubles += _samples_meet(merged[key], parts, i, missing)
        info = Info(merged, any(info.product for info in infos))
        for each in results:
            self.set(each, info if each.shape == result.shape else Info())
        return troubles

    def _divided(self, operands: list[Tensor], results: Sequence[Tensor]) -> None:
        """Weights divided by what is made of them: where they add up to 1 now is not known."""
        marks = [
            {key for key in self.of(operand).coordinates if family(key) == SOFTMAX}
            for operand in operands
        ]
        again = marks[0] & marks[1] if len(marks) == 2 else set()
        for result in results:
            info = self.of(result)
            kept = {key: parts for key, parts in info.coordinates.items() if key not in again}
            self.set(result, Info(kept, info.product))

    def _reduce(
        self, args: Sequence[Any], kwargs: dict[str, Any], results: Sequence[Tensor]
    ) -> list[Trouble]:
        source = tensors_in(args)[0]
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if isinstance(dim, Tensor):  # max(a, b) compares two tensors
            return self._elementwise(tensors_in(args), results)
        info = self.of(source)
        dims = [dim] if isinstance(dim, int) else dim
        gone = {d % source.ndim for d in (dims or range(source.ndim)) if isinstance(d, int)}
        keeps = results[0].ndim == source.ndim
        kept = {
            key: tuple(
                None if axis in gone else part
                for axis, part in enumerate(parts)
                if keeps or axis not in gone
            )
            for key, parts in info.coordinates.items()
        }
        for result in results:
            self.set(result, Info(_varying(kept), info.product))
        return []

    # ── projections and products ─────────────────────────────────────────────────────────────

    def _project(self, source: Tensor, result: Tensor) -> None:
        """A product with a parameter: new features along the last axis, the others as before."""
        self.projections += 1
        before = {
            key: (*parts[:-1], None)
            for key, parts in self.of(source).coordinates.items()
            if len(parts) == result.ndim
        }
        coordinates = {**_varying(before), **fresh(result.shape, self.projections)}
        self.set(result, Info(coordinates))

    def _on_linear(
        self, args: Sequence[Any], kwargs: dict[str, Any], results: Sequence[Tensor]
    ) -> list[Trouble]:
        self._project(args[0] if args else kwargs["input"], results[0])
        return []

    def _on_embedding(
        self, args: Sequence[Any], kwargs: dict[str, Any], results: Sequence[Tensor]
    ) -> list[Trouble]:
        self.projections += 1
        info = self.of(args[0] if args else kwargs["input"])
        coordinates = {key: (*parts, None) for key, parts in info.coordinates.items()}
        self.set(results[0], Info({**coordinates, **fresh(results[0].shape, self.projections)}))
        return []

    def _product(self, left: Tensor, right: Tensor, result: Tensor) -> list[Trouble]:
        """`left @ right`, its axes given letters."""
        if not self.of(right).coordinates and left.ndim > 1 and right.ndim == 2:
            self._project(left, result)
            return []
        if left.ndim < 2 or right.ndim < 2:
            self.set(result, Info())
            return []
        batch = "abcdefgh"[: result.ndim - 2]
        return self._contract(
            [(left, batch[len(batch) - left.ndim + 2 :] + "nk"),
             (right, batch[len(batch) - right.ndim + 2 :] + "km")],
            batch + "nm", result,
        )  # fmt: skip

    def _on_einsum(
        self, args: Sequence[Any], _: dict[str, Any], results: Sequence[Tensor]
    ) -> list[Trouble]:
        operands = tensors_in(args[1:])
        letters = einsum_letters(args[0], [t.ndim for t in operands])
        if letters is None:
            self.set(results[0], Info())
            return []
        inputs, output = letters
        return self._contract(list(zip(operands, inputs, strict=True)), output, results[0])

    def _contract(
        self, operands: list[tuple[Tensor, str]], output: str, result: Tensor
    ) -> list[Trouble]:
        """A sum over the letters that `output` has not, of products over all."""
        sizes = dict(zip(output, result.shape, strict=True))
        merged: dict[str, dict[str, Tensor]] = {}
        troubles: list[Trouble] = []
        activations = 0
        for i, (tensor, letters) in enumerate(operands):
            info = self.of(tensor)
            activations += bool(info.coordinates)
            summed = [letter for letter in letters if letter not in output]
            others = [t for j, (t, _) in enumerate(operands) if j != i and self.of(t).coordinates]
            for key, parts in info.coordinates.items():
                if family(key) == SOFTMAX and others and summed:
                    along = [a for a, part in enumerate(parts) if part is not None]
                    if any(letters[a] in summed for a in along):
                        self.along_keys.add(key)
                    elif info.product:
                        meets = letters.index(summed[0])
                        troubles.append(Trouble("normalised", i, along[0], meets))
                    continue
                here = {
                    letter: part
                    for letter, part in zip(letters, parts, strict=True)
                    # heads that are shared out (grouped) have fewer entries than the result
                    if part is not None and sizes.get(letter) == len(part)
                }
                if not here:
                    continue
                there = merged.get(key)
                if there is None:
                    merged[key] = here
                elif any(letter in there and not torch.equal(there[letter], part)
                         for letter, part in here.items()):  # fmt: skip
                    if key == "B":
                        letter = next(x for x in here if x in there)
                        troubles.append(Trouble("fold", i, letters.index(letter)))
                elif set(here) != set(there):
                    merged.setdefault(f"{key}'", here)
        coordinates = {
            key: tuple(by_letter.get(letter) for letter in output)
            for key, by_letter in merged.items()
        }
        if activations == 1 and result.ndim:
            self.projections += 1  # a parameter's own axes are features of a new projection
            known = {a for p in coordinates.values() for a, x in enumerate(p) if x is not None}
            last = result.ndim - 1
            if last not in known:
                coordinates |= fresh(result.shape, self.projections)
        self.set(result, Info(coordinates, activations >= 2))
        return troubles

    # ── attention ────────────────────────────────────────────────────────────────────────────

    def _softmax(
        self, args: Sequence[Any], kwargs: dict[str, Any], result: Tensor
    ) -> list[Trouble]:
        source = args[0] if args else kwargs["input"]
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if dim is None:  # torch's own choice where none is given
            dim = 0 if source.ndim in (0, 1, 3) else 1
        info, axis = self.of(source), dim % max(source.ndim, 1)
        troubles = _softmax_trouble(info, axis)
        if info.product or all(family(key) != "F" for key in info.along(axis)):
            self.softmaxes += 1
            if not troubles:
                info = _normalised(info, result, axis, f"{SOFTMAX}#{self.softmaxes}")
        self.set(result, info)
        return troubles

    def _on_scaled_dot_product_attention(
        self, args: Sequence[Any], kwargs: dict[str, Any], results: Sequence[Tensor]
    ) -> list[Trouble]:
        names = ("query", "key", "value", "attn_mask")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        q, k, v, mask = (given.get(name) for name in names)
        assert isinstance(q, Tensor)
        assert isinstance(k, Tensor)
        assert isinstance(v, Tensor)
        batch = "abcdefgh"[: results[0].ndim - 2]
        scores = torch.empty(*results[0].shape[:-1], k.shape[-2], device="meta")
        troubles = self._contract([(q, batch + "nd"), (k, batch + "md")], batch + "nm", scores)
        if isinstance(mask, Tensor):
            masked = torch.empty_like(scores)
            # the mask is the fourth operand of the call, the second of the sum
            troubles += [
                Trouble(t.kind, 3 if t.operand else 0, t.axis, t.meets)
                for t in self._elementwise([scores, mask], [masked])
            ]
            scores = masked
        info = self.of(scores)
        # the scores' last axis is the keys' last but one
        troubles += [
            Trouble(t.kind, 1, k.ndim - 2) for t in _softmax_trouble(info, scores.ndim - 1)
        ]
        self.softmaxes += 1
        if info.product and not troubles:
            self.along_keys.add(f"{SOFTMAX}#{self.softmaxes}")
        self.set(scores, Info(info.coordinates, product=True))
        troubles += self._contract([(scores, batch + "nm"), (v, batch + "me")], batch + "ne",
                                   results[0])  # fmt: skip
        return troubles

    def _on_multi_head_attention_forward(
        self, args: Sequence[Any], kwargs: dict[str, Any], results: Sequence[Tensor]
    ) -> list[Trouble]:
        """torch's own attention: it wants positions first, whatever its caller does."""
        query, key = args[0], args[1]
        heads = args[4]
        mask = kwargs.get("attn_mask")
        troubles = []
        if key.ndim == 3 and "B" in self.of(key).along(0):
            troubles.append(Trouble("softmax", 1, 0))
        samples = self.of(mask).coordinates.get("B") if isinstance(mask, Tensor) else None
        if samples is not None and samples[0] is not None and len(samples) == 3:
            own = self.of(query).coordinates.get("B")
            if own is not None and own[1] is not None:
                folded = own[1].repeat_interleave(heads)
                if not torch.equal(folded, samples[0]):
                    operands = [*tensors_in(args), *tensors_in(kwargs)]
                    place = next(i for i, t in enumerate(operands) if t is mask)
                    troubles.append(Trouble("fold", place, 0))
        self.softmaxes += 1
        if self.of(key).coordinates and not troubles:
            self.along_keys.add(f"{SOFTMAX}#{self.softmaxes}")
        self._project(query, results[0])
        for result in results[1:]:
            self.set(result, Info())
        return troubles


def _holds_features(info: Info) -> bool:
    """Whether neighbours along some axis are neighbouring features: not so in a matrix of scores.

    Scores are reshaped across positions on purpose, to shift relative ones (Dai et al. 2019).
    """
    return any(
        family(key) == "F" and any(part is not None and part[1] - part[0] == 1 for part in parts)
        for key, parts in info.coordinates.items()
    )


def _normalised(info: Info, result: Tensor, axis: int, name: str) -> Info:
    """`info` with the mark `name` of a softmax along `axis`."""
    if result.ndim == 0 or result.shape[axis] == 1:
        return info
    mark = tuple(
        torch.arange(result.shape[axis]) if i == axis else None for i in range(result.ndim)
    )
    return Info({**info.coordinates, name: mark}, info.product)


def _softmax_trouble(info: Info, axis: int) -> list[Trouble]:
    """A softmax of scores belongs along positions: not along samples, nor along heads."""
    if not info.product:
        return []
    along = {family(key) for key in info.along(axis)}
    if "B" in along:
        return [Trouble("softmax", 0, axis)]
    if "F" in along and "T" not in along:
        return [Trouble("softmax heads", 0, axis)]
    return []


def _samples_meet(a: Coordinate, b: Coordinate, second: int, missing: int) -> list[Trouble]:
    """Whether two operands' samples lie along one axis, in one order."""
    in_a = [axis for axis, part in enumerate(a) if part is not None]
    in_b = [axis for axis, part in enumerate(b) if part is not None]
    if in_a != in_b:
        return [Trouble("coincidence", second, in_b[0] - missing, in_b[0])]
    same = all(
        x is None or (y is not None and torch.equal(x, y)) for x, y in zip(a, b, strict=True)
    )
    return [] if same else [Trouble("fold", second, in_b[0] - missing)]


def _broadcasts(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Whether a tensor of `shape` can be laid over `target`."""
    return len(shape) <= len(target) and all(
        n in (1, want) for n, want in zip(reversed(shape), reversed(target), strict=False)
    )


def broadcast(info: Info, shape: Sequence[int], target: Sequence[int]) -> Info:
    """`info` of a tensor of `shape`, once it is broadcast to `target`."""
    missing = len(target) - len(shape)
    coordinates = {key: (*(None,) * missing, *parts) for key, parts in info.coordinates.items()}
    return Info(coordinates, info.product)


def tensors_in(values: object) -> list[Tensor]:
    """All tensors in nested lists, tuples and dictionaries, in order."""
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, list | tuple):
        return []
    found: list[Tensor] = []
    for value in values if isinstance(values, Iterable) else ():
        found += tensors_in(value)
    return found


def einsum_letters(equation: object, ranks: list[int]) -> tuple[list[str], str] | None:
    """The letters of each operand and of the result; `...` becomes capital letters of its own.

    None for what this does not read: torch's form with lists, or an axis repeated in one operand.
    """
    if not isinstance(equation, str):
        return None
    left, arrow, output = equation.replace(" ", "").partition("->")
    inputs = left.split(",")
    if len(inputs) != len(ranks):
        return None
    spare = "ΑΒΓΔΕΖΗΘ"
    widest = 0
    for i, (letters, rank) in enumerate(zip(inputs, ranks, strict=True)):
        hidden = rank - len(letters.replace("...", ""))
        widest = max(widest, hidden)
        inputs[i] = letters.replace("...", spare[len(spare) - hidden :] if hidden else "")
    if arrow:
        output = output.replace("...", spare[len(spare) - widest :] if widest else "")
    else:
        every = "".join(inputs)
        output = "".join(sorted(x for x in set(every) if every.count(x) == 1 or x in spare))
    if any(len(set(letters)) != len(letters) for letters in inputs):
        return None
    return inputs, output
