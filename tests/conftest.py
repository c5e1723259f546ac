"""What all tests share: repeatable hypothesis runs, an empty folder to stand in, a browser."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from install_browser import find_browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# NumPy's threads spin while they wait for each other: beside other workers, tests take minutes.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Tests that are run in the background would hand on that these are ignored, and none could end
# the programs that they start.
for _ended_by in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_ended_by) is signal.SIG_IGN:
        signal.signal(_ended_by, signal.SIG_DFL)

# A slow machine must not fail a test, so no deadline; in CI the same examples every time.
settings.register_profile("local", deadline=None, max_examples=50)
settings.register_profile("ci", deadline=None, max_examples=100, derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "local"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is the current one, so that messages name its files without a path."""
    monkeypatch.chdir(tmp_path)
    return Path()


FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    found = find_browser()
    if found is None:
        pytest.fail("there is no browser; python tests/install_browser.py installs one")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def tab(browser: Browser) -> Page:
    """One tab for all tests: a new one each time would take most of their time."""
    one = browser.new_page()
    one.set_default_timeout(5000)
    return one
