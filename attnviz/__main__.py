"""`attnviz`, and `python -m attnviz`: what must happen before anything large is imported."""

from __future__ import annotations

import gc
import os
import signal

from attnviz.cli import STOPPED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn


def main() -> NoReturn:
    """Run the program and exit with its code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # it is ignored under nohup
        signal.signal(signal.SIGINT, _stop)
    # Importing torch makes half a million objects that live until the end. To look for garbage
    # among them after every 700, as Python does, costs a quarter of a short run.
    gc.set_threshold(100_000, 20, 20)

    from attnviz.cli.main import main as run

    run()


def _stop(_number: int, _frame: FrameType | None) -> NoReturn:
    """Ctrl-C while the command line is imported: nothing has been begun, so nothing is left."""
    os.write(2, f"attnviz: {STOPPED}\n".encode())
    os._exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
