"""The work of `attnviz check`: open the weights, check them, report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnviz.checks.checked_weights import Bfloat16, CheckedWeights
from attnviz.checks.expected_masks import with_masks
from attnviz.checks.findings import report_on
from attnviz.checks.reading_weights import is_bfloat16, lengths_of, read_weights
from attnviz.checks.recomputed_weights import ComparedTensors, read_tensors
from attnviz.checks.report import Report
from attnviz.cli.check_flags import TensorFlags, VerdictFlags
from attnviz.cli.facts import print_facts
from attnviz.cli.files import Staging
from attnviz.cli.options import ArrayFlags, ObeyedFlags
from attnviz.cli.streams import result, verdict, warn
from attnviz.errors import ConfigError, InputError, printable, why_unreadable
from attnviz.mask_files import read_mask
from attnviz.masks import notes_on
from attnviz.render import check_report
from attnviz.render.console import make_console
from attnviz.result import FLOATS, Attention
from attnviz.sources.array_files import READERS, read_arrays
from attnviz.sources.bare_arrays import open_attention, refuse_for_saved_run
from attnviz.tokens import after_cache

WRONG = 3
"""The exit code where something is wrong."""


def check_files(
    file: Path,
    array: ArrayFlags,
    masking: ObeyedFlags,
    tensors: TensorFlags,
    flags: VerdictFlags,
    sinks: bool,
) -> None:
    """Check the weights of a file, print what was found, and exit."""
    with Staging(flags.force) as staging:
        place = None if flags.junit is None else staging.plan(flags.junit)
        checked, notes = _open(file, array, masking)
        compared = None if tensors.expect is None else _tensors(checked, tensors)
        report = report_on(checked, compared, sinks, flags.tolerance)
        if place is not None:
            xml = check_report.report_as_junit(report, str(file))
            staging.write([lambda: place.write_text(xml, "utf-8", "xmlcharrefreplace")])
    fails = not report.passed or (flags.strict and report.findings)
    with verdict(WRONG if fails else 0):
        for note in (*notes, *report.notes_on_reading):
            warn(note)
        _print(report, file, flags.as_json)
        if flags.junit is not None:
            warn(f"Wrote {printable(flags.junit)}")


def _print(report: Report, file: Path, as_json: bool) -> None:
    if as_json:
        document = check_report.report_as_json(report, str(file))
        result(json.dumps(document, ensure_ascii=True, indent=1, allow_nan=False))
        return
    console = make_console()
    print_facts(console, check_report.report_facts(report))
    result("")
    check_report.print_findings(report, console)


def _open(file: Path, array: ArrayFlags, masking: ObeyedFlags) -> tuple[CheckedWeights, list[str]]:
    """The file's weights under the masks of the flags, and notes on how they were read."""
    if file == Path("-"):
        raise InputError("attention is read from files, in parts; save what comes through the pipe")
    found = open_attention(file, axes=array.axes, attention=array.attention)
    notes: list[str] = []
    if isinstance(found, Attention):
        refuse_for_saved_run(
            file, [*array.given, *(["--padding-mask"] if masking.padding_mask else [])]
        )
        checked = read_weights(found)
    else:
        checked = _bare(found, array, masking)
        notes += found.notes
    settings = masking.settings()
    checked = with_masks(checked, settings)
    notes += notes_on(settings, checked.queries, checked.keys)
    if checked.queries.before is not None and masking.by_position:
        notes.append(
            f"{checked.queries.width} queries stand at the end of {checked.keys.width} keys, as "
            "after a cache"
        )
    return checked, notes


def _bare(found: Any, array: ArrayFlags, masking: ObeyedFlags) -> CheckedWeights:
    """A bare array, its numbers left on disk as far as they can be."""
    found.require_as_many_heads()
    lengths, key_lengths = array.lengths_of("lengths"), array.lengths_of("key_lengths")
    side = array.pad_side
    _, batch, _, n_queries, n_keys = found.shape
    if masking.padding_mask is not None:
        mask = read_mask(masking.padding_mask, masking.mask_means).cells
        key_lengths, side = lengths_of(mask, batch, n_keys)
        lengths = key_lengths if n_queries == n_keys else None
    queries, keys = found.batches(array.tokens, array.key_tokens, lengths, key_lengths, side)
    layers: list[Any]
    if not array.softmax and all(is_bfloat16(layer) for layer in found.layers):
        layers = [Bfloat16(layer) for layer in found.layers]
    elif not array.softmax and all(_is_native(layer.dtype) for layer in found.layers):
        layers = list(found.layers)
    else:
        layers = list(found.read(queries, keys, softmax=array.softmax).attention)
    return CheckedWeights(layers, after_cache(queries, keys), keys, named=array.tokens is not None)


def _is_native(dtype: Any) -> bool:
    """Whether numbers of this type are checked as they stand in the file."""
    return bool(dtype in FLOATS and dtype.isnative)


def _tensors(checked: CheckedWeights, flags: TensorFlags) -> ComparedTensors:
    """q, k and v from their files, and the context."""
    files: Sequence[Path] = flags.expect or ()
    names: list[str | None] = [None] * len(files)
    if len(files) == 1:
        if files[0].suffix.lower() == ".npy":
            raise ConfigError(f"--expect {printable(files[0])}: q and k are expected, a file each")
        names = ["q", "k", "v"] if flags.context else ["q", "k"]
        files = [files[0]] * len(names)
    tensors = [_tensor(file, name) for file, name in zip(files, names, strict=True)]
    name = "context" if names[0] else None
    context = None if flags.context is None else _tensor(flags.context, name)
    return read_tensors(checked, tensors, context, flags.positions)


def _tensor(path: Path, name: str | None) -> Any:
    """An array of a file, or a list with one for each layer; the one called `name` of several."""
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
