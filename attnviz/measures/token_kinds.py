"""What kind of token a text is: separator, punctuation, special. By its spelling alone."""

from __future__ import annotations

from functools import lru_cache

SEPARATOR, PUNCTUATION, SPECIAL = 1, 2, 4
"""Bits of `kind_of`."""

SEPARATORS = frozenset(
    {"[SEP]", "<sep>", "</s>", "<eos>", "<|endoftext|>", "<|im_end|>", "<|end_of_text|>"}
)
"""Tokens that close a text or a part of it: BERT's [SEP], and what others use in its place."""

OTHER_SPECIALS = frozenset(
    {"[CLS]", "[PAD]", "[MASK]", "[UNK]", "<s>", "<pad>", "<mask>", "<unk>", "<bos>", "<cls>"}
    | {"<|begin_of_text|>", "<|im_start|>", "<|startoftext|>"}
)

MARKS = frozenset(".,。，、．،۔।։")
"""Periods and commas, which are what Clark et al. 2019 (section 3.2) count, of any script."""

_PREFIXES = ("##", "▁", "Ġ")  # WordPiece, SentencePiece, byte-level BPE


@lru_cache(maxsize=2**16)
def kind_of(token: str) -> int:
    """The bits `SEPARATOR`, `PUNCTUATION`, `SPECIAL` of one token."""
    if token in SEPARATORS:
        return SEPARATOR | SPECIAL
    if token in OTHER_SPECIALS:
        return SPECIAL
    bare = token
    for prefix in _PREFIXES:
        bare = bare.removeprefix(prefix) or bare
    return PUNCTUATION if bare in MARKS else 0
