"""What set-up and doctor say on a machine with GPUs, by GPU and driver; ``docs/gpu.md`` holds the answers.

    ./run.sh test tests/launch/setup/test_gpu.py --gpu-table docs/gpu.md

writes the page.
"""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from configs.errors import UserError
from configs.load import ROOT, load_cluster
from launch.doctor.check_result import ProbeReport
from launch.doctor.diagnosis import judge
from launch.doctor.facts import RankFacts
from launch.doctor.machine import inspect_machine
from launch.setup import gpu
from launch.setup.checks import check_gpus, describe_gpus
from launch.setup.gpu import Gpu, capability_of, find_toolkit, search_gpus
from launch.setup.layout import Engine, Variant
from logs import environment
from tests.launch.setup.gpu_machines import MACHINES, GpuMachine
from tests.launch.stand_in import write_program

_PAGE = ROOT / "docs" / "gpu.md"
_WORDS = {"setup:": "taken", "error:": "refused", "OK": "good", "WARN": "warns", "FAIL": "fails"}
"""First word of a message -> what stands in the table."""


@pytest.fixture
def imitate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder from which ``nvidia-smi`` is taken."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


def _set_up_says(engine: Engine) -> str:
    gpus, problem = search_gpus()
    try:
        return f"setup: {describe_gpus(gpus, problem, check_gpus(gpus, engine=engine), engine)}"
    except UserError as error:
        return f"error: {error}"


def _doctor_says() -> str:
    cluster = load_cluster("a100-node")
    # By hand, because an environment without MXNet refuses the name.
    cluster = cluster.model_copy(update={"engine": cluster.engine.model_copy(update={"name": "mxnet"})})
    rank = RankFacts(0, 0, 1, "node0", [], machine=inspect_machine(cluster))
    results = judge(ProbeReport(cluster, [rank], None))
    (found,) = [replace(result, hosts=()) for result in results if result.topic == "driver"]
    return str(found)


def _general(said: str, machine: GpuMachine) -> str:
    """Return a message without what differs from machine to machine of the same answer."""
    for given, name in ((machine.name, "GPU"), (machine.driver, "DRIVER"), (f"{machine.count} x ", "N x ")):
        said = said.replace(given, name)
    said = re.sub(r"compute capability \d+\.\d+\)", "compute capability C)", said)
    return re.sub(rf"{machine.count} GPU", "N GPU", said)


@pytest.mark.ranks
def test_the_page_tells_what_set_up_and_doctor_say(
    imitate: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_packages", dict)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    numbers: dict[str, int] = {}
    lines = ["| GPUs, driver | set-up | with `--engine torch` | doctor, of MXNet |", "| --- | --- | --- | --- |"]
    for machine in MACHINES:
        machine.install(imitate)
        cells = []
        for said in (_set_up_says("mxnet"), _set_up_says("torch"), _doctor_says()):
            general = _general(said, machine)
            cells.append(f"{_WORDS[said.split()[0]]} ({numbers.setdefault(general, len(numbers) + 1)})")
        lines.append(f"| {machine} | {' | '.join(cells)} |")
    lines += ["", *(f"{number}. `{general}`" for general, number in numbers.items())]
    head, title, _ = _PAGE.read_text(encoding="utf-8").partition("## What set-up says\n\n")
    page = head + title + "\n".join(lines) + "\n"
    if name := request.config.getoption("--gpu-table"):
        Path(name).write_text(page, encoding="utf-8")
    assert _PAGE.read_text(encoding="utf-8") == page, "make the table anew, see this file's head"


def test_an_old_driver_leaves_the_capability_to_the_name_and_an_unknown_gpu_is_taken(imitate: Path) -> None:
    found = []
    for name in ("Tesla V100-SXM2-16GB", "NVIDIA X1, special"):
        GpuMachine("X", name, (8, 0), "470.57.02", count=2).install(imitate)
        found.append(search_gpus()[0])
    assert [[(gpu.name, gpu.capability) for gpu in gpus] for gpus in found] == [
        [("Tesla V100-SXM2-16GB", (7, 0))] * 2,
        [("NVIDIA X1, special", None)] * 2,
    ]
    assert [check_gpus(each) for each in found] == ["gpu", "gpu"]


def test_a_container_without_nvidia_smi_reads_what_the_driver_tells_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpu, "NVIDIA_DRIVER", tmp_path)
    assert search_gpus() == ([], "")
    version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
    (tmp_path / "version").write_text(version, encoding="utf-8")
    for bus in ("0000:07:00.0", "0000:0f:00.0"):
        file = tmp_path / "gpus" / bus / "information"
        file.parent.mkdir(parents=True)
        file.write_text("Model: \t\t NVIDIA A100-SXM4-80GB\nIRQ:   \t\t 18\nBus Type: \t PCIe\n", encoding="utf-8")
    assert search_gpus()[0] == [Gpu("NVIDIA A100-SXM4-80GB", (8, 0), "535.104.05")] * 2


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("echo 'NVIDIA-SMI has failed because of the driver'; exit 9", "NVIDIA-SMI has failed because of the driver"),
        ("echo 'No devices were found'", "No devices were found"),
        ("echo 'name, compute_cap'; exit 1", "name, compute_cap"),
        ("exit 3", "exit status 3, no output"),
    ],
)
def test_an_nvidia_smi_that_lists_nothing_is_told(body: str, reason: str, imitate: Path) -> None:
    write_program(imitate / "nvidia-smi", body)
    gpus, problem = search_gpus()
    assert check_gpus(gpus) == "cpu"
    assert describe_gpus(gpus, problem, "cpu").startswith(f"nvidia-smi lists no GPU ({reason}); set-up makes the cpu")


@pytest.mark.parametrize(
    ("capability", "names"),
    [
        ((3, 7), "Tesla K80"),
        ((7, 0), "Tesla V100-SXM3-32GB|NVIDIA TITAN V"),
        ((8, 9), "NVIDIA L4|NVIDIA GeForce RTX 4090"),
        ((9, 0), "NVIDIA H200|NVIDIA GH200 480GB"),
        ((6, 1), "Tesla P40|Tesla P4|Tesla P6|GeForce GTX 1080 Ti|NVIDIA TITAN Xp|TITAN X"),
        ((7, 5), "Tesla T4|NVIDIA T4G|GeForce RTX 2080 Ti|Quadro RTX 6000|TITAN RTX|GeForce GTX 1660"),
        ((8, 0), "NVIDIA A100-SXM4-80GB|NVIDIA A100X|NVIDIA A800|NVIDIA A30|NVIDIA A30X"),
        ((8, 6), "NVIDIA A40|NVIDIA A10|NVIDIA A10G|NVIDIA A16|NVIDIA A2|NVIDIA RTX A6000|NVIDIA GeForce RTX 3090"),
        ((10, 0), "NVIDIA B100|NVIDIA B200|NVIDIA GB200"),
        ((12, 0), "NVIDIA GeForce RTX 5090|NVIDIA RTX PRO 6000 Blackwell Server Edition"),
    ],
)
def test_the_name_of_a_gpu_tells_its_capability(capability: tuple[int, int], names: str) -> None:
    known = [*names.split("|"), *(machine.name for machine in MACHINES if machine.capability == capability)]
    assert {name: capability_of(name) for name in known} == dict.fromkeys(known, capability)


@pytest.mark.parametrize(
    ("place", "driver", "variant", "before", "way_out"),
    [
        ("mxnet x86_64", "450.80", "gpu", "450.79", "update the driver to R450"),
        ("torch x86_64", "525.60", "cuda12", "525.59", "update the driver to R525 .*, or train on"),
        ("torch aarch64", "580.0", "gpu", "579.99", "update the driver to R580 or later, or train on"),
    ],
)
def test_the_oldest_driver_that_runs_the_engine_is_taken(
    place: str, driver: str, variant: Variant, before: str, way_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, machine = place.split()
    monkeypatch.setattr("platform.machine", lambda: machine)
    given: dict[str, Any] = {"engine": engine}
    assert check_gpus([Gpu("GPU", (8, 0), driver)], **given) == variant
    with pytest.raises(UserError, match=rf"driver {before} is too old for CUDA .*{way_out}"):
        check_gpus([Gpu("GPU", (8, 0), before)], **given)


@pytest.mark.parametrize(
    ("driver", "capability", "wanted", "variant"),
    [
        ("580.0", (8, 0), None, "gpu"),
        ("579.99", (8, 0), None, "cuda12"),
        ("580.0", (7, 0), None, "cuda12"),
        ("580.0", (8, 0), "cuda12", "cuda12"),
        ("", (8, 0), None, "gpu"),
        ("", None, "cuda12", "cuda12"),
    ],
)
def test_pytorch_gets_the_newest_cuda_that_driver_and_gpu_can_use(
    driver: str, capability: tuple[int, int] | None, wanted: Variant | None, variant: Variant,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    gpus = [Gpu("GPU", capability, driver)]
    assert check_gpus(gpus, wanted, "torch") == variant
    made = f"set-up makes the {variant} environment (CUDA {12 if variant == 'cuda12' else 13})"
    assert describe_gpus(gpus, "", variant, "torch").endswith(f"driver {driver or 'unknown'}; {made}")


@pytest.mark.parametrize(
    ("wheel", "with_kernels", "without"),
    [
        ("mxnet", [(5, 0), (8, 9)], [(3, 7), (9, 0)]),
        ("torch", [(7, 5), (13, 0)], [(6, 1)]),
        ("torch cuda12", [(7, 0), (12, 1)], [(6, 1), (13, 0)]),
    ],
)
def test_of_gpus_one_with_kernels_gives_the_variant_and_without_it_the_first_is_refused_by_name(
    wheel: str, with_kernels: list[tuple[int, int]], without: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    engine, _, wanted = wheel.partition(" ")
    given: dict[str, Any] = {"engine": engine, "wanted": wanted or None}
    others = [Gpu("GPU", each, "580.0") for each in without]
    for each in with_kernels:
        assert check_gpus([*others, Gpu("unknown", None), Gpu("GPU", each, "580.0")], **given) == (wanted or "gpu")
    for other in others:
        with pytest.raises(UserError, match=rf"{re.escape(str(other))}: .* has kernels.*--cpu"):
            check_gpus([other], **given)
    assert check_gpus([], **given) == "cpu"


def test_every_field_of_nvidia_smi_is_read_also_where_a_name_has_commas(imitate: Path) -> None:
    lines = ["warning: x", "NVIDIA A100, 80GB, 8.0, 535.104.05", "Tesla V100, 7.0, 450.80"]
    write_program(imitate / "nvidia-smi", "\n".join(["cat <<END", *lines, "END"]))
    assert search_gpus()[0] == [
        Gpu("NVIDIA A100, 80GB", (8, 0), "535.104.05"),
        Gpu("Tesla V100", (7, 0), "450.80"),
    ]


@pytest.mark.medium
def test_the_toolkit_is_the_first_of_cuda_11_that_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    homes = [tmp_path / name for name in ("for_horovod", "for_all", "on_path")]
    for home in homes:
        write_program(home / "bin" / "nvcc", "echo 'Cuda compilation tools, release 11.8, V11.8.89'")
    monkeypatch.setenv("HOROVOD_CUDA_HOME", str(homes[0]))
    monkeypatch.setenv("CUDA_HOME", str(homes[1]))
    monkeypatch.setenv("PATH", str(homes[2] / "bin"))
    assert find_toolkit() == homes[0]
    write_program(homes[0] / "bin" / "nvcc", "echo 'Cuda compilation tools, release 13.0, V13.0.88'")
    assert find_toolkit() == homes[1]
    write_program(homes[1] / "bin" / "nvcc", "exec /bin/sleep 900")
    monkeypatch.setattr(gpu, "_QUERY_TIMEOUT_S", 0.5)
    assert find_toolkit() == homes[2], "a compiler that hangs is passed over"
    write_program(homes[2] / "bin" / "nvcc", "echo 'release 11.8, V11.8.89'; exit 1")
    assert find_toolkit() not in homes
