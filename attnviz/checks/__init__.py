"""Is this attention what its masks say it is? For the command line, and for tests in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnviz.checks.expected_masks import mask_settings, with_masks
from attnviz.checks.findings import report_on
from attnviz.checks.reading_weights import lengths_of, read_weights
from attnviz.checks.recomputed_weights import read_tensors
from attnviz.checks.report import Finding, InHead, Location, Report
from attnviz.errors import ConfigError

__all__ = ["Finding", "InHead", "Location", "Report", "assert_attention", "check"]


def check(
    weights: Any,
    *,
    axes: str | None = None,
    mask: Any = None,
    mask_name: str = "given",
    padding_mask: Any = None,
    lengths: Sequence[int] | None = None,
    key_lengths: Sequence[int] | None = None,
    pad_side: str | None = None,
    tokens: Sequence[Any] | None = None,
    key_tokens: Sequence[Any] | None = None,
    sinks: bool = False,
    tolerance: float | None = None,
    expect: Sequence[Any] | None = None,
    context: Any = None,
    positions: str = "none",
    **masks: Any,
) -> Report:
    """Check attention weights, and return a report; findings do not raise.

    Args:
        weights: an array or tensor `[Tq Tk]`, `[H Tq Tk]`, `[B H Tq Tk]` or `[L B H Tq Tk]`, a list
            of them with one for each layer (as transformers returns them), or an
            `Attention`, whose own mask is then one of those that must be obeyed.
        axes: the order of the axes if it is another: `"B Q K H"`.
        mask: bool, True where a query may look: `[Tq Tk]`, `[B Tq Tk]` or `[B H Tq Tk]`.
        padding_mask: `[B Tk]`, True (1) on real tokens; or `lengths` `[B]` and `pad_side`. Rows of
            padding are checked for NaN and infinity only.
        tokens, key_tokens: `[B][T]` names for messages; `segments` needs them.
        sinks: rows may sum to less than 1, as with learned sinks or softmax-off-by-one.
        tolerance: how far from 1 the sum of a row may be; None: what its precision allows.
        expect: (q, k) or (q, k, v): the weights are computed again from them, in float64.
            `[B H T d_k]`, `[B T H d_k]`, `[B T H·d_k]`, with or without B, or L in front.
        context: weights · V as the code made it, compared with what `weights` and v give.
        positions: "rope" where q and k were saved before they were rotated.
        masks: that the weights must obey, by the names of `attnviz run`'s flags: `causal=True`,
            `window=3`, `prefix=2`, `segments=True`; together with the others by "and".

    Raises:
        InputError: sizes that do not fit each other, or other numbers than floats.
        ConfigError: arguments that do not go together.
    """
    if padding_mask is not None and lengths is not None:
        raise ConfigError("lengths and padding_mask both give the padding; give one of them")
    if tolerance is not None and not 0 <= tolerance < 1:
        raise ConfigError(f"tolerance is {tolerance}; 0 to below 1 is expected")
    checked = read_weights(weights, axes, lengths, key_lengths, pad_side, tokens, key_tokens)
    if padding_mask is not None:
        _, batch, _, queries, keys = checked.shape
        of_keys, side = lengths_of(padding_mask, batch, keys)
        of_queries = of_keys if queries == keys and lengths is None else lengths
        checked = read_weights(weights, axes, of_queries, of_keys, side, tokens, key_tokens)
    checked = with_masks(checked, mask_settings(masks, mask, mask_name))
    tensors = None
    if expect is not None or context is not None:
        tensors = read_tensors(checked, expect, context, positions)
    elif positions != "none":
        raise ConfigError("positions goes with expect: it tells what to do with q and k")
    return report_on(checked, tensors, sinks, tolerance)


def assert_attention(weights: Any, **expected: Any) -> None:
    """Check attention weights in a test: what is wrong becomes an AssertionError that says so.

    Arguments are those of `check`. Notes do not fail.
    """
    __tracebackhide__ = True  # pytest then shows the line of the test
    report = check(weights, **expected)
    if not report.passed:
        raise AssertionError(f"attention is wrong\n{report}")
