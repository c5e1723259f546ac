"""`attnviz shapes`: the tensor flow, step by step, for any size, in the memory of a small one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from attnviz.cli.console import remark, result
from attnviz.cli.facts import layer_facts, mask_facts
from attnviz.cli.inputs import make_batches, make_rules, read_sequences
from attnviz.cli.options import INPUT, InputFlags, LayerFlags, MaskFlags, spread
from attnviz.config import check_size
from attnviz.errors import ConfigError

if TYPE_CHECKING:
    from attnviz.config import AttentionConfig

EXAMPLES = """Examples:

attnviz shapes "The cat sat on the mat." --d-model 64 --n-heads 4 --causal

attnviz shapes --d-model 65536 --n-heads 512 --d-k 128 --len 1000000"""


@spread
def shapes(
    inputs: InputFlags,
    layer: LayerFlags,
    masking: MaskFlags,
    length: Annotated[
        int | None,
        typer.Option(
            "--len",
            metavar="N",
            help="Queries in place of a text: any number.",
            rich_help_panel=INPUT,
            show_default=False,
        ),
    ] = None,
    key_length: Annotated[
        int | None,
        typer.Option(
            "--key-len",
            metavar="N",
            help="Keys, where they differ from the queries.",
            rich_help_panel=INPUT,
            show_default=False,
        ),
    ] = None,
    batch: Annotated[
        int,
        typer.Option(metavar="N", help="Sequences of that length.", rich_help_panel=INPUT),
    ] = 1,
    vocabulary: Annotated[
        int,
        typer.Option(
            "--vocab",
            metavar="N",
            help="Rows of the embedding table, where no text gives them.",
            rich_help_panel=INPUT,
        ),
    ] = 37000,
) -> None:
    """Show every tensor on the way through the layer: its shape, cost and meaning."""
    config = layer.config()
    named = [flag for flag, given in (("TEXT", inputs.text), ("--file", inputs.file)) if given]
    if length is not None and named:
        raise ConfigError(f"--len and {named[0]} both give the number of queries; give one of them")
    if length is None and key_length is not None:
        raise ConfigError("--key-len goes with --len; --keys gives the keys of a text")
    if length is None:
        _of_text(inputs, masking, config)
    else:
        sizes = {
            "B": check_size("--batch", batch),
            "Tq": check_size("--len", length),
            "Tk": check_size("--key-len", length if key_length is None else key_length),
            "V": check_size("--vocab", vocabulary),
        }
        _print(config, sizes, masking.is_set, cross=key_length is not None, lines=[])


def _of_text(inputs: InputFlags, masking: MaskFlags, config: AttentionConfig) -> None:
    """The shapes of a real batch, and what its masks forbid."""
    from attnviz.masks import build

    text = read_sequences(inputs)
    queries, keys = make_batches(inputs, text, config)
    rules, notices = make_rules(masking, queries, keys, config.n_heads)
    source = queries if keys is None else keys
    allowed = build(rules, queries.size, config.n_heads, queries.width, source.width)
    for notice in (*text.notices, *notices):
        remark(notice)
    names = [rule.name for rule in rules]
    seen = None if allowed is None else allowed.numpy()
    lines = mask_facts(names, seen, queries, source)
    sizes = {
        "B": queries.size,
        "Tq": queries.width,
        "Tk": source.width,
        "V": len(queries.vocabulary),
    }
    _print(config, sizes, allowed is not None, cross=keys is not None, lines=lines)


def _print(
    config: AttentionConfig, given: dict[str, int], masked: bool, cross: bool, lines: list[str]
) -> None:
    from attnviz.render.console import make_console
    from attnviz.render.tables import print_trace
    from attnviz.sources.from_config import shadow_steps

    sizes = {
        "B": given["B"],
        "H": config.n_heads,
        "Tq": given["Tq"],
        "Tk": given["Tk"],
        "d_model": config.d_model,
        "d_k": config.d_k,
        "d_v": config.d_v,
        "V": given["V"],
    }
    console = make_console()
    result(*layer_facts(config), *lines, "")
    steps = [step.at(sizes) for step in shadow_steps(config, cross, masked)]
    print_trace(steps, console, sizes=sizes, cross=cross)
