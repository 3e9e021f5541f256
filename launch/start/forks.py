"""Starts the process that forks the ranks of a rehearsal, which also serves the ranks that are started again."""

import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from configs.load import ROOT
from configs.programs import Program, command_of
from launch.start.inherited import without_ranks
from launch.start.local import LEAVE_S


@contextmanager
def forked(folder: Path, command: Sequence[str], variables: Mapping[str, str]) -> Iterator[list[str]]:
    """Run the process that forks ranks during the block; its end kills ranks that are left.

    Args:
        folder: The run folder.
        command: The command of a rank that is not forked.
        variables: The variables of a rank on top of this process's own.

    Yields:
        The command of a rank, whose last words are ``command``.
    """
    name = f"forks-{secrets.token_hex(16)}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen(socket.SOMAXCONN)  # Ranks that come while the process imports wait for it.
        process = subprocess.Popen(
            command_of(Program.FORKS, str(folder.absolute()), str(listener.fileno())),
            env={**without_ranks(), **variables},
            pass_fds=[listener.fileno()],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
    assert process.stdin is not None
    try:
        yield [sys.executable, "-I", "-S", str(ROOT / "launch/start/forked_rank.py"), name, *command]
    finally:
        process.stdin.close()
        with suppress(subprocess.TimeoutExpired):  # A rank that cannot be killed ends when it goes on.
            process.wait(LEAVE_S)
