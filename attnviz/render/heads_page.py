"""The page of a corpus: layers × heads for any figure, and all heads in a table, in one file."""

from __future__ import annotations

import json
import re
from html import escape
from importlib.resources import files
from pathlib import Path

from attnviz.errors import printable
from attnviz.render.heads_files import report_as_json
from attnviz.render.heads_report import HeadReport, notable, summary
from attnviz.wording import plural


def write_page(report: HeadReport, path: Path, measure: str) -> None:
    """Write one HTML file that needs no other; it opens at `measure`.

    What others chose (names of files, labels) is text in it, whatever it looks like.
    """
    document = report_as_json(report)
    for large in ("offsets", "agreement", "alpha"):
        document.pop(large, None)
    data = json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    facts = report.facts
    said = [
        f"Means over {plural(facts.get('rows', 0), 'query row')} of "
        f"{plural(facts.get('documents', 0), 'document')} "
        f"({plural(facts.get('tokens', 0), 'token')}).",
        *summary(report),
    ]
    if facts.get("n_bad"):
        said.append(f"{plural(facts['n_bad'], 'document')} could not be measured.")
    sentences = notable(report)
    folder = files("attnviz.render") / "page_files"
    parts = {
        "TITLE": escape(printable(report.source, 200)),
        "SAID": _elements("p", said),
        "WORDS": f"<h2>In words</h2>\n<ul>{_elements('li', sentences)}</ul>" if sentences else "",
        "MEASURE": escape(measure),
        "SCRIPT": (folder / "heads.js").read_text(encoding="utf-8"),
        "DATA": data.replace("<", "\\u003c"),
    }
    page = (folder / "heads.html").read_text(encoding="utf-8")
    # all at once: what looks like the name of a part within another is text
    page = re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], page)
    path.write_text(page, encoding="utf-8", errors="backslashreplace")


def _elements(kind: str, lines: list[str]) -> str:
    return "".join(f"<{kind}>{escape(line)}</{kind}>" for line in lines)
