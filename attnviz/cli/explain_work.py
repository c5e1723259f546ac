"""The work of `attnviz explain`: one pass, and one query of one head in numbers."""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt

from attnviz.cli.progress import Work
from attnviz.cli.streams import result, warn
from attnviz.collectors.whole_maps import WholeMaps
from attnviz.masks import build
from attnviz.pipeline import Pass, Source
from attnviz.render.console import make_console
from attnviz.render.explain_page import print_explanation
from attnviz.render.explanation import WANTED
from attnviz.render.explanation import explain as explain_query
from attnviz.render.explanation_json import explanation_as_json
from attnviz.render.query_lookup import find_query
from attnviz.tokens import Texts


def explain_texts(
    source: Source,
    texts: Texts,
    layer_and_head: tuple[int, int],
    sequence: int,
    query: str,
    as_json: bool,
) -> None:
    """Run `texts`, and print every number of one query, or all digits as JSON."""
    layer, head = layer_and_head
    maps = WholeMaps(WANTED)
    with Work() as work:
        tokens = source.tokens(texts)
        done = source.run(tokens, maps, [layer], work.stage)
    attention = maps.result(done)
    w_o = done.modules[layer].w_o if done.modules else None
    explanation = explain_query(
        attention,
        done.steps,
        sequence,
        attention.layer_numbers.index(layer),
        head,
        find_query(attention, sequence, query),
        verdicts=_verdicts(done, source.n_heads, attention.attention.shape[4]),
        w_o=None if w_o is None else w_o.weight.detach().double().cpu().numpy(),
    )
    for note in (*tokens.notes, *done.notes):
        warn(note)
    if as_json:
        document = explanation_as_json(explanation)
        result(json.dumps(document, ensure_ascii=True, indent=1, allow_nan=False))
    else:
        print_explanation(explanation, make_console())


def _verdicts(done: Pass, n_heads: int, n_columns: int) -> list[tuple[str, npt.NDArray[np.bool_]]]:
    """What each mask allows, by its name: bool `[B 1|H Tq Tk]`."""
    queries, keys = done.queries, done.queries if done.keys is None else done.keys
    verdicts = []
    for rule in done.rules:
        allowed = build([rule], queries.size, n_heads, queries.width, keys.width)
        assert allowed is not None  # there is a rule
        beside = n_columns - keys.width  # keys of the layer's own are never forbidden
        verdict = np.pad(allowed, [(0, 0)] * 3 + [(0, beside)], constant_values=True)
        verdicts.append((rule.name, verdict))
    return verdicts
