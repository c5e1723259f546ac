"""Attention of a pretrained model on texts: one forward pass, watched, or a text gone on with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnviz.config import choice
from attnviz.errors import ConfigError, InputError, printable
from attnviz.machine import require_memory
from attnviz.merging import hide_special as without_special
from attnviz.merging import merge_words, with_pieces
from attnviz.result import from_batches
from attnviz.sources.attention_modules import NO_TEXT, TOWERS
from attnviz.sources.capturing import TAPS, Call, capture
from attnviz.sources.encoding import Encoded, Say, encode, shifted_right
from attnviz.sources.gathering import KEEPABLE, SCORES, kept, maps, mask_names, remarks
from attnviz.sources.generating import Writing, side_by_side, write
from attnviz.sources.loading import LoadedModel, blaming, load_model
from attnviz.sources.run import Run
from attnviz.sources.subwords import pieces_of, readable, respelled
from attnviz.sources.towers import choose_layers, choose_tower, members, n_heads, tower_names
from attnviz.tokens import Batch
from attnviz.wording import noun_for


@dataclass(frozen=True)
class Wanted:
    """What of a model's attention is wanted, and how it is shown; see `from_pretrained`.

    `advance` is called when a layer of the tower has run.
    """

    attention: str | None = None
    layers: Collection[int] | None = None
    keep: Collection[str] = ()
    max_len: int | None = None
    pad_side: str | None = None
    raw_tokens: bool = False
    writing: Writing | None = None
    advance: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        for name in self.keep:
            choice("--keep", name, KEEPABLE)
        if self.keep and self.writing is not None:
            raise ConfigError("--keep and --generate: nothing but weights is kept of the steps")


@dataclass(frozen=True)
class ModelRun:
    """A run with the batches that it ran on; `keys` is None where queries look at themselves.

    `n_prompt` are the tokens of each query text that were given, `answers` the texts that were
    written after them; () where nothing was.
    """

    run: Run
    queries: Batch
    keys: Batch | None
    n_prompt: tuple[int, ...] = ()
    answers: tuple[str, ...] = ()


def from_pretrained(
    model: LoadedModel | str,
    texts: Sequence[str],
    *,
    keys: Sequence[str] | None = None,
    attention: str | None = None,
    layers: Collection[int] | None = None,
    keep: Collection[str] = (),
    max_len: int | None = None,
    pad_side: str | None = None,
    words: bool = False,
    hide_special: bool = False,
    raw_tokens: bool = False,
    generate: int | None = None,
    temperature: float = 0.0,
    seed: int = 0,
    say: Say = lambda _: None,
) -> Run:
    """Run `texts` through a model as one padded batch, and return what its layers attended to.

    Args:
        model: a `LoadedModel`, or what `load_model` takes.
        texts: those of the queries. For `attention` "decoder" or "cross" of an encoder–decoder
            they are what the decoder writes, and `keys` what its encoder reads; with `generate`
            they are what the encoder reads.
        attention: which tower: encoder, decoder, cross, text. May be left out where there is one;
            an encoder–decoder shows its encoder, or its cross attention where `keys` are given.
        layers: which layers to keep, numbers from 0; None keeps all. The others take no memory.
        keep: names of `KEEPABLE` whose tensors go into the result.
        max_len: cut longer texts to this many tokens.
        pad_side: the tokenizer's own side when left out.
        words, hide_special: `merge_words` and `hide_special` of `attnviz.merging` are applied.
        raw_tokens: name tokens as the tokenizer writes them (`Ġworld`), not decoded (`world`).
        generate: go on with each text by this many tokens, and show prompt and answer in one map.
        temperature, seed: of `generate`; temperature 0 takes the likeliest token each time.
        say: called with remarks for the person.

    Rows that may look at nothing are zeros; rows of padding mean nothing. A row sums to less than
    1 where the model has sinks, which is said and never made up for.

    Raises:
        ConfigError: no such tower or layer, or options that do not go together.
        InputError: no tokenizer, texts too long, layers whose maps differ in size, no attention to
            be seen, or too little memory for it; each in one line.
    """
    writing = None if generate is None else Writing(generate, temperature, seed)
    wanted = Wanted(attention, layers, keep, max_len, pad_side, raw_tokens, writing)
    if not isinstance(model, LoadedModel):
        model = load_model(model, generates=writing is not None)
    run = run_model(model, texts, keys, wanted, say).run
    if hide_special:
        run = replace(run, result=without_special(run.result))
    return replace(run, result=merge_words(run.result)) if words else run


def run_model(
    loaded: LoadedModel,
    texts: Sequence[str],
    keys: Sequence[str] | None = None,
    wanted: Wanted = Wanted(),
    say: Say = lambda _: None,
) -> ModelRun:
    """What `from_pretrained` does, with the batches beside the run."""
    if loaded.tokenizer is None:
        if loaded.processor is not None:
            raise InputError(
                f"{loaded.source} reads no text; --image FILE or --audio FILE is for it"
            )
        raise InputError(f"{loaded.source} has no tokenizer that could be read")
    if wanted.writing is not None:
        seen = _written(loaded, texts, keys, wanted, say)
    else:
        seen = _read(loaded, texts, keys, wanted, say)
    queries, others = seen.queries, seen.keys if seen.tower == "cross" else None
    source = queries if others is None else others
    of_queries = queries.batch(tokens_of(loaded, queries, wanted))
    of_keys = None if others is None else others.batch(tokens_of(loaded, others, wanted))
    known = pieces_of(loaded.tokenizer, queries, seen.n_prompt)
    attention, allowed = maps(seen.calls)
    result = from_batches(
        attention,
        allowed,
        of_queries,
        of_queries if of_keys is None else of_keys,
        masks=mask_names(seen.calls, queries.valid, source.valid, seen.tower),
        config=with_pieces(
            {
                "model": loaded.name,
                "model_type": loaded.config.model_type,
                "attention": seen.tower,
                "dtype": str(seen.calls[0].weights.dtype).removeprefix("torch."),
            },
            known,
            known if others is None else pieces_of(loaded.tokenizer, others),
        ),
        source=f"{loaded.name}, {seen.tower}",
        layers=tuple(call.layer for call in seen.calls),
        kept=kept(seen.calls, wanted.keep),
        n_prompt=seen.n_prompt,
    )
    for remark in remarks(result):
        say(remark)
    answers = tuple(
        str(loaded.tokenizer.decode(list(ids[n:])))
        for ids, n in zip(queries.ids, seen.n_prompt, strict=bool(seen.n_prompt))
    )
    run = Run(result, tuple(seen.calls[0].steps))
    return ModelRun(run, of_queries, of_keys, seen.n_prompt, answers)


# ── running ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Seen:
    """What one tower did, layer by layer. `keys` are the encoder's, of an encoder–decoder."""

    tower: str
    calls: Sequence[Call]
    queries: Encoded
    keys: Encoded | None
    n_prompt: tuple[int, ...] = field(default=())


def _read(
    loaded: LoadedModel, texts: Sequence[str], keys: Sequence[str] | None, wanted: Wanted, say: Say
) -> _Seen:
    """One forward pass over all texts."""
    tower = choose_tower(loaded.network, loaded.source, wanted.attention, keys is not None)
    numbers = choose_layers(loaded.network, tower, wanted.layers)
    queries, others = encoded_texts(loaded, tower, texts, keys, wanted, say)
    source = others if others is not None and tower == "cross" else queries
    _require_maps(loaded.network, tower, len(numbers), len(texts), queries.width, source.width)
    taps = set(wanted.keep) & set(TAPS) | ({"q", "k"} if set(wanted.keep) & set(SCORES) else set())
    known = tower_names(loaded.network)
    only = [tower] if len(known) > 1 else None
    with ExitStack() as hooks, torch.no_grad():
        captured = hooks.enter_context(capture(loaded.network, numbers, taps, only, trace=True))
        if wanted.advance is not None:
            for module in members(loaded.network, tower):
                hook = module.register_forward_hook(partial(_done, wanted.advance))
                hooks.callback(hook.remove)
        forward(loaded, tower, queries, others, say)
    if only is None and captured.towers:  # its mask tells what it is
        tower = captured.towers[0]
    calls = captured.of(tower) if captured.calls else []
    _require_layers(loaded, numbers, calls, wanted.layers is None, say)
    return _Seen(tower, calls, queries, others)


def _require_layers(
    loaded: LoadedModel, numbers: Sequence[int], calls: Sequence[Call], any_will_do: bool, say: Say
) -> None:
    """Raise `InputError` where a layer that was asked for has shown no weights.

    Hybrid models have layers that mix tokens without softmax (linear attention).
    """
    seen = {call.layer for call in calls}
    missing = [number for number in numbers if number not in seen]
    if not missing:
        return
    which = f"{noun_for(len(missing), 'layer')} {','.join(map(str, missing))} of {loaded.source}"
    if not seen:
        raise InputError(f"{which} computed no attention weights that could be seen")
    if any_will_do:
        say(f"{which} computed no attention weights")
        return
    shown = ",".join(map(str, sorted(seen)))
    raise InputError(
        f"{which} computed no attention weights; --layers {shown} leaves out what has none"
    )


def _done(advance: Callable[[], None], *_: object) -> None:
    """A forward hook that changes nothing."""
    advance()


def _written(
    loaded: LoadedModel, texts: Sequence[str], keys: Sequence[str] | None, wanted: Wanted, say: Say
) -> _Seen:
    """Each text by itself, gone on with; then all maps side by side, padded on the right."""
    assert wanted.writing is not None
    if keys is not None:
        raise ConfigError("--keys and --generate: the model writes the queries; give it TEXT alone")
    both = bool(getattr(loaded.config, "is_encoder_decoder", False))
    tower = choose_tower(loaded.network, loaded.source, wanted.attention, both)
    if tower not in ("decoder", "cross"):
        raise ConfigError(f"--generate: {loaded.source} shows its {tower}, which writes nothing")
    numbers = choose_layers(loaded.network, tower, wanted.layers)
    given = _checked(loaded, texts, replace(wanted, pad_side="right"), say)
    longest = given.width + (0 if both else wanted.writing.n_tokens)
    room = _longest(loaded)
    learns = learned_positions(loaded.network) is not None
    if room is not None and longest > room and not both and learns:
        fits = (
            f"--generate {room - given.width} fits" if room > given.width else "--max-len cuts it"
        )
        raise InputError(
            f"--generate {wanted.writing.n_tokens} after {given.width:,} tokens: {loaded.source} "
            f"has learned {room:,} positions; {fits}"
        )
    rows = wanted.writing.n_tokens + 1 if both else longest
    _require_maps(loaded.network, tower, len(numbers), len(texts), rows, longest)
    done = [write(loaded, tower, ids, numbers, wanted.writing) for ids in given.ids]
    calls = side_by_side([one.calls for one in done])
    queries = respelled(loaded.tokenizer, [one.ids for one in done], "right")
    n_prompt = tuple(one.n_prompt for one in done)
    return _Seen(tower, calls, queries, given if both else None, n_prompt)


def encoded_texts(
    loaded: LoadedModel,
    tower: str,
    texts: Sequence[str],
    keys: Sequence[str] | None,
    wanted: Wanted,
    say: Say,
) -> tuple[Encoded, Encoded | None]:
    """The queries' texts and, where a decoder looks at an encoder, the encoder's."""
    both = getattr(loaded.config, "is_encoder_decoder", False)
    reads = both and tower in ("decoder", "cross")
    if not reads:
        if keys is not None:
            raise ConfigError(f"--keys: the {tower} of {loaded.source} looks at its own text alone")
        return _checked(loaded, texts, wanted, say), None
    if keys is None:
        raise ConfigError(
            f"--attention {tower}: {loaded.source} needs a text for its encoder as well: give it "
            "with --keys (TEXT is what the decoder writes), or let it write with --generate"
        )
    if len(keys) not in (1, len(texts)):
        raise InputError(f"there are {len(texts)} texts and {len(keys)} --keys; give as many, or 1")
    keys = list(keys) * (len(texts) // len(keys))
    tokenizer = loaded.tokenizer
    start = loaded.config.decoder_start_token_id
    start = tokenizer.bos_token_id if start is None else start
    queries = encode(tokenizer, texts, wanted.max_len, wanted.pad_side, say)
    name = str(tokenizer.convert_ids_to_tokens(start))
    shifted = shifted_right(queries, start, tokenizer.eos_token_id, name)
    return shifted, _checked(loaded, keys, wanted, say)


def _checked(loaded: LoadedModel, texts: Sequence[str], wanted: Wanted, say: Say) -> Encoded:
    """Encoded texts.

    Raises `InputError` where one has more tokens than positions were learned, or other tokens.
    """
    encoded = encode(loaded.tokenizer, texts, wanted.max_len, wanted.pad_side, say)
    _require_known(loaded, encoded)
    longest = _longest(loaded)
    if longest is not None and encoded.width > longest:
        at = int(encoded.lengths.argmax())
        has = f"sequence {at} has {encoded.width:,} tokens"
        if learned_positions(loaded.network) is not None:
            raise InputError(
                f"{has}, and {loaded.source} has learned {longest:,} positions; "
                f"--max-len {longest} cuts it"
            )
        say(f"{has}, more than the {longest:,} that {loaded.source} was made for")
    return encoded


def _require_known(loaded: LoadedModel, encoded: Encoded) -> None:
    """Raise `InputError` for tokens that the model has no vector for."""
    embed = getattr(loaded.network, "get_input_embeddings", lambda: None)
    try:
        rows = getattr(embed(), "num_embeddings", None)
    except NotImplementedError:  # a model with no table of tokens
        return
    for ids, raw in zip(encoded.ids, encoded.raw, strict=True):
        for number, token in zip(ids, raw, strict=True):
            if rows is not None and number >= rows:
                raise InputError(
                    f"token {printable(token, 40)} has number {number}, and {loaded.source} knows "
                    f"{rows:,} tokens; is that another model's tokenizer?"
                )


def _longest(loaded: LoadedModel) -> int | None:
    """How many tokens the model, or its tokenizer, was made for; None where neither says it."""
    known = (
        learned_positions(loaded.network),
        getattr(loaded.config, "max_position_embeddings", None),
        loaded.tokenizer.model_max_length,
    )
    return min((n for n in known if n is not None and 0 < n < 10**9), default=None)


def learned_positions(network: nn.Module) -> int | None:
    """How many positions of a text the model has learned; None where it reckons with any number.

    Some families leave the first rows of their table free: RoBERTa up to that of its padding, OPT
    and BART an offset of 2.
    """
    tables = _position_tables(network)
    return min((t.num_embeddings - _rows_before(t) for t in tables), default=None)


def _rows_before(table: nn.Embedding) -> int:
    """The rows of a table of positions that stand before that of a text's first token."""
    padding = table.padding_idx
    return int(getattr(table, "offset", 0 if padding is None else padding + 1))


def _position_tables(network: nn.Module) -> list[nn.Embedding]:
    """The tables with a row for each position of a text."""
    names = ("position_embedding", "embed_position", "wpe", "pos_embed")
    return [
        module
        for name, module in network.named_modules()
        if isinstance(module, nn.Embedding)
        and any(part in name for part in names)
        and not any(pattern.search(name) for tower, pattern in TOWERS if tower in NO_TEXT)
    ]


def _require_maps(
    network: nn.Module, tower: str, layers: int, batch: int, queries: int, keys: int
) -> None:
    """Raise `InputError` when the maps would not fit in memory."""
    heads = n_heads(network, tower)
    cells = batch * queries * keys
    item = max(4, next(iter(network.parameters())).element_size())
    # the maps that are kept with their masks; the scores and weights of one layer, several times
    require_memory(
        layers * cells * (heads * item + 1) + 4 * cells * heads * item,
        f"attention for {batch} × {layers} layers × {heads} heads × {queries} queries × "
        f"{keys} keys",
        "keep fewer layers with --layers, or cut the text with --max-len",
    )


def forward(
    loaded: LoadedModel, tower: str, queries: Encoded, others: Encoded | None, say: Say
) -> None:
    """Run the part of the model that holds the tower.

    Raises `InputError` in one line when the model cannot.
    """
    with blaming(loaded, "this text"):
        _forward(loaded, tower, queries, others, say)


def _forward(
    loaded: LoadedModel, tower: str, queries: Encoded, others: Encoded | None, say: Say
) -> None:
    network = loaded.network
    if others is not None:
        given = _inputs(loaded, network, others, say)
        network(**given, **_inputs(loaded, network, queries, say, "decoder_"), use_cache=False)
    elif getattr(loaded.config, "is_encoder_decoder", False):
        encoder = network.get_encoder()
        encoder(**_inputs(loaded, encoder, queries, say))
    elif tower == "text" and hasattr(network, "get_text_features"):
        network.get_text_features(**_inputs(loaded, network.get_text_features, queries, say))
    else:
        accepts = inspect.signature(network.forward).parameters
        cache = {"use_cache": False} if "use_cache" in accepts else {}
        network(**_inputs(loaded, network, queries, say), **cache)


def _inputs(
    loaded: LoadedModel, target: Any, encoded: Encoded, say: Say, prefix: str = ""
) -> dict[str, Tensor]:
    """What `target` takes: ids, mask, segments, and positions where padding would shift them."""
    accepts = inspect.signature(getattr(target, "forward", target)).parameters
    if prefix + "input_ids" not in accepts:
        raise InputError(
            f"{loaded.source} reads no text, it takes {printable(next(iter(accepts)))}; "
            "--image FILE or --audio FILE is for it"
        )
    valid = encoded.valid
    arrays = {
        "input_ids": encoded.padded(encoded.ids, encoded.pad_id),
        "attention_mask": valid.astype(np.int64),
    }
    segments = "token_type_ids" in getattr(loaded.tokenizer, "model_input_names", ())
    if segments and not prefix and "token_type_ids" in accepts:
        arrays["token_type_ids"] = encoded.padded(encoded.types, 0)
    tables = _position_tables(loaded.network)
    # RoBERTa numbers what is no padding, from the row after that of its padding on
    padding = [table.padding_idx for table in tables if table.padding_idx is not None]
    if encoded.pad_side == "left" and not valid.all() and encoded.pad_id not in padding:
        if prefix + "position_ids" in accepts and not padding:
            arrays["position_ids"] = np.maximum(valid.cumsum(1) - 1, 0)
        elif tables:
            say(
                f"{loaded.source} counts positions from the padding on the left; --pad-side right "
                "gives each text the positions that it has alone"
            )
    return {
        prefix + name: torch.from_numpy(array).to(loaded.device) for name, array in arrays.items()
    }


# ── how it is shown ──────────────────────────────────────────────────────────────────────────


def tokens_of(loaded: LoadedModel, encoded: Encoded, wanted: Wanted) -> Sequence[tuple[str, ...]]:
    return encoded.raw if wanted.raw_tokens else readable(loaded.tokenizer, encoded)
