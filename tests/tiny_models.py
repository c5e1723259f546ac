"""Tiny models with random numbers and a tokenizer of a few words, as they come from a folder."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from attnviz.sources.loading import LoadedModel

WORDS = "the cat sat on mat because it was tired dog ran un ##believ ##able , . '".split()  # noqa: SIM905 - a list of this length is read more easily so
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]


def tokenizer(specials: bool = True, **more: Any) -> Any:
    """WordPiece with `[CLS]` … `[SEP]` around, or nothing around; ids are places in VOCABULARY."""
    ids = {token: i for i, token in enumerate(VOCABULARY)}
    backend = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if specials:
        around = [("[CLS]", 2), ("[SEP]", 3)]
        backend.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, around)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        eos_token="[SEP]",
        bos_token="[CLS]",
        **more,
    )


def tiny(kind: str, specials: bool = True, spread: float = 0.3, **sizes: Any) -> LoadedModel:
    """A model of the class `kind`, its matrices normal with a standard deviation of `spread`."""
    torch.manual_seed(0)
    family = getattr(transformers, kind)
    usual = {"vocab_size": len(VOCABULARY), "pad_token_id": 0, "eos_token_id": 3}
    model = family(family.config_class(**{**usual, **sizes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # larger than usual: heads that look at something
            if parameter.ndim > 1:
                parameter.normal_(0, spread)
    return LoadedModel(f"tiny {kind}", "tiny", model, tokenizer(specials))


BERT = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 29,
    "max_position_embeddings": 31,
}
LLAMA = BERT | {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8}
GPT2 = {"n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 31, "bos_token_id": 2}
T5 = {
    "d_model": 24,
    "d_kv": 8,
    "d_ff": 29,
    "num_layers": 2,
    "num_heads": 3,
    "decoder_start_token_id": 0,
}
