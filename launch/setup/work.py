"""What a stage of set-up is, and how it runs its commands, pip above all."""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from launch.setup.child import Command, Stopwatch, run_logged
from launch.setup.layout import Environment

EXTRAS = {"test": "tools for tests and checks", "tensorboard": "library that writes TensorBoard's files"}
"""What ``./run.sh setup --extra`` adds: name of an extra of pyproject.toml -> words."""


@dataclass(frozen=True)
class Work:
    """What a stage works on.

    Attributes:
        environment: The environment that the stage changes.
        watch: The stage's line on the terminal.
        lock: Descriptor of the set-up lock, which the stage's commands inherit.
        checks_files: Whether pip takes only files whose digests the lock file names.
        begun: Name of a stage -> the command that works for that stage since an earlier one.
    """

    environment: Environment
    watch: Stopwatch
    lock: int
    checks_files: bool = True
    begun: dict[str, Command] = field(default_factory=dict)

    def run(self, command: Sequence[str | Path], stage: str, variables: Mapping[str, str] | None = None) -> None:
        """Run a command, with its output in the stage's log.

        Args:
            command: Program and arguments.
            stage: Name of the log.
            variables: The command's whole set of variables. If None, those of `command_variables`.

        Raises:
            StageError: The command failed.
        """
        run_logged(
            command,
            log=self.environment.log(stage),
            environment=variables or command_variables(self.environment),
            watch=self.watch,
            lock=self.lock,
        )

    def begin(self, command: Sequence[str | Path], stage: str, log: str, variables: Mapping[str, str]) -> None:
        """Start a command for a stage that comes later. Its output begins a new log; the old log is kept beside it."""
        file = self.environment.log(log)
        if file.exists():
            file.replace(self.environment.log(f"{log}-before"))
        self.begun[stage] = Command(command, log=file, environment=variables, lock=self.lock)
        self.begun[stage].start()


@dataclass(frozen=True)
class Stage:
    """One step of set-up.

    Attributes:
        name: The stage's key in ``setup.json``.
        title: What a person reads while the stage runs.
        digest: Changes when the stage must be done again.
        needed_bytes: Disk space that the stage takes, downloads included.
        run: Does the stage.
        begin: Starts the stage's longest command (`Work.begin`), which then runs beside the stages in between.
        after: Name of the stage after which ``begin`` is called; empty if that is never.
    """

    name: str
    title: str
    digest: str
    needed_bytes: int
    run: Callable[[Work], None]
    begin: Callable[[Work], None] = lambda _: None
    after: str = ""


def pip(work: Work, words: Sequence[str], stage: str, variables: Mapping[str, str] | None = None) -> None:
    """Run the environment's pip, after removing what an interrupted pip left half installed.

    Args:
        work: What the stage works on.
        words: pip's arguments.
        stage: Name of the log, which begins anew.
        variables: As of `Work.run`.

    Raises:
        StageError: pip failed.
    """
    environment = work.environment
    remove_half_installed(environment.site_packages)
    shutil.rmtree(environment.temporary, ignore_errors=True)
    environment.temporary.mkdir()
    environment.log(stage).unlink(missing_ok=True)
    try:
        work.run([environment.python, "-m", "pip", "--no-input", *words, "--progress-bar", "off"], stage, variables)
    finally:
        shutil.rmtree(environment.temporary, ignore_errors=True)


def remove_half_installed(folder: Path) -> None:
    """Remove from ``folder`` the metadata of packages that pip did not finish and would take for installed.

    pip writes the file INSTALLER after a package's own files, RECORD among them, are there. A folder named ``~...`` is
    one that pip was about to remove.
    """
    for path in folder.iterdir():
        is_unfinished = path.suffix == ".dist-info" and not (path / "INSTALLER").exists()
        if path.is_dir() and (is_unfinished or path.name.startswith("~")):
            shutil.rmtree(path)


def command_variables(environment: Environment) -> dict[str, str]:
    """Return the variables of a stage's commands: the user's, without those that lead Python or pip elsewhere.

    Temporary files go into the environment's folder: /tmp may be small or noexec, and a killed build leaves them.
    """
    left_out = {
        "PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "VIRTUAL_ENV",
        "PYTHONDONTWRITEBYTECODE",  # packages are compiled when a stage imports them
    }  # fmt: skip
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {
        **kept,
        "PATH": f"{environment.folder / 'bin'}{os.pathsep}{kept.get('PATH', os.defpath)}",
        "TMPDIR": str(environment.temporary),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PYTHONUNBUFFERED": "1",
    }
