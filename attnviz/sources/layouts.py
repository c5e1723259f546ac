"""What trained attention is called in files: the layouts that are known, and finding one in a file.

A layout names each tensor of `MultiHeadAttention` as a file has it, from the layer's own place on.
Where that place is, the names in the file tell: `encoder.layer.3.` before `attention.self.query`.
To add a layout is one entry of `LAYOUTS`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from attnviz.errors import InputError, printable

NEEDED = ("w_q.weight", "w_k.weight", "w_v.weight", "w_o.weight")

FUSED = ("w_qkv.weight", "w_o.weight")

LISTED = 6
"""Names that a message lists."""

MOST_COMPARED = 300
"""Names of a file that are compared letter by letter with those of the layouts."""

IGNORED = re.compile(r"bias|masked_bias|rotary_emb\.inv_freq")
"""Buffers inside an attention that hold what is computed anew: causal masks, rotary rates."""


@dataclass(frozen=True)
class Layout:
    """One family of layers, and what its files do not say about it.

    Attributes:
        names: our name of each tensor → its name in a layer; `|` stands between alternatives.
        inside: what all names inside of the attention begin with; others there are unexpected.
        embedding: the same as `names` for `Embedding`, from the place of the embedding on.
        fused: how W_Q, W_K and W_V lie in one matrix: "rows" (one after the other), "columns" (the
            same, transposed), "heads" (those of a head together).
        transposed: matrices are `[inputs outputs]`.
        positions: how places enter, as in `AttentionConfig`; None where the file leaves it open.
        rotary_share, rotary_dim: how many numbers of a head are turned, as a share or in all.
        model_types: those of `config.json` that have this attention; empty: not asked.
    """

    name: str
    names: Mapping[str, str]
    inside: str = ""
    needed: tuple[str, ...] = NEEDED
    embedding: Mapping[str, str] = field(default_factory=dict)
    fused: str = ""
    transposed: bool = False
    norm: str = "before"
    rms_norm: bool = False
    eps: float = 1e-5
    scaled: bool = True
    positions: str | None = None
    neighbours: bool = False
    rotary_share: float = 1.0
    rotary_dim: int = 0
    is_causal: bool = False
    model_types: tuple[str, ...] = ()

    @property
    def anchors(self) -> tuple[str, ...]:
        """The names that tell that this layout may stand there."""
        first = self.names.get("w_qkv.weight", "") if self.fused else ""
        names = [first, self.names.get("w_q.weight", "")]
        return tuple(name for each in names for name in each.split("|") if name)


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


_BERT_NORM = {
    "norm.weight": "attention.output.LayerNorm.weight|attention.output.LayerNorm.gamma",
    "norm.bias": "attention.output.LayerNorm.bias|attention.output.LayerNorm.beta",
}
_ANY_EMBEDDING = {"weight": "embedding.weight|src_emb.weight|embed.weight|token_embedding.weight"}
_BERT_EMBEDDING = {
    "weight": "word_embeddings.weight",
    "places": "position_embeddings.weight",
    "kind": "token_type_embeddings.weight",
    "norm.weight": "LayerNorm.weight|LayerNorm.gamma",
    "norm.bias": "LayerNorm.bias|LayerNorm.beta",
}

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
    norm="after",
)

PLAIN = tuple(
    Layout(
        " ".join(each.split("|")[0] for each in (q, k, v, o)),
        _linear(w_q=q, w_k=k, w_v=v, w_o=o),
        embedding=_ANY_EMBEDDING,
        norm="none",
    )
    for q, k, v, o in (
        ("q_proj", "k_proj", "v_proj", "out_proj"),  # fairseq, BART and many after them
        ("query", "key", "value", "proj|out|output|out_proj"),  # minGPT
        ("to_q", "to_k", "to_v", "to_out.0|to_out"),  # lucidrains, diffusers
        ("wq", "wk", "wv", "wo"),
        ("Wq", "Wk", "Wv", "Wo"),
        ("q_linear", "k_linear", "v_linear", "out|out_linear|o_linear"),
        ("linears.0", "linears.1", "linears.2", "linears.3"),  # The Annotated Transformer
    )
)
"""Names that people give the four matrices, and that tell nothing of norms, positions or masks."""

LAYOUTS = (
    OURS,
    Layout(  # of the tutorials after graykode's; their W_O was made in forward, and not saved
        "W_Q W_K W_V",
        _linear(
            w_q="W_Q", w_k="W_K", w_v="W_V", w_o="W_O|linear|fc", norm="layer_norm|norm|layernorm"
        ),
        needed=NEEDED[:3],
        embedding=_ANY_EMBEDDING,
        norm="after",
    ),
    Layout(
        "nn.TransformerEncoderLayer",
        {**_torch("self_attn."), **_linear(norm="norm1")},
        inside="self_attn.",
        needed=FUSED,
        embedding=_ANY_EMBEDDING,
        fused="rows",
        norm="after",
    ),
    Layout(
        "nn.TransformerDecoderLayer, cross attention",
        {**_torch("multihead_attn."), **_linear(norm="norm2")},
        inside="multihead_attn.",
        needed=FUSED,
        embedding=_ANY_EMBEDDING,
        fused="rows",
        norm="after",
    ),
    Layout(
        "torchvision ViT",
        {**_torch("self_attention."), **_linear(norm="ln_1")},
        inside="self_attention.",
        needed=FUSED,
        fused="rows",
        eps=1e-6,
    ),
    Layout(
        "nn.MultiheadAttention",
        _torch(""),
        needed=FUSED,
        embedding=_ANY_EMBEDDING,
        fused="rows",
        norm="none",
    ),
    Layout(
        "BERT",
        {
            **_linear(
                w_q="attention.self.query",
                w_k="attention.self.key",
                w_v="attention.self.value",
                w_o="attention.output.dense",
            ),
            **_BERT_NORM,
        },
        inside="attention.",
        embedding=_BERT_EMBEDDING,
        norm="after",
        eps=1e-12,
        positions="learned",
        model_types=("bert", "roberta", "xlm-roberta", "camembert", "electra"),
    ),
    Layout(
        "DistilBERT",
        _linear(
            w_q="attention.q_lin",
            w_k="attention.k_lin",
            w_v="attention.v_lin",
            w_o="attention.out_lin",
            norm="sa_layer_norm",
        ),
        inside="attention.",
        embedding=_BERT_EMBEDDING,
        norm="after",
        eps=1e-12,
        positions="learned",
        model_types=("distilbert",),
    ),
    Layout(
        "GPT-2",
        _linear(w_qkv="attn.c_attn", w_o="attn.c_proj", norm="ln_1"),
        inside="attn.",
        needed=FUSED,
        embedding={"weight": "wte.weight", "places": "wpe.weight"},
        fused="columns",
        transposed=True,
        positions="learned",
        is_causal=True,
        model_types=("gpt2",),
    ),
    Layout(
        "GPT-J",
        _linear(
            w_q="attn.q_proj",
            w_k="attn.k_proj",
            w_v="attn.v_proj",
            w_o="attn.out_proj",
            norm="ln_1",
        ),
        inside="attn.",
        needed=(*NEEDED, "norm.weight"),
        embedding={"weight": "wte.weight"},
        positions="rope",
        neighbours=True,
        rotary_dim=64,
        is_causal=True,
        model_types=("gptj",),
    ),
    Layout(
        "GPT-NeoX",
        _linear(w_qkv="attention.query_key_value", w_o="attention.dense", norm="input_layernorm"),
        inside="attention.",
        needed=FUSED,
        embedding={"weight": "embed_in.weight"},
        fused="heads",
        positions="rope",
        rotary_share=0.25,
        is_causal=True,
        model_types=("gpt_neox",),
    ),
    Layout(
        "BLOOM",
        _linear(
            w_qkv="self_attention.query_key_value",
            w_o="self_attention.dense",
            norm="input_layernorm",
        ),
        inside="self_attention.",
        needed=FUSED,
        embedding={
            "weight": "word_embeddings.weight",
            "norm.weight": "word_embeddings_layernorm.weight",
            "norm.bias": "word_embeddings_layernorm.bias",
        },
        fused="heads",
        positions="alibi",
        is_causal=True,
        model_types=("bloom",),
    ),
    Layout(
        "Llama",
        _linear(
            w_q="self_attn.q_proj",
            w_k="self_attn.k_proj",
            w_v="self_attn.v_proj",
            w_o="self_attn.o_proj",
            norm="input_layernorm",
            norm_q="self_attn.q_norm",
            norm_k="self_attn.k_norm",
        ),
        inside="self_attn.",
        embedding={"weight": "embed_tokens.weight"},
        rms_norm=True,
        eps=1e-6,
        positions="rope",
        is_causal=True,
        model_types=("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe"),
    ),
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
        rms_norm=True,
        positions="rope",
        neighbours=True,
        is_causal=True,
    ),
    Layout(
        "ViT",
        _linear(
            w_q="attention.attention.query|attention.q_proj",
            w_k="attention.attention.key|attention.k_proj",
            w_v="attention.attention.value|attention.v_proj",
            w_o="attention.output.dense|attention.o_proj",
            norm="layernorm_before",
        ),
        inside="attention.",
        eps=1e-12,
        model_types=("vit", "deit", "vit_mae", "vit_msn"),
    ),
    Layout(
        "timm ViT",
        _linear(w_qkv="attn.qkv", w_o="attn.proj", norm="norm1"),
        inside="attn.",
        needed=FUSED,
        fused="rows",
        eps=1e-6,
    ),
    Layout(
        "T5",
        {
            **_linear(
                w_q="SelfAttention.q",
                w_k="SelfAttention.k",
                w_v="SelfAttention.v",
                w_o="SelfAttention.o",
                norm="layer_norm",
            ),
            "distances.weight": "SelfAttention.relative_attention_bias.weight",
        },
        inside="SelfAttention.",
        embedding={"weight": "shared.weight|embed_tokens.weight"},
        rms_norm=True,
        eps=1e-6,
        scaled=False,
        positions="relative",
        model_types=("t5", "mt5", "umt5"),
    ),
    Layout(
        "T5, cross attention",
        _linear(
            w_q="EncDecAttention.q",
            w_k="EncDecAttention.k",
            w_v="EncDecAttention.v",
            w_o="EncDecAttention.o",
            norm="layer_norm",
        ),
        inside="EncDecAttention.",
        embedding={"weight": "shared.weight|embed_tokens.weight"},
        norm="queries",
        rms_norm=True,
        eps=1e-6,
        scaled=False,
        positions="none",
        model_types=("t5", "mt5", "umt5"),
    ),
    *PLAIN,
)


@dataclass(frozen=True)
class Found:
    """A layout at a place of a file: `prefix` stands before the layer's own names there.

    `names` has our name → the name in the file of each tensor that is there; `head` is the part of
    the layout's names that the file leaves out, where it holds the attention alone.
    """

    layout: Layout
    prefix: str
    head: str
    names: Mapping[str, str]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]

    @property
    def anchor(self) -> str:
        """The name in the file of W_Q, or of the matrix that holds it."""
        return self.names.get("w_qkv.weight") or self.names["w_q.weight"]

    @property
    def place(self) -> str:
        """What `--weights-prefix` picks this layer by."""
        return (self.prefix + self.layout.inside.removeprefix(self.head)).rstrip(".")

    @property
    def is_whole(self) -> bool:
        return not self.missing and not self.unexpected


def find_layers(names: Sequence[str]) -> list[Found]:
    """The layers that `names` hold, each with the layout that fits best, in the file's order.

    Only whole ones, or, where there is none, those that something is missing from or unexpected in.
    """
    found = _candidates(names, whole_names=True)
    if not any(each.is_whole for each in found):
        found += _candidates(names, whole_names=False)
    best: dict[str, Found] = {}
    for each in found:
        if each.anchor not in best or _rank(each) > _rank(best[each.anchor]):
            best[each.anchor] = each
    whole = [each for each in best.values() if each.is_whole]
    return sorted(whole or best.values(), key=lambda each: _natural(each.place))


def as_stored(found: Found, shape: Sequence[int]) -> Found:
    """`found`, whose anchor has this shape: nanoGPT has GPT-2's names for matrices of nn.Linear."""
    if found.layout.name == "GPT-2" and len(shape) == 2 and shape[0] == 3 * shape[1]:
        layout = replace(found.layout, name="nanoGPT", fused="rows", transposed=False)
        return replace(found, layout=layout)
    return found


def _rank(found: Found) -> tuple[bool, int, int]:
    return found.is_whole, -len(found.missing) - len(found.unexpected), len(found.names)


def _candidates(names: Sequence[str], whole_names: bool) -> list[Found]:
    known = set(names)
    places: dict[tuple[int, str, str], None] = {}
    for i, layout in enumerate(LAYOUTS):
        for anchor in layout.anchors:
            if not whole_names and not layout.inside:
                continue  # a name has no part outside of the attention
            for head, tail in _tails(anchor, whole_names):
                for name in names:
                    if name == tail or name.endswith(f".{tail}"):
                        places[i, name.removesuffix(tail), head] = None
    return [_found(LAYOUTS[i], prefix, head, known) for i, prefix, head in places]


def _tails(anchor: str, whole_names: bool) -> Iterable[tuple[str, str]]:
    """(what is left out, what is left) of a name: all of it, or what may stand alone in a file."""
    if whole_names:
        yield "", anchor
        return
    parts = anchor.split(".")
    for i in range(1, len(parts) - 1):
        yield ".".join(parts[:i]) + ".", ".".join(parts[i:])


def _found(layout: Layout, prefix: str, head: str, known: set[str]) -> Found:
    def place(name: str) -> str:
        """The name in the file; nothing for what lies outside of the part that it holds."""
        return prefix + name.removeprefix(head) if name.startswith(head) else ""

    names, needed = {}, []
    for ours, theirs in layout.names.items():
        places = [place(name) for name in theirs.split("|")]
        there = next((name for name in places if name in known), None)
        if there is not None:
            names[ours] = there
        elif ours in layout.needed and any(places):
            needed.append(next(name for name in places if name))
    if "w_qkv.weight" in layout.needed and "w_qkv.weight" not in names and "w_q.weight" in names:
        # torch keeps three matrices where keys or values have a width of their own
        three = [place(layout.names[ours].split("|")[0]) for ours in NEEDED]
        needed = [name for name in three if name not in known]
    inside = place(layout.inside) if layout.inside.startswith(head) else prefix
    used = set(names.values())
    embedding = {prefix + name for each in layout.embedding.values() for name in each.split("|")}
    embedding.add(f"{prefix}unembedding.weight")
    strange = [
        name
        for name in known
        if name.startswith(inside)
        and name not in used
        and name not in embedding
        and not IGNORED.fullmatch(name.removeprefix(inside))
    ]
    return Found(layout, prefix, head, names, tuple(needed), tuple(sorted(strange, key=_natural)))


def pick(names: Sequence[str], shown: str, prefix: str | None) -> list[Found]:
    """The layer of a file that is meant, or all of a stack of attnviz's own.

    Raises `InputError`, one line, where none is known, where none is whole, or where it is open
    which one is meant: then it lists the prefixes that pick one, the nearest first.
    """
    found = find_layers(names)
    if not found:
        raise InputError(f"{shown} is in no layout that is known; {_nearest(names)}")
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
        raise InputError(f"{shown} is in no layout that is known; {_difference(found[0])}")
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
