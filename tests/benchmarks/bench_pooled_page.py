"""The page of a long text: its size, the time to write it, to open it, and to zoom into it.

    python tests/benchmarks/bench_pooled_page.py

One head, and eight, of 131,072 tokens pooled to 1024 × 1024, causal: made of noise of several
strengths, since what compresses well decides much. Writing is a ratio to zlib at level 6 on the
same bytes, in CPU time. Opening is from the start of the navigation to the first map
on the canvas. Zooming and dragging is the work of one frame, from its first callback until it is
painted, in windows of 1280 × 800 with one and with two dots a pixel; the ratio beside it is to the
same frame with an empty map. Other work on the machine shows in these times, and not in the CPU
time of the page's main thread, a mean over all frames. The bars: 24 MB and the page's own files,
2 seconds, 16 ms.
"""

from __future__ import annotations

import re
import shutil
import statistics
import tempfile
import time
import zlib
from base64 import b64decode
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, sync_playwright

from attnviz.render.page import LIMIT, write_page
from attnviz.result import ROW_STATISTICS, Attention, Pixels, RowStatistics

TOKENS, PIXELS, TOP = 131_072, 1024, 8

ZOOM = """async () => {
    const over = document.querySelector('.over');
    const box = over.getBoundingClientRect();
    const plot = document.querySelector('.plot').dataset;
    const at = {
        clientX: box.x + Number(plot.left) + 180, clientY: box.y + Number(plot.top) + 200,
    };
    const frame = (act) => new Promise((done) => {
        let start = 0;
        requestAnimationFrame(() => { start = performance.now(); });
        act();
        requestAnimationFrame(() => {
            const after = new MessageChannel();  // its message comes when the frame is painted
            after.port1.onmessage = () => done(performance.now() - start);
            after.port2.postMessage(0);
        });
    });
    const wheel = (deltaY) => frame(() => over.dispatchEvent(
        new WheelEvent('wheel', { ...at, deltaY, bubbles: true, cancelable: true })));
    const taken = { in: [], drag: [], out: [] };
    for (let i = 0; i < 120; i++) taken.in.push(await wheel(-18));
    const point = (type, x, y) => new PointerEvent(type, {
        clientX: at.clientX + x, clientY: at.clientY + y, buttons: 1, pointerId: 1,
    });
    over.setPointerCapture = () => {};
    over.dispatchEvent(point('pointerdown', 0, 0));
    for (let i = 0; i < 80; i++) {
        taken.drag.push(await frame(() => over.dispatchEvent(point('pointermove', 2 * i, i))));
    }
    over.dispatchEvent(point('pointerup', 160, 80));
    for (let i = 0; i < 120; i++) taken.out.push(await wheel(18));
    const empty = [];
    const canvas = document.createElement('canvas');
    [canvas.width, canvas.height] = [box.width * devicePixelRatio, box.height * devicePixelRatio];
    over.parentNode.append(canvas);
    const pen = canvas.getContext('2d');
    for (let i = 0; i < 80; i++) {
        empty.push(await frame(() => pen.clearRect(0, 0, canvas.width, canvas.height)));
    }
    canvas.remove();
    return { ...taken, empty };
}"""


def long_run(heads: int) -> Attention:
    """Numbers as a long run has them, without running it: noise on a map that fades with length."""
    rng = np.random.default_rng(0)
    cells = TOKENS // PIXELS
    rows = np.arange(PIXELS)
    allowed = np.where(rows[:, None] > rows, cells**2, 0)
    allowed[rows, rows] = cells * (cells + 1) // 2
    mean = np.empty((1, 1, heads, PIXELS, PIXELS), np.float32)
    for head in range(heads):
        noise = np.exp(rng.normal(size=(PIXELS, PIXELS)) * (0.1, 0.3, 1, 2)[head % 4])
        noise *= (allowed > 0) / (rows[:, None] * cells + 1)
        mean[0, 0, head] = noise
    shape = (1, 1, heads, TOKENS)
    seen = np.arange(1, TOKENS + 1)
    keys = (rng.random((*shape, TOP)) * seen[:, None]).astype(np.int64)
    weights = (
        np.sort(rng.random((*shape, TOP), np.float32) ** 3)[..., ::-1] / np.sqrt(seen)[:, None]
    )
    words = [f"word{i}" for i in range(20_000)]
    tokens = (tuple(words[i] for i in rng.zipf(1.3, TOKENS) % len(words)),)
    numbers = {name: rng.random(shape, np.float32) for name in ROW_STATISTICS}
    length = np.array([TOKENS])
    return Attention(
        mean,
        allowed[None, None, None] > 0,
        pixels=Pixels((cells, cells), mean * 40, allowed[None, None, None]),
        rows=RowStatistics(
            64,
            {**numbers, "largest_key": keys[..., 0]},
            keys,
            weights.astype(np.float32),
        ),
        query_tokens=tokens,
        key_tokens=tokens,
        lengths=length,
        key_lengths=length,
        masks=("causal",),
        source="noise",
    )


def yardstick(path: Path) -> float:
    """CPU seconds of zlib on all that the page holds."""
    found = re.findall(r'id="d\d+">([A-Za-z0-9+/=]*)<', path.read_text(encoding="utf-8"))
    blocks = [zlib.decompress(b64decode(text)) for text in found]
    start = time.process_time()
    for block in blocks:
        zlib.compress(block, 6)
    return time.process_time() - start


def opening(browser: Browser, path: Path, fragment: str) -> float:
    """Seconds from the start of the navigation until the first map is drawn."""
    taken = []
    for _ in range(3):
        tab = browser.new_page(viewport={"width": 1280, "height": 800})
        tab.goto(path.as_uri() + fragment)
        mark = "performance.getEntriesByName('attnviz:first-head')[0]?.startTime"
        tab.wait_for_function(f"() => {mark} !== undefined")
        taken.append(float(tab.evaluate(mark)) / 1000)
        tab.close()
    return statistics.median(taken)


def zooming(browser: Browser, path: Path, dots: int) -> None:
    tab = browser.new_page(viewport={"width": 1280, "height": 800}, device_scale_factor=dots)
    tab.goto(path.as_uri() + "#view=head")
    tab.wait_for_function("() => performance.getEntriesByName('attnviz:first-head').length")
    tab.wait_for_function("() => document.querySelector('main').ariaBusy === 'false'")
    session = tab.context.new_cdp_session(tab)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def cpu() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))

    start = cpu()
    frames = tab.evaluate(ZOOM)
    spent = (cpu() - start) * 1000 / sum(len(frames[name]) for name in ("in", "drag", "out"))
    tab.close()
    print(f"  {dots} dots a pixel: {spent:.1f} ms of the page's own CPU time a frame (bar 16)")
    empty = statistics.median(frames.pop("empty"))
    for name, taken in frames.items():
        middle, high = statistics.median(taken), sorted(taken)[len(taken) * 95 // 100]
        print(
            f"  {name}, {dots} dots a pixel: {middle:.1f} ms a frame, 95 % under {high:.1f} ms "
            f"(bar 16); {middle / empty:.1f} × an empty one"
        )


def main() -> None:
    chromium = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        for heads in (1, 8):
            run = long_run(heads)
            path = Path(folder) / f"{heads}.html"
            start = time.process_time()
            notices = write_page(run, path)
            taken = time.process_time() - start
            print(f"heads {heads}: {path.stat().st_size / 1e6:.1f} MB (bar {LIMIT / 1e6:.0f})")
            print(f"  written in {taken:.1f} s, {taken / yardstick(path):.1f} × zlib level 6")
            print(f"  {notices[0] if notices else 'nothing left out'}")
            for fragment in ("", "#view=head&query=90000&key=5"):
                at = opening(browser, path, fragment)
                print(f"  first map of {fragment or 'the start'} after {at:.2f} s (bar 2)")
            for dots in (1, 2):
                zooming(browser, path, dots)
        browser.close()


if __name__ == "__main__":
    main()
