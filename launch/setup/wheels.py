"""A folder of wheels in place of a package index: filled where there is a network, installed from where is none."""

import shlex
import sys
from pathlib import Path

from configs.errors import UserError
from launch.setup.checks import find_problems
from launch.setup.child import stopwatch
from launch.setup.layout import DOWNLOADING, EXTRAS, Engine, Kind
from launch.setup.pins import HOROVOD, TOOLS, closure, locked, named_by, named_by_extra, write_constraints
from launch.setup.stages import install_project, install_tools, make_venv
from launch.setup.state import only_one, remove_folder
from launch.setup.work import GB, Work

_NEEDED_BYTES: dict[Engine, int] = {"mxnet": 4 * GB, "torch": 5 * GB}
"""The files of an engine for GPUs, which are the largest, and pip's copies of them."""


def check_folder(wheels: str) -> None:
    """Raise if there is nothing to install from in the folder that takes the place of the index.

    Args:
        wheels: The folder, which an earlier set-up may have been given. If empty, pip asks its indexes, and nothing is
            checked.

    Raises:
        UserError: The folder is missing or has no wheel.
    """
    if not wheels or any(Path(wheels).glob("*.whl")):
        return
    raise UserError(
        f"--wheels: {wheels} is no folder with wheels: name its new place (./run.sh setup --wheels FOLDER), fill it "
        "where there is a network (--download FOLDER), or take pip's index again (--wheels '')"
    )


def download(kind: Kind, folder: Path, *, checks_files: bool) -> None:
    """Fetch all files that set-up installs in an environment of this kind, with every extra, into a folder.

    They are those for this Python and this machine's processor.

    Args:
        kind: Engine and variant.
        folder: Where the files are put; made if it is missing. What it has already is not fetched again.
        checks_files: Whether pip takes only files whose digests the lock file names.

    Raises:
        UserError: This machine lacks something.
        StageError: pip failed.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--download {folder}: {error.strerror}: name a folder that you can write to") from None
    if problems := find_problems(kind, folder, ["venv"], _NEEDED_BYTES[kind.engines[0]]):
        raise UserError("\n".join(problems))
    with only_one() as lock:
        remove_folder(DOWNLOADING.folder)
        DOWNLOADING.folder.mkdir()
        python = "{}.{}".format(*sys.version_info)
        with stopwatch(f"files of the {kind} environment, for Python {python}, into {folder}"):
            _fetch_all(Work(DOWNLOADING, kind, lock, checks_files), folder)
        remove_folder(DOWNLOADING.folder)
    size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    words = " ".join(["--engine", kind.engines[0], f"--{kind.variant}"])
    sys.stderr.write(
        f"setup: {folder} has {size / GB:.1f} GB; carry it to the machine without a network, and there: "
        f"./run.sh setup --wheels {shlex.quote(folder.name)} {words}\n"
    )


def _fetch_all(work: Work, folder: Path) -> None:
    environment, lock, into = work.environment, work.kind.lock, [f"--dest={folder}"]
    # Horovod's sources and the list of packages need the tools, as does each package that has no wheel.
    for stage in (make_venv, install_tools, install_project):
        stage(work)
    main = work.kind.variant if lock == "mxnet" else lock
    extras = (named_by_extra(environment, lock, each) for each in EXTRAS)
    names = set(TOOLS).union(named_by(environment, main), *extras)
    is_label_free = lock == "torch" and work.kind.variant == "cpu"
    pins = closure(lock, names - {"torch"} if is_label_free else names)
    work.pip("download", [*into, "--no-deps", *work.pinned(pins)], "download")
    if is_label_free:
        torch = [*write_constraints(environment, lock), *locked(lock, "torch")]
        work.pip("download", [*into, *torch], "download-torch")
    if lock == "mxnet":
        horovod = ["--no-deps", "--no-binary=horovod", *work.pinned([HOROVOD])]
        work.pip("download", [*into, *horovod], "download-horovod")
