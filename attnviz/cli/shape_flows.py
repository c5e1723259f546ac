"""The work of `attnviz shapes`: the flow of a text, of any length, of weights, of a model.

Sources that import torch are imported only after the flags are known to work.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from attnviz.architectures import read_architecture
from attnviz.cli.facts import mask_facts, print_facts
from attnviz.cli.inputs import read_texts
from attnviz.cli.open_source import SourceRequest, open_weights_source, reading_of
from attnviz.cli.options import (
    InputFlags,
    LayerFlags,
    MaskFlags,
    ModelFlags,
    SourceFlags,
    flags_of,
)
from attnviz.cli.shapes_flags import USUAL_VOCABULARY, SizeFlags
from attnviz.cli.streams import result, warn
from attnviz.config import AttentionConfig
from attnviz.diagnose import (
    SCORE_AXES,
    Diagnosis,
    Operand,
    Sizes,
    compare,
    diagnose,
    notes_on_sizes,
    steps_until,
)
from attnviz.errors import ConfigError, InputError, printable
from attnviz.masks import MASKS, NUMBER, SWITCH, Rule, build, from_array, notes_on, rules_from
from attnviz.pipeline import Line, Tokenized
from attnviz.render.console import make_console
from attnviz.render.reports import (
    architecture_facts,
    cache_as_json,
    print_cache,
    print_comparison,
    print_diagnosis,
)
from attnviz.render.trace_table import print_trace, trace_as_json, trace_as_markdown
from attnviz.sources.layer_lines import layer_lines
from attnviz.sources.own_layers import OwnLayers
from attnviz.trace import Step
from attnviz.trace_totals import sizes_of

USUAL_LENGTH = 1024
"""Tokens for which a model's shapes are shown if no length is given."""


@dataclass(frozen=True)
class Flow:
    """Steps with their sizes, and the facts printed above them."""

    steps: Sequence[Step]
    sizes: Mapping[str, int]
    config: Mapping[str, Any]
    facts: Sequence[Line]
    cross: bool = False
    layer: AttentionConfig | None = None


@dataclass(frozen=True)
class Subject:
    """The flags that decide one flow. `as_table`: print it up to a step that cannot work."""

    inputs: InputFlags
    layer: LayerFlags
    origin: SourceFlags
    masking: MaskFlags
    sizes: SizeFlags
    as_table: bool

    def flow(self) -> Flow:
        if self.origin.weights is not None:
            return self._of_weights()
        if self.sizes.model is not None:
            return self._of_model(self.sizes.model)
        if self.sizes.length is not None:
            return self._of_length(self.sizes.length)
        return self._of_text()

    # ── one function for each kind of subject ──

    def _of_length(self, length: int) -> Flow:
        """A layer from flags, at any length."""
        sizes = self.sizes
        lengths = {
            "B": sizes.batch or 1,
            "Tq": length,
            "Tk": sizes.key_length or length,
            "V": sizes.vocabulary or USUAL_VOCABULARY,
        }
        config = self._checked_config(lengths)
        per_head = self._require_mask(lengths, config)
        cross = sizes.key_length is not None
        return _of_layer(config, lengths, self.masking.is_set, cross, per_head=per_head)

    def _of_text(self) -> Flow:
        """A layer from flags with a real batch, and what its masks forbid."""
        reader = OwnLayers(reading_of(self.inputs))
        tokens = reader.tokens(read_texts(self.inputs, reader))
        lengths = _lengths(tokens)
        config = self._checked_config(lengths)
        try:
            rules, facts = self._read_masks(tokens, config)
        except InputError:
            self._require_mask(lengths, config)
            raise
        per_head = any(rule.per_head for rule in rules)
        cross = tokens.keys is not None
        return _of_layer(config, lengths, bool(rules), cross, facts, per_head)

    def _of_weights(self) -> Flow:
        """A person's own layer, for a text or any length."""
        request = SourceRequest(self.inputs, self.layer, self.masking, self.origin, ModelFlags())
        source = open_weights_source(request)
        config, sizes, facts = source.weights.config, self.sizes, source.report()
        if sizes.length is not None:
            lengths = {"B": sizes.batch or 1, "Tq": sizes.length}
            if sizes.key_length is not None:
                lengths["Ts"] = sizes.key_length
            per_head = self._require_mask(
                {**lengths, "Tk": sizes.key_length or sizes.length}, config
            )
            masked = self.masking.is_set
        else:
            tokens = source.tokens(read_texts(self.inputs, source))
            rules, of_masks = self._read_masks(tokens, config)
            facts = [*facts, *of_masks]
            lengths = {"B": tokens.queries.size, "Tq": tokens.queries.width}
            if tokens.keys is not None:
                lengths["Ts"] = tokens.keys.width
            per_head, masked = any(rule.per_head for rule in rules), bool(rules)
        rule_heads = (config.n_heads if per_head else 1) if masked else 0
        steps, named = source.steps(lengths, rule_heads)
        return Flow(steps, named, config.as_dict(), facts, "Ts" in lengths)

    def _of_model(self, path: Path) -> Flow:
        """One attention layer of a real architecture, and the cache of all its layers."""
        architecture = read_architecture(path)
        from attnviz.sources.from_architecture import architecture_steps

        length, batch = self.sizes.length or USUAL_LENGTH, self.sizes.batch or 1
        steps = architecture_steps(architecture, batch, length, self.sizes.key_length)
        cache = cache_as_json(architecture, length, batch, architecture.dtype or "float32")
        facts = architecture_facts(architecture)
        longest = architecture.longest
        if longest is not None and length > longest:
            facts.append(
                ("note", f"{length:,} tokens are more than the {longest:,} it was made for")
            )
        return Flow(steps, sizes_of(steps), {**asdict(architecture), "cache": cache}, facts)

    # ── masks, and sizes that cannot work ──

    def _read_masks(
        self, tokens: Tokenized, config: AttentionConfig
    ) -> tuple[list[Rule], list[Line]]:
        """(the masks, what they forbid); notes on them go to standard error."""
        queries, keys = tokens.queries, tokens.keys or tokens.queries
        settings = self.masking.settings()
        rules = rules_from(settings, queries, keys, config.n_heads)
        allowed = build(rules, queries.size, config.n_heads, queries.width, keys.width)
        facts = mask_facts([rule.name for rule in rules], allowed, queries, keys)
        for note in (*tokens.notes, *notes_on(settings, queries, keys)):
            warn(note)
        return rules, list(facts)

    def _require_mask(self, lengths: Mapping[str, int], config: AttentionConfig) -> bool:
        """Whether the mask file differs between heads. If it does not fit, print up to there."""
        if "mask" not in self.masking.asked:
            return False
        array, name, _ = self.masking.settings()["mask"]
        scores = (lengths["B"], config.n_heads, lengths["Tq"], lengths["Tk"])
        try:
            return from_array(array, name, *scores).per_head
        except InputError as error:
            axes = {2: ("Tq", "Tk"), 3: ("B", "Tq", "Tk"), 4: SCORE_AXES}.get(array.ndim)
            if self.as_table and axes is not None:
                mask = Operand("mask", axes, array.shape)
                operands = (mask, Operand("scores", SCORE_AXES, scores))
                differences = str(error).partition(": ")[2]
                problem = "the mask does not fit the scores"
                steps = _of_layer(config, lengths, masked=True, cross=False).steps
                _print_failure(steps, Diagnosis("allowed", problem, operands, (differences,), ()))
            raise

    def _checked_config(self, lengths: Mapping[str, int]) -> AttentionConfig:
        """The layer's configuration. If it cannot work, print the trace up to that point."""
        layer = self.layer
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
        if self.as_table:
            width = max(layer.d_model // layer.n_heads, 1)
            groups = layer.n_kv_heads if problem.step != "k_repeated" else None
            possible = replace(layer, d_k=layer.d_k or width, n_kv_heads=groups).config()
            _print_failure(_of_layer(possible, lengths, masked=False, cross=False).steps, problem)
        raise ConfigError(problem.message)

    # ── the other side of --vs ──

    def changed(self, versus: str) -> Subject:
        """This subject with the flags of --vs; a path alone stands for `--model PATH`."""
        found = _read_versus(versus)
        of_sizes = {name: found.pop(name) for name in list(found) if hasattr(self.sizes, name)}
        of_masks = {name: found.pop(name) for name in list(found) if hasattr(self.masking, name)}
        if found and "model" not in of_sizes and self.sizes.model is not None:
            of_sizes["model"] = None  # the other side is a layer from flags
            of_sizes.setdefault("length", self.sizes.length or USUAL_LENGTH)
        sizes = replace(self.sizes, **of_sizes)
        sizes.check()
        return replace(
            self,
            layer=replace(self.layer, **found),
            masking=replace(self.masking, **of_masks),
            sizes=sizes,
        )


def _lengths(tokens: Tokenized) -> dict[str, int]:
    """The sizes of a batch, by axis name."""
    queries, keys = tokens.queries, tokens.keys or tokens.queries
    return {
        "B": queries.size,
        "Tq": queries.width,
        "Tk": keys.width,
        "V": len(queries.vocabulary),
    }


def _read_versus(versus: str) -> dict[str, Any]:
    """The values of the flags in `versus`, by the names of their fields."""

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
    found = {k: value for k, value in vars(parser.parse_args(words)).items() if value is not None}
    if not found:
        parser.error('flags of the other layer are expected, "--n-heads 4", or a config.json')
    return found


def _of_layer(
    config: AttentionConfig,
    lengths: Mapping[str, int],
    masked: bool,
    cross: bool,
    facts: Sequence[Line] = (),
    per_head: bool = False,
) -> Flow:
    """The flow of a layer from flags, at any size."""
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
    return Flow(steps, sizes, config.as_dict(), [*layer_lines(config), *facts], cross, config)


# ── printing ─────────────────────────────────────────────────────────────────────────────────


def print_flow(flow: Flow, form: str, source: bool, expand: bool) -> None:
    """Print one flow in the form of --format."""
    if form == "json":
        document = trace_as_json(flow.steps, sizes=flow.sizes, config=flow.config)
        result(json.dumps(document, indent=1))
        return
    looks: dict[str, Any] = {"source": source, "expand": expand, "cross": flow.cross}
    if form == "markdown":
        result(trace_as_markdown(flow.steps, **looks).rstrip())
        return
    console = make_console()
    print_facts(console, flow.facts)
    if flow.layer is not None:
        print_facts(console, [("note", words) for words in notes_on_sizes(flow.layer)])
    result("")
    print_trace(flow.steps, console, sizes=flow.sizes, **looks)
    if "cache" in flow.config:
        print_cache(flow.config["cache"], console)


def print_both(a: Flow, b: Flow) -> None:
    """Print two flows side by side."""
    console = make_console()
    for name, flow in (("A", a), ("B", b)):
        (label, first), *rest = flow.facts
        print_facts(console, [(f"{name}  {label}", first), *rest])
    result("")
    print_comparison(a.steps, b.steps, console)
    if a.layer is not None and b.layer is not None:
        words = compare(a.layer, b.layer, a.sizes["B"], a.sizes["Tq"], a.sizes["Tk"])
        result(*(["", *words] if words else []))


def _print_failure(steps: Sequence[Step], problem: Diagnosis) -> None:
    """The steps up to the one that fails, and what meets there."""
    console = make_console()
    kept = steps_until(steps, problem)
    print_trace(kept, console, totals=False)
    print_diagnosis(problem, len(kept) + 1, console)
