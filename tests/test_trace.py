"""The trace is the computation: labels, shapes, costs and views are those of what ran."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from one_pass import from_config
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from attnviz import masks
from attnviz.attention import Embedding, MultiHeadAttention, scaled_dot_product_attention
from attnviz.config import DTYPES, POSITIONS, AttentionConfig
from attnviz.errors import AttnvizError
from attnviz.sources.shadow_trace import SHADOW_SIZES, shadow_steps
from attnviz.tokens import make_batch
from attnviz.trace import STEP_KINDS, Recorder, Step, ignore

PRIMES = {"B": 2, "H": 3, "Hkv": 3, "Tq": 5, "Tk": 7, "d_k": 11, "d_v": 13, "d_model": 17, "V": 19}


def record(masked: bool = True, per_head: bool = False, groups: int = 3, **axes: int) -> Recorder:
    """A run of the layer on made-up inputs, recorded."""
    sizes = {**PRIMES, "Hkv": groups, **axes}
    config = AttentionConfig(sizes["d_model"], sizes["H"], sizes["d_k"], sizes["d_v"], groups)
    recorder = Recorder(sizes)
    x, y = (torch.zeros(sizes["B"], sizes[t], sizes["d_model"]) for t in ("Tq", "Tk"))
    shape = (sizes["B"], sizes["H"] if per_head else 1, sizes["Tq"], sizes["Tk"])
    with torch.no_grad():
        MultiHeadAttention(config)(
            x, y, allowed=torch.ones(shape, dtype=torch.bool) if masked else None, tap=recorder
        )
    return recorder


# ── labels ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ("B Tk", "step x is labelled [B Tk] = (2, 7), but its shape is (2, 5)"),
        ("B", "step x is labelled [B] = (2,), but its shape is (2, 5)"),
        ("B H·Tq", "step x is labelled [B H·Tq] = (2, 15), but its shape is (2, 5)"),
        ("B T", "step x is labelled with an unknown axis, 'T'"),
    ],
)
def test_a_label_that_does_not_fit_is_an_error(axes: str, message: str) -> None:
    with pytest.raises(AttnvizError) as caught:
        Recorder(PRIMES)("x", axes, torch.zeros(2, 5))
    assert str(caught.value) == message


def test_a_parameter_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(AttnvizError) as caught:
        Recorder(PRIMES)(
            "x", "B d_model", torch.zeros(2, 17), module=nn.Linear(11, 17), sums_over="d_v"
        )
    assert str(caught.value) == (
        "parameter weight of step x is labelled [d_model d_v] = (17, 13), but its shape is (17, 11)"
    )


def test_the_tap_that_does_nothing() -> None:
    assert ignore("x", "no such axis", torch.zeros(3)) is None


def layer_steps() -> list[Step]:
    config = AttentionConfig(8, 2, 4, 4)
    grouped = AttentionConfig(8, 2, 4, 4, 1)
    runs = [shadow_steps(config, True, True), shadow_steps(grouped, False, False)]
    return [step for run in runs for step in run]


def test_every_step_is_explained_and_the_layer_s_own_explanations_are_used() -> None:
    steps = layer_steps()
    for step in steps:
        assert step.kind == STEP_KINDS[step.name]
        assert step.stage
        assert step.words
    names = {step.name for step in steps}
    assert {"ids", "key_ids", "allowed", "masked_scores", "k_repeated", "output"} <= names


# ── what ran ─────────────────────────────────────────────────────────────────────────────────


def test_order_and_shapes_with_distinct_primes() -> None:
    shapes = [(step.name, " ".join(step.axes), step.shape) for step in record().steps]
    assert shapes == [
        ("q_projected", "B Tq H·d_k", (2, 5, 33)),
        ("q", "B H Tq d_k", (2, 3, 5, 11)),
        ("k_projected", "B Tk H·d_k", (2, 7, 33)),
        ("k", "B H Tk d_k", (2, 3, 7, 11)),
        ("v_projected", "B Tk H·d_v", (2, 7, 39)),
        ("v", "B H Tk d_v", (2, 3, 7, 13)),
        ("products", "B H Tq Tk", (2, 3, 5, 7)),
        ("scores", "B H Tq Tk", (2, 3, 5, 7)),
        ("allowed", "B 1 Tq Tk", (2, 1, 5, 7)),
        ("masked_scores", "B H Tq Tk", (2, 3, 5, 7)),
        ("weights", "B H Tq Tk", (2, 3, 5, 7)),
        ("context", "B H Tq d_v", (2, 3, 5, 13)),
        ("merged", "B Tq H·d_v", (2, 5, 39)),
        ("projected", "B Tq d_model", (2, 5, 17)),
        ("residual", "B Tq d_model", (2, 5, 17)),
        ("output", "B Tq d_model", (2, 5, 17)),
    ]


def test_a_mask_is_labelled_by_what_it_is() -> None:
    q = torch.zeros(2, 3, 5, 11)
    k = torch.zeros(2, 3, 7, 11)
    for shape, axes in [
        ((2, 3, 5, 7), "B H Tq Tk"),
        ((2, 1, 1, 7), "B 1 1 Tk"),
        ((1, 1, 5, 7), "1 1 Tq Tk"),
        ((5, 7), "Tq Tk"),
    ]:
        recorder = Recorder({**PRIMES, "d_v": 11})
        scaled_dot_product_attention(q, k, k, torch.ones(shape, dtype=torch.bool), recorder)
        assert [" ".join(s.axes) for s in recorder.steps if s.name == "allowed"] == [axes]


def test_views_and_contiguity() -> None:
    steps = {step.name: step for step in record(groups=1).steps}
    assert [name for name, step in steps.items() if step.is_view] == ["q", "k", "v"]
    loose = [name for name, step in steps.items() if not step.is_contiguous]
    assert loose == ["q"]  # one key/value head: k and v lie as if they had been made so
    many = [step.name for step in record().steps if not step.is_contiguous]
    assert many == ["q", "k", "v"]
    assert steps["q"].nbytes == 0
    assert steps["weights"].nbytes == 2 * 3 * 5 * 7 * 4
    assert steps["allowed"].nbytes == 2 * 5 * 7


def test_a_view_is_told_from_memory_that_is_used_again() -> None:
    recorder = Recorder(PRIMES)
    for _ in range(5):  # each is freed before the next is made, which may get its address
        recorder("ids", "B Tq", torch.zeros(2, 5))
    whole = torch.zeros(5, 2)
    recorder("ids", "B Tq", whole.T)
    recorder("ids", "Tq B", whole)
    assert [step.is_view for step in recorder.steps] == [False] * 6 + [True]


def test_recording_keeps_only_what_is_asked_for() -> None:
    made: list[Tensor] = []
    recorder = Recorder(PRIMES, keep=("context",))

    def tap(name: str, axes: str, tensor: Tensor, **rest: object) -> None:
        recorder(name, axes, tensor, **rest)  # type: ignore[arg-type]
        if name == "context":
            made.append(tensor)

    q, k, v = (torch.randn(2, 3, t, d) for t, d in ((5, 11), (7, 11), (7, 13)))
    context, _ = scaled_dot_product_attention(q, k, v, tap=tap)
    assert recorder.kept.keys() == {"context"}
    assert recorder.kept["context"] is context is made[0]


def test_each_step_names_the_line_that_calls_it() -> None:
    from pathlib import Path

    import attnviz.attention

    lines = Path(attnviz.attention.__file__).read_text(encoding="utf-8").splitlines()
    for step in record().steps:
        file, line = step.source.split(":")
        assert file == "attention.py"
        named = lines[int(line) - 1]
        assert f'"{step.name}"' in named


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("groups", [1, 3])
def test_matmul_flops_are_those_that_torch_counts(masked: bool, groups: int) -> None:
    with FlopCounterMode(display=False) as counter:
        recorder = record(masked=masked, groups=groups)
    total = sum(step.matmul_flops for step in recorder.steps)
    assert total == counter.get_total_flops()
    by_name = {step.name: step.matmul_flops for step in recorder.steps}
    assert by_name["products"] == 2 * (2 * 3 * 5 * 7) * 11
    assert by_name["context"] == 2 * (2 * 3 * 5 * 13) * 7
    assert by_name["weights"] == 0
    assert all(s.elementwise_flops == s.n_elements * s.flops_each for s in recorder.steps)


@pytest.mark.parametrize("groups", [1, 3])
def test_parameters_are_those_of_the_module(groups: int) -> None:
    config = AttentionConfig(17, 3, 11, 13, groups)
    steps = record(groups=groups).steps
    assert sum(step.n_parameters for step in steps) == config.n_parameters
    assert config.n_parameters == sum(p.numel() for p in MultiHeadAttention(config).parameters())
    shapes = {
        f"{step.name}.{name}": (axes, shape)
        for step in steps
        for name, axes, shape in step.parameters
    }
    assert shapes["q_projected.weight"] == (("H·d_k", "d_model"), (33, 17))
    assert shapes["projected.weight"] == (("d_model", "H·d_v"), (17, 39))
    assert shapes["output.bias"] == (("d_model",), (17,))


# ── the shadow ───────────────────────────────────────────────────────────────────────────────


def test_the_shadow_s_sizes_are_distinct_primes() -> None:
    sizes = list(SHADOW_SIZES.values())
    assert len(set(sizes)) == len(sizes)
    assert all(all(n % d for d in range(2, n)) for n in sizes)


SIZE = st.integers(1, 4)


@given(
    *[SIZE] * 6,
    st.sampled_from(["none", "self", "per head"]),
    st.booleans(),
    st.sampled_from(POSITIONS),
    st.sampled_from(sorted(DTYPES)),
)
def test_the_shadow_with_true_sizes_is_the_run(
    batch: int, heads: int, queries: int, keys: int, d_k: int, d_v: int,
    mask: str, cross: bool, positions: str, dtype: str,
) -> None:  # fmt: skip
    groups = 1 if d_k % 2 else heads
    d_k *= 2 if positions == "rope" else 1
    config = AttentionConfig(d_k + d_v, heads, d_k, d_v, groups, positions=positions, dtype=dtype)
    a = make_batch([tuple("abcd"[:queries])] * batch, ("[PAD]", "[SEP]", *"abcd"))
    b = make_batch([tuple("dcba"[:keys])] * batch, a.vocabulary) if cross else a
    full = torch.ones(1, heads, a.width, b.width, dtype=torch.bool).numpy()
    rules = {
        "none": [],
        "self": [masks.rule("causal", a, b)],
        "per head": [masks.from_array(full, "m", batch, heads, a.width, b.width)],
    }[mask]
    run = from_config(config, a, b if cross else None, rules)
    sizes = {
        "B": batch, "H": heads, "Hkv": groups, "Tq": a.width, "Tk": b.width,
        "d_k": d_k, "d_v": d_v, "d_model": d_k + d_v, "V": 6,
    }  # fmt: skip
    per_head = mask == "per head" and heads > 1
    shadow = shadow_steps(config, cross, masked=bool(rules), per_head=per_head)
    assert tuple(step.at(sizes) for step in shadow) == run.steps
    embedding = Embedding(config, 6)
    counted = sum(p.numel() for m in (run.layers[0], embedding) for p in m.parameters())
    tables = 2 if cross else 1  # both texts go through the one table
    assert sum(step.n_parameters for step in run.steps) == counted + (tables - 1) * (
        embedding.weight.numel()
    )


def test_a_slice_stays_a_slice_at_any_size() -> None:
    recorder = Recorder(PRIMES)
    recorder("q", "B Tq", torch.zeros(2, 9)[:, :5])
    step: Step = recorder.steps[0]
    assert not step.is_contiguous
    assert not step.at({"B": 3, "Tq": 4}).is_contiguous


def test_sizes_that_no_machine_could_run() -> None:
    config = AttentionConfig(65536, 512, 128, 128)
    sizes = {"B": 1, "H": 512, "Tq": 10**6, "Tk": 10**6, "d_k": 128, "d_v": 128, "d_model": 65536}
    steps = {s.name: s.at({**sizes, "V": 37000}) for s in shadow_steps(config, False, True)}
    assert steps["weights"].shape == (1, 512, 10**6, 10**6)
    assert steps["weights"].nbytes == 512 * 10**12 * 4
    assert steps["products"].matmul_flops == 2 * 512 * 10**12 * 128
    total = sum(s.n_parameters for s in steps.values()) - 37000 * 65536
    assert total == config.n_parameters
