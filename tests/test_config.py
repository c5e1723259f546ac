"""Sizes that work, and sizes that cannot: every message whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnviz.attention import MultiHeadAttention
from attnviz.config import (
    DTYPES,
    LARGEST_SEED,
    LARGEST_SIZE,
    AttentionConfig,
    divisors,
    head_count_advice,
)
from attnviz.errors import AttnvizError, ConfigError, InputError, OutputError, printable


def test_widths_that_are_left_out() -> None:
    assert AttentionConfig.from_sizes() == AttentionConfig(512, 8, 64, 64)
    assert AttentionConfig.from_sizes(96, 6) == AttentionConfig(96, 6, 16, 16)
    assert AttentionConfig.from_sizes(17, 3, 11) == AttentionConfig(17, 3, 11, 11)
    assert AttentionConfig.from_sizes(17, 3, 11, 13) == AttentionConfig(17, 3, 11, 13)
    assert AttentionConfig.from_sizes(96, 6, d_v=5) == AttentionConfig(96, 6, 16, 5)
    assert AttentionConfig.from_sizes(640, 4, 256).d_k == 256  # projects 640 → 1024: legal


def test_other_fields_pass_through() -> None:
    config = AttentionConfig.from_sizes(8, 2, positions="none", seed=7, dtype="float16")
    assert config.as_dict() == {
        "d_model": 8,
        "n_heads": 2,
        "d_k": 4,
        "d_v": 4,
        "n_kv_heads": 2,
        "positions": "none",
        "seed": 7,
        "dtype": "float16",
        "device": "cpu",
    }
    assert AttentionConfig(**config.as_dict()) == config


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_model": 0}, "--d-model is 0; it must be at least 1"),
        ({"n_heads": -3}, "--n-heads is -3; it must be at least 1"),
        ({"d_k": 0}, "--d-k is 0; it must be at least 1"),
        ({"d_v": -1}, "--d-v is -1; it must be at least 1"),
        ({"d_model": 10**12 + 1}, "--d-model is 1000000000001; the largest size is 1000000000000"),
        ({"d_v": 10**30}, f"--d-v is {10**30}; the largest size is 1000000000000"),
        (
            {"positions": "rotary"},
            "--positions is 'rotary'; it must be one of sinusoidal, none, rope, alibi",
        ),
        (
            {"dtype": "int8"},
            "--dtype is 'int8'; it must be one of float32, float64, bfloat16, float16",
        ),
        ({"device": "tpu\n\x1b"}, "--device is 'tpu\\n\\x1b'; it must be one of cpu, cuda, mps"),
        ({"seed": -1}, f"--seed is -1; it must be between 0 and {2**63 - 1}"),
        ({"seed": 2**63}, f"--seed is {2**63}; it must be between 0 and {2**63 - 1}"),
        (
            {"n_heads": 10},
            "d_model 512 is not divisible by n_heads 10: 512 = 10·51 + 2; use 8 or 16 heads, "
            "or keep 10 heads with --d-k 51 (they project to 10·51 = 510)",
        ),
        (
            {"d_model": 1024, "n_heads": 12},
            "d_model 1024 is not divisible by n_heads 12: 1024 = 12·85 + 4; use 8 or 16 heads, "
            "or keep 12 heads with --d-k 85 (they project to 12·85 = 1020)",
        ),
        (
            {"d_model": 1600, "n_heads": 48},
            "d_model 1600 is not divisible by n_heads 48: 1600 = 48·33 + 16; use 40 or 50 heads "
            "(25 give the usual d_k of 64), or keep 48 heads with --d-k 33 "
            "(they project to 48·33 = 1584)",
        ),
        (
            {"d_model": 8, "n_heads": 12},
            "d_model 8 is smaller than n_heads 12, so a head would have no width; use 8 heads or "
            "fewer that divide it, or give d_k (with --d-k 1 they project to 12)",
        ),
        ({"d_model": 0, "n_heads": 0}, "--d-model is 0; it must be at least 1"),
        ({"n_heads": 0}, "--n-heads is 0; it must be at least 1"),
    ],
)
def test_sizes_that_cannot_be(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AttentionConfig.from_sizes(**fields)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_the_limits_themselves_work() -> None:
    config = AttentionConfig(LARGEST_SIZE, 1, LARGEST_SIZE, 1, seed=LARGEST_SEED)
    assert config.n_parameters > 2 * LARGEST_SIZE**2


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_the_advice_names_the_nearest_numbers_that_divide(d_model: int, n_heads: int) -> None:
    if d_model % n_heads == 0:
        assert AttentionConfig.from_sizes(d_model, n_heads).d_k == d_model // n_heads
        return
    advice = head_count_advice(d_model, n_heads)
    if n_heads > d_model:
        assert f"use {d_model} heads or fewer" in advice
        return
    below = max(n for n in range(1, n_heads) if d_model % n == 0)
    above = min(n for n in range(n_heads + 1, d_model + 1) if d_model % n == 0)
    assert f"use {below} or {above} heads" in advice
    d_k = int(advice.split("--d-k ")[1].split()[0])
    assert 0 < d_k * n_heads <= d_model < (d_k + 1) * n_heads


@given(st.integers(1, 10**4))
def test_divisors(n: int) -> None:
    assert divisors(n) == [d for d in range(1, n + 1) if n % d == 0]


@given(*[st.integers(1, 9)] * 4)
def test_parameters_are_those_of_the_module(d_model: int, n_heads: int, d_k: int, d_v: int) -> None:
    config = AttentionConfig(d_model, n_heads, d_k, d_v)
    layer = MultiHeadAttention(config)
    assert config.n_parameters == sum(p.numel() for p in layer.parameters())


def test_the_sizes_of_the_dtypes() -> None:
    import torch

    assert {name: getattr(torch, name).itemsize for name in DTYPES} == DTYPES


# ── errors ───────────────────────────────────────────────────────────────────────────────────


def test_each_error_knows_its_exit_code() -> None:
    codes = {
        kind: kind("x").exit_code for kind in (AttnvizError, ConfigError, InputError, OutputError)
    }
    assert list(codes.values()) == [1, 2, 2, 2]
    assert all(issubclass(kind, AttnvizError) for kind in codes)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("猫 café $x \\ [/red]", "猫 café $x \\ [/red]"),
        ("a\nb\x1b[31m\r", "a\\nb\\x1b[31m\\r"),
        ("\u202egnp.exe\u2066", "\\u202egnp.exe\\u2066"),
        ("caf\udce9", "caf\\udce9"),
        (None, "None"),
        ("x" * 81, "x" * 39 + "…" + "x" * 39),
        ("", ""),
    ],
)
def test_printable(text: object, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(), st.integers(3, 100))
def test_printable_is_one_line_within_its_limit(text: str, limit: int) -> None:
    shown = printable(text, limit)
    assert shown.isprintable()
    assert len(shown) <= limit


def test_key_value_heads_are_as_many_as_heads_or_divide_them() -> None:
    assert AttentionConfig.from_sizes(24, 6).n_kv_heads == 6
    assert not AttentionConfig.from_sizes(24, 6, n_kv_heads=6).is_grouped
    grouped = AttentionConfig.from_sizes(24, 6, n_kv_heads=2)
    assert (grouped.n_kv_heads, grouped.is_grouped) == (2, True)
    for groups, message in (
        (0, "--n-kv-heads is 0; it must be at least 1"),
        (7, "n_kv_heads 7 is more than n_heads 6; use at most 6"),
        (
            4,
            "n_heads 6 is not divisible by n_kv_heads 4: the groups would differ; "
            "use 3 or 6 key/value heads",
        ),
    ):
        with pytest.raises(ConfigError) as caught:
            AttentionConfig.from_sizes(24, 6, n_kv_heads=groups)
        assert str(caught.value) == message
