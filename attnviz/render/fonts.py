"""Fonts, glyph by glyph: DejaVu Sans, which matplotlib ships, then what the machine has.

A font is looked for only when a text has a character that DejaVu Sans lacks: first in the packages
of the extra `attnviz[fonts]`, then among the system's fonts.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

BASE = "DejaVu Sans"
PACKAGES = ("manimgx_fonts", "noto_cjk_sans_otc")
"""What `attnviz[fonts]` installs: Noto Sans for many scripts and Noto Emoji; Noto Sans CJK."""

NO_TEXT = (
    "Last Resort High-Efficiency",
    *("cmb10", "cmex10", "cmmi10", "cmr10", "cmss10", "cmsy10", "cmti10", "cmtt10"),
    *("STIXNonUnicode", "STIXSizeOneSym", "STIXSizeTwoSym", "STIXSizeThreeSym"),
    *("STIXSizeFourSym", "STIXSizeFiveSym"),
)
"""Fonts that matplotlib ships for formulas, with signs in places of their own, and boxes."""

MISSING = "□"
INSTALL = "pip install 'attnviz[fonts]'"


class Fonts:
    """Which fonts draw which text, for all texts of one picture.

    `missing` are the characters that no font has, and `notes` says so, in one line at most.
    """

    def __init__(self, texts: Collection[str]) -> None:
        needed = frozenset(
            c for text in set(texts) for c in text if c >= "\u0250" and not _is_ignorable(c)
        )  # DejaVu Sans has all before U+0250 that leave a mark
        self._beyond_base = needed - _covered(BASE, needed)
        self._covers: dict[str, frozenset[str]] = {}
        lacking = set(self._beyond_base)
        for name in _candidates(lacking):
            if covers := _covered(name, needed):
                self._covers[name] = covers
                lacking -= covers
        self.missing = frozenset(lacking)
        every = {c for text in set(texts) for c in text}
        self._shaped = frozenset(c for c in every if c in self._beyond_base or not _stands_alone(c))

    @property
    def notes(self) -> list[str]:
        if not self.missing:
            return []
        some = sorted(self.missing)[:8]
        names = ", ".join(f"{c} (U+{ord(c):04X})" for c in some)
        more = f" and {len(self.missing) - 8} more" if len(self.missing) > 8 else ""
        return [f"no font here has {names}{more}: drawn as {MISSING}; {INSTALL} brings fonts"]

    def families(self, text: str) -> tuple[str, ...]:
        """Names of fonts in the order to try for `text`; the one that has most of it comes first.

        A joiner or a mark taken from another font than its letter would break the cluster.
        """
        beyond = self._beyond_base.intersection(text)
        if not beyond:
            return (BASE,)
        best = sorted(self._covers, key=lambda name: -len(self._covers[name].intersection(text)))
        return (*best[:1], BASE, *best[1:])

    def is_simple(self, text: str) -> bool:
        """Whether DejaVu Sans draws `text` letter by letter, with nothing to shape or reorder."""
        return not self._shaped.intersection(text)

    def drawable(self, text: str) -> str:
        """`text` with a box for each character that no font has."""
        if not self.missing.intersection(text):
            return text
        return "".join(MISSING if c in self.missing else c for c in text)


def package_fonts() -> Sequence[Path]:
    """Upright font files of the extra's packages, as far as they are installed."""
    found: list[Path] = []
    for package in PACKAGES:
        spec = find_spec(package)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            files = sorted(p for p in Path(place).iterdir() if p.suffix in (".ttf", ".otf", ".ttc"))
            found += [p for p in files if "Italic" not in p.name]
    return found


def system_fonts() -> Sequence[str]:
    """Names of the upright fonts of regular weight on this machine.

    matplotlib keeps a list from its first run; fonts installed since are added to it here.
    """
    from matplotlib.font_manager import findSystemFonts, fontManager

    known = {Path(font.fname) for font in fontManager.ttflist}
    for path in sorted({Path(found) for found in findSystemFonts()} - known):
        _register(path)
    return sorted(
        {
            font.name
            for font in fontManager.ttflist
            if (font.style, font.stretch, font.weight) == ("normal", "normal", 400)
        }
        - {BASE, *NO_TEXT}
    )


def _candidates(lacking: set[str]) -> Iterator[str]:
    """Names of fonts to look at, until nothing is lacking; the caller takes out what it found."""
    region = _region(lacking)

    def preference(name: str) -> tuple[bool, bool]:
        elsewhere = name.rpartition(" ")[2] in {"JP", "KR", "SC", "TC", "HK"} - {region}
        return (not name.startswith("Noto Sans") or "Mono" in name, elsewhere)

    def helpful() -> Iterator[str]:
        for path in package_fonts():
            if _glyphs(path, 0, frozenset(lacking)):
                yield from sorted(_register(path), key=preference)
        yield from sorted(system_fonts(), key=preference)

    if not lacking:
        return
    for name in helpful():
        if _covered(name, frozenset(lacking)):
            yield name
        if not lacking:
            return


@lru_cache(256)
def _register(path: Path) -> tuple[str, ...]:
    """Make a font file known to matplotlib; the names of its faces."""
    from matplotlib.font_manager import fontManager

    before = len(fontManager.ttflist)
    try:
        fontManager.addfont(path)
    except (OSError, RuntimeError, ValueError):  # broken, or of a kind that FreeType cannot read
        return ()
    return tuple(dict.fromkeys(font.name for font in fontManager.ttflist[before:]))


def _region(text: Iterable[str]) -> str:
    """Whose forms of Han characters to take: Japanese beside kana, Korean beside hangul."""
    names = [unicodedata.name(c, "") for c in text]
    if any(name.startswith(("HIRAGANA", "KATAKANA")) for name in names):
        return "JP"
    return "KR" if any(name.startswith("HANGUL") for name in names) else "SC"


def _covered(name: str, chars: frozenset[str]) -> frozenset[str]:
    """Which of `chars` the font that matplotlib takes for `name` can draw."""
    from matplotlib.font_manager import FontProperties, fontManager

    if not chars:
        return chars
    found = fontManager.findfont(FontProperties(family=[name]), fallback_to_default=False)
    return _glyphs(Path(found.path), found.face_index, chars)


@lru_cache(4096)
def _glyphs(path: Path, face_index: int, chars: frozenset[str]) -> frozenset[str]:
    """Which of `chars` a font file has as outlines; none where it is broken or all bitmaps."""
    from matplotlib.ft2font import FaceFlags, FT2Font

    try:
        face = FT2Font(path, face_index=face_index)
    except (OSError, RuntimeError):
        return frozenset()
    if not face.scalable or FaceFlags.COLOR in face.face_flags:
        return frozenset()
    return frozenset(c for c in chars if face.get_char_index(ord(c)))


def _stands_alone(c: str) -> bool:
    """Latin, Greek and Cyrillic letters, punctuation, arrows and shapes: no marks, no joining."""
    ranges = ((0x20, 0x2FF), (0x370, 0x482), (0x48A, 0x52F), (0x1E00, 0x1FFF), (0x2010, 0x2BFF))
    return any(first <= ord(c) <= last for first, last in ranges)


def _is_ignorable(c: str) -> bool:
    """Joiners, variation selectors and tags: they need no glyph of their own."""
    return c in "\u200c\u200d" or "\ufe00" <= c <= "\ufe0f" or "\U000e0000" <= c <= "\U000e01ef"
