"""Fonts, glyph by glyph: DejaVu Sans, which matplotlib ships, then what the machine has.

A font is looked for only when a text has a character that DejaVu Sans lacks: first in the packages
of the extra `attnviz[fonts]`, then among the system's fonts.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

BASE = "DejaVu Sans"
PACKAGES = ("manimgx_fonts", "noto_cjk_sans_otc")
"""What `attnviz[fonts]` installs: Noto Sans for many scripts and Noto Emoji; Noto Sans CJK."""

MISSING = "□"


class Fonts:
    """Which fonts draw which text, for the texts of one picture; `notices` says what none has."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._needed = {c for text in set(texts) for c in text if not _is_latin(c)}
        lacking = {c for c in self._needed if not _has(BASE, c) and not _is_ignorable(c)}
        self._chosen: list[str] = []
        self._lacking = frozenset(lacking)
        for name in _candidates(lacking) if lacking else ():
            covered = {c for c in lacking if _has(name, c)}
            if covered:
                self._chosen.append(name)
                lacking -= covered
            if not lacking:
                break
        self.missing = frozenset(lacking)

    @property
    def notices(self) -> list[str]:
        """At most one line: the characters that no font has, and what to install."""
        if not self.missing:
            return []
        some = sorted(self.missing)[:8]
        more = f" and {len(self.missing) - 8} more" if len(self.missing) > 8 else ""
        names = ", ".join(f"{c} (U+{ord(c):04X})" for c in some)
        return [
            f"no font on this machine has {names}{more}; drawn as {MISSING}; "
            "pip install 'attnviz[fonts]' brings fonts"
        ]

    def families(self, text: str) -> tuple[str, ...]:
        """Font names in the order to try for `text`; one that has all of it comes first.

        A joiner or a mark taken from another font than its letter would break the cluster.
        """
        if not self._lacking.intersection(text):
            return (BASE,)
        rest = [c for c in text if not _is_ignorable(c)]
        best = max(self._chosen, key=lambda name: sum(_has(name, c) for c in rest), default=BASE)
        return tuple(dict.fromkeys([best, BASE, *self._chosen]))

    def drawable(self, text: str) -> str:
        """`text` with a box for each character that no font has."""
        if not self.missing.intersection(text):
            return text
        return "".join(MISSING if c in self.missing else c for c in text)


def _candidates(lacking: set[str]) -> Iterator[str]:
    """Names of fonts worth a look, the packages' first; each is known to matplotlib by then."""
    from matplotlib.font_manager import fontManager

    region = _region(lacking)
    names = {
        font.name
        for font in fontManager.ttflist
        if font.style == "normal" and font.name not in ("Last Resort High-Efficiency", BASE)
    }

    def preference(name: str) -> tuple[bool, bool, str]:
        elsewhere = name.rpartition(" ")[2] in {"JP", "KR", "SC", "TC", "HK"} - {region}
        return (not name.startswith("Noto Sans") or "Mono" in name, elsewhere, name)

    for path in package_fonts():
        if any(_glyphs(path, c) for c in lacking):
            yield from sorted(_register(path), key=preference)
    yield from sorted(names, key=preference)


def package_fonts() -> Sequence[Path]:
    """Upright font files of the extra's packages, as far as they are installed."""
    found: list[Path] = []
    for package in PACKAGES:
        spec = find_spec(package)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            files = sorted(p for p in Path(place).iterdir() if p.suffix in (".ttf", ".otf", ".ttc"))
            found += [p for p in files if "Italic" not in p.name]
    return found


@lru_cache(65536)
def _glyphs(path: Path, c: str) -> bool:
    return bool(_open(path).get_char_index(ord(c)))


@lru_cache(64)
def _open(path: Path) -> Any:
    from matplotlib.ft2font import FT2Font

    return FT2Font(path)


@lru_cache(256)
def _register(path: Path) -> tuple[str, ...]:
    """Make a font file known to matplotlib; the names of its faces."""
    from matplotlib.font_manager import fontManager

    before = len(fontManager.ttflist)
    fontManager.addfont(path)
    return tuple(dict.fromkeys(font.name for font in fontManager.ttflist[before:]))


def _region(text: Iterable[str]) -> str:
    """Whose forms of Han characters to take: Japanese beside kana, Korean beside hangul."""
    names = [unicodedata.name(c, "") for c in text]
    if any(name.startswith(("HIRAGANA", "KATAKANA")) for name in names):
        return "JP"
    return "KR" if any(name.startswith("HANGUL") for name in names) else "SC"


@lru_cache(1024)
def _face(name: str) -> Any:
    """The font that matplotlib takes for `name`, or None when it cannot draw outlines."""
    from matplotlib.font_manager import FontProperties, fontManager
    from matplotlib.ft2font import FaceFlags, FT2Font

    try:
        path = fontManager.findfont(FontProperties(family=[name]), fallback_to_default=False)
        face = FT2Font(path.path, face_index=path.face_index)
    except (OSError, RuntimeError, ValueError):
        return None
    bitmaps = FaceFlags.COLOR in face.face_flags and name != "Segoe UI Emoji"
    return face if face.scalable and not bitmaps else None


@lru_cache(65536)
def _has(name: str, c: str) -> bool:
    face = _face(name)
    return face is not None and face.get_char_index(ord(c)) != 0


def _is_latin(c: str) -> bool:
    return c < "\u0250"  # DejaVu Sans has all of these that leave a mark


def _is_ignorable(c: str) -> bool:
    """Joiners, variation selectors and tags: they need no glyph of their own."""
    return c in "\u200c\u200d" or "\ufe00" <= c <= "\ufe0f" or "\U000e0000" <= c <= "\U000e01ef"
