"""What all tests share: repeatable hypothesis runs, and an empty folder to stand in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# A slow machine must not fail a test, so no deadline; in CI the same examples every time.
settings.register_profile("local", deadline=None, max_examples=50)
settings.register_profile("ci", deadline=None, max_examples=100, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is the current one, so that messages name its files without a path."""
    monkeypatch.chdir(tmp_path)
    return Path()
