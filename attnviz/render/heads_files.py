"""The figures of heads for other programs: JSON, CSV, Parquet."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

from attnviz.errors import ConfigError
from attnviz.measures.agreement import clustered
from attnviz.measures.head_classes import FORM_THRESHOLDS, THRESHOLDS
from attnviz.render.heads_report import HeadReport, sentence

FORMAT, VERSION = "attnviz.stats", 1


def rows_of(report: HeadReport) -> list[dict[str, Any]]:
    """A row a head: layer, head, class, form, and every figure; None for one that is not there."""
    rows = []
    for head in report.heads:
        found = report.classes[head]
        rows.append(
            {
                "layer": report.layer_numbers[head[0]],
                "head": head[1],
                "class": found.name,
                "form": report.forms.get(head),
                **{name: _number(values[head]) for name, values in report.figures.items()},
            }
        )
    return rows


def report_as_json(report: HeadReport) -> dict[str, Any]:
    """One JSON document, version 1; its schema is `stats.schema.json`, beside this."""
    from attnviz import __version__

    document: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "attnviz": __version__,
        "source": report.source,
        "layers": list(report.layer_numbers),
        "n_heads": report.n_heads,
        **report.facts,
        "figures": {name: report.meaning(name) for name in report.figures},
        "classes": THRESHOLDS,
        "forms": FORM_THRESHOLDS,
        "sink_share": report.sink_share(),
        "heads": [
            {**row, "sentence": sentence(report, head)}
            for head, row in zip(report.heads, rows_of(report), strict=True)
        ],
    }
    if report.alpha is not None:
        document["alpha"] = _nested(report.alpha)
    if report.offsets is not None and report.offset_shares is not None:
        met = np.isfinite(report.offset_shares).any((0, 1))  # no text has keys farther away
        document["offsets"] = {
            "offsets": report.offsets[met].tolist(),
            "shares": _nested(report.offset_shares[..., met].round(9)),
        }
    if report.divergences is not None:
        order, tree = clustered(report.divergences)
        document["agreement"] = {
            "documents": report.compared,
            "bits": _nested(report.divergences),
            "order": order,
            "linkage": tree.tolist(),
        }
    if report.gold_offsets:
        document["gold_offsets"] = {
            label: {"offset": offset, "accuracy": accuracy}
            for label, (offset, accuracy) in report.gold_offsets.items()
        }
    if report.probe is not None:
        document["probe"] = dict(report.probe)
    return document


def write_json(report: HeadReport, path: Path) -> None:
    """Write the JSON document."""
    text = json.dumps(report_as_json(report), ensure_ascii=True, indent=1, allow_nan=False)
    path.write_text(text + "\n", encoding="ascii")


def write_csv(report: HeadReport, path: Path) -> None:
    """Write a row a head, with a header; an empty cell where there is no figure."""
    rows = rows_of(report)
    with path.open("w", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def write_parquet(report: HeadReport, path: Path) -> None:
    """Write a row a head as Parquet. Raises `ConfigError` without pyarrow."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise ConfigError("-o .parquet needs pyarrow: pip install 'attnviz[corpus]'") from None
    parquet.write_table(pa.Table.from_pylist(rows_of(report)), path)


def _number(value: float) -> float | None:
    return None if not np.isfinite(value) else float(value)


def _nested(values: Any) -> Any:
    """Nested lists; what is no number is null."""
    if values.ndim == 1:
        return [_number(value) for value in values]
    return [_nested(part) for part in values]
