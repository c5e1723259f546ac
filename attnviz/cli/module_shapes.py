"""The work of `attnviz shapes --module`: trace a module, print its ops and what looks wrong."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path

from attnviz.cli.shapes_flags import ModuleFlags
from attnviz.cli.streams import result
from attnviz.errors import ConfigError, printable
from attnviz.module_trace import ModuleError
from attnviz.render.console import make_console
from attnviz.render.shapes_report import module_trace_as_json, print_module_trace


def print_module(own: ModuleFlags, form: str, source: bool) -> None:
    """Trace `FILE.py:CLASS`. A module that fails is printed up to there, then its error raised."""
    assert own.module is not None
    file, colon, name = own.module.rpartition(":")
    if not (colon and file and name):
        raise ConfigError(f"--module {printable(own.module)}: FILE.py:CLASS is expected")
    if form not in ("table", "json"):
        raise ConfigError(f"--format {form} shows no module; use table or json")
    from attnviz.sources.from_module import trace_module  # imports torch

    error: ModuleError | None = None
    try:
        with redirect_stdout(sys.stderr):  # the module may print; standard output is the trace's
            trace = trace_module(
                Path(file), name, own.init or "", own.inputs_of_module or ["2,6,512"]
            )
    except ModuleError as failed:
        error, trace = failed, failed.trace
    if form == "json":
        result(json.dumps(module_trace_as_json(trace), indent=1))
    else:
        print_module_trace(trace, make_console(), source=source)
    if error is not None:
        raise error
