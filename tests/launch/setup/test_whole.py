"""Set-up from the first command to the last, with real pip and an index of small packages; nothing is downloaded."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

from launch.setup.layout import NEWEST_PYTHON
from tests.launch.conftest import make_tree
from tests.launch.setup.toy_index import ToyCheckout, make_horovod, make_toy_checkout

pytestmark = [
    pytest.mark.slow,
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


def _variables(checkout: ToyCheckout) -> dict[str, str]:
    """Return the variables with which Horovod was built."""
    found: dict[str, str] = json.loads((checkout.site_packages / "horovod" / "variables.json").read_text("utf-8"))
    return found


def _accept_horovod(checkout: ToyCheckout) -> None:
    """Let the checkout's Horovod be that of the index."""
    path = checkout.tree / "launch" / "setup" / "pins.py"
    text = re.sub(r"sha256:\w+", f"sha256:{make_horovod(checkout.index)}", path.read_text(encoding="utf-8"))
    path.write_text(text, encoding="utf-8")


def _new_checkout(folder: Path) -> ToyCheckout:
    """Return a checkout whose lock files and Horovod are those of its index."""
    checkout = make_toy_checkout(make_tree(folder / "checkout"), folder / "home" / "index")
    _accept_horovod(checkout)
    return checkout


@pytest.fixture(scope="module")
def for_cpu(tmp_path_factory: pytest.TempPathFactory) -> ToyCheckout:
    """A checkout in which an environment for a CPU was made, after attempts with another Horovod and with a bad one."""
    folder = tmp_path_factory.mktemp("whole")
    checkout = make_toy_checkout(make_tree(folder / "checkout"), folder / "home" / "index")
    make_horovod(checkout.index)
    leading = {"PIP_USER": "1", "PIP_TARGET": "/no/such", "PIP_ROOT": "/no/such", "VIRTUAL_ENV": "/no/such"}
    done = checkout.set_up("--cpu", **leading)
    assert done.returncode == 1
    first, second = done.stderr.splitlines()[5:]
    assert first.startswith(f"error: horovod==0.28.1 in {checkout.index} does not match the lock file's hashes")
    assert second == f"       all of the output: {checkout.tree}/.venv.building/horovod-build.log"
    assert not (checkout.tree / ".venv").exists()
    packages = next((checkout.tree / ".venv.building").glob("lib/python3.*/site-packages"))
    for name in ("half-1.dist-info", "~alf"):  # as a pip that is killed leaves them
        (packages / name).mkdir()
    _accept_horovod(checkout)
    done = checkout.set_up("--cpu", TOY_SOURCE='int main() { throw std::logic_error(""); }')
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert all(words in line for words in ("logic_error", "./run.sh setup --engine torch"))
    done = checkout.set_up("--cpu", MAKEFLAGS="", HOROVOD_WITHOUT_MXNET="1", HOROVOD_WITH_TENSORFLOW="1")
    assert (done.returncode, _begun(done)) == (0, ["5/5"]), done.stderr
    return checkout


def test_mxnet_and_what_it_needs_is_installed_and_horovod_is_compiled(for_cpu: ToyCheckout) -> None:
    assert _own(for_cpu) >= COMMON | OF_MXNET | {"mxnet==1.9.1"}
    assert _own(for_cpu) <= COMMON | OF_MXNET | OF_TEST | {"mxnet==1.9.1", "torch==2.13.0+cpu", "sympy==1.13"}
    assert not list(for_cpu.site_packages.glob("?al[f]*"))
    names = {path.name for path in (for_cpu.tree / ".venv").iterdir()}
    assert not names & {"tmp", "build"}, "temporary files"
    assert not (for_cpu.tree / ".venv.building").exists()
    made, folder = _variables(for_cpu), for_cpu.tree / ".venv.building"
    assert {name for name in made if name.startswith("HOROVOD_WITH")} - {"HOROVOD_WITH_MPI", "HOROVOD_WITHOUT_MPI"} == {
        "HOROVOD_WITH_MXNET", "HOROVOD_WITH_GLOO", "HOROVOD_WITHOUT_TENSORFLOW", "HOROVOD_WITHOUT_PYTORCH",
    }  # fmt: skip
    assert ("HOROVOD_WITH_MPI" in made) != ("HOROVOD_WITHOUT_MPI" in made)
    assert made["HOROVOD_CMAKE"] == f"{folder}/bin/cmake"
    assert made["MAKEFLAGS"] == f"-j{len(os.sched_getaffinity(0))}"
    assert made["TMPDIR"].startswith(str(folder))
    assert made["PATH"].startswith(f"{folder}/bin:")
    assert not {name for name in made if "CUDA" in name or "NCCL" in name}
    flags = Path(made["CMAKE_TOOLCHAIN_FILE"]).read_text(encoding="utf-8")
    assert 'set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O3 -DNDEBUG" CACHE' in flags


def test_horovods_flags_name_a_header_that_its_sources_forget(for_cpu: ToyCheckout, tmp_path: Path) -> None:
    cmake = Path(sys.executable).parent / "cmake"
    if not cmake.exists():
        pytest.skip("cmake is not installed here")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.13)\nproject(forgets CXX)\nadd_library(forgets OBJECT forgets.cc)\n", "utf-8"
    )
    (tmp_path / "forgets.cc").write_text(
        'void fail() { throw std::logic_error("GCC 12 finds it, 13 does not"); }\n', "utf-8"
    )
    options = [
        f"-DCMAKE_TOOLCHAIN_FILE={_variables(for_cpu)['CMAKE_TOOLCHAIN_FILE']}",
        "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
    ]
    for words in ([".", *options], ["--build", "."]):
        done = subprocess.run([cmake, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_scripts_and_the_compiled_library_have_the_final_path(for_cpu: ToyCheckout) -> None:
    environment = for_cpu.tree / ".venv"
    (library,) = for_cpu.site_packages.glob("horovod/mxnet/*.so")
    dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    (search,) = re.findall(r"R(?:UN)?PATH.*\[(.*)\]", dynamic)
    assert Path(search) == for_cpu.site_packages / "mxnet"
    scripts = [path for path in (environment / "bin").iterdir() if not path.is_symlink()]
    assert [path.name for path in scripts if b".building" in path.read_bytes()] == []
    assert subprocess.run([environment / "bin" / "wheel", "version"], check=False, capture_output=True).returncode == 0


def test_an_extra_and_a_second_engine_are_added_and_then_nothing_is_left_to_do(for_cpu: ToyCheckout) -> None:
    done = for_cpu.set_up("--quiet", "--engine", "torch", "--extra", "test")
    assert (done.returncode, _begun(done)) == (0, ["5/7", "7/7"]), done.stderr
    assert _own(for_cpu) == COMMON | OF_MXNET | OF_TEST | {"mxnet==1.9.1", "torch==2.13.0+cpu", "sympy==1.13"}
    assert for_cpu.set_up("--quiet").stderr == ""
    path = f"MXNet and PyTorch cpu environment in {for_cpu.tree}/.venv"
    assert for_cpu.set_up("--extra", "test").stderr == f"setup: nothing to do; {path}\n"
    # Another version of a package that MXNet has no other version of, as pip may bring it for a package of the user's.
    (numpy,) = for_cpu.site_packages.glob("numpy-*.dist-info")
    newer = numpy.rename(numpy.with_name("numpy-2.4.6.dist-info"))
    for file in (newer / "METADATA", newer / "RECORD"):
        file.write_text(file.read_text(encoding="utf-8").replace("1.23.5", "2.4.6"), encoding="utf-8")
    done = for_cpu.set_up("--quiet")
    assert (done.returncode, _begun(done)) == (0, ["4/6"]), done.stderr
    assert "numpy==1.23.5" in for_cpu.installed()
    assert for_cpu.set_up("--quiet").stderr == ""
    # Other versions of what Horovod is built from: new packages, new tools and a new build.
    lock = (
        for_cpu.tree / "requirements-py312.lock" if sys.version_info >= (3, 12) else for_cpu.tree / "requirements.lock"
    )
    text = lock.read_text(encoding="utf-8")
    lock.write_text(text.replace("\nnumpy==1.23.5", "\nnumpy==9.9"), encoding="utf-8")
    done = for_cpu.set_up("--extra", "test")
    assert (done.returncode, _begun(done)) == (1, ["3/7"])
    python = "{}.{}".format(*sys.version_info)
    assert f"error: set-up runs offline: {for_cpu.index} has no numpy==9.9 for Python {python}" in done.stderr
    lock.write_text(text, encoding="utf-8")
    done = for_cpu.set_up()
    assert (done.returncode, _begun(done)) == (0, ["3/6"]), "the interrupted stage counts as not done"


def test_an_environment_over_another_python_gets_what_is_missing_there(for_cpu: ToyCheckout, tmp_path: Path) -> None:
    checkout = ToyCheckout(make_tree(tmp_path / "checkout"), for_cpu.index)
    (checkout.tree / "pyproject.toml").write_bytes((for_cpu.tree / "pyproject.toml").read_bytes())
    base = str(for_cpu.tree / ".venv" / "bin" / "python")
    before = {path: path.stat().st_mtime_ns for path in for_cpu.site_packages.rglob("*.py")}
    done = checkout.set_up("--system", base, "--extra", "tensorboard", PIP_TARGET="/no/such")
    assert (done.returncode, _begun(done)) == (0, ["1/3", "2/3", "3/3"]), done.stderr
    assert done.stderr.startswith(
        f"setup: {base} has MXNet 1.9.1, Horovod 0.28.1, DALI 1.34.0, NumPy 1.23.5; set-up makes the cpu environment "
        "over it\n"
    )
    own = {path.name.partition("-")[0] for path in checkout.site_packages.glob("*.dist-info")}
    assert own == {"onnx", "resnet_records", "tensorboardx"}
    assert before == {path: path.stat().st_mtime_ns for path in for_cpu.site_packages.rglob("*.py")}
    again = checkout.set_up("--extra", "tensorboard")
    assert again.stderr == f"setup: nothing to do; MXNet (that of {base}) cpu environment in {checkout.tree}/.venv\n"


def _make_mpicxx(folder: Path, options: str) -> str:
    """Put a compiler for MPI before the others; return the PATH."""
    folder.mkdir()
    (folder / "mpicxx").write_text(f'#!/bin/sh\nexec g++ {options} "$@"\n', encoding="utf-8")
    (folder / "mpicxx").chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_horovod_gets_an_mpi_that_programs_can_be_compiled_with_and_no_other(tmp_path: Path) -> None:
    checkout = _new_checkout(tmp_path)
    runtime_alone = _make_mpicxx(tmp_path / "runtime", "-nostdinc")
    done = checkout.set_up("--cpu", PATH=runtime_alone)
    assert done.returncode == 0, done.stderr
    assert "HOROVOD_WITHOUT_MPI" in _variables(checkout)
    (note,) = [line for line in done.stderr.splitlines() if "MPI" in line]
    assert all(word in note for word in ("mpi.h", "mpirun", "./run.sh setup"))
    # A complete MPI that comes later does not make Horovod again before a run, but when set-up is asked for.
    complete = _make_mpicxx(tmp_path / "complete", f"-I{tmp_path}/complete")
    header = "inline int MPI_Init(int *, char ***) { return 0; }\n"
    (tmp_path / "complete" / "mpi.h").write_text(header, encoding="utf-8")
    for path in (runtime_alone, complete):
        done = checkout.set_up("--quiet", PATH=path)
        assert (done.returncode, done.stderr) == (0, "")
    assert _begun(checkout.set_up(PATH=runtime_alone)) == []
    done = checkout.set_up(PATH=complete)
    assert (done.returncode, _begun(done)) == (0, ["5/5"]), done.stderr
    assert "HOROVOD_WITH_MPI" in _variables(checkout)
    # The machine of the run need not have what a login node has.
    done = checkout.set_up(PATH=runtime_alone)
    assert (done.returncode, _begun(done)) == (0, [])


def test_horovod_for_gpus_is_built_with_nccl_of_the_wheels_and_the_named_toolkit(tmp_path: Path) -> None:
    checkout = _new_checkout(tmp_path)
    toolkit = tmp_path / "cuda"
    (toolkit / "bin").mkdir(parents=True)
    (toolkit / "bin" / "nvcc").write_text("#!/bin/sh\necho 'release 11.8, V11.8.89'\n", encoding="utf-8")
    (toolkit / "bin" / "nvcc").chmod(0o755)
    given: dict[str, Any] = {"CUDA_HOME": str(toolkit), "LD_LIBRARY_PATH": "/site", "HOROVOD_GPU_BROADCAST": "MPI"}
    done = checkout.set_up("--gpu", **given)
    assert done.returncode == 0, done.stderr
    assert _own(checkout) == (COMMON | OF_MXNET | {"mxnet-cu112==1.9.1", "nvidia-nccl-cu11==2.21"}) - {"requests==2.32"}
    packages, made = checkout.site_packages, _variables(checkout)
    building = Path(str(packages).replace("/.venv/", "/.venv.building/"))
    expected = {
        "HOROVOD_GPU": "CUDA", "HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_CUDA_HOME": str(toolkit),
        "HOROVOD_NCCL_HOME": f"{checkout.tree}/.venv.building/nccl", "HOROVOD_NCCL_LINK": "SHARED",
        "HOROVOD_BUILD_CUDA_CC_LIST": "50,60,70,80,86", "NVCC_APPEND_FLAGS": "-allow-unsupported-compiler",
    }  # fmt: skip
    assert {name: made.get(name) for name in expected} == expected
    assert "HOROVOD_GPU_BROADCAST" not in made
    assert made["WHEELS_WERE_THERE"] == "False", "the build runs beside the installation of other packages"
    search = made["LD_LIBRARY_PATH"].split(":")
    assert (search[0], search[-1]) == (f"{building}/nvidia/nccl/lib", "/site")
    if len(search) == 3:  # no driver here: the toolkit's stub stands for it
        stub = checkout.tree / ".venv" / "cuda-stub" / "libcuda.so.1"
        assert stub.readlink() == toolkit / "lib64" / "stubs" / "libcuda.so"
    links = [checkout.tree / ".venv/nccl" / name for name in ("include/nccl.h", "lib/libnccl.so")]
    assert all(link.is_file() for link in [*links, packages / "mxnet" / "libnccl.so.2"])


def test_pytorch_alone_is_checked_by_hashes_unless_that_is_switched_off(tmp_path: Path) -> None:
    checkout = _new_checkout(tmp_path)
    lock = checkout.tree / "requirements-torch.lock"
    text = lock.read_text(encoding="utf-8")
    lock.write_text(re.sub(r"(\ntqdm==.*\n.*\n.*sha256:)\w+", rf"\g<1>{'1' * 64}", text), encoding="utf-8")
    done = checkout.set_up("--engine", "torch", "--cpu")
    assert (done.returncode, _begun(done)) == (1, ["1/3", "2/3", "3/3"])
    assert f"error: tqdm==4.66 in {checkout.index} does not match the lock file" in done.stderr
    wheels = list(checkout.index.glob("torch-2.13*"))
    for path in wheels:
        path.rename(path.with_suffix(".hidden"))
    done = checkout.set_up("--engine", "torch", "--cpu", "--without-hashes")
    assert f"error: set-up runs offline: {checkout.index} has no torch==2.13.0 for Python" in done.stderr
    for path in wheels:
        path.with_suffix(".hidden").rename(path)
    done = checkout.set_up("--engine", "torch", "--cpu", "--without-hashes")
    assert (done.returncode, _begun(done)) == (0, ["3/3"]), done.stderr
    assert _own(checkout) == COMMON | OF_TORCH
    done = checkout.set_up("--download", str(tmp_path / "wheels"), "--engine", "torch", "--cpu", "--without-hashes")
    assert done.returncode == 0, done.stderr
    _assert_files(tmp_path / "wheels", OF_TORCH)
    _set_up_over_pytorch(checkout, tmp_path)
    done = checkout.set_up("--engine", "torch", "--cuda12")
    assert (done.returncode, _begun(done)) == (0, ["1/3", "2/3", "3/3"]), done.stderr
    assert _own(checkout) == COMMON | {"torch==2.10.0", "sympy==1.13", "nvidia-dali-cuda120==2.4.0"}


def _set_up_over_pytorch(base: ToyCheckout, tmp_path: Path) -> None:
    """The base lacks DALI, which the index has, and a package for ONNX, which it does not have."""
    shutil.rmtree(base.site_packages / "nvidia")
    shutil.rmtree(next(base.site_packages.glob("nvidia_dali*.dist-info")))
    checkout = ToyCheckout(make_tree(tmp_path / "over"), base.index)
    (checkout.tree / "pyproject.toml").write_bytes((base.tree / "pyproject.toml").read_bytes())
    python = str(base.tree / ".venv" / "bin" / "python")
    before = {path: path.read_bytes() for path in (base.tree / ".venv").rglob("*") if path.is_file()}
    done = checkout.set_up("--engine", "torch", "--system", python)
    assert (done.returncode, _begun(done)) == (0, ["1/3", "2/3", "3/3"]), done.stderr
    assert "warning: export writes no ONNX file: set-up runs offline: " in done.stderr
    own = {path.name.partition("-")[0] for path in checkout.site_packages.glob("*.dist-info")}
    assert own == {"nvidia_dali_cuda130", "resnet_records"}
    own_python = str(checkout.tree / ".venv" / "bin" / "python")
    subprocess.run([own_python, "-I", "-c", "import sympy"], check=True)  # a module of the base, not compiled yet
    assert before == {path: path.read_bytes() for path in (base.tree / ".venv").rglob("*") if path.is_file()}
    assert checkout.set_up("--engine", "torch").stderr.startswith("setup: nothing to do; PyTorch (that of ")


def test_a_folder_of_wheels_is_filled_and_serves_set_ups_without_an_index(for_cpu: ToyCheckout, tmp_path: Path) -> None:
    packages = OF_MXNET | {"mxnet==1.9.1"}
    folder, options = tmp_path / "usb stick" / "wheels", ["--engine", "mxnet", "--cpu"]
    filled = for_cpu.set_up("--start", str(folder.parent), "--download", "wheels", *options)
    assert filled.returncode == 0, filled.stderr
    assert filled.stderr.endswith(f"./run.sh setup --wheels wheels {' '.join(options)}\n")
    _assert_files(folder, packages)
    assert not (for_cpu.tree / ".venv.download").exists()

    there = ToyCheckout(make_tree(tmp_path / "checkout"), for_cpu.index)
    locks = (path.name for path in for_cpu.tree.glob("requirements*.lock"))
    for name in ("pyproject.toml", "launch/setup/pins.py", *locks):
        (there.tree / name).write_bytes((for_cpu.tree / name).read_bytes())
    no_index = {"PIP_FIND_LINKS": "/no/such"}
    refused = there.set_up("--start", str(folder.parent.parent), "--wheels", "wheels", *options, **no_index)
    assert refused.returncode == 2
    assert refused.stderr == (
        f"error: --wheels: {tmp_path}/wheels is no folder: fill it where there is a network, by ./run.sh setup "
        "--download FOLDER\n"
    )
    hidden = folder / next(path.name for path in folder.iterdir() if path.name.startswith("tqdm-"))
    hidden.rename(folder / "hidden")
    failed = there.set_up("--wheels", str(folder), *options, **no_index)
    assert failed.returncode == 1
    assert "has no tqdm==4.66 for Python" in failed.stderr
    (folder / "hidden").rename(hidden)
    done = there.set_up("--quiet", **no_index)
    assert done.returncode == 0, done.stderr
    assert _own(there) == COMMON | packages, "the folder and what the environment is for are remembered"
    folder.rename(folder.with_name("moved"))
    assert there.set_up("--quiet", **no_index).stderr == "", "nothing is missing"
    gone = there.set_up("--extra", "test", **no_index)
    assert (gone.returncode, gone.stderr.count("\n")) == (2, 1)
    assert gone.stderr.startswith(f"error: {folder} is no folder, and this environment was made from the wheels in it")
    done = there.set_up("--wheels", str(folder.with_name("moved")), **no_index)
    assert done.stderr.startswith("setup: nothing to do")
    done = there.set_up("--extra", "test", **no_index)
    assert done.returncode == 0, done.stderr
    assert _own(there) == COMMON | packages | OF_TEST
    asked = there.set_up("--wheels", "", "--extra", "tensorboard", **no_index)
    assert "/no/such has no tensorboardx" in asked.stderr, "pip's own settings count again"
