"""One rank's process: reads the run folder's config, puts the parts together, trains, and says how it ended.

Exit status: 0 success, 1 failed or target not reached, 2 refused before the run, 130 and 143 stopped by a signal.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from configs.errors import UserError
from train.identity import Identity, read_identity
from train.startup import Ledger
from train.watchdog import die_with_parent

logger = logging.getLogger("train")

_END_S = 10
"""What a failing rank gets to end by itself; a collective that nobody joins any more could hold it for ever."""


class Stopped(BaseException):
    """SIGINT or SIGTERM arrived."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"stopped by {signal.Signals(number).name}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank; see the module for the exit status."""
    ledger = Ledger()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    parser = argparse.ArgumentParser(prog="python -m train", description="One rank of a run (see ./run.sh train).")
    parser.add_argument("run_folder", type=Path, help="folder that holds the run's config.yaml")
    folder: Path = parser.parse_args(arguments).run_folder
    faulthandler.enable()
    identity = read_identity(os.environ)
    _set_up_logging(identity)
    die_with_parent()

    with ledger.phase("import of the program"):
        from train.failure import is_second_hand, record_failure  # noqa: PLC0415 (signals are caught before any import)
        from train.session import run  # noqa: PLC0415

    try:
        return run(folder, identity, ledger)
    except UserError as error:
        if identity.local_rank == 0:
            sys.stderr.write(f"error: {error}\n")
        _end(2)
    except Stopped as stopped:
        record_failure(folder, identity, stopped)
        _end(128 + stopped.number)
    except Exception as error:  # The process boundary: nothing above could tell it better.
        if is_second_hand(error):
            logger.warning("ends, because another rank failed")
        else:
            logger.error("failed: %s", error, exc_info=logger.isEnabledFor(logging.DEBUG))
        record_failure(folder, identity, error)
        _end(1)


def _stop(number: int, _frame: FrameType | None) -> None:
    raise Stopped(number)


def _set_up_logging(identity: Identity) -> None:
    level = logging.INFO if identity.rank == 0 else logging.WARNING
    prefix = f"[rank {identity.rank} {identity.host}] " if identity.rank else ""
    logging.basicConfig(level=level, format=f"{prefix}%(message)s", stream=sys.stderr)


def _end(status: int) -> NoReturn:
    """Leave without a collective, without waiting for an engine that may never finish."""
    faulthandler.dump_traceback_later(_END_S, exit=True)
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
