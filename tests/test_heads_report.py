"""The report of heads: sentences, tables, the page, pictures."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import IO
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from rich.color import Color, ColorSystem
from rich.console import Console

from attnviz.measures.glossary import GLOSSARY
from attnviz.measures.head_classes import THRESHOLDS
from attnviz.render import fonts
from attnviz.render.console import make_console
from attnviz.render.figure_options import FigureOptions
from attnviz.render.head_matrices import draw_agreement, draw_matrix
from attnviz.render.heads_files import report_as_json, rows_of, write_csv
from attnviz.render.heads_page import write_page
from attnviz.render.heads_report import (
    HeadReport,
    notable,
    print_report,
    sentence,
    summary,
)
from attnviz.render.terminal_matrix import print_matrix

PLAIN = {"self": 0.1, "previous": 0.2, "next": 0.05, "first": 0.2, "separator": 0.1,
         "same_token": 0.1, "entropy": 2.5, "largest": 0.4, "distance": 120.0, "sink": 0.1,
         "fixed": 0.2, "band": 0.3, "segment": 0.5, "segment_evenly": 0.5, "at_offset": 0.3,
         "offset": 4.0, "keys": 5.0}  # fmt: skip

HEADS: dict[tuple[int, int], dict[str, float]] = {
    (0, 0): {"at_offset": 0.95, "offset": -1.0, "previous": 0.91},
    (0, 1): {"at_offset": 0.92, "offset": -3.0},
    (0, 2): {"separator": 0.62},
    (1, 0): {"sink": 0.7},
    (1, 1): {"same_token": 0.55},
    (1, 2): {"prefix_matching": 0.93},
    (2, 0): {"segment": 0.9},
    (2, 1): {"largest": 0.05, "keys": 93.4},
    (2, 2): {"at_offset": 1.0, "offset": 1.0, "next": 0.8},
    (3, 0): {"at_offset": 0.9, "offset": 0.0, "self": 0.77},
    (3, 1): dict.fromkeys(PLAIN, np.nan),
    (3, 2): {},
}


def report(**more: object) -> HeadReport:
    names = [*PLAIN, "prefix_matching"]
    figures = {name: np.full((4, 3), PLAIN.get(name, 0.0)) for name in names}
    for head, values in HEADS.items():
        for name, value in values.items():
            figures[name][head] = value
    facts = {"rows": 1234, "documents": 56, "tokens": 1300, "n_bad": 0}
    told = {"figures": figures, "layer_numbers": (0, 1, 2, 7), "source": "a model", "facts": facts}
    return HeadReport(**{**told, **more})  # type: ignore[arg-type]


def console_of(stream: IO[str], columns: int | None = None, colors: str | None = None) -> Console:
    if columns is None:
        return make_console(stream, {"TERM": "dumb"})
    return Console(
        file=stream, width=columns, force_terminal=True, color_system=colors, markup=False,
        highlight=False, emoji=False, _environ={},
    )  # type: ignore[arg-type]  # fmt: skip


def printed(made: HeadReport, columns: int | None = None, **how: object) -> str:
    stream = io.StringIO()
    print_report(made, console_of(stream, columns), **how)  # type: ignore[arg-type]
    return stream.getvalue()


SAID = {
    (0, 0): "layer 0 head 0: looks at the previous token, 0.91 of its weight",
    (0, 1): "layer 0 head 1: looks 3 tokens back, 0.92 of its largest weights",
    (0, 2): "layer 0 head 2: looks at separators, 0.62 of its weight",
    (1, 0): "layer 1 head 0: rests on the first token, 0.70 of its weight (α₀)",
    (1, 1): "layer 1 head 1: looks at the same token elsewhere, 0.55 of its weight",
    (1, 2): "layer 1 head 2: looks at what followed the same token before: prefix-matching score "
    "0.93 on random tokens that repeat",
    (2, 0): "layer 2 head 0: stays in its own segment, 0.90 of its weight on ordinary tokens, "
    "where its distances alone would give 0.50",
    (2, 1): "layer 2 head 1: spreads its weight, as if 93 keys shared a row evenly",
    (2, 2): "layer 2 head 2: looks at the next token, 0.80 of its weight",
    (3, 0): "layer 7 head 0: looks at the query's own token, 0.77 of its weight",
    (3, 1): None,
    (3, 2): None,
}


@pytest.mark.parametrize("head", SAID)
def test_sentences(head: tuple[int, int]) -> None:
    assert sentence(report(), head) == SAID[head]


def test_the_clearest_heads_of_each_class() -> None:
    order = [(1, 2), (0, 0), (2, 2), (3, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert notable(report()) == [SAID[head] for head in order]
    many = report(figures={**report().figures, "sink": np.arange(12).reshape(4, 3) / 12})
    sinks = [line for line in notable(many) if "rests" in line]
    assert [line.split(":")[0] for line in sinks] == [
        "layer 7 head 2", "layer 7 head 1", "layer 2 head 1"
    ]  # fmt: skip
    assert len([line for line in notable(many, None) if "rests" in line]) == 5


def test_summaries() -> None:
    probe = {"first_copy": 14.6, "later_copies": 1.9}
    gold = np.full((4, 3), 0.1)
    gold[2, 1] = 0.6
    figures = {**report().figures, "gold": gold, "gold <b>": gold}
    made = report(figures=figures, probe=probe, gold_offsets={"": (1, 0.5), "<b>": (-2, 0.25)})
    assert summary(made) == [
        "1 induction, 1 previous, 1 next, 1 self, 1 offset, 1 separator, 1 sink, 1 same token, "
        "1 block, 1 broad, 2 mixed",
        "0.09 of the heads have a sink at the first token (α₀ > 0.3); the first token gets 0.20 of "
        "all weight",
        "kinds after Kovaleva et al. 2019: 11 mixed, 1 block",
        "gold pairs: head 2.1 finds 0.60, the best fixed offset (+1) 0.50",
        "gold <b>: head 2.1 finds 0.60, the best fixed offset (-2) 0.25",
        "loss on random tokens: 14.60 nats on the first copy, 1.90 on later ones",
    ]
    bare = HeadReport({"entropy": np.full((1, 1), np.nan)}, (0,), "x")
    assert summary(bare) == ["1 mixed"]
    assert HeadReport({"sink": np.full((1, 1), np.nan)}, (0,), "x").sink_share() is None


def test_the_table() -> None:
    lines = printed(report(), sort="keys", top=2).splitlines()
    assert lines[0] == "heads of a model: means over 1,234 query rows of 56 documents"
    assert lines[1].split()[:4] == ["head", "class", "keys", "self"]
    assert lines[3].split()[:3] == ["2.1", "broad", "93.400"]
    assert lines[5] == "10 more heads; --top 0 shows all"
    whole = printed(report())
    assert "offset -3" in whole
    blank = next(line for line in whole.splitlines() if line.startswith("7.1 "))
    assert blank.split() == ["7.1", "mixed", *["-"] * 10, "0.000"]
    for name in ("entropy", "prefix_matching"):
        assert f"{name}: {GLOSSARY[name]}" in whole


@pytest.mark.parametrize("columns", [12, 20])
def test_a_very_narrow_terminal_folds_the_table(columns: int) -> None:
    assert max(map(len, printed(report(), columns, top=1).splitlines())) <= columns
    lines = printed(report(), columns).splitlines()
    assert max(map(len, lines)) <= columns
    assert "".join(printed(report(), columns).split()).count("entropy2.500") == 11


@pytest.mark.parametrize("columns", [33, 60, 80, 102, 103, 200])
def test_a_table_that_is_too_wide_goes_on_below(columns: int) -> None:
    """Every cell is there once, in its column, whatever the width."""
    lines = printed(report(), columns).splitlines()
    assert max(map(len, lines)) <= columns
    found: dict[str, list[str]] = {}
    for i, line in enumerate(lines):
        if not line.startswith("head  class"):
            continue
        ends = [(match[0], match.end()) for match in re.finditer(r"\w+", line[16:])]
        for name, end in ends:
            cells = [row[: 16 + end].split()[-1] for row in lines[i + 2 : i + 14]]
            assert name not in found
            found[name] = cells
    names = ["self", "previous", "next", "first", "separator", "same_token", "entropy", "largest",
             "distance", "sink", "prefix_matching"]  # fmt: skip
    assert list(found) == names
    assert found["self"] == ["0.100"] * 9 + ["0.770", "-", "0.100"]
    assert found["distance"] == ["120.0"] * 10 + ["-", "120.0"]
    assert found["prefix_matching"][5] == "0.930"


@pytest.mark.parametrize(
    ("figures", "columns"),
    [(["to_uniform"], ["to_uniform"]), (["offset", "at_offset"], ["offset", "at_offset"])],
)
def test_a_table_has_what_was_measured(figures: list[str], columns: list[str]) -> None:
    made = HeadReport({name: np.zeros((1, 1)) for name in figures}, (0,), "x")
    assert printed(made).splitlines()[1].split() == ["head", "class", *columns]


def test_hostile_labels_are_text_in_the_table() -> None:
    name = "gold \x1b[31m[/red]\n$x$"
    figures = {**report().figures, name: np.ones((4, 3))}
    made = report(figures=figures)
    for columns in (None, 20, 80):
        out = printed(made, columns, sort=name)
        assert "\x1b" not in out
        assert "\\x1b[31m[/red]\\n$x$" in "".join(out.split())
    stream = io.StringIO()
    print_matrix(made, name, make_console(stream, {}))
    assert stream.getvalue().startswith(
        "gold \\x1b[31m[/red]\\n$x$: share of the pairs labelled \\x1b[31m[/red]\\n$x$ that the "
        "head finds\n"
    )


def test_figures_say_the_numbers_that_were_chosen() -> None:
    facts = {"near": 3, "first_tokens": 1}
    made = HeadReport({"near": np.zeros((1, 1))}, (0,), "x", facts)
    assert made.meaning("near") == "share within 3 positions"
    assert made.meaning("first_tokens") == "share on the first 1 token"
    assert made.meaning("gold det") == "share of the pairs labelled det that the head finds"
    assert made.meaning("entropy") == GLOSSARY["entropy"]


def test_one_of_a_thing_is_one() -> None:
    figures = {"entropy": np.zeros((1, 2))}
    facts = {"rows": 1, "documents": 1, "tokens": 1}
    out = printed(HeadReport(figures, (0,), "x", facts), top=1).splitlines()
    assert out[0] == "heads of x: means over 1 query row of 1 document"
    assert "1 more head; --top 0 shows all" in out


def test_an_ascii_terminal_spells_the_sinks() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), "ascii", errors="strict", newline="\n")
    print_report(report(), make_console(stream, {"TERM": "dumb"}))
    print_matrix(report(), "sink", make_console(stream, {"TERM": "dumb"}))
    stream.flush()
    out = stream.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
    assert "0.70 of its weight (alpha_0)" in out
    assert "sink: alpha_0, mean weight" in out
    assert "U+" not in out


def test_the_matrix_in_the_terminal() -> None:
    def matrix(columns: int, encoding: str = "utf-8", colors: str | None = None) -> list[str]:
        stream = io.TextIOWrapper(io.BytesIO(), encoding, errors="strict", newline="\n")
        print_matrix(report(), "sink", console_of(stream, columns, colors))
        stream.flush()
        return stream.buffer.getvalue().decode(encoding).splitlines()  # type: ignore[attr-defined]

    assert matrix(80)[1:6] == ["  0 1 2", "0 ░ ░ ░", "1 ██░ ░", "2 ░ ░ ░", "7 ░ ××░"]
    assert matrix(80)[6:] == [
        "0 [  ░ ░░▒░▒▒▓▒▓▓█▓██] 0.7  ×× not a number  rows: layers  columns: heads"
    ]
    assert matrix(80, "ascii")[3] == "1 @@...."
    narrow = matrix(4)
    assert max(map(len, narrow)) <= 4
    at = narrow.index("  01")
    assert narrow[at : at + 10] == ["  01", "0", "1 █", "2", "7  ×", "  2", "0", "1", "2", "7"]
    yellow = Color.from_rgb(253, 231, 37).downgrade(ColorSystem.EIGHT_BIT).number
    assert f"\x1b[48;5;{yellow}m" in matrix(80, colors="256")[3]  # as large as in a picture
    flat = HeadReport({"sink": np.zeros((1, 1))}, (0,), "x")
    stream = io.StringIO()
    print_matrix(flat, "sink", make_console(stream, {}))
    none = HeadReport({"sink": np.full((1, 1), np.nan)}, (0,), "x")
    print_matrix(none, "sink", make_console(stream, {}))
    assert "0 ××" in stream.getvalue()


def test_numbers_of_many_heads_stand_upright() -> None:
    made = HeadReport({"sink": np.zeros((1, 12))}, (0,), "x")
    stream = io.StringIO()
    print_matrix(made, "sink", console_of(stream, 40))
    lines = stream.getvalue().splitlines()
    assert lines[2:4] == ["                      1 1", "  0 1 2 3 4 5 6 7 8 9 0 1"]


# ── files ────────────────────────────────────────────────────────────────────────────────────


def test_json_has_everything_and_no_nan() -> None:
    alpha = np.full((4, 3, 2), 0.25)
    alpha[0, 0, 0] = np.nan
    divergences = 0.5 * (1 - np.eye(12))
    made = report(
        alpha=alpha, offsets=np.array([-1, 0]), offset_shares=alpha, divergences=divergences,
        gold_offsets={"": (1, 0.5)}, probe={"first_copy": None},
    )  # fmt: skip
    document = report_as_json(made)
    again = json.loads(json.dumps(document, allow_nan=False))
    assert again == document
    assert (document["format"], document["version"]) == ("attnviz.stats", 1)
    assert document["alpha"][0][0] == [None, 0.25]
    assert document["heads"][10]["entropy"] is None
    assert document["heads"][0]["sentence"] == SAID[(0, 0)]
    assert [head["layer"] for head in document["heads"]] == [0] * 3 + [1] * 3 + [2] * 3 + [7] * 3
    assert document["agreement"]["bits"] == divergences.tolist()
    assert document["classes"] == THRESHOLDS
    assert "agreement" not in report_as_json(report())


def test_rows_and_csv(here: Path) -> None:
    rows = rows_of(report())
    assert rows[7]["class"] == "broad"
    assert rows[7]["keys"] == 93.4
    write_csv(report(), here / "h.csv")
    lines = (here / "h.csv").read_text().splitlines()
    assert lines[0] == ",".join(rows[0])
    assert len(lines) == 13
    assert lines[11].startswith("7,1,mixed,mixed,,,")


def test_the_page_is_one_file_and_names_are_text(here: Path) -> None:
    hostile = "</script><script>alert(1)</script> {{DATA}} \x1b[31m"
    write_page(report(source=hostile), here / "h.html", "sink")
    page = (here / "h.html").read_text()
    assert "<script>alert" not in page
    assert "\x1b" not in page
    assert not re.search(r"(src|href)=|https?://|@import|url\(", page)
    data = page.split('<script type="application/json" id="data">')[1].split("</script>")[0]
    assert json.loads(data)["source"] == hostile
    before = page.split('id="data"')[0]
    assert before.count("{{") == before.count("{{DATA}} \\x1b[31m") == 2  # title and heading
    write_page(
        report(facts={"rows": 1, "documents": 1, "tokens": 1, "n_bad": 3}), here / "i.html", "x"
    )
    page = (here / "i.html").read_text()
    assert "3 documents could not be measured." in page
    assert "Means over 1 query row of 1 document (1 token)." in page
    assert "<h2>In words</h2>\n<ul><li>layer 1 head 2: looks at what followed" in page
    nothing = HeadReport({"entropy": np.ones((1, 1))}, (0,), "x")
    write_page(nothing, here / "n.html", "entropy")
    assert "In words" not in (here / "n.html").read_text()


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
@pytest.mark.parametrize(
    "options", [FigureOptions(), FigureOptions(theme="dark", cmap="magma", vmax=0.5)]
)
def test_pictures_are_the_same_bytes_each_time(
    here: Path, suffix: str, options: FigureOptions
) -> None:
    divergences = 0.5 * (1 - np.eye(12))
    made = report(divergences=divergences)
    for name in ("a", "b"):
        draw_matrix(made, "sink", here / f"m{name}{suffix}", options)
        draw_agreement(made, here / f"g{name}{suffix}", options)
    for kind in "mg":
        one, two = ((here / f"{kind}{name}{suffix}").read_bytes() for name in "ab")
        assert one == two
        assert len(one) > 1000


def svg_words(path: Path) -> str:
    """The words of a picture."""
    texts = ET.parse(path).getroot().iter("{http://www.w3.org/2000/svg}text")
    return " ".join(text.text or "" for text in texts)


@pytest.mark.filterwarnings("error")
def test_names_in_pictures_are_text(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "system_fonts", list)
    monkeypatch.setattr(fonts, "package_fonts", list)
    name = "gold $x^2$ \\frac{ <b> \x1b"
    figures = {**report().figures, name: np.linspace(-0.4, 1, 12).reshape(4, 3)}
    made = report(figures=figures, source="$a$ 猫", divergences=np.zeros((12, 12)))
    said = draw_matrix(made, name, here / "m.svg", FigureOptions())
    assert said == draw_agreement(made, here / "g.svg", FigureOptions())
    assert len(said) == 1
    assert said[0].startswith("no font here has ")
    assert "猫 (U+732B)" in said[0]
    words = svg_words(here / "m.svg")
    assert "gold $x^2$" in words
    assert "$a$ 猫" in words  # the reader's fonts may have it
    assert words.count("-.40") == 1
    assert draw_matrix(report(), "sink", here / "s.png", FigureOptions()) == []


def test_whole_numbers_are_drawn_whole(here: Path) -> None:
    made = HeadReport({"offset": np.array([[-1.0, 12.0, np.nan]])}, (0,), "x")
    draw_matrix(made, "offset", here / "m.svg", FigureOptions())
    words = svg_words(here / "m.svg")
    assert {"-1", "12"} <= set(words.split())
    assert "not a number" in words


@pytest.mark.parametrize(("layers", "heads", "numbers"), [(30, 9, 270), (2, 64, 0), (64, 2, 0)])
def test_cells_have_numbers_where_these_fit(
    here: Path, layers: int, heads: int, numbers: int
) -> None:
    made = HeadReport({"x": np.full((layers, heads), 7.77)}, tuple(range(layers)), "x")
    draw_matrix(made, "x", here / "m.svg", FigureOptions())
    assert svg_words(here / "m.svg").split().count("7.77") == numbers + 1  # and in the bar


def test_pictures_of_hardly_anything(here: Path) -> None:
    one = HeadReport({"x": np.full((1, 1), np.nan)}, (0,), "", divergences=np.zeros((1, 1)))
    draw_matrix(one, "x", here / "m.png", FigureOptions())
    draw_agreement(one, here / "g.png", FigureOptions())
    many = HeadReport({"x": np.random.default_rng(1).random((40, 64))}, tuple(range(40)), "big")
    draw_matrix(many, "x", here / "big.png", FigureOptions())
    assert all((here / name).stat().st_size > 1000 for name in ("m.png", "g.png", "big.png"))
