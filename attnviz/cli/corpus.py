"""From flags to a corpus and to the opening of the source that it is measured with."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from attnviz.cli.inputs import decoded_argument, is_piped
from attnviz.cli.open_source import (
    BUILT_IN,
    SourceRequest,
    kind_asked_for,
    model_options,
    open_source,
    open_weights_source,
)
from attnviz.cli.options import (
    InputFlags,
    LayerFlags,
    MaskFlags,
    ModelFlags,
    SourceFlags,
)
from attnviz.cli.stats_flags import CorpusFlags
from attnviz.config import DEVICES, choice
from attnviz.corpus.documents import Corpus, find_files, has_fields
from attnviz.errors import ConfigError, InputError, printable
from attnviz.masks import FILE, MASKS
from attnviz.sources.own_layers import LayerSource
from attnviz.tokens import TOKENIZERS

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
        lines = [json.dumps(decoded_argument(text)) + "\n" for text in flags.text]
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

    `say` takes warnings.
    """
    files = [mask.flag for mask in MASKS if mask.takes == FILE and mask.name in masking.asked]
    if files:
        raise ConfigError(f"{files[0]} FILE fits one batch of texts, and a corpus has many")
    if masking.padding_mask is not None:
        raise ConfigError("--padding-mask: padding is never looked at in a corpus")
    from attnviz.corpus import opening

    if flags.saved:
        return _of_saved(flags, layer, masking, weights, model)
    assert corpus is not None
    if model.model is None and flags.tokenizer not in TOKENIZERS:
        InputFlags(tokenizer=flags.tokenizer)
    inputs = InputFlags(tokenizer=flags.tokenizer)
    if model.model is None:  # padding is never looked at
        masking = replace(masking, padding_mask=True)
    request = SourceRequest(inputs, layer, masking, weights, model, for_corpus=True)
    kind = kind_asked_for(request)
    if kind not in BUILT_IN:
        return partial(opening.open_with, kind.open, request)
    if model.model is not None:
        choice("--device", layer.device, ("auto", *DEVICES))
        options = model_options(request)
        from attnviz.sources.locating import locate

        locate(model.model)  # says at once where there is none
        options = replace(options, pad_side="right")
        return partial(opening.open_model, options, generates=generates)
    if weights.weights is not None:
        if weights.embeddings is not None:
            raise ConfigError("--embeddings are the vectors of one text; a corpus has many")
        source = open_weights_source(request)
        if source.weights.is_causal and not masking.asked:
            say(
                f"the model of these weights ({source.weights.layout}) is causal: --causal forbids "
                "what it never sees"
            )
        assert source.vocabulary  # says now where words have no vectors
        return partial(opening.open_weights, weights.weights, source.asked, request.reading())
    source_of_layer = open_source(request)
    assert isinstance(source_of_layer, LayerSource)
    return partial(opening.open_layer, source_of_layer.config, request.reading())


def _of_saved(
    flags: CorpusFlags,
    layer: LayerFlags,
    masking: MaskFlags,
    weights: SourceFlags,
    model: ModelFlags,
) -> Opening:
    from attnviz.corpus.opening import open_saved

    named = ["--weights"] if weights.weights is not None else weights.given
    named += ["--model"] if model.model is not None else model.given
    named += layer.given
    named += ["a mask"] if masking.is_set else []
    if named:
        raise ConfigError(f"--saved has its attention, and {named[0]} makes it; give one of them")
    return partial(open_saved, find_files("--saved", flags.saved or ()), flags.axes)
