"""``./run.sh setup``: make the environment, or finish it, or see at once that it is there."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from configs.errors import UserError
from launch.setup.checks import check_gpus, find_problems
from launch.setup.child import StageError, Stopwatch
from launch.setup.gpu import find_gpus
from launch.setup.layout import ROOT, VENV, VENV_PYTHON, Variant
from launch.setup.stages import Stage, is_usable, make_stages
from launch.setup.state import State, only_one


def main(arguments: Sequence[str] | None = None) -> int:
    """Run set-up; give its exit status: 0 done, 1 a stage failed, 2 this machine or the arguments are wrong."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    try:
        return set_up(options.variant, with_test="test" in options.extra, is_quiet=options.quiet)
    except UserError as error:
        sys.stderr.write("".join(f"error: {line}\n" for line in str(error).splitlines()))
        return 2
    except StageError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\nsetup: stopped; ./run.sh goes on from here\n")
        return 130


def set_up(wanted: Variant | None, *, with_test: bool, is_quiet: bool) -> int:
    """Do the stages that are not done.

    Args:
        wanted: The variant asked for; none takes the environment's own, or what this machine has.
        with_test: Whether to install the tools for tests and checks.
        is_quiet: Say nothing when there is nothing to do.

    Raises:
        UserError: Nothing was installed: this machine lacks something, or has a GPU that MXNet cannot use.
        StageError: A stage failed.
    """
    state = State()
    variant = wanted or state.variant
    if variant and not _pending(state, make_stages(variant, has_mpi=state.has_mpi, with_test=with_test)):
        if not is_quiet:
            sys.stderr.write(f"setup: nothing to do; {variant} environment in {VENV}\n")
        return 0
    variant = _choose(wanted, state.variant)
    stages = make_stages(variant, has_mpi=state.has_mpi, with_test=with_test)
    pending = _pending(state, stages)
    needed_bytes = sum(stage.needed_bytes for stage in pending)
    problems = find_problems(variant, ROOT, [stage.name for stage in pending], needed_bytes)
    if problems:
        raise UserError("\n".join(problems))
    with only_one() as lock:
        _run(State(), stages, variant, lock)
    return 0


def _choose(wanted: Variant | None, remembered: Variant | None) -> Variant:
    """Decide on the variant; a CPU environment on a machine with a GPU must have been asked for."""
    if wanted == "cpu" or (wanted is None and remembered):
        return wanted or remembered or "cpu"
    found = check_gpus(find_gpus())
    return wanted or found


def _pending(state: State, stages: Sequence[Stage]) -> list[Stage]:
    """List the stages to do: all of them when the environment itself must be made anew."""
    if not state.is_done("venv", stages[0].digest) or not (_is_running_inside() or is_usable()):
        return list(stages)
    return [stage for stage in stages if not state.is_done(stage.name, stage.digest)]


def _is_running_inside() -> bool:
    return Path(sys.prefix) == VENV and VENV_PYTHON.exists()


def _run(state: State, stages: Sequence[Stage], variant: Variant, lock: int) -> None:
    pending = _pending(state, stages)
    if pending and pending[0].name == "venv":
        state.reset(variant)
    for stage in pending:
        state.begin(stage.name)
        watch = Stopwatch(f"[{stages.index(stage) + 1}/{len(stages)}] {stage.title}")
        try:
            stage.run(watch, lock)
        except BaseException:
            watch.end("not done, ")
            raise
        watch.end()
        state.finish(stage.name, stage.digest)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./run.sh setup", description=__doc__, allow_abbrev=False)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--cpu", dest="variant", action="store_const", const="cpu", help="for this machine's CPU")
    choice.add_argument("--gpu", dest="variant", action="store_const", const="gpu", help="for NVIDIA GPUs, with NCCL")
    parser.add_argument("--extra", action="append", default=[], choices=["test"], help="also the tools for tests")
    parser.add_argument("--quiet", action="store_true", help="say nothing when there is nothing to do")
    return parser


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
