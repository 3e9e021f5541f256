"""The parts of set-up: checks, the record of stages, running and stopping commands, explaining failures."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from configs.errors import UserError
from launch.setup import checks, child, gpu, replacement
from launch.setup.__main__ import main
from launch.setup.causes import explain
from launch.setup.child import StageError, Stopwatch, run_logged
from launch.setup.gpu import Gpu
from launch.setup.horovod import build_environment
from launch.setup.layout import LOCKS, NEWEST_PYTHON, PROJECT, ROOT, Engine, Environment, Kind, lock_file, locked
from launch.setup.pins import closure, named_by, read_pins
from launch.setup.stages import make_stages
from launch.setup.state import State, digest
from launch.setup.work import command_variables, remove_half_installed

MXNET, BOTH = Kind(("mxnet",), "cpu"), Kind(("mxnet", "torch"), "cpu")


@pytest.mark.parametrize("capability", [(5, 0), (6, 1), (7, 0), (7, 5), (8, 0), (8, 6), (8, 9)])
def test_a_gpu_with_kernels_gives_the_gpu_variant(capability: tuple[int, int]) -> None:
    assert checks.check_gpus([Gpu("some GPU", capability)]) == "gpu"


@pytest.mark.parametrize("capability", [(3, 7), (9, 0), (10, 0)])
def test_a_gpu_without_kernels_is_refused_by_name(capability: tuple[int, int]) -> None:
    with pytest.raises(UserError, match=rf"some GPU \(compute capability {capability[0]}\.{capability[1]}\).*--cpu"):
        checks.check_gpus([Gpu("some GPU", capability)])


needs_old_python = pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="set-up for MXNet finds this Python, which is too new, before anything else"
)


def test_no_gpu_gives_the_cpu_variant() -> None:
    assert checks.check_gpus([]) == "cpu"


@needs_old_python
def test_little_disk_is_one_line_with_what_is_there_and_what_is_needed(tmp_path: Path) -> None:
    (problem,) = checks.find_problems(MXNET, tmp_path, [], 10**18)
    assert re.fullmatch(r"[\d.]+ GB of disk free at .*, 1000000000\.0 GB needed: free some, or move .*", problem)


@needs_old_python
def test_a_path_with_a_space_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "my clone"
    folder.mkdir()
    (problem,) = checks.find_problems(MXNET, folder, ["horovod"], 1)
    assert problem.endswith("my clone' has a space, which Horovod's build cannot take: move this folder, or rename it")


@needs_old_python
def test_this_machine_has_what_set_up_needs(tmp_path: Path) -> None:
    assert checks.find_problems(MXNET, tmp_path, ["venv", "tools", "wheels", "horovod"], 1) == []


def test_a_toolkit_of_another_cuda_is_no_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "bin" / "nvcc"
    compiler.parent.mkdir()
    compiler.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 11.8, V11.8.89'\n", encoding="utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert gpu.find_toolkit() == tmp_path
    compiler.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n", encoding="utf-8")
    assert gpu.find_toolkit() != tmp_path


def test_a_stage_is_done_until_its_digest_changes_or_it_begins_again(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "environment")
    state = State(environment)
    state.reset(BOTH, has_mpi=False)
    state.finish("wheels", digest("a", 1))
    again = State(environment)
    assert again.kind == BOTH
    assert again.is_done("wheels", digest("a", 1))
    assert not again.is_done("wheels", digest("a", 2))
    again.begin("wheels")
    assert not State(environment).is_done("wheels", digest("a", 1))


def test_mpi_stays_known_where_the_machine_of_the_run_has_no_compiler_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    environment = Environment(tmp_path / "environment")
    assert not State(environment).has_mpi
    State(environment).reset(MXNET, has_mpi=True)
    assert State(environment).has_mpi


def test_a_damaged_state_file_counts_as_nothing_done(tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    environment.state_file.write_text('{"stages": {"ve', encoding="utf-8")
    assert State(environment).kind is None


def test_what_a_killed_pip_left_is_not_taken_for_installed(tmp_path: Path) -> None:
    for name in ("numpy-1.23.5.dist-info", "scipy-1.15.3.dist-info", "~andas", "numpy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "RECORD").touch()
    (tmp_path / "numpy-1.23.5.dist-info" / "INSTALLER").touch()
    remove_half_installed(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"numpy-1.23.5.dist-info", "numpy"}


def test_horovod_is_built_again_for_mpi_and_not_for_test_tools() -> None:
    def horovod(*, has_mpi: bool, extras: Collection[str]) -> str:
        stages = make_stages(MXNET, has_mpi=has_mpi, extras=extras)
        return next(stage.digest for stage in stages if stage.name == "horovod")

    assert horovod(has_mpi=False, extras=()) == horovod(has_mpi=False, extras=("test",))
    assert horovod(has_mpi=False, extras=()) != horovod(has_mpi=True, extras=())


def test_the_lock_pins_what_the_program_needs_and_names_no_place() -> None:
    text = LOCKS["mxnet"].read_text(encoding="utf-8")
    assert all(pin.digests for lock in LOCKS.values() for pin in read_pins(lock))
    for pin in ("mxnet==1.9.1", "mxnet-cu112==1.9.1", "nvidia-dali-cuda110==1.34.0", "mlperf-logging==4.1.68"):
        assert pin in re.split(r"[\n ]", text)
    numpy = "1.23." if sys.version_info < (3, 12) else "1.26."
    assert all(line.startswith(f"numpy=={numpy}") for line in locked("mxnet", "numpy"))
    assert not re.search(r"https?:|file:|index-url|find-links", text)
    assert "horovod" not in PROJECT.read_text(encoding="utf-8").split("[tool.")[0].replace("# What Horovod", "")


def _wanted(project: dict[str, Any], extra: str) -> list[Requirement]:
    """Return what pyproject.toml wants for an extra, with the extras that it names."""
    found = [Requirement(line) for line in project["optional-dependencies"][extra]]
    named = [name for each in found if each.name == project["name"] for name in each.extras]
    plain = [each for each in found if each.name != project["name"]]
    return plain + [each for name in named for each in _wanted(project, name)]


@pytest.mark.parametrize("engine", LOCKS)
@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_a_lock_pins_all_that_its_extras_want_for_every_python_of_the_engine(engine: Engine, python: str) -> None:
    if python > "{}.{}".format(*NEWEST_PYTHON[engine]):
        pytest.skip("the engine does not run there")
    # Python 3.10 has no tomllib.
    project = pytest.importorskip("tomllib").loads(PROJECT.read_text(encoding="utf-8"))["project"]
    minor = int(python.partition(".")[2])
    text = lock_file(engine, (3, minor)).read_text(encoding="utf-8")
    extras = re.findall(r"--extra (\w+)", text.splitlines()[1])
    others = {"torch": {"mxnet", "onnx", "cpu", "gpu", "build"}, "mxnet": {"mxnet", "onnx", "torch"}}[engine]
    assert set(extras) == set(project["optional-dependencies"]) - others
    here = {"python_version": python, "python_full_version": f"{python}.0"}
    lines = [Requirement(pin.line) for pin in read_pins(lock_file(engine, (3, minor)))]
    pins = {canonicalize_name(each.name): each for each in lines if not each.marker or each.marker.evaluate(here)}
    wanted = [Requirement(line) for line in project["dependencies"]]
    for each in wanted + [deep for extra in extras for deep in _wanted(project, extra)]:
        if each.marker and not each.marker.evaluate(here):
            continue
        (pin,) = pins[canonicalize_name(each.name)].specifier
        assert each.specifier.contains(pin.version), each


def test_an_extra_is_installed_with_all_that_it_needs_and_nothing_of_the_others() -> None:
    """As pip found it: what set-up lists is what the environment of the tests has, each in the same version."""
    here = Environment(Path(sys.prefix))
    engine: Engine = "mxnet" if find_spec("mxnet") else "torch"
    extras = ("cpu" if engine == "mxnet" else "torch", "test")
    listed = {
        pin.name
        for extra in extras
        for pin in closure(engine, named_by(here, extra))
        if not (marker := Requirement(pin.line).marker) or marker.evaluate()
    }
    unlisted = {"pip", "setuptools", "horovod", "cffi", "pycparser", "cmake", "resnet-records", "tensorboardx"}
    present = {canonicalize_name(each.name) for each in distributions(path=[str(here.site_packages)])}
    if {"mxnet", "torch"} <= present:
        pytest.skip("an environment of both engines has packages by both lock files")
    assert present - unlisted - listed == set()
    assert "mxnet-cu112" not in listed


def test_the_build_takes_no_flag_of_the_users_that_contradicts_ours() -> None:
    base = {
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_BUILD_ARCH_FLAGS": "-mavx",
        "MAKEFLAGS": "",
    }
    environment = Environment(Path("/environment"))
    made = build_environment(base, environment, "cpu", has_mpi=False)
    assert "HOROVOD_WITHOUT_MXNET" not in made
    assert "HOROVOD_WITH_TENSORFLOW" not in made
    assert made["HOROVOD_BUILD_ARCH_FLAGS"] == "-mavx"
    assert {name: made[name] for name in made if name.startswith("HOROVOD_WITH")} == dict.fromkeys(
        ["HOROVOD_WITH_MXNET", "HOROVOD_WITH_GLOO", "HOROVOD_WITHOUT_MPI", "HOROVOD_WITHOUT_TENSORFLOW",
         "HOROVOD_WITHOUT_PYTORCH"], "1",
    )  # fmt: skip
    assert made["HOROVOD_CMAKE"] == "/environment/bin/cmake"
    assert re.fullmatch(r"-j[1-9]\d*", made["MAKEFLAGS"])
    assert "HOROVOD_WITHOUT_MPI" not in build_environment(base, environment, "cpu", has_mpi=True)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("as: write error: No space left on device\nmake: *** Error 1", "the disk is full"),
        ("c++: fatal error: Killed signal terminated program cc1plus", "ran out of memory.*MAKEFLAGS=-j1"),
        ("ERROR: No matching distribution found for mxnet==1.9.1", "has no mxnet==1.9.1 for this Python"),
        (
            "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM\n    wheel==0.48.0 from https://i/w.whl:\n"
            "        Expected sha256 00\n             Got        32\n",
            r"^wheel==0\.48\.0 is not a file that the lock file names: .*--without-hashes",
        ),
        ("x.cc:3:10: fatal error: zlib.h: No such file or directory", "the header zlib.h is missing"),
        ("NewConnectionError: Temporary failure in name resolution", "was not reached.*goes on where it stopped"),
        ("a.cc:1: error: expected ';'\nmake: *** [all] stopped\n", r"a\.cc:1: error: expected ';'"),
        ("\n", "the command printed nothing"),
        ("ssl.SSLError: bad", "certificate is not trusted"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED]", "certificate is not trusted"),
        ("OSError: [Errno 28] no room", "the disk is full"),
        ("virtual memory exhausted: Cannot allocate memory", "ran out of memory"),
        ("Killed\nmake: ***", "ran out of memory"),
        ("HTTPSConnectionPool: Read timed out.", "was not reached"),
        ("ConnectionRefusedError: Connection refused", "was not reached"),
        ("mkdir: cannot create: Permission denied", "a file could not be written; give yourself this folder"),
        ("-- Could NOT find MPI (missing: MPI_CXX)", "MPI was found but cannot be compiled with"),
        ("fatal error: cuda_runtime.h: No such file", "the CUDA toolkit is not complete"),
        ("libcuda.so.1: cannot open shared object", "no NVIDIA driver library"),
        ("Illegal instruction (core dumped)", "this CPU lacks AVX"),
        ("#error -- unsupported GNU version!", "the compiler is too new for this CUDA"),
        ("error: one\nError 2\nlast", "^Error 2$"),
        ("one\nlast" + "t" * 300, "^last" + "t" * 196 + "$"),
    ],
)
def test_a_failure_is_explained_in_one_line(output: str, words: str) -> None:
    answer = explain(output)
    assert re.search(words, answer)
    assert "\n" not in answer


def run_shell(script: str, log: Path) -> None:
    with log.with_suffix(".lock").open("w") as lock:
        run_logged(
            ["sh", "-c", script], log=log, environment=dict(os.environ), watch=Stopwatch("a stage"), lock=lock.fileno()
        )


def test_output_goes_to_the_log_and_a_failure_names_cause_and_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "stage.log"
    with pytest.raises(StageError) as failure:
        run_shell("echo one; echo 'error: two' >&2; exit 3", log)
    assert str(failure.value) == f"error: two\n       all of the output: {log}"
    assert log.read_text(encoding="utf-8") == "one\nerror: two\n"
    assert capsys.readouterr().err == "setup: a stage ..."


@pytest.mark.ranks
def test_a_stopped_set_up_leaves_no_process_behind(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; "
        "from tests.launch.setup.test_setup import run_shell; "
        "run_shell('trap \"\" TERM; sleep 60 & echo $! > $PIDS; echo $$ >> $PIDS; wait; sleep 60', Path(sys.argv[2]))"
    )
    pids = tmp_path / "pids"
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(ROOT), str(tmp_path / "stage.log")],
        env={**os.environ, "PIDS": str(pids)},
        stderr=subprocess.DEVNULL,
    )
    while not (pids.exists() and len(pids.read_text().split()) == 2):
        assert child.poll() is None
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    child.wait()
    deadline_s = time.monotonic() + 30  # the processes sleep for 60 s
    # They were killed, but on a busy machine it takes a while until they are dead.
    while any(_is_alive(pid) for pid in pids.read_text().split()):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def _is_alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_wrong_argument_is_one_line_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--gpus"]) == 2
    assert re.fullmatch(r"error: '--gpus' is not expected here; did you mean '--gpu'\?.*\n", capsys.readouterr().err)


def test_the_dockerfile_copies_what_set_up_reads(tmp_path: Path) -> None:
    stage, _, _ = (ROOT / "Dockerfile").read_text(encoding="utf-8").partition("FROM scratch")[2].partition("FROM ")
    for line in re.findall(r"^COPY (.*)$", stage, re.MULTILINE):
        *sources, target = line.split()
        (tmp_path / target).mkdir(parents=True, exist_ok=True)
        for source in map(ROOT.joinpath, sources):
            if source.is_dir():
                shutil.copytree(source, tmp_path / target, dirs_exist_ok=True)
            else:
                shutil.copy2(source, tmp_path / target)
    code = (
        "from launch.setup.__main__ import Kind, make_stages as make; "
        "print(*(len(make(Kind((engine,), 'gpu'), has_mpi=True, extras=['test'])) for engine in ('mxnet', 'torch')))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "5 4\n"), done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interruption_between_the_two_renames_waits_for_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    current, building, old = (tmp_path / name for name in (".venv", ".venv.building", ".venv.old"))
    for folder in (current, building):
        (folder / "bin").mkdir(parents=True)
        (folder / "pyvenv.cfg").write_text(f"prompt = {folder.name}\n", encoding="utf-8")
    for name, value in {"CURRENT": Environment(current), "BUILDING": Environment(building), "REPLACED": old}.items():
        monkeypatch.setattr(replacement, name, value)
    rename = Path.rename

    def interrupted(path: Path, target: Path) -> Path:
        renamed = rename(path, target)
        if path == current:
            signal.raise_signal(number)
        return renamed

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", interrupted)
    before = signal.signal(number, stop)
    try:
        with pytest.raises(KeyboardInterrupt):
            replacement.put_in_place()
    finally:
        signal.signal(number, before)
    assert (current / "pyvenv.cfg").read_text(encoding="utf-8") == "prompt = .venv\n"
    assert not building.exists()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def test_a_command_that_is_ended_may_tidy_up_first(tmp_path: Path) -> None:
    script = f"trap 'sleep 0.1; touch {tmp_path}/tidy; exit' TERM; touch {tmp_path}/began; while :; do sleep 0.02; done"
    with subprocess.Popen(["sh", "-c", script], start_new_session=True) as process:
        while not (tmp_path / "began").exists():
            time.sleep(0.01)
        child._end_group(process)
        assert (tmp_path / "tidy").exists()
        child._end_group(process)


@pytest.mark.parametrize("has_mpi", [True, False])
def test_horovod_is_built_with_the_mpi_that_its_stage_is_named_after(has_mpi: bool) -> None:
    stage = make_stages(MXNET, has_mpi=has_mpi, extras=())[-1]
    assert ("MPI" in stage.title) == has_mpi
    assert stage.run.keywords == {"variant": "cpu", "has_mpi": has_mpi}  # type: ignore[attr-defined]


def test_no_variable_of_the_user_leads_python_or_pip_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leading = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "VIRTUAL_ENV")
    for name in (*leading, "PIP_INDEX_URL"):
        monkeypatch.setenv(name, "elsewhere")
    made = command_variables(Environment(tmp_path))
    assert not set(leading) & set(made)
    assert made["PIP_INDEX_URL"] == "elsewhere"
    assert made["PATH"] == f"{tmp_path}/bin:{os.environ['PATH']}"
    assert Path(made["TMPDIR"]).is_relative_to(tmp_path)
