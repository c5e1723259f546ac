"""A pretrained model from a folder, a `.gguf` file or the hub, ready to be looked at.

transformers does the loading; what is added here is one line where it fails, the memory known
before, and no noise. Code that comes with a model runs only when that is asked for, and weights in
pickle are read by transformers with `weights_only`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from logging import CRITICAL
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnviz.config import DEVICES, DTYPES, choice
from attnviz.errors import AttnvizError, ConfigError, InputError, printable
from attnviz.machine import human_bytes, require_memory, require_package
from attnviz.sources.attention_modules import AttentionPlace, places
from attnviz.sources.layer_pass import require_device
from attnviz.sources.locating import locate, name_of

HEADS = re.compile(r"pooler|head|classifier|logit|projection|position_ids|score")
"""Parameters that no attention needs: a checkpoint may be without them."""

SPARE = re.compile(r"pooler|position_ids")
"""Those that writing a text does not need either."""

Progress = Callable[[str], None]
"""Called with a few words when a stage of the loading begins."""


@dataclass(frozen=True, eq=False)
class Outline:
    """A model before its weights are loaded: what it is, and where its attention happens.

    `source` is what was given, `name` the short form for titles. `network` has no memory behind
    its parameters (torch's meta device).
    """

    source: str
    name: str
    config: Any
    network: nn.Module
    origin: Mapping[str, Any] = field(default_factory=dict)

    @property
    def towers(self) -> dict[str, list[AttentionPlace]]:
        """The stacks of layers with attention, each with its modules."""
        found: dict[str, list[AttentionPlace]] = {}
        for place in places(self.network).values():
            found.setdefault(place.tower, []).append(place)
        return found

    def n_bytes(self, dtype: str) -> int:
        """Bytes of all parameters."""
        return DTYPES[dtype] * sum(p.numel() for p in self.network.parameters())


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model with its weights, in eval mode, and what turns inputs into its numbers.

    `tokenizer` is for text, `processor` for images or sound; each is None where the model's
    folder has none.
    """

    source: str
    name: str
    network: Any
    tokenizer: Any = None
    processor: Any = None

    @property
    def config(self) -> Any:
        return self.network.config

    @property
    def device(self) -> torch.device:
        device: torch.device = next(iter(self.network.parameters())).device
        return device


def outline_model(
    source: str | Path,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    generates: bool = False,
    progress: Progress | None = None,
) -> Outline:
    """Read a model's configuration and build it without weights.

    `source` is a folder, a `.gguf` file, or a name on the hub (`owner/name`), of which `revision`
    may name a branch, tag or commit. Offline flags and the cache are huggingface_hub's own
    (HF_HUB_OFFLINE, HF_HOME). `generates` asks for the class with a language head. Raises
    `InputError` in one line when there is no model that transformers knows.
    """
    transformers = _transformers()
    shown = printable(source)
    where, options = locate(str(source))
    options |= {"trust_remote_code": trust_remote_code}  # left out, transformers would ask
    if revision is not None:
        if "local" in where:
            raise ConfigError(
                f"--revision {printable(revision)}: {shown} is a local model, not one on the hub"
            )
        options["revision"] = revision
    if progress is not None:
        progress(f"reading {shown}" if "local" in where else f"asking the hub for {shown}")
    if "name" in where and not _hub_answers():
        options["local_files_only"] = True  # the cache may have it
    place = where.get("local", where.get("name"))
    patches = _gguf_patches(options)
    with _understood(shown, trust_remote_code), quiet(), _patched(patches):
        config = transformers.AutoConfig.from_pretrained(place, **options)
        kind = _kind(transformers, config, generates, shown)
        with torch.device("meta"):
            network = kind.from_config(config, trust_remote_code=trust_remote_code)
    origin = {"place": place, "options": options, "kind": kind, "patches": patches}
    origin["spare"] = SPARE if generates else HEADS
    return Outline(shown, name_of(str(source), options), config, network, origin)


def load_model(
    source: str | Path | Outline,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    progress: Progress | None = None,
    **how: Any,
) -> LoadedModel:
    """Load a model and its tokenizer or processor; see `outline_model` for the other arguments.

    Raises `InputError` in one line when it cannot be loaded, when its checkpoint lacks parameters
    that attention needs (transformers would make up random ones), or does not fit in memory.
    """
    choice("--dtype", dtype, tuple(DTYPES))
    target = choose_device(device)
    outline = (
        source if isinstance(source, Outline) else outline_model(source, progress=progress, **how)
    )
    transformers = _transformers()
    needed = outline.n_bytes(dtype)
    require_memory(
        needed + needed // 8,
        f"{outline.source} in {dtype}",
        "give a smaller model, or --dtype bfloat16",
    )
    place, options, kind = (outline.origin[name] for name in ("place", "options", "kind"))
    if progress is not None:
        progress(f"loading {outline.source}, {human_bytes(needed)}")
    patched = partial(_patched, outline.origin["patches"])
    with _understood(outline.source, options["trust_remote_code"]), quiet(), patched():
        network, report = kind.from_pretrained(
            place,
            config=outline.config,
            dtype=getattr(torch, dtype),
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
            **options,
        )
    _require_whole(outline, network, report)
    network.to(target).eval()
    with quiet(), patched():
        tokenizer = _first(("AutoTokenizer",), transformers, place, options)
        processor = _first(
            ("AutoImageProcessor", "AutoFeatureExtractor"), transformers, place, options
        )
    return LoadedModel(outline.source, outline.name, network, tokenizer, processor)


def choose_device(device: str) -> str:
    """`auto` is the first of cuda, mps and cpu that is there. Raises `ConfigError` otherwise."""
    choice("--device", device, ("auto", *DEVICES))
    if device != "auto":
        require_device(device)
        return device
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


@contextmanager
def blaming(loaded: LoadedModel, what: str) -> Iterator[None]:
    """What a model's own code raises over its input, as an `InputError` in one line."""
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError, NotImplementedError) as error:
        raise InputError(
            f"{loaded.source} fails on {what}: {type(error).__name__}: {printable(error, 200)}"
        ) from error


# ── finding it ───────────────────────────────────────────────────────────────────────────────


def _transformers() -> Any:
    require_package("transformers", "--model", "models")
    try:
        return import_module("transformers")
    except ImportError as error:  # it does not fit what else is installed
        raise AttnvizError(f"transformers cannot be imported: {printable(error, 200)}") from None


def _hub_answers() -> bool:
    """Whether the hub can be reached, by its client's own session: one question, asked once.

    The client would ask for each file again and again, for half a minute.
    """
    hub: Any = import_module("huggingface_hub")
    try:
        hub.utils.get_session().head(hub.constants.ENDPOINT, timeout=10)
    except Exception:  # of the client's library, or that it is told to be offline
        return False
    return True


def _kind(transformers: Any, config: Any, generates: bool, shown: str) -> Any:
    """The Auto class: the bare model, or the one that can generate."""
    if not generates:
        return transformers.AutoModel
    from transformers.models.auto import modeling_auto

    both = bool(getattr(config, "is_encoder_decoder", False))
    if both and config.model_type in modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
        return transformers.AutoModelForSeq2SeqLM
    fills_in = config.model_type in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    writes = not both and config.model_type in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if not writes or (fills_in and not getattr(config, "is_decoder", False)):
        raise ConfigError(f"--generate: {shown} ({config.model_type}) does not generate text")
    return transformers.AutoModelForCausalLM


def _first(
    names: tuple[str, ...], transformers: Any, place: str, options: Mapping[str, Any]
) -> Any:
    """The first of the Auto classes that finds its files beside the model; None if none does."""
    for name in names:
        with suppress(Exception):  # each family's lack of a file shows in an error of its own
            found = getattr(transformers, name).from_pretrained(place, **options)
            # without a vocabulary, many families make a tokenizer that knows its marks alone
            if name != "AutoTokenizer" or len(found.get_vocab()) > len(found.all_special_ids) + 1:
                return found
    return None


def _require_whole(outline: Outline, network: nn.Module, report: Mapping[str, Any]) -> None:
    """Raise `InputError` when parameters that attention needs were not in the checkpoint, or of
    another size.

    Those that are reckoned and not learned, Marian's sines, need not be there.
    """
    spare: re.Pattern[str] = outline.origin["spare"]
    for name, stored, expected in sorted(report["mismatched_keys"]):
        if not spare.search(name):
            raise InputError(
                f"--model {outline.source}: {printable(name)} is {list(stored)} among its weights "
                f"and {list(expected)} by its config.json"
            )
    reckoned = {n for n, p in outline.network.named_parameters() if not p.requires_grad}
    lacking = set(report["missing_keys"]) - reckoned
    missing = sorted(name for name in lacking if not spare.search(name))
    if missing:
        total = len(network.state_dict())
        raise InputError(
            f"--model {outline.source}: {len(missing)} of {total} parameters are missing from its "
            f"checkpoint, {printable(missing[0])} among them; is it another model's?"
        )


# ── transformers' errors and noise ───────────────────────────────────────────────────────────


@contextmanager
def _understood(shown: str, trusted: bool) -> Iterator[None]:
    """What goes wrong inside, in one line."""
    try:
        yield
    except AttnvizError:
        raise
    except MemoryError:
        raise AttnvizError(f"--model {shown}: out of memory") from None
    except Exception as error:  # transformers, the hub and each family have errors of their own
        raise InputError(f"--model {shown}: {_reason(error, trusted)}") from error


def _reason(error: Exception, trusted: bool) -> str:
    text = str(error)
    if "trust_remote_code" in text and not trusted:
        return (
            "it needs code that comes with it; --trust-remote-code runs that code, if you trust it"
        )
    if "couldn't connect" in text or "offline" in text.lower():
        return "not found locally or in the cache, and the hub is unreachable"
    if "model type `" in text:
        kind = printable(text.partition("model type `")[2].partition("`")[0], 40)
        from transformers import __version__

        return f"its model_type '{kind}' is unknown to transformers {__version__}"
    if "not a valid model identifier" in text or "Repository Not Found" in text:
        return "not found locally, and the hub has no such model"
    if "Weights only load failed" in text:
        return "its weights are a pickle with more than tensors, which attnviz does not load"
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    return printable(" ".join(lines[:2]) if lines[0].endswith(":") else lines[0], 200)


@contextmanager
def quiet() -> Iterator[None]:
    """transformers and the hub's client without progress bars and warnings, for a while."""
    # by name: what these libraries say of their types differs from version to version
    hub: Any = import_module("huggingface_hub.utils")
    logs: Any = import_module("transformers.utils.logging")
    verbosity, hub_verbosity = logs.get_verbosity(), hub.logging.get_verbosity()
    bars, hub_bars = logs.is_progress_bar_enabled(), not hub.are_progress_bars_disabled()
    logs.set_verbosity(CRITICAL)
    hub.logging.set_verbosity(CRITICAL)
    logs.disable_progress_bar()
    hub.disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logs.set_verbosity(verbosity)
        hub.logging.set_verbosity(hub_verbosity)
        if bars:
            logs.enable_progress_bar()
        if hub_bars:
            hub.enable_progress_bars()


def _gguf_patches(options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """For a .gguf file, by module: functions that remember what they gave, and no bar.

    transformers parses the file three times, for configuration, tokenizer and weights, and looks
    up all tensors' names once for each module: two thirds of the time that loading takes. Its bar
    for tensors does not ask whether bars are wanted.
    """
    if "gguf_file" not in options:
        return {}
    gguf: Any = import_module("gguf")
    reader: Any = import_module("transformers.modeling_gguf_pytorch_utils")
    return {
        "gguf": {
            name: cache(getattr(gguf, name)) for name in ("GGUFReader", "get_tensor_name_map")
        },
        reader.__name__: {"tqdm": partial(reader.tqdm, disable=True)},
    }


@contextmanager
def _patched(replacements: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Some functions of modules replaced by others, for a while."""
    with ExitStack() as stack:
        for module, functions in replacements.items():
            owner = import_module(module)
            for name, function in functions.items():
                stack.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, function)
        yield
