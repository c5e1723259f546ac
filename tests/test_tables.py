"""The trace and the heads as tables: what is printed is what ran, whatever the width."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_pass import Ran, from_config
from rich.console import Console
from rich.text import Text

from attnviz import machine, trace_totals
from attnviz.architectures import from_dict
from attnviz.config import AttentionConfig
from attnviz.machine import human_bytes
from attnviz.masks import rule
from attnviz.measures import MEASURES, measure, measure_all
from attnviz.render import head_measures, trace_table
from attnviz.render.visible import cells, notation
from attnviz.sources.from_architecture import architecture_steps
from attnviz.sources.shadow_trace import shadow_steps
from attnviz.tokens import make_batch, make_vocabulary
from attnviz.trace import STEP_KINDS, Step

SIZES = {"B": 2, "H": 8, "Tq": 12, "Tk": 12, "d_model": 512, "d_k": 64, "d_v": 64, "V": 37000}
HEADS = ["#", "stage", "step", "shape", "axes", "parameters", "FLOP", "memory", "layout", "type"]


def paper(
    width: int = 80, terminal: bool = False, color: Any = None, ascii: bool = False
) -> Console:
    stream: Any = io.StringIO()
    if ascii:
        stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    return Console(
        file=stream,
        width=width,
        force_terminal=terminal,
        color_system=color,
        legacy_windows=False,
        _environ={},
    )


def printed(console: Console) -> list[str]:
    stream: Any = console.file
    stream.flush()
    stream.seek(0)
    return str(stream.read()).splitlines()


def trace(steps: Sequence[Step], console: Console | None = None, **options: Any) -> list[str]:
    console = paper() if console is None else console
    trace_table.print_trace(steps, console, **options)
    return printed(console)


def steps_at(sizes: dict[str, int] = SIZES, cross: bool = False, masked: bool = True) -> list[Step]:
    config = AttentionConfig.from_sizes(512, 8)
    return [step.at(sizes) for step in shadow_steps(config, cross, masked)]


def rows(lines: Sequence[str]) -> list[list[str]]:
    """The cells of the table in its natural width, by the columns of its header."""
    top = next(i for i, line in enumerate(lines) if re.match(r" *#  ", line))
    end = next((i for i in range(top, len(lines)) if not lines[i]), len(lines))
    return [re.split(r" {2,}", line.strip()) for line in lines[top + 2 : end]]


@pytest.fixture(scope="module")
def run() -> Ran:
    """Batch 3 with an empty sequence, 5 heads, d_k 7: no two sizes alike but Tq and Tk."""
    batch = make_batch([("the", "cat", "sat", "on"), ("a", "dog"), ()])
    config = AttentionConfig(d_model=35, n_heads=5, d_k=7, d_v=7)
    rules = [rule(name, batch, batch) for name in ("padding", "causal")]
    return from_config(config, batch, None, rules)


def cross_run() -> Ran:
    vocabulary = make_vocabulary([("a", "b"), ("u", "v", "w")])
    queries, keys = (make_batch([t], vocabulary) for t in (("a", "b"), ("u", "v", "w")))
    return from_config(AttentionConfig(35, 5, 7, 11), queries, keys)


# ── the table ────────────────────────────────────────────────────────────────────────────────


def test_a_pipe_gets_every_column_of_every_step(run: Ran) -> None:
    lines = trace(run.steps, expand=True)
    header = next(line for line in lines if re.match(r" *#  ", line))
    assert re.split(r" {2,}", header.strip()) == [*HEADS, "what happens"]
    found = rows(lines)
    assert len(found) == len(run.steps)
    for i, (step, row) in enumerate(zip(run.steps, found, strict=True), 1):
        flops = str(step.matmul_flops) if step.matmul_flops else ""
        flops = flops or (f"~{step.elementwise_flops}" if step.elementwise_flops else "-")
        expected = [
            str(i),
            step.stage,
            step.name,
            "×".join(map(str, step.shape)),
            " ".join(step.axes),
            str(step.n_parameters or "-"),
            flops,
            "view" if step.is_view else human_bytes(step.nbytes),
            "contiguous" if step.is_contiguous else "strided",
            step.dtype,
            step.words,
        ]
        assert row[:6] + row[7:] == expected[:6] + expected[7:]
        n = step.matmul_flops or step.elementwise_flops
        mark = "~" if step.elementwise_flops else ""
        assert row[6] == (mark + machine.human_count(n) if n else "-")


def test_source_lines(run: Ran) -> None:
    lines = trace(run.steps, source=True)
    assert [row[10].rpartition(":")[0] for row in rows(lines)] == ["attention.py"] * 15
    by_name = {step.name: step.source.rpartition(":")[2] for step in run.steps}
    folded = next(row for row in rows(lines) if row[2] == "q,k,v")
    assert folded[10] == f"attention.py:{by_name['q']},{by_name['k']},{by_name['v']}"


def test_k_and_v_fold_onto_q(run: Ran) -> None:
    found = {row[2]: row for row in rows(trace(run.steps))}
    assert "k" not in found
    projected = found["q,k,v_projected"]
    three = [s for s in run.steps if s.name in ("q_projected", "k_projected", "v_projected")]
    assert projected[5] == machine.human_count(sum(s.n_parameters for s in three))
    assert projected[6] == machine.human_count(sum(s.matmul_flops for s in three))
    assert projected[7] == human_bytes(sum(s.nbytes for s in three))
    assert projected[-1].startswith("W_Q, W_K, W_V: ")
    assert found["q,k,v"][7:9] == ["view", "strided"]
    numbers = [int(row[0]) for row in rows(trace(run.steps))]
    assert numbers == [1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19]


def test_values_of_another_width_do_not_fold() -> None:
    sizes = {**SIZES, "d_v": 32}
    names = [row.name for row in trace_table.rows_of(steps_at(sizes))]
    assert names[3:8] == ["q,k_projected", "q,k", "v_projected", "v", "products"]


def test_in_cross_attention_q_stands_alone_even_when_lengths_are_equal() -> None:
    names = [row.name for row in trace_table.rows_of(steps_at(cross=True), cross=True)]
    assert names[6:10] == ["q_projected", "q", "k,v_projected", "k,v"]
    unequal = [row.name for row in trace_table.rows_of(steps_at({**SIZES, "Tk": 5}, cross=True))]
    assert unequal[6:10] == names[6:10]


def test_the_embedding_that_both_texts_share_is_counted_once() -> None:
    run = cross_run()
    found = {row[2]: row for row in rows(trace(run.steps, cross=True))}
    assert found["key_embedded"][5] == "shared"
    layer = sum(p.numel() for p in run.layers[0].parameters())
    vocabulary = 4 + 5
    assert trace_totals.totals_of(run.steps).parameters == layer + vocabulary * 35


def test_the_header_says_what_the_sizes_stand_for(run: Ran) -> None:
    expected = (
        "B 3 batch  H 5 heads  Tq 4 queries  Tk 4 keys  d_model 35 numbers a token  "
        "d_k 7 numbers a query or key  d_v 7 numbers a value  V 10 vocabulary"
    )
    assert trace(run.steps)[0] == expected
    assert trace(steps_at(), sizes={"B": 2, "V": 37000})[0] == "B 2 batch  V 37,000 vocabulary"


def test_one_colour_for_each_axis_name_in_both_columns() -> None:
    console = paper(250, terminal=True, color="standard")
    lines = trace(steps_at({**SIZES, "Tk": 9}, cross=True), console, expand=True, cross=True)
    colors: dict[str, set[str]] = {}
    for step, line in zip(steps_at(cross=True), _table_lines(lines), strict=True):
        text = Text.from_ansi(line)
        shape = _between(text, r"(?<= )\d+(?:×\d+)+")
        axes = _between(text, re.escape(" ".join(step.axes)) + "(?= )")
        sizes = [part for part in shape if part[0].isdigit()]
        assert len(sizes) == len(axes) == len(step.axes)
        for name, (_, of_size), (shown, of_name) in zip(step.axes, sizes, axes, strict=True):
            assert shown == name
            assert of_size == of_name
            colors.setdefault(name, set()).add(of_size)
    assert all(len(each) == 1 for each in colors.values())
    simple = {name: color for name, (color,) in colors.items() if name in SIZES}
    assert len(set(simple.values())) == len(simple) == 7  # V stands in no shape


def _table_lines(lines: Sequence[str]) -> list[str]:
    plain = [Text.from_ansi(line).plain for line in lines]
    top = next(i for i, line in enumerate(plain) if re.match(r" *#  ", line))
    return list(lines[top + 2 : plain.index("", top)])


def _between(text: Text, pattern: str) -> list[tuple[str, str]]:
    """(word, style) of each part of the first match, at its spaces and ×."""
    match = re.search(pattern, text.plain)
    assert match, text.plain
    console = Console()
    found = []
    for part in re.finditer(r"[^ ×]+", match[0]):
        style = text.get_style_at_offset(console, match.start() + part.start())
        found.append((part[0], str(style)))
    return found


# ── widths ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("ascii", [False, True])
def test_sixty_columns_take_two_lines_a_step(cross: bool, ascii: bool) -> None:
    lines = trace(steps_at(cross=cross), paper(60, terminal=True, ascii=ascii), cross=cross)
    assert all(cells(line) <= 60 for line in lines)
    top = next(i for i, line in enumerate(lines) if line.strip().startswith("#"))
    body = lines[top + 2 : lines.index("", top)]
    stages = {kind.stage for kind in STEP_KINDS.values()}
    steps = [line for line in body if line not in stages]
    assert all(re.match(r" *\d+ ", line) for line in steps[::2])
    assert all(line.startswith("   ") for line in steps[1::2])
    assert len(steps) == 2 * len(trace_table.rows_of(steps_at(cross=cross), cross=cross))
    assert not any("…" in line or "..." in line for line in lines)


def test_sixty_columns_hold_a_large_model() -> None:
    sizes = {"B": 1, "H": 96, "Tq": 2048, "Tk": 2048, "d_model": 12288, "d_k": 128, "d_v": 128}
    lines = trace(steps_at({**sizes, "V": 50257}), paper(60, terminal=True))
    assert max(map(cells, lines)) <= 60
    assert any(re.match(r" *10 1×96×2048×2048 B H Tq Tk +- +103G 1.5 GiB$", line) for line in lines)


@pytest.mark.parametrize("name", STEP_KINDS)
def test_every_explanation_fits_the_second_line(name: str) -> None:
    assert cells(STEP_KINDS[name].words) <= 57
    assert cells(notation(STEP_KINDS[name].words, ascii_only=True)) <= 57


@pytest.mark.parametrize("source", [False, True])
@settings(max_examples=25)
@given(width=st.integers(20, 220))
def test_no_width_loses_anything(width: int, source: bool) -> None:
    steps = steps_at()
    lines = trace(steps, paper(width, terminal=True), source=source)
    assert all(cells(line) <= width for line in lines)
    text = " ".join(" ".join(lines).split())
    for row in trace_table.rows_of(steps):
        assert row.words in text
        assert "×".join(map(str, row.first.shape)) in text
        assert " ".join(row.first.axes) in text
        assert row.first.stage in text
        assert not source or row.first.source in text
    for n in ("19,995,648", "50,921,472", "139,008", "4.03 TiB", "70.4T"):
        assert n in text


@pytest.mark.parametrize("width", [1, 2, 5, 12, 19])
def test_a_sliver_of_a_terminal_still_works(width: int) -> None:
    lines = trace(steps_at(), paper(width, terminal=True))
    letters = re.sub(r"\s", "", "".join(lines))
    assert "softmaxalongthekeys" in letters
    assert all(cells(line) <= max(width, 4) for line in lines)


@pytest.mark.parametrize(("width", "form"), [(200, 1), (120, 2), (60, 2)])
def test_the_widest_form_that_fits(width: int, form: int) -> None:
    lines = trace(steps_at(), paper(width, terminal=True))
    at = next(i for i, line in enumerate(lines) if re.match(" *1 ", line))
    following = next(i for i, line in enumerate(lines) if re.match(" *2 ", line))
    assert following - at == form


def test_no_colour_means_no_escape_and_ascii_means_ascii() -> None:
    plain = trace(steps_at(), paper(120, terminal=True))
    assert not any("\x1b" in line for line in plain)
    console = Console(
        file=io.StringIO(), width=120, force_terminal=True, color_system="truecolor", no_color=True
    )
    assert trace(steps_at(), console) == plain
    lines = trace(steps_at(), paper(120, terminal=True, ascii=True))
    text = "\n".join(lines)
    assert text.isascii()
    for words in ("q * k^T", "sqrt(d_k)", "2x8x12x12", "H*d_k", "grows as T^2", "---"):
        assert words in text


def test_nothing_is_printed_for_no_steps() -> None:
    assert trace([]) == []
    assert trace_totals.peak([]) == (0, 0)


# ── totals ───────────────────────────────────────────────────────────────────────────────────


def test_totals_are_the_sums_of_the_rows(run: Ran) -> None:
    text = "\n".join(trace(run.steps))
    parameters = sum(p.numel() for p in run.layers[0].parameters()) + 10 * 35
    assert f"parameters   {parameters:,} ({human_bytes(4 * parameters)})\n" in text
    exact = sum(step.matmul_flops for step in run.steps)
    rough = sum(step.elementwise_flops for step in run.steps)
    assert (
        f"FLOP         {exact:,} in matrix products (exact, a multiply-add is 2), ~{rough:,} "
        in text
    )
    assert f"activations  {human_bytes(sum(s.nbytes for s in run.steps))} if every" in text
    assert "totals" not in text
    short = trace(run.steps, totals=False)
    assert short == trace(run.steps)[: len(short)]
    assert not any("parameters  " in line and "," in line for line in short[1:])


def test_the_peak_by_hand() -> None:
    """At the products: the input for the residual, q, k and v through their views, the products."""
    sizes = {**SIZES, "B": 1, "Tq": 100, "Tk": 100}
    steps = steps_at(sizes)
    item, tokens, scores = 4, 100 * 512, 8 * 100 * 100
    first = item * (tokens + 3 * tokens + scores)
    # later: input, v, and two maps; with the mask once, a byte for each query and key
    masked = item * (tokens + tokens + 2 * scores) + 100 * 100
    assert masked < first
    assert trace_totals.peak(steps) == (first, 9)
    assert [s.name for s in steps][9] == "products"
    long = {**SIZES, "B": 1, "Tq": 4096, "Tk": 4096}
    tokens, scores = 4096 * 512, 8 * 4096 * 4096
    masked = item * (2 * tokens + 2 * scores) + 4096 * 4096
    assert trace_totals.peak(steps_at(long)) == (masked, 12)
    assert [s.name for s in steps][12] == "masked_scores"


def test_the_peak_keeps_what_the_layer_returns() -> None:
    """At the residual: the weights, which are a result, the input, the projection, the sum."""
    sizes = {**SIZES, "B": 1, "H": 2, "Tq": 50, "Tk": 50, "d_k": 1, "d_v": 1}
    steps = steps_at(sizes, masked=False)
    weights, tokens = 4 * 2 * 50 * 50, 4 * 50 * 512
    most, at = trace_totals.peak(steps)
    assert (most, steps[at].name) == (weights + 3 * tokens, "residual")


def test_what_grows_as_t_squared() -> None:
    lines = trace(steps_at({**SIZES, "B": 1}))
    at = next(i for i, line in enumerate(lines) if line.startswith("grows as T²"))
    table = {row[0]: row[1:] for row in (re.split(" {2,}", line) for line in lines[at:] if line)}
    assert table["grows as T²"] == ["T = 4k", "T = 32k", "T = 128k"]
    for name in ("10 products", "11 scores", "13 masked_scores", "14 weights"):
        assert table[name] == ["512 MiB", "32 GiB", "512 GiB"]  # 8 heads · T² · 4 bytes
    assert table["12 allowed"] == ["16 MiB", "1 GiB", "16 GiB"]
    totals = [8 * 4 * 4 * n * n + n * n for n in (4096, 32768, 131072)]
    assert table["together"] == [human_bytes(n) for n in totals]
    flops = [2 * 2 * 8 * 64 * n * n for n in (4096, 32768, 131072)]
    assert table["FLOP of 10, 15"] == [machine.human_count(n) for n in flops]


def test_a_trace_without_scores_has_nothing_that_grows() -> None:
    assert not any("grows" in line for line in trace(steps_at()[:9]))


@pytest.mark.parametrize(
    ("n", "shown"),
    [
        (0, "0"),
        (9999, "9999"),
        (10_000, "10k"),
        (12_345, "12.3k"),
        (999_499, "999k"),
        (999_500, "1M"),
        (1_048_576, "1.05M"),
        (175 * 10**9, "175G"),
        (2 * 10**20, "200E"),
        (2 * 10**24, "2.00e+06E"),
    ],
)
def test_human_count(n: int, shown: str) -> None:
    assert machine.human_count(n) == shown


# ── architectures ────────────────────────────────────────────────────────────────────────────

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
}
T5 = {"model_type": "t5", "d_model": 512, "num_heads": 8, "d_kv": 64, "num_layers": 6}


def test_grouped_heads() -> None:
    steps = architecture_steps(from_dict(LLAMA), 1, 128)
    lines = trace(steps)
    assert "Hkv 8 key/value heads" in lines[0]
    found = {row[2]: row for row in rows(lines)}
    assert found["q"][3:5] == ["1×32×128×128", "B H Tq d_k"]
    assert found["k,v"][3:5] == ["1×8×128×128", "B Hkv Tk d_k"]
    assert found["k,v_repeated"][-1] == "key and value heads lent to the H / Hkv heads of a group"
    order = [s.name for s in steps]
    read = trace_totals.reads(steps)
    assert [order[i] for i in read[order.index("products")]] == ["q_rotated", "k_repeated"]
    assert [order[i] for i in read[order.index("context")]] == ["weights", "v_repeated"]
    assert trace_totals.peak(steps)[0] > 0


def test_position_biases() -> None:
    steps = architecture_steps(from_dict(T5), 1, 16)
    assert "distances in the table" in trace(steps)[0]
    assert "vocabulary" not in trace(steps)[0]


# ── the heads ────────────────────────────────────────────────────────────────────────────────


def heads_table(lines: Sequence[str]) -> dict[str, list[float]]:
    rule = next(i for i, line in enumerate(lines) if line.startswith("──"))
    body = [line.split() for line in lines[rule + 1 :]]
    return {row[0]: [float(n) for n in row[1:]] for row in body if row[0].isdigit()}


@pytest.mark.parametrize("sequence", [0, 1, None])
def test_the_measures_of_each_head(run: Ran, sequence: int | None) -> None:
    console = paper()
    head_measures.print_heads(run.result, sequence, console)
    lines = printed(console)
    found = heads_table(lines)
    sums = measure_all(run.result) if sequence is None else measure(run.result, sequence)
    assert len(found) == 5
    for i, name in enumerate(MEASURES):
        values = [found[str(head)][i] for head in range(5)]
        np.testing.assert_allclose(values, sums.result()[name][0], atol=5.01e-4)
    where = "all sequences" if sequence is None else f"sequence {sequence}"
    assert lines[0] == f"heads of {where}: means over {sums.rows[0, 0]} query rows"
    assert "entropy: bits" in lines[-2]


def test_chosen_heads_and_an_empty_sequence(run: Ran) -> None:
    console = paper()
    head_measures.print_heads(run.result, 0, console, [(0, 3), (0, 1)])
    assert list(heads_table(printed(console))) == ["3", "1"]
    console = paper()
    head_measures.print_heads(run.result, 2, console)
    assert printed(console) == ["heads of sequence 2: means over 0 query rows"]


def test_heads_that_see_nothing_and_several_layers(run: Ran) -> None:
    from dataclasses import replace

    allowed = np.repeat(np.repeat(run.result.allowed, 5, axis=2), 2, axis=0)
    allowed[1, :, 2] = False
    attention = np.repeat(run.result.attention, 2, axis=0)
    result = replace(run.result, attention=attention, allowed=allowed)
    console = paper()
    head_measures.print_heads(result, 0, console)
    lines = printed(console)
    assert lines[0] == "heads of sequence 0: means over 0 to 4 query rows"
    assert re.split(" {2,}", lines[3 + 7]) == ["L1 H2", "-", "-", "-", "-", "-"]


@pytest.mark.parametrize("width", [20, 30, 47])
def test_narrow_heads(run: Ran, width: int) -> None:
    console = paper(width, terminal=True, ascii=True)
    head_measures.print_heads(run.result, 0, console)
    lines = printed(console)
    assert all(cells(line) <= width for line in lines)
    text = " ".join(" ".join(lines).split())
    entropy = measure(run.result, 0).result()["entropy"][0]
    for head in range(5):
        assert f"head {head} entropy {entropy[head]:.3f} largest" in text


# ── other forms ──────────────────────────────────────────────────────────────────────────────


def schema() -> Any:
    path = Path(trace_table.__file__).with_name("shapes.schema.json")
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("cross", [False, True])
def test_json_follows_its_schema_and_holds_the_steps(cross: bool) -> None:
    steps = steps_at(cross=cross)
    document = json.loads(
        json.dumps(trace_table.trace_as_json(steps, sizes=SIZES, config={"seed": 0}))
    )
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(document, schema())
    assert document["config"] == {"seed": 0}
    assert document["sizes"] == SIZES
    for step, found in zip(steps, document["steps"], strict=True):
        assert found["name"] == step.name
        assert found["axes"] == list(step.axes)
        assert found["shape"] == list(step.shape)
        assert found["bytes"] == step.nbytes
        assert [p["shape"] for p in found["parameters"]] == [list(p[2]) for p in step.parameters]
        assert all(number < found["number"] for number in found["reads"])
    totals = document["totals"]
    for key, of_step in [
        ("parameters", "n_parameters"),
        ("matmul_flops", "matmul_flops"),
        ("elementwise_flops", "elementwise_flops"),
        ("activation_bytes", "bytes"),
    ]:
        assert totals[key] == sum(step[of_step] for step in document["steps"])
    assert document["quadratic"]["at"][0]["tokens"] == 4096
    assert len(document["quadratic"]["steps"]) == 5


def test_json_without_sizes_reads_them_off_the_steps(run: Ran) -> None:
    document = trace_table.trace_as_json(run.steps)
    jsonschema.validate(document, schema())
    expected = {"B": 3, "H": 5, "Tq": 4, "Tk": 4, "d_model": 35, "d_k": 7, "d_v": 7, "V": 10}
    assert document["sizes"] == expected


def test_the_schema_refuses_what_is_wrong() -> None:
    document = trace_table.trace_as_json(steps_at())
    document["steps"][0]["shape"] = [0]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema())


def test_markdown_is_a_table_of_the_same_cells() -> None:
    lines = trace_table.trace_as_markdown(steps_at(), source=True).splitlines()
    cells_ = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    assert cells_[0] == [*HEADS, "source", "what happens"]
    assert {len(row) for row in cells_} == {12}
    assert set(cells_[1]) == {"---", "---:"}
    assert len(lines) == 2 + len(trace_table.rows_of(steps_at()))
    assert cells_[5][2:5] == ["q,k,v_projected", "2×12×512", "B Tq H·d_k"]
