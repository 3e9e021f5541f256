"""Create the environment in .venv, or complete it; do nothing if it is complete."""

import os
import platform
import shlex
import signal
import sys
from argparse import SUPPRESS
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from configs.arguments import Parser, exit_status, option, parse
from configs.errors import UserError
from launch.setup.checks import check_gpus, describe_gpus, find_problems
from launch.setup.child import StageError, stopwatch
from launch.setup.gpu import NEEDS, search_gpus
from launch.setup.layout import CURRENT, ENGINES, EXTRAS, REPLACED, ROOT, Engine, Kind, Variant, runs_here
from launch.setup.site import choose_base
from launch.setup.stages import make_stages
from launch.setup.state import (
    State,
    cannot_write,
    find_fault,
    is_used,
    only_one,
    refuse_links,
    remove_folder,
    set_aside,
)
from launch.setup.wheels import check_folder, download
from launch.setup.work import Stage, Work


@dataclass(frozen=True)
class Options:
    """The command line of ``./run.sh setup``. What is None follows from the environment that is there, or this machine.

    Attributes:
        system: The interpreter that has the site's own libraries; empty for one on the PATH.
        wheels: The folder from which pip takes every file; empty for pip's indexes.
        start: The folder from which relative paths start; the caller's.
    """

    engine: Engine | None = option(
        "mxnet (the default with Python 3.10 to 3.12 on x86_64; compiles Horovod) or torch (the default with 3.13 and "
        "3.14, and on aarch64; compiles nothing); an environment for CPUs where MXNet runs can have both",
        choices=list(ENGINES),
    )
    variant: Variant | None = None
    system: str | None = option(
        "use the libraries of an existing Python, such as that of a module or of NVIDIA's containers, and leave it "
        "unchanged: MXNet, Horovod and DALI, or PyTorch with --engine torch (default: the first on the PATH that has "
        "them)",
        metavar="PYTHON",
        nargs="?",
        const="",
    )
    extra: Collection[str] = option(
        "also install the tools for tests and checks (test), or a tracker (tensorboard, wandb, mlflow)",
        (),
        action="append",
        choices=sorted(EXTRAS),
    )
    without_hashes: bool = option(
        "do not check hashes, for a mirror or wheel folder with its own builds", default=False
    )
    wheels: str | None = option(
        "without a network: take every file from this folder, now and later ('': from pip's index again)",
        metavar="FOLDER",
    )
    download: str | None = option(
        "with a network: fetch into this folder what --wheels needs for the same options, this Python and this kind of "
        "processor, with all extras; install nothing",
        metavar="FOLDER",
    )
    quiet: bool = option("print nothing when there is nothing to do", default=False)
    start: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run set-up.

    Returns:
        The exit status: 0 done, 1 a stage failed, 2 this machine, the folder or the arguments are wrong, 130 stopped.
    """
    parser = Parser(prog="./run.sh setup", description=__doc__)
    choice = parser.add_mutually_exclusive_group()
    variants: dict[Variant, str] = {
        "cpu": "make the environment for this machine's CPU",
        "gpu": "make the environment for NVIDIA GPUs, with NCCL; PyTorch's with CUDA 13, or with CUDA 12 if the driver "
        "is older than R580",
        "cuda12": "make PyTorch's environment for NVIDIA GPUs with CUDA 12, for drivers from R525 on",
    }
    for variant, words in variants.items():
        choice.add_argument(f"--{variant}", dest="variant", action="store_const", const=variant, help=words)
    parser.add_argument("--start", default="", help=SUPPRESS)
    return exit_status(lambda: _main(parse(parser, Options, arguments)))


def _main(options: Options) -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    if options.system and "/" in options.system:
        options = replace(options, system=str(Path(options.start, options.system)))
    try:
        if options.download is None:
            return set_up(options)
        if options.system is not None or options.wheels is not None:
            raise UserError(
                "--download fetches all packages: leave out --system (docs/site.md has the way for a site) and --wheels"
            )
        folder = Path(options.start, options.download).absolute()
        download(choose_kind(options, None), folder, checks_files=not options.without_hashes)
        return 0
    except StageError as error:
        status, words = 1, f"error: {error}"
    except KeyboardInterrupt:
        status, words = 130, "\nsetup: stopped; ./run.sh continues from here"
    if REPLACED.exists():
        back = f"cd {shlex.quote(str(ROOT))} && rm -r .venv && mv {REPLACED.name} .venv"
        words += f"\n       to take the environment of before back: {back}"
    sys.stderr.write(f"{words}\n")
    return status


def set_up(options: Options) -> int:
    """Do the stages that are not done; return 0.

    Raises:
        UserError: Nothing was installed: an environment is a symbolic link, a run uses the current one, this machine
            lacks something, or it has a GPU that the engine cannot use.
        StageError: A stage failed.
    """
    refuse_links()
    state = State()
    remembered, wheels = _begun_kind(options, state), state.wheels
    if options.wheels is not None:
        wheels = options.wheels and str(Path(options.start, options.wheels).absolute())
        check_folder(wheels)
    kind = remembered_kind(options, remembered)
    if kind and not _plan(kind, options.extra)[1]:
        if wheels != state.wheels:  # The environment may be another user's.
            state.wheels = wheels
            state.write()
        if not options.quiet:
            sys.stderr.write(f"setup: nothing to do; {kind} environment in {CURRENT.folder}\n")
        return 0
    if is_used():
        return _leave_alone(options)
    if not os.access(ROOT, os.W_OK):
        raise cannot_write("permission denied")
    kind = choose_kind(options, remembered)
    _, pending = _plan(kind, options.extra)
    names = [stage.name for stage in pending]
    if problems := find_problems(kind, ROOT, names, sum(stage.needed_bytes for stage in pending)):
        raise UserError("\n".join(problems))
    check_folder(wheels)
    with only_one() as lock:
        stages, pending = _plan(kind, options.extra)  # Another set-up may have ended meanwhile.
        if pending and is_used():  # by a run that began meanwhile
            return _leave_alone(options)
        state = _begin(kind, wheels, stages, pending)
        names, checks_files = [stage.name for stage in pending], not options.without_hashes
        _run(stages, state, Work(CURRENT, kind, lock, checks_files, names, wheels))
    return 0


def _leave_alone(options: Options) -> int:
    """Return 0 if set-up was not asked for by its name: then the environment serves as it is.

    Raises:
        UserError: Set-up was asked for.
    """
    reason = f"a run uses {CURRENT.folder}, and set-up does not change it before that run has ended"
    if not options.quiet:
        raise UserError(f"{reason}; wait for its end, or use another checkout")
    sys.stderr.write(f"warning: the environment does not match this version of the program, or its path: {reason}\n")
    return 0


def _begun_kind(options: Options, state: State) -> Kind | None:
    """Return what the environment is for; None if it has no engine yet to which the wanted one could be added."""
    has_engine = not state.stages.keys().isdisjoint(("horovod", "torch", "packages"))
    is_continued = state.kind is not None and (options.engine is None or state.kind.engines == (options.engine,))
    return state.kind if has_engine or is_continued else None


def remembered_kind(options: Options, remembered: Kind | None) -> Kind | None:
    """Return what the environment is for, if it can be what the user asks for; no GPU and no base is asked."""
    if remembered is None:
        return None
    if remembered.base:
        is_of_base = options.engine in (None, *remembered.engines) and options.variant is None
        return remembered if is_of_base and options.system in (None, "", remembered.base) else None
    if options.system is not None:
        return None
    engines = _engines_with(remembered, options)
    # An environment for GPUs becomes one of another engine with whatever CUDA the driver has for that one.
    is_kept = remembered.variant == "cpu" or engines == remembered.engines
    return Kind(engines, options.variant or (remembered.variant if is_kept else "gpu"))


def choose_kind(options: Options, remembered: Kind | None) -> Kind:
    """Return what the environment is to be for.

    Raises:
        UserError: The engine has no such variant or cannot use the GPU of this machine, or this program cannot use the
            base.
    """
    kept = remembered_kind(options, remembered)
    if kept and kept.base:
        return choose_base(kept.engines, kept.base)
    if options.system is not None:
        return choose_base([options.engine] if options.engine else list(ENGINES), options.system)
    usual: Engine = "mxnet" if runs_here("mxnet") else "torch"
    engines, wanted = (kept.engines, kept.variant) if kept else ((options.engine or usual,), options.variant)
    if not kept and engines != (options.engine or "mxnet",):
        here = f"Python {sys.version_info[0]}.{sys.version_info[1]} on {platform.machine()}"
        sys.stderr.write(f"setup: {here}: MXNet has no build for it; taking PyTorch\n")
    if wanted == "cuda12" and wanted not in NEEDS[engines[0]]:
        needs = NEEDS[engines[0]]["gpu"]
        raise UserError(f"--cuda12: {needs.title} is built for CUDA {needs.cuda}: add --engine torch, or write --gpu")
    if wanted == "cpu" or (kept and kept == remembered and options.variant is None):
        return Kind(engines, wanted or "cpu")
    # A CPU environment on a machine with a GPU must have been asked for.
    gpus, problem = search_gpus()
    try:
        suited = check_gpus(gpus, wanted, engines[0])
    except UserError as error:
        if kept or options.engine:
            raise
        try:
            suited = check_gpus(gpus, wanted, "torch")
        except UserError:
            raise error from None
        engines = ("torch",)
        sys.stderr.write(f"setup: {gpus[0]}: MXNet has no kernels for it; taking PyTorch\n")
    variant = suited if gpus else wanted or "cpu"
    if line := describe_gpus(gpus, problem, variant, engines[0]):
        sys.stderr.write(f"setup: {line}\n")
    return Kind(engines, variant)


def _engines_with(remembered: Kind, options: Options) -> tuple[Engine, ...]:
    """Return the engines of an environment: the wanted one is added to those that are there, if both fit.

    Both fit into one environment for CPUs with a Python that MXNet runs on. The libraries for GPUs do not fit: NCCL's
    of two versions of CUDA have the same file name.

    Raises:
        UserError: Both are there, and an environment for GPUs is wanted of no named engine.
    """
    wanted = options.engine
    is_cpu = (options.variant or remembered.variant) == "cpu" == remembered.variant
    both: tuple[Engine, ...] = tuple(name for name in ENGINES if name == wanted or name in remembered.engines)
    if len(both) == 1 or (is_cpu and all(map(runs_here, both))):
        return both
    if wanted is None:
        raise UserError(f"an environment for GPUs has one engine: name it with --engine, {' or '.join(ENGINES)}")
    return (wanted,)


def _plan(kind: Kind, extras: Collection[str]) -> tuple[list[Stage], list[Stage]]:
    """Return all stages of the environment, and those of them that are not done.

    Missing packages are added. For another Python, variant, main engine or place of the checkout, or if the interpreter
    no longer runs, every stage is done again, in a new environment.
    """
    state, stages = State(), make_stages(kind, extras)
    undone = {stage.name for stage in stages if not state.is_done(stage.name, stage.digest)}
    if stages[0].name in undone or find_fault():
        return stages, stages
    return stages, [stage for stage in stages if stage.name in undone]


def _begin(kind: Kind, wheels: str, stages: list[Stage], pending: list[Stage]) -> State:
    """Return the record of the environment to work on; make room for a new one if every stage is to be done."""
    if pending == stages:
        if (before := State()).kind:
            other = "for another version, Python or engine"
            if before.folder not in ("", str(CURRENT.folder)):
                other = f"as {before.folder} and works by that path alone"
            why = find_fault() or f"{CURRENT.folder} was made {other}"
            sys.stderr.write(f"setup: {why}; making a new environment\n")
        set_aside()
    state = State()
    state.kind, state.wheels = kind, wheels
    state.write()
    return state


def _run(stages: list[Stage], state: State, work: Work) -> None:
    """Do the stages that are pending."""
    try:
        for number, stage in enumerate(stages, start=1):
            if stage.name in work.pending:
                state.stages.pop(stage.name, None)  # An interrupted stage counts as not done.
                state.write()
                with stopwatch(f"[{number}/{len(stages)}] {stage.title}"):
                    stage.run(work)
                state.stages[stage.name] = stage.digest
                state.write()
    finally:
        for command in work.begun.values():
            command.stop()
    remove_folder(REPLACED)


if __name__ == "__main__":
    sys.exit(main())
