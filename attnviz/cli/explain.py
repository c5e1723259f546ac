"""`attnviz explain`: one query of one head, in numbers, line by line."""

from __future__ import annotations

import json
from typing import Annotated

from attnviz.cli.console import remark, result
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
from attnviz.cli.progress import Work
from attnviz.masks import build
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

    import numpy as np

    from attnviz.collectors.whole_maps import WholeMaps
    from attnviz.render.console import make_console
    from attnviz.render.explain_page import print_explanation
    from attnviz.render.explanation import WANTED
    from attnviz.render.explanation import explain as explain_query
    from attnviz.render.explanation_json import explanation_as_json
    from attnviz.render.query_lookup import find_query

    maps = WholeMaps(WANTED)
    with Work() as work:
        tokens = source.tokens(texts)
        done = source.run(tokens, maps, [layer_number], work.stage)
    attention, queries = maps.result(done), done.queries
    keys = queries if done.keys is None else done.keys
    verdicts = []
    for rule in done.rules:
        allowed = build([rule], queries.size, source.n_heads, queries.width, keys.width)
        assert allowed is not None  # there is a rule
        beside = attention.attention.shape[4] - keys.width  # the layer's own: never forbidden
        verdict = np.pad(allowed, [(0, 0)] * 3 + [(0, beside)], constant_values=True)
        verdicts.append((rule.name, verdict))
    w_o = done.modules[layer_number].w_o if done.modules else None
    explanation = explain_query(
        attention,
        done.steps,
        sequence,
        attention.layer_numbers.index(layer_number),
        head,
        find_query(attention, sequence, query),
        verdicts=verdicts,
        w_o=None if w_o is None else w_o.weight.detach().double().cpu().numpy(),
    )
    for note in (*tokens.notes, *done.notes):
        remark(note)
    if as_json:
        document = explanation_as_json(explanation)
        result(json.dumps(document, ensure_ascii=True, indent=1, allow_nan=False))
    else:
        print_explanation(explanation, make_console())
