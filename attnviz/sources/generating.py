"""Attention of a model that writes: the prompt's and each step's rows, stitched into one map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnviz.config import check_size
from attnviz.errors import ConfigError, InputError, printable
from attnviz.sources.capturing import Call, capture
from attnviz.sources.loading import LoadedModel, quiet
from attnviz.sources.towers import tower_names


@dataclass(frozen=True)
class Writing:
    """How to go on with a text.

    `n_tokens` at most are written. `temperature` 0 takes the likeliest token each time (greedy);
    above it, tokens are drawn from softmax(logits / temperature) over the whole vocabulary, from
    `seed`. `advance` is called after each token.
    """

    n_tokens: int
    temperature: float = 0.0
    seed: int = 0
    advance: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        check_size("--generate", self.n_tokens)
        if not 0 <= self.temperature <= 100:  # NaN is not
            raise ConfigError(f"--temperature is {self.temperature}; 0 (greedy) to 100 will do")


@dataclass(frozen=True)
class Written:
    """The tokens of one text and its continuation, and each layer's attention over all of them.

    `ids` are those of the decoder; the first `n_prompt` were given. A step looks at the tokens
    before it, so that the last token that was drawn, which no step read, is left out.
    """

    ids: tuple[int, ...]
    n_prompt: int
    calls: tuple[Call, ...]


def write(
    loaded: LoadedModel, tower: str, ids: Sequence[int], layers: Sequence[int], how: Writing
) -> Written:
    """Go on with one text, and stitch what the decoder's tower looked at on the way.

    Raises `InputError` when the model writes nothing, or cannot.
    """
    network = loaded.network
    if not (hasattr(network, "generate") and network.can_generate()):
        raise InputError(f"{loaded.source} cannot generate: it has no language head")
    only = [tower] if len(tower_names(network)) > 1 else None
    given = torch.tensor([list(ids)], device=loaded.device)
    options: dict[str, Any] = {"do_sample": how.temperature > 0}
    if how.temperature > 0:
        options |= {"temperature": float(how.temperature), "top_k": 0, "top_p": 1.0}
    pad = next((n for n in (loaded.tokenizer.pad_token_id, loaded.tokenizer.eos_token_id) if n), 0)
    devices = [loaded.device] if loaded.device.type == "cuda" else []
    try:
        with (
            torch.no_grad(),
            torch.random.fork_rng(devices),
            quiet(),
            capture(network, layers, towers=only, trace=True) as captured,
        ):
            torch.manual_seed(how.seed)
            # one more than is shown: only what a later step reads has a row
            out = network.generate(
                input_ids=given,
                attention_mask=torch.ones_like(given),
                max_new_tokens=how.n_tokens + 1,
                num_beams=1,
                repetition_penalty=1.0,
                use_cache=True,
                pad_token_id=pad,
                streamer=_Steps(how.advance),
                **options,
            )
    except (ValueError, RuntimeError) as error:  # sampling from NaN, positions that ran out
        raise InputError(f"{loaded.source} cannot go on: {printable(error, 200)}") from error
    both = getattr(loaded.config, "is_encoder_decoder", False)
    n_prompt = 1 if both else len(ids)
    tokens = tuple(out[0].tolist())[:-1]
    tower = tower if only else captured.towers[0]
    steps = [captured.of(tower, step) for step in sorted({c.step for c in captured.calls})]
    calls = tuple(_stitched(list(column), tower == "cross") for column in zip(*steps, strict=True))
    if len(tokens) != calls[0].weights.shape[2]:
        rows = calls[0].weights.shape[2]
        raise InputError(f"{loaded.source} wrote {len(tokens)} tokens in {rows} rows of attention")
    return Written(tokens, n_prompt, calls)


class _Steps:
    """What `generate` calls with each token; the first time with the prompt."""

    def __init__(self, advance: Callable[[], None]) -> None:
        self._advance = advance

    def put(self, tokens: Tensor) -> None:
        if tokens.ndim == 1:
            self._advance()

    def end(self) -> None:
        """Nothing is left to do."""


def _stitched(steps: Sequence[Call], crosses: bool) -> Call:
    """One layer's calls as one: rows one below the other, each over the keys that its cache held.

    A cache that slides has dropped the oldest keys, so that a step's keys are the last ones up to
    its own query. All later keys, and those that were dropped, are forbidden.
    """
    first = steps[0]
    batch, heads = first.weights.shape[:2]
    rows = sum(call.weights.shape[2] for call in steps)
    columns = first.weights.shape[3] if crosses else rows
    weights = first.weights.new_zeros(batch, heads, rows, columns)
    allowed = torch.zeros(batch, 1, rows, columns, dtype=torch.bool)
    start = 0
    for call in steps:
        queries, keys = call.weights.shape[2:]
        end = start + queries
        last = columns if crosses else end
        weights[:, :, start:end, last - keys : last] = call.weights
        allowed[:, :, start:end, last - keys : last] = (
            True if call.allowed is None else call.allowed
        )
        start = end
    return Call(
        first.name,
        first.tower,
        first.layer,
        0,
        weights,
        allowed,
        source=first.source,
        steps=first.steps,
    )


def side_by_side(texts: Sequence[Sequence[Call]]) -> list[Call]:
    """The layers of several texts that ran one by one, as those of a batch padded on the right."""
    joined = []
    for column in zip(*texts, strict=True):
        first = column[0]
        rows, columns = (max(call.weights.shape[axis] for call in column) for axis in (2, 3))
        weights = first.weights.new_zeros(len(column), first.weights.shape[1], rows, columns)
        allowed = torch.zeros(len(column), 1, rows, columns, dtype=torch.bool)
        for b, call in enumerate(column):
            queries, keys = call.weights.shape[2:]
            weights[b, :, :queries, :keys] = call.weights[0]
            assert call.allowed is not None  # stitching has made one
            allowed[b, :, :queries, :keys] = call.allowed[0]
        joined.append(replace(first, weights=weights, allowed=allowed))
    return joined
