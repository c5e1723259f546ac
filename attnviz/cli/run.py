"""`attnviz run`: text → attention → pictures, trace, saved run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from attnviz.cli.console import remark, result
from attnviz.cli.facts import mask_facts, print_facts, token_facts
from attnviz.cli.files import RUNS, Staging
from attnviz.cli.long import demand, run_in_blocks
from attnviz.cli.options import (
    OUTPUT,
    InputFlags,
    LayerFlags,
    LongFlags,
    LookFlags,
    MaskFlags,
    ModelRunFlags,
    OutputFlags,
    SourceFlags,
    TokenFlags,
    flag,
    optional,
    spread,
)
from attnviz.cli.outputs import Outputs
from attnviz.cli.progress import Work
from attnviz.cli.source import Computed, Source, open_source
from attnviz.errors import ConfigError, OutputError, printable

if TYPE_CHECKING:
    from rich.console import Console

KEEPABLE = ("q", "k", "v", "scores", "context", "output")
"""What --keep can name; `attnviz.result` says what each is."""

EXAMPLES = """Examples:

attnviz run "The cat sat on the mat because it was tired." --causal

attnviz run "猫坐在垫子上" --d-model 64 --n-heads 4 -o cat.png --force"""


@spread
def run(
    inputs: InputFlags,
    layer: LayerFlags,
    origin: SourceFlags,
    pretrained: ModelRunFlags,
    masking: MaskFlags,
    look: LookFlags,
    tokens: TokenFlags,
    output: OutputFlags,
    long: LongFlags,
    keep: Annotated[
        str | None,
        optional(
            help=f"Tensors to add to a saved run: {','.join(KEEPABLE)}.",
            metavar="NAMES",
            panel=OUTPUT,
        ),
    ] = None,
    save_layer: Annotated[
        Path | None,
        optional(
            help="Write the layer's parameters to this .safetensors file.",
            panel=OUTPUT,
        ),
    ] = None,
    overlay: Annotated[
        Path | None,
        optional(
            metavar="FILE.png",
            help="With --image: lay a query's attention over the picture, a tile for each head.",
            panel=OUTPUT,
        ),
    ] = None,
    overlay_query: Annotated[
        str | None,
        optional(
            metavar="TOKEN",
            help="Whose attention that is: r3c5, say; \\[CLS] or the mean of all when left out.",
            panel=OUTPUT,
        ),
    ] = None,
    trace: Annotated[
        bool,
        flag("--trace/--no-trace", help="The shape of every step.", panel=OUTPUT),
    ] = True,
) -> None:
    """Run text through multi-head attention; draw every head, print every shape."""
    # What the flags alone can tell comes first: a wrong one is answered before torch is loaded.
    source = open_source(inputs, layer, masking, origin, pretrained)
    look.look()
    kept = _kept(keep)
    places = output.places()
    if kept and not any(kind in RUNS for _, kind in places):
        raise OutputError(f"--keep {','.join(kept)} needs a saved run: -o run.npz, say")
    if save_layer is not None and save_layer.suffix.lower() != ".safetensors":
        raise OutputError(f"--save-layer {printable(save_layer)}: the suffix must be .safetensors")
    if save_layer is not None and pretrained.model is not None:
        raise OutputError("--save-layer writes a layer of attnviz's own; --model has none")
    _check_overlay(overlay, overlay_query, pretrained)
    if kept and tokens.given:
        raise ConfigError(f"--keep and {tokens.given[0]}: what is kept has a row for each token")
    chosen_heads = output.chosen_heads(source.n_layers, source.n_heads, source.absent)

    text = source.read()
    demanded = demand(long, source, text, {layer for layer, _ in chosen_heads})
    if demanded is not None:
        blocks = f"whole maps, and this text is run in blocks ({demanded.why})"
        if save_layer is not None:
            raise OutputError(f"--save-layer goes with {blocks}")
        if tokens.given:
            raise ConfigError(f"{tokens.given[0]} goes with {blocks}")
        run_in_blocks(source, text, demanded, look, output, kept, trace)
        return
    chosen = output.chosen_sequences(len(text.queries))
    with Staging(output.force) as staging, Work() as work:
        several = (source.n_layers > 1, len(text.queries) > 1)
        outputs = Outputs(staging, look, chosen, chosen_heads, several, work)
        for path, kind in places:
            outputs.plan(path, kind)
        if overlay is not None:
            outputs.plan_overlays(overlay, overlay_query)
        layer_place = None if save_layer is None else staging.plan(save_layer)

        work.stage("computing attention")
        layers = {layer for layer, _ in chosen_heads}
        done = source.compute(text, kept, layers, work.stage)
        outputs.pictured = done.views, done.run.result
        outputs.steps, seen = done.run.steps, tokens.seen(done.run.result)
        writers = outputs.writers(seen)
        if layer_place is not None:
            from attnviz.sources.saved_layers import save_layers

            writers.append(partial(save_layers, layer_place, done.run.layers))
            outputs.written.append(printable(save_layer))
        work.stage("drawing", outputs.n_pictures)
        staging.write(writers)
    if output.quiet:
        return
    from attnviz.render.console import make_console

    console = make_console()
    if missing := [name for name in kept if name not in done.run.result.kept]:
        remark(f"--keep {','.join(missing)}: this layer has no such step")
    unmet = tokens.unmet(done.run.result, seen)
    for notice in dict.fromkeys((*text.notices, *done.notices, *unmet, *outputs.warnings)):
        remark(notice)
    _report(source, done, seen.notes, console, trace)
    outputs.print_maps(seen, console, output.show)


def _kept(keep: str | None) -> tuple[str, ...]:
    names = () if keep is None else tuple(dict.fromkeys(name.strip() for name in keep.split(",")))
    for name in names:
        if name not in KEEPABLE:
            raise ConfigError(f"--keep {printable(name)}: known are {','.join(KEEPABLE)}")
    return names


def _check_overlay(overlay: Path | None, query: str | None, model: ModelRunFlags) -> None:
    """Raise a `ConfigError` or `OutputError` where no overlay can be made."""
    for name, given in (("--overlay", overlay), ("--overlay-query", query)):
        if given is not None and not model.image:
            raise ConfigError(f"{name} goes with --image FILE")
    if query is not None and overlay is None:
        raise ConfigError("--overlay-query goes with --overlay FILE.png")
    if overlay is not None and overlay.suffix.lower() != ".png":
        raise OutputError(f"--overlay {printable(overlay)}: the suffix must be .png")


def _report(
    source: Source, done: Computed, notes: Sequence[str], console: Console, trace: bool
) -> None:
    """What ran, on standard output: the facts, the tokens, the trace."""
    from attnviz.render.console import ascii_only
    from attnviz.render.tables import print_trace

    queries, keys = done.queries, done.keys
    masked = queries if keys is None else keys
    names = done.run.result.masks
    allowed = done.run.result.allowed[0, ..., : masked.width]  # a key of the layer's own is no cell
    facts = [
        *source.facts(done.run),
        *mask_facts(names, allowed if names else None, queries, masked),
        *(done.sequences or token_facts(queries, keys, ascii_only(console))),
        *(("shown", printable(note)) for note in notes),
    ]
    print_facts(console, facts)
    if trace:
        result("")
        print_trace(done.run.steps, console, cross=keys is not None)
