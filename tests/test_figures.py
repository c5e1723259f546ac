"""Figures for papers: what the PDF itself holds, read back with PyMuPDF."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pymupdf
import pytest
from PIL import Image
from test_attention_pictures import overview_of, panels_of, run
from test_comparison_pictures import made

from attnviz.cli.main import call
from attnviz.cli.options import LookFlags, OutputFlags
from attnviz.combined_heads import Combination
from attnviz.comparison import compare
from attnviz.errors import ConfigError
from attnviz.render.attention_pictures import draw_heads, draw_overview
from attnviz.render.comparison_pictures import draw_differences, draw_distances, draw_three_panels
from attnviz.render.figure_options import FigureOptions
from attnviz.render.head_panels import head_panels
from attnviz.render.palette import COLOURS

SENTENCE = ("The", "animal", "didn't", "cross", "the", "street", "because", "it", "was", "tired")


class Page:
    """The only page of a PDF."""

    def __init__(self, path: Path) -> None:
        self._page: Any = pymupdf.open(path)[0]
        self.width = self._page.rect.width
        blocks = self._page.get_text("dict")["blocks"]
        self.spans = [span for b in blocks for line in b.get("lines", []) for span in line["spans"]]
        self.text = " ".join(span["text"] for span in self.spans)
        self.fonts = {font[2] for font in self._page.get_fonts()}
        self.drawings = self._page.get_drawings()
        self.images = self._page.get_image_info()

    @property
    def smallest_type(self) -> float:
        return min(span["size"] for span in self.spans)

    @property
    def right(self) -> float:
        return max(span["bbox"][2] for span in self.spans)


def overview_page(path: Path, result: Any, **chosen: Any) -> tuple[Page, list[str]]:
    notes = draw_overview(result, 0, path, FigureOptions(**chosen))
    return Page(path), notes


@pytest.mark.parametrize(
    ("width", "points"), [("3.3in", 237.6), ("8.4cm", 238.11), ("170mm", 481.9)]
)
@pytest.mark.parametrize("tokens", [SENTENCE, tuple(f"{i}th" for i in range(50, 91))])
def test_a_figure_has_its_width_and_no_type_below_six_points(
    tmp_path: Path, width: str, points: float, tokens: tuple[str, ...]
) -> None:
    result = run(tokens, heads=8, allowed=np.tril(np.ones((len(tokens), len(tokens)))))
    page, notes = overview_page(tmp_path / "a.pdf", result, width=width)
    assert page.width == pytest.approx(points, abs=0.1)
    assert page.smallest_type >= 6 - 1e-3
    assert page.right <= page.width
    assert bool(notes) == (tokens[1] not in page.text)  # labels that are left out are reported
    assert all(note.startswith("overview: labels") for note in notes)


def test_every_kind_of_picture_has_the_width(tmp_path: Path) -> None:
    options = FigureOptions(width="4in")
    found = compare(made(0, layers=2), made(1, layers=2))
    draw_heads(run(SENTENCE), 0, [(0, 1, tmp_path / "head.pdf")], options)
    draw_differences(found, 0, tmp_path / "differences.pdf", options)
    draw_distances(found, tmp_path / "distances.pdf", options)
    draw_three_panels(found, 0, [(found.heads[0], tmp_path / "three.pdf")], options)
    for path in tmp_path.iterdir():
        page = Page(path)
        assert page.width == pytest.approx(288)
        assert page.smallest_type >= 6 - 1e-3
        assert page.right <= page.width


@pytest.mark.parametrize(("annotate", "font"), [(False, None), (True, 9.0)])
def test_fonts_are_truetype_and_have_the_size_that_was_chosen(
    tmp_path: Path, annotate: bool, font: float | None
) -> None:
    result = run(("The", "猫", "sat"))
    page, _ = overview_page(
        tmp_path / "a.pdf", result, width="6in", annotate=annotate, font_size=font
    )
    assert "Type3" not in page.fonts
    assert any(abs(span["size"] - (font or 7)) < 0.01 for span in page.spans)
    assert ("0.00" in page.text or "0.1" in page.text) == annotate


def test_small_maps_are_vectors_and_large_ones_images(tmp_path: Path) -> None:
    few = run(tuple(f"t{i}" for i in range(64)), heads=1)
    page, _ = overview_page(tmp_path / "few.pdf", few, width="3.3in")
    assert not page.images
    fills = [drawing for drawing in page.drawings if drawing.get("fill")]
    assert sum(len(drawing["items"]) for drawing in fills) > 64 * 60
    many = run(tuple(f"t{i}" for i in range(65)), heads=1)
    page, _ = overview_page(tmp_path / "many.pdf", many, width="3.3in")
    (image,) = page.images
    left, _, right, _ = image["bbox"]
    assert image["width"] / ((right - left) / 72) >= 300


def test_hatches_are_patterns(tmp_path: Path) -> None:
    lower = np.tril(np.ones((5, 5)))
    lower[2] = 0
    draw_overview(run(allowed=lower), 0, tmp_path / "a.pdf", FigureOptions(width="3.3in"))
    assert b"/Pattern" in (tmp_path / "a.pdf").read_bytes()
    draw_overview(run(allowed=lower), 0, tmp_path / "a.svg", FigureOptions(width="3.3in"))
    svg = (tmp_path / "a.svg").read_text()
    assert "sees nothing" in svg
    assert "<pattern" in svg
    assert "<image" not in svg


def test_what_is_written_can_be_chosen(tmp_path: Path) -> None:
    result = run(SENTENCE, source="a layer")
    place = tmp_path / "a.pdf"
    page, _ = overview_page(place, result, title="Heads of my model")
    assert "Heads of my model" in page.text
    assert "3 heads" not in page.text
    assert {"a layer", "bits", "query: looks"} == {
        part for part in ("a layer", "bits", "query: looks") if part in page.text
    }
    for chosen, gone, kept in (
        ({"no_title": True}, ("3 heads", "a layer"), ("bits", "head 2")),
        ({"no_measures": True}, ("bits", "means over"), ("3 heads", "a layer", "head 2")),
        ({"bare": True}, ("3 heads", "a layer", "bits", "means over"), ("head 2", "weight")),
        ({"axis_labels": "from, to"}, ("looks",), ("from", "to")),
        ({"axis_labels": "none"}, ("looks", "key:"), ("head 2",)),
    ):
        page, _ = overview_page(place, result, **chosen)
        assert not [part for part in gone if part in page.text], chosen
        assert all(part in page.text for part in kept), chosen
    draw_heads(result, 0, [(0, 1, place)], FigureOptions(bare=True))
    assert "entropy" not in Page(place).text


@pytest.mark.parametrize("bare", [False, True])
def test_shared_pages_of_heads_follow_the_options(tmp_path: Path, bare: bool) -> None:
    from attnviz.render.attention_pictures import HeadPictures
    from attnviz.render.picture_formats import PICTURE_FORMATS

    options = FigureOptions(bare=bare, no_measures=not bare, transparent=True)
    pictures = HeadPictures(panels_of(run(), options), options)
    assert pictures.png((0, 2)) == PICTURE_FORMATS[".png"](pictures.drawing((0, 2)))


def test_columns_that_were_chosen() -> None:
    drawing = overview_of(run(heads=8, layers=2), FigureOptions(columns=3))
    assert len({placed.left for placed in drawing.panels}) == 3
    assert len({placed.top for placed in drawing.panels}) == 6


@pytest.mark.parametrize("annotate", [False, True])
def test_transparent_paper(tmp_path: Path, annotate: bool) -> None:
    """Over white a transparent picture is the opaque one, but for rounding."""
    result = run(allowed=np.tril(np.ones((5, 5))))
    pictures = []
    for transparent in (False, True):
        options = FigureOptions(transparent=transparent, annotate=annotate)
        draw_overview(result, 0, tmp_path / "a.png", options)
        pictures.append(Image.open(tmp_path / "a.png").convert("RGBA"))
    opaque, clear = pictures
    assert np.asarray(clear)[0, 0, 3] == 0
    white = Image.new("RGBA", clear.size, "white")
    white.alpha_composite(clear)
    assert np.abs(np.asarray(white).astype(int) - np.asarray(opaque).astype(int)).max() <= 4
    draw_overview(result, 0, tmp_path / "a.svg", FigureOptions(transparent=True))
    assert "#ffffff" not in (tmp_path / "a.svg").read_text().split("<g id", 3)[2]


def test_a_scale_for_each_head() -> None:
    result = run()
    result.attention[0, 0, 1] /= 10
    options = FigureOptions(scale="head")
    panels = panels_of(result, options)
    for pair in panels.pairs:
        panel = panels.panel(pair)
        assert panel.scale.top == panel.values.max()
        assert panel.scale.shades(panel.values).max() == COLOURS - 1
    assert "each head has its own scale" in panels.caption
    drawing = overview_of(result, options)
    assert len(drawing.bars) == 1
    assert {"of its largest", "1"} <= {text.text for text in drawing.texts}


@pytest.mark.parametrize(
    ("curve", "steps"), [("linear", [2, 20, 50]), ("root", [20, 63, 100]), ("log", [66, 133, 159])]
)
def test_curves(curve: str, steps: list[int]) -> None:
    result = run(("a", "b", "c", "d"), heads=1)
    result.attention[0, 0, 0] = np.array([0.01, 0.1, 0.25, 1.0], np.float32)
    result.attention[0, 0, 0, 1:] = [0.001, 0.0, 0.0, 0.999]
    panel = panels_of(result, FigureOptions(curve=curve)).panel((0, 0))
    found = panel.scale.steps(panel.values[0], 200)[:3].astype(int)
    assert np.abs(found - np.array(steps)).max() <= 1
    assert panel.scale.steps(panel.values[0], 200)[3] >= 198
    shares = [share for share, _ in panel.scale.ticks(100)]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0, 1)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"width": "wide"}, "--width wide: a length is expected, 3.3in or 8.4cm"),
        ({"width": "3.3ft"}, "--width 3.3ft: a length is expected, 3.3in or 8.4cm"),
        ({"width": "1mm"}, "--width 1mm: it must be between 1in and 20in"),
        ({"font_size": 5.0}, "--font-size is 5; it must be between 6 and 24 points"),
        ({"columns": 0}, "--columns is 0; it must be at least 1"),
        (
            {"title": "x", "bare": True},
            "--title and --bare contradict each other; give one of them",
        ),
        (
            {"title": "x", "no_title": True},
            "--title and --no-title contradict each other; give one of them",
        ),
        ({"scale": "row"}, "--scale is 'row'; it must be one of all, head"),
        ({"curve": "cube"}, "--curve is 'cube'; it must be one of linear, root, log"),
        (
            {"curve": "log", "scale": "head"},
            "--scale head works with --curve linear or root, not with log",
        ),
        (
            {"axis_labels": "x"},
            "--axis-labels x: the names of rows and columns are expected, 'query,key', or none",
        ),
    ],
)
def test_figures_that_cannot_work(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        FigureOptions(**chosen)
    assert str(caught.value) == message


def test_a_width_that_is_too_small_names_one_that_works(tmp_path: Path) -> None:
    result = run(SENTENCE, heads=8)
    with pytest.raises(ConfigError) as caught:
        draw_overview(result, 0, tmp_path / "a.pdf", FigureOptions(width="1.2in"))
    text = str(caught.value)
    assert text.startswith("--width 1.2in: labels and 4 columns of maps need at least 2.")
    assert text.endswith("in; try fewer --columns")
    assert not list(tmp_path.iterdir())
    least = text.split("at least ")[1].split(";")[0]
    draw_overview(result, 0, tmp_path / "a.pdf", FigureOptions(width=least))


def test_each_field_is_a_flag_of_its_name() -> None:
    import dataclasses

    flags = {field.name for field in dataclasses.fields(LookFlags)}
    assert {field.name for field in dataclasses.fields(FigureOptions)} == flags - {
        "decode",
        "average",
        "maximum",
    }
    assert LookFlags(width="3in", curve="root").look() == FigureOptions(width="3in", curve="root")


def test_heads_are_chosen_by_their_names() -> None:
    flags = OutputFlags(heads="3.2, 0.1,3.2")
    assert flags.chosen_heads((0, 3), 5) == [(3, 2), (0, 1)]
    assert flags.named_heads({0: 2, 3: 5}) == [(3, 2), (0, 1)]
    assert OutputFlags(heads="0,2").named_heads({0: 3}) is None


@pytest.mark.parametrize(
    ("heads", "layers", "message"),
    [
        ("0.5", None, "--heads 0.5: in layer 0 there are 5 heads, 0 to 4"),
        ("1.0", None, "--heads 1.0: the layers are 0, 3"),
        ("0.1,2", None, "--heads 0.1,2: '2' is no layer.head; 0.2,1.8, say"),
        ("0.1", "0", "--heads 0.1 names the layers; --layers is not needed"),
    ],
)
def test_names_of_heads_that_are_not_there(heads: str, layers: str | None, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        OutputFlags(heads=heads, layers=layers).chosen_heads((0, 3), 5)
    assert str(caught.value) == message


# ── several heads as one map ────────────────────────────────────────────────────────────────────


def combined(how: str, over: str, layers: int = 2, **facts: Any) -> tuple[Any, Any, Any]:
    """The result, the combined one, and where its maps are."""
    result = run(SENTENCE[:5], layers=layers, heads=3, **facts)
    pairs = [(layer, head) for layer in range(layers) for head in (0, 2)]
    return result, *Combination(how, over).apply(result, pairs)


@pytest.mark.parametrize("how", ["average", "maximum"])
@pytest.mark.parametrize(
    ("over", "axes", "names"),
    [
        ("heads", 1, ["layer 0 · {} of 2 heads", "layer 1 · {} of 2 heads"]),
        ("layers", 0, ["head 0 · {} of 2 layers", "head 2 · {} of 2 layers"]),
        ("all", (0, 1), ["{} of 4 heads"]),
    ],
)
def test_heads_are_combined(how: str, over: str, axes: Any, names: list[str]) -> None:
    result, made, places = combined(how, over, allowed=np.tril(np.ones((5, 5))))
    chosen = result.attention[:, 0, [0, 2]].astype(np.float64)
    fold = np.mean if how == "average" else np.max
    want = fold(chosen, axis=axes).reshape(-1, 5, 5)
    found = np.stack([made.attention[layer, 0, head] for layer, head in places])
    assert found == pytest.approx(want, abs=1e-6)
    assert found.dtype == result.attention.dtype
    assert (made.allowed == np.tril(np.ones((5, 5), dtype=bool))).all()
    panels = head_panels(made, 0, places, FigureOptions())
    drawn = [panels.panel(pair) for pair in places]
    assert [panel.names[0] for panel in drawn] == [name.format(how) for name in names]
    if how == "average":
        assert drawn[0].measures[0].endswith("bits")
    else:
        assert drawn[0].measures == ("largest weights",)
        assert panels.measured(1).endswith("rows do not sum to 1")
    assert f"{how} of" in panels.caption


def test_masks_of_their_own_are_combined_too() -> None:
    result = run(SENTENCE[:5], heads=3)
    allowed = np.ones((1, 1, 3, 5, 5), dtype=bool)
    allowed[0, 0, 0, :, 1] = allowed[0, 0, 1, :, 1:3] = False
    made, places = Combination("average", "heads").apply(
        replace(result, allowed=allowed), [(0, 0), (0, 1)]
    )
    assert not made.allowed[0, 0, 0, :, 1].any()
    assert made.allowed[0, 0, 0, :, 2].all()
    panels = head_panels(made, 0, places, FigureOptions())
    assert panels.panel((0, 0)).title == "Average of 2 heads"


@pytest.mark.parametrize(
    ("flags", "files"),
    [
        (["--average", "heads"], ["seq0-average.png"]),
        (
            ["--maximum", "layers", "--heads", "0,2"],
            ["seq0-maximum-head0.png", "seq0-maximum-head2.png"],
        ),
        (["--average", "all"], ["seq0-average.png"]),
    ],
)
def test_combined_heads_on_the_command_line(here: Path, flags: list[str], files: list[str]) -> None:
    assert call(["run", "a b a", *flags, "-o", "out", "-o", "a.svg", "-q"]) == 0
    assert sorted(path.name for path in (here / "out").iterdir()) == [*files, "seq0-overview.png"]
    assert f"{flags[0][2:]} of" in (here / "a.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["run", "a b", "--average", "heads", "-o", "x.html"],
            "--average makes pictures; -o x.html would not show it",
        ),
        (
            ["run", "a b", "--average", "heads", "--maximum", "all"],
            "--average and --maximum are two pictures; give one of them",
        ),
        (
            ["run", "a b", "--maximum", "rows"],
            "--maximum is 'rows'; it must be one of heads, layers, all",
        ),
        (
            ["stats", "a b", "--average", "all"],
            "--average works with run and render, not with stats",
        ),
    ],
)
def test_combinations_that_cannot_work(
    capsys: pytest.CaptureFixture[str], here: Path, arguments: list[str], message: str
) -> None:
    assert call(arguments) == 2
    assert capsys.readouterr().err == f"attnviz: {message}\n"
    assert not list(here.iterdir())
