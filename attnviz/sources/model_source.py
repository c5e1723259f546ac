"""A pretrained model of transformers as a source of attention on texts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from attnviz.errors import ConfigError, InputError
from attnviz.layer_attention import LayerAttention
from attnviz.machine import require_memory
from attnviz.measures.token_kinds import SEPARATOR, SPECIAL, kind_of
from attnviz.merging import with_pieces
from attnviz.pipeline import Collector, Line, Pass, Progress, Tokenized
from attnviz.scores import Scores
from attnviz.sources.call_tensors import KEEPABLE, kept_of, mask_names, review, taps_for
from attnviz.sources.capturing import Call, capture
from attnviz.sources.encoding import Encoded, encode, joined, shifted_right
from attnviz.sources.generating import Writing, side_by_side, write
from attnviz.sources.layer_pass import real_rows
from attnviz.sources.loading import (
    LoadedModel,
    choose_device,
    load_model,
    outline_model,
)
from attnviz.sources.model_blocks import (
    beginning,
    bytes_of_flow,
    in_blocks,
    prove,
    require_interface,
)
from attnviz.sources.model_forward import (
    forward,
    learned_positions,
    longest_text,
    require_known,
)
from attnviz.sources.model_options import ModelOptions
from attnviz.sources.subwords import pieces_of, readable, respelled
from attnviz.sources.towers import (
    choose_layers,
    choose_tower,
    layer_numbers,
    members,
    n_heads,
    tower_names,
)
from attnviz.tokens import Batch, Text, Texts
from attnviz.trace import Step
from attnviz.wording import noun_for, plural


class EncodedTexts:
    """See `Tokenized`; tokens are made readable when somebody looks at them."""

    words: tuple[int, ...]

    def __init__(
        self,
        queries: Encoded,
        others: Encoded | None,
        shown: Callable[[Encoded], Batch],
        notes: Sequence[str] = (),
        crosses: bool = False,
    ) -> None:
        """`others` are the encoder's, of an encoder–decoder; the maps' keys where it `crosses`."""
        self.encoded, self.others, self.notes = queries, others, tuple(notes)
        self.crosses, self._shown = crosses, shown
        self.words = queries.words[0] if queries.words else ()

    @cached_property
    def queries(self) -> Batch:
        return self._shown(self.encoded)

    @cached_property
    def keys(self) -> Batch | None:
        return self._shown(self.others) if self.crosses and self.others is not None else None

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return self.encoded.lengths

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """`[B T]`."""
        return self.encoded.padded(self.encoded.ids, self.encoded.pad_id)

    @property
    def n_cut(self) -> int:
        return self.encoded.n_cut

    @property
    def n_keys(self) -> int:
        """Tk."""
        return self.others.width if self.crosses and self.others else self.encoded.width


class ModelSource:
    """A model whose configuration has been read, and whose weights have not yet."""

    needs_text = True

    def __init__(
        self,
        options: ModelOptions,
        progress: Progress | None = None,
        generates: bool | None = None,
    ) -> None:
        """`generates`: with its language head, which `losses` needs; where the options continue a
        text when None."""
        self._device = choose_device(options.device)
        self._loaded: LoadedModel | None = None
        self._outline: Any = outline_model(
            options.model,
            revision=options.revision,
            trust_remote_code=options.trust_remote_code,
            generates=options.generate is not None if generates is None else generates,
            progress=progress,
        )
        self._open(options)

    @classmethod
    def of_loaded(cls, loaded: LoadedModel, options: ModelOptions) -> ModelSource:
        """A source of a model that has been loaded already."""
        source = cls.__new__(cls)
        source._adopt(loaded, options)
        return source

    def _adopt(self, loaded: LoadedModel, options: ModelOptions) -> None:
        self._loaded, self._outline = loaded, loaded
        self._open(options)

    def _open(self, options: ModelOptions) -> None:
        """Find the tower, once the model's configuration is known."""
        self.options = options
        self._proofs: dict[tuple[int, ...], InputError | None] = {}
        network = self._outline.network
        self.tower = self._choose_tower()
        self.layer_numbers = layer_numbers(network, self.tower)
        self.n_heads = n_heads(network, self.tower)
        self.name = f"{_end_of_path(self._outline.source)}, {self.tower}"

    def _choose_tower(self) -> str:
        outline, options = self._outline, self.options
        has_keys = options.has_keys or options.generate is not None
        return choose_tower(outline.network, outline.source, options.attention, has_keys)

    def require_one_text(self) -> None:
        """Raise `InputError` where the tower needs two texts; a corpus has one per document."""
        if self._has_both and self.tower != "encoder":
            raise InputError(
                f"--attention {self.tower}: a corpus has one text a document, and the {self.tower} "
                f"of {self._outline.source} wants two; stats measures its encoder"
            )

    @property
    def _has_both(self) -> bool:
        """Whether the model is an encoder and a decoder."""
        return bool(getattr(self._outline.config, "is_encoder_decoder", False))

    def loaded(self, progress: Progress | None = None) -> LoadedModel:
        """The model with its weights; they are read once."""
        if self._loaded is None:
            self._loaded = load_model(
                self._outline, dtype=self.options.dtype, device=self._device, progress=progress
            )
        return self._loaded

    # ── tokens ──

    @cached_property
    def _tokenizer(self) -> Any:
        loaded = self.loaded()
        if loaded.tokenizer is None:
            if loaded.processor is not None:
                raise InputError(
                    f"{loaded.source} reads no text; --image FILE or --audio FILE is for it"
                )
            raise InputError(f"{loaded.source} has no tokenizer that could be read")
        return loaded.tokenizer

    @cached_property
    def token_kinds(self) -> npt.NDArray[np.int64]:
        """`[V]`: what kind of token each id is, from the tokenizer's lists and its spelling."""
        vocabulary = self._tokenizer.get_vocab()
        kinds = np.zeros(max(vocabulary.values()) + 1, dtype=np.int64)
        for token, number in vocabulary.items():
            kinds[number] = kind_of(token)
        special = self._tokenizer.all_special_ids
        kinds[[number for number in special if number < len(kinds)]] |= SPECIAL
        for number in (self._tokenizer.sep_token_id, self._tokenizer.eos_token_id):
            if number is not None:
                kinds[number] |= SEPARATOR | SPECIAL
        return kinds

    def tokens(self, texts: Texts) -> EncodedTexts:
        notes = list(texts.notes)
        loaded, options, reads = self.loaded(), self.options, self.tower in ("decoder", "cross")
        if options.generate is not None:
            if texts.keys is not None:
                raise ConfigError(
                    "--keys and --generate: the model writes the queries; give it TEXT alone"
                )
            prompt = self._checked(texts.queries, notes, "right")
            return self._encoded(prompt, prompt if self._has_both else None, notes)
        if not (self._has_both and reads):
            if texts.keys is not None:
                raise ConfigError(
                    f"--keys: the {self.tower} of {loaded.source} looks at its own text alone"
                )
            return self._encoded(self._checked(texts.queries, notes), None, notes)
        if texts.keys is None:
            raise ConfigError(
                f"--attention {self.tower}: {loaded.source} needs a text for its encoder as well: "
                "give it with --keys (TEXT is what the decoder writes), or let it write with "
                "--generate"
            )
        if len(texts.keys) != len(texts.queries):
            raise InputError(
                f"there are {plural(len(texts.queries), 'text')} and {len(texts.keys)} --keys; "
                "give as many, or 1"
            )
        tokenizer = self._tokenizer
        start = loaded.config.decoder_start_token_id
        start = tokenizer.bos_token_id if start is None else start
        written, more = encode(tokenizer, texts.queries, options.max_len, options.pad_side)
        notes += more
        name = str(tokenizer.convert_ids_to_tokens(start))
        shifted = shifted_right(written, start, tokenizer.eos_token_id, name)
        return self._encoded(shifted, self._checked(texts.keys, notes), notes)

    def _encoded(
        self, queries: Encoded, others: Encoded | None, notes: Sequence[str]
    ) -> EncodedTexts:
        return EncodedTexts(queries, others, self._shown, notes, self.tower == "cross")

    def _shown(self, encoded: Encoded) -> Batch:
        """The batch with its tokens as they are shown."""
        raw = self.options.raw_tokens
        return encoded.batch(encoded.raw if raw else readable(self._tokenizer, encoded))

    def _checked(
        self, texts: Sequence[Text], notes: list[str], pad_side: str | None = None
    ) -> Encoded:
        """Encoded texts.

        Raises `InputError` where one has more tokens than positions were learned, or other tokens.
        """
        loaded, side = self.loaded(), pad_side or self.options.pad_side
        encoded, more = encode(self._tokenizer, texts, self.options.max_len, side)
        notes += more
        require_known(loaded, encoded)
        longest = self._longest
        if longest is not None and encoded.width > longest:
            has = f"sequence {int(encoded.lengths.argmax())} has {encoded.width:,} tokens"
            if self._learned is not None:
                raise InputError(
                    f"{has}, and {loaded.source} has learned {longest:,} positions; "
                    f"--max-len {longest} cuts it"
                )
            notes.append(f"{has}, more than the {longest:,} that {loaded.source} was made for")
        return encoded

    @cached_property
    def _longest(self) -> int | None:
        return longest_text(self.loaded())

    @cached_property
    def _learned(self) -> int | None:
        return learned_positions(self.loaded().network)

    def join(self, parts: Sequence[Tokenized]) -> EncodedTexts:
        rows = [part.encoded for part in parts if isinstance(part, EncodedTexts)]
        return self._encoded(joined(rows, "right"), None, ())

    # ── memory ──

    def bytes_needed(
        self,
        tokens: Tokenized,
        layers: Collection[int] | None = None,
        by_rows: bool = False,
    ) -> int:
        assert isinstance(tokens, EncodedTexts)
        if self.options.generate is not None:
            return 0  # maps that are put together from parts are whole
        encoded = tokens.encoded
        batch, queries = len(encoded.ids), encoded.width
        if by_rows:
            return bytes_of_flow(self.loaded(), batch * queries)
        n_layers = len(self.layer_numbers) if layers is None else len(set(layers))
        return self._bytes_of_maps(n_layers, batch, queries, tokens.n_keys)

    def _bytes_of_maps(self, n_layers: int, batch: int, queries: int, keys: int) -> int:
        """The maps that are kept with their masks; scores and weights of one layer, several times.

        The pass itself comes on top where it is larger.
        """
        cells = batch * queries * keys
        item = max(4, next(iter(self._outline.network.parameters())).element_size())
        return int(n_layers * cells * (self.n_heads * item + 1) + 4 * cells * self.n_heads * item)

    def _require_maps(self, n_layers: int, batch: int, queries: int, keys: int) -> None:
        """Raise `InputError` when the maps would not fit in memory."""
        require_memory(
            self._bytes_of_maps(n_layers, batch, queries, keys),
            f"attention for {batch} × {n_layers} layers × {self.n_heads} heads × {queries} queries "
            f"× {keys} keys",
            "keep fewer layers with --layers, or cut the text with --max-len",
        )

    def can_stream(self, tokens: Tokenized) -> bool:
        try:
            self._require_rows(tokens, self.layer_numbers)
        except InputError:
            return False
        return True

    def _require_rows(self, tokens: Tokenized, numbers: tuple[int, ...]) -> None:
        """Raise `InputError` where rows of these layers are not the model's own weights.

        This is proved once, on the beginning of a text, against the family's own arithmetic.
        """
        assert isinstance(tokens, EncodedTexts)
        if self.options.generate is not None:
            raise ConfigError("--generate needs whole maps: leave the flags for long texts out")
        if numbers not in self._proofs:
            self._proofs[numbers] = self._proof_fails(tokens, numbers)
        failure = self._proofs[numbers]
        if failure is not None:
            raise failure

    def _proof_fails(self, tokens: EncodedTexts, numbers: tuple[int, ...]) -> InputError | None:
        loaded = self.loaded()
        short = beginning(tokens.encoded), tokens.others and beginning(tokens.others)
        try:
            require_interface(loaded, self.tower)
            run = partial(forward, loaded, self.tower, *short, _nothing)
            prove(loaded, self.tower, numbers, run)
        except InputError as error:
            return error
        return None

    # ── the pass ──

    def run(
        self,
        tokens: Tokenized,
        collector: Collector,
        layers: Collection[int] | None = None,
        progress: Progress | None = None,
    ) -> Pass:
        assert isinstance(tokens, EncodedTexts)
        loaded = self.loaded(progress)
        numbers = choose_layers(loaded.network, self.tower, layers)
        if progress is not None:
            progress("computing attention")
        if collector.by_rows:
            return self._run_by_rows(loaded, tokens, collector, numbers)
        if self.options.generate is not None:
            return self._run_writing(loaded, tokens, collector, numbers, progress)
        return self._run_whole(loaded, tokens, collector, numbers, layers is None, progress)

    def _run_by_rows(
        self,
        loaded: LoadedModel,
        tokens: EncodedTexts,
        collector: Collector,
        numbers: tuple[int, ...],
    ) -> Pass:
        """One pass in which queries and keys are handed over, and no map is whole."""
        self._require_rows(tokens, numbers)
        encoded = tokens.encoded
        n_maps = len(numbers) * len(encoded.ids) * self.n_heads
        kept = 0
        if getattr(collector, "keeps", False):
            width = int(getattr(loaded.config, "hidden_size", 1024))
            kept = 2 * len(encoded.ids) * encoded.width * width * 4 * len(numbers)
        require_memory(
            self.bytes_needed(tokens, numbers, True)
            + collector.bytes_of_maps(n_maps, encoded.width)
            + kept,
            f"a long run of {len(encoded.ids) * encoded.width:,} tokens through {loaded.source}",
            "keep fewer layers with --layers, or give a smaller --pool",
        )
        queries, keys = tokens.queries, tokens.keys or tokens.queries
        masks: dict[str, None] = {}
        notes: list[str] = []
        alone, starts = real_rows(queries), (queries.starts.tolist(), keys.starts.tolist())

        def hand_over(layer: int, scores: Scores) -> None:
            masks.update(dict.fromkeys(rule.name for rule in scores.rules))
            scores = replace(
                scores,
                rules=(*scores.rules, alone),
                query_starts=starts[0],
                key_starts=starts[1],
            )
            collector.visit(LayerAttention(layer, scores))

        with torch.no_grad(), in_blocks(loaded.network, self.tower, hand_over, numbers, stop=True):
            forward(loaded, self.tower, encoded, tokens.others, notes.append)
        dtype = str(next(iter(loaded.network.parameters())).dtype).removeprefix("torch.")
        about = {**self._about(dtype), "masks": tuple(masks), "layers": numbers}
        return Pass(queries, tokens.keys, lambda: about, notes=notes)

    def _run_whole(
        self,
        loaded: LoadedModel,
        tokens: EncodedTexts,
        collector: Collector,
        numbers: tuple[int, ...],
        any_will_do: bool,
        progress: Progress | None,
    ) -> Pass:
        """One observed pass: the full map of each layer as it comes."""
        encoded, others = tokens.encoded, tokens.others
        self._require_maps(len(numbers), len(encoded.ids), encoded.width, tokens.n_keys)
        notes: list[str] = []
        hand_over = HandOver(collector, self._keep(collector))
        known = tower_names(loaded.network)
        only = [self.tower] if len(known) > 1 else None
        grads = torch.no_grad() if collector.is_traced else torch.inference_mode()
        with ExitStack() as hooks, grads:
            hooks.enter_context(
                capture(
                    loaded.network,
                    numbers,
                    taps_for(hand_over.keep),
                    only,
                    trace=collector.is_traced,
                    each=hand_over,
                )
            )
            if progress is not None:
                done = count(1)
                of_all = f"of {len(self.layer_numbers)} layers are through"
                for module in members(loaded.network, self.tower):
                    hook = module.register_forward_hook(
                        lambda *_: progress(f"computing attention, {next(done)} {of_all}")
                    )
                    hooks.callback(hook.remove)
            forward(loaded, self.tower, encoded, others, notes.append, collector.is_traced)
        if only is None and hand_over.seen:  # its mask tells what it is
            self.tower = hand_over.tower
        _require_layers(loaded, numbers, hand_over.seen, any_will_do, notes.append)
        return Pass(
            tokens.queries,
            tokens.keys,
            lambda: self._about_maps(hand_over, tokens),
            steps=hand_over.steps,
            notes=notes,
            review=partial(review, dtype=hand_over.dtype),
        )

    def _run_writing(
        self,
        loaded: LoadedModel,
        tokens: EncodedTexts,
        collector: Collector,
        numbers: tuple[int, ...],
        progress: Progress | None,
    ) -> Pass:
        """Each text by itself, continued by the model; then all maps side by side."""
        options, prompt = self.options, tokens.encoded
        assert options.generate is not None
        if self._keep(collector):
            raise ConfigError("--keep and --generate: nothing but weights is kept of the steps")
        if self.tower not in ("decoder", "cross"):
            raise ConfigError(
                f"--generate: {loaded.source} shows its {self.tower}, which writes nothing"
            )
        rows, longest = self._require_positions(loaded, prompt)
        self._require_maps(len(numbers), len(prompt.ids), rows, longest)
        done = count(1)

        def advance() -> None:
            if progress is not None:
                progress(f"computing attention, {next(done)} tokens written")

        how = Writing(options.generate, options.temperature, options.seed, advance)
        written = [write(loaded, self.tower, ids, numbers, how) for ids in prompt.ids]
        hand_over = HandOver(collector, ())
        for call in side_by_side([one.calls for one in written]):
            hand_over(call)
        queries = respelled(self._tokenizer, [one.ids for one in written], "right")
        n_prompt = tuple(one.n_prompt for one in written)
        text = EncodedTexts(queries, tokens.others, self._shown, (), tokens.crosses)
        answers = [
            str(self._tokenizer.decode(list(ids[n:])))
            for ids, n in zip(queries.ids, n_prompt, strict=True)
        ]
        return Pass(
            text.queries,
            text.keys,
            lambda: self._about_maps(hand_over, text, n_prompt),
            steps=hand_over.steps,
            answers=[
                (f"answer {i}", f"after {plural(n, 'token')}: {answer}")
                for i, (n, answer) in enumerate(zip(n_prompt, answers, strict=True))
            ],
            review=partial(review, dtype=hand_over.dtype),
        )

    def _require_positions(self, loaded: LoadedModel, prompt: Encoded) -> tuple[int, int]:
        """(rows, columns) of the maps. Raises `InputError` where positions run out."""
        assert self.options.generate is not None
        longest = prompt.width + (0 if self._has_both else self.options.generate)
        room = self._longest
        if room is not None and longest > room and not self._has_both and self._learned is not None:
            fits = (
                f"--generate {room - prompt.width} fits"
                if room > prompt.width
                else "--max-len cuts it"
            )
            raise InputError(
                f"--generate {self.options.generate} after {prompt.width:,} tokens: "
                f"{loaded.source} has learned {room:,} positions; {fits}"
            )
        return (self.options.generate + 1 if self._has_both else longest), longest

    def _keep(self, collector: Collector) -> tuple[str, ...]:
        return tuple(name for name in collector.keep if name in KEEPABLE)

    # ── what ran ──

    def _about(self, dtype: str) -> dict[str, Any]:
        outline = self._outline
        return {
            "config": {
                "model": outline.name,
                "model_type": outline.config.model_type,
                "attention": self.tower,
                "dtype": dtype,
            },
            "source": f"{outline.name}, {self.tower}",
            "trained": True,
        }

    def _about_maps(
        self, hand_over: HandOver, tokens: EncodedTexts, n_prompt: tuple[int, ...] = ()
    ) -> dict[str, Any]:
        """The fields of an `Attention` that say what ran."""
        tokenizer, queries = self._tokenizer, tokens.encoded
        keys = tokens.others if tokens.crosses and tokens.others is not None else queries
        of_queries = pieces_of(tokenizer, queries, n_prompt)
        of_keys = of_queries if keys is queries else pieces_of(tokenizer, keys)
        about = self._about(hand_over.dtype)
        return {
            **about,
            "config": with_pieces(about["config"], of_queries, of_keys),
            "masks": mask_names(hand_over.masks, queries.valid, keys.valid, self.tower),
            "layers": tuple(sorted(hand_over.seen)),
            "n_prompt": n_prompt,
        }

    def report(self, done: Pass) -> list[Line]:
        """The model by name, the sizes of its attention, the layers that are kept."""
        about = done.about
        config, kept = about["config"], about["layers"]
        heads = f"{self.n_heads} heads"
        sizes = {axis: size for s in done.steps for axis, size in zip(s.axes, s.shape, strict=True)}
        if "Hkv" in sizes:
            heads += f" on {sizes['Hkv']} key/value heads"
        widths = [f"{axis} {sizes[axis]}" for axis in ("d_k", "d_v") if axis in sizes]
        layers = f"{len(self.layer_numbers)} layers of {heads}"
        lines = [
            ("model", f"{self._outline.name} ({config['model_type']}), its {self.tower}: {layers}"),
            ("", ", ".join([*widths, config["dtype"], "trained"])),
        ]
        if len(kept) < len(self.layer_numbers):
            lines.append(("", f"kept: {noun_for(len(kept), 'layer')} {', '.join(map(str, kept))}"))
        elif done.steps:
            lines.append(("", f"the trace is of layer {kept[0]}, as its code handed it over"))
        return [*lines, *done.answers]

    # ── what a probe needs ──

    def n_probe_words(self) -> int:
        """How many ordinary tokens there are."""
        return int((self.token_kinds == 0).sum())

    def probe(self, rows: Sequence[Sequence[int]]) -> list[EncodedTexts]:
        """A text of ordinary tokens for each row of numbers, that starts and ends as texts do."""
        ordinary, tokenizer = np.flatnonzero(self.token_kinds == 0), self._tokenizer
        starts = (tokenizer.cls_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id)
        first = next(((int(n),) for n in starts if n is not None), ())
        last = () if tokenizer.sep_token_id is None else (int(tokenizer.sep_token_id),)
        ids = [(*first, *(int(ordinary[number]) for number in row), *last) for row in rows]
        return [self._encoded(respelled(tokenizer, [row], "right"), None, ()) for row in ids]

    def losses(self, tokens: Tokenized) -> npt.NDArray[np.float64] | None:
        """`[B T-1]`, in nats: of each token from those before; None where nothing predicts any."""
        assert isinstance(tokens, EncodedTexts)
        loaded, encoded = self.loaded(), tokens.encoded
        with torch.inference_mode():
            done = forward(loaded, self.tower, encoded, None, _nothing, False)
        logits = getattr(done, "logits", None)
        if logits is None or self.tower != "decoder":
            return None
        ids = torch.from_numpy(encoded.padded(encoded.ids, encoded.pad_id))
        targets = ids[:, 1:].to(logits.device)
        losses = torch.nn.functional.cross_entropy(
            logits[:, :-1].double().transpose(1, 2), targets, reduction="none"
        )
        return np.asarray(losses.cpu().numpy())


class HandOver:
    """Gives each call of a model to a collector, and remembers what is known of all."""

    def __init__(self, collector: Collector, keep: Sequence[str]) -> None:
        self._collector, self.keep = collector, tuple(keep)
        self.masks: list[tuple[int, tuple[int, ...], Any]] = []
        self.steps: Sequence[Step] = ()
        self.tower, self.dtype = "", ""
        self.seen: set[int] = set()

    def __call__(self, call: Call) -> None:
        if call.steps:
            self.steps = self.steps or call.steps  # it grows while the layer runs
        self.tower, self.dtype = call.tower, str(call.weights.dtype).removeprefix("torch.")
        self.seen.add(call.layer)
        shape = tuple(call.weights.shape)
        if self._collector.is_traced:
            self.masks.append((call.layer, shape, call.allowed))
        exact = call.weights.dtype is torch.float64
        weights = call.weights if exact else call.weights.float()
        self._collector.visit(
            LayerAttention(
                call.layer,
                compute=lambda: (None, weights),
                mask=lambda: call.allowed,
                kept=partial(kept_of, call, self.keep, self.steps),
            )
        )


def _nothing(_: str) -> None:
    """Notes on a text are taken when all of it runs."""


def _end_of_path(source: str) -> str:
    """The end of a long path: the model's folder, and the one that holds it."""
    return "/".join(source.rstrip("/").split("/")[-2:])


def _require_layers(
    loaded: LoadedModel,
    numbers: Sequence[int],
    seen: Collection[int],
    any_will_do: bool,
    say: Callable[[str], None],
) -> None:
    """Raise `InputError` where a layer that was asked for has shown no weights.

    Hybrid models have layers that mix tokens without softmax (linear attention).
    """
    missing = [number for number in numbers if number not in seen]
    if not missing:
        return
    which = f"{noun_for(len(missing), 'layer')} {','.join(map(str, missing))} of {loaded.source}"
    if not seen:
        raise InputError(f"{which} computed no attention weights that could be seen")
    if any_will_do:
        say(f"{which} computed no attention weights")
        return
    shown = ",".join(map(str, sorted(seen)))
    raise InputError(
        f"{which} computed no attention weights; --layers {shown} leaves out what has none"
    )
