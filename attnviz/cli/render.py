"""`attnviz render`: attention that was computed before, by anybody → pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnviz.cli.console import remark
from attnviz.cli.facts import Fact, mask_facts, print_facts, token_facts
from attnviz.cli.files import RUNS, Staging
from attnviz.cli.inputs import make_rules
from attnviz.cli.long import part_facts, require_one_sequence
from attnviz.cli.options import (
    ArrayFlags,
    LookFlags,
    MaskFlags,
    OutputFlags,
    TokenFlags,
    WindowFlags,
    choose,
    spread,
)
from attnviz.cli.outputs import Outputs
from attnviz.cli.progress import Work
from attnviz.errors import ConfigError, InputError, printable
from attnviz.machine import require_memory
from attnviz.masks import build

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from rich.console import Console

    from attnviz.result import Attention
    from attnviz.sources.from_arrays import BareArray, Places
    from attnviz.tokens import Batch

    Mask = npt.NDArray[np.bool_] | None

EXAMPLES = """Examples:

attnviz run "The cat sat." -o cat.npz; attnviz render cat.npz -o cat.html

attnviz run "猫坐在垫子上" -o cat.json; attnviz render cat.json --heads 0 -o cat.pdf

Of an array: attnviz render dump.npy --axes "L H Q K" --tokens tokens.json --layers 3"""


@spread
def render(
    file: Annotated[
        Path,
        typer.Argument(
            help="A saved run (.npz .safetensors .json), or an array of attention with 2 to 5 axes "
            "(.npy .npz .safetensors .pt .pth).",
            show_default=False,
        ),
    ],
    array: ArrayFlags,
    masking: MaskFlags,
    look: LookFlags,
    tokens: TokenFlags,
    output: OutputFlags,
    part: WindowFlags,
) -> None:
    """Draw attention from a file: a saved run, or an array that somebody else made."""
    look.look()
    files = output.places()
    if file == Path("-"):
        raise InputError("attention is read from files, in parts; save what comes through the pipe")
    from attnviz.result import Attention
    from attnviz.sources.from_arrays import open_attention

    found = open_attention(file, axes=array.axes, attention=array.attention, pooled=True)
    if isinstance(found, Attention) and found.is_pooled:
        from attnviz.cli.long import render_pooled

        if tokens.given:
            raise ConfigError(
                f"{tokens.given[0]} goes with whole maps; {printable(file)} is a saved long run"
            )
        given = [*array.given, *(["masks"] if masking.is_set else [])]
        render_pooled(file, found, given, look, output, part)
        return
    from attnviz.cli.values import value_remarks
    from attnviz.sources.run import Run

    with Work() as work:
        work.stage("reading")
        opened = _open(file, found, array)
        n_layers, batch, n_heads = opened.shape[:3]
        require_memory(
            300 * n_layers * n_heads,
            f"naming {n_layers} layers × {n_heads} heads",
            "--axes says which axes these are",
        )
        layers = _layers(output.layers, opened.layer_numbers)
        heads = choose("--heads", output.heads, n_heads, "heads")
        chosen = output.chosen_sequences(batch)
        if part.given:
            require_one_sequence(chosen)
        pairs = [(layer, head) for layer in layers for head in heads]
        with Staging(output.force) as staging:
            several = list(opened.layer_numbers) != [0], batch > 1 and not part.given
            sequences = [0] if part.given else chosen
            outputs = Outputs(staging, look, sequences, pairs, several, work)
            for path, kind in files:
                outputs.plan(path, kind)
            saves = any(kind in RUNS for _, kind in files)
            places = [opened.layer_numbers.index(layer) for layer in layers]
            wanted = (places, range(batch), range(n_heads)) if saves else (places, chosen, heads)
            result, notices = _read(opened, masking, array.softmax, wanted)
            if tokens.given:
                before, result = result, tokens.seen(result)
                opened = _of_part(opened, result)
                notices += tokens.unmet(before, result)
                if saves and before.kept and not result.kept:
                    notices.append("kept tensors are of single tokens, and are left out")
            if part.given:
                from attnviz.result import part_of

                result = part_of(result, *_window(result, part, chosen[0]), chosen[0])
                opened, chosen = _of_part(opened, result), [0]
            if any(kind not in RUNS for _, kind in files):
                _require_drawing_memory(result, len(pairs))
            work.stage("drawing", outputs.n_pictures)
            staging.write(outputs.writers(Run(result, ())))
        if output.quiet:
            return
        work.stage("measuring")
        drawn = [(i, head) for i in range(len(layers)) for head in heads]
        if not part.given:
            notices += value_remarks(result, chosen, drawn)
        if saves and len(heads) * len(chosen) < n_heads * batch:
            notices.append("a saved run holds every head and sequence, not only those drawn")
    from attnviz.render.console import make_console

    console = make_console()
    for notice in dict.fromkeys((*opened.notices, *notices, *outputs.notices)):
        remark(notice)
    facts = _facts(opened, result, chosen, array, console)
    print_facts(console, facts + (part_facts(result) if part.given else []))
    outputs.print_maps(result, console, output.show)


@dataclass(frozen=True)
class _Opened:
    """What a file turned out to be, and its tokens."""

    found: Attention | BareArray
    queries: Batch
    keys: Batch
    shape: tuple[int, ...]
    layer_numbers: Sequence[int]
    notices: Sequence[str]


def _of_part(opened: _Opened, part: Attention) -> _Opened:
    """The same with the tokens of `part`: some of the map, or others in their place."""
    from attnviz.result import batches_of

    queries, keys = batches_of(part)
    return replace(opened, queries=queries, keys=keys)


def _open(file: Path, found: Attention | BareArray, array: ArrayFlags) -> _Opened:
    from attnviz.result import Attention, batches_of
    from attnviz.sources.from_arrays import refuse_for_saved_run
    from attnviz.tokens import after_cache

    if isinstance(found, Attention):
        refuse_for_saved_run(file, array.given)
        return _Opened(found, *batches_of(found), found.attention.shape, found.layer_numbers, ())
    queries, keys = found.batches(
        array.tokens,
        array.key_tokens,
        array.lengths_of("lengths"),
        array.lengths_of("key_lengths"),
        array.pad_side,
    )
    queries = after_cache(queries, keys)  # masks count from there
    return _Opened(found, queries, keys, found.shape, range(found.shape[0]), found.notices)


def _read(
    opened: _Opened, masking: MaskFlags, softmax: bool, wanted: Places
) -> tuple[Attention, list[str]]:
    """The layers at the wanted places, under the masks that the flags tell; remarks about these.

    Of a bare array the other wanted places are enough, too.
    """
    from attnviz.result import Attention, only_layers
    from attnviz.sources.from_arrays import UNKNOWN

    found, places = opened.found, wanted[0]
    is_saved_run = isinstance(found, Attention)
    if is_saved_run:  # its padding is masked, or is not, as it says
        masking = replace(masking, padding_mask=bool(masking.padding_mask))
    allowed, names, notices = _mask(opened, masking)
    if isinstance(found, Attention):
        result = only_layers(found, places) if len(places) < len(found.attention) else found
    else:
        result = found.read(
            opened.queries,
            opened.keys,
            softmax=softmax,
            allowed=allowed,
            masks=names or UNKNOWN,
            wanted=wanted,
        )
    if is_saved_run and allowed is not None:
        known = [name for name in result.masks if name not in UNKNOWN]
        names = list(dict.fromkeys((*known, *names)))
        result = replace(result, allowed=result.allowed & allowed, masks=tuple(names))
    return result, notices


def _mask(opened: _Opened, masking: MaskFlags) -> tuple[Mask, list[str], list[str]]:
    """The mask that the flags tell, None for none; the names of its rules, and remarks."""
    if not masking.is_set and (masking.padding_mask is False or opened.keys.valid.all()):
        return None, [], []
    _, batch, n_heads, n_queries, n_keys = opened.shape
    rules, notices = make_rules(masking, opened.queries, opened.keys, n_heads)
    cells = batch * n_queries * n_keys * (n_heads if any(rule.per_head for rule in rules) else 1)
    require_memory(3 * cells, f"a mask of {batch} × {n_queries} × {n_keys}", "give fewer sequences")
    allowed = build(rules, batch, n_heads, n_queries, n_keys)
    names = [rule.name for rule in rules]
    if opened.queries.before is not None and masking.by_position:
        notices.append(f"{n_queries} queries stand at the end of {n_keys} keys, as after a cache")
    return allowed, names, notices


def _require_drawing_memory(result: Attention, n: int) -> None:
    """Raise `InputError` where drawing `n` heads would take more memory than there is."""
    cells = result.attention.shape[3] * result.attention.shape[4]
    require_memory(
        cells * (4 * n + 64),  # float32 of each; measures, kinds and pixels of one
        f"drawing {n} heads of {result.attention.shape[3]} × {result.attention.shape[4]}",
        "--layers and --heads choose fewer",
    )


def _facts(
    opened: _Opened,
    result: Attention,
    chosen: Sequence[int],
    array: ArrayFlags,
    console: Console,
) -> list[Fact]:
    """What was read: where from, its sizes, masks, tokens."""
    from attnviz.render.console import ascii_only
    from attnviz.render.visible import notation
    from attnviz.result import Attention
    from attnviz.sources.from_arrays import UNKNOWN, sizes_in_words

    sizes = notation(sizes_in_words(result.attention.shape), ascii_only(console))
    queries, keys = opened.queries, opened.keys
    facts = [
        ("source", printable(result.source) or "not told"),
        ("attention", f"{sizes}, {result.attention.dtype}"),
    ]
    if result.masks == UNKNOWN:
        told = "--causal, --lengths, --mask and the like tell what is forbidden"
        facts.append(("masks", f"unknown: a weight of 0 is drawn as 0; {told}"))
    else:
        allowed = result.allowed[0] if result.masks else None
        facts += mask_facts(result.masks, allowed, queries, keys)
    named = isinstance(opened.found, Attention) or array.tokens or array.key_tokens
    if named or not (queries.valid.all() and keys.valid.all()):
        others = keys if result.is_cross else None
        facts += token_facts(queries, others, ascii_only(console), with_ids=False, chosen=chosen)
    return [*facts, *(("shown", printable(note)) for note in result.notes)]


def _window(result: Attention, part: WindowFlags, sequence: int) -> tuple[range, range]:
    """Places of the wanted queries and keys of a sequence; padding does not count."""
    from attnviz.result import batches_of

    batches = batches_of(result)
    lengths = [int(batch.lengths[sequence]) for batch in batches]
    starts = [int(batch.starts[sequence]) for batch in batches]
    rows, columns = part.ranges(*lengths)
    return (
        range(rows.start + starts[0], rows.stop + starts[0]),
        range(columns.start + starts[1], columns.stop + starts[1]),
    )


def _layers(wanted: str | None, numbers: Sequence[int]) -> list[int]:
    """The layers that `--layers` names, out of those that the file has."""
    if wanted is None:
        return list(numbers)
    chosen = choose("--layers", wanted, max(numbers) + 1, "layers")
    if not set(chosen) <= set(numbers):
        known = printable(", ".join(map(str, numbers)))
        raise ConfigError(f"--layers {printable(wanted)}: the file has layers {known}")
    return chosen
