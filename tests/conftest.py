"""What all tests share: repeatable hypothesis runs, and small batches."""

from __future__ import annotations

import os

from hypothesis import settings

# A slow machine must not fail a test, so no deadline; in CI the same examples every time.
settings.register_profile("local", deadline=None, max_examples=50)
settings.register_profile("ci", deadline=None, max_examples=100, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")
