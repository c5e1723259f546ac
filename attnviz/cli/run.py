"""`attnviz run`: text → attention → pictures, trace, saved run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from attnviz.cli.files import RUNS
from attnviz.cli.inputs import read_texts
from attnviz.cli.open_source import SourceRequest, open_source
from attnviz.cli.options import (
    OUTPUT,
    FlagGroup,
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
from attnviz.errors import ConfigError, OutputError, printable

KEEPABLE = ("q", "k", "v", "scores", "context", "output")
"""What --keep can name; `attnviz.saved_runs` says what each is."""

EXAMPLES = """Examples:

attnviz run "The cat sat on the mat because it was tired." --causal

attnviz run "猫坐在垫子上" --d-model 64 --n-heads 4 -o cat.png --force"""


@dataclass(frozen=True)
class RunFlags(FlagGroup):
    """What `run` can make beside pictures, pages and saved runs."""

    keep: Annotated[
        str | None,
        optional(
            help=f"Tensors to add to a saved run: {','.join(KEEPABLE)}.",
            metavar="NAMES",
            panel=OUTPUT,
        ),
    ] = None
    save_layer: Annotated[
        Path | None,
        optional(
            help="Write the layer's parameters to this .safetensors file.",
            panel=OUTPUT,
        ),
    ] = None
    overlay: Annotated[
        Path | None,
        optional(
            metavar="FILE.png",
            help="With --image: lay a query's attention over the picture, a tile for each head.",
            panel=OUTPUT,
        ),
    ] = None
    overlay_query: Annotated[
        str | None,
        optional(
            metavar="TOKEN",
            help="Whose attention that is: r3c5, say; \\[CLS] or the mean of all when left out.",
            panel=OUTPUT,
        ),
    ] = None
    trace: Annotated[
        bool,
        flag("--trace/--no-trace", help="The shape of every step.", panel=OUTPUT),
    ] = True


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
    extra: RunFlags,
) -> None:
    """Run text through multi-head attention; draw every head, print every shape."""
    # What the flags alone can tell comes first: a wrong one is answered before torch is loaded.
    source = open_source(SourceRequest(inputs, layer, masking, origin, pretrained))
    look.look()
    kept = _kept(extra.keep)
    output.places()
    _check_outputs(output, kept, extra.save_layer, pretrained)
    _check_overlay(extra.overlay, extra.overlay_query, pretrained)
    if kept and tokens.given:
        raise ConfigError(f"--keep and {tokens.given[0]}: what is kept has a row for each token")
    heads = output.chosen_heads(source.layer_numbers, source.n_heads)
    texts = read_texts(inputs, source)
    from attnviz.cli.run_work import RunRequest, run_texts

    request = RunRequest(
        look,
        tokens,
        output,
        long,
        kept,
        extra.save_layer,
        extra.overlay,
        extra.overlay_query,
        extra.trace,
        heads,
    )
    run_texts(source, texts, request)


def _kept(keep: str | None) -> tuple[str, ...]:
    names = () if keep is None else tuple(dict.fromkeys(name.strip() for name in keep.split(",")))
    for name in names:
        if name not in KEEPABLE:
            raise ConfigError(f"--keep {printable(name)}: known are {','.join(KEEPABLE)}")
    return names


def _check_outputs(
    output: OutputFlags, kept: tuple[str, ...], save_layer: Path | None, model: ModelRunFlags
) -> None:
    """Raise an `OutputError` where an output cannot hold what it should."""
    if kept and not any(kind in RUNS for _, kind in output.places()):
        raise OutputError(f"--keep {','.join(kept)} needs a saved run: -o run.npz, say")
    if save_layer is not None and save_layer.suffix.lower() != ".safetensors":
        raise OutputError(f"--save-layer {printable(save_layer)}: the suffix must be .safetensors")
    if save_layer is not None and model.model is not None:
        raise OutputError("--save-layer writes a layer of attnviz's own; --model has none")


def _check_overlay(overlay: Path | None, query: str | None, model: ModelRunFlags) -> None:
    """Raise a `ConfigError` or `OutputError` where no overlay can be made."""
    for name, given in (("--overlay", overlay), ("--overlay-query", query)):
        if given is not None and not model.image:
            raise ConfigError(f"{name} goes with --image FILE")
    if query is not None and overlay is None:
        raise ConfigError("--overlay-query goes with --overlay FILE.png")
    if overlay is not None and overlay.suffix.lower() != ".png":
        raise OutputError(f"--overlay {printable(overlay)}: the suffix must be .png")
