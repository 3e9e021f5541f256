"""The process that follows one run for one tracker: ``python -m logs.track RUN TRACKER``, started by the launcher.

It ends when its standard input does, which happens also if the launcher is killed.
"""

import select
import sys
from pathlib import Path

from configs.arguments import exit_status

_PAUSE_S = 1.0


def main() -> int:
    """Follow the run; return the exit status."""
    return exit_status(lambda: _follow(Path(sys.argv[1]), sys.argv[2]))


def _follow(run_folder: Path, name: str) -> int:
    from logs.track.follow import Sender, follow  # noqa: PLC0415 (what is slow comes after the arguments)
    from logs.track.trackers import open_tracker, require_installed  # noqa: PLC0415

    require_installed([name])
    sender = Sender(run_folder, name, open_tracker(name, run_folder))
    follow(run_folder, sender, _is_launcher_alive)
    # The launcher says how the attempt ended, or is gone.
    ends = {"success": True, "failure": False}
    sender.close(is_success=ends.get(sys.stdin.readline().strip()))
    return 0


def _is_launcher_alive() -> bool:
    """Wait for a second; return whether the launcher has said nothing yet."""
    return not select.select([sys.stdin], [], [], _PAUSE_S)[0]


if __name__ == "__main__":
    sys.exit(main())
