"""Long runs to show on a page, and a page read back by the rule that its writer tells."""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnviz import masks
from attnviz.collectors.pooled_maps import gather
from attnviz.result import Attention
from attnviz.scores import Scores
from attnviz.sources.layer_pass import real_rows
from attnviz.streaming import pool
from attnviz.tokens import Batch, make_batch

D_K = 11


@dataclass(frozen=True)
class Made:
    """A long run and the attention of each of its layers."""

    run: Attention
    layers: tuple[Scores, ...]

    def whole(self, layer: int, sequence: int, head: int) -> tuple[np.ndarray, np.ndarray]:
        """(weights, allowed) `[Tq Tk]` in float64, by hand, the way a textbook has it."""
        a = self.layers[layer]
        q, k = (x[sequence, head].double().numpy() for x in (a.q, a.k))
        at = np.arange(a.queries)[:, None], np.arange(a.keys)
        allowed = np.ones((a.queries, a.keys), bool)
        for rule in a.rules:
            allowed &= rule.allows(sequence, head, *at)
        scores = np.where(allowed, q @ k.T / np.sqrt(D_K), -np.inf)
        top = scores.max(-1, keepdims=True, initial=-1e300)
        powers = np.exp(scores - top)
        return powers / np.maximum(powers.sum(-1, keepdims=True), 1e-300), allowed


def made(
    queries: list[tuple[str, ...]],
    keys: list[tuple[str, ...]] | None = None,
    *,
    layers: int = 1,
    heads: int = 2,
    pixels: int = 13,
    rules: Any = ("causal",),
    top: int = 5,
    pad_side: str = "right",
    keep: bool = False,
    strength: float = 2.0,
    more: dict[str, Any] | None = None,
    **facts: Any,
) -> Made:
    """Attention of random q and k, streamed. `rules`: names of masks of `attnviz.masks`; `more`
    goes to each `Scores`, `facts` to the result."""
    q_batch = make_batch(queries, pad_side=pad_side)
    k_batch = q_batch if keys is None else make_batch(keys, pad_side=pad_side)
    known = {
        "causal": lambda: masks.rule("causal", q_batch, k_batch),
        "window": lambda: masks.rule("window", q_batch, k_batch, 7),
        "prefix": lambda: masks.rule("prefix", q_batch, k_batch, 4),
        "segments": lambda: masks.rule("segments", q_batch, k_batch),
    }
    found = [known[name]() for name in rules]
    if len({len(row) for row in (keys or queries)}) > 1:
        found.insert(0, masks.rule("padding", k_batch, k_batch))
    named = tuple(rule.name for rule in found)
    attentions = tuple(
        _attention(
            seed, heads, q_batch, k_batch, (*found, real_rows(q_batch)), strength, more or {}
        )
        for seed in range(layers)
    )
    result = gather(
        [pool(one, pixels, top=top) for one in attentions],
        attentions if keep else [],
        q_batch,
        k_batch,
        **{"masks": named, "source": "made up", **facts},
    )
    return Made(result, attentions)


def _attention(
    seed: int, heads: int, queries: Batch, keys: Batch, rules: Any, strength: float, more: Any
) -> Scores:
    random = torch.Generator().manual_seed(seed)
    batch, n_q, n_k = (
        len(queries.padded_tokens),
        *(len(x.padded_tokens[0]) for x in (queries, keys)),
    )
    return Scores(
        torch.randn(batch, heads, n_q, D_K, generator=random) * strength,
        torch.randn(batch, heads, n_k, D_K, generator=random),
        rules,
        query_starts=queries.starts.tolist(),
        key_starts=keys.starts.tolist(),
        **more,
    )


def numbered(n: int, name: str = "t") -> tuple[str, ...]:
    return tuple(f"{name}{i}" for i in range(n))


# ── reading a page back ──────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Read:
    """A page as its writer's docstring says that it is to be read."""

    text: str
    facts: dict[str, Any]
    blocks: dict[int, bytes]

    def numbers(self, block: int, width: int) -> np.ndarray:
        planes = np.frombuffer(self.blocks[block], np.uint8).reshape(width, -1).astype(np.int64)
        return sum(planes[i] << (8 * i) for i in range(width))  # type: ignore[return-value]

    def head(self, sequence: int, head: int) -> dict[str, Any]:
        return self.facts["sequences"][sequence]["heads"][head]  # type: ignore[no-any-return]

    def pixels(self, sequence: int, head: int, kind: str, level: int) -> np.ndarray:
        own = self.head(sequence, head)
        block = own.get(kind, own["mean"])["levels"][level]
        return self.numbers(block, 2 if self.facts["fine"] else 1).reshape(
            self.facts["levels"][level]
        )

    def values(self, codes: np.ndarray, own: dict[str, Any]) -> np.ndarray:
        """NaN where a cell or pixel is forbidden, or holds no number."""
        told = [np.nan, 0.0, np.nan]
        if "segments" in own:
            for digits, powers, bottom in own["segments"]:
                for power in range(bottom, bottom + powers):
                    told += [
                        float(f"{m}e{power - digits + 1}")
                        for m in range(10 ** (digits - 1), 10**digits)
                    ]
        else:
            told += [own["low"] * own["ratio"] ** i for i in range(own["steps"])]
        if own.get("signed"):
            told += [-value for value in told[3:]]
        most = 65535 if "segments" in own else 255
        table = np.full(most + 1, np.nan)
        table[: len(told)] = told
        return table[codes]

    def weights(self, sequence: int, head: int) -> np.ndarray:
        """All weights of a map whose pixels are cells."""
        return self.values(
            self.pixels(sequence, head, "mean", 0), self.head(sequence, head)["mean"]
        )

    def mask(self, sequence: int, head: int) -> np.ndarray:
        """Which of the reasons forbids each cell, 0 for none."""
        shape = (self.facts["queries"], self.facts["keys"])
        block = self.head(sequence, head)["mask"]
        if block is None:
            return np.zeros(shape, np.uint8)
        return np.frombuffer(self.blocks[block], np.uint8).reshape(shape)

    def top(self, sequence: int, head: int) -> tuple[np.ndarray, np.ndarray]:
        """(keys, weights) `[n Tq]`, -1 and 0 for none."""
        own, shape = self.head(sequence, head)["top"], (self.facts["top"], self.facts["queries"])
        keys = self.numbers(own["keys"], own["width"]).reshape(shape) - 1
        codes = self.numbers(own["weights"], 2).reshape(shape)
        for i in range(1, len(codes)):
            codes[i] = codes[i - 1] - codes[i]
        power, digits = np.divmod(codes - 1, 900)
        told = [
            float(f"{100 + m}e{p + own['lowest'] - 2}") if c > 0 else 0.0
            for c, p, m in zip(codes.ravel(), power.ravel(), digits.ravel(), strict=True)
        ]
        return keys, np.array(told).reshape(shape)

    def statistic(self, sequence: int, head: int, name: str) -> np.ndarray:
        own = self.head(sequence, head)["statistics"][name]
        codes = self.numbers(own["block"], own["width"])
        values = np.where(codes > 0, own["low"] * own["ratio"] ** (codes - 1.0), 0)
        return np.where(codes == 2 ** (8 * own["width"]) - 1, np.nan, values)

    def spans(self, sequence: int, head: int) -> list[np.ndarray]:
        places = self.head(sequence, head)["spans"]
        return [self.numbers(i, 4).cumsum() & 0xFFFFFFFF for i in places]

    def tokens(self, sequence: int, side: int) -> list[str]:
        block = self.blocks[self.facts["sequences"][sequence]["tokens"][side]]
        return json.loads(block)  # type: ignore[no-any-return]


def read(path: Path) -> Read:
    text = path.read_bytes().decode("utf-8")
    facts = re.search(r'<script type="application/json" id="run">(.*?)</script>', text, re.S)
    blocks = re.findall(r'<script type="text/plain" id="d(\d+)">([A-Za-z0-9+/=]*)</script>', text)
    assert facts is not None
    return Read(
        text,
        json.loads(facts[1]),
        {int(i): zlib.decompress(b64decode(data)) for i, data in blocks},
    )
