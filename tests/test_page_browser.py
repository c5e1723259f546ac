"""The page in a real browser: every view, by mouse and by keyboard, against the result's numbers.

Needs Chromium on the path (on Debian: apt install chromium); without it these tests fail.
"""

from __future__ import annotations

import re
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from attnviz.measures import measure
from attnviz.render import page as writer
from attnviz.render.page import write_page
from attnviz.result import Attention
from attnviz.trace import STEP_KINDS, Step

# ── results to show ──────────────────────────────────────────────────────────────────────────

SENTENCE = "The animal did n't cross the street because it was too tired ."
ANIMAL = tuple(SENTENCE.split(" "))


def softmax(scores: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    scores = np.where(allowed, scores, -np.inf)
    top = scores.max(-1, keepdims=True, initial=-1e9)
    weights = np.exp(scores - top)
    return (weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300)).astype(np.float32)


def make(
    queries: list[tuple[str, ...]],
    keys: list[tuple[str, ...]] | None = None,
    layers: int = 1,
    heads: int = 8,
    causal: bool = False,
    pad_side: str = "right",
    **facts: Any,
) -> Attention:
    """Attention of random scores for a padded batch; padded keys are forbidden."""

    def padded(rows: list[tuple[str, ...]]) -> tuple[tuple[tuple[str, ...], ...], np.ndarray]:
        width = max(map(len, rows))
        fill = [("[PAD]",) * (width - len(row)) for row in rows]
        both = zip(rows, fill, strict=True)
        full = tuple(r + f if pad_side == "right" else f + r for r, f in both)
        return full, np.array([len(row) for row in rows])

    q_tokens, lengths = padded(queries)
    k_tokens, key_lengths = padded(keys or queries)
    shape = (layers, len(queries), heads, len(q_tokens[0]), len(k_tokens[0]))
    allowed = np.ones((*shape[:2], 1, *shape[3:]), dtype=bool)
    for b, n in enumerate(key_lengths):
        allowed[:, b, :, :, slice(n, None) if pad_side == "right" else slice(0, shape[4] - n)] = 0
    if causal:
        allowed &= np.tri(shape[3], shape[4], dtype=bool)
    scores = np.random.default_rng(7).normal(size=shape) * 2
    facts = {"source": "made up", "masks": ("padding", "causal") if causal else (), **facts}
    return Attention(
        softmax(scores, allowed),
        allowed,
        query_tokens=q_tokens,
        key_tokens=k_tokens,
        lengths=lengths,
        key_lengths=key_lengths,
        pad_side=pad_side,
        **facts,
    )


def a_step(name: str) -> Step:
    return Step(
        name=name,
        axes=("B", "H", "Tq", "Tk"),
        shape=(1, 8, 1300, 13),
        dtype="float32",
        item_bytes=4,
        is_view=name == "q",
        is_contiguous=True,
        parameters=(("weight", ("V", "d_model"), (16, 64)),) if name == "embedded" else (),
        sums_over="d_k" if name == "products" else "",
        summed=8,
        flops_each=5 if name == "weights" else 0,
        source="attention.py:46",
    )


COMMAND = 'attnviz run "The animal didn\'t" --n-heads 8 -o page.html </script><b>'
STEPS = [a_step(name) for name in STEP_KINDS]
ARABIC = ("قطة", "صغيرة", "تجلس", "على", "السجادة")

RESULTS: dict[str, Callable[[], Attention]] = {
    "one": lambda: make([ANIMAL], config={"d_model": 64, "seed": 3}, trained=False),
    "batch": lambda: make([ANIMAL, ARABIC, ()], heads=3, causal=True, pad_side="left"),
    "cross": lambda: make(
        [("I", "love", "the", "small", "cat")],
        [tuple("我爱这只小猫")],
        heads=3,
        masks=("padding",),
    ),
    "model": lambda: make([ANIMAL * 2], layers=3, heads=4),
}


@dataclass
class Shown:
    """A page that is open, and what it shows."""

    tab: Page
    path: Path
    result: Attention
    heard: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def go(self, fragment: str) -> None:
        """Open the same file anew, as a link with this fragment would."""
        self.tab.goto("about:blank")
        self.tab.goto(f"{self.path.as_uri()}#{fragment}" if fragment else self.path.as_uri())
        self.settle()

    def settle(self) -> None:
        """Wait until what was asked for is painted."""
        self.tab.evaluate(
            """async () => {
                const frame = () => new Promise((done) => requestAnimationFrame(done));
                await new Promise((done) => setTimeout(done, 10));
                do await frame();
                while (document.querySelector('main').ariaBusy === 'true');
            }"""
        )

    def press(self, *keys: str) -> None:
        for key in keys:
            self.tab.keyboard.press(key)
        self.settle()

    def fact(self, name: str) -> str:
        return self.tab.locator(f'[data-fact="{name}"]').inner_text()

    def cell(self, q: int, k: int) -> tuple[float, float]:
        """Where the middle of a cell is on the screen."""
        plot = self.tab.locator(".plot")
        box = plot.bounding_box()
        assert box is not None
        data = plot.evaluate("(plot) => ({ ...plot.dataset })")
        left, top, cell, key, query = (
            float(data[name]) for name in ("left", "top", "cell", "key", "query")
        )
        return box["x"] + left + (k + 0.5 - key) * cell, box["y"] + top + (q + 0.5 - query) * cell

    def hover_cell(self, q: int, k: int) -> None:
        self.tab.mouse.move(*self.cell(q, k))
        self.settle()

    def click_cell(self, q: int, k: int) -> None:
        self.tab.mouse.click(*self.cell(q, k))
        self.settle()

    def fragment(self) -> dict[str, str]:
        self.tab.wait_for_timeout(300)  # the address is written when things have come to rest
        parts = self.tab.url.partition("#")[2]
        return dict(part.split("=") for part in parts.split("&"))

    def pixel(self, q: int, k: int) -> list[int]:
        """The colour of a cell, near its corner where no number stands."""
        x, y = self.cell(q, k)
        return self.tab.locator(".plot canvas").first.evaluate(
            """(canvas, [x, y, cell]) => {
                const box = canvas.getBoundingClientRect();
                const dots = canvas.width / box.width;
                const at = (v) => Math.round((v - 0.3 * cell) * dots);
                const pen = canvas.getContext('2d');
                return [...pen.getImageData(at(x - box.x), at(y - box.y), 1, 1).data];
            }""",
            [x, y, float(self.tab.locator(".plot").evaluate("(p) => p.dataset.cell"))],
        )


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Attention]]:
    folder = tmp_path_factory.mktemp("pages")
    made = {}
    for name, build in RESULTS.items():
        result = build()
        write_page(result, folder / f"{name}.html", steps=STEPS, command=COMMAND)
        made[name] = (folder / f"{name}.html", result)
    return made


Opener = Callable[..., Shown]


@pytest.fixture
def show(tab: Page, files: dict[str, tuple[Path, Attention]], tmp_path: Path) -> Iterator[Opener]:
    """Open one of the results above, or any other, at a fragment. Nothing may go wrong unseen."""
    heard: list[str] = []
    requests: list[str] = []
    listeners: dict[Any, Callable[[Any], object]] = {
        "pageerror": lambda error: heard.append(str(error)),
        "console": lambda message: heard.append(message.text),
        "dialog": lambda dialog: (heard.append("a dialog"), dialog.dismiss()),
        "request": lambda request: requests.append(request.url),
    }
    for event, listener in listeners.items():
        tab.on(event, listener)

    def open_page(
        what: str | Attention, fragment: str = "", theme: Any = "light", **viewport: int
    ) -> Shown:
        if isinstance(what, str):
            path, result = files[what]
        else:
            path, result = tmp_path / "own.html", what
            write_page(result, path, steps=STEPS, command=COMMAND)
        tab.set_viewport_size({"width": 1280, "height": 800, **viewport})  # type: ignore[typeddict-item]
        tab.emulate_media(color_scheme=theme)
        tab.mouse.move(0, 0)
        one = Shown(tab, path, result, heard, requests)
        one.go(fragment)
        return one

    yield open_page
    for event, listener in listeners.items():
        tab.remove_listener(event, listener)
    # these tests read pixels back, and Chromium remarks on it
    assert [message for message in heard if "willReadFrequently" not in message] == []
    assert {url.split(":")[0] for url in requests} <= {"file", "about", "blob"}


def number(text: str) -> float:
    return float(text.replace("<", "").replace("\u202f", "").strip())


def close(text: str, weight: float, error: float) -> bool:
    """Whether a shown weight is the true one, within the page's error and the shown digits."""
    digits = len(text.partition(".")[2])
    return abs(number(text) - weight) <= error + 0.5 * 10.0**-digits


# ── the page as a whole ──────────────────────────────────────────────────────────────────────


def test_it_opens_from_disk_with_all_heads(show: Opener) -> None:
    page = show("one")
    expect(page.tab.locator(".tile")).to_have_count(8)
    expect(page.tab.locator("canvas.drawn").last).to_be_visible()
    expect(page.tab.locator("#source")).to_have_text("made up")
    expect(page.tab.locator("#failure")).to_be_hidden()
    assert page.tab.evaluate("performance.getEntriesByName('attnviz:first-head').length") == 1
    assert page.tab.evaluate("performance.getEntriesByName('attnviz:all-heads').length") == 1


def test_views_switch_by_tab_and_by_key(show: Opener) -> None:
    page = show("one")
    names = ["matrix", "head", "lines", "text", "trace"]
    for digit, name in enumerate(names, 1):
        page.tab.locator(f"#tab-{name}").click()
        page.settle()
        visible = [n for n in names if page.tab.locator(f"#panel-{n}").is_visible()]
        assert visible == [name]
        page.press(str(digit % 5 + 1))
        following = names[digit % 5]
        assert page.tab.locator(f"#tab-{following}").get_attribute("aria-selected") == "true"
        assert page.tab.locator(f"#panel-{following}").is_visible()
    page.tab.locator("#tab-matrix").click()
    page.press("ArrowRight")
    assert page.tab.locator("#panel-head").is_visible()
    assert page.tab.evaluate("document.activeElement.id") == "tab-head"
    page.press("ArrowLeft", "ArrowLeft")
    assert page.tab.locator("#panel-trace").is_visible()


def test_untrained_weights_are_called_so(show: Opener) -> None:
    note = show("one").tab.locator("#untrained")
    expect(note).to_be_visible()
    expect(note).to_contain_text("Untrained weights")
    show("model")
    expect(note).to_be_hidden()


def test_the_largest_error_is_said(show: Opener, files: dict[str, Any]) -> None:
    page = show("one")
    words = page.tab.locator("#rounding").inner_text()
    said = float(re.search(r"largest error is ([0-9.e-]+);", words).group(1))  # type: ignore[union-attr]
    span = max(page.result.attention[0, 0, h].max() for h in range(8))
    assert said == pytest.approx(span / 65533 / 2, rel=0.1)


def test_a_link_opens_the_same_state_and_the_state_becomes_a_link(show: Opener) -> None:
    given = "view=head&sequence=0&layer=2&head=1&query=4&key=9&pinned=1&scale=head&curve=root"
    page = show("model", given)
    assert page.tab.locator("#head").input_value() == "9"
    assert page.tab.locator("#scale").input_value() == "head"
    assert page.tab.locator("#curve").input_value() == "root"
    assert page.fact("query").startswith(page.result.query_tokens[0][4])
    assert page.tab.locator(".pin").inner_text().startswith("pinned")
    page.press("]")
    page.tab.locator("#scale").select_option("query")
    page.tab.locator("#curve").select_option("linear")
    assert page.fragment() == {
        "view": "head",
        "sequence": "0",
        "layer": "2",
        "head": "2",
        "query": "4",
        "key": "9",
        "pinned": "1",
        "scale": "query",
    }
    page.tab.evaluate("location.hash = '#view=text&layer=0&head=3&query=2'")
    page.settle()
    expect(page.tab.locator("#panel-text")).to_be_visible()
    assert page.tab.locator("#head").input_value() == "3"


def test_every_part_of_the_state_goes_through_the_link(show: Opener) -> None:
    page = show("model")
    page.tab.locator("#measure").select_option("distance")
    page.tab.locator("#order").select_option("down")
    page.tab.locator("#from").fill("10")
    page.tab.locator("#to").fill("90")
    page.press("3")
    page.tab.locator("#threshold").fill("25")
    page.tab.locator('[data-chip="3"]').click()
    page.press("4")
    page.tab.locator('[data-side="seen"]').click()
    before = page.fragment()
    assert before["measure"] == "distance"
    assert (before["sort"], before["low"], before["high"]) == ("down", "10", "90")
    assert (before["threshold"], before["heads"], before["side"]) == ("25", "0.1.2", "seen")
    page.go("&".join(f"{k}={v}" for k, v in before.items()))
    page.press("3")
    assert page.tab.locator("#threshold").input_value() == "25"
    assert page.tab.locator('[data-chip="3"]').get_attribute("aria-pressed") == "false"
    page.press("4")
    after = page.fragment()
    assert after == before


def test_a_wrong_link_is_taken_as_far_as_it_is_right(show: Opener) -> None:
    page = show(
        "one", "view=nowhere&layer=9&head=1&query=999&key=-1&scale=<b>&sequence=7&low=x&heads=a.b"
    )
    expect(page.tab.locator("#panel-matrix")).to_be_visible()
    assert page.tab.locator("#head").input_value() == "0"


def test_scripts_from_elsewhere_are_refused(show: Opener) -> None:
    page = show("one")
    page.tab.evaluate(
        """() => {
            const script = document.createElement('script');
            script.textContent = 'globalThis.intruder = 1';
            document.body.append(script);
            const image = document.createElement('img');
            image.src = 'https://example.org/x.png';
            document.body.append(image);
        }"""
    )
    page.settle()
    assert page.tab.evaluate("globalThis.intruder") is None
    assert len(page.heard) == 2
    assert all("Content Security Policy" in error for error in page.heard)
    page.heard.clear()
    page.requests.remove("https://example.org/x.png")  # asked for by the test, refused by the page


HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<b>bold</b>",
    "\u202egnp\u2066",
    "two\nlines\t",
    "\0\ud800",
    "x" * 300,
    "&amp;",
    " ",
)


@pytest.mark.parametrize("view", ["matrix", "head", "lines", "text", "trace"])
def test_a_hostile_token_is_text(show: Opener, view: str) -> None:
    result = make([HOSTILE], heads=2, source=HOSTILE[0], config={HOSTILE[1]: HOSTILE[2]})
    page = show(result, f"view={view}&query=0&key=1")
    page.press("ArrowDown", "ArrowRight")
    for kind in ("#png", "#svg"):
        with page.tab.expect_download() as download:
            page.tab.locator(kind).click()
        assert download.value.path().stat().st_size > 500
    assert page.tab.locator("img, b:not(.blind, .strip b), main script").count() == 0
    body = page.tab.locator("body").inner_text()
    assert "\u202e" not in body
    assert "\u2066" not in body
    if view == "text":
        shown = page.tab.locator('[data-text="queries"] [role=option]').all_inner_texts()
        assert shown[:6] == [
            HOSTILE[0],
            "<img␣src=x␣onerror=alert(1)>",
            HOSTILE[2],
            "⟨U+202E⟩gnp⟨U+2066⟩",
            "two↵lines⇥",
            "␀⟨U+D800⟩",
        ]
        assert len(shown[6]) == 79
        assert shown[7:] == ["&amp;", "␣"]


def test_without_its_tools_a_browser_is_told(browser: Browser, files: dict[str, Any]) -> None:
    tab = browser.new_page()
    tab.add_init_script("delete globalThis.DecompressionStream")
    tab.goto(files["one"][0].as_uri())
    expect(tab.locator("#failure")).to_contain_text("this browser is too old")
    tab.close()


def test_the_modules_mean_the_same_unjoined(
    browser: Browser, files: dict[str, Any], tmp_path: Path
) -> None:
    """The files as real modules, served: what is joined for the page is plain, valid JavaScript."""
    source = Path(writer.__file__).parent / "page_files"
    shutil.copytree(source, tmp_path / "site")
    text = files["one"][0].read_text(encoding="utf-8")
    text = re.sub(r"<meta http-equiv=[^>]*>", "", text)
    start, end = text.index('<script type="module">'), text.rindex("</script>")
    text = text[:start] + '<script type="module" src="main.js">' + text[end:]
    (tmp_path / "site" / "index.html").write_text(text, encoding="utf-8")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "site")))
    thread = Thread(target=server.serve_forever)
    thread.start()
    tab = browser.new_page()
    try:
        tab.goto(f"http://127.0.0.1:{server.server_port}/index.html#view=head&query=2&key=3")
        expect(tab.locator('[data-fact="query"]')).to_have_text("did")
    finally:
        tab.close()
        server.shutdown()
        thread.join()
        server.server_close()


# ── accessibility ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("view", ["matrix", "head", "lines", "text", "trace"])
def test_no_accessibility_rule_is_broken(show: Opener, view: str, theme: str) -> None:
    page = show("batch", f"view={view}&sequence=0&query=9&key=3&pinned=1", theme)
    found = Axe().run(page.tab)
    assert found.response["violations"] == [], found.generate_report()


def test_no_accessibility_rule_is_broken_on_a_phone_or_in_help(show: Opener) -> None:
    page = show("cross", "view=text", width=390)
    assert Axe().run(page.tab).response["violations"] == []
    assert page.tab.evaluate("document.documentElement.scrollWidth") <= 390
    page.press("?")
    expect(page.tab.locator("#help")).to_be_visible()
    assert Axe().run(page.tab).response["violations"] == []


@pytest.mark.parametrize("view", ["matrix", "head", "lines", "text", "trace"])
def test_nothing_is_wider_than_a_phone(show: Opener, view: str) -> None:
    page = show("model", f"view={view}", width=390)
    assert page.tab.evaluate("document.documentElement.scrollWidth") <= 390


def test_what_is_looked_at_is_also_said(show: Opener) -> None:
    page = show("one", "view=head&query=2&key=3")
    page.press("ArrowDown")
    expect(page.tab.locator("#spoken")).to_contain_text("head 0: query 3 n't, key 3 n't: weight")
    label = page.tab.locator(".over").get_attribute("aria-label")
    assert label is not None
    assert label.startswith("Heatmap of head 0. query 3 n't, key 3 n't: weight 0.")


def test_what_a_token_looks_at_is_also_said(show: Opener) -> None:
    page = show("one", "view=text&query=4")
    row = page.result.attention[0, 0, 0, 4]
    first, second, third = np.argsort(-row)[:3]
    expect(page.tab.locator("#spoken")).to_have_text(
        f"head 0: cross looks at {ANIMAL[first]} {row[first]:.4f}, "
        f"{ANIMAL[second]} {row[second]:.4f}, {ANIMAL[third]} {row[third]:.4f}"
    )
    headings = page.tab.locator(".ranking h2")
    expect(headings).to_have_text(["“cross” looks at", "“cross” is looked at by"])
    page.press("r", "ArrowRight")
    expect(page.tab.locator("#spoken")).to_contain_text("head 0: animal is looked at by ")
    expect(headings).to_have_text(["“animal” looks at", "“animal” is looked at by"])


def test_help_lists_the_keys_and_can_switch_letters_off(show: Opener) -> None:
    page = show("one")
    page.tab.locator("#help-button").click()
    expect(page.tab.locator("#help")).to_contain_text("find a token")
    page.press("2")
    expect(page.tab.locator("#panel-matrix")).to_be_visible()
    page.tab.locator("#shortcuts").uncheck()
    page.tab.locator("#help button").click()
    page.press("2")
    expect(page.tab.locator("#panel-matrix")).to_be_visible()
    page.tab.locator("#help-button").click()
    page.tab.locator("#shortcuts").check()
    page.tab.locator("#help button").click()
    page.press("2")
    expect(page.tab.locator("#panel-head")).to_be_visible()


def test_light_and_dark_follow_the_system(show: Opener) -> None:
    page = show("one", "view=head&query=0&key=1")
    background = "() => getComputedStyle(document.documentElement).backgroundColor"
    light, cell = page.tab.evaluate(background), page.pixel(3, 3)
    page.tab.emulate_media(color_scheme="dark")
    page.settle()
    assert sum(page.pixel(3, 3)) != sum(cell)
    assert page.tab.evaluate(background) != light


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_colours_are_even_in_lightness(show: Opener, theme: str) -> None:
    page = show("one", "view=head", theme)
    data = page.tab.locator(".ramp").evaluate(
        "(c) => [...c.getContext('2d').getImageData(0, 0, 256, 1).data]"
    )
    rgb = np.array(data).reshape(256, 4)[:, :3] / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    # the lightness of OKLab (Ottosson 2020)
    cones = (
        linear
        @ np.array(
            [
                [0.4122214708, 0.5363325363, 0.0514459929],
                [0.2119034982, 0.6806995451, 0.1073969566],
                [0.0883024619, 0.2817188376, 0.6299787005],
            ]
        ).T
    )
    lightness = np.cbrt(cones) @ np.array([0.2104542553, 0.7936177850, -0.0040720468])
    even = np.linspace(lightness[0], lightness[-1], 256)
    assert np.abs(lightness - even).max() < 0.015
    assert abs(lightness[-1] - lightness[0]) > 0.7
    assert (lightness[0] > lightness[-1]) == (theme == "light")  # 0 is near the page's own ground


# ── matrix ───────────────────────────────────────────────────────────────────────────────────


def order_of(page: Shown) -> list[int]:
    return [int(tile.get_attribute("data-head") or -1) for tile in page.tab.locator(".tile").all()]


def test_heads_sort_and_filter_by_every_measure(show: Opener) -> None:
    page = show("model")
    assert order_of(page) == list(range(12))
    for name, values in measure(page.result, 0).result().items():
        flat = values.ravel()
        page.tab.locator("#measure").select_option(name)
        page.tab.locator("#order").select_option("up")
        assert order_of(page) == list(np.argsort(flat, kind="stable"))
        page.tab.locator("#order").select_option("down")
        assert order_of(page) == list(np.argsort(-flat, kind="stable"))
        first = page.tab.locator(".tile").first
        assert number(first.locator(".value").inner_text()) == pytest.approx(flat.max(), abs=0.051)
        page.tab.locator("#from").fill("40")
        kept = np.flatnonzero(flat >= flat.min() + 0.4 * (flat.max() - flat.min()))
        assert sorted(order_of(page)) == list(kept)
        expect(page.tab.locator(".matrix .count")).to_have_text(f"{len(kept)} of 12 heads")
        page.tab.locator("#to").fill("20")  # cannot go below the lower end
        assert page.tab.locator("#to").input_value() == "40"
        page.tab.locator("#to").fill("100")
        page.tab.locator("#from").fill("0")
        page.tab.locator("#order").select_option("place")


def test_the_matrix_is_layers_by_heads(show: Opener) -> None:
    page = show("model")
    boxes = [tile.bounding_box() for tile in page.tab.locator(".tile").all()]
    rows = sorted({round(box["y"]) for box in boxes if box})
    columns = sorted({round(box["x"]) for box in boxes if box})
    assert (len(rows), len(columns)) == (3, 4)
    for i, box in enumerate(boxes):
        assert box is not None
        assert (rows.index(round(box["y"])), columns.index(round(box["x"]))) == divmod(i, 4)


def test_arrows_walk_the_matrix_and_enter_opens(show: Opener) -> None:
    page = show("model")
    page.tab.locator(".tile").first.focus()
    page.press("ArrowRight", "ArrowDown", "ArrowDown", "ArrowLeft", "ArrowUp", "ArrowUp", "ArrowUp")
    assert page.tab.evaluate("document.activeElement.dataset.head") == "0"
    page.press("ArrowDown", "ArrowRight", "ArrowRight")
    assert page.tab.evaluate("document.activeElement.dataset.head") == "6"
    assert page.tab.locator(".measures h2").inner_text() == "layer 1 · head 2"
    page.press("Enter")
    expect(page.tab.locator("#panel-head")).to_be_visible()
    assert page.tab.locator("#head").input_value() == "6"
    assert page.tab.evaluate("document.activeElement.classList.contains('over')")


def test_pointing_at_a_head_shows_it_larger_with_its_measures(show: Opener) -> None:
    page = show("model")
    page.tab.locator(".tile").nth(7).hover()
    page.settle()
    assert page.tab.locator(".measures h2").inner_text() == "layer 1 · head 3"
    values = page.tab.locator(".measures .value").all_inner_texts()
    exact = [v[1, 3] for v in measure(page.result, 0).result().values()]
    assert [number(v) for v in values] == pytest.approx(exact, abs=0.051)
    page.tab.locator(".tile").nth(7).click()
    page.settle()
    assert page.tab.locator("#head").input_value() == "7"


def test_a_thumbnail_shows_weights_hatch_and_padding_apart(show: Opener) -> None:
    page = show("batch")
    drawn = page.tab.locator(".tile canvas").first.evaluate(
        """(c) => {
            const image = c.getContext('2d').getImageData(0, 0, c.width, c.height);
            return [c.width, c.height, ...image.data];
        }"""
    )
    width, height, data = drawn[0], drawn[1], np.array(drawn[2:])
    alpha = data.reshape(height, width, 4)[..., 3]
    assert (height, width) == (13, 13)
    assert ((alpha == 255) == np.tri(13, dtype=bool)).all()


# ── head ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fine", [True, False])
def test_hovering_names_weight_rank_and_mask(
    show: Opener, monkeypatch: pytest.MonkeyPatch, fine: bool
) -> None:
    if not fine:
        monkeypatch.setattr(writer, "FINE_CELLS", 0)
    page = show(make([ANIMAL], heads=2), "view=head&head=1")
    exact = page.result.attention[0, 0, 1]
    error = exact.max() / (65533 if fine else 253) / 2 * 1.01
    for q, k in ((0, 0), (3, 7), (12, 1), (5, 12), (8, 8)):
        page.hover_cell(q, k)
        assert page.fact("query") == ANIMAL[q]
        assert page.fact("key") == ANIMAL[k]
        assert close(page.fact("weight"), exact[q, k], error)
        assert page.fact("mask") == "may look"
        above = int((exact[q] > exact[q, k]).sum())
        rank = re.fullmatch(r"(\d+)(?:–(\d+))? of 13", page.fact("rank"))
        assert rank is not None
        assert int(rank[1]) <= above + 1 <= int(rank[2] or rank[1])
        if fine:
            assert page.fact("rank") == f"{above + 1} of 13"
        tops = page.tab.locator(".ranking").first.locator("li:visible").all()
        order = np.argsort(-exact[q])[: len(tops)]
        assert [t.locator(".name").inner_text() for t in tops[:3]] == [ANIMAL[i] for i in order[:3]]
        assert close(tops[0].locator(".value").inner_text(), exact[q].max(), error)
        seen = page.tab.locator(".ranking").nth(1).locator("li:visible").first
        assert seen.locator(".name").inner_text() == ANIMAL[int(exact[:, k].argmax())]


def test_the_mask_verdicts(show: Opener) -> None:
    result = make([ANIMAL, ARABIC], heads=2, causal=True)
    result.allowed[0, 0, 0, 4] = False
    result.attention[0, 0, :, 4] = 0
    result.attention[0, 0, 0, 2, 1] = np.nan
    result.attention[0, 0, 0, 3, 0] = 0
    result.attention[0, 0, 0, 1, 9] = 0.25  # forbidden, and yet
    page = show(result, "view=head")
    verdicts = {
        (2, 0): "may look",
        (0, 5): "may not look: forbidden by the masks (padding, causal)",
        (4, 1): "this query sees nothing: the masks (padding, causal) forbid every key",
        (2, 1): "may look, but the weight is not a number",
        (3, 0): "may look, and does not: exactly 0",
        (1, 9): "may not look: forbidden by the masks (padding, causal), yet it holds 0.2500",
    }
    for cell, words in verdicts.items():
        page.hover_cell(*cell)
        assert page.fact("mask") == words
        assert (page.fact("weight") == "–") == (not words.startswith("may look") or "but" in words)
    legend = page.tab.locator("#legend")
    for words in ("forbidden by a mask", "padding", "sees nothing", "not a number"):
        expect(legend.locator(".swatch").filter(has_text=words)).to_be_visible()
    page.press("s")
    page.hover_cell(0, 6)
    assert page.fact("mask") == "padding, no part of the text"
    expect(legend.locator(".swatch:visible")).to_have_text(["forbidden by a mask", "padding"])


def test_colours_of_zero_forbidden_padding_and_broken_cells_differ(show: Opener) -> None:
    result = make([ANIMAL, ARABIC], heads=2, causal=True)
    result.attention[0, :, 0, 3, 0] = 0
    result.attention[0, :, 0, 3, 1] = np.inf
    page = show(result, "view=head&query=0&key=0&sequence=1")
    page.press("0")
    colours = [page.pixel(q, k) for q, k in ((3, 0), (3, 1), (1, 3), (1, 9), (2, 2))]
    assert len({tuple(c) for c in colours}) == 5


def test_a_heavier_weight_is_darker_and_the_scale_can_change(show: Opener) -> None:
    page = show("model", "view=head&layer=1&head=2&query=0&key=0")
    exact = page.result.attention[1, 0, 2]
    q, k = np.unravel_index(exact.argmax(), exact.shape)
    low = int(exact[q].argmin())
    assert sum(page.pixel(q, k)) < sum(page.pixel(q, low))
    faint = page.pixel(q, k)
    page.tab.locator("#scale").select_option("head")
    page.settle()
    strongest = page.pixel(q, k)
    assert sum(strongest) <= sum(faint)
    expect(page.tab.locator("#legend .scale")).to_contain_text(f"{exact.max():.2f}")
    page.tab.locator("#scale").select_option("query")
    page.settle()
    other = (q + 1) % 26
    assert page.pixel(other, int(exact[other].argmax())) == strongest
    middle = page.pixel(q, int(np.argsort(exact[q])[-2]))
    page.tab.locator("#curve").select_option("root")
    page.settle()
    assert sum(page.pixel(q, int(np.argsort(exact[q])[-2]))) < sum(middle)


def test_click_pins_and_escape_lets_go(show: Opener) -> None:
    page = show("one", "view=head")
    page.click_cell(2, 3)
    page.hover_cell(7, 7)
    assert page.fact("query") == ANIMAL[2]
    assert page.tab.locator(".pin").inner_text() == "pinned: click again or press Esc to let go"
    page.click_cell(5, 6)  # another cell is pinned instead
    assert page.fact("query") == ANIMAL[5]
    page.press("Escape")
    page.hover_cell(7, 7)
    assert page.fact("query") == ANIMAL[7]
    page.press("Enter")
    page.hover_cell(1, 1)
    assert page.fact("query") == ANIMAL[7]
    page.click_cell(7, 7)  # the same cell again: let go
    page.hover_cell(1, 1)
    assert page.fact("query") == ANIMAL[1]


def test_arrows_walk_the_cells_and_stop_at_the_edges(show: Opener) -> None:
    page = show("one", "view=head&query=0&key=0")
    page.press("ArrowUp", "ArrowLeft")
    assert (page.fact("query"), page.fact("key")) == (ANIMAL[0], ANIMAL[0])
    page.press("ArrowDown", "ArrowDown", "ArrowRight")
    assert (page.fact("query"), page.fact("key")) == (ANIMAL[2], ANIMAL[1])
    page.press(*["ArrowDown"] * 20, *["ArrowRight"] * 20)
    assert (page.fact("query"), page.fact("key")) == (ANIMAL[12], ANIMAL[12])


def test_heads_and_layers_by_key_and_button(show: Opener) -> None:
    page = show("model", "view=head&layer=1&head=2")
    chosen = page.tab.locator("#head")
    for key, expected in (("]", "7"), ("[", "6"), ("}", "10"), ("}", "10"), ("{", "6"), ("{", "2")):
        page.press(key)
        assert chosen.input_value() == expected
    page.tab.locator("#next").click()
    page.settle()
    assert chosen.input_value() == "3"
    assert close(page.fact("weight"), page.result.attention[0, 0, 3, 0, 0], 1e-4)
    for _ in range(3):
        page.tab.locator("#previous").click()
    expect(page.tab.locator("#previous")).to_be_disabled()
    chosen.select_option("11")
    expect(page.tab.locator("#next")).to_be_disabled()
    assert page.tab.title() == "layer 2 · head 3 · attnviz"


def long_result(n: int = 300) -> Attention:
    return make([tuple(f"t{i}" for i in range(n))], heads=2, causal=True)


def test_zoom_and_pan_in_a_long_text(show: Opener) -> None:
    page = show(long_result(), "view=head&query=150&key=100")
    data = lambda: page.tab.locator(".plot").evaluate("(p) => ({ ...p.dataset })")  # noqa: E731
    assert float(data()["cell"]) < 3
    page.tab.locator(".over").focus()
    page.press(*["+"] * 7)
    zoomed = data()
    assert float(zoomed["cell"]) > 20
    assert float(zoomed["key"]) < 100 < float(zoomed["key"]) + 40
    page.hover_cell(149, 101)
    assert (page.fact("query"), page.fact("key")) == ("t149", "t101")
    x, y = page.cell(149, 101)
    page.tab.mouse.move(x, y)
    page.tab.mouse.down()
    page.tab.mouse.move(x - 90, y - 60, steps=4)
    page.tab.mouse.up()
    page.settle()
    moved = data()
    assert float(moved["key"]) == pytest.approx(float(zoomed["key"]) + 90 / float(zoomed["cell"]))
    assert page.fragment().get("pinned") is None  # a drag is no click
    page.press(*["ArrowDown"] * 40)  # the view follows the crosshair
    assert page.fact("query") == "t189"
    assert float(data()["query"]) > float(moved["query"])
    page.press("0")
    assert float(data()["cell"]) < 3
    page.hover_cell(200, 50)
    page.tab.mouse.wheel(0, -600)
    page.settle()
    assert float(data()["cell"]) > 5
    page.hover_cell(200, 50)
    assert page.fact("query") == "t200"
    page.press("-", "-", "-", "-", "-", "-")
    assert float(data()["cell"]) < 3
    page.tab.get_by_label("Zoom in").click()
    assert float(data()["cell"]) == 2
    expect(page.tab.locator(".zoom-text")).to_have_text(re.compile(r"×$"))
    page.tab.get_by_label("Zoom out").click()
    page.tab.get_by_label("Zoom in").click()
    page.tab.get_by_label("Show all").click()
    expect(page.tab.locator(".zoom-text")).to_have_text("all")


def test_cells_smaller_than_a_pixel_are_pooled_and_still_named(show: Opener) -> None:
    page = show(long_result(900), "view=head")
    assert float(page.tab.locator(".plot").evaluate("(p) => p.dataset.cell")) < 1
    page.hover_cell(700, 300)
    assert re.fullmatch(r"t(699|700|701)", page.fact("query"))
    q, k = int(page.fact("query")[1:]), int(page.fact("key")[1:])
    exact = page.result.attention[0, 0, 0]
    assert abs(number(page.fact("weight")) - exact[q, k]) <= exact.max() / 253 / 2 + 1e-3


def test_a_heavily_padded_sequence_fills_the_plot(show: Opener) -> None:
    long = tuple("abcdefghijklmnopqrst")
    page = show(make([long, ("x", "y", "z")], heads=1, pad_side="left"), "sequence=1&view=head")
    data = page.tab.locator(".plot").evaluate("(p) => ({ ...p.dataset })")
    assert float(data["key"]) > 10
    page.hover_cell(19, 18)
    assert (page.fact("query"), page.fact("key")) == ("z", "y")
    page.press("0")
    page.tab.get_by_label("Show all").click()
    assert page.tab.locator(".plot").evaluate("(p) => p.dataset.key") == "0"


def test_resizing_keeps_the_heatmap_in_the_window(show: Opener) -> None:
    page = show("one", "view=head")
    wide = float(page.tab.locator(".plot").evaluate("(p) => p.dataset.cell"))
    page.tab.set_viewport_size({"width": 390, "height": 700})
    page.tab.wait_for_timeout(200)
    assert float(page.tab.locator(".plot").evaluate("(p) => p.dataset.cell")) < wide
    page.hover_cell(3, 3)
    assert page.fact("query") == ANIMAL[3]


def test_a_tap_chooses_a_cell(browser: Browser, files: dict[str, Any]) -> None:
    context = browser.new_context(has_touch=True, viewport={"width": 390, "height": 800})
    path, result = files["one"]
    page = Shown(context.new_page(), path, result)
    page.tab.goto(f"{path.as_uri()}#view=head")
    page.settle()
    page.tab.touchscreen.tap(*page.cell(6, 2))
    page.settle()
    assert (page.fact("query"), page.fact("key")) == (ANIMAL[6], ANIMAL[2])
    context.close()


# ── lines ────────────────────────────────────────────────────────────────────────────────────


def count_of_lines(page: Shown) -> int:
    return int(re.sub(r"\D", "", page.tab.locator(".lines-view .count").inner_text()))


def expected_lines(result: Attention, heads: list[int], percent: float, **at: int) -> int:
    weights = result.attention[0, 0, heads].astype(np.float64)
    shown = np.ones(weights.shape, dtype=bool)
    if "q" in at:
        shown &= (np.arange(weights.shape[1]) == at["q"])[None, :, None]
    if "k" in at:
        shown &= (np.arange(weights.shape[2]) == at["k"])[None, None, :]
    return int((shown & (weights >= percent / 100 * weights.max())).sum())


def test_lines_of_chosen_heads_above_a_threshold(show: Opener) -> None:
    page = show("one", "view=lines")
    chips = page.tab.locator('.chip[aria-pressed="true"]')
    assert chips.all_inner_texts() == ["0", "1", "2", "3"]
    assert count_of_lines(page) == expected_lines(page.result, [0, 1, 2, 3], 10)
    page.tab.locator('[data-chip="2"]').click()
    page.tab.locator('[data-chip="6"]').click()
    page.settle()
    assert count_of_lines(page) == expected_lines(page.result, [0, 1, 3, 6], 10)
    assert page.tab.evaluate("document.activeElement.dataset.chip") == "6"
    page.tab.locator("#threshold").fill("50")
    page.settle()
    assert count_of_lines(page) == expected_lines(page.result, [0, 1, 3, 6], 50)
    page.tab.locator('[data-chip="all"]').click()
    page.settle()
    assert count_of_lines(page) == expected_lines(page.result, list(range(8)), 50)
    page.tab.locator('[data-chip="none"]').click()
    expect(page.tab.locator(".lines-view .count")).to_have_text("no head chosen")


def test_hovering_a_token_shows_its_lines_alone(show: Opener) -> None:
    page = show("one", "view=lines")
    everything = count_of_lines(page)
    page.tab.locator("#line-queries-4").hover()
    page.settle()
    assert count_of_lines(page) == expected_lines(page.result, [0, 1, 2, 3], 10, q=4)
    expect(page.tab.locator("#line-queries-4")).to_have_class("chosen")
    weights = page.result.attention[0, 0, :4, 4]
    strongest = int(weights.max(0).argmax())
    stripe = f"document.querySelector('#line-keys-{strongest}').style.backgroundImage"
    assert "linear-gradient" in page.tab.evaluate(stripe)
    page.tab.locator("#line-keys-7").hover()
    page.settle()
    assert count_of_lines(page) == expected_lines(page.result, [0, 1, 2, 3], 10, k=7)
    page.tab.mouse.move(5, 5)
    page.settle()
    assert count_of_lines(page) == everything
    page.tab.locator("#line-keys-7").click()
    page.tab.mouse.move(5, 5)
    page.settle()
    assert count_of_lines(page) == expected_lines(page.result, [0, 1, 2, 3], 10, k=7)
    page.tab.locator("#line-queries-2").hover()
    page.settle()
    assert count_of_lines(page) == expected_lines(page.result, [0, 1, 2, 3], 10, k=7)
    page.press("Escape")
    assert count_of_lines(page) == everything


def test_arrows_walk_the_lines(show: Opener) -> None:
    page = show("one", "view=lines&query=0&key=0")
    page.tab.locator('.tokens[data-text="queries"]').focus()
    page.press("ArrowDown", "ArrowDown")
    assert count_of_lines(page) == expected_lines(page.result, [0, 1, 2, 3], 10, q=2)
    active = page.tab.locator('.tokens[data-text="queries"]').get_attribute("aria-activedescendant")
    assert active == "line-queries-2"
    page.press("ArrowRight", "ArrowDown")
    assert count_of_lines(page) == expected_lines(page.result, [0, 1, 2, 3], 10, k=1)
    page.press("ArrowLeft")
    assert count_of_lines(page) == expected_lines(page.result, [0, 1, 2, 3], 10, q=2)
    page.press("r")
    assert page.fragment()["side"] == "seen"


def test_cross_attention_joins_two_texts(show: Opener) -> None:
    page = show("cross", "view=lines")
    left = page.tab.locator('.tokens[data-text="queries"] [role=option]').all_inner_texts()
    right = page.tab.locator('.tokens[data-text="keys"] [role=option]').all_inner_texts()
    assert left == ["I", "love", "the", "small", "cat"]
    assert right == list("我爱这只小猫")
    assert count_of_lines(page) == expected_lines(page.result, [0, 1, 2], 10)


def test_lines_without_end_are_cut_and_counted(show: Opener) -> None:
    page = show(long_result(200), "view=lines&threshold=0")
    words = page.tab.locator(".lines-view .count").inner_text().replace("\u202f", "")
    weights = page.result.attention[0, 0]
    steps = weights.max((1, 2)) / 65533
    above = int((weights >= 0.5 * steps[:, None, None]).sum())
    assert words == f"the 4000 strongest of {above} lines"
    page.tab.mouse.move(400, 400)
    page.tab.mouse.wheel(0, 2500)
    page.settle()
    inked = page.tab.locator(".between canvas").evaluate(
        "(c) => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((v) => v > 0)"
    )
    assert inked


def test_padding_is_counted_beside_the_lines(show: Opener) -> None:
    page = show("batch", "view=lines&sequence=1")
    column = page.tab.locator(".column.queries")
    assert column.locator("[role=option]").all_inner_texts() == list(ARABIC)
    expect(column.locator(".padded")).to_have_text("+ 8 padding")
    page.press("s")
    expect(column.locator(".padded")).to_have_text("all padding")
    assert count_of_lines(page) == 0


# ── text ─────────────────────────────────────────────────────────────────────────────────────


def colour_of(page: Shown, selector: str) -> str:
    return str(page.tab.locator(selector).evaluate("(e) => e.style.backgroundColor"))


def test_a_token_colours_what_it_looks_at(show: Opener) -> None:
    page = show("one", "view=text&head=5")
    exact = page.result.attention[0, 0, 5]
    page.tab.locator("#queries-6").hover()
    page.settle()
    expect(page.tab.locator("#queries-6")).to_have_attribute("aria-selected", "true")
    expect(page.tab.locator(".sentence-about")).to_have_text("In head 5, street looks at")
    brightness = [
        sum(map(int, re.findall(r"\d+", colour_of(page, f"#queries-{k}")))) for k in range(13)
    ]
    strongest, weakest = int(exact[6].argmax()), int(exact[6].argmin())
    assert brightness[strongest] == min(brightness)
    assert brightness[weakest] == max(brightness)
    page.tab.locator('[data-side="seen"]').click()
    page.tab.locator("#queries-6").hover()
    page.settle()
    expect(page.tab.locator(".sentence-about")).to_have_text("In head 5, street is looked at by")
    brightness = [
        sum(map(int, re.findall(r"\d+", colour_of(page, f"#queries-{q}")))) for q in range(13)
    ]
    assert brightness[int(exact[:, 6].argmax())] == min(brightness)
    page.press("r")
    expect(page.tab.locator('[data-side="looks"]')).to_have_attribute("aria-pressed", "true")


def test_the_text_is_written_as_it_is_read(show: Opener) -> None:
    page = show("one", "view=text")
    assert page.tab.locator(".sentence").inner_text() == (
        "The animal did n't cross the street because it was too tired."
    )


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (("Hello", ",", "Ġworld", "Ġ"), "Hello, world ␣"),
        (("▁the", "▁c", "at"), "the cat"),
        (("un", "##believ", "##able", "(", "yes", ")", "!"), "unbelievable (yes)!"),
        (("我", "爱", "cats", "。"), "我爱 cats。"),
        (("a", " ", "b", "\n"), "a␣b↵"),
        (("👩‍👩‍👧‍👦", "é", "\u200b"), "👩‍👩‍👧‍👦 é ⟨U+200B⟩"),
    ],
)
def test_tokens_become_text_again(show: Opener, tokens: tuple[str, ...], text: str) -> None:
    page = show(make([tokens], heads=1), "view=text")
    assert page.tab.locator(".sentence").inner_text() == text


def test_right_to_left_text_runs_from_the_right(show: Opener) -> None:
    page = show("batch", "view=text&sequence=1")
    first = page.tab.locator("[data-text=queries] [role=option]").first.bounding_box()
    last = page.tab.locator("[data-text=queries] [role=option]").last.bounding_box()
    assert first is not None
    assert last is not None
    assert first["x"] > last["x"] or first["y"] < last["y"]
    expect(page.tab.locator(".sentence")).to_have_attribute("dir", "rtl")
    page.tab.locator(".sentence").focus()
    expect(page.tab.locator("#queries-12")).to_have_attribute("aria-selected", "true")
    page.press(*["ArrowRight"] * 4, "ArrowLeft")
    expect(page.tab.locator("#queries-9")).to_have_attribute("aria-selected", "true")
    page.press("ArrowRight", "ArrowRight")
    expect(page.tab.locator("#queries-8")).to_have_attribute("aria-selected", "true")
    page.press("ArrowDown")
    expect(page.tab.locator("#queries-9")).to_have_attribute("aria-selected", "true")
    expect(page.tab.locator("#queries-10")).to_have_class("forbidden")
    expect(page.tab.locator(".sentence .padded")).to_have_text("+ 8 padding")


def test_pinning_in_the_text(show: Opener) -> None:
    page = show("one", "view=text")
    page.tab.locator("#queries-3").click()
    page.tab.locator("#queries-8").hover()
    page.settle()
    expect(page.tab.locator("#queries-3")).to_have_attribute("aria-selected", "true")
    page.tab.locator("#queries-3").click()
    page.tab.locator("#queries-8").hover()
    page.settle()
    expect(page.tab.locator("#queries-8")).to_have_attribute("aria-selected", "true")


def test_two_texts_colour_each_other(show: Opener) -> None:
    page = show("cross", "view=text&head=1")
    exact = page.result.attention[0, 0, 1]
    page.tab.locator("#queries-3").hover()
    page.settle()
    assert all(colour_of(page, f"#queries-{i}") == "" for i in range(5))
    values = [sum(map(int, re.findall(r"\d+", colour_of(page, f"#keys-{i}")))) for i in range(6)]
    assert int(np.argmin(values)) == int(exact[3].argmax())
    page.tab.locator("#keys-2").hover()
    page.settle()
    assert all(colour_of(page, f"#keys-{i}") == "" for i in range(6))
    values = [sum(map(int, re.findall(r"\d+", colour_of(page, f"#queries-{i}")))) for i in range(5)]
    assert int(np.argmin(values)) == int(exact[:, 2].argmax())
    page.tab.locator('.sentence[data-text="queries"]').focus()
    page.press("ArrowRight")
    expect(page.tab.locator("#queries-4")).to_have_attribute("aria-selected", "true")
    page.tab.locator("#scale").select_option("query")
    page.tab.locator("#keys-5").hover()
    page.settle()
    expect(page.tab.locator("#keys-5")).to_have_attribute("aria-selected", "true")


def test_a_sequence_without_tokens_says_so(show: Opener) -> None:
    page = show("batch", "view=text&sequence=2")
    expect(page.tab.locator(".sentence")).to_have_text("no tokens: all of this sequence is padding")
    expect(page.tab.locator("#sequence option").nth(2)).to_have_text("2: all padding")
    page.press("ArrowRight", "1", "2", "3")
    expect(page.tab.locator(".measures .value").first).to_have_text("–")


# ── trace ────────────────────────────────────────────────────────────────────────────────────


def test_the_trace_shows_every_step_and_the_command(show: Opener) -> None:
    page = show("one", "view=trace")
    rows = page.tab.locator("[data-step]").all()
    assert [row.get_attribute("data-step") for row in rows] == [step.name for step in STEPS]
    for row, step in zip(rows, STEPS, strict=True):
        assert row.locator(".axis-name").all_inner_texts() == list(step.axes)
        sizes = [s.replace("\u202f", "") for s in row.locator(".axis-size").all_inner_texts()]
        assert sizes == [str(size) for size in step.shape]
        assert step.words in row.inner_text()
        assert ("view" in row.locator(".number").first.inner_text()) == step.is_view
    assert page.tab.locator(".command").inner_text() == COMMAND
    facts = page.tab.locator(".panels").inner_text()
    for words in (
        "made up",
        "no: the weights are random",
        "1 layer × 8 heads × 13 queries",
        "seed\n3",
    ):
        assert words in facts
    assert "weight [V × d_model] = 16 × 64" in page.tab.locator(".parameter").first.inner_text()
    assert "2.2 MFLOP" in page.tab.locator('[data-step="products"]').inner_text()
    assert "≈ 676.0 kop" in page.tab.locator('[data-step="weights"]').inner_text()
    assert "528.1 KiB" in page.tab.locator('[data-step="scores"]').inner_text()


def test_a_run_without_trace_says_so(browser: Browser, tmp_path: Path) -> None:
    write_page(RESULTS["cross"](), tmp_path / "page.html")
    tab = browser.new_page()
    tab.goto(f"{(tmp_path / 'page.html').as_uri()}#view=trace")
    expect(tab.locator("#panel-trace")).to_contain_text("no trace was recorded")
    expect(tab.locator("#panel-trace")).to_contain_text("cross: queries and keys")
    assert tab.locator(".command").count() == 0
    tab.close()


# ── finding, sequences, downloads ────────────────────────────────────────────────────────────


def test_find_goes_from_match_to_match(show: Opener) -> None:
    page = show("model", "view=matrix")
    page.press("/")
    page.tab.keyboard.type("STREET")
    expect(page.tab.locator("#found")).to_have_text("2 found")
    page.press("Enter")
    expect(page.tab.locator("#panel-head")).to_be_visible()
    assert page.fact("query") == "street"
    assert page.fragment()["query"] == "6"
    page.press("Enter")
    assert page.fragment()["query"] == "19"
    expect(page.tab.locator("#found")).to_have_text("2 of 2")
    page.press("Shift+Enter")
    assert page.fragment()["query"] == "6"
    page.tab.locator("#find").fill("zebra")
    page.press("Enter")
    expect(page.tab.locator("#found")).to_have_text("none")
    page.press("Escape", "1")
    expect(page.tab.locator("#panel-matrix")).to_be_visible()


def test_find_looks_into_both_texts(show: Opener) -> None:
    page = show("cross", "view=lines")
    page.tab.locator("#find").fill("猫")
    page.tab.locator("#find").press("Enter")
    page.settle()
    assert page.fragment() == {
        "view": "lines",
        "sequence": "0",
        "layer": "0",
        "head": "0",
        "query": "0",
        "key": "5",
        "pinned": "1",
        "side": "seen",
    }


def test_sequences_are_chosen_by_list_and_by_key(show: Opener) -> None:
    page = show("batch", "view=head")
    page.tab.locator("#sequence").select_option("1")
    page.settle()
    assert page.fact("query") == ARABIC[-1]  # under a mask, the last token is where one begins
    assert close(page.fact("weight"), page.result.attention[0, 1, 0, 12, 8], 1e-4)
    page.press("s", "s")
    assert page.tab.locator("#sequence").input_value() == "0"
    assert page.fact("query") == ANIMAL[-1]
    assert show("one").tab.locator("#sequence-label").is_hidden()


@pytest.mark.parametrize("view", ["matrix", "head", "lines", "text", "trace"])
def test_a_view_is_downloaded_as_png_and_as_svg(show: Opener, view: str, tmp_path: Path) -> None:
    page = show("batch", f"view={view}&query=4&key=2&pinned=1")
    for kind in ("png", "svg"):
        with page.tab.expect_download() as download:
            page.tab.locator(f"#{kind}").click()
        assert re.fullmatch(
            rf"attnviz-{view}(-layer0-head0)?\.{kind}", download.value.suggested_filename
        )
        download.value.save_as(tmp_path / f"view.{kind}")
    png = (tmp_path / "view.png").read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    root = ET.parse(tmp_path / "view.svg").getroot()
    svg = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{svg}svg"
    assert (width, height) == (2 * int(root.attrib["width"]), 2 * int(root.attrib["height"]))
    texts = [element.text or "" for element in root.iter(f"{svg}text")]
    wanted = {
        "matrix": ["head 2"],
        "head": ["key: is looked at →", "because"],
        "lines": ["Queries: each looks", "because"],
        "text": ["because", "animal"],
        "trace": ["masked_scores", COMMAND],
    }
    for words in wanted[view]:
        assert words in texts
    assert len(list(root.iter(f"{svg}script"))) == 0
    assert "largest error" in (root.findtext(f"{svg}desc") or "")
    if view == "lines":
        assert len(list(root.iter(f"{svg}path"))) - 1 == count_of_lines(page)
    if view in ("matrix", "head"):
        images = [e.attrib["href"] for e in root.iter(f"{svg}image")]
        assert images
        assert all(href.startswith("data:image/png;base64,") for href in images)
