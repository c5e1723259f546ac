"""What people's own checkpoints call trained attention, and where a file holds it.

A layout maps each tensor of `MultiHeadAttention` to its name in a file, without the prefix that the
layer has there: `blocks.3.` before `attn.c_attn.weight`. A new layout is one entry of `LAYOUTS`.
Models of transformers are not read here: `--model FOLDER` runs them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from attnviz.config import Rotary, Variant
from attnviz.errors import InputError, printable

NEEDED = ("w_q.weight", "w_k.weight", "w_v.weight", "w_o.weight")

FUSED = ("w_qkv.weight", "w_o.weight")

LISTED = 6
"""Names that a message lists."""

MOST_COMPARED = 300
"""Names of a file that are compared letter by letter with those of the layouts."""

IGNORED = re.compile(r"bias|masked_bias|rotary_emb\.inv_freq")
"""Buffers inside an attention that hold what is computed anew: causal masks, rotary rates."""


BARE, AFTER, BEFORE = (Variant(norm=norm) for norm in ("none", "after", "before"))
"""No norm and no residual; a LayerNorm after the residual; one before the attention."""


@dataclass(frozen=True)
class Layout:
    """The names of one kind of layer, and what its files leave open.

    Attributes:
        names: our name of each tensor → its name in a layer; `|` separates alternatives. Where
            W_Q, W_K and W_V are one matrix, it is `w_qkv`, with their rows one after the other.
        inside: the prefix of all names inside the attention; other names there are unexpected.
        embedding: as `names` for `Embedding`, without the prefix of the embedding.
        variant: where the layer differs from the paper's, as far as its names tell.
        positions: as in `AttentionConfig`; None where only flags can tell.
    """

    name: str
    names: Mapping[str, str]
    inside: str = ""
    needed: tuple[str, ...] = NEEDED
    embedding: Mapping[str, str] = field(default_factory=dict)
    variant: Variant = BEFORE
    positions: str | None = None
    is_causal: bool = False

    @property
    def anchors(self) -> tuple[str, ...]:
        """The names that show that this layout may be there."""
        names = [self.names.get(f"{each}.weight", "") for each in ("w_qkv", "w_q")]
        return tuple(name for each in names for name in each.split("|") if name)

    @property
    def is_torch(self) -> bool:
        """Whether torch's own modules have these names."""
        return self.name.startswith("nn.")


def _linear(**names: str) -> dict[str, str]:
    """`w_q="query"` → the weight and the bias of each, with alternatives kept apart."""
    return {
        f"{ours}.{part}": "|".join(f"{name}.{part}" for name in theirs.split("|"))
        for ours, theirs in names.items()
        for part in ("weight", "bias")
    }


def _torch(inside: str) -> dict[str, str]:
    names = {
        "w_qkv.weight": "in_proj_weight",
        "w_qkv.bias": "in_proj_bias",
        "w_q.weight": "q_proj_weight",
        "w_k.weight": "k_proj_weight",
        "w_v.weight": "v_proj_weight",
        "w_o.weight": "out_proj.weight",
        "w_o.bias": "out_proj.bias",
        "bias_k": "bias_k",
        "bias_v": "bias_v",
    }
    return {ours: inside + theirs for ours, theirs in names.items()}


_ANY_EMBEDDING = {"weight": "embedding.weight|src_emb.weight|embed.weight|token_embedding.weight"}
_GPT_EMBEDDING = {"weight": "wte.weight", "places": "wpe.weight"}

OURS = Layout(
    "attnviz",
    {
        **_linear(w_q="w_q", w_k="w_k", w_v="w_v", w_o="w_o", norm="norm"),
        **_linear(norm_q="norm_q", norm_k="norm_k"),
        "bias_k": "bias_k",
        "bias_v": "bias_v",
        "distances.weight": "distances.weight",
    },
    needed=NEEDED[:3],
    embedding={
        "weight": "embedding.weight",
        "places": "embedding.places",
        "kind": "embedding.kind",
        "norm.weight": "embedding.norm.weight",
        "norm.bias": "embedding.norm.bias",
    },
    variant=AFTER,
)


def _plain(*matrices: str) -> Layout:
    ours = ("w_qkv", "w_o") if len(matrices) == 2 else ("w_q", "w_k", "w_v", "w_o")
    return Layout(
        " ".join(each.split("|")[0] for each in matrices),
        _linear(**dict(zip(ours, matrices, strict=True))),
        needed=tuple(f"{name}.weight" for name in ours),
        embedding=_ANY_EMBEDDING,
        variant=BARE,
    )


PLAIN = (
    _plain("q_proj", "k_proj", "v_proj", "out_proj|o_proj"),  # fairseq, BART and many after them
    _plain("query", "key", "value", "proj|out|output|out_proj"),  # minGPT
    _plain("to_q", "to_k", "to_v", "to_out.0|to_out"),  # lucidrains, diffusers
    _plain("wq", "wk", "wv", "wo"),
    _plain("Wq", "Wk", "Wv", "Wo"),
    _plain("q_linear", "k_linear", "v_linear", "out|out_linear|o_linear"),
    _plain("linears.0", "linears.1", "linears.2", "linears.3"),  # The Annotated Transformer
    _plain("qkv", "proj|out_proj|out"),  # timm and many after it
)
"""Names of the matrices that show nothing about norms, positions or masks."""

NANOGPT = Layout(
    "nanoGPT",
    _linear(w_qkv="attn.c_attn", w_o="attn.c_proj", norm="ln_1"),
    inside="attn.",
    needed=FUSED,
    embedding=_GPT_EMBEDDING,
    positions="learned",
    is_causal=True,
)

LAYOUTS = (
    OURS,
    Layout(  # of the tutorials after graykode's; their W_O was made in forward, and not saved
        "W_Q W_K W_V",
        _linear(
            w_q="W_Q", w_k="W_K", w_v="W_V", w_o="W_O|linear|fc", norm="layer_norm|norm|layernorm"
        ),
        needed=NEEDED[:3],
        embedding=_ANY_EMBEDDING,
        variant=AFTER,
    ),
    Layout(
        "nn.TransformerEncoderLayer",
        {**_torch("self_attn."), **_linear(norm="norm1")},
        inside="self_attn.",
        needed=FUSED,
        embedding=_ANY_EMBEDDING,
        variant=AFTER,
    ),
    Layout(
        "nn.TransformerDecoderLayer, cross attention",
        {**_torch("multihead_attn."), **_linear(norm="norm2")},
        inside="multihead_attn.",
        needed=FUSED,
        embedding=_ANY_EMBEDDING,
        variant=AFTER,
    ),
    Layout(
        "torchvision ViT",
        {**_torch("self_attention."), **_linear(norm="ln_1")},
        inside="self_attention.",
        needed=FUSED,
        variant=replace(BEFORE, eps=1e-6),
    ),
    Layout(
        "nn.MultiheadAttention",
        _torch(""),
        needed=FUSED,
        embedding=_ANY_EMBEDDING,
        variant=BARE,
    ),
    NANOGPT,
    replace(NANOGPT, names=_linear(w_qkv="c_attn", w_o="c_proj"), inside=""),
    Layout(
        "Meta's Llama",
        _linear(
            w_q="attention.wq",
            w_k="attention.wk",
            w_v="attention.wv",
            w_o="attention.wo",
            norm="attention_norm",
        ),
        inside="attention.",
        needed=(*NEEDED, "norm.weight"),
        embedding={"weight": "tok_embeddings.weight"},
        variant=Variant(norm="before", rms_norm=True, rotary=Rotary(neighbours=True)),
        positions="rope",
        is_causal=True,
    ),
    Layout(
        "timm ViT",
        _linear(w_qkv="attn.qkv", w_o="attn.proj", norm="norm1"),
        inside="attn.",
        needed=(*FUSED, "norm.weight"),
        variant=replace(BEFORE, eps=1e-6),
    ),
    *PLAIN,
)

TRANSFORMERS = (
    ("BERT", "attention.self.query.weight", "attention.output.dense.weight"),
    ("DistilBERT", "attention.q_lin.weight", "attention.out_lin.weight"),
    ("GPT-J", "attn.q_proj.weight", "attn.out_proj.weight", "ln_1.weight"),
    ("GPT-NeoX", "attention.query_key_value.weight", "attention.dense.weight"),
    ("BLOOM", "self_attention.query_key_value.weight", "self_attention.dense.weight"),
    ("Llama", "self_attn.q_proj.weight", "self_attn.o_proj.weight", "input_layernorm.weight"),
    ("ViT", "attention.attention.query.weight", "attention.output.dense.weight"),
    ("ViT", "attention.q_proj.weight", "attention.o_proj.weight", "layernorm_before.weight"),
    ("T5", "SelfAttention.q.weight", "SelfAttention.o.weight"),
)
"""Models of transformers, each with names in a layer that show that a file is one."""


@dataclass(frozen=True)
class Found:
    """A layout at a place in a file: `prefix` stands before the layer's own names there.

    `names` maps our name of each tensor that is there to its name in the file.
    """

    layout: Layout
    prefix: str
    names: Mapping[str, str]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]

    @property
    def anchor(self) -> str:
        """The name in the file of W_Q, or of the matrix that holds it."""
        return self.names.get("w_qkv.weight") or self.names["w_q.weight"]

    @property
    def place(self) -> str:
        """The value of `--weights-prefix` that picks this layer."""
        return (self.prefix + self.layout.inside).rstrip(".")

    @property
    def is_whole(self) -> bool:
        return not self.missing and not self.unexpected


def find_layers(names: Sequence[str]) -> list[Found]:
    """The layers that `names` hold, each with the layout that fits best, in the file's order.

    Only whole layers; where there is none, those with missing or unexpected names.
    """
    known = set(names)
    best: dict[str, Found] = {}
    for layout in LAYOUTS:
        for prefix in _prefixes(names, layout.anchors):
            each = _found(layout, prefix, known)
            if each.anchor not in best or _rank(each) > _rank(best[each.anchor]):
                best[each.anchor] = each
    whole = [each for each in best.values() if each.is_whole]
    return sorted(whole or best.values(), key=lambda each: _natural(each.place))


def _prefixes(names: Iterable[str], tails: Iterable[str]) -> list[str]:
    """What stands before any of `tails` in `names`, each once."""
    found = {
        name.removesuffix(tail): None
        for tail in tails
        for name in names
        if name == tail or name.endswith(f".{tail}")
    }
    return list(found)


def _rank(found: Found) -> tuple[bool, int, int]:
    return found.is_whole, -len(found.missing) - len(found.unexpected), len(found.names)


def _found(layout: Layout, prefix: str, known: set[str]) -> Found:
    names, needed = {}, []
    for ours, theirs in layout.names.items():
        places = [prefix + name for name in theirs.split("|")]
        there = next((name for name in places if name in known), None)
        if there is not None:
            names[ours] = there
        elif ours in layout.needed:
            needed.append(places[0])
    if "w_qkv.weight" in layout.needed and "w_qkv.weight" not in names and "w_q.weight" in names:
        # torch keeps three matrices where keys or values have a width of their own
        three = [prefix + layout.names[ours].split("|")[0] for ours in NEEDED]
        needed = [name for name in three if name not in known]
    inside = prefix + layout.inside
    expected = {*names.values(), f"{prefix}unembedding.weight"}
    expected |= {prefix + name for each in layout.embedding.values() for name in each.split("|")}
    strange = [
        name
        for name in known - expected
        if name.startswith(inside) and not IGNORED.fullmatch(name.removeprefix(inside))
    ]
    return Found(layout, prefix, names, tuple(needed), tuple(sorted(strange, key=_natural)))


def require_own_checkpoint(names: Sequence[str], shown: str) -> None:
    """Raise `InputError` for the checkpoint of a model that `--model` runs."""
    known = set(names)
    for model, *tails in TRANSFORMERS:
        for prefix in _prefixes(names, tails[:1]):
            if all(prefix + tail in known for tail in tails):
                raise InputError(not_read(shown, model))


def not_read(shown: str, model: str) -> str:
    """The message for a layout of transformers."""
    return (
        f"{shown} has the layout of {model} in transformers, which --weights does not read; "
        "--model FOLDER runs it, with the config.json beside it"
    )


def pick(names: Sequence[str], shown: str, prefix: str | None) -> list[Found]:
    """The layer that `prefix` picks from a file, or all layers of attnviz's own stack.

    Raises `InputError`, one line, if no layer is known or whole, or if the choice is open: then it
    lists the prefixes that pick one, the nearest first.
    """
    require_own_checkpoint(names, shown)
    found = find_layers(names)
    if not found:
        raise InputError(f"{shown} has no known layout; {_nearest(names)}")
    if prefix is not None:
        inside = f"{prefix.rstrip('.')}."
        below = [each for each in found if each.anchor.startswith(inside)]
        if not below:
            raise InputError(
                f"--weights-prefix {printable(prefix)}: no layer of {shown} is there; it has "
                f"{listed(_nearest_first(prefix, [each.place for each in found]))}"
            )
        found = below
    if not found[0].is_whole:
        raise InputError(f"{shown} has no known layout; {_difference(found[0])}")
    if len(found) == 1:
        return found
    first = found[0].prefix.removesuffix("0.")
    if all(each.layout is OURS for each in found) and [each.prefix for each in found] == [
        f"{first}{i}." for i in range(len(found))
    ]:
        return found
    where = f" under {printable(prefix)}" if prefix else ""
    raise InputError(
        f"{shown} holds {len(found)} layers{where}; --weights-prefix picks one of "
        f"{listed([each.place for each in found])}"
    )


def _nearest_first(wanted: str, places: Sequence[str]) -> list[str]:
    def likeness(place: str) -> float:
        return difflib.SequenceMatcher(None, wanted, place).ratio()

    return sorted(places, key=likeness, reverse=True)


def listed(names: Sequence[str]) -> str:
    """Some names, and how many more."""
    shown = ", ".join(printable(name, 60) or "(the top)" for name in names[:LISTED])
    return f"{shown} and {len(names) - LISTED} more" if len(names) > LISTED else shown


def _difference(found: Found) -> str:
    parts = [
        f"{word} {listed(names)}"
        for word, names in (("missing", found.missing), ("unexpected", found.unexpected))
        if names
    ]
    at = f" at {printable(found.place, 60)}" if found.prefix else ""
    return f"the nearest is that of {found.layout.name}{at}: {'; '.join(parts)}"


def _nearest(names: Sequence[str]) -> str:
    """The layout whose names are most like those of the file, and what differs."""
    if not names:
        return "it holds no tensors"
    tails = {".".join(name.split(".")[-4:]) for name in names[:MOST_COMPARED]}
    scores = []
    for layout in LAYOUTS:
        wanted = [layout.names[name].split("|")[0] for name in layout.needed]
        likeness = [
            max(difflib.SequenceMatcher(None, name, tail).ratio() for tail in tails)
            for name in wanted
        ]
        scores.append((sum(likeness) / len(likeness), layout, wanted))
    _, layout, wanted = max(scores, key=lambda score: score[0])
    missing = [name for name in wanted if name not in names]
    return (
        f"the nearest is that of {layout.name}: missing {listed(missing)}; "
        f"the file has {listed(sorted(names, key=_natural))}"
    )


def _natural(text: str) -> list[tuple[int, str]]:
    """A key that sorts `layer.10` after `layer.9`."""
    parts = re.split(r"(\d{1,9})", text)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]
