"""What a stage of set-up is, what it works on, and how it runs its commands, pip above all."""

import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from launch.setup.child import Command
from launch.setup.layout import Environment, Kind
from launch.setup.pins import Pin, closure, write_requirements
from launch.setup.state import remove_folder

GB = 10**9

_LEADING = {
    "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_DRY_RUN",
    "PYTHONDONTWRITEBYTECODE",  # packages are compiled when a stage imports them
}  # fmt: skip
"""Variables of the user that lead Python or pip elsewhere, which the commands of set-up do not get."""


@dataclass(frozen=True)
class Work:
    """What a stage works on.

    Attributes:
        environment: The environment that the stage changes.
        kind: What the environment is for.
        lock: Descriptor of the set-up lock, which the stage's commands inherit.
        checks_files: Whether pip takes only files whose digests the lock file names.
        pending: Names of the stages that were not done when set-up began.
        wheels: The folder from which pip takes every file. If empty, pip asks its indexes.
        begun: Name of a stage -> the command that works for that stage since an earlier one.
    """

    environment: Environment
    kind: Kind
    lock: int
    checks_files: bool
    pending: Collection[str] = ()
    wheels: str = ""
    begun: dict[str, Command] = field(default_factory=dict)

    def run(self, words: Sequence[str | Path], log: str, variables: Mapping[str, str] | None = None) -> None:
        """Run a command to its end, with its output in a log.

        Args:
            words: Program and arguments.
            log: Name of the log.
            variables: All variables of the command. If None, those of `variables`.

        Raises:
            StageError: The command failed.
        """
        given = self.variables() if variables is None else variables
        command = Command(words, log=self.environment.log(log), environment=given, lock=self.lock)
        try:
            command.wait()
        finally:
            command.stop()

    def pip_install(self, words: Sequence[str | Path], log: str) -> None:
        """Run the environment's ``pip install``, after removing what an interrupted pip left half installed."""
        for path in self.environment.site_packages.iterdir():
            # pip writes INSTALLER last, after a package's own files; it renames what it is about to remove to "~...".
            is_unfinished = path.suffix == ".dist-info" and not (path / "INSTALLER").exists()
            if path.is_dir() and (is_unfinished or path.name.startswith("~")):
                shutil.rmtree(path)
        # A pip.conf may lead pip elsewhere by these options; pip takes an empty prefix for the folder in which it runs.
        here = ["--no-user", "--target=", f"--prefix={self.environment.folder}", "--root=/"]
        self.pip("install", [*here, "--no-compile", *words], log)

    def install(self, names: Collection[str], log: str) -> None:
        """Install packages with all that they need, as the lock file of the main engine pins them.

        Packages that the lock file does not have are left out.
        """
        self.pip_install(self.pinned(closure(self.kind.lock, names)), log)

    def pip(self, verb: str, words: Sequence[str | Path], log: str) -> None:
        """Run the environment's pip, whose log begins anew.

        Raises:
            StageError: pip failed.
        """
        remove_folder(self._temporary)
        self._temporary.mkdir()
        self.environment.log(log).unlink(missing_ok=True)
        options = ["--no-build-isolation", "--progress-bar", "off"]
        try:
            self.run([self.environment.python, "-m", "pip", "--no-input", verb, *options, *words], log)
        finally:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def pinned(self, pins: Sequence[Pin], folder: Path | None = None) -> list[str]:
        """Return pip's arguments for pins, which it reads from a file in ``folder``; None for the environment's."""
        return write_requirements(folder or self.environment.folder, pins, checks_files=self.checks_files)

    def variables(self) -> dict[str, str]:
        """Return the variables of a stage's commands: the user's, without those that lead Python or pip elsewhere.

        Temporary files go into the environment's folder: /tmp may be small or noexec, and a killed build leaves them.
        """
        kept = {name: value for name, value in os.environ.items() if name not in _LEADING}
        if self.wheels:
            # As an address, because pip takes a folder with a space in its name for two.
            kept |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": Path(self.wheels).as_uri()}
        return {
            **kept,
            "PATH": f"{self.environment.folder / 'bin'}{os.pathsep}{kept.get('PATH', os.defpath)}",
            "TMPDIR": str(self._temporary),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PYTHONUNBUFFERED": "1",
        }

    @property
    def _temporary(self) -> Path:
        return self.environment.folder / "tmp"


@dataclass(frozen=True)
class Stage:
    """One step of set-up.

    Attributes:
        name: The stage's key in ``setup.json``.
        title: What a person reads while the stage runs.
        digest: Changes when the stage must be done again.
        needed_bytes: Disk space that the stage takes, downloads included.
        run: Does the stage.
    """

    name: str
    title: str
    digest: str
    needed_bytes: int
    run: Callable[[Work], None]
