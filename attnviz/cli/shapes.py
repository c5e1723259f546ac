"""`attnviz shapes`: the tensor flow, step by step, for any size, in the memory of a small one."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from attnviz.cli.console import remark, result
from attnviz.cli.facts import Fact, mask_facts, print_facts
from attnviz.cli.inputs import read_texts
from attnviz.cli.open_source import SourceRequest, open_weights_source, reading_of
from attnviz.cli.options import (
    INPUT,
    OUTPUT,
    InputFlags,
    LayerFlags,
    MaskFlags,
    ModelFlags,
    SourceFlags,
    flag,
    flags_of,
    optional,
    spread,
)
from attnviz.config import AttentionConfig, check_size, choice
from attnviz.errors import ConfigError, InputError, printable
from attnviz.masks import MASKS, NUMBER, SWITCH, build, from_array, notes_on, rules_from
from attnviz.sources.layer_lines import layer_lines
from attnviz.sources.own_layers import OwnLayers

if TYPE_CHECKING:
    from attnviz.diagnose import Diagnosis
    from attnviz.masks import Rule
    from attnviz.pipeline import Tokenized
    from attnviz.tokens import Batch
    from attnviz.trace import Step

FORMATS = ("table", "json", "markdown", "mermaid")

MODULE = "A module of your own"

USUAL_VOCABULARY = 37000
"""Tokens of the shared vocabulary of Vaswani et al. 2017, section 5.1."""

USUAL_LENGTH = 1024
"""Tokens that a model's shapes are shown for when nothing is said."""

EXAMPLES = """Examples:

attnviz shapes "The cat sat on the mat." --d-model 64 --n-heads 4 --causal

attnviz shapes --d-model 65536 --n-heads 512 --d-k 128 --len 1000000"""


@spread
def shapes(
    inputs: InputFlags,
    layer: LayerFlags,
    origin: SourceFlags,
    masking: MaskFlags,
    length: Annotated[
        int | None,
        optional(
            "--len",
            metavar="N",
            help="Queries in place of a text: any number.",
            panel=INPUT,
        ),
    ] = None,
    key_length: Annotated[
        int | None,
        optional(
            "--key-len",
            metavar="N",
            help="Keys, where they are another text.",
            panel=INPUT,
        ),
    ] = None,
    batch: Annotated[
        int | None,
        optional(
            metavar="N",
            help="Sequences of that length; 1 when left out.",
            panel=INPUT,
        ),
    ] = None,
    vocabulary: Annotated[
        int | None,
        optional(
            "--vocab",
            metavar="N",
            help=f"Rows of the embedding table, with --len; {USUAL_VOCABULARY} when left out.",
            panel=INPUT,
        ),
    ] = None,
    model: Annotated[
        Path | None,
        optional(
            "--model",
            help="A real architecture from its config.json, or the folder of one: no weights.",
            panel=INPUT,
        ),
    ] = None,
    module: Annotated[
        str | None,
        optional(
            "--module",
            metavar="FILE.py:CLASS",
            help="Trace a module of your own, and warn where a reshape, softmax or mask mixes what "
            "it should not. The file is executed.",
            panel=MODULE,
        ),
    ] = None,
    init: Annotated[
        str | None,
        optional(
            metavar="ARGUMENTS",
            help='What its constructor is given: "d_model=512, n_heads=8".',
            panel=MODULE,
        ),
    ] = None,
    inputs_of_module: Annotated[
        list[str] | None,
        optional(
            "--input",
            metavar="SIZES",
            help='What forward is given: "2,6,512", "T=6,B=2,512", "mask: bool 2,1,6,6". '
            "Repeatable.",
            panel=MODULE,
        ),
    ] = None,
    versus: Annotated[
        str | None,
        optional(
            "--vs",
            metavar="FLAGS",
            help="Beside it, the same with other flags of the layer, the length or the masks "
            '("--n-heads 4 --causal"), or another config.json.',
            panel=OUTPUT,
        ),
    ] = None,
    source: Annotated[
        bool,
        flag("--source", help="Name each step's line of code.", panel=OUTPUT),
    ] = False,
    expand: Annotated[
        bool,
        flag("--expand", help="Keys and values in rows of their own.", panel=OUTPUT),
    ] = False,
    form: Annotated[
        str,
        flag("--format", help="table, json, markdown or mermaid.", panel=OUTPUT),
    ] = "table",
    as_json: Annotated[bool, flag("--json", help="As --format json.", panel=OUTPUT)] = False,
) -> None:
    """Show every tensor on the way through the layer: its shape, cost and meaning."""
    form_given = choice("--format", form, FORMATS)
    form = "json" if as_json else form_given
    text = {"TEXT": inputs.text, "--file": inputs.file}
    own_layer = dict.fromkeys(layer.given, True)
    if module is not None:
        others = {**text, "--len": length, "--model": model, "--vs": versus, **own_layer}
        others["--weights"] = origin.weights
        _only("--module", others, "what is traced")
        _module(module, init or "", inputs_of_module or ["2,6,512"], form, source)
        return
    if init is not None or inputs_of_module:
        raise ConfigError("--init and --input go with --module FILE.py:CLASS")
    if as_json and form_given not in ("table", "json"):
        raise ConfigError(f"--json and --format {form_given} both give the form; give one of them")
    if length is not None:
        keys = {"--keys": inputs.keys, "--key-file": inputs.key_file}
        _only("--len", {**text, "--pad-to": inputs.pad_to}, "the number of queries")
        _only("--key-len" if key_length else "--len", keys, "the keys")
    elif model is None:
        for flag, given in (("--batch", batch), ("--key-len", key_length), ("--vocab", vocabulary)):
            if given is not None:
                raise ConfigError(f"{flag} goes with --len; a text has sizes of its own")
    if model is not None:
        _only("--model", text, "the queries")
        _only("--model", own_layer, "the layer")
    if versus is not None and form != "table":
        raise ConfigError(f"--vs makes a table; --format {form} shows one layer at a time")
    if origin.weights is not None:
        _only("--weights", {"--model": model}, "the layer")
        if versus is not None:
            raise ConfigError("--vs compares layers from flags and models; it has no --weights")
    elif origin.given:
        raise ConfigError(f"{origin.given[0]} goes with --weights FILE")
    sizes = GivenSizes(model, length, key_length, batch, vocabulary, form == "table")
    if origin.weights is not None:
        flow = _of_weights(inputs, layer, origin, masking, sizes)
    else:
        flow = _flow(inputs, layer, masking, sizes)
    if versus is None:
        _print(flow, form, source, expand)
        return
    _print_both(flow, _flow(inputs, *_changed(layer, masking, sizes, versus)))


def _only(flag: str, others: Mapping[str, object], what: str) -> None:
    """Raise `ConfigError` that names both when one of `others` was given with `flag`."""
    for other, given in others.items():
        if given:
            raise ConfigError(f"{flag} and {other} both give {what}; give one of them")


@dataclass(frozen=True)
class GivenSizes:
    """What flags say of lengths, and of a model in place of the layer."""

    model: Path | None
    length: int | None
    key_length: int | None
    batch: int | None
    vocabulary: int | None
    as_table: bool

    def __post_init__(self) -> None:
        for name, size in (
            ("--len", self.length),
            ("--key-len", self.key_length),
            ("--batch", self.batch),
            ("--vocab", self.vocabulary),
        ):
            if size is not None:
                check_size(name, size)


@dataclass(frozen=True)
class Flow:
    """Steps with their sizes, and what is said about where they come from."""

    steps: Sequence[Step]
    sizes: Mapping[str, int]
    config: Mapping[str, Any]
    facts: Sequence[Fact]
    cross: bool = False
    layer: AttentionConfig | None = None


def _flow(inputs: InputFlags, layer: LayerFlags, masking: MaskFlags, given: GivenSizes) -> Flow:
    if given.model is not None:
        return _of_model(given.model, given)
    if given.length is not None:
        keys = given.length if given.key_length is None else given.key_length
        lengths = {
            "B": given.batch or 1,
            "Tq": given.length,
            "Tk": keys,
            "V": given.vocabulary or USUAL_VOCABULARY,
        }
        config = _checked(layer, lengths, given.as_table)
        per_head = _require_mask(masking, lengths, config, given.as_table)
        cross = given.key_length is not None
        return _of_layer(config, lengths, masking.is_set, cross, per_head=per_head)
    reader = OwnLayers(reading_of(inputs))
    tokens = reader.tokens(read_texts(inputs, reader))
    lengths = _lengths(tokens)
    config = _checked(layer, lengths, given.as_table)
    try:
        return _of_text(masking, config, tokens)
    except InputError:
        _require_mask(masking, lengths, config, given.as_table)
        raise


def _lengths(tokens: Tokenized) -> dict[str, int]:
    """The sizes of a batch, by axis name."""
    queries, keys = tokens.queries, tokens.keys or tokens.queries
    return {
        "B": queries.size,
        "Tq": queries.width,
        "Tk": keys.width,
        "V": len(queries.vocabulary),
    }


def _require_mask(
    masking: MaskFlags, lengths: Mapping[str, int], config: AttentionConfig, as_table: bool
) -> bool:
    """Whether the mask file differs between heads. Where it does not fit, the trace stops there."""
    if "mask" not in masking.asked:
        return False
    from attnviz.diagnose import SCORE_AXES, Diagnosis, Operand

    array, name, _ = masking.settings()["mask"]
    scores = (lengths["B"], config.n_heads, lengths["Tq"], lengths["Tk"])
    try:
        return from_array(array, name, *scores).per_head
    except InputError as error:
        axes = {2: ("Tq", "Tk"), 3: ("B", "Tq", "Tk"), 4: SCORE_AXES}.get(array.ndim)
        if as_table and axes is not None:
            operands = (Operand("mask", axes, array.shape), Operand("scores", SCORE_AXES, scores))
            differences = str(error).partition(": ")[2]
            problem = "the mask does not fit the scores"
            steps = _of_layer(config, lengths, masked=True, cross=False).steps
            _print_failure(steps, Diagnosis("allowed", problem, operands, (differences,), ()))
        raise


def _of_layer(
    config: AttentionConfig,
    lengths: Mapping[str, int],
    masked: bool,
    cross: bool,
    facts: Sequence[Fact] = (),
    per_head: bool = False,
) -> Flow:
    """A layer from flags, at any size."""
    from attnviz.sources.shadow_trace import shadow_steps

    sizes = {
        "B": lengths["B"],
        "H": config.n_heads,
        **({"Hkv": config.n_kv_heads} if config.is_grouped else {}),
        "Tq": lengths["Tq"],
        "Tk": lengths["Tk"],
        "d_model": config.d_model,
        "d_k": config.d_k,
        "d_v": config.d_v,
        "V": lengths["V"],
    }
    steps = [step.at(sizes) for step in shadow_steps(config, cross, masked, per_head)]
    said = [*layer_lines(config), *facts]
    return Flow(steps, sizes, config.as_dict(), said, cross, config)


def _of_text(masking: MaskFlags, config: AttentionConfig, tokens: Tokenized) -> Flow:
    """The flow of a real batch, and what its masks forbid."""
    rules, lines = _masks_of_text(masking, config, tokens)
    per_head = any(rule.per_head for rule in rules)
    crosses = tokens.keys is not None
    return _of_layer(config, _lengths(tokens), bool(rules), crosses, lines, per_head)


def _masks_of_text(
    masking: MaskFlags, config: AttentionConfig, tokens: Tokenized
) -> tuple[list[Rule], list[Fact]]:
    """The rules that are set, and the lines about them; notes go to standard error."""
    queries, keys = tokens.queries, tokens.keys or tokens.queries
    settings = masking.settings()
    rules = rules_from(settings, queries, keys, config.n_heads)
    lines = _said_of_masks(rules, queries, tokens.keys, config)
    for note in (*tokens.notes, *notes_on(settings, queries, keys)):
        remark(note)
    return rules, lines


def _of_weights(
    inputs: InputFlags,
    layer: LayerFlags,
    origin: SourceFlags,
    masking: MaskFlags,
    given: GivenSizes,
) -> Flow:
    """The flow through a person's own layer, for a text or any length."""
    request = SourceRequest(inputs, layer, masking, origin, ModelFlags())
    source = open_weights_source(request)
    config = source.weights.config
    facts = source.report()
    if given.length is not None:
        lengths = {"B": given.batch or 1, "Tq": given.length}
        if given.key_length is not None:
            lengths["Ts"] = given.key_length
        keys = lengths.get("Ts", given.length)
        per_head = _require_mask(masking, {**lengths, "Tk": keys}, config, given.as_table)
        rule_heads = (config.n_heads if per_head else 1) if masking.is_set else 0
    else:
        tokens = source.tokens(read_texts(inputs, source))
        rules, lines = _masks_of_text(masking, config, tokens)
        facts += lines
        lengths = {"B": tokens.queries.size, "Tq": tokens.queries.width}
        if tokens.keys is not None:
            lengths["Ts"] = tokens.keys.width
        heads = config.n_heads if any(rule.per_head for rule in rules) else 1
        rule_heads = heads if rules else 0
    steps, sizes = source.steps(lengths, rule_heads)
    return Flow(steps, sizes, config.as_dict(), facts, "Ts" in lengths)


def _said_of_masks(
    rules: Sequence[Rule], queries: Batch, keys: Batch | None, config: AttentionConfig
) -> list[Fact]:
    source = queries if keys is None else keys
    allowed = build(rules, queries.size, config.n_heads, queries.width, source.width)
    return mask_facts([rule.name for rule in rules], allowed, queries, source)


def _of_model(path: Path, given: GivenSizes) -> Flow:
    """One attention layer of a real architecture, and the cache of all its layers."""
    from attnviz.architectures import read_architecture
    from attnviz.render.reports import architecture_facts, cache_as_json
    from attnviz.render.tables import sizes_of
    from attnviz.sources.from_architecture import architecture_steps

    architecture = read_architecture(path)
    length = USUAL_LENGTH if given.length is None else given.length
    batch = given.batch or 1
    steps = architecture_steps(architecture, batch, length, given.key_length)
    config = {
        **dataclasses.asdict(architecture),
        "cache": cache_as_json(architecture, length, batch, architecture.dtype or "float32"),
    }
    facts = architecture_facts(architecture)
    longest = architecture.longest
    if longest is not None and length > longest:
        facts.append(("note", f"{length:,} tokens are more than the {longest:,} it was made for"))
    return Flow(steps, sizes_of(steps), config, facts)


# ── sizes that cannot work ───────────────────────────────────────────────────────────────────


def _checked(layer: LayerFlags, lengths: Mapping[str, int], as_table: bool) -> AttentionConfig:
    """The layer's configuration. Where it cannot work, the trace is printed up to that point."""
    from attnviz.diagnose import Sizes, diagnose

    problem = diagnose(
        Sizes(
            layer.d_model,
            layer.n_heads,
            layer.d_k,
            layer.d_v,
            layer.n_kv_heads,
            batch=lengths["B"],
            queries=lengths["Tq"],
            keys=lengths["Tk"],
        )
    )
    if problem is None:
        return layer.config()
    if as_table:
        width = max(layer.d_model // layer.n_heads, 1)
        groups = layer.n_kv_heads if problem.step != "k_repeated" else None
        possible = dataclasses.replace(layer, d_k=layer.d_k or width, n_kv_heads=groups).config()
        _print_failure(_of_layer(possible, lengths, masked=False, cross=False).steps, problem)
    raise ConfigError(problem.message)


def _print_failure(steps: Sequence[Step], problem: Diagnosis) -> None:
    """The steps up to the one that fails, and what meets there."""
    from attnviz.diagnose import steps_until
    from attnviz.render.console import make_console
    from attnviz.render.reports import print_diagnosis
    from attnviz.render.tables import print_trace

    console = make_console()
    kept = steps_until(steps, problem)
    print_trace(kept, console, totals=False)
    print_diagnosis(problem, len(kept) + 1, console)


# ── a module of one's own ────────────────────────────────────────────────────────────────────


def _module(place: str, init: str, inputs: Sequence[str], form: str, source: bool) -> None:
    """Trace `FILE.py:CLASS`; what looks wrong stands under the trace."""
    file, colon, name = place.rpartition(":")
    if not (colon and file and name):
        raise ConfigError(f"--module {printable(place)}: FILE.py:CLASS is expected")
    if form not in ("table", "json"):
        raise ConfigError(f"--format {form} shows no module; use table or json")

    from attnviz.module_trace import ModuleError
    from attnviz.render.console import make_console
    from attnviz.render.shapes_report import module_trace_as_json, print_module_trace
    from attnviz.sources.from_module import trace_module

    error: ModuleError | None = None
    try:
        with redirect_stdout(sys.stderr):  # the module may print; what was asked for is the trace
            trace = trace_module(Path(file), name, init, inputs)
    except ModuleError as failed:  # the trace until there, and then the error
        error, trace = failed, failed.trace
    if form == "json":
        result(json.dumps(module_trace_as_json(trace), indent=1))
    else:
        print_module_trace(trace, make_console(), source=source)
    if error is not None:
        raise error


# ── two at once ──────────────────────────────────────────────────────────────────────────────


def _changed(
    layer: LayerFlags, masking: MaskFlags, sizes: GivenSizes, versus: str
) -> tuple[LayerFlags, MaskFlags, GivenSizes]:
    """The flags with those of --vs put in; a path alone stands for `--model PATH`."""

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise ConfigError(f"--vs {printable(versus)}: {printable(message)}")

    parser = Parser(add_help=False, allow_abbrev=False)
    for field in flags_of(LayerFlags):
        kind = str if isinstance(field.default, str) else int
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, dest=field.name)
    for mask in MASKS:
        if mask.takes == SWITCH:
            parser.add_argument(mask.flag, action=argparse.BooleanOptionalAction)
        elif mask.takes == NUMBER:
            parser.add_argument(mask.flag, type=int)
    parser.add_argument("--len", type=int, dest="length")
    parser.add_argument("--key-len", type=int, dest="key_length")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--model", type=Path)
    try:
        words = shlex.split(versus)
    except ValueError as error:
        parser.error(str(error))
    if len(words) == 1 and not words[0].startswith("-"):
        words = ["--model", *words]
    found = vars(parser.parse_args(words))
    given = {name: value for name, value in found.items() if value is not None}
    if not given:
        parser.error('flags of the other layer are expected, "--n-heads 4", or a config.json')
    of_sizes = {name: given.pop(name) for name in list(given) if hasattr(sizes, name)}
    of_masks = {name: given.pop(name) for name in list(given) if hasattr(masking, name)}
    if given and "model" not in of_sizes and sizes.model is not None:
        of_sizes["model"] = None  # the other side is a layer from flags
        of_sizes.setdefault("length", sizes.length or USUAL_LENGTH)
    return (
        dataclasses.replace(layer, **given),
        dataclasses.replace(masking, **of_masks),
        dataclasses.replace(sizes, **of_sizes),
    )


def _print_both(a: Flow, b: Flow) -> None:
    from attnviz.diagnose import compare
    from attnviz.render.console import make_console
    from attnviz.render.reports import print_comparison

    console = make_console()
    for name, flow in (("A", a), ("B", b)):
        (label, first), *rest = flow.facts
        print_facts(console, [(f"{name}  {label}", first), *rest])
    result("")
    print_comparison(a.steps, b.steps, console)
    if a.layer is not None and b.layer is not None:
        words = compare(a.layer, b.layer, a.sizes["B"], a.sizes["Tq"], a.sizes["Tk"])
        result(*(["", *words] if words else []))


def _print(flow: Flow, form: str, source: bool, expand: bool) -> None:
    from attnviz.diagnose import remarks
    from attnviz.render import tables
    from attnviz.render.console import make_console
    from attnviz.render.reports import print_cache

    if form == "json":
        document = tables.trace_as_json(flow.steps, sizes=flow.sizes, config=flow.config)
        result(json.dumps(document, indent=1))
    elif form == "markdown":
        text = tables.trace_as_markdown(flow.steps, source=source, expand=expand, cross=flow.cross)
        result(text.rstrip())
    elif form == "mermaid":
        result(tables.trace_as_mermaid(flow.steps).rstrip())
    else:
        console = make_console()
        print_facts(console, flow.facts)
        if flow.layer is not None:
            print_facts(console, [("note", words) for words in remarks(flow.layer)])
        result("")
        tables.print_trace(
            flow.steps,
            console,
            sizes=flow.sizes,
            source=source,
            expand=expand,
            cross=flow.cross,
        )
        if "cache" in flow.config:
            print_cache(flow.config["cache"], console)
