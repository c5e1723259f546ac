"""A pretrained model as a source: one forward pass a batch, each layer's weights as they come."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from attnviz.corpus.documents import Document
from attnviz.corpus.layers import annotations_of
from attnviz.corpus.rows import LONGEST, head_rows
from attnviz.corpus.source import Ready, Take
from attnviz.errors import InputError, printable
from attnviz.machine import free_memory, human_bytes
from attnviz.measures.block import Block, Texts, make_side
from attnviz.measures.induction import TOKENS, repeated
from attnviz.measures.words import SEPARATOR, SPECIAL, kind_of
from attnviz.sources.capturing import Call, capture
from attnviz.sources.from_pretrained import learned_positions
from attnviz.sources.loading import LoadedModel, blaming
from attnviz.sources.model_blocks import (
    PROVED,
    bytes_of_flow,
    in_blocks,
    prove,
    require_interface,
)
from attnviz.sources.run import as_array
from attnviz.sources.towers import choose_tower, layer_numbers, n_heads
from attnviz.streaming import LongAttention


class Model:
    """A model that is measured; see `Source`.

    Batches are padded on the right, whatever side the tokenizer prefers: positions then count from
    each text's first token in every family, and nobody looks at padding.

    A text of more than `longest` tokens runs alone, and no map of it is whole: weights are made
    some rows at a time, as for `attnviz run`, where that is proved to give the model's own.
    """

    def __init__(
        self, loaded: LoadedModel, attention: str | None = None, max_len: int | None = None
    ) -> None:
        if loaded.tokenizer is None:
            raise InputError(f"{loaded.source} has no tokenizer that could be read")
        self._loaded, self._tokenizer = loaded, loaded.tokenizer
        self.tower = choose_tower(loaded.network, loaded.source, attention, False)
        self._of_two = bool(getattr(loaded.config, "is_encoder_decoder", False))
        if self._of_two and self.tower != "encoder":
            raise InputError(
                f"--attention {self.tower}: a corpus has one text a document, and the {self.tower} "
                f"of {loaded.source} wants two; stats measures its encoder"
            )
        self.layer_numbers = layer_numbers(loaded.network, self.tower)
        self.n_heads = n_heads(loaded.network, self.tower)
        self.limit = _positions(loaded)
        self._max_len = max_len
        self.name = f"{_short(loaded.source)}, {self.tower}"
        self._kinds = _kinds(self._tokenizer)
        self.longest: int | None = LONGEST
        self._is_proved = False

    @property
    def n_layers(self) -> int:
        return len(self.layer_numbers)

    def ready(self, document: Document) -> Ready:
        words = isinstance(document.content, tuple)
        wanted: dict[str, Any] = {"is_split_into_words": True} if words else {}
        content: Any = list(document.content) if words else document.content
        try:
            made = self._tokenizer(content, verbose=False, **wanted)
            length = len(made["input_ids"])
            cut = self._max_len is not None and length > self._max_len
            if cut:
                wanted |= {"truncation": True, "max_length": self._max_len}
                made = self._tokenizer(content, verbose=False, **wanted)
        except Exception as error:  # tokenizers raise what they like
            raise InputError(f"fails in the model's tokenizer: {printable(error)}") from None
        ids = made["input_ids"]
        if not ids:
            raise InputError("has no tokens")
        if self.limit is not None and len(ids) > self.limit:
            raise InputError(
                f"has {length:,} tokens, and the model {self.limit:,} positions; "
                f"--max-len {self.limit} cuts it"
            )
        if len(ids) > LONGEST:
            self._require_room(len(ids))
        numbers: tuple[int, ...] = ()
        if document.pairs is not None:
            if cut:
                raise InputError("is annotated, and longer than --max-len")
            if self.longest is not None and len(ids) > self.longest:
                raise InputError(f"is annotated, and longer than {self.longest:,} tokens")
            numbers = tuple(-1 if word is None else word for word in made.word_ids())
        return Ready(document, tuple(ids), (), numbers, cut)

    def attend(self, batch: Sequence[Ready], take: Take) -> None:
        ids, lengths = _padded(batch)
        texts = self._texts(batch, ids, lengths)
        real = texts.keys.real
        index = {number: i for i, number in enumerate(self.layer_numbers)}
        if self.longest is not None and ids.shape[1] > self.longest:
            self._stream(ids, real, index, texts, take)
            return

        masks: dict[Hashable, tuple[npt.NDArray[np.bool_], Any]] = {}

        def measure(call: Call) -> None:
            weights = as_array(call.weights)
            if weights.shape[1] != self.n_heads:
                raise InputError(
                    f"layer {call.layer} has {weights.shape[1]} heads, others {self.n_heads}: "
                    "they have no table in common"
                )
            key: Hashable = None
            if call.allowed is not None:
                key = (call.allowed.data_ptr(), call.allowed.shape, call.allowed.stride())
            if key not in masks:  # layers share theirs, and what is reckoned from it
                allowed = np.broadcast_to(real[:, None, None], (len(ids), 1, *weights.shape[2:]))
                if call.allowed is not None:
                    allowed = allowed & call.allowed.numpy()
                masks[key] = (allowed, call.allowed)
            take(Block(index[call.layer], weights, texts, masks[key][0]))

        with capture(self._loaded.network, None, (), [self.tower], each=measure):
            self._forward(ids, real)

    def _stream(
        self,
        ids: npt.NDArray[np.int64],
        real: npt.NDArray[np.bool_],
        index: Mapping[int, int],
        texts: Texts,
        take: Take,
    ) -> None:
        """One text, layer by layer as it runs: no map is whole."""

        def each(layer: int, attention: LongAttention) -> None:
            for heads, rows, weights, allowed in head_rows(attention):
                made, start = as_array(weights), rows.start
                take(Block(index[layer], made, texts, allowed, start, first_head=heads.start))

        with in_blocks(self._loaded.network, self.tower, each, self.layer_numbers, stop=True):
            self._forward(ids, real)

    def _require_room(self, n: int) -> None:
        """Raise `InputError` where a text of `n` tokens, more than `LONGEST`, takes more memory
        than there is. The first such text tells whether the family can be streamed."""
        if not self._is_proved:
            self._is_proved = True
            try:
                self._prove()
            except InputError:
                self.longest = None
        needed, free, how = bytes_of_flow(self._loaded, n), free_memory(), ""
        if self.longest is None:
            # a layer's scores, masked, as weights, and those that are measured
            needed += 4 * self.n_heads * n * n * 4
            how = ", since this family computes its maps whole"
        if needed > free:
            raise InputError(
                f"has {n:,} tokens, which take {human_bytes(needed)} of memory{how}, and "
                f"{human_bytes(free)} are free; --max-len cuts it"
            )

    def _prove(self) -> None:
        require_interface(self._loaded, self.tower)
        ordinary = np.flatnonzero(self._kinds == 0)
        rng = np.random.default_rng(0)
        ids = rng.choice(ordinary, (1, min(PROVED, self.limit or PROVED)))
        real = np.ones(ids.shape, dtype=np.bool_)
        prove(self._loaded, self.tower, self.layer_numbers, lambda: self._forward(ids, real))

    def tokens(self, ready: Ready) -> tuple[str, ...]:
        return tuple(map(str, self._tokenizer.convert_ids_to_tokens(list(ready.ids))))

    def probe(self, n: int, seed: int) -> list[Ready]:
        """Random ordinary tokens, after the token that texts of the model begin with."""
        ordinary = np.flatnonzero(self._kinds == 0)
        if len(ordinary) < TOKENS:
            raise InputError(f"--probe induction wants {TOKENS} ordinary tokens")
        first = self._first_token()
        last = self._tokenizer.sep_token_id
        end = () if last is None else (last,)
        return [
            Ready(
                Document(i, f"probe {i}", ""),
                (*first, *repeated(ordinary, seed + i).tolist(), *end),
            )
            for i in range(n)
        ]

    def losses(self, batch: Sequence[Ready]) -> npt.NDArray[np.float64] | None:
        ids, lengths = _padded(batch)
        real = np.arange(ids.shape[1]) < lengths[:, None]
        logits = getattr(self._forward(ids, real), "logits", None)
        if logits is None or self.tower != "decoder":
            return None
        targets = torch.from_numpy(ids[:, 1:]).to(logits.device)
        found = torch.nn.functional.cross_entropy(
            logits[:, :-1].double().transpose(1, 2), targets, reduction="none"
        )
        return np.asarray(found.cpu().numpy())

    def _first_token(self) -> tuple[int, ...]:
        tokenizer = self._tokenizer
        for number in (tokenizer.cls_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id):
            if number is not None:
                return (int(number),)
        return ()

    def _texts(
        self,
        batch: Sequence[Ready],
        ids: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
    ) -> Texts:
        side = make_side(ids, lengths, self._kinds[ids])
        numbers = tuple(each.document.number for each in batch)
        return Texts(numbers, side, side, annotations_of(batch))

    def _forward(self, ids: npt.NDArray[np.int64], real: npt.NDArray[np.bool_]) -> Any:
        network, device = self._loaded.network, self._loaded.device
        given: dict[str, Any] = {"input_ids": torch.from_numpy(ids).to(device)}
        if not real.all():  # a mask of nothing costs a pass over each layer's scores all the same
            given["attention_mask"] = torch.from_numpy(real.astype(np.int64)).to(device)
        with torch.inference_mode(), blaming(self._loaded, "this text"):
            if self._of_two:
                return network.get_encoder()(**given)
            if self.tower == "text" and hasattr(network, "get_text_features"):
                return network.get_text_features(**given)
            if self.tower == "decoder":
                given["use_cache"] = False
            return network(**given)


def _short(source: str) -> str:
    """The end of a long path: the model's folder, and the one that holds it."""
    return "/".join(source.rstrip("/").split("/")[-2:])


def _padded(batch: Sequence[Ready]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """`[B T]` ids, 0 where there is no token, and `[B]` lengths."""
    lengths = np.array([len(each) for each in batch], dtype=np.int64)
    ids = np.zeros((len(batch), int(lengths.max())), dtype=np.int64)
    for row, each in zip(ids, batch, strict=True):
        row[: len(each)] = each.ids
    return ids, lengths


def _positions(loaded: LoadedModel) -> int | None:
    """How many tokens the model can take; None where it has not learned its positions."""
    learned = learned_positions(loaded.network)
    if learned is None:
        return None
    stated = getattr(loaded.config, "max_position_embeddings", learned)
    return int(min(loaded.tokenizer.model_max_length, stated, learned))


def _kinds(tokenizer: Any) -> npt.NDArray[np.int64]:
    """`[V]`: what kind of token each id is, by the tokenizer's own word and by its spelling."""
    vocabulary = tokenizer.get_vocab()
    kinds = np.zeros(max(vocabulary.values()) + 1, dtype=np.int64)
    for token, number in vocabulary.items():
        kinds[number] = kind_of(token)
    kinds[[number for number in tokenizer.all_special_ids if number < len(kinds)]] |= SPECIAL
    for number in (tokenizer.sep_token_id, tokenizer.eos_token_id):
        if number is not None:
            kinds[number] |= SEPARATOR | SPECIAL
    return kinds
