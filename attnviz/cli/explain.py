"""`attnviz explain`: one query of one head, in numbers, line by line."""

from __future__ import annotations

import json
from typing import Annotated

from attnviz.cli.console import remark, result
from attnviz.cli.inputs import make_batches, make_rules, read_sequences
from attnviz.cli.options import OUTPUT, InputFlags, LayerFlags, MaskFlags, choose_one, flag, spread

EXAMPLES = """Examples:

attnviz explain "The cat sat" --d-model 8 --n-heads 2 --query sat --causal

attnviz explain "猫坐在垫子上" --head 3 --query 猫"""


@spread
def explain(
    inputs: InputFlags,
    layer: LayerFlags,
    masking: MaskFlags,
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
    config = layer.config()
    choose_one("--head", head, config.n_heads, "heads")
    text = read_sequences(inputs)
    choose_one("--sequence", sequence, len(text.queries), "sequences")

    from attnviz.masks import build
    from attnviz.render import explain as numbers
    from attnviz.render.console import make_console
    from attnviz.render.explain_page import print_explanation
    from attnviz.sources.from_config import from_config

    queries, keys = make_batches(inputs, text, config)
    rules, notices = make_rules(masking, queries, keys, config.n_heads)
    done = from_config(config, queries, keys, rules, numbers.WANTED)
    source = queries if keys is None else keys
    size = (queries.size, config.n_heads, queries.width, source.width)
    verdicts = []
    for rule in rules:
        allowed = build([rule], *size)
        assert allowed is not None  # there is a rule
        verdicts.append((rule.name, allowed.numpy()))
    explanation = numbers.explain(
        done.result,
        done.steps,
        sequence,
        0,
        head,
        numbers.find_query(done.result, sequence, query),
        verdicts=verdicts,
        w_o=done.layer.w_o.weight.detach().double().cpu().numpy(),
    )
    for notice in (*text.notices, *notices):
        remark(notice)
    if as_json:
        document = numbers.explanation_as_json(explanation)
        result(json.dumps(document, ensure_ascii=True, indent=1, allow_nan=False))
    else:
        print_explanation(explanation, make_console())
