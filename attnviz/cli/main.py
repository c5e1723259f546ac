"""The program: its commands, and the one place that catches errors and sets the exit code."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
import threading
from io import TextIOWrapper
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from attnviz import __version__
from attnviz.cli import STOPPED
from attnviz.cli.commands import SETTINGS, Commands
from attnviz.cli.streams import close_output, is_unread
from attnviz.errors import LACKING, AttnvizError, printable

app = typer.Typer(
    name="attnviz",
    cls=Commands,
    help="See what multi-head attention does: heatmaps, shapes and numbers, from a shell.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=SETTINGS,
    rich_markup_mode="rich",
)

# What typer raises for a flag that cannot be read; the class itself has no public name.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]

NAMED_WRONGLY = (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.ENOENT, errno.ENOTDIR)
"""Failures of the system that a person's path brings about."""


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        python = ".".join(map(str, sys.version_info[:3]))
        typer.echo(f"attnviz {__version__}, torch {version('torch')}, Python {python}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print versions, end."),
    ] = False,
) -> None:
    pass


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the program and exit: 0 done, 1 the machine failed, 2 wrong input, 128 + a signal."""
    # a stream that was closed (`>&-`) is None: what is said to it goes nowhere
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115, PTH123 - open to the end
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a token that the encoding lacks is shown escaped
            stream.reconfigure(errors=LACKING)
    _answer(signal.SIGINT, signal.default_int_handler)
    for end in (signal.SIGTERM, signal.SIGHUP):
        _answer(end, _stop)
    sys.unraisablehook = _again
    code = call(arguments)
    _answer(signal.SIGINT, signal.SIG_DFL)  # all is done: Ctrl-C may end what Python still does
    gc.freeze()  # nothing to collect on the way out
    sys.exit(code)


def _answer(number: int, handler: Any) -> None:
    if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
        signal.signal(number, handler)


def call(arguments: list[str] | None = None) -> int:
    """Run the program and return its exit code."""
    os.environ["MPLBACKEND"] = "agg"  # a notebook's own, or a wrong one, would stop matplotlib
    code = 0
    try:
        command = typer.main.get_command(app)
        code = command.main(arguments, prog_name="attnviz", standalone_mode=False) or 0
        sys.stdout.flush()
        return _fail(STOPPED, code) if code == 130 else code
    except UsageError as error:
        where = getattr(getattr(error, "ctx", None), "command_path", "attnviz")
        message = error.format_message()  # type: ignore[attr-defined]
        return _fail(f"{message.rstrip('.')} (see {where} --help)" if message else "", 2)
    except AttnvizError as error:
        return _fail(str(error), error.exit_code)
    except (BrokenPipeError, SystemExit) as error:  # `attnviz run | head`
        if not is_unread(error):
            raise
        close_output()
        return code
    except Ended as end:
        return _fail(STOPPED, 128 + end.args[0])
    except (KeyboardInterrupt, typer.Abort):
        return _fail(STOPPED, 130)
    except MemoryError:
        return _fail("out of memory; give a shorter text, fewer heads or smaller sizes", 1)
    except OSError as error:
        place = printable(error.filename or "the system")
        code = 2 if error.errno in NAMED_WRONGLY else 1
        return _fail(f"{place}: {error.strerror or error}", code)
    except RuntimeError as error:  # torch's name for most failures; its text can run to many lines
        first = str(error).strip().splitlines() or [type(error).__name__]
        return _fail(first[0], 1)
    except Exception as error:
        if os.environ.get("ATTNVIZ_TRACEBACK"):
            raise
        kind = type(error).__name__
        hint = "a bug in attnviz; ATTNVIZ_TRACEBACK=1 shows where"
        return _fail(f"{kind}: {error} ({hint})", 1)


def _fail(message: str, code: int) -> int:
    if message:
        try:
            print(f"attnviz: {printable(message, limit=1000)}", file=sys.stderr)  # noqa: T201
        except OSError:  # nobody reads, or the disk is full
            close_output()
    return code


class Ended(BaseException):
    """A signal to end, by its number."""


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    """SIGTERM and SIGHUP end the program as Ctrl-C does: nothing is left half written."""
    raise Ended(number)


AGAIN = 0.2
"""Seconds after which a signal that was lost comes again: what lost it is over by then."""


def _again(lost: Any) -> None:
    """What is raised while an object is deleted goes nowhere; a signal's answer must not."""
    error = lost.exc_value
    if isinstance(error, KeyboardInterrupt | Ended):
        number = error.args[0] if isinstance(error, Ended) else signal.SIGINT
        later = threading.Timer(AGAIN, os.kill, (os.getpid(), number))
        later.daemon = True
        later.start()
    else:
        sys.__unraisablehook__(lost)
