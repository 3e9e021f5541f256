"""Set-up from the first command to the last, with real pip and an index of small packages; nothing is downloaded."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from launch.setup.horovod import build_environment
from launch.setup.layout import NEWEST_PYTHON, Environment
from tests.launch.conftest import make_tree
from tests.launch.setup.toy_index import ToyCheckout, make_toy_checkout
from tests.launch.stand_in import write_program
from tests.programs import run_program

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.version_info[:2] > NEWEST_PYTHON["mxnet"], reason="MXNet does not run on this Python"),
]

COMMON = {
    "matplotlib==3.9", "mlperf-logging==4.1", "pydantic==2.6", "pydantic-core==2.7", "scikit-learn==1.3", "tqdm==4.66",
    "typing-extensions==4.12", "resnet-records==0.1.0",
}  # fmt: skip
OF_MXNET = {"cmake==3.30", "numpy==1.23.5", "nvidia-dali-cuda110==1.34.0", "requests==2.32", "horovod==0.28.1"}
OF_TORCH = {"torch==2.13.0+cpu", "sympy==1.13", "nvidia-dali-cuda130==2.4.0"}
OF_TEST = {"pytest==8.1", "pluggy==1.5"}


def _begun(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the stages that were begun, by number and the first word of their title."""
    return re.findall(r"^setup: \[(\d+/\d+)\]", done.stderr, re.MULTILINE)


def _own(checkout: ToyCheckout) -> set[str]:
    return {each for each in checkout.installed() if not each.startswith(("packaging==", "setuptools==", "wheel=="))}


def _assert_files(folder: Path, packages: set[str]) -> None:
    """A folder has the files of these packages, of those that every environment has, of the extras, and no others."""
    found = {"-".join(path.name.split("-")[:2]).lower().replace("_", "-") for path in folder.iterdir()}
    tools = {f"{name}-{distribution(name).version}" for name in ("packaging", "setuptools", "wheel")}
    wanted = {each.replace("==", "-") for each in COMMON | packages | OF_TEST | {"tensorboardx==2.6"}}
    assert {each.removesuffix(".tar.gz") for each in found} - tools == wanted - {"resnet-records-0.1.0"}


def _built_with(checkout: ToyCheckout) -> dict[str, str]:
    """Return the variables with which Horovod was built."""
    found: dict[str, str] = json.loads((checkout.site_packages / "horovod" / "variables.json").read_text("utf-8"))
    return found


def test_an_environment_of_mxnet_is_made_after_failures_and_gets_an_extra_a_second_engine_and_mpi(
    tmp_path: Path,
) -> None:
    checkout = make_toy_checkout(make_tree(tmp_path / "checkout"), tmp_path / "home" / "index")
    mpi = {}  # name of an MPI -> a PATH on which it comes first
    for name, options in (("runtime alone", "-nostdinc"), ("complete", f"-I{tmp_path}/complete")):
        write_program(tmp_path / name / "mpicxx", f'exec g++ {options} "$@"')
        mpi[name] = f"{tmp_path / name}{os.pathsep}{os.environ['PATH']}"
    incomplete = mpi["runtime alone"]
    header = "inline int MPI_Init(int *, char ***) { return 0; }\n"
    (tmp_path / "complete" / "mpi.h").write_text(header, encoding="utf-8")
    _make_after_a_failure(checkout, incomplete, mpi["complete"])

    # The machine of the run need not have the MPI that a login node has.
    done = checkout.set_up("--engine", "torch", "--extra", "test", PATH=incomplete)
    assert (done.returncode, _begun(done)) == (0, ["5/7", "7/7"]), done.stderr
    assert _own(checkout) == COMMON | OF_MXNET | OF_TEST | {"mxnet==1.9.1", "torch==2.13.0+cpu", "sympy==1.13"}
    path = f"MXNet and PyTorch cpu environment in {checkout.tree}/.venv"
    assert checkout.set_up("--extra", "test", PATH=incomplete).stderr == f"setup: nothing to do; {path}\n"

    folder, words = tmp_path / "usb stick" / "wheels", ["--engine", "mxnet", "--cpu"]
    filled = checkout.set_up("--start", str(folder.parent), "--download", "wheels", *words)
    assert filled.returncode == 0, filled.stderr
    assert filled.stderr.endswith(f"./run.sh setup --wheels wheels {' '.join(words)}\n")
    _assert_files(folder, OF_MXNET | {"mxnet==1.9.1"})
    assert not (checkout.tree / ".venv.download").exists()


def _make_after_a_failure(checkout: ToyCheckout, incomplete: str, complete: str) -> None:
    """An attempt with a Horovod that does not compile, and an MPI that does not, comes first."""
    leading = {"PIP_USER": "1", "PIP_TARGET": "/no/such", "PIP_ROOT": "/no/such", "VIRTUAL_ENV": "/no/such"}
    source = 'int main() { throw std::logic_error(""); }'
    done = checkout.set_up("--cpu", PATH=incomplete, TOY_SOURCE=source, **leading)
    assert done.returncode == 1
    (note,) = [line for line in done.stderr.splitlines() if "MPI" in line and "[" not in line]
    assert all(word in note for word in ("mpi.h", "mpirun", "./run.sh setup"))
    *_, first, second = done.stderr.splitlines()
    assert first.startswith("error: ")
    assert all(words in first for words in ("logic_error", "./run.sh setup --engine torch"))
    log = checkout.tree / ".venv" / "horovod-build.log"
    assert second == f"       all of the output: {log}"
    assert "tqdm is there: False" in log.read_text(encoding="utf-8"), "the build runs beside other installations"
    for name in ("half-1.dist-info", "~alf"):  # as a pip that is killed leaves them
        (checkout.site_packages / name).mkdir()
    done = checkout.set_up("--cpu", PATH=complete, HOROVOD_WITHOUT_MXNET="1", HOROVOD_WITH_TENSORFLOW="1")
    assert (done.returncode, _begun(done)) == (0, ["5/5"]), done.stderr
    assert _own(checkout) == COMMON | OF_MXNET | {"mxnet==1.9.1"}
    assert not list(checkout.site_packages.glob("?al[f]*"))
    names = {path.name for path in (checkout.tree / ".venv").iterdir()}
    assert not names & {"tmp", "build"}, "temporary files"
    made, environment = _built_with(checkout), f"{checkout.tree}/.venv/"
    assert {name for name in made if name.startswith("HOROVOD_WITH")} == {
        "HOROVOD_WITH_MXNET", "HOROVOD_WITH_GLOO", "HOROVOD_WITH_MPI", "HOROVOD_WITHOUT_TENSORFLOW",
        "HOROVOD_WITHOUT_PYTORCH",
    }  # fmt: skip
    assert made["TMPDIR"].startswith(environment)
    assert made["PATH"].startswith(f"{environment}bin:")


def test_horovods_flags_name_a_header_that_its_sources_forget(tmp_path: Path) -> None:
    cmake = Path(sys.executable).parent / "cmake"
    if not cmake.exists():
        pytest.skip("cmake is not installed here")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.13)\nproject(forgets CXX)\nadd_library(forgets OBJECT forgets.cc)\n", "utf-8"
    )
    (tmp_path / "forgets.cc").write_text(
        'void fail() { throw std::logic_error("GCC 12 finds it, 13 does not"); }\n', "utf-8"
    )
    variables = build_environment(os.environ, Environment(tmp_path), "cpu")
    for words in ([".", "-DCMAKE_BUILD_TYPE=RelWithDebInfo"], ["--build", "."]):
        done = run_program(cmake, *words, cwd=tmp_path, env=variables)
        assert done.returncode == 0, done.stdout + done.stderr


def test_horovod_for_gpus_is_built_with_nccl_of_the_wheels_and_the_named_toolkit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolkit, environment = tmp_path / "cuda", Environment(tmp_path / "venv")
    write_program(toolkit / "bin" / "nvcc", "echo 'release 11.8, V11.8.89'")
    monkeypatch.setenv("CUDA_HOME", str(toolkit))
    wheel = tmp_path / "venv" / "lib" / "python3.11" / "site-packages" / "nvidia" / "nccl"
    for file in (wheel / "lib" / "libnccl.so.2", wheel / "include" / "nccl.h"):
        file.parent.mkdir(parents=True)
        file.touch()
    given = {"LD_LIBRARY_PATH": "/site", "HOROVOD_GPU_BROADCAST": "MPI"}
    monkeypatch.setattr("launch.setup.horovod.try_mpi", lambda: False)
    made = build_environment(given, environment, "gpu")
    expected = {
        "HOROVOD_GPU": "CUDA", "HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_CUDA_HOME": str(toolkit),
        "HOROVOD_NCCL_HOME": f"{tmp_path}/venv/nccl", "HOROVOD_NCCL_LINK": "SHARED", "HOROVOD_WITHOUT_MPI": "1",
        "HOROVOD_BUILD_CUDA_CC_LIST": "50,60,70,80,86", "NVCC_APPEND_FLAGS": "-allow-unsupported-compiler",
        "HOROVOD_CMAKE": f"{tmp_path}/venv/bin/cmake", "MAKEFLAGS": f"-j{len(os.sched_getaffinity(0))}",
    }  # fmt: skip
    assert {name: made.get(name) for name in expected} == expected
    assert "HOROVOD_GPU_BROADCAST" not in made
    search = made["LD_LIBRARY_PATH"].split(":")
    assert (search[0], search[-1]) == (f"{wheel}/lib", "/site")
    if len(search) == 3:  # no driver here: the toolkit's stub stands for it
        assert Path(search[1], "libcuda.so.1").readlink() == toolkit / "lib64" / "stubs" / "libcuda.so"
    assert all((tmp_path / "venv" / "nccl" / name).is_file() for name in ("include/nccl.h", "lib/libnccl.so"))


def test_pytorch_alone_is_made_from_a_folder_of_wheels_which_are_checked_by_hashes_unless_that_is_switched_off(
    tmp_path: Path,
) -> None:
    checkout = make_toy_checkout(make_tree(tmp_path / "checkout"), tmp_path / "home" / "index")
    lock = checkout.tree / "requirements-torch.lock"
    text = lock.read_text(encoding="utf-8")
    lock.write_text(re.sub(r"(\ntqdm==.*\n.*\n.*sha256:)\w+", rf"\g<1>{'1' * 64}", text), encoding="utf-8")
    options, no_index = ["--engine", "torch", "--cpu"], {"PIP_FIND_LINKS": "/no/such"}
    folder = tmp_path / "usb stick" / "wheels"
    done = checkout.set_up("--download", str(folder), *options, "--without-hashes")
    assert done.returncode == 0, done.stderr
    _assert_files(folder, OF_TORCH)
    refused = checkout.set_up("--start", str(tmp_path), "--wheels", "wheels", *options, **no_index)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert f"--wheels: {tmp_path}/wheels is no folder" in refused.stderr
    assert "--download FOLDER" in refused.stderr
    done = checkout.set_up("--wheels", str(folder), *options, **no_index)
    assert (done.returncode, _begun(done)) == (1, ["1/3", "2/3", "3/3"])
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in done.stderr
    done = checkout.set_up("--quiet", "--without-hashes", **no_index)
    assert (done.returncode, _begun(done)) == (0, ["3/3"]), done.stderr
    assert _own(checkout) == COMMON | OF_TORCH, "the folder and what the environment is for are remembered"

    moved = folder.rename(folder.with_name("moved"))
    assert checkout.set_up("--quiet", **no_index).stderr == "", "nothing is missing"
    gone = checkout.set_up("--extra", "test", **no_index)
    assert (gone.returncode, gone.stderr.count("\n")) == (2, 1)
    assert gone.stderr.startswith(f"error: --wheels: {folder} is no folder with wheels: name its new place")
    assert checkout.set_up("--wheels", str(moved), **no_index).stderr.startswith("setup: nothing to do")
    asked = checkout.set_up("--wheels", "", "--extra", "tensorboard", "--without-hashes", **no_index)
    assert "requirement tensorboardx" in asked.stderr, "pip's own settings count again"

    # Over a base that lacks DALI and tqdm, which the index has, and a package for ONNX, which it does not have.
    for name, info in (("nvidia", "nvidia_dali*"), ("tqdm", "tqdm-*")):
        shutil.rmtree(checkout.site_packages / name)
        shutil.rmtree(next(checkout.site_packages.glob(f"{info}.dist-info")))
    over = ToyCheckout(make_tree(tmp_path / "over"), checkout.index)
    for name in ("pyproject.toml", "toy_backend.py"):
        (over.tree / name).write_bytes((checkout.tree / name).read_bytes())
    base_python = str(checkout.tree / ".venv" / "bin" / "python")
    before = {path: path.read_bytes() for path in (checkout.tree / ".venv").rglob("*") if path.is_file()}
    done = over.set_up("--engine", "torch", "--system", base_python, PIP_TARGET="/no/such")
    assert (done.returncode, _begun(done)) == (0, ["1/3", "2/3", "3/3"]), done.stderr
    assert re.search("^warning: export writes no ONNX file: .* onnx", done.stderr, re.MULTILINE), done.stderr
    own = {path.name.partition("-")[0] for path in over.site_packages.glob("*.dist-info")}
    assert own == {"nvidia_dali_cuda130", "tqdm", "resnet_records"}
    own_python = str(over.tree / ".venv" / "bin" / "python")
    subprocess.run([own_python, "-I", "-c", "import sympy"], check=True)  # a module of the base, not compiled yet
    assert before == {path: path.read_bytes() for path in (checkout.tree / ".venv").rglob("*") if path.is_file()}
    assert over.set_up("--engine", "torch").stderr.startswith("setup: nothing to do; PyTorch (that of ")
