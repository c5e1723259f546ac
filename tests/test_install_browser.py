"""Which browser is installed where, and that none is where there is one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import install_browser
import pytest


@pytest.mark.parametrize(
    ("is_root", "has_apt", "program"),
    [(True, True, "apt-get"), (False, True, "playwright"), (True, False, "playwright")],
)
def test_debian_has_its_own_for_root(is_root: bool, has_apt: bool, program: str) -> None:
    made = install_browser.commands(is_root, has_apt)
    assert all(program in command for command in made)
    assert "chromium" in made[-1]


@pytest.mark.parametrize("name", install_browser.BROWSERS)
def test_a_browser_that_is_there_is_left(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install_browser.shutil, "which", {name: f"/usr/bin/{name}"}.get)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("something is installed"))
    assert install_browser.find_browser() == f"/usr/bin/{name}"
    install_browser.main()


def test_a_browser_that_playwright_downloaded_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(install_browser.shutil, "which", lambda _: None)
    monkeypatch.setattr(install_browser, "downloaded_browser", lambda: str(tmp_path))
    assert install_browser.find_browser() == str(tmp_path)


def test_what_installs_one_is_run_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(install_browser, "find_browser", lambda: None)
    monkeypatch.setattr(install_browser.os, "geteuid", lambda: 0)
    monkeypatch.setattr(install_browser.shutil, "which", lambda name: f"/usr/bin/{name}")

    def run(command: tuple[str, ...], check: bool) -> None:
        assert check
        ran.append(command)

    monkeypatch.setattr(subprocess, "run", run)
    install_browser.main()
    assert ran == [*install_browser.FROM_DEBIAN]
