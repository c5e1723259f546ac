"""From flags to a corpus and to the opening of the source that it is measured with."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from attnviz.cli.inputs import is_piped
from attnviz.cli.options import (
    InputFlags,
    LayerFlags,
    MaskFlags,
    ModelFlags,
    SourceFlags,
)
from attnviz.cli.stats_flags import CorpusFlags
from attnviz.config import DEVICES, DTYPES
from attnviz.corpus.documents import Corpus, Document, find_files, has_fields
from attnviz.errors import ConfigError, InputError, printable
from attnviz.machine import require_memory
from attnviz.masks import FILE, MASKS
from attnviz.tokens import TOKENIZERS, make_vocabulary

if TYPE_CHECKING:
    from attnviz.corpus.opening import Opening


def make_corpus(flags: CorpusFlags, seed: int, scratch: Path) -> Corpus:
    """The corpus that the flags name; what comes by a pipe or as TEXT is put into `scratch`."""
    given = list(flags.file or ())
    if given.count("-") > 1:
        raise ConfigError("standard input, -, can be read once")
    InputFlags(encoding=flags.encoding)  # says so where there is none such
    if flags.sample is not None and seed < 0:
        raise ConfigError(f"--seed is {seed}; --sample draws with one of 0 or more")
    names: dict[Path, str] = {}
    paths: list[Path] = []
    if flags.text:
        spool = scratch / "text.jsonl"
        lines = [json.dumps(_decoded(text)) + "\n" for text in flags.text]
        spool.write_text("".join(lines), encoding="ascii")
        names[spool] = "TEXT"
        paths.append(spool)
    if not given and not flags.text and not flags.gold:
        if not is_piped():
            raise InputError(
                "there is nothing to measure: give --file FILE, TEXT, --saved FILE or a pipe"
            )
        given = ["-"]
    for name in given:
        if name == "-" or Path(name).is_fifo():  # is read more than once
            # a stream has no suffix; where a field of it is asked for, it is JSON lines
            spool = scratch / f"{len(names)}{'.txt' if flags.field is None else '.jsonl'}"
            with _stream(name) as stream, spool.open("wb") as copy:
                shutil.copyfileobj(stream, copy)
            names[spool] = "standard input" if name == "-" else printable(name)
            paths.append(spool)
        else:
            paths += find_files("--file", [name])
    if flags.field is not None and not any(map(has_fields, paths)):
        raise ConfigError(
            f"--field {printable(flags.field)}: fields are those of .jsonl and .parquet files, and "
            "all of these are text"
        )
    corpus = Corpus(
        tuple(dict.fromkeys(paths)),
        flags.field,
        flags.encoding,
        find_files("--gold", flags.gold or ()),
        limit=flags.limit,
        names=tuple(names.items()),
    )
    return corpus if flags.sample is None else corpus.sampled(flags.sample, seed)


def _stream(name: str) -> BinaryIO:
    if name != "-":
        return Path(name).open("rb")
    if sys.stdin is None or sys.stdin.closed:
        raise InputError("standard input is closed; give TEXT or --file")
    return sys.stdin.buffer


def fingerprint(corpus: Corpus | None, opening: Any, options: Any) -> str:
    """What a checkpoint belongs to: the documents, the source, the measures."""
    from attnviz.corpus.opening import describe

    if corpus is None:  # saved runs, which the opening names
        runs = [(path.stat().st_size, path.stat().st_mtime_ns) for path in opening.args[0]]
        return hashlib.sha256(repr((runs, describe(opening), options)).encode()).hexdigest()
    spooled = {path for path, _ in corpus.names}
    files: list[list[str | int]] = []
    for path in (*corpus.paths, *corpus.gold):
        if path in spooled:
            files.append(["", hashlib.sha256(path.read_bytes()).hexdigest()])
        else:
            facts = path.stat()
            files.append([os.fspath(path), facts.st_size, facts.st_mtime_ns])
    chosen = corpus.chosen
    told = (files, corpus.field, corpus.encoding, corpus.limit, chosen, describe(opening), options)
    return hashlib.sha256(repr(told).encode()).hexdigest()


def make_opening(
    flags: CorpusFlags,
    corpus: Corpus | None,
    layer: LayerFlags,
    masking: MaskFlags,
    weights: SourceFlags,
    model: ModelFlags,
    generates: bool,
    say: Callable[[str], object],
) -> Opening:
    """What opens the source that the flags name, in this process or another.

    `say` takes remarks.
    """
    files = [mask.flag for mask in MASKS if mask.takes == FILE and mask.name in masking.asked]
    if files:
        raise ConfigError(f"{files[0]} FILE fits one batch of texts, and a corpus has many")
    if masking.padding_mask is not None:
        raise ConfigError("--padding-mask: padding is never looked at in a corpus")
    if flags.saved:
        return _of_saved(flags, layer, masking, weights, model)
    assert corpus is not None
    if model.model is not None:
        return _of_model(flags, layer, masking, weights, model, generates)
    given = [name for name in model.given if name != "--max-len"]
    if given:
        raise ConfigError(f"{given[0]} goes with --model")
    if weights.weights is None and weights.given:
        raise ConfigError(f"{weights.given[0]} goes with --weights FILE")
    if flags.tokenizer not in TOKENIZERS:
        InputFlags(tokenizer=flags.tokenizer)
    from attnviz.corpus.layers import Reading, open_layer, open_weights_file

    reading = Reading(
        flags.tokenizer,
        model.max_len,
        tuple(masking.asked.items()),
    )
    if weights.weights is not None:
        from attnviz.cli.weights_source import WeightsSource

        if weights.embeddings is not None:
            raise ConfigError("--embeddings are the vectors of one text; a corpus has many")
        source = WeightsSource(InputFlags(tokenizer=flags.tokenizer), layer, MaskFlags(), weights)
        if source.weights.is_causal and not masking.is_set:
            say(
                f"the model of these weights ({source.weights.layout}) is causal: --causal forbids "
                "what it never sees"
            )
        return partial(
            open_weights_file, weights.weights, source.asked, source.vocabulary(), reading
        )
    config = layer.config()
    vocabulary = make_vocabulary(_token_lists(corpus, reading))
    require_memory(
        len(vocabulary) * config.d_model * (8 + DTYPES[config.dtype]),
        f"an embedding of {len(vocabulary):,} tokens × d_model {config.d_model}",
        "give a smaller --d-model, or --tokenizer bytes",
    )
    return partial(open_layer, config, vocabulary, reading)


def _token_lists(corpus: Corpus, reading: Any) -> Iterator[tuple[str, ...]]:
    """The tokens of all documents that have some: a layer's vocabulary is made of them."""
    for found, _ in corpus.documents():
        if isinstance(found, Document):
            try:
                yield reading.tokens(found)[0]
            except InputError:  # said when it is measured
                continue


def _of_model(
    flags: CorpusFlags,
    layer: LayerFlags,
    masking: MaskFlags,
    weights: SourceFlags,
    model: ModelFlags,
    generates: bool,
) -> Opening:
    from attnviz.cli.model_source import require_alone
    from attnviz.config import choice
    from attnviz.corpus.opening import open_model
    from attnviz.sources.locating import locate

    require_alone(InputFlags(tokenizer=flags.tokenizer), layer, masking, weights)
    choice("--dtype", layer.dtype, tuple(DTYPES))
    choice("--device", layer.device, ("auto", *DEVICES))
    assert model.model is not None
    locate(model.model)  # says at once where there is none
    return partial(
        open_model,
        model.model,
        attention=model.attention,
        max_len=model.max_len,
        dtype=layer.dtype,
        device=layer.device,
        generates=generates,
        revision=model.revision,
        trust_remote_code=model.trust_remote_code,
    )


def _of_saved(
    flags: CorpusFlags,
    layer: LayerFlags,
    masking: MaskFlags,
    weights: SourceFlags,
    model: ModelFlags,
) -> Opening:
    from attnviz.corpus.saved import open_saved

    named = ["--weights"] if weights.weights is not None else weights.given
    named += ["--model"] if model.model is not None else model.given
    named += layer.given
    named += ["a mask"] if masking.is_set else []
    if named:
        raise ConfigError(f"--saved has its attention, and {named[0]} makes it; give one of them")
    return partial(open_saved, find_files("--saved", flags.saved or ()), flags.axes)


def _decoded(text: str) -> str:
    """A text off the command line. In an ASCII locale Python keeps its bytes as surrogates."""
    try:
        return os.fsencode(text).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"the text is not utf-8: byte {error.start} is wrong") from None
