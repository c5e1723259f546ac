"""The page of a corpus: layers × heads for any figure, and all heads in a table, in one file."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from pathlib import Path

from attnviz.errors import printable
from attnviz.render.heads_files import report_as_json
from attnviz.render.heads_report import HeadReport, count, notable, summary


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
        f"Means over {facts.get('rows', 0):,} query rows of "
        f"{count(facts.get('documents', 0), 'document')} ({facts.get('tokens', 0):,} tokens).",
        *summary(report),
    ]
    if facts.get("n_bad"):
        said.append(f"{count(facts['n_bad'], 'document')} could not be measured.")
    folder = files("attnviz.render") / "page_files"
    page = (folder / "heads.html").read_text(encoding="utf-8")
    parts = {
        "TITLE": escape(printable(report.source, 200)),
        "SAID": "".join(f"<p>{escape(line)}</p>" for line in said),
        "NOTABLE": "".join(f"<li>{escape(line)}</li>" for line in notable(report)),
        "MEASURE": escape(measure),
        "SCRIPT": (folder / "heads.js").read_text(encoding="utf-8"),
        "DATA": data.replace("<", "\\u003c"),
    }
    for name, part in parts.items():  # the data last: nothing in it is a name any more
        page = page.replace("{{" + name + "}}", part)
    path.write_text(page, encoding="utf-8", errors="backslashreplace")
