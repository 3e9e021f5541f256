"""The stages of an environment over a Python that has MXNet, Horovod and DALI already."""

from collections.abc import Collection
from functools import partial

from launch.setup.checks import GB
from launch.setup.child import StageError
from launch.setup.layout import PROJECT, ROOT, Kind
from launch.setup.site import (
    base_venv_options,
    describe_base,
    find_missing,
    keep_frameworks,
    link_base,
    not_of_base,
    pins_of_base,
)
from launch.setup.state import digest
from launch.setup.work import EXTRAS, Stage, Work, pip


def stages_over_base(kind: Kind, *, extras: Collection[str]) -> list[Stage]:
    """Return the stages of an environment over `Kind.base`, with or without the tools for tests."""
    project = digest(PROJECT.read_text(encoding="utf-8"))
    stages = [
        Stage(
            "venv",
            f"virtual environment that sees the packages of {kind.base}",
            digest(kind.base, ROOT, kind.variant),
            GB // 10,
            partial(_make_venv_over_base, kind=kind),
        ),
        Stage(
            "packages",
            "packages that are missing there",
            project,
            GB,
            partial(_install_beside_base, kind=kind, extra="onnx"),
        ),
    ]
    for extra in sorted(set(extras)):
        run = partial(_install_beside_base, kind=kind, extra=extra)
        stages.append(Stage(extra, EXTRAS[extra], project, GB // 3, run))
    return stages


def _make_venv_over_base(work: Work, kind: Kind) -> None:
    found, environment = describe_base(kind.base), work.environment
    work.run([kind.base, "-m", "venv", *base_venv_options(found), environment.folder], "venv")
    link_base(environment, found["folders"])
    environment.base_pins.write_text(pins_of_base(found, kind), encoding="utf-8")


def _install_beside_base(work: Work, kind: Kind, extra: str) -> None:
    """Install the packages of an extra that the base lacks or has in a version that this program cannot use.

    All others stay those of the base, with their versions. If pip finds no such choice, only those stay that MXNet,
    Horovod and DALI are built for.
    """
    pins = work.environment.base_pins
    words = ["install", "--no-build-isolation", "--no-compile", "--editable", f"{ROOT}[{extra}]", "--constraint"]
    if find_missing(work.environment, "setuptools", "wheel"):
        pip(work, ["install", "setuptools>=65", "wheel"], "tools")
    try:
        pip(work, [*words, str(pins)], extra)
    except StageError:
        few = keep_frameworks(pins)
        pip(work, [*words, str(few)], extra)
    if problems := not_of_base(work.environment, kind.base):
        raise StageError(f"{'; '.join(problems)}\n       all of the output: {work.environment.log(extra)}")
