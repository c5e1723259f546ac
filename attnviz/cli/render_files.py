"""What `attnviz render` does: reads a file, draws it, says what it read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attnviz.cli.facts import (
    mask_facts,
    mask_names,
    part_facts,
    pooled_facts,
    print_facts,
    token_facts,
)
from attnviz.cli.files import RUNS, Staging
from attnviz.cli.options import (
    ArrayFlags,
    LookFlags,
    MaskFlags,
    OutputFlags,
    TokenFlags,
    WindowFlags,
    choose,
    choose_layers,
    require_one_sequence,
)
from attnviz.cli.outputs import Outputs
from attnviz.cli.progress import Work
from attnviz.cli.streams import warn
from attnviz.errors import ConfigError, printable
from attnviz.machine import require_memory
from attnviz.masks import build, notes_on, rules_from
from attnviz.pipeline import Line
from attnviz.render.console import ascii_only, make_console
from attnviz.render.visible import notation
from attnviz.result import UNKNOWN_MASKS, Attention, batches_of, only_layers, part_of
from attnviz.sources.bare_arrays import (
    BareArray,
    Places,
    open_attention,
    refuse_for_saved_run,
    sizes_in_words,
)
from attnviz.tokens import Batch, after_cache
from attnviz.weight_warnings import weight_warnings

if TYPE_CHECKING:
    from rich.console import Console

Mask = npt.NDArray[np.bool_] | None


def render_file(
    file: Path,
    array: ArrayFlags,
    masking: MaskFlags,
    look: LookFlags,
    tokens: TokenFlags,
    output: OutputFlags,
    part: WindowFlags,
) -> None:
    """Draw the attention in `file` as the flags ask for."""
    files = output.places()
    saves = any(kind in RUNS for _, kind in files)
    with Work() as work:
        work.stage("reading")
        opened = _open(file, array, masking, tokens)
        chosen = _chosen(opened, output, part)
        with Staging(output.force) as staging:
            sequences = [0] if part.given else chosen.sequences
            several = opened.found.names_layers, opened.found.shape[1] > 1 and not part.given
            outputs = Outputs(staging, look, sequences, chosen.pairs, several, work)
            for path, kind in files:
                outputs.plan(path, kind)
            wanted = chosen.places(opened, everything=saves)
            whole, warnings = _read(opened, masking, array.softmax, wanted)
            drawn = [(chosen.layers.index(layer), head) for layer, head in chosen.pairs]
            if not (part.given or output.quiet or whole.is_pooled):
                work.stage("measuring")
                warnings += weight_warnings(whole, chosen.sequences, drawn)
            result = tokens.seen(whole) if tokens.given else whole
            warnings += tokens.unmet(whole, result)
            if saves and whole.kept and not result.kept:
                warnings.append("kept tensors are of single tokens, and are left out")
            if part.given:
                work.stage("computing attention")
                result = _part(result, part, chosen.sequences[0], drawn)
            if any(kind not in RUNS for _, kind in files):
                _require_drawing_memory(result, len(chosen.pairs))
            work.stage("drawing", outputs.n_pictures)
            staging.write(outputs.writers(result))
    if output.quiet:
        return
    n_drawn = len(chosen.heads) * len(chosen.sequences)
    if (
        saves
        and n_drawn < result.n_heads * result.batch_size
        and not (part.given and whole.is_pooled)
    ):
        warnings.append("a saved run holds every head and sequence, not only those drawn")
    console = make_console()
    for warning in dict.fromkeys((*opened.notes, *warnings, *outputs.warnings)):
        warn(warning)
    print_facts(console, _facts(opened, result, sequences, array, console))
    outputs.print_maps(result, console, output.show)


# ── the file ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Opened:
    """What a file turned out to be, and its tokens."""

    found: Attention | BareArray
    queries: Batch
    keys: Batch
    n_heads: Sequence[int]
    """The heads of each layer."""
    notes: Sequence[str] = ()


def _open(file: Path, array: ArrayFlags, masking: MaskFlags, tokens: TokenFlags) -> _Opened:
    found = open_attention(file, axes=array.axes, attention=array.attention, pooled=True)
    if isinstance(found, Attention):
        if found.is_pooled:
            _refuse_for_pooled(file, array, masking, tokens)
        refuse_for_saved_run(file, array.given)
        return _Opened(found, *batches_of(found), [found.n_heads] * found.n_layers)
    queries, keys = array.batches(found)
    n_layers, _, most_heads, *_ = found.shape
    require_memory(
        300 * n_layers * most_heads,
        f"naming {n_layers} layers × {most_heads} heads",
        "--axes says which axes these are",
    )
    queries = after_cache(queries, keys)  # masks count from there
    return _Opened(found, queries, keys, found.n_heads, found.notes)


def _refuse_for_pooled(
    file: Path, array: ArrayFlags, masking: MaskFlags, tokens: TokenFlags
) -> None:
    """Raise `ConfigError` for flags that need every weight, or tell what a saved run knows."""
    shown = printable(file)
    if tokens.given:
        raise ConfigError(f"{tokens.given[0]} goes with whole maps; {shown} is a saved long run")
    for flag in [*array.given, *(["masks"] if masking.is_set else [])]:
        raise ConfigError(f"{flag}: {shown} is a saved long run, which knows its own")


@dataclass(frozen=True)
class _Chosen:
    """What is to be drawn, by number."""

    layers: Sequence[int]
    heads: Sequence[int]
    sequences: Sequence[int]
    pairs: Sequence[tuple[int, int]]
    """(layer, head), those that are there."""

    def places(self, opened: _Opened, *, everything: bool) -> Places:
        """Indices of layers, sequences and heads; the latter two are all of them where a run is
        saved, which holds `everything`."""
        layers = [opened.found.layer_numbers.index(layer) for layer in self.layers]
        if everything:
            return layers, range(opened.found.shape[1]), range(opened.found.shape[2])
        return layers, self.sequences, self.heads


def _chosen(opened: _Opened, output: OutputFlags, part: WindowFlags) -> _Chosen:
    sequences = output.chosen_sequences(opened.found.shape[1])
    if part.given:
        require_one_sequence(sequences)
    n_heads = dict(zip(opened.found.layer_numbers, opened.n_heads, strict=True))
    if (named := output.named_heads(n_heads)) is not None:
        layers = [number for number in n_heads if number in {layer for layer, _ in named}]
        return _Chosen(layers, sorted({head for _, head in named}), sequences, named)
    layers = choose_layers(output.layers, opened.found.layer_numbers)
    heads = choose("--heads", output.heads, opened.found.shape[2], "heads")
    pairs = [(layer, head) for layer in layers for head in heads if head < n_heads[layer]]
    if not pairs:
        raise ConfigError(
            f"--heads {printable(output.heads)}: none of the chosen layers has these heads"
        )
    return _Chosen(layers, heads, sequences, pairs)


def _read(
    opened: _Opened, masking: MaskFlags, softmax: bool, wanted: Places
) -> tuple[Attention, list[str]]:
    """The layers at the wanted places, under the masks that the flags tell; warnings about these.

    Of a bare array the other wanted places are enough, too.
    """
    found, places = opened.found, wanted[0]
    if not isinstance(found, Attention):
        allowed, names, warnings = _mask(opened, masking)
        mask: dict[str, Any] = {"allowed": allowed, "masks": names or UNKNOWN_MASKS}
        read = found.read(opened.queries, opened.keys, softmax=softmax, wanted=wanted, **mask)
        return read, warnings
    # whether its padding is masked, a saved run says itself
    masking = replace(masking, padding_mask=bool(masking.padding_mask))
    allowed, names, warnings = _mask(opened, masking)
    result = only_layers(found, places) if len(places) < found.n_layers else found
    if allowed is not None:
        known = [name for name in result.masks if name not in UNKNOWN_MASKS]
        names = list(dict.fromkeys((*known, *names)))
        result = replace(result, allowed=result.allowed & allowed, masks=tuple(names))
    return result, warnings


def _mask(opened: _Opened, masking: MaskFlags) -> tuple[Mask, list[str], list[str]]:
    """The mask that the flags tell, None for none; the names of its rules, and warnings."""
    if not masking.is_set and (masking.padding_mask is False or opened.keys.valid.all()):
        return None, [], []
    _, batch, n_heads, n_queries, n_keys = opened.found.shape
    settings = masking.settings()
    rules = rules_from(settings, opened.queries, opened.keys, n_heads)
    warnings = notes_on(settings, opened.queries, opened.keys)
    cells = batch * n_queries * n_keys * (n_heads if any(rule.per_head for rule in rules) else 1)
    require_memory(3 * cells, f"a mask of {batch} × {n_queries} × {n_keys}", "give fewer sequences")
    allowed = build(rules, batch, n_heads, n_queries, n_keys)
    names = [rule.name for rule in rules]
    if opened.queries.before is not None and masking.by_position:
        warnings.append(f"{n_queries} queries stand at the end of {n_keys} keys, as after a cache")
    return allowed, names, warnings


def _part(
    result: Attention, part: WindowFlags, sequence: int, heads: Sequence[tuple[int, int]]
) -> Attention:
    """The wanted queries and keys of a sequence, at full resolution; padding does not count."""
    starts, ends = zip(*(result.places(sequence, side) for side in (0, 1)), strict=True)
    found = part.ranges(*(end - start for start, end in zip(starts, ends, strict=True)))
    rows, columns = (
        range(each.start + start, each.stop + start)
        for each, start in zip(found, starts, strict=True)
    )
    if not result.is_pooled:
        return part_of(result, rows, columns, sequence)
    from attnviz.full_resolution import part_at_full_resolution

    return part_at_full_resolution(result, rows, columns, sequence, heads)


def _require_drawing_memory(result: Attention, n: int) -> None:
    """Raise `InputError` where drawing `n` heads would take more memory than there is."""
    cells = result.attention.shape[3] * result.attention.shape[4]
    require_memory(
        cells * (4 * n + 64),  # float32 of each; measures, kinds and pixels of one
        f"drawing {n} heads of {result.attention.shape[3]} × {result.attention.shape[4]}",
        "--layers and --heads choose fewer",
    )


# ── words ────────────────────────────────────────────────────────────────────────────────────


def _facts(
    opened: _Opened,
    result: Attention,
    sequences: Sequence[int],
    array: ArrayFlags,
    console: Console,
) -> list[Line]:
    """What was read: where from, its sizes, masks, tokens."""
    whole = opened.found
    if isinstance(whole, Attention) and whole.is_pooled:
        sizes = f"{whole.n_layers} × {whole.batch_size} × {whole.n_heads}"
        facts = [
            ("source", printable(whole.source) or "unknown"),
            ("attention", f"{sizes} maps (layers, sequences, heads)"),
        ]
        if result.is_part:
            return [*facts, mask_names(result.masks), *part_facts(result)]
        return [*facts, *pooled_facts(result, "")]
    facts = [("source", printable(result.source) or "unknown")]
    sizes = notation(sizes_in_words(result.attention.shape), ascii_only(console))
    facts.append(("attention", f"{sizes}, {result.attention.dtype}"))
    queries, keys = opened.queries, opened.keys
    if result.query_tokens != queries.padded_tokens or result.key_tokens != keys.padded_tokens:
        queries, keys = batches_of(result)  # of a part, of words, or without special tokens
    if result.masks == UNKNOWN_MASKS:
        flags = "--causal, --lengths, --mask and the like tell what is forbidden"
        facts.append(("masks", f"unknown: a weight of 0 is drawn as 0; {flags}"))
    else:
        allowed = result.allowed[0] if result.masks else None
        facts += mask_facts(result.masks, allowed, queries, keys)
    named = isinstance(whole, Attention) or array.tokens or array.key_tokens
    if named or not (queries.valid.all() and keys.valid.all()):
        others = keys if result.is_cross else None
        plain = ascii_only(console)
        facts += token_facts(queries, others, plain, with_ids=False, chosen=sequences)
    facts += [("shown", printable(note)) for note in result.notes]
    return [*facts, *(part_facts(result) if result.is_part else [])]
