"""The process of one rank: it reads the config in the run folder, trains, and reports how the run ended.

Exit status: 0 success (`configs.errors.EARLY_STATUS` where the parent asks for it), 1 failed or target not reached, 2
refused before the run, 75 told to stop (the same command resumes the run), 130 interrupted.
"""

import argparse
import faulthandler
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from configs.errors import END_VARIABLE, REFUSED_STATUS, STOPPED_STATUS, UserError
from configs.outputs import guard_outputs
from train.rank.identity import Identity, read_identity
from train.rank.signals import RunStopped, Stopped, StopSignals
from train.rank.startup import Ledger
from train.rank.watchdog import die_with_parent, end_within

logger = logging.getLogger("train")

_END_S = 10
"""Time for a failing rank to end by itself; a collective that other ranks have left would block it for ever."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank; the module docstring lists the exit statuses."""
    ledger = Ledger()
    parser = argparse.ArgumentParser(prog="python -m train", description="One rank of a run (see ./run.sh train).")
    parser.add_argument("run_folder", type=Path, help="folder that holds the run's config.yaml")
    folder: Path = parser.parse_args(arguments).run_folder
    faulthandler.enable()
    identity = read_identity(os.environ)
    signals = StopSignals()
    try:
        _set_up_logging(identity)
        die_with_parent()
        with signals.heeded():
            with ledger.phase("import of the program"):
                from train.session import run  # noqa: PLC0415 (the signal handlers must be in place before any long import)
            status = run(folder, identity, ledger, signals)
        signals.rest()
        return status or int(os.environ.get(END_VARIABLE, "0"))
    except UserError as error:
        if signals.waits_for_step:  # The run had begun, so this is a failure of the run: a full disk, for example.
            _fail(folder, identity, error)
        # Launchers return a status of their own, so the launcher of this program reads in the run folder who refused.
        is_told = _record(folder, identity, error, REFUSED_STATUS)
        if identity.local_rank == 0 and not is_told:
            sys.stderr.write(f"error: {error}\n")
        _end(REFUSED_STATUS)
    except RunStopped as stopped:
        if identity.rank == 0:
            _record(folder, identity, stopped, STOPPED_STATUS)
        _end(STOPPED_STATUS)
    except Stopped as stopped:
        _record(folder, identity, stopped, stopped.exit_status)
        _end(stopped.exit_status)
    except Exception as error:  # noqa: BLE001 (the process boundary: nothing above could tell it better)
        _fail(folder, identity, error)


def _fail(folder: Path, identity: Identity, error: Exception) -> NoReturn:
    from train.rank.failure import is_second_hand, one_line  # noqa: PLC0415 (as above)

    if is_second_hand(error):
        logger.warning("ends, because another rank failed")
    else:
        logger.error("failed: %s", one_line(error), exc_info=logger.isEnabledFor(logging.DEBUG))
    _record(folder, identity, error, 1)
    _end(1)


def _record(folder: Path, identity: Identity, error: BaseException, status: int) -> bool:
    from train.rank.failure import record_failure  # noqa: PLC0415 (as above)

    return record_failure(folder, identity, error, status)


def _set_up_logging(identity: Identity) -> None:
    level = logging.INFO if identity.rank == 0 else logging.WARNING
    prefix = f"[rank {identity.rank} {identity.host}] " if identity.rank else ""
    logging.basicConfig(level=level, format=f"{prefix}%(message)s", stream=sys.stderr)


def _end(status: int) -> NoReturn:
    """End the process without a collective and without waiting for an engine that may never finish."""
    end_within(_END_S)
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    guard_outputs()
    sys.exit(main())
