"""What the scripts beside this one share: a small model, its training, and the file that is left.

The model is attention alone: an embedding with sinusoidal positions, layers as in
`attnviz/attention.py` one after the other, and an unembedding. No feed-forward part hides what a
head does.

In most samples nobody says where a head should look: the loss asks for answers only, and a small
penalty on the entropy of all weights (in nats, mean over rows) asks to look at few keys, whichever
these are. A sample that points (Vinyals et al. 2015, pointer networks) has no unembedding: the
weights of head 0 of its last layer are its answer.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from attnviz.attention import Embedding, MultiHeadAttention
from attnviz.config import AttentionConfig
from attnviz.sources.saved_layers import save_layers
from attnviz.tokens import SPECIAL_TOKENS

TRAINED = Path(__file__).resolve().parent.parent / "trained"

D_MODEL = 64
TINY = 1e-9
"""Added to weights before their logarithm: a forbidden one is 0."""

HELD_OUT_SEED = 10_007
HELD_OUT_BATCHES = 16

WORDS = tuple(Path(__file__).with_name("words.txt").read_text(encoding="utf-8").split())
"""Short words that make sentences, for the samples that read words."""

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Examples:
    """A batch: what is read, and the answer at each place.

    `queries` and `answers` are `[B Tq]`; `keys` is `[B Tk]`, or None for self attention, which is
    causal. An answer is a row of the unembedding, or the key to point at.
    """

    queries: Ids
    answers: Ids
    keys: Ids | None = None


@dataclass(frozen=True)
class Recipe:
    """All that a sample is made from. `draw` makes a new batch of examples."""

    task: str
    vocabulary: tuple[str, ...]
    draw: Callable[[np.random.Generator], Examples]
    n_layers: int
    n_heads: int
    d_k: int
    steps: int
    learning_rate: float
    entropy_penalty: float = 0.0
    points: bool = False
    """Whether the answers are keys that head 0 of the last layer looks at."""


def vocabulary(tokens: tuple[str, ...]) -> tuple[str, ...]:
    """The tokens that attnviz knows in every text, then these: a token's id is its index."""
    return (*SPECIAL_TOKENS, *tokens)


class Model(nn.Module):
    """Tokens → vectors → layers, each on the output of the one before → logits of the answers."""

    def __init__(self, recipe: Recipe, seed: int) -> None:
        super().__init__()
        configs = [
            AttentionConfig.from_sizes(D_MODEL, recipe.n_heads, d_k=recipe.d_k, seed=seed + i)
            for i in range(recipe.n_layers)
        ]
        self.embedding = Embedding(configs[0], len(recipe.vocabulary))
        self.layers = nn.ModuleList(MultiHeadAttention(config) for config in configs)
        self.unembedding = None
        if not recipe.points:
            generator = torch.Generator().manual_seed(seed)
            drawn = torch.randn(len(recipe.vocabulary), D_MODEL, generator=generator)
            self.unembedding = nn.Parameter(drawn / math.sqrt(D_MODEL))

    def forward(self, examples: Examples) -> tuple[Tensor, list[Tensor]]:
        """(logits `[B Tq answers]`, the weights `[B H Tq Tk]` of each layer)."""
        x, y = self._embedded(examples.queries), None
        length = examples.queries.shape[1]
        allowed = None
        if examples.keys is None:
            allowed = torch.ones(length, length, dtype=torch.bool).tril()
        else:
            y = self._embedded(examples.keys)
        weights = []
        for layer in self.layers:
            x, of_layer = layer(x, y, allowed=allowed)
            weights.append(of_layer)
        if self.unembedding is None:
            return (weights[-1][:, 0] + TINY).log(), weights
        return x @ self.unembedding.T, weights

    def _embedded(self, ids: Ids) -> Tensor:
        positions = torch.arange(ids.shape[1]).expand(len(ids), -1)
        embedded: Tensor = self.embedding(torch.from_numpy(ids), positions)
        return embedded


def loss_of(logits: Tensor, examples: Examples) -> Tensor:
    """Mean cross-entropy of the answers, in nats."""
    answers = torch.from_numpy(examples.answers)
    return nn.functional.cross_entropy(logits.flatten(0, 1), answers.flatten())


def entropy_of(weights: list[Tensor]) -> Tensor:
    """Mean entropy of the rows of all layers and heads, in nats."""
    rows = [-(w * (w + TINY).log()).sum(-1).mean() for w in weights]
    return torch.stack(rows).mean()


def train(recipe: Recipe, seed: int, steps: int, report: Callable[[str], None]) -> Model:
    """Adam over `steps` batches: the rate rises for 100 steps, then falls along a cosine.

    The penalty rises from 0 over the first half: first learn to answer, then to look at few keys.
    The same seed, steps, torch, machine and number of threads give the same numbers.
    """
    rng = np.random.default_rng(seed)
    model = Model(recipe, seed)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
    began = time.monotonic()
    for step in range(steps):
        falling = 0.05 + 0.95 * (1 + math.cos(math.pi * step / steps)) / 2
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * min(1.0, (step + 1) / 100) * falling
        examples = recipe.draw(rng)
        logits, weights = model(examples)
        loss = loss_of(logits, examples)
        entropy = entropy_of(weights)
        penalty = recipe.entropy_penalty * min(1.0, 2 * step / steps)
        optimizer.zero_grad()
        (loss + penalty * entropy).backward()
        optimizer.step()
        if (step + 1) % 200 == 0 or step + 1 == steps:
            report(
                f"step {step + 1:5} of {steps}  loss {loss.item():.4f}  "
                f"entropy {entropy.item() / math.log(2):.3f} bits  "
                f"{time.monotonic() - began:.0f} s"
            )
    return model


def held_out_loss(model: Model, recipe: Recipe) -> float:
    """Loss on batches that training has not seen, in nats."""
    rng = np.random.default_rng(HELD_OUT_SEED)
    with torch.no_grad():
        batches = [recipe.draw(rng) for _ in range(HELD_OUT_BATCHES)]
        losses = [loss_of(model(examples)[0], examples).item() for examples in batches]
    return sum(losses) / len(losses)


def write(model: Model, recipe: Recipe, path: Path, made: Mapping[str, object]) -> None:
    """The layers, the embedding and the unembedding as safetensors, with how they were made."""
    beside = path.with_name(path.name + ".part")
    save_layers(
        beside,
        list(model.layers),
        model.embedding,
        recipe.vocabulary,
        model.unembedding,
        notes={"attnviz.made": json.dumps(made)},
    )
    beside.replace(path)


def main(recipes: Mapping[str, Recipe]) -> None:
    """Train each recipe and write `NAME.safetensors`."""
    parser = argparse.ArgumentParser(
        description="Train a sample of attnviz: " + "; ".join(r.task for r in recipes.values())
    )
    parser.add_argument("--out", type=Path, default=TRAINED, help="folder for the files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="fewer or more than the recipe says")
    given = parser.parse_args()
    torch.set_num_threads(1)  # the model is small: a second thread would only change the sums
    script = "samples/train/" + Path(sys.argv[0]).name

    def report(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    given.out.mkdir(parents=True, exist_ok=True)
    for name, recipe in recipes.items():
        steps = recipe.steps if given.steps is None else given.steps
        report(f"{name}: {recipe.task}")
        model = train(recipe, given.seed, steps, report)
        loss = held_out_loss(model, recipe)
        made = {
            "script": script,
            "task": recipe.task,
            "seed": given.seed,
            "steps": steps,
            "held_out_loss_nats": float(f"{loss:.3g}"),
            "torch": torch.__version__,
        }
        path = given.out / f"{name}.safetensors"
        write(model, recipe, path, made)
        report(f"held-out loss {loss:.3g} nats; wrote {path}")
