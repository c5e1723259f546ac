"""The page in a real browser: every view, by mouse and by keyboard, against the result's numbers.

Needs Chromium on the path (on Debian: apt install chromium); without it these tests fail.
"""

from __future__ import annotations

import re
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
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
from pooled_runs import Made, made, numbered

from attnviz.full_resolution import windows_kept
from attnviz.measures import measure
from attnviz.render import page as writer
from attnviz.render.figure_options import FigureOptions
from attnviz.render.page import write_page
from attnviz.render.page_look import PageLook
from attnviz.render.palette import sequential
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


# ── long runs to show ──────────────────────────────────────────────────────────────────────────

SENTENCES = (
    "the keeper of the old lighthouse said that nobody had come up the stairs for years "
    "and that the lamp burned for no ship"
)
WORDS = tuple(SENTENCES.split(" "))
NOVEL = tuple(w for i in range(79) for w in (*WORDS, f"chapter{i}"))
ZH = tuple("昔者莊周夢為胡蝶栩栩然胡蝶也")
LONG_HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<b>bold</b>",
    "\u202egnp\u2066",
    "two\nlines\t",
    "\0",
    "x" * 300,
    "$&amp;",
    " ",
    "{{run}}",
)


def nan_in_a_pixel() -> Made:
    run = made([numbered(60)], heads=1, pixels=20)
    mean = run.run.attention.copy()
    mean[0, 0, 0, 15, 2] = np.nan
    return Made(replace(run.run, attention=mean), run.layers)


RUNS: dict[str, Callable[[], Made]] = {
    "novel": lambda: made([NOVEL], layers=2, heads=3, pixels=237, trained=False),
    "kept": lambda: made([numbered(700)], heads=1, pixels=100, keep=True),
    "long-cross": lambda: made([numbered(31, "query")], [ZH * 40], pixels=140, rules=()),
    "long-batch": lambda: made([numbered(300), numbered(170, "s"), ()], pixels=60, pad_side="left"),
    "tiny": lambda: made([numbered(7)], pixels=64),
    "hostile": lambda: made(
        [LONG_HOSTILE * 31],
        pixels=100,
        source=LONG_HOSTILE[0],
        config={LONG_HOSTILE[1]: LONG_HOSTILE[2]},
    ),
    "segments": lambda: made(
        [tuple("[SEP]" if i % 11 == 10 else f"t{i}" for i in range(121))],
        pixels=40,
        rules=("causal", "segments"),
    ),
    "broken": nan_in_a_pixel,
}


@dataclass
class Shown:
    """A page that is open, and what it shows."""

    tab: Page
    path: Path
    result: Attention
    made: Made | None = None
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
                do { await frame(); await frame(); }
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
        left, top, x, y, key, query = (
            float(data[name]) for name in ("left", "top", "cellX", "cellY", "key", "query")
        )
        return box["x"] + left + (k + 0.5 - key) * x, box["y"] + top + (q + 0.5 - query) * y

    def plot(self) -> dict[str, float]:
        data = self.tab.locator(".plot").evaluate("(plot) => ({ ...plot.dataset })")
        return {name: float(value) for name, value in data.items()}

    def chosen(self) -> tuple[int, int]:
        """The query and the key of the card, as they are counted there."""
        found = self.tab.locator(".cell .at").all_inner_texts()
        query, key = (int(re.sub(r"\D", "", text)) for text in found)
        return query, key

    def links(self) -> list[tuple[int, float]]:
        rows = self.tab.locator(".looks .link:visible")
        places = [int(re.sub(r"\D", "", x)) for x in rows.locator(".at").all_inner_texts()]
        return list(zip(places, map(number, rows.locator(".value").all_inner_texts()), strict=True))

    def colour(self, q: int, k: int) -> list[int]:
        x, y = self.cell(q, k)
        return self.tab.locator(".plot canvas").first.evaluate(
            """(canvas, [x, y]) => {
                const box = canvas.getBoundingClientRect();
                const dots = canvas.width / box.width;
                const pen = canvas.getContext('2d');
                const at = (v) => Math.floor(v * dots);
                return [...pen.getImageData(at(x - box.x), at(y - box.y), 1, 1).data];
            }""",
            [x, y],
        )

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
            [x, y, float(self.tab.locator(".plot").evaluate("(p) => p.dataset.cellX"))],
        )


File = tuple[Path, Attention, Made | None]
"""A page, what it shows, and how that was made if it is a long run."""


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, File]:
    folder = tmp_path_factory.mktemp("pages")
    found: dict[str, File] = {}
    for name, build in RESULTS.items():
        result = build()
        write_page(result, folder / f"{name}.html", steps=STEPS, command=COMMAND)
        found[name] = (folder / f"{name}.html", result, None)
    for name, build_long in RUNS.items():
        run = build_long()
        path = folder / f"{name}.html"
        write_page(run.run, path, command=COMMAND, window=windows_kept(run.run))
        found[name] = (path, run.run, run)
    return found


Opener = Callable[..., Shown]


@pytest.fixture
def show(tab: Page, files: dict[str, File], tmp_path: Path) -> Iterator[Opener]:
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
            path, result, run = files[what]
        else:
            path, result, run = tmp_path / "own.html", what, None
            write_page(result, path, steps=STEPS, command=COMMAND)
        tab.set_viewport_size({"width": 1280, "height": 800, **viewport})  # type: ignore[typeddict-item]
        tab.emulate_media(color_scheme=theme)
        tab.mouse.move(0, 0)
        one = Shown(tab, path, result, run, heard, requests)
        one.go(fragment)
        return one

    yield open_page
    for event, listener in listeners.items():
        tab.remove_listener(event, listener)
    # these tests read pixels back, and Chromium remarks on it
    assert [message for message in heard if "willReadFrequently" not in message] == []
    assert {url.split(":")[0] for url in requests} <= {"file", "about", "blob"}


def number(text: str) -> float:
    return float(re.sub("[<≈\u202f ]", "", text).replace("−", "-"))


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


def test_the_page_tells_how_exact_its_numbers_are(show: Opener) -> None:
    words = show("one").tab.locator("#rounding")
    expect(words).to_have_text("Weights have four correct digits. Exact zeros stay exact.")


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


@pytest.mark.parametrize("size", ["short", "long"])
@pytest.mark.parametrize("view", ["matrix", "head", "lines", "text", "trace"])
def test_a_hostile_token_is_text(show: Opener, view: str, size: str) -> None:
    result = make([HOSTILE], heads=2, source=HOSTILE[0], config={HOSTILE[1]: HOSTILE[2]})
    page = show(result if size == "short" else "hostile", f"view={view}&query=0&key=1")
    page.press("ArrowDown", "ArrowRight")
    for kind in ("#png", "#svg"):
        with page.tab.expect_download(timeout=30_000) as download:
            page.tab.locator(kind).click(timeout=30_000)
        assert download.value.path().stat().st_size > 500
    assert page.tab.locator("img, b:not(.blind, .strip b), main script").count() == 0
    body = page.tab.locator("body").inner_text()
    assert "\u202e" not in body
    assert "\u2066" not in body
    if view == "text" and size == "short":
        shown = page.tab.locator(
            '#panel-text [data-text="queries"] [role=option]'
        ).all_inner_texts()
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
@pytest.mark.parametrize("what", ["batch", "novel"])
@pytest.mark.parametrize("view", ["matrix", "head", "lines", "text", "trace"])
def test_no_accessibility_rule_is_broken(show: Opener, view: str, what: str, theme: str) -> None:
    page = show(what, f"view={view}&sequence=0&query=9&key=3&pinned=1", theme)
    found = Axe().run(page.tab)
    assert found.response["violations"] == [], found.generate_report()


def test_no_accessibility_rule_is_broken_on_a_phone_or_in_help(show: Opener) -> None:
    page = show("cross", "view=text", width=390)
    assert Axe().run(page.tab).response["violations"] == []
    assert page.tab.evaluate("document.documentElement.scrollWidth") <= 390
    page.press("?")
    expect(page.tab.locator("#help")).to_be_visible()
    assert Axe().run(page.tab).response["violations"] == []


@pytest.mark.parametrize("what", ["model", "novel", "long-cross", "hostile", "long-batch"])
@pytest.mark.parametrize("view", ["matrix", "head", "lines", "text", "trace"])
def test_nothing_is_wider_than_a_phone(show: Opener, what: str, view: str) -> None:
    page = show(what, f"view={view}", width=390)
    page.press("z")
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
        f"head 0: cross looks at {ANIMAL[first]} #{first} {row[first]:.4g}, "
        f"{ANIMAL[second]} #{second} {row[second]:.4g}, {ANIMAL[third]} #{third} {row[third]:.4g}"
    )
    headings = page.tab.locator(".ranking h2")
    expect(headings).to_have_text(["“cross” #4 looks at", "“cross” #4 is looked at by"])
    page.press("r", "ArrowRight")
    expect(page.tab.locator("#spoken")).to_contain_text("head 0: animal is looked at by ")
    expect(headings).to_have_text(["“animal” #1 looks at", "“animal” #1 is looked at by"])


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
    assert page.pixel(3, 3) == cell  # weights have one colour map, as pictures have
    assert page.tab.evaluate(background) != light


def test_weights_have_the_colours_of_the_pictures(show: Opener) -> None:
    page = show("one", "view=head")
    data = page.tab.locator(".ramp").evaluate(
        "(c) => [...c.getContext('2d').getImageData(0, 0, 256, 1).data]"
    )
    expected = (sequential("viridis", 256) * 255).round()
    assert np.array_equal(np.array(data).reshape(256, 4)[:, :3], expected)


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
        monkeypatch.setattr(writer, "LIMIT", 0)
    page = show(make([ANIMAL], heads=2), "view=head&head=1")
    exact = page.result.attention[0, 0, 1]
    for q, k in ((0, 0), (3, 7), (12, 1), (5, 12), (8, 8)):
        page.hover_cell(q, k)
        assert page.fact("query") == ANIMAL[q]
        assert page.fact("key") == ANIMAL[k]
        above = int((exact[q] > exact[q, k]).sum())
        listed, digits_of_lists = not fine and above < 8, 4 if fine else 3
        digits = 4 if fine else 3 if listed else 2
        shown = page.fact("weight")
        assert number(shown) == pytest.approx(
            exact[q, k], rel=0.03 if digits == 2 else 10.0**-digits * 5
        )
        assert shown.startswith("≈") == (digits == 2)
        assert page.fact("mask") == "may look" + ": one of the row’s largest" * listed
        rank = re.fullmatch(r"(\d+)(?:–(\d+))? of 13", page.fact("rank"))
        assert rank is not None
        assert int(rank[1]) <= above + 1 <= int(rank[2] or rank[1])
        if fine:
            assert page.fact("rank") == f"{above + 1} of 13"
        tops = page.tab.locator(".ranking").first.locator("li:visible").all()
        order = np.argsort(-exact[q])[: len(tops)]
        assert [t.locator(".name").inner_text() for t in tops[:3]] == [ANIMAL[i] for i in order[:3]]
        shown = [t.locator(".value").inner_text() for t in tops]
        assert [number(x) for x in shown] == [
            float(f"{exact[q, i]:.{digits_of_lists}g}") for i in order
        ]
        places = [t.locator(".at").inner_text() for t in tops]
        assert places == [f"#{i}" for i in order]
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
        (0, 5): "may not look (causal: it comes later)",
        (4, 1): "this query sees nothing: the masks (padding, causal) forbid every key",
        (2, 1): "may look, but the weight is not a number",
        (3, 0): "may look, and does not: exactly 0",
        (1, 9): "may not look (causal: it comes later), yet it holds 0.2500",
    }
    for cell, words in verdicts.items():
        page.hover_cell(*cell)
        assert page.fact("mask") == words
        assert (page.fact("weight") == "–") == (not words.startswith("may look") or "but" in words)
    legend = page.tab.locator("#legend")
    for words in ("forbidden by a mask", "sees nothing", "not a number"):
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


def test_a_heavier_weight_is_brighter_and_the_scale_can_change(show: Opener) -> None:
    page = show("model", "view=head&layer=1&head=2&query=0&key=0")
    exact = page.result.attention[1, 0, 2]
    q, k = np.unravel_index(exact.argmax(), exact.shape)
    low = int(exact[q].argmin())
    assert sum(page.pixel(q, k)) > sum(page.pixel(q, low))
    faint = page.pixel(q, k)
    page.tab.locator("#scale").select_option("head")
    page.settle()
    strongest = page.pixel(q, k)
    assert sum(strongest) >= sum(faint)
    expect(page.tab.locator("#legend .scale")).to_contain_text(f"{exact.max():.2f}")
    page.tab.locator("#scale").select_option("query")
    page.settle()
    other = (q + 1) % 26
    assert page.pixel(other, int(exact[other].argmax())) == strongest
    middle = page.pixel(q, int(np.argsort(exact[q])[-2]))
    page.tab.locator("#curve").select_option("root")
    page.settle()
    assert sum(page.pixel(q, int(np.argsort(exact[q])[-2]))) > sum(middle)


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
    opening = "The animal did n't … the street because"
    assert page.tab.title() == f"layer 2 · head 3 · {opening} · made up · attnviz"


def long_result(n: int = 300) -> Attention:
    return make([tuple(f"t{i}" for i in range(n))], heads=2, causal=True)


def test_zoom_and_pan_in_a_long_text(show: Opener) -> None:
    page = show(long_result(), "view=head&query=150&key=100")
    data = lambda: page.tab.locator(".plot").evaluate("(p) => ({ ...p.dataset })")  # noqa: E731
    assert float(data()["cellX"]) < 3
    page.tab.locator(".over").focus()
    page.press(*["+"] * 7)
    zoomed = data()
    assert float(zoomed["cellX"]) > 20
    assert float(zoomed["key"]) < 100 < float(zoomed["key"]) + 12
    page.hover_cell(149, 101)
    assert (page.fact("query"), page.fact("key")) == ("t149", "t101")
    x, y = page.cell(149, 101)
    page.tab.mouse.move(x, y)
    page.tab.mouse.down()
    page.tab.mouse.move(x - 90, y - 60, steps=4)
    page.tab.mouse.up()
    page.settle()
    moved = data()
    assert float(moved["key"]) == pytest.approx(float(zoomed["key"]) + 90 / float(zoomed["cellX"]))
    assert page.fragment().get("pinned") is None  # a drag is no click
    page.press(*["ArrowDown"] * 40)  # the view follows the crosshair
    assert page.fact("query") == "t189"
    assert float(data()["query"]) > float(moved["query"])
    page.press("0")
    assert float(data()["cellX"]) < 3
    page.hover_cell(200, 50)
    page.tab.mouse.wheel(0, -600)
    page.settle()
    assert float(data()["cellX"]) > 5
    page.hover_cell(200, 50)
    assert page.fact("query") == "t200"
    page.press("-", "-", "-", "-", "-", "-")
    assert float(data()["cellX"]) < 3
    before = float(data()["cellX"])
    page.tab.get_by_label("Zoom in").click()
    page.settle()
    assert float(data()["cellX"]) == pytest.approx(2 * before)
    expect(page.tab.locator(".zoom-text")).to_have_text(re.compile(r"×$"))
    page.tab.get_by_label("Zoom out").click()
    page.tab.get_by_label("Zoom in").click()
    page.tab.get_by_label("Show all").click()
    expect(page.tab.locator(".zoom-text")).to_have_text("all")


def test_cells_smaller_than_a_pixel_are_pooled_and_still_named(show: Opener) -> None:
    page = show(long_result(900), "view=head")
    assert float(page.tab.locator(".plot").evaluate("(p) => p.dataset.cellX")) < 1
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


def test_resizing_keeps_the_heatmap_in_the_window(show: Opener) -> None:
    page = show("one", "view=head")
    wide = float(page.tab.locator(".plot").evaluate("(p) => p.dataset.cellX"))
    page.tab.set_viewport_size({"width": 390, "height": 700})
    page.tab.wait_for_timeout(200)
    assert float(page.tab.locator(".plot").evaluate("(p) => p.dataset.cellX")) < wide
    page.hover_cell(3, 3)
    assert page.fact("query") == ANIMAL[3]


def test_a_tap_chooses_a_cell(browser: Browser, files: dict[str, Any]) -> None:
    context = browser.new_context(has_touch=True, viewport={"width": 390, "height": 800})
    path, result, _ = files["one"]
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
    above = int((weights >= 1e-12).sum())
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
    expect(page.tab.locator(".sentence-about")).to_have_text("In head 5, street #6 looks at")
    brightness = [
        sum(map(int, re.findall(r"\d+", colour_of(page, f"#queries-{k}")))) for k in range(13)
    ]
    strongest, weakest = int(exact[6].argmax()), int(exact[6].argmin())
    assert brightness[strongest] == max(brightness)
    assert brightness[weakest] == min(brightness)
    page.tab.locator('[data-side="seen"]').click()
    page.tab.locator("#queries-6").hover()
    page.settle()
    expect(page.tab.locator(".sentence-about")).to_have_text("In head 5, street #6 is looked at by")
    brightness = [
        sum(map(int, re.findall(r"\d+", colour_of(page, f"#queries-{q}")))) for q in range(13)
    ]
    assert brightness[int(exact[:, 6].argmax())] == max(brightness)
    page.press("r")
    expect(page.tab.locator('[data-side="looks"]')).to_have_attribute("aria-pressed", "true")


def test_the_text_is_written_as_it_is_read(show: Opener) -> None:
    page = show("one", "view=text")
    assert page.tab.locator(".text-view .sentence").inner_text() == (
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
    assert page.tab.locator(".text-view .sentence").inner_text() == text


def test_right_to_left_text_runs_from_the_right(show: Opener) -> None:
    page = show("batch", "view=text&sequence=1")
    first = page.tab.locator("#panel-text [data-text=queries] [role=option]").first.bounding_box()
    last = page.tab.locator("#panel-text [data-text=queries] [role=option]").last.bounding_box()
    assert first is not None
    assert last is not None
    assert first["x"] > last["x"] or first["y"] < last["y"]
    expect(page.tab.locator(".text-view .sentence")).to_have_attribute("dir", "rtl")
    page.tab.locator(".text-view .sentence").focus()
    expect(page.tab.locator("#queries-12")).to_have_attribute("aria-selected", "true")
    page.press(*["ArrowRight"] * 4, "ArrowLeft")
    expect(page.tab.locator("#queries-9")).to_have_attribute("aria-selected", "true")
    page.press("ArrowRight", "ArrowRight")
    expect(page.tab.locator("#queries-8")).to_have_attribute("aria-selected", "true")
    page.press("ArrowDown")
    expect(page.tab.locator("#queries-9")).to_have_attribute("aria-selected", "true")
    expect(page.tab.locator("#queries-10")).to_have_class("forbidden")
    expect(page.tab.locator(".text-view .sentence .padded")).to_have_text("+ 8 padding")


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
    assert int(np.argmax(values)) == int(exact[3].argmax())
    page.tab.locator("#keys-2").hover()
    page.settle()
    assert all(colour_of(page, f"#keys-{i}") == "" for i in range(6))
    values = [sum(map(int, re.findall(r"\d+", colour_of(page, f"#queries-{i}")))) for i in range(5)]
    assert int(np.argmax(values)) == int(exact[:, 2].argmax())
    page.tab.locator('.text-view .sentence[data-text="queries"]').focus()
    page.press("ArrowRight")
    expect(page.tab.locator("#queries-4")).to_have_attribute("aria-selected", "true")
    page.tab.locator("#scale").select_option("query")
    page.tab.locator("#keys-5").hover()
    page.settle()
    expect(page.tab.locator("#keys-5")).to_have_attribute("aria-selected", "true")


def test_a_sequence_without_tokens_says_so(show: Opener) -> None:
    page = show("batch", "view=text&sequence=2")
    expect(page.tab.locator(".text-view .sentence")).to_have_text(
        "no tokens: all of this sequence is padding"
    )
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
    assert "four correct digits" in (root.findtext(f"{svg}desc") or "")
    assert 'fill="#ffffff"' in (tmp_path / "view.svg").read_text(encoding="utf-8")
    if view == "lines":
        assert len(list(root.iter(f"{svg}path"))) - 1 == count_of_lines(page)
    if view in ("matrix", "head"):
        images = [e.attrib["href"] for e in root.iter(f"{svg}image")]
        assert images
        assert all(href.startswith("data:image/png;base64,") for href in images)


# ── long maps ────────────────────────────────────────────────────────────────────────────────


def test_one_head_opens_as_a_map(show: Opener) -> None:
    page = show("kept")
    expect(page.tab.locator("#panel-head")).to_be_visible()
    assert page.chosen() == (699, 0)


def test_a_link_opens_the_same_place(show: Opener) -> None:
    page = show("novel", "view=head&layer=1&head=2&query=900&key=700&pinned=1")
    page.press("z", "m")
    page.tab.locator("#statistic").select_option("distance")
    wanted = page.fragment()
    before = page.plot()
    assert {"pixel": "largest", "statistic": "distance", "pinned": "1"}.items() <= wanted.items()
    page.go(page.tab.url.partition("#")[2])
    assert page.fragment() == wanted
    after = page.plot()
    assert after["cellX"] == pytest.approx(before["cellX"], rel=0.02)
    assert abs(after["key"] - before["key"]) <= 0.51


@pytest.mark.parametrize("place", ["x", "1.2", "9999999.9999999.9999999", "0.0.1"])
def test_a_wrong_place_is_taken_as_far_as_it_is_right(show: Opener, place: str) -> None:
    page = show("novel", f"view=head&query=900&key=99999&head=77&pixel=x&place={place}")
    assert page.chosen()[0] == 900
    p = page.plot()
    assert 0 <= p["key"] <= 1975
    assert 0 < p["cellX"] <= 64


# ── numbers ──────────────────────────────────────────────────────────────────────────────────


def test_a_row_lists_its_largest_keys_exactly(show: Opener) -> None:
    page = show("novel", "view=head&layer=1&head=2&query=1234&key=0&pinned=1")
    weights = page.made.whole(1, 0, 2)[0][1234]
    found = page.links()
    order = np.argsort(-weights, kind="stable")[:5]
    assert [key for key, _ in found] == order.tolist()
    for (_, shown), exact in zip(found, weights[order], strict=True):
        assert shown == pytest.approx(exact, rel=5.1e-3)
    names = page.tab.locator(".looks .link:visible .name").all_inner_texts()
    assert names == [NOVEL[k] for k in order]


def test_links_go_to_the_cell_and_along_the_text(show: Opener) -> None:
    page = show("novel", "view=head&query=1234&key=0&pinned=1")
    page.press("z")
    third = page.links()[2]
    page.tab.locator(".looks .link:visible").nth(2).click()
    page.settle()
    assert page.chosen() == (1234, third[0])
    assert number(page.fact("weight")) == third[1]
    p = page.plot()
    assert p["key"] <= third[0]
    assert page.tab.locator('.looks .link[aria-current="true"] .value').inner_text() == page.fact(
        "weight"
    )
    page.press(".")
    assert page.chosen() == (1234, page.links()[3][0])
    page.press(",", ",")
    assert page.chosen() == (1234, page.links()[1][0])
    key = page.chosen()[1]
    page.press("f")
    assert page.chosen() == (key, page.links()[0][0])
    page.tab.get_by_role("button", name="Follow").click()
    page.settle()
    assert page.chosen()[1] == page.links()[0][0]


def test_the_card_tells_the_rows_numbers(show: Opener) -> None:
    page = show("novel", "view=head&layer=0&head=1&query=777&key=3&pinned=1")
    weights = page.made.whole(0, 0, 1)[0][777]
    logs = np.log2(weights, out=np.zeros_like(weights), where=weights > 0)
    expect_ = {
        "entropy": -(weights * logs).sum(),
        "largest": weights.max(),
        "distance": (weights * np.abs(777 - np.arange(len(weights)))).sum(),
        "first": weights[0],
        "self": weights[777],
    }
    for name, value in expect_.items():
        shown = number(page.tab.locator(f'[data-row="{name}"]').inner_text())
        assert shown == pytest.approx(value, rel=0.01, abs=0.006 if value > 1 else 0), name


def test_a_rows_number_that_is_too_small_to_be_told(
    show: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = show("tiny")
    first = page.made.run.rows.statistics["first"].copy()
    first[0, 0, 0, 5] = 1e-11
    small = replace(
        page.made.run,
        rows=replace(
            page.made.run.rows, statistics={**page.made.run.rows.statistics, "first": first}
        ),
    )
    monkeypatch.setattr(writer, "FINE_CELLS", 0)
    monkeypatch.setattr(writer._Page, "_plan", lambda *_: writer.PagePlan(top=5, width=1))
    path = page.path.with_name("small.html")
    write_page(small, path)
    one = Shown(page.tab, path, page.made, page.heard, page.requests)
    for query, is_tiny in ((5, True), (6, False)):
        one.go(f"view=head&query={query}&key=0&pinned=1")
        text = one.tab.locator('[data-row="first"]').inner_text()
        assert text.startswith("≤ ") == is_tiny, text


def test_verdicts_of_cells(show: Opener) -> None:
    page = show("novel", "view=head&query=1000&key=0&pinned=1")
    weights = page.made.whole(0, 0, 0)[0]
    top = page.links()
    assert (
        page.fact("weight")
        == f"< {page.tab.locator('.looks .link:visible .value').last.inner_text()}"
    )
    assert page.fact("mask") == "not among the row’s 5 largest"
    assert weights[1000, 0] < top[-1][1]
    mean, largest = weights[999:1008, 0:9].mean(), weights[999:1008, 0:9].max()
    found = re.fullmatch(r"mean ≈ (\S+), largest ≈ (\S+) of 81 cells", page.fact("pixel"))
    assert found is not None
    assert number(found[1]) == pytest.approx(mean, rel=0.08)
    assert number(found[2]) == pytest.approx(largest, rel=0.08)
    page.go("view=head&query=1000&key=1001&pinned=1")  # in a pixel that is partly forbidden
    assert page.fact("mask") == "may not look (causal: it comes later)"
    assert re.search(r"of 45 allowed of 81 cells|45 allowed of 81 cells", page.fact("pixel"))
    page.go("view=head&query=10&key=900&pinned=1")
    assert page.fact("pixel") == "all of its cells are forbidden"
    page.go("view=head&query=2&key=1&pinned=1")  # three keys: all of them are told
    assert number(page.fact("weight")) == pytest.approx(weights[2, 1], rel=5.1e-3)


def test_each_forbidden_cell_has_the_reason_of_its_own_mask(show: Opener) -> None:
    page = show("segments", "view=head&query=57&key=54&pinned=1")
    allowed = page.made.whole(0, 0, 0)[1]
    assert {k for k, _ in page.links()} == set(np.flatnonzero(allowed[57]))
    reasons = {
        (57, 54): "segments: it is in another segment",
        (60, 61): "causal: it comes later",
        (57, 70): "causal: it comes later; segments: it is in another segment",
    }
    for (query, key), reason in reasons.items():
        assert not allowed[query, key]
        page.go(f"view=head&query={query}&key={key}&pinned=1")
        assert page.fact("mask") == f"may not look ({reason})"


def test_cells_at_full_resolution(show: Opener) -> None:
    page = show("kept", "view=head&query=500&key=321&pinned=1")
    page.press("z")
    weights = page.made.whole(0, 0, 0)[0]
    expect(page.tab.locator(".legend")).to_contain_text("cells one by one where they are here")
    listed = {k for k, _ in page.links()}
    some = [k for k in range(310, 330) if k not in listed and weights[500, k] > 1e-5]
    assert len(some) > 3
    for k in some:
        page.press(
            *["Shift+ArrowRight" if k > page.chosen()[1] else "Shift+ArrowLeft"]
            * abs(k - page.chosen()[1])
        )
        assert page.chosen() == (500, k)
        shown = number(page.fact("weight"))  # to two digits, of a shade
        assert shown == pytest.approx(weights[500, k], rel=0.028 + 0.05)
        assert page.fact("mask") == "may look"
    heavy, light = weights[500].argmax(), weights[500, 300:400].argmin() + 300
    page.go(f"view=head&query=499&key={heavy}&pinned=1")
    page.press("z")
    strong = page.colour(500, int(heavy))
    page.go(f"view=head&query=499&key={light}&pinned=1")
    page.press("z")
    weak = page.colour(500, int(light))
    assert sum(strong[:3]) > sum(weak[:3])


def test_pixels_that_are_no_number_are_told_apart(show: Opener) -> None:
    page = show("broken", "view=head&query=46&key=7&pinned=1")
    expect(page.tab.locator(".legend")).to_contain_text("not a number")
    assert page.fact("mask") in (
        "may look, but the weight is not a number",
        "may look: one of the row’s largest",
    )
    assert page.colour(46, 6)[:3] == [0xD8, 0x1B, 0x60]


# ── zoom ─────────────────────────────────────────────────────────────────────────────────────


def test_zooming_takes_finer_levels_until_tokens_are_named(show: Opener) -> None:
    page = show("novel", "view=head&query=1500&key=1000&pinned=1")
    assert page.tab.locator(".zoom-text").inner_text() == "all"
    coarse = page.plot()
    assert coarse["level"] == 0  # 220 pixels fit into the plot as they are
    page.press("+", "+", "+")
    p = page.plot()
    assert p["cellX"] == pytest.approx(8 * coarse["cellX"])
    assert p["key"] < 1000 < p["key"] + 500 / p["cellX"]
    page.press("z")
    p = page.plot()
    assert p["cellX"] == pytest.approx(18)
    assert page.tab.locator(".zoom-text").inner_text().endswith("×")
    with page.tab.expect_download() as download:
        page.tab.locator("#svg").click()
    svg = Path(download.value.path()).read_text(encoding="utf-8")
    first = int(p["key"]) + 1
    for word in NOVEL[first : first + 5]:
        assert f">{word[:5]}" in svg
    page.press("0")
    assert page.plot()["cellX"] == pytest.approx(coarse["cellX"])


def test_the_wheel_keeps_the_place_under_the_pointer(show: Opener) -> None:
    page = show("novel", "view=head")
    box = page.tab.locator(".over").bounding_box()
    assert box is not None
    x, y = box["x"] + 260, box["y"] + 330

    def under() -> tuple[float, float]:
        p = page.plot()
        return (
            p["key"] + (x - box["x"] - p["left"]) / p["cellX"],
            p["query"] + (y - box["y"] - p["top"]) / p["cellY"],
        )

    page.tab.mouse.move(x, y)
    before, zoomed = under(), page.plot()["cellX"]
    for _ in range(5):  # over the size from which tokens are named, where the plot moves
        page.tab.mouse.wheel(0, -240)
        page.settle()
        now = page.plot()["cellX"]
        assert np.allclose(under(), before, atol=0.51 + 1 / now)
        assert now > zoomed
        zoomed = now
    for _ in range(12):
        page.tab.mouse.wheel(0, 480)
        page.settle()
    assert page.tab.locator(".zoom-text").inner_text() == "all"


def test_dragging_moves_the_map_and_a_click_pins(show: Opener) -> None:
    page = show("novel", "view=head&query=1500&key=1000&pinned=1")
    page.press("+", "+", "+")
    before = page.plot()
    x, y = page.cell(1500, 1000)
    page.tab.mouse.move(x, y)
    page.tab.mouse.down()
    page.tab.mouse.move(x + 60, y - 30, steps=4)
    page.tab.mouse.up()
    page.settle()
    after = page.plot()
    assert before["key"] - after["key"] == pytest.approx(60 / before["cellX"])
    assert after["query"] - before["query"] == pytest.approx(30 / before["cellY"])
    assert page.chosen() == (1500, 1000)
    page.click_cell(1490, 990)
    assert page.chosen() == (1490, 990)
    page.click_cell(1490, 990)
    page.tab.mouse.move(*page.cell(1495, 970))
    page.settle()
    assert page.chosen() == (1495, 970)
    page.tab.mouse.dblclick(*page.cell(1495, 970))
    page.settle()
    assert page.plot()["cellX"] == pytest.approx(min(64, 4 * after["cellX"]))


def test_fingers_zoom_and_tap(browser: Browser, files: dict[str, tuple[Path, Made]]) -> None:
    context = browser.new_context(has_touch=True, viewport={"width": 390, "height": 800})
    tab = context.new_page()
    tab.goto(files["novel"][0].as_uri() + "#view=head")
    page = Shown(tab, *files["novel"])
    page.settle()
    tab.locator(".over").scroll_into_view_if_needed()
    tab.touchscreen.tap(*page.cell(1500, 700))
    page.settle()
    q, k = page.chosen()
    assert abs(q - 1500) < 12
    assert abs(k - 700) < 12
    page.press("+", "+")  # once the map fills the plot, the place between the fingers stays
    before = page.plot()
    session = context.new_cdp_session(tab)
    x, y = page.cell(1500, 700)

    def touch(kind: str, apart: float) -> None:
        points = [{"x": x - apart, "y": y}, {"x": x + apart, "y": y}] if apart else []
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        page.settle()

    touch("touchStart", 20)
    for apart in (30, 45, 60, 80):
        touch("touchMove", apart)
    touch("touchEnd", 0)
    after = page.plot()
    assert after["cellX"] == pytest.approx(4 * before["cellX"], rel=0.1)
    assert np.allclose(page.cell(1500, 700), (x, y), atol=3)
    context.close()


def test_arrows_move_by_what_can_be_seen(show: Opener) -> None:
    page = show("novel", "view=head&query=1000&key=500&pinned=1")
    stride = round(4 / page.plot()["cellX"])
    page.press("ArrowRight")
    assert page.chosen() == (1000, 500 + stride)
    page.press("ArrowUp")
    assert page.chosen() == (1000 - stride, 500 + stride)
    page.press("Shift+ArrowDown", "Shift+ArrowLeft")
    assert page.chosen() == (1001 - stride, 499 + stride)
    page.press("z", "ArrowRight")
    assert page.chosen() == (1001 - stride, 500 + stride)
    for _ in range(30):
        page.press("ArrowLeft")
    p = page.plot()
    assert p["key"] <= page.chosen()[1]
    page.go("view=head&query=0&key=0&pinned=1")
    page.press("ArrowUp", "ArrowLeft")
    assert page.chosen() == (0, 0)


def test_the_overview_shows_where_one_is_and_goes_there(show: Opener) -> None:
    page = show("novel", "view=head&query=1500&key=1000&pinned=1")
    part = page.tab.locator(".overview .part")
    expect(part).to_be_hidden()
    page.press("+", "+")
    expect(part).to_be_visible()
    where = page.tab.locator(".overview .where").bounding_box()
    assert where is not None
    page.tab.mouse.click(where["x"] + where["width"] * 0.2, where["y"] + where["height"] * 0.9)
    page.settle()
    p = page.plot()
    assert p["key"] < 0.2 * 1975 < p["key"] + 500 / p["cellX"]
    assert p["query"] < 0.9 * 1975 < p["query"] + 500 / p["cellY"]


def test_what_is_forbidden_is_hatched_up_to_the_row(show: Opener) -> None:
    page = show("novel", "view=head&query=1000&key=1000&pinned=1")
    page.press("z")
    seen = {tuple(page.colour(q, k)[:3]) for q, k in ((1000, 1004), (1002, 1005), (998, 1007))}
    light = {(240, 237, 230), (214, 208, 194)}  # --forbidden and its lines, and between them
    for colour in seen:
        assert min(sum(abs(a - b) for a, b in zip(colour, one, strict=True)) for one in light) < 60
    assert page.colour(1003, 1001)[:3] not in [list(x) for x in light]


def test_mean_and_largest_and_scales(show: Opener) -> None:
    page = show("novel", "view=head&query=1000&key=500&pinned=1")
    note = page.tab.locator(".legend .note")
    expect(note).to_contain_text("mean of 9 × 9 cells a pixel, of those that are allowed")
    expect(note).to_contain_text("one scale for all heads")
    before = page.colour(700, 300)
    page.press("m")
    expect(note).to_contain_text("largest of 9 × 9 cells a pixel")
    assert page.colour(700, 300) != before
    page.press("m")
    page.tab.locator("#scale").select_option("head")
    page.settle()
    expect(note).to_contain_text("each head’s own scale")
    page.tab.locator("#curve").select_option("linear")
    page.settle()
    assert page.tab.locator(".scale span").first.inner_text() == "weight 0"
    assert page.colour(700, 300) != before


# ── finding ──────────────────────────────────────────────────────────────────────────────────


def test_words_and_places_are_found(show: Opener) -> None:
    page = show("novel", "view=head")
    find = page.tab.locator("#find")
    find.fill("Lamp burned")
    expect(page.tab.locator("#found")).to_have_text("79 found")
    find.press("Enter")
    page.settle()
    assert page.chosen()[0] == NOVEL.index("lamp")
    find.press("Enter")
    page.settle()
    assert page.chosen()[0] == NOVEL.index("lamp") + 25
    find.press("Shift+Enter")
    page.settle()
    assert page.chosen()[0] == NOVEL.index("lamp")
    assert page.chosen()[1] == page.links()[0][0]
    find.fill("chapter78")
    find.press("Enter")
    page.settle()
    assert page.chosen()[0] == 1974
    find.fill("#1,234")
    find.press("Enter")
    page.settle()
    assert page.chosen()[0] == 1234
    find.fill("#9999")
    expect(page.tab.locator("#found")).to_have_text("none")
    find.fill("")
    expect(page.tab.locator("#found")).to_have_text("")


def test_two_texts_are_both_looked_through(show: Opener) -> None:
    page = show("long-cross", "view=head&query=3&key=30&pinned=1")
    assert page.fact("query") == "query3"
    assert page.fact("key") == ZH[30 % len(ZH)]
    expect(page.tab.get_by_role("button", name="Follow")).to_have_count(0)
    find = page.tab.locator("#find")
    find.fill("栩")
    expect(page.tab.locator("#found")).to_have_text("80 found")
    find.press("Enter")
    page.settle()
    assert page.chosen() == (3, ZH.index("栩"))
    find.fill("query30")
    find.press("Enter")
    page.settle()
    assert page.chosen()[0] == 30


# ── sequences, sizes, hostile text ───────────────────────────────────────────────────────────


def test_sequences_are_counted_from_their_own_first_token(show: Opener) -> None:
    page = show("long-batch", "view=head&sequence=1&query=200&key=150&pinned=1")
    assert page.chosen() == (70, 20)
    assert page.fact("query") == "s70"
    weights = page.made.whole(0, 1, 0)[0][200]
    assert [k + 130 for k, _ in page.links()] == np.argsort(-weights)[:5].tolist()
    expect(page.tab.locator(".legend")).to_contain_text("170 tokens")
    page.press("s")
    assert page.tab.locator("#sequence").input_value() == "2"
    assert page.tab.locator(".cell").is_hidden()
    page.press("z", "+", "ArrowDown", ".", "f", "m")
    page.press("s")
    assert page.fact("query") == "t299"


def test_a_short_text_is_cells(show: Opener) -> None:
    page = show("tiny", "view=head&query=6&key=2&pinned=1")
    weights = page.made.whole(0, 0, 0)[0]
    expect(page.tab.locator("#pixel-label")).to_be_hidden()
    assert number(page.fact("weight")) == pytest.approx(weights[6, 2], rel=5e-3)
    page.go("view=head&query=2&key=5&pinned=1")
    assert page.fact("mask") == "may not look (causal: it comes later)"


# ── for everybody ────────────────────────────────────────────────────────────────────────────


def test_what_a_long_text_looks_at_is_also_said(show: Opener) -> None:
    page = show("novel", "view=head&query=1234&key=0&pinned=1")
    page.press(".")
    key, weight = page.links()[0]
    shown = page.tab.locator(".looks .link:visible .value").first.inner_text()
    words = (
        f"layer 0 · head 0: query 1\u202f234 {NOVEL[1234]}, key {key:,} {NOVEL[key]}: "
        f"weight {shown}, may look: one of the row’s largest"
    ).replace(",", "\u202f", 0)
    said = page.tab.locator("#spoken")
    expect(said).to_contain_text(f"weight {shown}, may look: one of the row’s largest")
    expect(said).to_contain_text(words[: words.index(", key")])
    assert weight > 0
    label = page.tab.locator(".over").get_attribute("aria-label")
    assert label is not None
    assert label.startswith("Heatmap of layer 0 · head 0. query 1\u202f234")


# ── what short and long pages share ──────────────────────────────────────────────────────────────

BOTH = pytest.mark.parametrize("what", ["model", "novel"])


@BOTH
def test_back_and_forward_go_through_the_views(show: Opener, what: str) -> None:
    page = show(what)
    page.tab.locator('.tile[data-head="1"]').click()
    page.settle()
    page.press("4")
    visited = ["matrix", "head", "text"]
    for name in reversed(visited[:-1]):
        page.tab.go_back()
        page.settle()
        expect(page.tab.locator(f"#panel-{name}")).to_be_visible()
    for name in visited[1:]:
        page.tab.go_forward()
        page.settle()
        expect(page.tab.locator(f"#panel-{name}")).to_be_visible()
    assert page.tab.locator("#head").input_value() == "1"


@BOTH
def test_the_first_view_has_the_text_its_axes_and_a_legend(show: Opener, what: str) -> None:
    page = show(what)
    strip = page.tab.locator("#panel-matrix .sentence")
    expect(strip).to_contain_text("because it was too" if what == "model" else "the lamp burned")
    hint = page.tab.locator(".hint")
    expect(hint).to_contain_text("Rows are queries, which look; columns are keys")
    expect(hint).to_contain_text("click a head to open it")
    legend = page.tab.locator("#legend").bounding_box()
    tiles = page.tab.locator(".tiles").bounding_box()
    assert legend is not None
    assert tiles is not None
    assert legend["y"] < tiles["y"]
    assert "made up" in page.tab.title()
    assert ("The animal" if what == "model" else "the keeper of the") in page.tab.title()


@BOTH
def test_a_token_is_marked_in_every_head(show: Opener, what: str) -> None:
    page = show(what)
    token = page.tab.locator("#panel-matrix .sentence [role=option]").nth(3)
    place = int(token.get_attribute("data-at") or -1)
    token.hover()
    page.settle()
    marks = page.tab.locator(".thumb").evaluate_all(
        """(all) => all.map((thumb) => ['::before', '::after'].map((side) => {
            const style = getComputedStyle(thumb, side);
            const at = side === '::before' ? parseFloat(style.top) : parseFloat(style.left);
            return (at + 1) / (side === '::before' ? thumb.clientHeight : thumb.clientWidth);
        }))"""
    )
    share = (place + 0.5) / page.result.n_queries
    assert len(marks) == len(page.tab.locator(".tile").all())
    assert np.allclose(marks, share, atol=0.02)
    page.tab.mouse.move(1270, 790)
    page.settle()
    assert not page.tab.locator(".tiles.marked").count()


def test_heads_are_ranked_by_a_cell_and_the_ranking_is_a_link(show: Opener) -> None:
    page = show("model", "view=head&query=9&key=1&pinned=1")
    exact = page.result.attention[:, 0, :, 9, 1].ravel()
    order = np.argsort(-exact, kind="stable")
    names = page.tab.locator(".across .name").all_inner_texts()
    assert names == [f"layer {i // 4} · head {i % 4}" for i in order[:5]]
    values = page.tab.locator(".across .value").all_inner_texts()
    assert [number(text) for text in values] == [float(f"{exact[i]:.4g}") for i in order[:5]]
    page.tab.get_by_role("button", name="Rank all heads").click()
    page.settle()
    assert order_of(page) == list(order)
    expect(page.tab.locator("#measure option:checked")).to_have_text(
        "weight from “was” #9 to “animal” #1"
    )
    fragment = page.fragment()
    assert {"measure": "cell", "sort": "down", "query": "9", "key": "1"}.items() <= fragment.items()
    page.go("&".join(f"{name}={value}" for name, value in fragment.items()))
    assert order_of(page) == list(order)
    page.go("view=head&layer=0&head=0&query=9&key=1")
    expect(page.tab.locator(".across")).to_be_hidden()  # nothing is selected


def test_heads_of_a_long_text_are_ranked_by_a_cell(show: Opener) -> None:
    page = show("novel", "view=head&query=1234&key=0&pinned=1")
    key = page.links()[0][0]
    page.go(f"view=matrix&measure=cell&sort=down&query=1234&key={key}")
    weights = [page.made.whole(i // 3, 0, i % 3)[0][1234, key] for i in range(6)]
    assert order_of(page)[0] == int(np.argmax(weights))


def test_lines_and_text_of_a_long_text_are_those_around_the_chosen_token(show: Opener) -> None:
    page = show("novel", "view=text&query=900&key=0&threshold=0")
    shown = page.tab.locator("#panel-text [role=option]")
    expect(shown).to_have_count(700)
    expect(page.tab.locator("#queries-900")).to_have_attribute("aria-selected", "true")
    weights = page.made.whole(0, 0, 0)[0][900]
    listed = int(weights.argmax())
    expect(page.tab.locator(".looks .link:visible .at").first).to_have_text(f"#{listed}")
    page.press("3")
    expect(page.tab.locator(".column.queries [role=option]")).to_have_count(600)
    assert count_of_lines(page) > 0
    page.tab.locator("#line-queries-900").hover()
    page.settle()
    drawn = count_of_lines(page)
    assert 0 < drawn <= 3 * 5  # the five largest of each of three heads


def test_the_look_of_a_page_is_that_of_its_flags(show: Opener, tmp_path: Path) -> None:
    page = show("one")
    options = FigureOptions("magma", 0.25, True, curve="root", scale="head")
    write_page(page.result, tmp_path / "look.html", look=PageLook(options, "dark"))
    one = Shown(page.tab, tmp_path / "look.html", page.result, None, page.heard, page.requests)
    one.go("view=head&query=0&key=0")  # on a system that is light
    background = "() => getComputedStyle(document.documentElement).backgroundColor"
    assert one.tab.evaluate(background) == "rgb(15, 18, 23)"
    expect(one.tab.locator("#legend .scale")).to_contain_text("≥ 0.250")
    assert one.tab.locator("#curve").input_value() == "root"
    assert one.tab.locator("#scale").input_value() == "head"
    exact = one.result.attention[0, 0, 0]
    q, k = np.unravel_index(exact.argmax(), exact.shape)
    assert one.pixel(int(q), int(k))[:3] == [252, 253, 191]  # the end of magma
    with one.tab.expect_download() as download:
        one.tab.locator("#svg").click()
    svg = Path(download.value.path()).read_text(encoding="utf-8")
    assert f">{exact[q, k]:.2f}".replace(">0", ">") in svg  # numbers in smaller cells
    assert "#ffffff" in svg
    assert one.tab.evaluate(background) == "rgb(15, 18, 23)"  # as it was


def test_a_picture_has_no_cursor_and_the_heads_that_are_drawn_in_its_title(show: Opener) -> None:
    page = show("model", "view=head&layer=1&head=2&query=3&key=4&pinned=1", "dark")

    def svg() -> str:
        with page.tab.expect_download() as download:
            page.tab.locator("#svg").click()
        page.settle()
        return Path(download.value.path()).read_text(encoding="utf-8")

    found = svg()
    assert "layer 1 · head 2</text>" in found
    accents = ["#ffb257", "#b4470a", "rgb(255, 178, 87)", "rgb(180, 71, 10)"]
    assert not any(accent in found for accent in accents)
    page.press("3")
    assert "layer 1 · heads 0, 1, 2, 3</text>" in svg()


def test_a_printed_page_is_light_and_has_no_buttons(show: Opener) -> None:
    page = show("one", "view=head", "dark")
    page.tab.emulate_media(color_scheme="dark", media="print")
    page.settle()
    expect(page.tab.locator("nav")).to_be_hidden()
    expect(page.tab.locator("#png")).to_be_hidden()
    background = "() => getComputedStyle(document.documentElement).backgroundColor"
    assert page.tab.evaluate(background) == "rgb(252, 251, 248)"
    page.tab.emulate_media(media="screen")


def test_every_list_of_a_long_page_is_that_of_the_run(show: Opener) -> None:
    """The keys, and their weights rounded to three digits."""
    page = show("novel", "view=head&layer=1&head=1")
    rows = page.result.rows
    assert rows is not None
    for query in (0, 1, 2, 3, 5, 800, 1974):
        page.go(f"view=head&layer=1&head=1&query={query}&key=0&pinned=1")
        keys, weights = rows.top_keys[1, 0, 1, query], rows.top_weights[1, 0, 1, query]
        expected = [(int(k), float(f"{w:.3g}")) for k, w in zip(keys, weights, strict=True) if w]
        assert page.links() == expected
