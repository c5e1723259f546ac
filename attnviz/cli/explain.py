"""`attnviz explain`: one query of one head, in numbers, line by line."""

from __future__ import annotations

import json
from typing import Annotated

from attnviz.cli.console import remark, result
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
from attnviz.cli.source import open_source
from attnviz.masks import build

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
    source = open_source(inputs, layer, masking, origin, pretrained)
    choose_one("--layer", layer_number, source.n_layers, "layers")
    choose_one("--head", head, source.n_heads, "heads")
    text = source.read()
    choose_one("--sequence", sequence, len(text.queries), "sequences")

    import numpy as np

    from attnviz.render import explain as numbers
    from attnviz.render.console import make_console
    from attnviz.render.explain_page import print_explanation

    with Work() as work:
        done = source.compute(text, numbers.WANTED, [layer_number], work.stage)
    run, queries = done.run, done.queries
    keys = queries if done.keys is None else done.keys
    verdicts = []
    for rule in done.rules:
        allowed = build([rule], queries.size, source.n_heads, queries.width, keys.width)
        assert allowed is not None  # there is a rule
        beside = run.result.attention.shape[4] - keys.width  # the layer's own keys: never forbidden
        verdict = np.pad(allowed, [(0, 0)] * 3 + [(0, beside)], constant_values=True)
        verdicts.append((rule.name, verdict))
    w_o = run.layers[layer_number].w_o if run.layers else None
    explanation = numbers.explain(
        run.result,
        run.steps,
        sequence,
        run.result.layer_numbers.index(layer_number),
        head,
        numbers.find_query(run.result, sequence, query),
        verdicts=verdicts,
        w_o=None if w_o is None else w_o.weight.detach().double().cpu().numpy(),
    )
    for notice in (*text.notices, *done.notices):
        remark(notice)
    if as_json:
        document = numbers.explanation_as_json(explanation)
        result(json.dumps(document, ensure_ascii=True, indent=1, allow_nan=False))
    else:
        print_explanation(explanation, make_console())
