"""`attnviz shapes` on the command line: any size at once, text with its masks, four forms."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.text import Text

from attnviz.cli.main import call


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert call(["shapes", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def step(found: dict, name: str) -> dict:
    return next(step for step in found["steps"] if step["name"] == name)


def test_a_size_that_no_machine_holds_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--d-model", "65536", "--n-heads", "512", "--d-k", "128", "--len", "1000000"]
    found = document(capsys, *sizes, "--batch", "3")
    assert step(found, "scores")["shape"] == [3, 512, 1000000, 1000000]
    assert step(found, "q")["shape"] == [3, 512, 1000000, 128]
    assert step(found, "embedded")["shape"] == [3, 1000000, 65536]


def test_it_takes_no_more_memory_than_a_small_one() -> None:
    script = (
        "import resource, sys\n"
        "from attnviz.cli.main import call\n"
        "call(['shapes', '--len', sys.argv[1], '--d-model', sys.argv[1], '--json'])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    peaks = [
        int(
            subprocess.run(
                [sys.executable, "-c", script, size], capture_output=True, text=True, check=True
            ).stdout.splitlines()[-1]
        )
        for size in ("8", "8000000")
    ]
    assert peaks[1] < peaks[0] + 10_000  # KiB


def test_keys_of_another_length_are_cross_attention(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--len", "5", "--key-len", "7", "--d-v", "3")
    assert step(found, "key_input")["shape"] == [1, 7, 512]
    assert step(found, "weights")["shape"] == [1, 8, 5, 7]
    assert step(found, "context")["shape"] == [1, 8, 5, 3]


def test_a_text_gives_its_own_sizes_and_what_its_masks_forbid(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(["shapes", "the cat sat", "a", "--window", "1", "--pad-side", "left"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "layer       8 heads, d_model 512, d_k 64, d_v 64, float32, positions sinusoidal\n"
        "masks       padding, window 1: 6 of 10 cells forbidden; 2 padded keys; "
        "2 padded rows with nothing to see\n"
    )
    assert "2×8×3×3" in out
    assert "masked_scores" in out


def test_a_mask_of_ones_own_counts_rows_that_see_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "m.txt").write_text("0 0\n0 1\n")
    assert call(["shapes", "a b", "--mask", str(tmp_path / "m.txt")]) == 0
    out = capsys.readouterr().out
    assert "3 of 4 cells forbidden; 1 row with nothing to see" in out


def test_the_other_forms(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["shapes", "a b", "--format", "markdown", "--source", "--expand"]) == 0
    markdown = capsys.readouterr().out
    assert markdown.startswith("| # | stage | step |")
    assert "attention.py:" in markdown
    assert call(["shapes", "a b", "--format", "xml"]) == 2
    assert capsys.readouterr().err == (
        "attnviz: --format is 'xml'; it must be one of table, json, markdown\n"
    )


def test_the_shapes_are_those_of_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = ["the cat sat", "a", "--d-model", "24", "--n-heads", "3", "--causal"]
    assert call(["shapes", *flags]) == 0
    _, table = capsys.readouterr().out.split("\n\n", 1)
    assert call(["run", *flags, "-o", str(tmp_path / "r.npz")]) == 0
    # shapes, costs, layouts: the same letters from a shadow run and from a real one
    assert table in capsys.readouterr().out


# ── sizes that cannot work ───────────────────────────────────────────────────────────────────


def test_the_trace_stops_at_the_step_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["shapes", "--len", "6", "--d-model", "512", "--n-heads", "10"]) == 2
    said = capsys.readouterr()
    assert "q_projected" in said.out
    assert "scores" not in said.out
    assert "5 q cannot work: d_model 512 cannot be cut into 10 heads of equal width" in said.out
    assert "q     B Tq d_model  =  1×6×512" in said.out
    assert "512 = 10·51 + 2" in said.out
    assert "works: use 8 or 16 heads, or keep 10 heads with --d-k 51" in said.out
    assert said.err.startswith("attnviz: d_model 512 cannot be cut into 10 heads of equal width: ")
    assert said.err.count("\n") == 1


def test_key_value_heads_that_do_not_divide_stop_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(["shapes", "a b", "--n-kv-heads", "3"]) == 2
    out = capsys.readouterr().out
    assert "k_repeated cannot work: 3 key/value heads cannot be shared evenly by 8 heads" in out


def test_a_mask_that_does_not_fit_stops_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    np.save(tmp_path / "m.npy", np.ones((2, 1, 1, 1024)))
    given = ["--mask", str(tmp_path / "m.npy"), "--len", "2048"]
    for arguments in (given, [*given[:2], "a b c"]):
        assert call(["shapes", *arguments]) == 2
        said = capsys.readouterr()
        assert "allowed cannot work: the mask does not fit the scores" in said.out
        assert "mask    B H Tq Tk  =  2×1×1×1024" in said.out
        assert "B 2 ≠ 1, Tk 1024 ≠ " in said.out
        assert "masked_scores" not in said.out
        assert said.err.count("\n") == 1
    assert call(["shapes", *given, "--json"]) == 2
    assert capsys.readouterr().out == ""
    np.save(tmp_path / "m.npy", np.ones(5))
    assert call(["shapes", *given]) == 2
    assert "has 1 axes, shape [5]" in capsys.readouterr().err


def test_a_mask_may_differ_between_heads(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    np.save(tmp_path / "m.npy", np.ones((1, 8, 3, 3)))
    for arguments in (["--len", "3"], ["a b c"]):
        found = document(capsys, *arguments, "--mask", str(tmp_path / "m.npy"))
        assert step(found, "allowed")["shape"] == [1, 8, 3, 3]


def test_what_is_legal_and_looks_wrong_is_remarked(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--d-model", "640", "--n-heads", "4", "--d-k", "256", "--len", "5"]
    assert call(["shapes", *sizes]) == 0
    assert "the projections are 640→1024 and 1024→640" in capsys.readouterr().out


# ── two at once ──────────────────────────────────────────────────────────────────────────────


def rows(out: str) -> dict[str, tuple[bool, list[str]]]:
    """Step → (marked, its cells)."""
    found = {}
    for line in out.splitlines():
        cells = [cell for cell in line.lstrip("≠ ").split("  ") if cell.strip()]
        if len(cells) >= 3:
            found[cells[0].strip()] = (line.startswith("≠"), [cell.strip() for cell in cells[1:]])
    return found


def test_rows_that_differ_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["shapes", "--len", "100", "--vs", "--n-kv-heads 2"]) == 0
    found = rows(capsys.readouterr().out)
    assert found["k"] == (True, ["1×8×100×64", "1×2×100×64", "view", "view"])
    assert found["q"] == (False, ["1×8×100×64", "1×8×100×64", "view", "view"])
    assert found["k_repeated"] == (True, ["-", "1×8×100×64", "-", "200 KiB"])
    # 3·(512·512 + 512) + (512·512 + 512) + 1024 + 37000·512, and with K and V of 128 columns
    assert found["parameters"] == (True, ["19,995,648", "19,601,664"])


def test_masks_can_differ(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["shapes", "--len", "100", "--vs", "--causal --len 50"]) == 0
    found = rows(capsys.readouterr().out)
    assert found["masked_scores"][1] == ["-", "1×8×50×50", "-", "~20k FLOP, 78.1 KiB"]
    assert call(["shapes", "a b", "--causal", "--vs", "--no-causal"]) == 0
    assert rows(capsys.readouterr().out)["allowed"][1][:2] == ["1×1×2×2", "-"]


def test_both_sides_may_be_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["shapes", "the cat", "--vs", "--seed 3"]) == 0
    assert not any(marked for marked, _ in rows(capsys.readouterr().out).values())


def test_more_heads_and_no_more_parameters_is_explained(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(["shapes", "--len", "10", "--n-heads", "1", "--vs", "--n-heads 64"]) == 0
    out = capsys.readouterr().out
    assert "1 and 64 heads have the same 1,051,648 parameters, and that is no mistake" in out


@pytest.mark.parametrize(
    ("versus", "message"),
    [
        ("--n-heads", "expected one argument"),
        ("--n-heads two", "invalid int value: 'two'"),
        ("--wrong 3", "unrecognized arguments: --wrong 3"),
        ("'", "No closing quotation"),
        ("", 'flags of the other layer are expected, "--n-heads 4", or a config.json'),
        ("--n-heads 7", "d_model 512 cannot be cut into 7 heads of equal width"),
    ],
)
def test_the_other_flags_can_be_wrong(
    versus: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["shapes", "--len", "5", "--vs", versus]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_two_at_once_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["shapes", "--len", "5", "--vs", "--n-heads 4", "--json"]) == 2
    assert capsys.readouterr().err == (
        "attnviz: --vs makes a table; --format json shows one layer at a time\n"
    )


# ── real architectures ───────────────────────────────────────────────────────────────────────


@pytest.fixture
def gemma(tmp_path: Path) -> Path:
    """Gemma 3 1B as its config.json has it: 26 layers, every sixth global."""
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "gemma3_text",
                "hidden_size": 1152,
                "num_attention_heads": 4,
                "num_key_value_heads": 1,
                "head_dim": 256,
                "num_hidden_layers": 26,
                "sliding_window": 512,
                "sliding_window_pattern": 6,
                "torch_dtype": "bfloat16",
            }
        )
    )
    return tmp_path


def test_a_model_shows_its_layer_and_its_cache(
    gemma: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["shapes", "--model", str(gemma), "--len", "8192"]) == 0
    out = capsys.readouterr().out
    assert "4 on 1 key/value heads, d_k 256" in out
    assert "22 sliding (window 512), 4 global" in out
    assert "KV cache at 8,192 tokens, bfloat16" in out
    # a token, a layer: keys and values, 1 head of 256 numbers of 2 bytes
    assert rows(out)["sliding"][1] == ["22", "512", "1,024 B", "22 KiB", "11 MiB"]
    assert rows(out)["global"][1] == ["4", "8,192", "1,024 B", "4 KiB", "32 MiB"]


def test_a_model_as_json(gemma: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--model", str(gemma / "config.json"), "--batch", "3")
    assert step(found, "k")["shape"] == [3, 1, 1024, 256]
    assert step(found, "k")["dtype"] == "bfloat16"
    cache = found["config"]["cache"]
    assert cache["bytes"] == 3 * 1024 * (22 * 512 + 4 * 1024)


def test_a_length_beyond_the_model_is_remarked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024}'
    )
    assert call(["shapes", "--model", str(tmp_path), "--len", "8192"]) == 0
    assert "8,192 tokens are more than the 1,024 it was made for" in capsys.readouterr().out


def test_a_model_beside_a_layer_from_flags(gemma: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["shapes", "--len", "64", "--vs", str(gemma / "config.json")]) == 0
    assert rows(capsys.readouterr().out)["q"][1][:2] == ["1×8×64×64", "1×4×64×256"]
    assert call(["shapes", "--model", str(gemma), "--vs", "--n-heads 16"]) == 0
    assert rows(capsys.readouterr().out)["q"][1][:2] == ["1×4×1024×256", "1×16×1024×32"]


def test_a_model_and_flags_of_a_layer_are_both_named(
    gemma: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["shapes", "--model", str(gemma), "--d-model", "64"]) == 2
    assert capsys.readouterr().err == (
        "attnviz: --model and --d-model both give the layer; give one of them\n"
    )
    assert call(["shapes", "a text", "--model", str(gemma)]) == 2
    assert capsys.readouterr().err == (
        "attnviz: --model and TEXT both give the queries; give one of them\n"
    )


def test_an_encoder_keeps_no_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "bert", "hidden_size": 768, '
        '"num_attention_heads": 12, "num_hidden_layers": 12}'
    )
    assert call(["shapes", "--model", str(tmp_path)]) == 0
    assert "KV cache     none: every token is read at once" in capsys.readouterr().out


@pytest.mark.parametrize("width", [20, 40, 60, 200])
def test_a_comparison_and_a_cache_fit_any_width(width: int, gemma: Path) -> None:
    from rich.console import Console

    from attnviz.architectures import read_architecture
    from attnviz.render.reports import cache_as_json, print_cache, print_comparison
    from attnviz.sources.from_architecture import architecture_steps

    architecture = read_architecture(gemma)
    steps = [architecture_steps(architecture, 1, length) for length in (128, 4096)]
    console = Console(width=width, force_terminal=True, color_system="truecolor", highlight=False)
    with console.capture() as capture:
        print_comparison(*steps, console)
        print_cache(cache_as_json(architecture, 4096, 2, "float16"), console)
    printed = [Text.from_ansi(line).cell_len for line in capture.get().splitlines()]
    assert max(printed) <= width


@pytest.mark.parametrize("width", [12, 20, 36, 60])
def test_facts_fit_any_width(width: int) -> None:
    from rich.console import Console

    from attnviz.cli.facts import print_facts
    from attnviz.config import AttentionConfig
    from attnviz.sources.layer_lines import layer_lines

    console = Console(width=width, force_terminal=True, color_system=None)
    with console.capture() as capture:
        print_facts(console, layer_lines(AttentionConfig.from_sizes()))
    printed = capture.get()
    assert max(map(len, printed.splitlines())) <= width
    assert "".join(printed.split()).startswith("layer8heads,d_model512,d_k64,")
