"""``./run.sh setup``: make the environment in .venv, or finish it; nothing is done if it is complete."""

import signal
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from configs.arguments import Parser
from configs.errors import UserError
from launch.setup.checks import check_gpus, describe_gpus, find_problems
from launch.setup.child import Command, StageError, Stopwatch
from launch.setup.gpu import search_gpus
from launch.setup.layout import BUILDING, CURRENT, ENGINES, NEWEST_PYTHON, ROOT, Engine, Environment, Kind, Variant
from launch.setup.replacement import holds_its_path, put_in_place, refuse_links, remove_folder, restore_replaced
from launch.setup.site import ENGINES_OF_BASES, broken_base, describe_base, find_base, variant_of
from launch.setup.stages import is_usable, make_stages
from launch.setup.state import State, is_used, only_one
from launch.setup.work import EXTRAS, Stage, Work


def main(arguments: Sequence[str] | None = None) -> int:
    """Run set-up.

    Returns:
        The exit status: 0 done, 1 a stage failed, 2 this machine, the folder or the arguments are wrong, 130 stopped.
    """
    try:
        options = _parser().parse_args(arguments)
        signal.signal(signal.SIGTERM, _interrupt)
        signal.signal(signal.SIGHUP, _interrupt)
        wanted = Wish(options.engine, options.variant, options.system, checks_files=options.checks_files)
        return set_up(wanted, extras=options.extra, is_quiet=options.quiet)
    except UserError as error:
        sys.stderr.write("".join(f"error: {line}\n" for line in str(error).splitlines()))
        return 2
    except StageError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\nsetup: stopped; ./run.sh goes on from here\n")
        return 130


@dataclass(frozen=True)
class Wish:
    """What the user asks for.

    Attributes:
        engine: The engine. If None, those of the environment, or else MXNet.
        variant: The variant. If None, that of the environment, or else what this machine has.
        base: The interpreter that has the site's own MXNet; empty for one on the PATH. If None, an environment that
            has all packages itself, or the one that is there.
        checks_files: See `Work.checks_files`.
    """

    engine: Engine | None = None
    variant: Variant | None = None
    base: str | None = None
    checks_files: bool = True


def set_up(wish: Wish, *, extras: Collection[str], is_quiet: bool) -> int:
    """Do the stages that are not done; return 0.

    Args:
        wish: What the user asks for.
        extras: Names of `launch.setup.layout.EXTRAS` to install too.
        is_quiet: Whether to print nothing when there is nothing to do.

    Raises:
        UserError: Nothing was installed: an environment is a symbolic link, a run uses the current one, this machine
            lacks something, or it has a GPU that the engine cannot use.
        StageError: A stage failed.
    """
    refuse_links()
    remembered = State(CURRENT).kind or State(BUILDING).kind
    kind = _remembered_kind(wish, remembered)
    if kind and _plan(kind, extras=extras).is_done:
        if not is_quiet:
            sys.stderr.write(f"setup: nothing to do; {kind} environment in {CURRENT.folder}\n")
        return 0
    if is_used():
        return _leave_alone(is_quiet=is_quiet)
    kind = _choose_kind(wish, remembered)
    pending = _plan(kind, extras=extras).pending
    needed_bytes = sum(stage.needed_bytes for stage in pending)
    problems = find_problems(kind, ROOT, [stage.name for stage in pending], needed_bytes)
    if problems:
        raise UserError("\n".join(problems))
    with only_one() as lock:
        restore_replaced()
        # Another set-up may have ended since the plan above.
        plan = _plan(kind, extras=extras)
        _run(plan, kind, lock, checks_files=wish.checks_files)
        if plan.environment is BUILDING:
            if is_used():  # by a run that began meanwhile
                return _leave_alone(is_quiet=is_quiet)
            put_in_place()
    return 0


def _leave_alone(*, is_quiet: bool) -> int:
    """Return 0 if set-up was not asked for by its name: then the environment serves as it is.

    Raises:
        UserError: Set-up was asked for.
    """
    words = f"a run uses {CURRENT.folder}, and set-up changes nothing of it until that run has ended"
    if not is_quiet:
        raise UserError(f"{words}; wait for its end, or make a checkout of your own")
    sys.stderr.write(f"warning: the environment is not the one of this version of the program: {words}\n")
    return 0


def _remembered_kind(wish: Wish, remembered: Kind | None) -> Kind | None:
    """Return what the environment is for, if it can be what the user asks for; no GPU and no base is asked."""
    if remembered is None:
        return None
    if remembered.base:
        is_of_base = wish.engine in (None, *ENGINES_OF_BASES) and wish.variant is None
        return remembered if is_of_base and wish.base in (None, "", remembered.base) else None
    if wish.base is not None:
        return None
    return Kind(_choose_engines(wish.engine, wish.variant, remembered), wish.variant or remembered.variant)


def _choose_kind(wish: Wish, remembered: Kind | None) -> Kind:
    """Return what the environment is to be for.

    Raises:
        UserError: The engine cannot use the GPU of this machine, or this program cannot use the base.
    """
    if wish.base is None and not (remembered and remembered.base):
        engines = _choose_engines(wish.engine, wish.variant, remembered)
        return Kind(engines, _choose_variant(engines[0], wish.variant, remembered))
    if wish.base is None and (wish.engine or wish.variant):
        return _choose_kind(wish, None)
    if wish.engine not in (None, *ENGINES_OF_BASES):
        raise UserError(f"--system uses the site's own MXNet: leave out --engine {wish.engine}")
    assert wish.base is not None or remembered is not None
    base = find_base(wish.base or (remembered.base if remembered else ""))
    found = describe_base(base)
    if problems := broken_base(found):
        raise UserError("\n".join(f"{base}: {problem}" for problem in problems))
    kind = Kind(ENGINES_OF_BASES, variant_of(found), base)
    titles = ("MXNet", "Horovod", "DALI", "NumPy")
    versions = ", ".join(
        f"{title} {found[title][0] if title in found else '(no driver to load it)'}" for title in titles
    )
    sys.stderr.write(f"setup: {base} has {versions}; set-up makes the {kind.variant} environment over it\n")
    return kind


def _choose_engines(wanted: Engine | None, variant: Variant | None, remembered: Kind | None) -> tuple[Engine, ...]:
    """Return the engines of the environment: the wanted one is added to those that are there, if both fit.

    Both fit into one environment for CPUs with a Python that MXNet runs on. The libraries for GPUs do not fit: NCCL's
    of two versions of CUDA have the same file name.

    Raises:
        UserError: Both are there, and an environment for GPUs is wanted of no named engine.
    """
    if remembered is None:
        return (wanted,) if wanted else tuple(ENGINES)[:1]
    is_cpu = (variant or remembered.variant) == "cpu" == remembered.variant
    both: tuple[Engine, ...] = tuple(name for name in ENGINES if name == wanted or name in remembered.engines)
    if len(both) == 1 or (is_cpu and sys.version_info[:2] <= min(NEWEST_PYTHON[name] for name in both)):
        return both
    if wanted is None:
        raise UserError(f"an environment for GPUs has one engine: name it with --engine, {' or '.join(ENGINES)}")
    return (wanted,)


def _choose_variant(engine: Engine, wanted: Variant | None, remembered: Kind | None) -> Variant:
    """Return the variant; a CPU environment on a machine with a GPU must have been asked for."""
    if wanted == "cpu":
        return "cpu"
    if wanted is None and remembered:
        return remembered.variant
    search = search_gpus()
    suited = check_gpus(search.gpus, wanted, engine)
    variant = wanted or suited
    if line := describe_gpus(search, variant, engine):
        sys.stderr.write(f"setup: {line}\n")
    return variant


@dataclass(frozen=True)
class _Plan:
    """The stages to do.

    Attributes:
        environment: The environment on which they work: the current one, if only later stages are missing.
        stages: All stages of that environment.
        pending: Those of them that are not done.
        has_mpi: Whether Horovod is built with MPI.
    """

    environment: Environment
    stages: Sequence[Stage]
    pending: Sequence[Stage]
    has_mpi: bool

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to do; a complete new environment still has to take its place."""
        return self.environment is CURRENT and not self.pending


def _plan(kind: Kind, *, extras: Collection[str]) -> _Plan:
    """Compare the stages of an environment with those that are done.

    Missing packages are added to the current environment. For another Python, variant, main engine or place of the
    checkout, or if the interpreter no longer runs, a new environment is built beside the current one, or a build that
    was stopped goes on.
    """
    current, building = State(CURRENT), State(BUILDING)
    has_mpi = current.has_mpi or building.has_mpi
    stages = make_stages(kind, has_mpi=has_mpi, extras=extras)
    venv = stages[0]
    if current.is_done(venv.name, venv.digest) and (_is_running_inside() or is_usable(CURRENT)):
        environment, state = CURRENT, current
    elif building.is_done(venv.name, venv.digest) and is_usable(BUILDING):
        environment, state = BUILDING, building
    else:
        return _Plan(BUILDING, stages, stages, has_mpi)
    pending = [stage for stage in stages if not state.is_done(stage.name, stage.digest)]
    if pending and environment is BUILDING and not holds_its_path(BUILDING):
        pending = stages
    return _Plan(environment, stages, pending, has_mpi)


def _is_running_inside() -> bool:
    """Return whether the current environment's interpreter runs this process, which saves starting it for a look."""
    return Path(sys.prefix) == CURRENT.folder and CURRENT.python.exists()


def _run(plan: _Plan, kind: Kind, lock: int, *, checks_files: bool) -> None:
    """Do the pending stages; begin a new environment if its first stage is among them."""
    if plan.stages[0] in plan.pending:
        remove_folder(BUILDING.folder)
        State(BUILDING).reset(kind, has_mpi=plan.has_mpi)
    state = State(plan.environment)
    state.extend(kind)
    begun: dict[str, Command] = {}
    try:
        for stage in plan.pending:
            state.begin(stage.name)
            watch = Stopwatch(f"[{plan.stages.index(stage) + 1}/{len(plan.stages)}] {stage.title}")
            work = Work(plan.environment, watch, lock, checks_files, begun)
            try:
                stage.run(work)
                for begin in (each.begin for each in plan.pending if each.after == stage.name):
                    begin(work)
            except BaseException:
                watch.end("not done, ")
                raise
            watch.end()
            state.finish(stage.name, stage.digest)
    finally:
        for command in begun.values():
            command.stop()


def _parser() -> Parser:
    parser = Parser(prog="./run.sh setup", description=__doc__)
    parser.add_argument(
        "--engine",
        choices=list(ENGINES),
        help="mxnet (the default; Python 3.10 to 3.12, compiles Horovod) or torch (Python 3.10 to 3.13, compiles "
        "nothing); into an environment for CPUs with Python 3.10 to 3.12 both fit",
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--cpu", dest="variant", action="store_const", const="cpu", help="for this machine's CPU")
    choice.add_argument("--gpu", dest="variant", action="store_const", const="gpu", help="for NVIDIA GPUs, with NCCL")
    choice.add_argument(
        "--system", metavar="PYTHON", nargs="?", const="",
        help="over a Python that has MXNet, Horovod and DALI already, such as that of NVIDIA's containers, which stays "
        "as it is (default: the first on the PATH that has them)",
    )  # fmt: skip
    words = "also install the tools for tests and checks (test), or what report --tensorboard needs (tensorboard)"
    parser.add_argument("--extra", action="append", default=[], choices=sorted(EXTRAS), help=words)
    parser.add_argument(
        "--without-hashes", dest="checks_files", action="store_false",
        help="take the pinned versions whatever their files: for a mirror or wheel folder with builds of its own",
    )  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="print nothing when there is nothing to do")
    return parser


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
