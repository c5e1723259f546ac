"""`attnviz check`: is this attention what its masks say it is? Exit code 3 where it is not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from attnviz.cli.console import remark, result, verdict
from attnviz.cli.facts import print_facts
from attnviz.cli.files import Staging
from attnviz.cli.options import (
    MASK,
    OUTPUT,
    ArrayFlags,
    ObeyedFlags,
    flag,
    optional,
    spread,
)
from attnviz.errors import ConfigError, InputError, OutputError, printable, why_unreadable
from attnviz.masks import notes_on

if TYPE_CHECKING:
    from attnviz.checks.checked_weights import CheckedWeights
    from attnviz.checks.recomputed_weights import ComparedTensors

FOUND = 3
"""The exit code where something is wrong."""

EXPECT = "Compare with q, k, v"

EXAMPLES = """Examples:

attnviz run "The cat sat" --causal --keep q,k -o run.npz && attnviz check run.npz --expect run.npz

attnviz run "The cat sat" --causal -o run.npz --force && attnviz check run.npz --junit check.xml"""


class ManyAfterOne(typer.core.TyperCommand):
    """A command whose `--expect` takes all the words up to the next flag: `--expect q.npy k.npy`.

    click's options take a fixed number of words, so `--expect A B` becomes `--expect A --expect B`.
    """

    flag = "--expect"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self.repeated(args))

    def repeated(self, words: Sequence[str]) -> list[str]:
        """`words` with the flag before each of its values."""
        done: list[str] = []
        taking = False
        for i, word in enumerate(words):
            if word == "--":
                return [*done, *words[i:]]
            if word == self.flag:
                taking = True
                if i + 1 == len(words) or words[i + 1].startswith("-"):
                    done.append(word)  # nothing follows: click says so
            elif word.startswith("-"):
                taking = word.startswith(f"{self.flag}=")
                done.append(word)
            else:
                done += [self.flag, word] if taking else [word]
        return done


COMMAND = ManyAfterOne
"""The kind of this command."""


@spread
def check(
    file: Annotated[
        Path,
        typer.Argument(
            help="A saved run (.npz .safetensors .json), or an array of attention with 2 to 5 axes "
            "(.npy .npz .safetensors .pt .pth).",
            show_default=False,
        ),
    ],
    array: ArrayFlags,
    masking: ObeyedFlags,
    sinks: Annotated[
        bool,
        flag(
            "--sinks",
            panel=MASK,
            help="Rows may sum to less than 1: learned sinks, softmax-off-by-one.",
        ),
    ] = False,
    expect: Annotated[
        list[Path] | None,
        optional(
            "--expect",
            panel=EXPECT,
            metavar="Q K [V]",
            help="Compute softmax(QKᵀ/√d_k) again from these files, and name the mistake where the "
            "weights differ. One file that holds q, k (and v) will do. It takes all words up to "
            "the next flag, so FILE stands before it.",
        ),
    ] = None,
    context: Annotated[
        Path | None,
        optional(
            "--context",
            panel=EXPECT,
            help="Weights · V as the code made it, compared with what the weights and v give.",
        ),
    ] = None,
    positions: Annotated[
        str,
        flag(
            panel=EXPECT,
            help="What q and k still lack: rope (as Llama), rope-pairs (as GPT-J), rope:500000 for "
            "another base, alibi, or none.",
        ),
    ] = "none",
    tolerance: Annotated[
        float | None,
        optional(
            panel=OUTPUT,
            metavar="X",
            help="How far from 1 a row may sum; what its precision allows, when left out.",
        ),
    ] = None,
    strict: Annotated[bool, flag("--strict", panel=OUTPUT, help="Notes fail, too.")] = False,
    as_json: Annotated[
        bool, flag("--json", panel=OUTPUT, help="Print everything that was found, as JSON.")
    ] = False,
    junit: Annotated[
        Path | None,
        optional("--junit", panel=OUTPUT, help="Write JUnit XML for CI, a test a check and layer."),
    ] = None,
    force: Annotated[
        bool, flag("--force", panel=OUTPUT, help="Replace that file where it is there.")
    ] = False,
) -> None:
    """Check attention from a file, and exit with 3 where something is wrong."""
    if tolerance is not None and not 0 <= tolerance < 1:
        raise ConfigError(f"--tolerance is {tolerance}; it must be at least 0 and below 1")
    if not 0 <= len(expect or ()) <= 3:
        raise ConfigError(
            f"--expect has {len(expect or ())} files; q, k and v at most are expected"
        )
    if expect is None and (context is not None or positions != "none"):
        given = "--context" if context is not None else "--positions"
        raise ConfigError(f"{given} goes with --expect Q K")
    if masking.padding_mask is not None and (array.lengths or array.key_lengths):
        raise ConfigError("--padding-mask and --lengths both tell the padding; give one of them")
    with Staging(force) as staging:
        place = None if junit is None else staging.plan(_xml(junit))
        opened = _open(file, array, masking)
        given_to = None
        if expect is not None:
            given_to = _given(opened.checked, expect, context, positions)

        from attnviz.checks.findings import report_on
        from attnviz.render import findings as render

        report = report_on(opened.checked, given_to, sinks, tolerance)
        if place is not None:
            xml = render.report_as_junit(report, str(file))
            staging.write([lambda: place.write_text(xml, "utf-8", "xmlcharrefreplace")])
    failed = not report.passed or (strict and report.findings)
    with verdict(FOUND if failed else 0):
        for notice in (*opened.notices, *report.notes_on_reading):
            remark(notice)
        if as_json:
            document = render.report_as_json(report, str(file))
            result(json.dumps(document, ensure_ascii=True, indent=1, allow_nan=False))
        else:
            from attnviz.render.console import make_console

            console = make_console()
            print_facts(console, render.report_facts(report))
            result("")
            render.print_findings(report, console)
        if junit is not None:
            remark(f"Wrote {printable(junit)}")


def _xml(junit: Path) -> Path:
    if junit.suffix.lower() != ".xml":
        raise OutputError(f"--junit {printable(junit)}: the suffix must be .xml")
    return junit


@dataclass(frozen=True)
class _Opened:
    """What is checked, told its masks, and remarks about how it was read."""

    checked: CheckedWeights
    notices: Sequence[str]


def _open(file: Path, array: ArrayFlags, masking: ObeyedFlags) -> _Opened:
    """The file's weights under the masks that the flags tell."""
    from attnviz.checks.expected_masks import with_masks
    from attnviz.checks.reading_weights import make_subject
    from attnviz.result import Attention
    from attnviz.sources.from_arrays import open_attention, refuse_for_saved_run

    if file == Path("-"):
        raise InputError("attention is read from files, in parts; save what comes through the pipe")
    found = open_attention(file, axes=array.axes, attention=array.attention)
    notices: list[str] = []
    if isinstance(found, Attention):
        given = [*array.given, *(["--padding-mask"] if masking.padding_mask else [])]
        refuse_for_saved_run(file, given)
        checked = make_subject(found)
    else:
        checked = _bare(found, array, masking)
        notices += found.notices
    settings = masking.settings()
    checked = with_masks(checked, settings)
    notices += notes_on(settings, checked.queries, checked.keys)
    if checked.queries.before is not None and masking.by_position:
        notices.append(
            f"{checked.queries.width} queries stand at the end of {checked.keys.width} keys, as "
            "after a cache"
        )
    return _Opened(checked, notices)


def _bare(found: Any, array: ArrayFlags, masking: ObeyedFlags) -> CheckedWeights:
    """A bare array, its numbers left on disk as far as they can be."""
    from attnviz.checks.checked_weights import Bfloat16, CheckedWeights
    from attnviz.checks.reading_weights import is_bfloat16, lengths_of
    from attnviz.result import FLOATS
    from attnviz.tokens import after_cache

    lengths, key_lengths = array.lengths_of("lengths"), array.lengths_of("key_lengths")
    side = array.pad_side
    _, batch, _, n_queries, n_keys = found.shape
    if masking.padding_mask is not None:
        from attnviz.mask_files import read_mask

        mask, _, _ = read_mask(masking.padding_mask, masking.mask_means)
        key_lengths, side = lengths_of(mask, batch, n_keys)
        lengths = key_lengths if n_queries == n_keys else None
    queries, keys = found.batches(array.tokens, array.key_tokens, lengths, key_lengths, side)
    layers: list[Any]
    if not array.softmax and all(is_bfloat16(layer) for layer in found.layers):
        layers = [Bfloat16(layer) for layer in found.layers]
    elif not array.softmax and all(_as_it_is(layer.dtype, FLOATS) for layer in found.layers):
        layers = list(found.layers)
    else:
        layers = list(found.read(queries, keys, softmax=array.softmax).attention)
    return CheckedWeights(layers, after_cache(queries, keys), keys, named=array.tokens is not None)


def _as_it_is(dtype: Any, floats: Sequence[Any]) -> bool:
    return bool(dtype in floats and dtype.isnative)


def _given(
    checked: CheckedWeights, expect: Sequence[Path], context: Path | None, positions: str
) -> ComparedTensors:
    """q, k and v from their files, and the context."""
    from attnviz.checks.recomputed_weights import read_tensors

    names = ("q", "k", "v")
    if len(expect) == 1 and expect[0].suffix.lower() == ".npy":
        raise ConfigError(f"--expect {printable(expect[0])}: q and k are expected, a file each")
    if len(expect) == 1:
        tensors = [_tensor(expect[0], name) for name in names[: 3 if context else 2]]
    else:
        tensors = [_tensor(path, None) for path in expect]
    made = None if context is None else _tensor(context, "context" if len(expect) == 1 else None)
    return read_tensors(checked, tensors, made, positions)


def _tensor(path: Path, name: str | None) -> Any:
    """An array of a file, or a list with one for each layer; the one called `name` of several."""
    from attnviz.sources.array_files import READERS, read_arrays

    shown = printable(path)
    if path.suffix.lower() not in READERS:
        known = ", ".join(READERS)
        raise InputError(f"{shown} has the suffix '{printable(path.suffix)}'; known are {known}")
    try:
        return read_arrays(path, name)[0]
    except InputError as error:
        raise InputError(f"{shown} {error}") from None
    except OSError as error:
        raise InputError(f"{shown}: {why_unreadable(path, error)}") from None
