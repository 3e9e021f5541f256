"""The process that follows one run for one tracker: ``python -m logs.track RUN TRACKER``, started by the launcher.

It ends when its standard input does, which happens also if the launcher is killed.
"""

import select
import sys
from contextlib import suppress
from pathlib import Path

from configs.arguments import exit_status
from configs.errors import UserError

_PAUSE_S = 1.0


def _follow(run_folder: Path, name: str) -> int:
    from logs.folder import RunFolder  # noqa: PLC0415
    from logs.track.follow import Sender, follow  # noqa: PLC0415 (what is slow comes after the arguments)
    from logs.track.trackers import open_tracker, require_installed  # noqa: PLC0415

    require_installed([name])
    sender = Sender(run_folder, name, open_tracker(name, run_folder))
    follow(run_folder, sender, lambda: not select.select([sys.stdin], [], [], _PAUSE_S)[0])
    status = None
    with suppress(UserError):  # A run that was killed has no summary yet.
        status = RunFolder(run_folder).summary().status
    sender.close(None if status is None else status == "success")
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(lambda: _follow(Path(sys.argv[1]), sys.argv[2])))
