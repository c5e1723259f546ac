"""The interactive page: its size, the time to write it, to open it, and to hover over it.

    python tests/benchmarks/bench_page.py

144 heads of 512 tokens, in three kinds, since what compresses well decides much. Writing is a ratio
to zlib at level 6 on the same weights as uint8, in CPU time (medians). Opening is from the start of
the navigation to the first head on the canvas; hovering is the work of one frame, from its first
callback until it is painted. The bars: 16 MB, 3 times, one second, 16 ms.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, sync_playwright

from attnviz.render.page import write_page
from attnviz.result import Attention

LAYERS, HEADS, TOKENS = 12, 12, 512
KINDS = ("noise", "mixed", "causal")

HOVER = """async () => {
    const over = document.querySelector('.over');
    const box = over.getBoundingClientRect();
    const plot = document.querySelector('.plot').dataset;
    const taken = [];
    for (let i = 0; i < 200; i++) {
        let start = 0;
        requestAnimationFrame(() => { start = performance.now(); });
        over.dispatchEvent(new PointerEvent('pointermove', {
            clientX: box.x + Number(plot.left) + (i * 37) % 480,
            clientY: box.y + Number(plot.top) + (i * 53) % 480,
        }));
        await new Promise((done) => requestAnimationFrame(() => {
            const after = new MessageChannel();  // its message comes when the frame is painted
            after.port1.onmessage = done;
            after.port2.postMessage(0);
        }));
        taken.push(performance.now() - start);
    }
    return taken;
}"""


def result(kind: str) -> Attention:
    """Softmax of noise; or of noise of several strengths, near diagonals and with sinks."""
    rng = np.random.default_rng(0)
    away = np.arange(TOKENS)[:, None] - np.arange(TOKENS)[None, :]
    allowed = np.ones((LAYERS, 1, 1, TOKENS, TOKENS), dtype=bool)
    if kind == "causal":
        allowed &= away >= 0
    weights = np.empty((LAYERS, 1, HEADS, TOKENS, TOKENS), dtype=np.float32)
    for layer in range(LAYERS):
        for head in range(HEADS):
            scores = rng.standard_normal((TOKENS, TOKENS), dtype=np.float32)
            if kind != "noise":
                scores *= (0.5, 1, 2, 3)[head % 4]
                scores -= np.abs(away - head % 3) / (4 + 8 * layer) if head % 2 else 0
                scores[:, 0] += 8 if head % 3 == 0 else 0
            scores = np.where(allowed[layer, 0, 0], scores, -np.inf)
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            weights[layer, 0, head] = scores / scores.sum(-1, keepdims=True)
    names = (tuple(f"token{i}" for i in range(TOKENS)),)
    lengths = np.array([TOKENS])
    masks = ("causal",) if kind == "causal" else ()
    return Attention(
        weights,
        allowed,
        query_tokens=names,
        key_tokens=names,
        lengths=lengths,
        key_lengths=lengths,
        masks=masks,
    )


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return statistics.median(taken)


def first_head(browser: Browser, path: Path, fragment: str) -> float:
    """Seconds from the start of the navigation until the first head is drawn."""
    taken = []
    for _ in range(3):
        tab = browser.new_page(viewport={"width": 1280, "height": 800})
        tab.goto(path.as_uri() + fragment)
        mark = "performance.getEntriesByName('attnviz:first-head')[0]?.startTime"
        tab.wait_for_function(f"() => {mark} !== undefined")
        taken.append(float(tab.evaluate(mark)) / 1000)
        tab.close()
    return statistics.median(taken)


def hovering(browser: Browser, path: Path) -> tuple[float, float]:
    """Milliseconds of work in a frame while hovering: the median, and the 95th percentile."""
    tab = browser.new_page(viewport={"width": 1280, "height": 800})
    tab.goto(path.as_uri() + "#view=head&layer=3&head=2")
    tab.wait_for_function("() => performance.getEntriesByName('attnviz:first-head').length")
    taken = sorted(tab.evaluate(HOVER))
    tab.close()
    return taken[len(taken) // 2], taken[len(taken) * 95 // 100]


def main() -> None:
    chromium = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        for kind in KINDS:
            given = result(kind)
            path = Path(folder) / f"{kind}.html"
            plain = np.rint(given.attention * 255).astype(np.uint8).tobytes()
            yardstick = seconds(lambda plain=plain: zlib.compress(plain, 6))  # type: ignore[misc]
            notices: list[str] = []

            def write(given=given, path=path, notices=notices) -> None:  # type: ignore[no-untyped-def]
                notices[:] = write_page(given, path)

            taken = seconds(write)
            print(f"{kind}: {path.stat().st_size / 1e6:.2f} MB (bar 16)")
            print(f"  written in {taken:.2f} s, {taken / yardstick:.2f} × zlib level 6 (bar 3)")
            print(f"  {notices[0] if notices else 'two bytes a cell'}")
            for fragment in ("", "#view=head"):
                at = first_head(browser, path, fragment)
                print(f"  first head of {fragment or 'the matrix'} after {at:.2f} s (bar 1)")
            middle, high = hovering(browser, path)
            print(f"  hovering: {middle:.1f} ms a frame, 95 % under {high:.1f} ms (bar 16)")
        browser.close()


if __name__ == "__main__":
    main()
