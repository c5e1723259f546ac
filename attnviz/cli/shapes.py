"""`attnviz shapes`: the tensor flow, step by step, for any size, in the memory of a small one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from attnviz.cli.console import remark, result
from attnviz.cli.facts import Fact, layer_facts, mask_facts, print_facts
from attnviz.cli.inputs import make_batches, make_rules, read_sequences
from attnviz.cli.options import INPUT, OUTPUT, InputFlags, LayerFlags, MaskFlags, spread
from attnviz.config import AttentionConfig, check_size, choice
from attnviz.errors import ConfigError

FORMATS = ("table", "json", "markdown", "mermaid")

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
    source: Annotated[
        bool,
        typer.Option("--source", help="Name each step's line of code.", rich_help_panel=OUTPUT),
    ] = False,
    expand: Annotated[
        bool,
        typer.Option(
            "--expand", help="Keys and values in rows of their own.", rich_help_panel=OUTPUT
        ),
    ] = False,
    form: Annotated[
        str,
        typer.Option("--format", help="table, json, markdown or mermaid.", rich_help_panel=OUTPUT),
    ] = "table",
    as_json: Annotated[
        bool, typer.Option("--json", help="As --format json.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Show every tensor on the way through the layer: its shape, cost and meaning."""
    config = layer.config()
    form = "json" if as_json else choice("--format", form, FORMATS)
    if length is None:
        if key_length is not None:
            raise ConfigError("--key-len goes with --len; --keys gives the keys of a text")
        flow = _of_text(inputs, masking, config)
    else:
        named = [flag for flag, given in (("TEXT", inputs.text), ("--file", inputs.file)) if given]
        if named:
            raise ConfigError(
                f"--len and {named[0]} both give the number of queries; give one of them"
            )
        sizes = {
            "B": check_size("--batch", batch),
            "Tq": check_size("--len", length),
            "Tk": check_size("--key-len", length if key_length is None else key_length),
            "V": check_size("--vocab", vocabulary),
        }
        flow = Flow(config, sizes, masking.is_set, cross=key_length is not None)
    _print(flow, form, source, expand)


@dataclass(frozen=True)
class Flow:
    """A layer and the sizes that run through it; `facts` are lines about a real batch."""

    config: AttentionConfig
    lengths: Mapping[str, int]
    masked: bool
    cross: bool
    facts: Sequence[Fact] = ()

    @property
    def sizes(self) -> dict[str, int]:
        """Every axis name's length, in the order in which they are explained."""
        config, given = self.config, self.lengths
        layer = {"d_model": config.d_model, "d_k": config.d_k, "d_v": config.d_v}
        lengths = {"Tq": given["Tq"], "Tk": given["Tk"]}
        return {"B": given["B"], "H": config.n_heads, **lengths, **layer, "V": given["V"]}


def _of_text(inputs: InputFlags, masking: MaskFlags, config: AttentionConfig) -> Flow:
    """The flow of a real batch, and what its masks forbid."""
    from attnviz.masks import build

    text = read_sequences(inputs)
    queries, keys = make_batches(inputs, text, config)
    rules, notices = make_rules(masking, queries, keys, config.n_heads)
    source = queries if keys is None else keys
    allowed = build(rules, queries.size, config.n_heads, queries.width, source.width)
    for notice in (*text.notices, *notices):
        remark(notice)
    lengths = {
        "B": queries.size,
        "Tq": queries.width,
        "Tk": source.width,
        "V": len(queries.vocabulary),
    }
    seen = None if allowed is None else allowed.numpy()
    facts = mask_facts([rule.name for rule in rules], seen, queries, source)
    return Flow(config, lengths, allowed is not None, keys is not None, facts)


def _print(flow: Flow, form: str, source: bool, expand: bool) -> None:
    from attnviz.render import tables
    from attnviz.render.console import make_console
    from attnviz.sources.from_config import shadow_steps

    sizes = flow.sizes
    steps = [step.at(sizes) for step in shadow_steps(flow.config, flow.cross, flow.masked)]
    if form == "json":
        document = tables.trace_as_json(steps, sizes=sizes, config=flow.config.as_dict())
        result(json.dumps(document, indent=1))
    elif form == "markdown":
        result(
            tables.trace_as_markdown(steps, source=source, expand=expand, cross=flow.cross).rstrip()
        )
    elif form == "mermaid":
        result(tables.trace_as_mermaid(steps).rstrip())
    else:
        console = make_console()
        print_facts(console, [*layer_facts(flow.config), *flow.facts])
        result("")
        tables.print_trace(
            steps, console, sizes=sizes, source=source, expand=expand, cross=flow.cross
        )
