"""`attnviz explain`: one query of one head, in numbers, line by line."""

from __future__ import annotations

from typing import Annotated

from attnviz.cli.inputs import read_texts
from attnviz.cli.open_source import SourceRequest, open_source
from attnviz.cli.options import (
    OUTPUT,
    InputFlags,
    LayerFlags,
    MaskFlags,
    ModelFlags,
    SourceFlags,
    choose_one,
    flag,
    spread,
)
from attnviz.pipeline import n_layers

EXAMPLES = """Examples:

attnviz explain "The cat sat" --d-model 8 --n-heads 2 --query sat --causal

attnviz explain "猫坐在垫子上" --head 3 --query 猫"""


@spread
def explain(
    inputs: InputFlags,
    layer: LayerFlags,
    origin: SourceFlags,
    pretrained: ModelFlags,
    masking: MaskFlags,
    layer_number: Annotated[
        int, flag("--layer", help="Which layer, from 0.", panel=OUTPUT, metavar="L")
    ] = 0,
    head: Annotated[int, flag(help="Which head, from 0.", panel=OUTPUT, metavar="H")] = 0,
    query: Annotated[
        str,
        flag(
            help="Which query: a token, cat#2 for the second cat, or a place, -1 for the last.",
            panel=OUTPUT,
            metavar="TOKEN",
        ),
    ] = "-1",
    sequence: Annotated[int, flag(help="Which sequence, from 0.", panel=OUTPUT, metavar="N")] = 0,
    as_json: Annotated[
        bool,
        flag("--json", help="Print all digits, as JSON.", panel=OUTPUT),
    ] = False,
) -> None:
    """Explain one query of one head: every number from its vector to the head's output."""
    source = open_source(SourceRequest(inputs, layer, masking, origin, pretrained))
    choose_one("--layer", layer_number, n_layers(source), "layers")
    choose_one("--head", head, source.n_heads, "heads")
    texts = read_texts(inputs, source)
    choose_one("--sequence", sequence, len(texts.queries) or 1, "sequences")
    from attnviz.cli.explain_work import explain_texts

    explain_texts(source, texts, (layer_number, head), sequence, query, as_json)
