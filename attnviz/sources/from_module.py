"""A person's own attention module, run and traced: every op by line and axis, and what looks wrong.

The module runs at the sizes given and once more at small ones with no common factor, as our own
layer does in `from_config.shadow_steps`: sizes then name their axes, and what only worked because
two sizes were equal fails. `provenance` says how a reshape that regroups elements is found.

The person's file is executed.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import re
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnviz.config import HEAD_COUNTS, HEAD_WIDTHS, KV_HEAD_COUNTS
from attnviz.diagnose import (
    SCORE_AXES,
    Sizes,
    diagnose,
    mask_misfit,
    shown,
    torch_mask_misfit,
)
from attnviz.errors import InputError, printable
from attnviz.machine import require_memory
from attnviz.module_trace import ModuleError, ModuleFinding, ModuleStep, ModuleTrace
from attnviz.sources.provenance import (
    PRODUCTS,
    Info,
    Ledger,
    Trouble,
    einsum_letters,
    family,
    tensors_in,
)

HEADS = {*HEAD_COUNTS, "h", "nheads"}
KV_HEADS = {*KV_HEAD_COUNTS, "kv", "n_kv", "num_kv"}
HEAD_WIDTH_ARGUMENTS = {*HEAD_WIDTHS, "d_k", "d_v", "key_dim"}
LENGTHS = {
    "max_len", "max_length", "max_seq_len", "block_size", "context_length", "seq_len", "n_ctx",
    "max_position_embeddings", "n_positions", "max_seq_length", "context_size",
}  # fmt: skip
WIDTHS = {
    "d_model", "embed_dim", "hidden_size", "hidden", "dim", "n_embd", "emb_dim", "d_in", "d_out",
    "embed_size", "hidden_dim", "model_dim", "d", "input_dim", "output_dim", "kdim", "vdim",
}  # fmt: skip
TORCH_OWN = "multi_head_attention_forward"
KEYS_ADVICE = "take the softmax along the keys, the axis that meets the values"
KINDS = {
    "float": torch.float32, "float32": torch.float32, "float64": torch.float64,
    "float16": torch.float16, "bfloat16": torch.bfloat16, "int": torch.long, "long": torch.long,
    "int64": torch.long, "int32": torch.int32, "uint8": torch.uint8, "bool": torch.bool,
}  # fmt: skip
SAMPLES_BY_KEYS = ("attention_mask", "padding", "pad_mask")
"""Parts of the names by which libraries call a mask [B T], even where B is T."""


@dataclass(frozen=True)
class InputSpec:
    """One input of `forward`: the argument's name where given, and each axis with its length.

    `stated` where the axes were named by the person and not by their number.
    """

    name: str | None
    kind: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    stated: bool = field(default=False, compare=False)

    @property
    def dtype(self) -> torch.dtype:
        return KINDS[self.kind]

    @property
    def is_mask(self) -> bool:
        """Whether it says of positions what they are, and has no features of its own."""
        name = (self.name or "").lower()
        return self.dtype == torch.bool or name.endswith(("mask", "bias"))

    def pairs(self) -> list[tuple[str, int]]:
        return list(zip(self.axes, self.shape, strict=True))


def trace_module(
    file: Path, class_name: str, init: str = "", inputs: Sequence[str] = ("2,6,512",)
) -> ModuleTrace:
    """Execute `file`, build `class_name(init)`, run it on random inputs, and trace what it does.

    `init` is written as in a call: "d_model=512, n_heads=8". Each input is
    "[name:] [type] sizes", the type one of `KINDS` and float32 where it is left out, the sizes in
    the order batch, positions, width; where the module wants another order, the axes are named:
    "T=6,B=2,512". A mask is "mask: bool 2,1,6,6", and so is whatever is called one.

    Raises `InputError`, one line with file and line number, for whatever cannot be read, built or
    run; a shape mismatch in `forward` names the axes of both operands, and is a `ModuleError` with
    the trace up to there.
    """
    specs = _read_together([parse_input(text) for text in inputs])
    arguments = parse_init(init)
    with _own_path(file), warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        module_class = load_class(file, class_name)
        plan = _Plan.of(module_class, arguments, specs)
        return _trace(file, module_class, plan)


# ── what is given ────────────────────────────────────────────────────────────────────────────


def parse_init(text: str) -> tuple[list[Any], dict[str, Any]]:
    """Arguments as in a call: literals only. Raises `InputError` for anything else."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError("more than a call")
        if any(word.arg is None for word in call.keywords):
            raise ValueError("** is not a value")
        positional = [ast.literal_eval(argument) for argument in call.args]
        named = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (SyntaxError, ValueError, RecursionError, MemoryError, TypeError):
        raise InputError(
            f"--init {printable(text)!r} cannot be read; arguments as in a call are expected, "
            'as in "d_model=512, n_heads=8"'
        ) from None
    return positional, named


def parse_input(text: str) -> InputSpec:
    """One `--input`: see `trace_module`. Raises `InputError` that shows the form."""
    name, colon, rest = text.rpartition(":")
    words = rest.split(None, 1)
    kind, sizes = (words[0], words[1]) if len(words) == 2 and words[0] in KINDS else ("float", rest)
    axes: list[str] = []
    shape: list[int] = []
    try:
        for part in sizes.split(","):
            axis, _, number = part.rpartition("=")
            axes.append(axis.strip())
            shape.append(int(number))
        if (colon and not name.strip().isidentifier()) or not all(
            not axis or axis.replace("_", "").isalnum() for axis in axes
        ):
            raise ValueError
    except ValueError:
        raise InputError(
            f"--input {printable(text)!r} cannot be read; sizes are expected, as in "
            f'"2,6,512", "T=6,B=2,512" or "mask: bool 2,1,6,6"; types are {", ".join(KINDS)}'
        ) from None
    if any(not 0 < n <= 10**7 for n in shape):
        raise InputError(f"--input {printable(text)!r}: a size must be between 1 and 10000000")
    bare = InputSpec(name.strip() or None, kind, tuple(axes), tuple(shape), any(axes))
    return _with_axes(bare, _usual_axes(bare))


def _usual_axes(spec: InputSpec) -> tuple[str, ...]:
    """What the axes of such an input mean most often."""
    rank = len(spec.shape)
    if spec.is_mask and rank <= 4:
        return _mask_axes(spec)
    kind = "float" if spec.dtype.is_floating_point else "int"
    return {
        ("float", 4): ("B", "H", "T", "d_k"),
        ("float", 3): ("B", "T", "width"),
        ("float", 2): ("T", "width"),
        ("int", 1): ("T",),
    }.get((kind, rank), ("B", "T", *("",) * max(rank - 2, 0))[:rank])


def _mask_axes(spec: InputSpec) -> tuple[str, ...]:
    rows = ("B", "T")
    named_so = any(part in (spec.name or "").lower() for part in SAMPLES_BY_KEYS)
    if spec.shape[0] == spec.shape[-1] and not named_so:
        rows = ("T", "T")
    # a bias of positions is most often the same for all samples and another for each head
    first = "H" if (spec.name or "").lower().endswith("bias") else "B"
    return {1: ("T",), 2: rows, 3: (first, "T", "T"), 4: ("B", "H", "T", "T")}[len(spec.shape)]


def _with_axes(spec: InputSpec, usual: Sequence[str]) -> InputSpec:
    """`spec` with `usual` names where the person gave none."""
    meant = {"Tq": "T", "Tk": "T", "S": "T", "L": "T", "N": "B"}
    axes = tuple(
        meant.get(axis, axis) or ("1" if n == 1 else name)
        for axis, name, n in zip(spec.axes, usual, spec.shape, strict=True)
    )
    return replace(spec, axes=axes)


def _read_together(specs: Sequence[InputSpec]) -> list[InputSpec]:
    """The specs; one without a name, of the samples and positions of the first, is its mask."""
    first = specs[0] if specs else None
    if first is None or first.axes != ("B", "T", "width"):
        return list(specs)
    batch, length, _ = first.shape
    masks: dict[tuple[int, ...], tuple[str, ...]] = {
        (batch, length): ("B", "T"),
        (length, length): ("T", "T"),
    }
    masks |= {
        (b, h, length, length): ("B" if b > 1 else "1", "H" if h > 1 else "1", "T", "T")
        for b in {1, batch}
        for h in {1, *(s.shape[1] for s in specs if len(s.shape) == 4)}
    }
    return [
        replace(spec, axes=masks[spec.shape])
        if spec.shape in masks
        and not (spec.stated or spec.is_mask)
        and spec.dtype.is_floating_point
        else spec
        for spec in specs
    ]


@contextlib.contextmanager
def _own_path(file: Path) -> Iterator[None]:
    """The file's neighbours can be imported, as when it is run by itself."""
    folder = str(file.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def load_class(file: Path, class_name: str) -> type[nn.Module]:
    """Execute `file` and return its module class. Nothing is written beside the file."""
    shown_name = printable(file)
    try:
        source = file.read_bytes()
        code = compile(source, str(file), "exec")
    except OSError as error:
        raise InputError(f"{shown_name}: {printable((error.strerror or '').lower())}") from None
    except SyntaxError as error:
        raise InputError(f"{shown_name}:{error.lineno or 1}: {printable(error.msg)}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"{shown_name} is not Python: {printable(error)}") from None
    module = types.ModuleType(f"attnviz_traced_{file.stem}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        with contextlib.redirect_stdout(sys.stderr):
            exec(code, module.__dict__)
    except (Exception, SystemExit) as error:
        raise InputError(f"{_where(error, file)}: {_said(error)}") from None
    classes = [
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, nn.Module) and value is not nn.Module
    ]
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        what = "has no" if found is None else "has something else than a torch module called"
        have = f"its modules are {', '.join(classes)}" if classes else "it has no torch modules"
        raise InputError(f"{shown_name} {what} {printable(class_name)}; {have}")
    return found


def _where(error: BaseException, file: Path) -> str:
    """`FILE:LINE` of the last line of the person's file that took part in the error."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(file) and frame.lineno
    ]
    return f"{printable(file)}:{lines[-1]}" if lines else printable(file)


def _said(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    kind = type(error).__name__
    return f"{kind}: {printable(text[0], 200)}" if text else kind


# ── sizes ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Plan:
    """Constructor arguments and inputs, with a name for each size that can be varied.

    `symbols` maps a name to the size given; `named` says which constructor argument holds which
    symbol, and `axes` the symbol of each axis of each input.
    """

    arguments: Mapping[str, Any]
    named: Mapping[str, str]
    specs: Sequence[InputSpec]
    axes: Sequence[tuple[str, ...]]
    symbols: Mapping[str, int]

    @classmethod
    def of(
        cls,
        module_class: type[nn.Module],
        init: tuple[list[Any], dict[str, Any]],
        specs: Sequence[InputSpec],
    ) -> _Plan:
        arguments = _bound(module_class, *init)
        symbols: dict[str, int] = {}
        named: dict[str, str] = {}
        numbers = {
            name: value
            for name, value in arguments.items()
            if isinstance(value, int) and not isinstance(value, bool) and value > 0
        }
        for name, value in numbers.items():
            for symbol, known in (("H", HEADS), ("Hkv", KV_HEADS), ("d_k", HEAD_WIDTH_ARGUMENTS)):
                if name in known and symbols.get(symbol, value) == value:
                    symbols[symbol], named[name] = value, symbol
        if symbols.get("Hkv") == symbols.get("H"):
            symbols.pop("Hkv", None)
            named = {name: "H" if symbol == "Hkv" else symbol for name, symbol in named.items()}
        axes = []
        lengths = sorted({n for spec in specs for a, n in spec.pairs() if a == "T"})
        first = next((n for s in specs for a, n in s.pairs() if a == "T"), 0)
        rest = [n for n in lengths if n not in (first, 1)]
        times = {first: "Tq" if rest else "T"} | {
            n: "Tk" if len(rest) == 1 else f"T{i + 2}" for i, n in enumerate(rest)
        }
        for spec in specs:
            own = []
            for axis, n in zip(spec.axes, spec.shape, strict=True):
                symbol = times.get(n, "1") if axis == "T" else axis
                if axis in ("width", ""):
                    symbol = _width_symbol(n, numbers, symbols)
                folded = symbols.get("B", 0) * symbols.get("H", 0)
                if axis == "B" and spec.is_mask and n == folded != symbols["B"]:
                    own.append("B·H")  # in which order, its maker knows
                    continue
                if n == 1 or (symbol in symbols and symbols[symbol] != n):
                    symbol = str(n)
                if not symbol.isdigit():
                    symbols[symbol] = n
                own.append(symbol)
            axes.append(tuple(own))
        for name, value in numbers.items():
            if name in WIDTHS and name not in named:
                named[name] = _width_symbol(value, numbers, symbols, name)
                symbols.setdefault(named[name], value)
        return cls(arguments, named, specs, axes, symbols)

    def small(self, even: bool, together: bool) -> dict[str, int]:
        """A size for each symbol: no two have a common factor, unless one is made of the others.

        `even`: an even d_k, which rotary positions need. `together`: sizes that are equal as given
        stay equal.
        """
        symbols = self.symbols
        sizes = dict(symbols)
        if "H" in symbols:
            group = symbols["H"] // symbols["Hkv"] if "Hkv" in symbols else 1
            if "Hkv" in symbols:
                sizes["Hkv"] = 5
            sizes["H"] = 5 * max(group, 1)
            head = 14 if even else 7
            if "d_k" in symbols:
                sizes["d_k"] = head
            primes = iter((17, 19, 29, 31, 37, 41, 43))
            for symbol, width in self._widths().items():
                if "d_k" in symbols and width != symbols["H"] * symbols["d_k"]:
                    sizes[symbol] = sizes["H"] * next(primes)
                elif width % symbols["H"]:
                    sizes[symbol] = next(primes)
                else:
                    sizes[symbol] = sizes["H"] * head
                    head = next(primes) * (2 if even else 1)
        fixed = [n for name, n in sizes.items() if name != "B" and name[0] != "T"]
        fixed += [v for v in self.arguments.values() if type(v) is int and v > 1]
        free = [p for p in (11, 13, 3, 23, 47, 53, 59, 61) if all(n % p for n in fixed if n > 0)]
        for symbol in symbols:
            if symbol == "B" or symbol[0] == "T":
                sizes[symbol] = free.pop(0)
        if together:
            for a in symbols:
                for b in symbols:
                    if symbols[a] == symbols[b] and (b == "B" or b[0] == "T"):
                        sizes[b] = sizes[a]
        return sizes

    def _widths(self) -> dict[str, int]:
        return {
            s: n
            for s, n in self.symbols.items()
            if s not in ("B", "H", "Hkv", "d_k") and s[0] != "T"
        }

    def only_batch_and_length(self) -> dict[str, int]:
        small = self.small(even=False, together=False)
        return {s: small[s] if s == "B" or s[0] == "T" else n for s, n in self.symbols.items()}

    def constructor(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """The constructor's arguments at `sizes`; limits of length grow with the positions."""
        found = dict(self.arguments)
        for name, symbol in self.named.items():
            found[name] = sizes[symbol]
        longest = max((n for s, n in sizes.items() if s[0] == "T"), default=0)
        given = {self.symbols[s]: n for s, n in sizes.items() if s[0] == "T"}
        for name, value in self.arguments.items():
            if name in self.named or type(value) is not int:
                continue
            if value in given:
                found[name] = given[value]
            elif name in LENGTHS:
                found[name] = max(value, longest)
        return found

    def shapes(self, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
        return [
            tuple(
                prod(int(part) if part.isdigit() else sizes[part] for part in symbol.split("·"))
                for symbol in axes
            )
            for axes in self.axes
        ]


def _width_symbol(
    n: int,
    numbers: Mapping[str, int],
    symbols: Mapping[str, int],
    name: str = "",
) -> str:
    """The symbol of a width: `d_model` if it is the only one, else its argument's name."""
    for symbol, size in symbols.items():
        if size == n and symbol not in ("B", "H", "Hkv", "d_k") and symbol[0] != "T":
            return symbol
    widths = {value for key, value in numbers.items() if key in WIDTHS}
    if not name:
        name = next((k for k, v in numbers.items() if v == n and k in WIDTHS), "")
        if not name:
            return str(n)  # no argument holds it: it is written into the module
    return "d_model" if len(widths) == 1 else name


def _bound(
    module_class: type[nn.Module], positional: list[Any], named: dict[str, Any]
) -> dict[str, Any]:
    """All constructor arguments by name, defaults too."""
    try:
        signature = inspect.signature(module_class)
        bound = signature.bind(*positional, **named)
    except (TypeError, ValueError) as error:
        raise InputError(f"{printable(module_class.__name__)}(…): {printable(error)}") from None
    bound.apply_defaults()
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            found.update(value)
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            if value:
                raise InputError(
                    f"{printable(module_class.__name__)}(…) takes *{name}; name its arguments"
                )
        else:
            found[name] = value
    return found


# ── one run ──────────────────────────────────────────────────────────────────────────────────


@dataclass
class _RecordedOp:
    operation: str
    line: int
    file: str
    result: Tensor
    count: int
    is_view: bool
    info: Info
    source: Tensor | None


@dataclass
class _Watcher(TorchFunctionMode):
    """Records every op that `forward` calls, with its line, and follows the provenance."""

    path: str
    ledger: Ledger = field(default_factory=Ledger)
    steps: list[_RecordedOp] = field(default_factory=list)
    troubles: list[tuple[Trouble, str, int, list[Tensor], list[Info], Tensor]] = field(
        default_factory=list
    )
    failed: tuple[Exception, str, int, list[Any], dict[str, Any]] | None = None
    lost: set[str] = field(default_factory=set)
    built: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = func.__name__
        if name == "__get__":
            name = getattr(getattr(func, "__self__", None), "__name__", name)
        operands = [*tensors_in(args), *tensors_in(kwargs)]
        infos = [self.ledger.of(operand) for operand in operands]
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            self.failed = (error, name, self._line(), list(args), kwargs)
            raise
        results = tensors_in((result,))
        if not results or name in ("grad", "_grad_fn", "__set__"):
            return result
        line = self._line()
        built = self._being_built()
        if built:
            self.built.setdefault(line, built)
            return result
        try:
            troubles = self.ledger.follow(name, args, kwargs, results, func)
        except Exception:  # an op used as the rules do not know must not stop the module
            troubles = []
            self.lost.add(name.strip("_"))
        for trouble in troubles:
            self.troubles.append((trouble, name, line, operands, infos, results[0]))
        base = {id(t) for o in operands for t in (o, o._base) if t is not None}
        self.steps.append(
            _RecordedOp(
                name.strip("_"), line, self.path, results[0], len(results),
                results[0]._base is not None and id(results[0]._base) in base,
                self.ledger.of(results[0]), operands[0] if operands else None,
            )
        )  # fmt: skip
        return result

    def _being_built(self) -> str:
        """The class of the module whose `__init__` runs inside `forward`; or nothing."""
        frame: types.FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename != self.path:
            maker = frame.f_locals.get("self")
            if frame.f_code.co_name == "__init__" and isinstance(maker, nn.Module):
                return type(maker).__name__
            frame = frame.f_back
        return ""

    def _line(self) -> int:
        """The line of the person's file that is running; 0 when none is."""
        frame: types.FrameType | None = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_filename == self.path:
                return frame.f_lineno
            frame = frame.f_back
        return 0


@dataclass
class _ModuleRun:
    watcher: _Watcher
    sizes: Mapping[str, int]
    n_parameters: int = 0
    error: BaseException | None = None
    stage: str = "forward"


def _run(
    file: Path, module_class: type[nn.Module], plan: _Plan, sizes: Mapping[str, int], quiet: bool
) -> _ModuleRun:
    """Build the module and call it, at `sizes`; an exception is kept, not raised."""
    watcher = _Watcher(str(file))
    run = _ModuleRun(watcher, sizes)
    torch.manual_seed(0)
    out = io.StringIO() if quiet else sys.stderr
    try:
        with contextlib.redirect_stdout(out), torch.no_grad():
            run.stage = "__init__"
            module = module_class(**plan.constructor(sizes)).eval()
            run.n_parameters = sum(p.numel() for p in module.parameters())
            run.stage = "forward"
            positional, named = [], {}
            for spec, axes, shape in zip(plan.specs, plan.axes, plan.shapes(sizes), strict=True):
                tensor = _made(spec, shape)
                watcher.ledger.set(tensor, _origin(axes, shape, spec, sizes))
                if spec.name is None:
                    positional.append(tensor)
                else:
                    named[spec.name] = tensor
            with watcher:
                module(*positional, **named)
    except (Exception, SystemExit) as error:
        run.error = error
    return run


def _made(spec: InputSpec, shape: tuple[int, ...]) -> Tensor:
    if spec.is_mask:
        return torch.ones(shape, dtype=spec.dtype)
    if spec.dtype.is_floating_point:
        return torch.randn(shape).to(spec.dtype)
    return torch.zeros(shape, dtype=spec.dtype)


def _origin(
    axes: tuple[str, ...], shape: tuple[int, ...], spec: InputSpec, sizes: Mapping[str, int]
) -> Info:
    """The coordinates of an input. Of a mask only the samples: its positions have roles to come."""
    coordinates: dict[str, tuple[Tensor | None, ...]] = {}
    features = None
    for i, (axis, n) in enumerate(zip(axes, shape, strict=True)):
        if n == 1:
            continue
        parts = tuple(torch.arange(n) if j == i else None for j in range(len(shape)))
        if axis == "B":
            coordinates["B"] = parts
        elif axis[0] == "T" and axis in sizes:
            if not spec.is_mask:
                coordinates.setdefault("T", parts)
        elif spec.dtype.is_floating_point and not spec.is_mask:
            features = parts
    if features is not None:
        coordinates["F#0"] = features
    return Info(coordinates)


# ── names of axes ────────────────────────────────────────────────────────────────────────────


def name_axes(tensor: Tensor, info: Info, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The name of each axis: by what varies along it, and by its size where that is not known."""
    names = [_axis_name(tensor, info, axis, sizes) for axis in range(tensor.ndim)]
    for time in ("T",):  # the same length twice: the first is the queries'
        if names.count(time) == 2:
            names[names.index(time)] = "Tq"
            names[names.index(time)] = "Tk"
    return tuple(names)


def _axis_name(tensor: Tensor, info: Info, axis: int, sizes: Mapping[str, int]) -> str:
    n = tensor.shape[axis]
    if n == 1:
        return "1"
    along = {family(key) for key in info.along(axis)} & {"B", "T", "F"}
    times = {s: size for s, size in sizes.items() if s[0] == "T"}
    features = {s: size for s, size in sizes.items() if s != "B" and s not in times}
    if along == {"B"} and n == sizes.get("B"):
        return "B"
    if along == {"T"}:
        return next((s for s, size in times.items() if size == n), str(n))
    if "F" in along and len(along) == 1:
        named = _feature_name(n, features)
        return named or (str(n) if "H" in sizes else _unnamed_feature(tensor, info, axis))
    if len(along) > 1:
        parts = []
        for symbol in (*("B" for _ in along & {"B"}), *(times if "T" in along else ())):
            size = sizes.get(symbol, 0)
            if size and n % size == 0:
                parts.append(symbol)
                n //= size
        rest = _feature_name(n, features) or str(n)
        return "·".join([*parts, rest] if n > 1 else parts)
    # a mask made on the spot is more likely positions than samples
    exact = sorted((s for s, size in sizes.items() if size == n), key=lambda s: s == "B")
    return exact[0] if exact else _feature_name(n, features) or _product_name(n, sizes)


def _feature_name(n: int, features: Mapping[str, int]) -> str:
    for symbol, size in features.items():
        if size == n:
            return symbol
    head = features.get("H")
    widths = [size for s, size in features.items() if s not in ("H", "Hkv", "d_k")]
    if head and "d_k" not in features and any(w == head * n for w in widths):
        return "d_k"  # what is left of a width that the heads share
    d_k = features.get("d_k") or next((w // head for w in widths if head and w % head == 0), 0)
    for symbol in ("H", "Hkv"):
        if d_k > 1 and features.get(symbol, 0) * d_k == n:
            return f"{symbol}·d_k"
    for symbol, size in (
        *((s, features[s]) for s in features if s not in ("H", "Hkv")),
        ("d_k", d_k),
    ):
        if size > 1 and n % size == 0 and 1 < n // size <= 4:
            return f"{n // size}·{symbol}"
    if d_k > 3 and d_k % 2 == 0 and n == d_k // 2:
        return "d_k/2"
    return ""


def _unnamed_feature(tensor: Tensor, info: Info, axis: int) -> str:
    """Heads and their width, told by the features' strides where no argument names them."""
    for key in info.along(axis):
        parts = info.coordinates[key]
        part = parts[axis]
        if family(key) != "F" or part is None:
            continue
        steps = [int(each[1] - each[0]) for each in parts if each is not None]
        if int(part[1] - part[0]) > 1:
            # q, k and v may lie in one: heads are the finest cut above their own width
            return (
                "H" if int(part[1] - part[0]) == min(n for n in steps if n > 1) else str(len(part))
            )
        if sum(each is not None for each in parts) > 1:
            return "d_k"
    return str(tensor.shape[axis])


def _product_name(n: int, sizes: Mapping[str, int]) -> str:
    """`B·H`, or the number itself."""
    for a in ("B", *(s for s in sizes if s[0] == "T")):
        for b in ("H", *(s for s in sizes if s[0] == "T")):
            if a != b and sizes.get(a, 0) * sizes.get(b, 0) == n:
                return f"{a}·{b}"
    return str(n)


# ── the whole ────────────────────────────────────────────────────────────────────────────────


def _trace(file: Path, module_class: type[nn.Module], plan: _Plan) -> ModuleTrace:
    given = dict(plan.symbols)
    _require_memory(plan)
    real = _run(file, module_class, plan, given, quiet=False)
    if real.error is not None:
        raise _fail(file, module_class, plan, real) from None
    notes = []
    tries = [
        plan.small(even=False, together=False),
        plan.small(even=True, together=False),
        plan.only_batch_and_length(),
    ]
    runs = []
    for sizes in tries:
        runs.append(_run(file, module_class, plan, sizes, quiet=True))
        if runs[-1].error is None:
            break
    chosen = runs[-1]
    if chosen.error is not None:
        # the sizes as they are, or equal as they are: what meets there is told by provenance
        chosen = _run(file, module_class, plan, plan.small(even=False, together=True), quiet=True)
        if chosen.error is not None:
            chosen = real
        last = runs[-1]
        failure = _failure(file, module_class, plan, last, last)
        notes.append(
            f"with another batch and length ({_sizes_in_words(last.sizes)}) it fails at {failure}; "
            "axes are named from sizes that may be equal"
        )
    same = _same_ops(chosen.watcher.steps, real.watcher.steps)
    if not same:
        notes.append("the number of ops depends on the sizes; axes are named from the sizes given")
    steps = _steps(file, real, chosen if same else real, given)
    findings = _findings(chosen, file.name, plan)
    if chosen.watcher.lost:
        lost = ", ".join(sorted(chosen.watcher.lost))
        notes.append(f"what these ops do to samples and positions is not known: {printable(lost)}")
    if not steps:
        notes.append("forward called no torch function on a tensor")
    return ModuleTrace(
        str(file), module_class.__name__, steps, findings, tuple(notes), _in_order(given),
        real.n_parameters, chosen.watcher.ledger.softmaxes,
        len(chosen.watcher.ledger.along_keys),
    )  # fmt: skip


def _same_ops(a: Sequence[_RecordedOp], b: Sequence[_RecordedOp]) -> bool:
    return [(s.operation, s.line) for s in a] == [(s.operation, s.line) for s in b]


def _steps(
    file: Path, real: _ModuleRun, named_by: _ModuleRun, given: Mapping[str, int]
) -> tuple[ModuleStep, ...]:
    """The ops of `real`, their axes named from the same ops of `named_by`."""
    lines = _lines(file)
    steps = []
    for step, by in zip(real.watcher.steps, named_by.watcher.steps, strict=False):
        names = name_axes(by.result, by.info, named_by.sizes)
        steps.append(
            ModuleStep(
                step.operation,
                tuple(
                    axis if _may_be(axis, n, given) else str(n)
                    for axis, n in zip(names, step.result.shape, strict=True)
                ),
                tuple(step.result.shape),
                str(step.result.dtype).removeprefix("torch."),
                step.count,
                step.is_view,
                _place(file.name, step.line),
                _code_at(lines, step.line),
            )
        )
    return tuple(steps)


def _code_at(lines: Sequence[str], line: int) -> str:
    return lines[line - 1].strip() if 0 < line <= len(lines) else ""


def _may_be(axis: str, n: int, given: Mapping[str, int]) -> bool:
    """Whether a name found at other sizes holds for the length `n` at those given."""
    value = 1
    for part in axis.split("·"):
        symbol = {"Tq": "T", "Tk": "T"}.get(part, part) if part not in given else part
        if not part.isdigit() and symbol not in given:
            return True  # d_k as what is left of a width, or half of it
        value *= int(part) if part.isdigit() else given[symbol]
    return value == n


def _in_order(sizes: Mapping[str, int]) -> dict[str, int]:
    """Batch, heads, positions, then what is left."""
    rank = {"B": 0, "H": 1, "Hkv": 2}
    names = sorted(sizes, key=lambda s: rank.get(s, 3 if s[0] == "T" else 4))
    return {name: sizes[name] for name in names}


def _sizes_in_words(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{s} {n}" for s, n in sizes.items() if s == "B" or s[0] == "T")


def _require_memory(plan: _Plan) -> None:
    """Refuse sizes that would not fit: weights, the flow and one set of maps, in float32."""
    sizes = plan.symbols
    width = max((n for s, n in sizes.items() if s not in ("B", "H", "Hkv") and s[0] != "T"),
                default=1)  # fmt: skip
    length = max((n for s, n in sizes.items() if s[0] == "T"), default=1)
    batch, heads = sizes.get("B", 1), sizes.get("H", 1)
    needed = 4 * (4 * width**2 + 8 * batch * length * width + 4 * batch * heads * length**2)
    require_memory(needed, "the module at these sizes", "trace it at smaller ones")


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8", errors="replace").splitlines()


# ── findings in words ────────────────────────────────────────────────────────────────────────


def _findings(run: _ModuleRun, file: str, plan: _Plan) -> tuple[ModuleFinding, ...]:
    found: dict[tuple[str, int], ModuleFinding] = {}
    for trouble, operation, line, operands, infos, result in run.watcher.troubles:
        names = [name_axes(t, info, run.sizes) for t, info in zip(operands, infos, strict=True)]
        source = _place(file, line)
        text, advice = _in_words(trouble, operation, names, operands, result, run.sizes, plan)
        kind = trouble.kind.split()[0]
        found.setdefault((kind, line), ModuleFinding(kind, source, text, advice))
    for line, made in run.watcher.built.items():
        found["untrained", line] = ModuleFinding(
            "untrained",
            _place(file, line),
            f"{printable(made)} is made anew in each forward: its numbers are random, other ones "
            "in every call, and neither trained nor saved",
            "make it once, in __init__, and keep it on self",
        )
    return tuple(found.values())


def _place(file: str, line: int) -> str:
    """`FILE:LINE`; the file alone where torch's own module runs and no line of the file does."""
    return f"{file}:{line}" if line else file


def _in_words(
    trouble: Trouble,
    operation: str,
    names: list[tuple[str, ...]],
    operands: list[Tensor],
    result: Tensor,
    sizes: Mapping[str, int],
    plan: _Plan,
) -> tuple[str, str]:
    own = names[trouble.operand] if trouble.operand < len(names) else names[0]
    if trouble.kind == "regroup":
        return _regroup_in_words(operation, names[0], operands[0], result, sizes)
    if trouble.kind.startswith("softmax"):
        return _softmax_in_words(trouble, own)
    axis = own[trouble.axis] if trouble.axis < len(own) else "?"
    if trouble.kind == "normalised":
        over = f"queries, {axis}" if axis == "Tq" else axis
        return (
            f"the softmax ran over {over} of [{' '.join(own)}], but the sum runs over "
            f"{own[trouble.meets]}: a query's weights do not sum to 1",
            KEYS_ADVICE,
        )
    if trouble.kind == "fold":
        return (
            f"the samples of [{' '.join(own)}] are in another order along {axis} than those that "
            "they meet",
            "fold batch and heads alike everywhere, heads fastest: "
            "repeat_interleave(n_heads, 0) for a mask, not repeat",
        )
    partner = next((n for i, n in enumerate(names) if i != trouble.operand and len(n)), own)
    if operation == "scaled_dot_product_attention":
        partner = ("B", "H", "Tq", "Tk")[-len(partner) :]
    at = trouble.meets - result.ndim + len(partner)
    met = partner[at] if 0 <= at < len(partner) else "another axis"
    given = plan.symbols.get("B", 0)
    return (
        f"B of [{' '.join(own)}] meets {met} of [{' '.join(partner)}]: it broadcasts only because "
        f"both are {given} here",
        "add the missing axis: mask[:, None] makes [B 1 Tq Tk] of [B Tq Tk], "
        "mask[:, None, None, :] makes [B 1 1 Tk] of [B Tk]"
        + ("; if its rows are queries, name its axes: T=6,T=6" if len(own) == 2 else ""),
    )


def _softmax_in_words(trouble: Trouble, own: tuple[str, ...]) -> tuple[str, str]:
    """A softmax along samples, or along heads."""
    axis = own[trouble.axis] if trouble.axis < len(own) else "?"
    if trouble.kind == "softmax":
        text = f"the softmax runs over the batch (axis {trouble.axis} of [{' '.join(own)}])"
        if {"Tq", "Tk"} <= set(own):
            return f"{text}: samples compete with each other", KEYS_ADVICE
        return (
            f"{text}: samples attend to each other",
            "give a time-first layer its input as [T B d_model] (batch_first=True for torch's "
            'own), or name the axes if yours are in that order: --input "T=6,B=2,512"',
        )
    text = f"the softmax runs over {axis} (axis {trouble.axis} of [{' '.join(own)}]), not keys"
    if {"Tq", "Tk"} <= set(own):
        return f"{text}: heads compete with each other", KEYS_ADVICE
    return (
        f"{text}: heads attend to each other, within one position",
        "swap T and H before the product: [B T H d_k].transpose(1, 2)",
    )


def _regroup_in_words(
    operation: str,
    before: tuple[str, ...],
    source: Tensor,
    result: Tensor,
    sizes: Mapping[str, int],
) -> tuple[str, str]:
    after = tuple(_axis_name(result, Info(), axis, sizes) for axis in range(result.ndim))
    if after.count("T") == 2:
        after = name_axes(result, Info(), sizes)
    text = (
        f"{operation} of [{' '.join(before)}] as [{' '.join(after)}] puts elements of different "
        f"axes together: memory holds them in the order {', '.join(before)}"
    )
    if sorted(before) == sorted(after):
        return text, "to swap axes, use transpose or permute: a reshape keeps the order in memory"
    if "B·H" in after and result.ndim <= source.ndim:
        return text, (
            "cut the heads first: view(B, T, H, d_k).transpose(1, 2), then reshape(B·H, T, d_k)"
            if "H" not in before
            else "bring heads beside the batch first: transpose(1, 2), then reshape(B·H, T, d_k)"
        )
    if result.ndim > source.ndim:
        return text, "cut the last axis and then swap: view(B, T, H, d_k).transpose(1, 2)"
    return text, (
        "swap back before heads are merged: transpose(1, 2) makes [B T H d_k], "
        "then reshape(B, T, H·d_k)"
    )


# ── failures in words ────────────────────────────────────────────────────────────────────────


def _fail(file: Path, module_class: type[nn.Module], plan: _Plan, real: _ModuleRun) -> InputError:
    """The error of a module that cannot run, with the trace up to there if there is one."""
    shadow = _run(file, module_class, plan, plan.small(even=False, together=False), quiet=True)
    message = _failure(file, module_class, plan, real, shadow)
    done = real.watcher.steps
    if not done:
        return InputError(message)
    by = shadow if _same_ops(shadow.watcher.steps[: len(done)], done) else real
    assert real.error is not None
    lines, line = _lines(file), _line_of(real, file)
    trace = ModuleTrace(
        str(file), module_class.__name__, _steps(file, real, by, plan.symbols),
        _findings(by, file.name, plan), (), _in_order(plan.symbols), real.n_parameters,
        failure=(_place(file.name, line), _code_at(lines, line)),
    )  # fmt: skip
    return ModuleError(message, trace)


def _line_of(run: _ModuleRun, file: Path) -> int:
    """The line of the file that the run's error came from; 0 where none took part."""
    _, _, line = _where(run.error, file).rpartition(":") if run.error is not None else ("", "", "")
    return int(line) if line.isdigit() else 0


def _failure(
    file: Path, module_class: type[nn.Module], plan: _Plan, run: _ModuleRun, shadow: _ModuleRun
) -> str:
    """One line about an exception: where, what, and the axes of what met there."""
    error = run.error
    assert error is not None
    where = _where(error, file)
    failed = run.watcher.failed
    if failed is not None and failed[0] is error:  # and not one that the module has caught
        _, operation, line, args, kwargs = failed
        at = f"{printable(file)}:{line}" if line else where
        words = _torch_mask(args, kwargs, run, plan) if operation == TORCH_OWN else ""
        if words:
            return f"{at}: {words}"
        operands = [*tensors_in(args), *tensors_in(kwargs)]
        names = _names_of(operands, run)
        met = " with ".join(
            f"[{' '.join(axes)}] = {shown(t.shape)}"
            for axes, t in zip(names[:3], operands, strict=False)
        )
        why = _why(operation, args, operands, names, run)
        if operation in ("view", "reshape"):
            why += _regrouping(run, shadow)
        return f"{at}: {operation.strip('_')} of {met or 'nothing'}: {why or _said(error)}"
    pieces = _pieces(error, run, _line_of(run, file))
    if pieces:
        return f"{where}: {pieces}"
    text = f"{where}: {_said(error)} in {printable(module_class.__name__)}.{run.stage}"
    sizes = plan.symbols
    if run.stage == "__init__" and "H" in sizes:
        for symbol, width in sizes.items():
            if symbol in ("d_model", *WIDTHS):
                found = diagnose(Sizes(width, sizes["H"]))
                if found is not None:
                    return f"{text}; {_for_code(found.message)}"
    return text


def _names_of(operands: Sequence[Tensor], run: _ModuleRun) -> list[tuple[str, ...]]:
    """The axes of each operand; those of scores by their roles, whatever their lengths."""
    ledger = run.watcher.ledger
    names = []
    for tensor in operands:
        own = name_axes(tensor, ledger.of(tensor), run.sizes)
        is_map = tensor.ndim == 4 and own[1] == "H" and {own[2][0], own[3][0]} == {"T"}
        if is_map and ledger.of(tensor).product:
            own = SCORE_AXES
        names.append(own)
    return names


def _why(
    operation: str,
    args: list[Any],
    operands: list[Tensor],
    names: list[tuple[str, ...]],
    run: _ModuleRun,
) -> str:
    """What does not fit, by axis, for the ops whose rule is known; else nothing."""

    def axis(i: int, at: int) -> str:
        name, n = names[i][at], operands[i].shape[at]
        return name if name == str(n) else f"{name} {n}"

    sizes = _sizes_asked(args)
    if operation in ("view", "reshape", "expand") and sizes:
        if operation == "expand":
            return _why_expand(operands[0], names[0], sizes, run)
        return _why_view(operands[0], names[0], sizes)
    if operation == "linear" and len(operands) > 1:
        need = operands[1].shape[1]
        if operands[0].shape[-1] != need:
            return f"the last axis is {axis(0, -1)}, and the layer takes {need}"
    if operation in PRODUCTS and len(operands) == 2 and min(t.ndim for t in operands) > 1:
        if operands[0].shape[-1] != operands[1].shape[-2]:
            hint = ""
            if operands[0].shape[-1] == operands[1].shape[-1]:
                hint = "; transpose(-2, -1) of the second would fit"
            return f"the sum runs over {axis(0, -1)} and {axis(1, -2)}, which must be equal{hint}"
        operands = [t[..., 0, 0] for t in operands]
        names = [each[:-2] for each in names]
    if operation == "einsum" and args:
        letters = einsum_letters(args[0], [t.ndim for t in operands])
        return _why_letters(letters[0] if letters else [], operands, axis)
    if operation == "scaled_dot_product_attention" and len(operands) == 4:
        q, k, _, mask = operands
        return _mask_on_scores(mask.shape, (*q.shape[:-1], k.shape[-2]))
    if len(operands) == 2 and SCORE_AXES in names:
        at = names.index(SCORE_AXES)
        said = _mask_on_scores(operands[1 - at].shape, operands[at].shape)
        if said:
            return said
    if len(operands) > 1:
        pairs = []
        for back in range(1, min(operands[0].ndim, operands[1].ndim) + 1):
            a, b = operands[0].shape[-back], operands[1].shape[-back]
            if a != b and 1 not in (a, b):
                pairs.append(f"{axis(0, -back)} ≠ {axis(1, -back)}")
        return ", ".join(reversed(pairs))
    return ""


def _why_letters(
    letters: Sequence[str], operands: Sequence[Tensor], axis: Callable[[int, int], str]
) -> str:
    """The letters of an einsum that stand for two lengths."""
    first: dict[str, tuple[int, int]] = {}
    told = []
    for i, own in enumerate(letters):
        if len(own) != operands[i].ndim:
            return f"{len(own)} letters for {operands[i].ndim} axes"
        for at, letter in enumerate(own):
            j, where = first.setdefault(letter, (i, at))
            n, before = operands[i].shape[at], operands[j].shape[where]
            if n != before and 1 not in (n, before):
                told.append(f"{letter} is {axis(j, where)} and {axis(i, at)}")
    return ", ".join(told)


def _mask_on_scores(mask: Sequence[int], scores: Sequence[int]) -> str:
    """Where a mask does not fit scores [B H Tq Tk], and what would; nothing where it does."""
    return mask_misfit(mask, scores) if len(scores) == len(SCORE_AXES) else ""


def _torch_mask(args: list[Any], kwargs: dict[str, Any], run: _ModuleRun, plan: _Plan) -> str:
    """A mask that torch's own layer refuses, by the axes of its caller: they may be batch-first."""
    mask, query, key, heads = kwargs.get("attn_mask"), args[0], args[1], args[4]
    if not isinstance(mask, Tensor) or query.ndim != 3:
        return ""
    queries, batch = query.shape[:2]
    if tuple(mask.shape) in ((queries, len(key)), (batch * heads, queries, len(key))):
        return ""
    names = name_axes(query, run.watcher.ledger.of(query), run.sizes)
    given = [a for a, spec in zip(plan.axes, plan.specs, strict=True) if not spec.is_mask]
    if any(axes[:2] == (names[1], names[0]) for axes in given):
        names, query = (names[1], names[0], names[2]), query.transpose(0, 1)
    words = torch_mask_misfit(mask.shape, batch, heads, queries, len(key))
    return f"{TORCH_OWN} of [{' '.join(names)}] = {shown(query.shape)}: {words}"


def _pieces(error: BaseException, run: _ModuleRun, line: int) -> str:
    """A tensor cut into more or fewer pieces than there are names for them."""
    expected = re.search(r"values to unpack \(expected (\d+)", str(error))
    last = run.watcher.steps[-1] if run.watcher.steps else None
    if expected is None or last is None or last.line != line or last.source is None:
        return ""
    source, piece = last.source, last.result
    if last.count < 2 or source.ndim != piece.ndim:
        return ""
    cut = [a for a in range(source.ndim) if source.shape[a] != piece.shape[a]]
    if len(cut) != 1:
        return ""
    taken, whole, each = int(expected.group(1)), source.shape[cut[0]], piece.shape[cut[0]]
    names = _names_of([source, piece], run)
    rest = whole % each
    text = (
        f"{last.operation} of [{' '.join(names[0])}] = {shown(source.shape)} gives {last.count} "
        f"pieces of [{' '.join(names[1])}] = {shown(piece.shape)}, and {taken} are taken: "
        f"{whole} = {whole // each}·{each}{f' + {rest}' * (rest > 0)}, and {taken} pieces of "
        f"{each} need {taken}·{each} = {taken * each}; project to {taken * each}"
    )
    if whole % taken == 0:
        text += f", or cut {whole} into {taken} of {whole // taken}: chunk({taken}, {cut[0]})"
    return text


def _why_expand(
    source: Tensor, axes: tuple[str, ...], target: Sequence[int], run: _ModuleRun
) -> str:
    """The axes that are neither kept nor 1; for heads, what their projection should hold."""
    told: list[str] = []
    for back in range(1, min(source.ndim, len(target)) + 1):
        n, want = source.shape[-back], target[-back]
        if n in (1, want) or want < 0:
            continue
        name = axes[-back] if axes[-back] != str(n) else "an axis of"
        text = f"{name} {n} cannot be expanded to {want}: only an axis of 1 can"
        told.insert(0, text + _heads_held(source, source.ndim - back, want, run))
    return ", ".join(told)


def _heads_held(source: Tensor, axis: int, want: int, run: _ModuleRun) -> str:
    """Words about the width of the projection that was cut into heads along `axis`."""
    info, heads = run.watcher.ledger.of(source), run.sizes.get("H", 0)
    for key in info.along(axis):
        each = prod(
            len(part)
            for i, part in enumerate(info.coordinates[key])
            if part is not None and i != axis
        )
        if family(key) != "F" or not heads or want < 1 or each < 1:
            continue
        found = diagnose(
            Sizes(heads * each, heads, d_k=each, n_kv_heads=want,
                  k_width=source.shape[axis] * each)
        )  # fmt: skip
        if found is not None:
            # whether these are the keys or the values is not known here
            words = found.message.replace("K holds", "the projection holds")
            return f"; {_for_code(words.replace('project K to', 'project to'))}"
    return ""


def _sizes_asked(args: list[Any]) -> list[int]:
    """The sizes that a view, reshape or expand was given, as one list or one by one."""
    target = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
    return list(target) if all(isinstance(n, int) for n in target) else []


def _filled(source: Tensor, target: Sequence[int]) -> list[int] | None:
    """The shape asked for with its -1 worked out; None where the elements cannot have it."""
    known, have = prod(n for n in target if n != -1), source.numel()
    if list(target).count(-1) == 1 and known > 0 and have % known == 0:
        return [have // known if n == -1 else n for n in target]
    return list(target) if -1 not in target and known == have else None


def _why_view(source: Tensor, axes: tuple[str, ...], target: Sequence[int]) -> str:
    have = source.numel()
    if _filled(source, target) is not None:
        return (
            "the sizes fit, but the elements do not lie in that order in memory "
            f"(strides {shown(source.stride())}), which view needs: reshape copies them, as "
            "contiguous() before view does"
        )
    made = f"{have} elements cannot be {shown(target)}"
    if -1 not in target and prod(target) > 0:
        made += f", which are {prod(target)}"
    if len(target) == 3 and axes[1:3] == ("H", "T"):
        return f"{made}; swap back before heads are merged: transpose(1, 2) makes [B T H d_k]"
    if len(target) <= source.ndim or min(target[-2], source.shape[-1]) < 1:
        return made
    width, heads, each = source.shape[-1], target[-2], target[-1]
    if width % heads:
        found = diagnose(Sizes(width, heads))
        return f"{made}: {_for_code(found.message)}" if found else made
    if each > 0 and heads * each != width:
        made += f": {heads}·{each} = {heads * each}, and the last axis is {width}"
        made += f"; project to {heads * each}"
        if width % each == 0:
            made += f", or cut {width} into {width // each} heads of {each}"
        return f"{made}, or into {heads} of {width // heads}"
    return made


def _regrouping(real: _ModuleRun, shadow: _ModuleRun) -> str:
    """What a view that failed on strides would do if it were a reshape: regroup, or nothing.

    Told from the run at sizes with no common factor, where that fails at the same op.
    """
    for run in (shadow, real):
        failed, other = run.watcher.failed, real.watcher.failed
        if failed is None or other is None or failed[1:3] != other[1:3]:
            continue
        args = failed[3]
        shape = _filled(args[0], _sizes_asked(args))
        if shape is None:
            continue
        result, ledger = args[0].reshape(shape), run.watcher.ledger
        before = name_axes(args[0], ledger.of(args[0]), run.sizes)
        if ledger.follow("reshape", [args[0], shape], {}, [result], torch.reshape):
            words = _regroup_in_words("reshape", before, args[0], result, run.sizes)
            return f"; but {'; '.join(words)}"
        return ""
    return ""


def _for_code(advice: str) -> str:
    """Advice for our flags, for a person who has code in their place."""
    return advice.replace("--d-k", "d_k")
