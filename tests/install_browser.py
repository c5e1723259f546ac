"""Install a browser for the tests where none is found: `python tests/install_browser.py`.

Debian's own Chromium comes with the libraries that it needs, and takes root; without root or apt,
Playwright downloads its build of Chromium into the user's cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
"""Programs that the tests can start, the preferred one first."""

FROM_DEBIAN = (("apt-get", "update", "-qq"), ("apt-get", "install", "-y", "-qq", "chromium"))
FROM_PLAYWRIGHT = ((sys.executable, "-m", "playwright", "install", "chromium"),)


def find_browser() -> str | None:
    """The browser of this machine: one on the path, or the one that Playwright has downloaded."""
    on_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    return on_path or downloaded_browser()


def downloaded_browser() -> str | None:
    """The Chromium that `playwright install` has put into the cache, if it has."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


def commands(is_root: bool, has_apt: bool) -> tuple[tuple[str, ...], ...]:
    """What installs a browser here."""
    return FROM_DEBIAN if is_root and has_apt else FROM_PLAYWRIGHT


def main() -> None:
    """Install a browser, unless there is one. A command that fails ends the program."""
    if find_browser() is not None:
        return
    for command in commands(os.geteuid() == 0, shutil.which("apt-get") is not None):
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
