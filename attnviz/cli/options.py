"""The vocabulary of flags: each is defined once, in a group, and means the same everywhere."""

from __future__ import annotations

import codecs
import dataclasses
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from attnviz import tokens as batch
from attnviz.cli.files import DEFAULT_FOLDER, kind_of
from attnviz.config import POSITIONS, AttentionConfig, check_size, choice
from attnviz.errors import ConfigError, printable
from attnviz.masks import FILE, MASKS, NUMBER, PADDING, SWITCH, mask_named
from attnviz.render.figure_options import COMBINED_OVER, FigureOptions

if TYPE_CHECKING:
    from attnviz.combined_heads import Combination
    from attnviz.result import Attention
    from attnviz.sources.bare_arrays import BareArray

INPUT, LAYER, MODEL, MASK, OUTPUT, LOOK = "Input", "Layer", "Model", "Mask", "Output", "Look"
FIGURE = "Figure"

LONG = "Long texts"

LARGEST_POOL = 8192
"""Pixels along a side: more than any screen or paper shows."""

SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?) ?([kmgt]?)(?:i?b)?", re.IGNORECASE | re.ASCII)
"""A number of bytes, in steps of 1024."""

MASK_MEANINGS = ("keep", "drop")

RuleGroup = TypeVar("RuleGroup")


def flag(*names: str, panel: str, help: str, **more: Any) -> Any:
    """A flag in a panel of the help; its default is shown there."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


def optional(*names: str, panel: str, help: str, **more: Any) -> Any:
    """A flag that may be left out: there is no default to show, or its help says what happens."""
    return flag(*names, panel=panel, help=help, show_default=False, **more)


class FlagGroup:
    """What a command's own group of flags is derived from."""


@dataclass(frozen=True)
class InputFlags:
    """Where the tokens come from."""

    text: Annotated[
        list[str] | None,
        typer.Argument(
            help="A sequence each; several make a padded batch. With none, a pipe on standard "
            "input is read, else a built-in sentence is used.",
            show_default=False,
        ),
    ] = None
    file: Annotated[
        list[Path] | None,
        optional(
            "--file",
            panel=INPUT,
            help="One sequence a line; .json and .jsonl hold token lists; - is standard input. "
            "Repeatable.",
        ),
    ] = None
    tokenizer: Annotated[
        str,
        flag(
            panel=INPUT,
            help="words (each Han, Kana or Hangul character by itself), chars, bytes, or the path "
            "of a tokenizer.json.",
        ),
    ] = "words"
    encoding: Annotated[str, flag(panel=INPUT, help="Of the files.")] = "utf-8"
    keys: Annotated[
        list[str] | None,
        optional(
            "--keys",
            panel=INPUT,
            help="Keys and values from this text: cross attention. Repeatable, one a sequence.",
        ),
    ] = None
    key_file: Annotated[
        Path | None,
        optional(panel=INPUT, help="Keys and values from this file, a line a sequence."),
    ] = None
    pad_to: Annotated[
        int | None, optional(panel=INPUT, metavar="N", help="Pad the queries to N tokens.")
    ] = None
    pad_side: Annotated[str, flag(panel=INPUT, help="right or left.")] = "right"

    def __post_init__(self) -> None:
        if not self.tokenizer.endswith(".json"):
            choice("--tokenizer", self.tokenizer, (*batch.TOKENIZERS, "a tokenizer.json"))
        choice("--pad-side", self.pad_side, batch.PAD_SIDES)
        if self.pad_to is not None:
            check_size("--pad-to", self.pad_to)
        try:
            codecs.lookup(self.encoding)
        except (LookupError, ValueError):
            raise ConfigError(
                f"--encoding {printable(self.encoding)} is unknown; utf-8, utf-16 or gb18030, say"
            ) from None
        if [*(self.file or ()), self.key_file].count(Path("-")) > 1:
            raise ConfigError("standard input, -, can be read once; give a file for the other")
        if self.keys and self.key_file:
            raise ConfigError("--keys and --key-file both name the keys; give one of them")


@dataclass(frozen=True)
class LayerFlags:
    """The sizes of the layer, and what decides its numbers."""

    d_model: Annotated[int, flag(panel=LAYER, help="Width of the token vectors.")] = 512
    n_heads: Annotated[int, flag(panel=LAYER, help="Number of heads.")] = 8
    d_k: Annotated[
        int | None,
        optional(
            "--d-k",
            panel=LAYER,
            help="Width of a head's queries and keys; d_model / n_heads when left out.",
        ),
    ] = None
    d_v: Annotated[
        int | None,
        optional("--d-v", panel=LAYER, help="Width of a head's values; d_k when left out."),
    ] = None
    n_kv_heads: Annotated[
        int | None,
        optional(
            "--n-kv-heads",
            panel=LAYER,
            help="Key/value heads, each shared by a group of heads; n_heads when left out.",
        ),
    ] = None
    positions: Annotated[str, flag(panel=LAYER, help="sinusoidal, none, rope or alibi.")] = (
        "sinusoidal"
    )
    seed: Annotated[int, flag(panel=LAYER, help="The same seed gives the same layer.")] = 0
    dtype: Annotated[str, flag(panel=LAYER, help="float32, float64, bfloat16 or float16.")] = (
        "float32"
    )
    device: Annotated[str, flag(panel=LAYER, help="cpu, cuda or mps; auto with --model.")] = "cpu"
    stated: frozenset[str] = dataclasses.field(default=frozenset(), metadata={"is_flag": False})

    @property
    def given(self) -> list[str]:
        """The flags that were given, be it with their defaults."""
        return [
            f"--{field.name.replace('_', '-')}" for field in flags_of(self) if self.says(field.name)
        ]

    def says(self, name: str) -> bool:
        """Whether the flag of the field `name` was given."""
        default = {field.name: field.default for field in flags_of(self)}[name]
        return name in self.stated or getattr(self, name) != default

    def config(self) -> AttentionConfig:
        """The checked configuration."""
        choice("--positions", self.positions, POSITIONS)
        values = {field.name: getattr(self, field.name) for field in flags_of(self)}
        return AttentionConfig.from_sizes(**values)


@dataclass(frozen=True)
class SourceFlags:
    """Weights in place of a layer from flags."""

    weights: Annotated[
        Path | None,
        optional(
            "--weights",
            panel=LAYER,
            metavar="FILE",
            help="The weights of a layer of your own, or of a model with --weights-prefix: "
            ".safetensors, .pt or the folder of a model.",
        ),
    ] = None
    weights_prefix: Annotated[
        str | None,
        optional(
            panel=LAYER, metavar="NAME", help="Which layer of them: encoder.layer.3, layers.0, say."
        ),
    ] = None
    embeddings: Annotated[
        Path | None,
        optional(
            panel=INPUT,
            metavar="FILE",
            help="Vectors for --weights in place of embedded tokens, \\[T d_model] or "
            "\\[B T d_model]: .npy, .npz or .safetensors. TEXT then only names them.",
        ),
    ] = None
    key_embeddings: Annotated[
        Path | None,
        optional(panel=INPUT, metavar="FILE", help="Vectors that keys are made of."),
    ] = None
    value_embeddings: Annotated[
        Path | None,
        optional(panel=INPUT, metavar="FILE", help="Vectors that values are made of, if others."),
    ] = None
    norm_first: Annotated[
        bool,
        flag("--norm-first", panel=LAYER, help="The nn.Transformer layer was made with it."),
    ] = False
    add_zero_attn: Annotated[
        bool,
        flag("--add-zero-attn", panel=LAYER, help="The nn.MultiheadAttention was made with it."),
    ] = False

    @property
    def given(self) -> list[str]:
        """The flags that were given, --weights apart."""
        return [
            f"--{field.name.replace('_', '-')}"
            for field in flags_of(self)
            if getattr(self, field.name) != field.default and field.name != "weights"
        ]


@dataclass(frozen=True)
class ModelFlags:
    """A pretrained model in place of a layer."""

    model: Annotated[
        str | None,
        optional(
            "--model",
            panel=MODEL,
            metavar="MODEL",
            help="A pretrained model: its folder, a .gguf file, or its name on the hub. It cuts "
            "the text by itself; --dtype, --device and --seed hold for it as well.",
        ),
    ] = None
    revision: Annotated[
        str | None,
        optional(panel=MODEL, metavar="NAME", help="Branch, tag or commit on the hub."),
    ] = None
    trust_remote_code: Annotated[
        bool,
        flag("--trust-remote-code", panel=MODEL, help="Run code that comes with the model."),
    ] = False
    attention: Annotated[
        str | None,
        optional(
            "--attention",
            panel=MODEL,
            metavar="NAME",
            help="encoder, decoder or cross (keys are the encoder's text), text or vision.",
        ),
    ] = None
    max_len: Annotated[
        int | None, optional(panel=MODEL, metavar="N", help="Cut the text to N tokens.")
    ] = None
    raw_tokens: Annotated[
        bool,
        flag(
            "--raw-tokens",
            panel=MODEL,
            help="Name tokens as the tokenizer writes them, Ġworld or ##ing.",
        ),
    ] = False
    # flags in a subclass alone
    generate: int | None = dataclasses.field(default=None, metadata={"is_flag": False})
    temperature: float = dataclasses.field(default=0.0, metadata={"is_flag": False})
    image: list[Path] | None = dataclasses.field(default=None, metadata={"is_flag": False})
    audio: list[Path] | None = dataclasses.field(default=None, metadata={"is_flag": False})

    def __post_init__(self) -> None:
        if self.max_len is not None:
            check_size("--max-len", self.max_len)
        if self.generate is not None:
            check_size("--generate", self.generate)
        if not 0 <= self.temperature <= 100:  # NaN is not
            raise ConfigError(f"--temperature is {self.temperature}; 0 (greedy) to 100 will do")
        if self.temperature and self.generate is None:
            raise ConfigError("--temperature goes with --generate")

    @property
    def given(self) -> list[str]:
        """The flags that were given, --model apart."""
        return [
            f"--{field.name.replace('_', '-')}"
            for field in flags_of(self)
            if getattr(self, field.name) != field.default and field.name != "model"
        ]


@dataclass(frozen=True)
class ModelRunFlags(ModelFlags):
    """What a pretrained model can do beside reading a text."""

    generate: Annotated[
        int | None,
        optional(
            panel=MODEL,
            metavar="N",
            help="Let the model go on by N tokens; prompt and answer are shown in one map.",
        ),
    ] = None
    temperature: Annotated[
        float,
        flag(
            panel=MODEL,
            help="Of --generate: 0 takes the likeliest token, above it tokens are drawn with "
            "--seed.",
        ),
    ] = 0.0

    image: Annotated[
        list[Path] | None,
        optional(
            "--image",
            panel=MODEL,
            metavar="FILE",
            help="A picture in place of TEXT, for a vision transformer: patches are the tokens, "
            "r3c5 that of row 3, column 5. Repeatable.",
        ),
    ] = None
    audio: Annotated[
        list[Path] | None,
        optional(
            "--audio",
            panel=MODEL,
            metavar="FILE",
            help="A .wav file in place of TEXT, for an audio encoder: moments are the tokens. "
            "Repeatable.",
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image and self.audio:
            raise ConfigError("--image and --audio both say what is looked at; give one of them")
        if self.generate is not None and (self.image or self.audio):
            name = "--image" if self.image else "--audio"
            raise ConfigError(f"--generate and {name}: a model goes on with a text")


@dataclass(frozen=True)
class TokenFlags:
    """Which tokens maps have."""

    words: Annotated[
        bool,
        flag(
            "--words",
            panel=LOOK,
            help="Merge the pieces of a word: columns are added up, rows averaged.",
        ),
    ] = False
    hide_special: Annotated[
        bool,
        flag(
            "--hide-special",
            panel=LOOK,
            help="Leave out tokens like \\[CLS] and </s>, and say what weight they had.",
        ),
    ] = False

    @property
    def given(self) -> list[str]:
        """The flags that were given."""
        return [
            f"--{field.name.replace('_', '-')}"
            for field in flags_of(self)
            if getattr(self, field.name)
        ]

    def seen(self, result: Attention) -> Attention:
        """`result` with the tokens that are wanted."""
        from attnviz.merging import hide_special, merge_words

        if self.hide_special:
            result = hide_special(result)
        return merge_words(result) if self.words else result

    def unmet(self, before: Attention, after: Attention) -> list[str]:
        """What was asked for and changes nothing, as remarks."""
        new = " ".join(after.notes[len(before.notes) :])
        said = []
        if self.hide_special and "special" not in new:
            said.append("--hide-special: no token is special")
        if self.words and "words" not in new:
            said.append("--words: no word is in pieces")
        return said


def with_mask_flags(group: type[RuleGroup]) -> type[RuleGroup]:
    """`group` with a flag for each row of the table of masks, before its own flags."""
    own = dict(group.__annotations__)
    group.__annotations__ = {}
    for mask in MASKS:
        if mask.takes == PADDING:
            continue  # whose flag says other things of a text than of an array
        kind = {SWITCH: bool, NUMBER: int | None, FILE: Path | None}[mask.takes]
        more = {"metavar": "N"} if mask.takes == NUMBER else {}
        option = flag(mask.flag, panel=MASK, help=mask.help, show_default=kind is bool, **more)
        group.__annotations__[mask.name] = Annotated[kind, option]
        setattr(group, mask.name, False if kind is bool else None)
    group.__annotations__.update(own)
    return group


@dataclass(frozen=True)
@with_mask_flags
class RuleFlags:
    """Who may look at whom, padding apart; the rules combine by "and"."""

    mask_means: Annotated[
        str,
        flag(panel=MASK, help="What 1 means in that file: keep (may look) or drop (may not)."),
    ] = "keep"

    def __post_init__(self) -> None:
        choice("--mask-means", self.mask_means, MASK_MEANINGS)
        for mask in MASKS:
            value = getattr(self, mask.name, None)
            if mask.takes == NUMBER and value is not None:
                check_size(mask.flag, value)

    @property
    def asked(self) -> dict[str, Any]:
        """The masks that were asked for, by name, with what their flags took."""
        values = {mask.name: getattr(self, mask.name, None) for mask in MASKS}
        return {name: value for name, value in values.items() if value not in (None, False)}

    @property
    def by_position(self) -> bool:
        """Whether a mask was asked for that depends on where queries stand among the keys."""
        return any(mask.by_position for mask in MASKS if mask.name in self.asked)

    def settings(self) -> dict[str, Any]:
        """`asked`, with the arrays of mask files in place of their names."""
        asked = self.asked
        for name in asked.keys() & {mask.name for mask in MASKS if mask.takes == FILE}:
            from attnviz.mask_files import read_mask

            asked[name] = read_mask(asked[name], self.mask_means)
        return asked


@dataclass(frozen=True)
class MaskFlags(RuleFlags):
    """Who may look at whom, where the padding is known from the text."""

    padding_mask: Annotated[
        bool | None,
        optional("--padding-mask/--no-padding-mask", panel=MASK, help=mask_named("padding").help),
    ] = None

    @property
    def is_set(self) -> bool:
        """Whether any rule is asked for."""
        return bool(self.padding_mask or self.asked)

    def settings(self) -> dict[str, Any]:
        """What `masks.rules_from` takes."""
        return {"padding": self.padding_mask, **super().settings()}


@dataclass(frozen=True)
class ObeyedFlags(RuleFlags):
    """The masks that attention from a file should obey."""

    padding_mask: Annotated[
        Path | None,
        optional(
            "--padding-mask",
            panel=MASK,
            help="Which keys are real, [B Tk], 1 for a real one (0 with --mask-means drop): .npy, "
            ".npz, .csv or .txt. Or give --lengths.",
        ),
    ] = None


@dataclass(frozen=True)
class ArrayFlags:
    """What a bare array of attention does not say by itself."""

    axes: Annotated[
        str | None,
        optional(
            panel=INPUT,
            metavar="LETTERS",
            help='Which axis is which, "L B H Q K" in the order of the array: layers, sequences, '
            "heads, queries, keys. Q and K are needed; the usual is assumed, and said.",
        ),
    ] = None
    attention: Annotated[
        str | None,
        optional(
            panel=INPUT,
            metavar="NAME",
            help="Which one, where a file holds several: an array's name; encoder, decoder, cross.",
        ),
    ] = None
    tokens: Annotated[
        Path | None,
        optional(
            panel=INPUT,
            help="The tokens: a .json or .jsonl list for each sequence, or a text with a token a "
            "line and empty lines between sequences. Positions name what has none.",
        ),
    ] = None
    key_tokens: Annotated[
        Path | None, optional(panel=INPUT, help="The keys' own tokens: cross attention.")
    ] = None
    lengths: Annotated[
        str | None,
        optional(
            panel=INPUT,
            metavar="N,N,…",
            help="How many tokens of each sequence are real; the others are padding.",
        ),
    ] = None
    key_lengths: Annotated[
        str | None,
        optional(panel=INPUT, metavar="N,N,…", help="The same of the keys, in cross attention."),
    ] = None
    pad_side: Annotated[
        str | None,
        optional(
            panel=INPUT,
            help="Where padding stands: right or left. Tokens of padding tell, else it is right.",
        ),
    ] = None
    softmax: Annotated[
        bool,
        flag(
            "--softmax",
            panel=INPUT,
            help="The numbers are scores: share each row among the keys that it may look at.",
        ),
    ] = False

    def __post_init__(self) -> None:
        if self.pad_side is not None:
            choice("--pad-side", self.pad_side, batch.PAD_SIDES)
        self.lengths_of("lengths")
        self.lengths_of("key_lengths")

    @property
    def given(self) -> list[str]:
        """The flags that are not left out."""
        return [
            f"--{field.name.replace('_', '-')}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        ]

    def batches(self, found: BareArray) -> tuple[batch.Batch, batch.Batch]:
        """The queries and the keys of an array, as the flags tell."""
        lengths = self.lengths_of("lengths"), self.lengths_of("key_lengths")
        return found.batches(self.tokens, self.key_tokens, *lengths, self.pad_side)

    def lengths_of(self, which: str) -> list[int] | None:
        """`lengths` or `key_lengths` as numbers."""
        given: str | None = getattr(self, which)
        if given is None:
            return None
        parts = [part.strip() for part in given.split(",")]
        wrong = next((p for p in parts if not (p.isascii() and p.isdigit()) or len(p) > 9), None)
        if wrong is not None:
            name = which.replace("_", "-")
            raise ConfigError(
                f"--{name} {printable(given)}: '{printable(wrong)}' is no number; 5,7,4, say"
            )
        return [int(part) for part in parts]


@dataclass(frozen=True)
class LookFlags:
    """How pictures look."""

    cmap: Annotated[str, flag("--cmap", panel=LOOK, help="A matplotlib colour map.")] = (
        FigureOptions.cmap
    )
    vmax: Annotated[
        float | None,
        optional("--vmax", panel=LOOK, help="The weight that the strongest colour stands for."),
    ] = FigureOptions.vmax
    annotate: Annotated[
        bool, flag("--annotate", panel=LOOK, help="Write the weights into the cells.")
    ] = FigureOptions.annotate
    theme: Annotated[
        str | None,
        optional(
            panel=LOOK, help="light or dark. \\[default: light; a page follows the reader's system]"
        ),
    ] = None
    dpi: Annotated[int, flag(panel=LOOK, help="Dots per inch of PNGs.")] = FigureOptions.dpi
    decode: Annotated[
        bool,
        flag(
            "--decode",
            panel=LOOK,
            help="Show subword tokens (Ġworld, ▁the, ##ing) as the text they stand for; with "
            "--model they are shown so in any case.",
        ),
    ] = False

    width: Annotated[
        str | None,
        optional(
            "--width", panel=FIGURE, metavar="3.3in|8.4cm",
            help="Make the picture exactly this wide, with no type below 6 points.",
        ),
    ] = FigureOptions.width  # fmt: skip
    font_size: Annotated[
        float | None, optional("--font-size", panel=FIGURE, help="Points of the labels' type.")
    ] = FigureOptions.font_size
    title: Annotated[str | None, optional("--title", panel=FIGURE, help="A title of your own.")] = (
        FigureOptions.title
    )
    no_title: Annotated[
        bool, flag("--no-title", panel=FIGURE, help="Leave out title and caption.")
    ] = FigureOptions.no_title
    no_measures: Annotated[
        bool, flag("--no-measures", panel=FIGURE, help="Leave out the measures of the heads.")
    ] = FigureOptions.no_measures
    bare: Annotated[
        bool, flag("--bare", panel=FIGURE, help="Leave out title, caption and measures.")
    ] = FigureOptions.bare
    columns: Annotated[
        int | None, optional("--columns", panel=FIGURE, metavar="N", help="Maps in a row.")
    ] = FigureOptions.columns
    transparent: Annotated[
        bool, flag("--transparent", panel=FIGURE, help="Leave out the background.")
    ] = FigureOptions.transparent
    scale: Annotated[
        str,
        flag(
            "--scale", panel=FIGURE,
            help="One colour scale for all heads, or each head's own: all or head.",
        ),
    ] = FigureOptions.scale  # fmt: skip
    curve: Annotated[
        str | None,
        optional(
            "--curve", panel=FIGURE,
            help="How colours follow weights: linear, root or log. Long texts have log.",
        ),
    ] = FigureOptions.curve  # fmt: skip
    axis_labels: Annotated[
        str | None,
        optional(
            "--axis-labels", panel=FIGURE, metavar="ROWS,COLUMNS",
            help="Names of the axes, 'query,key', or none.",
        ),
    ] = FigureOptions.axis_labels  # fmt: skip

    average: Annotated[
        str | None,
        optional(
            "--average", panel=FIGURE, metavar="heads|layers|all",
            help="Draw the average of the heads of each layer, of each head over the layers, or "
            "of all heads.",
        ),
    ] = None  # fmt: skip
    maximum: Annotated[
        str | None,
        optional(
            "--maximum", panel=FIGURE, metavar="heads|layers|all",
            help="The same with the largest weights.",
        ),
    ] = None  # fmt: skip

    def combination(self, command: str = "") -> Combination | None:
        """How heads are combined into one map; refused where `command` cannot draw it."""
        if self.average is None and self.maximum is None:
            return None
        how, over = ("average", self.average) if self.average else ("maximum", self.maximum)
        if command:
            raise ConfigError(f"--{how} works with run and render, not with {command}")
        if self.average is not None and self.maximum is not None:
            raise ConfigError("--average and --maximum are two pictures; give one of them")
        choice(f"--{how}", str(over), COMBINED_OVER)
        from attnviz.combined_heads import Combination

        return Combination(how, str(over))

    def look(self) -> FigureOptions:
        """The checked options of pictures."""
        names = [field.name for field in dataclasses.fields(FigureOptions)]
        options = {name: getattr(self, name) for name in names}
        return FigureOptions(**{**options, "theme": self.theme or FigureOptions.theme})


@dataclass(frozen=True)
class OutputFlags:
    """What is made of attention, and of which part of it."""

    out: Annotated[
        list[str] | None,
        optional(
            "--out",
            "-o",
            help="The suffix picks the form: a folder (an overview and a picture a head), .png "
            ".svg .pdf (the overview), .html (a page), .json .npz .safetensors (a saved run). "
            "Repeatable. \\[default: attnviz-out/]",
            panel=OUTPUT,
        ),
    ] = None
    force: Annotated[bool, flag("--force", help="Replace files that are there.", panel=OUTPUT)] = (
        False
    )
    heads: Annotated[
        str | None,
        optional(help="Which heads to draw, from 0: 0,3-5, or layer.head: 0.2,1.8.", panel=OUTPUT),
    ] = None
    layers: Annotated[
        str | None, optional(help="Which layers to draw, from 0: 0,3-5.", panel=OUTPUT)
    ] = None
    sequences: Annotated[
        str | None, optional(help="Which sequences to draw, from 0: 0,2.", panel=OUTPUT)
    ] = None
    show: Annotated[
        bool | None,
        optional(
            "--show/--no-show", help="Heatmaps in the terminal (on when it is one).", panel=OUTPUT
        ),
    ] = None
    quiet: Annotated[
        bool, flag("--quiet", "-q", help="Print nothing but errors.", panel=OUTPUT)
    ] = False

    def places(self) -> list[tuple[Path, str]]:
        """Each path to write, and its form: see `kind_of`."""
        return [(Path(given), kind_of(given)) for given in self.out or [DEFAULT_FOLDER]]

    def chosen_heads(self, layer_numbers: Collection[int], n_heads: int) -> list[tuple[int, int]]:
        """The (layer, head) pairs to draw, of the layers that have attention."""
        if (named := self.named_heads(dict.fromkeys(layer_numbers, n_heads))) is not None:
            return named
        numbers = choose("--heads", self.heads, n_heads, "heads")
        layers = choose("--layers", self.layers, max(layer_numbers) + 1, "layers")
        if self.layers is None:
            layers = [layer for layer in layers if layer in layer_numbers]
        elif missing := [layer for layer in layers if layer not in layer_numbers]:
            raise ConfigError(f"--layers {self.layers}: layer {missing[0]} has no attention")
        return [(layer, head) for layer in layers for head in numbers]

    def named_heads(self, n_heads: Mapping[int, int]) -> list[tuple[int, int]] | None:
        """`0.2,1.8` → [(0, 2), (1, 8)], as `stats` names heads; None where --heads has numbers.

        `n_heads` has how many heads each layer has, by its number.
        """
        if self.heads is None or "." not in self.heads:
            return None
        if self.layers is not None:
            raise ConfigError(
                f"--heads {printable(self.heads)} names the layers; --layers is not needed"
            )
        chosen: dict[tuple[int, int], None] = {}
        for part in self.heads.split(","):
            found = re.fullmatch(r"\s*(\d{1,9})\.(\d{1,9})\s*", part, re.ASCII)
            if found is None:
                raise ConfigError(
                    f"--heads {printable(self.heads)}: '{printable(part)}' is no layer.head; "
                    "0.2,1.8, say"
                )
            layer, head = int(found[1]), int(found[2])
            if layer not in n_heads:
                known = ", ".join(map(str, n_heads))
                raise ConfigError(f"--heads {printable(self.heads)}: the layers are {known}")
            if head >= n_heads[layer]:
                there = _there_are(n_heads[layer], "heads")
                raise ConfigError(f"--heads {printable(self.heads)}: in layer {layer} {there}")
            chosen[layer, head] = None
        return list(chosen)

    def chosen_sequences(self, n: int) -> list[int]:
        """The sequences to draw."""
        return choose("--sequences", self.sequences, n, "sequences")


@dataclass(frozen=True)
class WindowFlags:
    """A part of the map at full resolution."""

    rows: Annotated[
        str | None,
        optional(
            panel=LONG,
            metavar="A:B",
            help="Draw queries A to B-1 only, at full resolution, computed for them alone.",
        ),
    ] = None
    cols: Annotated[
        str | None, optional(panel=LONG, metavar="C:D", help="Draw keys C to D-1 only.")
    ] = None

    def __post_init__(self) -> None:
        for name in ("rows", "cols"):
            self._ends(name)

    @property
    def given(self) -> bool:
        return self.rows is not None or self.cols is not None

    def ranges(self, queries: int, keys: int) -> tuple[range, range]:
        """The queries and the keys to draw, of so many; all where a flag was left out."""
        return self._range("rows", queries, "queries"), self._range("cols", keys, "keys")

    def _range(self, name: str, n: int, what: str) -> range:
        start, stop = self._ends(name) or (0, n)
        if not start < stop <= n:
            raise ConfigError(
                f"--{name} {printable(getattr(self, name))}: there are {n:,} {what}, 0:{n} for all"
            )
        return range(start, stop)

    def _ends(self, name: str) -> tuple[int, int] | None:
        given: str | None = getattr(self, name)
        if given is None:
            return None
        parts = [part.strip().replace("_", "") for part in given.split(":")]
        if len(parts) != 2 or not all(p.isascii() and p.isdigit() and len(p) < 19 for p in parts):
            raise ConfigError(f"--{name} {printable(given)}: two numbers are expected, 5000:5200")
        start, stop = map(int, parts)
        if start >= stop:
            what = "is empty" if start == stop else "ends before it starts"
            raise ConfigError(f"--{name} {printable(given)} {what}; 5000:5200, say")
        return start, stop


@dataclass(frozen=True)
class LongFlags(WindowFlags):
    """Texts whose maps are too large to be held whole."""

    pool: Annotated[
        int | None,
        optional(
            "--pool",
            panel=LONG,
            metavar="P",
            help="Fold each map into at most P × P pixels, block by block: nothing of the size of "
            "the map is held. By itself, to 1024, where whole maps take more than --memory.",
        ),
    ] = None
    memory: Annotated[
        str | None,
        optional(
            panel=LONG,
            metavar="SIZE",
            help="What whole maps may take: 4GB, 500MB. Half of what is free when left out.",
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pool is not None:
            check_size("--pool", self.pool)
            if self.pool > LARGEST_POOL:
                raise ConfigError(f"--pool is {self.pool}; the most is {LARGEST_POOL}")
            if self.given:
                flag = "--cols" if self.rows is None else "--rows"
                raise ConfigError(f"--pool folds the whole map, {flag} draws a part: give one")
        self.budget()

    def budget(self) -> int | None:
        """The bytes of --memory, None when it was left out."""
        if self.memory is None:
            return None
        found = SIZE.fullmatch(self.memory.strip())
        if found is None:
            raise ConfigError(
                f"--memory {printable(self.memory)}: a size is expected, 4GB or 500MB, say"
            )
        powers = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
        return int(float(found[1]) * 1024 ** powers[found[2].lower()])


GROUPS = (
    FlagGroup,
    WindowFlags,
    InputFlags,
    LayerFlags,
    SourceFlags,
    ModelFlags,
    TokenFlags,
    MaskFlags,
    ObeyedFlags,
    ArrayFlags,
    LookFlags,
    OutputFlags,
)


def spread(function: Callable[..., None]) -> Callable[..., None]:
    """`function` as typer reads it: each parameter that is a group becomes that group's flags."""
    hints = get_type_hints(function, include_extras=True)
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if _is_group(hints[name]):
            flags = get_type_hints(hints[name], include_extras=True)
            parameters += [
                inspect.Parameter(
                    field.name, parameter.kind, default=field.default, annotation=flags[field.name]
                )
                for field in flags_of(hints[name])
            ]
        else:
            parameters.append(parameter.replace(annotation=hints[name]))
    parameters.append(
        inspect.Parameter("invocation", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    )

    def command(invocation: typer.Context, **flags: Any) -> None:
        groups = {}
        for name, hint in hints.items():
            if not _is_group(hint):
                continue
            values = {field.name: flags.pop(field.name) for field in flags_of(hint)}
            if hint is LayerFlags:
                values["stated"] = frozenset(n for n in values if _is_stated(invocation, n))
            groups[name] = hint(**values)
        function(**groups, **flags)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def flags_of(group: Any) -> list[dataclasses.Field[Any]]:
    """The fields of a group, or of its class, that are flags."""
    return [field for field in dataclasses.fields(group) if field.metadata.get("is_flag", True)]


def _is_stated(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _is_group(hint: object) -> bool:
    return isinstance(hint, type) and issubclass(hint, GROUPS)


def _there_are(n: int, what: str) -> str:
    """`there are 3 heads, 0 to 2`, `there is 1 head, 0`."""
    return f"there are {n} {what}, 0 to {n - 1}" if n > 1 else f"there is 1 {what[:-1]}, 0"


def choose(flag: str, wanted: str | None, n: int, what: str) -> list[int]:
    """`0,3-5` → [0, 3, 4, 5], each below `n`; None means all. Raises `ConfigError` otherwise."""
    if wanted is None:
        return list(range(n))
    chosen: dict[int, None] = {}
    for part in wanted.split(","):
        first, dash, last = part.strip().partition("-")
        numbers = (first, last) if dash else (first,)
        if not all(
            number.isascii() and number.isdigit() and len(number) < 10 for number in numbers
        ):
            raise ConfigError(
                f"{flag} {printable(wanted)}: '{printable(part)}' is no number or range; 0,3-5, say"
            )
        start, stop = int(first), int(last or first)
        if stop >= n or start > stop:
            raise ConfigError(f"{flag} {printable(wanted)}: {_there_are(n, what)}")
        chosen.update(dict.fromkeys(range(start, stop + 1)))
    return list(chosen)


def choose_layers(wanted: str | None, numbers: Sequence[int]) -> list[int]:
    """The layers that `--layers` names, out of those that a file has; None means all."""
    if wanted is None:
        return list(numbers)
    chosen = choose("--layers", wanted, max(numbers) + 1, "layers")
    if not set(chosen) <= set(numbers):
        known = printable(", ".join(map(str, numbers)))
        raise ConfigError(f"--layers {printable(wanted)}: the file has layers {known}")
    return chosen


def choose_one(flag: str, wanted: int, n: int, what: str) -> int:
    """`wanted` when it is below `n`. Raises `ConfigError` otherwise."""
    if not 0 <= wanted < n:
        raise ConfigError(f"{flag} {wanted}: {_there_are(n, what)}")
    return wanted


def require_one_sequence(chosen: Sequence[int]) -> None:
    """Raise `ConfigError` where a window would be one of several sequences."""
    if len(chosen) > 1:
        raise ConfigError(
            f"--rows and --cols draw a part of one sequence, there are {len(chosen)}: "
            f"--sequences {chosen[0]}, say"
        )
