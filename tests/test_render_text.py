"""Text on pictures: any script as it is, with the extra's fonts and without any."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from attnviz.render import fonts
from attnviz.render.drawing import Drawing, Text
from attnviz.render.figure_options import FigureOptions
from attnviz.render.fonts import BASE, INSTALL, MISSING, Fonts
from attnviz.render.labels import is_upright, label, prose
from attnviz.render.palette import tone_index
from attnviz.render.raster import draw_simple, rasterize
from attnviz.render.vector import pdf, svg

SCRIPTS = {
    "Chinese": "猫坐在",
    "Japanese": "ねこ",
    "Korean": "고양이",
    "Arabic": "العَرَبِيَّة",
    "Persian": "می‌خواهم",
    "Hebrew": "שלום",
    "Devanagari": "क्षत्रिय",
    "Thai": "น้ำ",
    "Tamil": "தமிழ்",
    "combining": "é̂",
    "emoji": "👍🏽",
    "family": "👩‍👩‍👧",
    "flag": "🇨🇭",
    "heart": "❤️",
    "byte pair": "Ġthe",
    "sentence piece": "▁of",
    "signs": "␣⇥↵",
    "Greek": "λόγος",
    "Cyrillic": "кот",
}

UNKNOWN = "\U0010fffd"  # private use: no font of the extra has it


@pytest.fixture
def only_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with no fonts of its own: what it draws with is the extra's."""
    monkeypatch.setattr(fonts, "system_fonts", list)


@pytest.fixture
def no_fonts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with nothing but what matplotlib ships."""
    monkeypatch.setattr(fonts, "system_fonts", list)
    monkeypatch.setattr(fonts, "package_fonts", list)


def drawn(text: str, turn: int = 0, tone: float = 1.0) -> tuple[np.ndarray, Fonts]:
    """The ink of a text in the middle of a blank sheet, cut to what is inked."""
    found = Fonts([text])
    sheet = Drawing(FigureOptions(), found, "", "", 200, 200)
    sheet.texts.append(Text(100, 100, text, 20, tone, anchor="middle", turn=turn))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns of a glyph that it has not
        page = rasterize(sheet) - tone_index(0)
    inked = np.argwhere(page)
    (top, left), (bottom, right) = inked.min(0), inked.max(0) + 1
    return page[top:bottom, left:right], found


@pytest.mark.usefixtures("only_packages")
@pytest.mark.parametrize("script", SCRIPTS)
def test_each_script_is_drawn_without_a_box(script: str) -> None:
    text = SCRIPTS[script]
    ink, found = drawn(text)
    assert found.notes == []
    assert found.drawable(text) == text
    box, _ = drawn(MISSING)
    assert ink.shape != box.shape or (ink != box).any()


@pytest.mark.usefixtures("only_packages")
def test_marks_and_joiners_come_from_the_font_of_their_letters() -> None:
    found = Fonts(SCRIPTS.values())
    assert found.families("नमस्ते")[0] == "Noto Sans Devanagari"
    assert found.families("👩‍👩‍👧")[0] == "Noto Emoji"
    assert found.families("cat") == (BASE,)
    family, _ = drawn(SCRIPTS["family"])
    woman, _ = drawn("👩")
    assert family.shape[1] < 2 * woman.shape[1]  # three people in one glyph


@pytest.mark.usefixtures("only_packages")
@pytest.mark.parametrize(
    ("texts", "face"), [(["猫"], "SC"), (["猫", "ねこ"], "JP"), (["猫", "고양이"], "KR")]
)
def test_han_has_the_forms_of_its_neighbours(texts: list[str], face: str) -> None:
    assert Fonts(texts).families("猫")[0].endswith(face)


def test_arabic_is_joined_and_runs_from_the_right() -> None:
    joined, _ = drawn("بب")
    apart, _ = drawn("ب\u200cب")
    assert joined.shape != apart.shape
    alef_first, _ = drawn("اب")
    widest = alef_first.astype(bool).sum(0)
    assert widest[-4:].sum() > widest[:4].sum()  # the upright alef stands on the right


@pytest.mark.usefixtures("no_fonts")
def test_missing_glyphs_make_one_note_and_boxes() -> None:
    found = Fonts(["नमस्ते", "猫", "cat", "שלום"])
    assert len(found.notes) == 1
    assert "猫 (U+732B)" in found.notes[0]
    assert INSTALL in found.notes[0]
    assert found.drawable("a猫") == f"a{MISSING}"
    assert found.drawable("cat") == "cat"
    assert found.families("猫") == (BASE,)
    ink, _ = drawn("猫")
    box, _ = drawn(MISSING)
    assert ink.shape == box.shape


@pytest.mark.usefixtures("no_fonts")
def test_many_missing_glyphs_are_counted() -> None:
    assert " and 12 more: drawn as □" in Fonts(["".join(map(chr, range(0x4E00, 0x4E14)))]).notes[0]


@pytest.mark.usefixtures("no_fonts")
def test_vector_files_survive_missing_glyphs() -> None:
    found = Fonts(["猫"])
    sheet = Drawing(FigureOptions(), found, "t", "d", 100, 100, [Text(50, 50, "猫", 10)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "猫" in svg(sheet).decode()  # the reader's fonts may have it
        assert pdf(sheet).startswith(b"%PDF")


def test_no_font_has_what_is_nobodys() -> None:
    assert Fonts([UNKNOWN]).missing == {UNKNOWN}


def test_broken_and_bitmap_fonts_are_passed_over(tmp_path: Path) -> None:
    broken = tmp_path / "a.ttf"
    broken.write_bytes(b"no font")
    assert fonts._glyphs(broken, 0, frozenset("a")) == frozenset()
    assert fonts._glyphs(tmp_path / "none.ttf", 0, frozenset("a")) == frozenset()


def test_bitmap_fonts_are_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from matplotlib import ft2font

    class Bitmaps:
        scalable = False

        def __init__(self, *_: object, **__: object) -> None: ...

    monkeypatch.setattr(ft2font, "FT2Font", Bitmaps)
    assert fonts._glyphs(tmp_path / "emoji.ttf", 0, frozenset("a")) == frozenset()


def test_package_fonts_are_looked_for_where_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = tmp_path / "some_fonts"
    place.mkdir()
    for name in ("__init__.py", "B.ttf", "A.otf", "A-Italic.ttf", "LICENSE"):
        (place / name).touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(fonts, "PACKAGES", ("some_fonts", "not_installed_anywhere"))
    assert [p.name for p in fonts.package_fonts()] == ["A.otf", "B.ttf"]


def test_system_fonts_are_upright_and_regular() -> None:
    names = fonts.system_fonts()
    assert BASE not in names
    assert "STIXGeneral" in names  # matplotlib ships it, so every machine has it
    assert not any("Last Resort" in name for name in names)


@pytest.mark.usefixtures("no_fonts_yet")
def test_fonts_installed_since_matplotlib_looked_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from fontTools.ttLib import TTFont
    from matplotlib import font_manager, get_data_path

    new = TTFont(f"{get_data_path()}/fonts/ttf/DejaVuSans.ttf")
    for record in new["name"].names:
        if record.nameID in (1, 4, 16):
            record.string = "Brand New Sans"
    new.save(tmp_path / "new.ttf")
    (tmp_path / "broken.ttf").write_bytes(b"no font")
    found = [str(tmp_path / name) for name in ("new.ttf", "broken.ttf")]
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: found)
    assert "Brand New Sans" in fonts.system_fonts()


@pytest.fixture
def no_fonts_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test makes known to matplotlib is forgotten after it."""
    from matplotlib.font_manager import fontManager

    monkeypatch.setattr(fontManager, "ttflist", list(fontManager.ttflist))


def test_what_the_system_has_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "package_fonts", list)
    found = Fonts(["\u2a30", "cat"])  # a sign of mathematics that is in STIX
    assert not found.missing


# ── drawing ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("text", ["cat", "שלום"])
def test_turned_text_is_the_same_text_turned(text: str) -> None:
    level, _ = drawn(text)
    turned, _ = drawn(text, turn=90)
    assert np.abs(np.subtract(turned.shape, level.shape[::-1])).max() <= 2


@pytest.mark.parametrize("text", ["cat", "שלום"])
def test_a_quiet_tone_is_paler(text: str) -> None:
    assert drawn(text, tone=0.4)[0].max() < drawn(text)[0].max()


@pytest.mark.parametrize("text", ["$x^2$", r"\frac{1}{2}", "$$", "_^{}%#&"])
def test_what_looks_like_mathematics_is_text(text: str) -> None:
    plain, _ = drawn(text)
    letters = sum(drawn(c)[0].shape[1] for c in text)
    assert plain.shape[1] > 0.7 * letters


@pytest.mark.parametrize("anchor", ["start", "middle", "end"])
def test_anchors(anchor: str) -> None:
    sheet = Drawing(FigureOptions(dpi=72), Fonts([]), "", "", 200, 100)
    sheet.texts.append(Text(100, 50, "HHHH", 10, anchor=anchor))
    inked = np.argwhere(rasterize(sheet) > tone_index(0))[:, 1]
    middle = {"start": 116, "middle": 100, "end": 84}[anchor]
    assert abs(inked.mean() - middle) < 3


def test_text_that_falls_off_the_page_is_cut() -> None:
    page = np.full((20, 20), tone_index(0), dtype=np.uint8)
    for x, y in ((-10.0, 12.0), (15.0, 4.0), (-500.0, 5.0), (5.0, 500.0)):
        draw_simple(page, Text(x, y, "word", 12), 1.0)
    assert (page > tone_index(0)).any()


def test_long_prose_is_wrapped() -> None:
    sheet = Drawing(FigureOptions(), Fonts([]), "", "")
    lines = sheet.wrapped("one two three four five", 10, 60)
    assert " ".join(lines) == "one two three four five"
    assert len(lines) > 1
    assert all(sheet.text_width(line, 10) <= 60 for line in lines)
    assert sheet.wrapped("W" * 50, 10, 60) == ["W" * 50]


# ── labels ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("cat", "cat"),
        (" ", "␣"),
        ("\t\n", "⇥↵"),
        ("", "<empty>"),
        ("\x1b[31m", "<U+001B>[31m"),
        ("\r", "<U+000D>"),
        ("\x7f", "<U+007F>"),
        ("\u202eabc", "<U+202E>abc"),
        ("\u0301", "◌\u0301"),
        ("Ġthe", "Ġthe"),
        ("▁of", "▁of"),
        ("<0xE7>", "<0xE7>"),
        ("x" * 200, "x" * 7 + "…" + "x" * 6),
    ],
)
def test_labels(token: str, expected: str) -> None:
    assert label(token, 14) == expected


def test_names_keep_their_spaces() -> None:
    assert prose("window 3", 60) == "window 3"
    assert prose("file a\tb.npy  (1 = keep)", 60) == "file a⇥b.npy (1 = keep)"


def test_one_wide_character_stays_upright() -> None:
    assert is_upright("猫")
    assert is_upright("👍🏽")
    assert not is_upright("猫が")
    assert not is_upright("a")


def test_wide_letters_lose_more_of_their_middle() -> None:
    from test_attention_pictures import overview_of, run

    names = [t.text for t in overview_of(run(("W" * 14, "i" * 14))).texts]
    assert "i" * 14 in names
    assert "W" * 14 not in names
    assert any(name.startswith("WW") and "…" in name for name in names)


def test_upright_labels_on_a_picture() -> None:
    from test_attention_pictures import picture_of, run

    tokens = ("猫", "a rather long word", "x")
    page = picture_of(run(tokens * 4))
    below = [t for t in page.texts if t.anchor in ("middle", "end")]
    assert {t.turn for t in below if t.text == "猫"} == {0}
    assert 90 in {t.turn for t in below if t.text == "x"}
