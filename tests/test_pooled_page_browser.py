"""The page of a long run in a real browser: zoom, links, words, against the whole map's numbers.

Needs Chromium on the path (on Debian: apt install chromium); without it these tests fail.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect
from pooled_runs import Made, made, numbered

from attnviz.full_resolution import windows_kept
from attnviz.render import pooled_page
from attnviz.render.pooled_page import RowPlan, write_pooled_page

SENTENCES = (
    "the keeper of the old lighthouse said that nobody had come up the stairs for years "
    "and that the lamp burned for no ship"
)
WORDS = tuple(SENTENCES.split(" "))
NOVEL = tuple(w for i in range(79) for w in (*WORDS, f"chapter{i}"))
ZH = tuple("昔者莊周夢為胡蝶栩栩然胡蝶也")
HOSTILE = (
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
COMMAND = "attnviz run --file book.txt -o page.html </script><b>"


def nan_in_a_pixel() -> Made:
    run = made([numbered(60)], heads=1, pixels=20)
    mean = run.run.mean.copy()
    mean[0, 0, 0, 15, 2] = np.nan
    return Made(replace(run.run, mean=mean), run.layers)


RUNS: dict[str, Callable[[], Made]] = {
    "novel": lambda: made([NOVEL], layers=2, heads=3, pixels=237, trained=False),
    "kept": lambda: made([numbered(700)], heads=1, pixels=100, keep=True),
    "cross": lambda: made([numbered(31, "query")], [ZH * 40], pixels=140, rules=()),
    "batch": lambda: made([numbered(300), numbered(170, "s"), ()], pixels=60, pad_side="left"),
    "tiny": lambda: made([numbered(7)], pixels=64),
    "hostile": lambda: made(
        [HOSTILE * 31], pixels=100, source=HOSTILE[0], config={HOSTILE[1]: HOSTILE[2]}
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
    made: Made
    heard: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def go(self, fragment: str) -> None:
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

    def plot(self) -> dict[str, float]:
        data = self.tab.locator(".plot").evaluate("(plot) => ({ ...plot.dataset })")
        return {name: float(value) for name, value in data.items()}

    def cell(self, q: int, k: int) -> tuple[float, float]:
        """Where the middle of a cell is on the screen."""
        box = self.tab.locator(".plot").bounding_box()
        assert box is not None
        p = self.plot()
        x = box["x"] + p["left"] + (k + 0.5 - p["key"]) * p["cellX"]
        return x, box["y"] + p["top"] + (q + 0.5 - p["query"]) * p["cellY"]

    def click_cell(self, q: int, k: int) -> None:
        self.tab.mouse.click(*self.cell(q, k))
        self.settle()

    def chosen(self) -> tuple[int, int]:
        """The query and the key of the card, as they are counted there."""
        found = self.tab.locator(".cell .at").all_inner_texts()
        query, key = (int(re.sub(r"\D", "", text)) for text in found)
        return query, key

    def links(self) -> list[tuple[int, float]]:
        rows = self.tab.locator(".link:visible")
        places = [int(re.sub(r"\D", "", x)) for x in rows.locator(".at").all_inner_texts()]
        return list(zip(places, map(number, rows.locator(".value").all_inner_texts()), strict=True))

    def fragment(self) -> dict[str, str]:
        self.tab.wait_for_timeout(500)  # the address is written when things have come to rest
        parts = self.tab.url.partition("#")[2]
        return dict(part.split("=") for part in parts.split("&"))

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


def number(text: str) -> float:
    return float(text.replace("−", "-").replace("<", "").strip())


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Made]]:
    folder = tmp_path_factory.mktemp("long")
    found = {}
    for name, build in RUNS.items():
        run = build()
        write_pooled_page(
            run.run, folder / f"{name}.html", command=COMMAND, window=windows_kept(run.run)
        )
        found[name] = (folder / f"{name}.html", run)
    return found


Opener = Callable[..., Shown]


@pytest.fixture
def show(tab: Page, files: dict[str, tuple[Path, Made]]) -> Iterator[Opener]:
    """Open one of the runs above at a fragment. Nothing may go wrong unseen."""
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

    def open_page(what: str, fragment: str = "", theme: Any = "light", **viewport: int) -> Shown:
        path, run = files[what]
        tab.set_viewport_size({"width": 1280, "height": 800, **viewport})  # type: ignore[typeddict-item]
        tab.emulate_media(color_scheme=theme)
        tab.mouse.move(0, 0)
        one = Shown(tab, path, run, heard, requests)
        one.go(fragment)
        return one

    yield open_page
    for event, listener in listeners.items():
        tab.remove_listener(event, listener)
    # these tests read pixels back, and Chromium remarks on it
    assert [message for message in heard if "willReadFrequently" not in message] == []
    assert {url.split(":")[0] for url in requests} <= {"file", "about", "blob"}


# ── the page as a whole ──────────────────────────────────────────────────────────────────────


def test_it_opens_from_disk_with_all_heads(show: Opener) -> None:
    page = show("novel")
    expect(page.tab.locator(".tile")).to_have_count(6)
    expect(page.tab.locator("#failure")).to_be_hidden()
    expect(page.tab.locator("#untrained")).to_be_visible()
    assert page.tab.evaluate("performance.getEntriesByName('attnviz:all-heads').length") == 1
    expect(page.tab.locator(".legend")).to_contain_text(
        "1 975 tokens, exact".replace(" ", "\u202f", 1)
    )


def test_one_head_opens_as_a_map(show: Opener) -> None:
    page = show("kept")
    expect(page.tab.locator("#panel-map")).to_be_visible()
    assert page.chosen() == (699, 0)


def test_views_switch_by_tab_and_by_key(show: Opener) -> None:
    page = show("novel")
    names = ["matrix", "map", "trace"]
    for digit, name in enumerate(names, 1):
        page.press(str(digit))
        visible = [n for n in names if page.tab.locator(f"#panel-{n}").is_visible()]
        assert visible == [name]
    page.tab.locator("#tab-map").click()
    page.settle()
    assert page.tab.locator("#panel-map").is_visible()
    page.press("ArrowRight")
    expect(page.tab.locator("#panel-trace")).to_contain_text(COMMAND)
    expect(page.tab.locator("#panel-trace")).to_contain_text("a pixel is 9 × 9 cells")


def test_the_matrix_opens_a_head(show: Opener) -> None:
    page = show("novel")
    page.tab.locator('.tile[data-head="4"]').click()
    page.settle()
    assert page.fragment()["layer"] == "1"
    assert page.fragment()["head"] == "1"
    assert page.tab.title() == "layer 1 · head 1 · attnviz"
    page.press("]")
    assert page.tab.title() == "layer 1 · head 2 · attnviz"
    page.press("{")
    assert page.tab.title() == "layer 0 · head 2 · attnviz"


def test_a_link_opens_the_same_place(show: Opener) -> None:
    page = show("novel", "view=map&layer=1&head=2&query=900&key=700&pinned=1")
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
def test_a_wrong_link_is_taken_as_far_as_it_is_right(show: Opener, place: str) -> None:
    page = show("novel", f"view=map&query=900&key=99999&head=77&pixel=x&place={place}")
    assert page.chosen()[0] == 900
    p = page.plot()
    assert 0 <= p["key"] <= 1975
    assert 0 < p["cellX"] <= 56


def test_without_its_tools_a_browser_is_told(
    browser: Browser, files: dict[str, tuple[Path, Made]]
) -> None:
    tab = browser.new_page()
    tab.add_init_script("delete globalThis.DecompressionStream")
    tab.goto(files["tiny"][0].as_uri())
    expect(tab.locator("#failure")).to_contain_text("this browser is too old")
    tab.close()


def test_the_modules_mean_the_same_unjoined(
    browser: Browser, files: dict[str, tuple[Path, Made]], tmp_path: Path
) -> None:
    source = Path(pooled_page.__file__).parent / "page_files"
    shutil.copytree(source, tmp_path / "site")
    text = files["kept"][0].read_text(encoding="utf-8")
    text = re.sub(r"<meta http-equiv=[^>]*>", "", text)
    start, end = text.index('<script type="module">'), text.rindex("</script>")
    text = text[:start] + '<script type="module" src="long_main.js">' + text[end:]
    (tmp_path / "site" / "index.html").write_text(text, encoding="utf-8")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = partial(Quiet, directory=tmp_path / "site")
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    tab = browser.new_page()
    try:
        tab.goto(f"http://127.0.0.1:{server.server_port}/index.html#view=map&query=20&key=3")
        expect(tab.locator('[data-fact="query"]')).to_have_text("t20")
    finally:
        tab.close()
        server.shutdown()
        thread.join()
        server.server_close()


# ── numbers ──────────────────────────────────────────────────────────────────────────────────


def test_a_row_lists_its_largest_keys_exactly(show: Opener) -> None:
    page = show("novel", "view=map&layer=1&head=2&query=1234&key=0&pinned=1")
    weights = page.made.whole(1, 0, 2)[0][1234]
    found = page.links()
    order = np.argsort(-weights, kind="stable")[:5]
    assert [key for key, _ in found] == order.tolist()
    for (_, shown), exact in zip(found, weights[order], strict=True):
        assert shown == pytest.approx(exact, rel=5.1e-3)
    names = page.tab.locator(".link:visible .name").all_inner_texts()
    assert names == [NOVEL[k] for k in order]


def test_links_go_to_the_cell_and_along_the_text(show: Opener) -> None:
    page = show("novel", "view=map&query=1234&key=0&pinned=1")
    page.press("z")
    third = page.links()[2]
    page.tab.locator(".link:visible").nth(2).click()
    page.settle()
    assert page.chosen() == (1234, third[0])
    assert number(page.fact("weight")) == third[1]
    p = page.plot()
    assert p["key"] <= third[0]
    assert page.tab.locator('.link[aria-current="true"] .value').inner_text() == page.fact("weight")
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
    page = show("novel", "view=map&layer=0&head=1&query=777&key=3&pinned=1")
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
    monkeypatch.setattr(pooled_page, "_row_plans", lambda _: [RowPlan(5, 1, 1)] * 2)
    path = page.path.with_name("small.html")
    write_pooled_page(small, path)
    one = Shown(page.tab, path, page.made, page.heard, page.requests)
    for query, is_tiny in ((5, True), (6, False)):
        one.go(f"view=map&query={query}&key=0&pinned=1")
        text = one.tab.locator('[data-row="first"]').inner_text()
        assert text.startswith("≤ ") == is_tiny, text


def test_verdicts_of_cells(show: Opener) -> None:
    page = show("novel", "view=map&query=1000&key=0&pinned=1")
    weights = page.made.whole(0, 0, 0)[0]
    top = page.links()
    assert page.fact("weight") == f"< {page.tab.locator('.link:visible .value').last.inner_text()}"
    assert page.fact("mask") == "not among the row’s 5 largest"
    assert weights[1000, 0] < top[-1][1]
    mean, largest = weights[999:1008, 0:9].mean(), weights[999:1008, 0:9].max()
    found = re.fullmatch(r"mean (\S+), largest (\S+) of 81 cells", page.fact("pixel"))
    assert found is not None
    assert number(found[1]) == pytest.approx(mean, rel=0.08)
    assert number(found[2]) == pytest.approx(largest, rel=0.08)
    page.go("view=map&query=1000&key=1001&pinned=1")  # in a pixel that is partly forbidden
    assert page.fact("mask") == "may not look: forbidden by the masks (causal)"
    assert re.search(r"of 45 allowed of 81 cells|45 allowed of 81 cells", page.fact("pixel"))
    page.go("view=map&query=10&key=900&pinned=1")
    assert page.fact("pixel") == "all of its cells are forbidden"
    page.go("view=map&query=2&key=1&pinned=1")  # three keys: all of them are told
    assert number(page.fact("weight")) == pytest.approx(weights[2, 1], rel=5.1e-3)


def test_a_mask_that_is_not_known_cell_by_cell_is_not_made_up(show: Opener) -> None:
    page = show("segments", "view=map&query=60&key=58&pinned=1")
    allowed = page.made.whole(0, 0, 0)[1]
    assert allowed[60].sum() == 6
    page.go("view=map&query=57&key=54&pinned=1")
    told = {k for k, _ in page.links()}
    assert told == set(np.flatnonzero(allowed[57]))
    assert page.fact("mask") == "exactly 0, or forbidden"
    page.go("view=map&query=60&key=61&pinned=1")
    assert page.fact("mask") == "not among the row’s 5 largest, or forbidden"


def test_cells_at_full_resolution(show: Opener) -> None:
    page = show("kept", "view=map&query=500&key=321&pinned=1")
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
    page.go(f"view=map&query=499&key={heavy}&pinned=1")
    page.press("z")
    strong = page.colour(500, int(heavy))
    page.go(f"view=map&query=499&key={light}&pinned=1")
    page.press("z")
    weak = page.colour(500, int(light))
    assert sum(strong[:3]) < sum(weak[:3])


def test_pixels_that_are_no_number_are_told_apart(show: Opener) -> None:
    page = show("broken", "view=map&query=46&key=7&pinned=1")
    expect(page.tab.locator(".legend")).to_contain_text("not a number")
    assert page.fact("mask") in ("the weight is not a number", "one of the row’s largest")
    assert page.colour(46, 6)[:3] == [0xD8, 0x1B, 0x60]


# ── zoom ─────────────────────────────────────────────────────────────────────────────────────


def test_zooming_takes_finer_levels_until_tokens_are_named(show: Opener) -> None:
    page = show("novel", "view=map&query=1500&key=1000&pinned=1")
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
    page = show("novel", "view=map")
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
    page = show("novel", "view=map&query=1500&key=1000&pinned=1")
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
    assert page.plot()["cellX"] == pytest.approx(min(56, 4 * after["cellX"]))


def test_fingers_zoom_and_tap(browser: Browser, files: dict[str, tuple[Path, Made]]) -> None:
    context = browser.new_context(has_touch=True, viewport={"width": 390, "height": 800})
    tab = context.new_page()
    tab.goto(files["novel"][0].as_uri() + "#view=map")
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
    page = show("novel", "view=map&query=1000&key=500&pinned=1")
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
    page.go("view=map&query=0&key=0&pinned=1")
    page.press("ArrowUp", "ArrowLeft")
    assert page.chosen() == (0, 0)


def test_the_overview_shows_where_one_is_and_goes_there(show: Opener) -> None:
    page = show("novel", "view=map&query=1500&key=1000&pinned=1")
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
    page = show("novel", "view=map&query=1000&key=1000&pinned=1")
    page.press("z")
    seen = {tuple(page.colour(q, k)[:3]) for q, k in ((1000, 1004), (1002, 1005), (998, 1007))}
    light = {(240, 237, 230), (214, 208, 194)}  # --forbidden and its lines, and between them
    for colour in seen:
        assert min(sum(abs(a - b) for a, b in zip(colour, one, strict=True)) for one in light) < 60
    assert page.colour(1003, 1001)[:3] not in [list(x) for x in light]


def test_mean_and_largest_and_scales(show: Opener) -> None:
    page = show("novel", "view=map&query=1000&key=500&pinned=1")
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
    assert page.tab.locator(".scale span").first.inner_text() == "0"
    assert page.colour(700, 300) != before


# ── finding ──────────────────────────────────────────────────────────────────────────────────


def test_words_and_places_are_found(show: Opener) -> None:
    page = show("novel", "view=map")
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
    page = show("cross", "view=map&query=3&key=30&pinned=1")
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
    page = show("batch", "view=map&sequence=1&query=200&key=150&pinned=1")
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
    page = show("tiny", "view=map&query=6&key=2&pinned=1")
    weights = page.made.whole(0, 0, 0)[0]
    expect(page.tab.locator(".legend")).to_contain_text("a pixel is one cell")
    assert page.fact("pixel") == "one cell"
    shown = page.fact("weight")
    assert number(shown) == pytest.approx(weights[6, 2], rel=0.07)
    page.go("view=map&query=2&key=5&pinned=1")
    assert page.fact("mask") == "may not look: forbidden by the masks (causal)"


@pytest.mark.parametrize("view", ["matrix", "map", "trace"])
def test_a_hostile_token_is_text(show: Opener, view: str) -> None:
    page = show("hostile", f"view={view}&query=300&key=201&pinned=1")
    page.press("z", "Shift+ArrowDown", "Shift+ArrowRight", ".", "f")
    for kind in ("#png", "#svg"):
        with page.tab.expect_download() as download:
            page.tab.locator(kind).click()
        assert download.value.path().stat().st_size > 500
    assert page.tab.locator("img, b:not(.blind, .strip b), main script").count() == 0
    body = page.tab.locator("body").inner_text()
    assert "\u202e" not in body
    assert "\u2066" not in body
    if view == "map":
        around = page.tab.locator(".around").first.inner_text()
        assert "<img␣src=x␣onerror=alert(1)>" in around or "</script>" in around


# ── for everybody ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("view", ["matrix", "map", "trace"])
def test_no_accessibility_rule_is_broken(show: Opener, view: str, theme: str) -> None:
    page = show("novel", f"view={view}&query=900&key=300&pinned=1", theme)
    page.press("+", "+")
    found = Axe().run(page.tab)
    assert found.response["violations"] == [], found.generate_report()


def test_no_accessibility_rule_is_broken_in_help(show: Opener) -> None:
    page = show("kept", "view=map")
    page.press("?")
    expect(page.tab.locator("#help")).to_be_visible()
    expect(page.tab.locator("#help")).to_contain_text("next largest weight")
    assert Axe().run(page.tab).response["violations"] == []
    page.press("Escape")


@pytest.mark.parametrize("view", ["matrix", "map", "trace"])
@pytest.mark.parametrize("run", ["novel", "cross", "hostile", "batch"])
def test_nothing_is_wider_than_a_phone(show: Opener, run: str, view: str) -> None:
    page = show(run, f"view={view}", width=390)
    page.press("z")
    assert page.tab.evaluate("document.documentElement.scrollWidth") <= 390


def test_what_is_looked_at_is_also_said(show: Opener) -> None:
    page = show("novel", "view=map&query=1234&key=0&pinned=1")
    page.press(".")
    key, weight = page.links()[0]
    shown = page.tab.locator(".link:visible .value").first.inner_text()
    words = (
        f"layer 0 · head 0: query 1\u202f234 {NOVEL[1234]}, key {key:,} {NOVEL[key]}: "
        f"weight {shown}, one of the row’s largest"
    ).replace(",", "\u202f", 0)
    said = page.tab.locator("#spoken")
    expect(said).to_contain_text(f"weight {shown}, one of the row’s largest")
    expect(said).to_contain_text(words[: words.index(", key")])
    assert weight > 0
    label = page.tab.locator(".over").get_attribute("aria-label")
    assert label is not None
    assert label.startswith("Map of layer 0 · head 0. query 1\u202f234")


def test_resizing_keeps_the_map_in_the_window(show: Opener) -> None:
    page = show("novel", "view=map")
    page.tab.set_viewport_size({"width": 800, "height": 700})
    page.tab.wait_for_timeout(200)
    page.settle()
    box = page.tab.locator(".over").bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= 800
