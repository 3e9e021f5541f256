"""The facts about a machine and its data set that a rank of the doctor collects."""

import os
import resource
import shutil
from pathlib import Path

import pytest

from configs.load import load_both
from data.cache import drop_pages, resident_bytes
from launch.doctor.facts import DatasetFacts
from launch.doctor.machine import inspect_dataset, inspect_machine


def test_a_folder_that_is_not_there_has_the_free_bytes_of_its_nearest_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "not" / "there"
    _, cluster = load_both("digits", None, [f"cluster.paths.runs={runs}", "cluster.paths.stage=null"])
    facts = inspect_machine(cluster)
    assert facts.runs.folder == str(runs)
    assert facts.runs.free_bytes == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.2)
    assert facts.runs.is_writable
    assert facts.stage is None
    assert not runs.exists(), "the doctor changes nothing"
    monkeypatch.setattr(os, "access", lambda _, mode: not mode & os.W_OK)
    assert inspect_machine(cluster).runs.is_writable is False


@pytest.mark.parametrize(("limits", "told"), [((5, 9), 5), ((resource.RLIM_INFINITY, 9), None)])
def test_what_the_kernel_says_of_the_machine_is_told_in_bytes(
    limits: tuple[int, int], told: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, cluster = load_both("digits", None, [f"cluster.paths.runs={tmp_path}", "cluster.paths.stage=$NO_SUCH_FOLDER"])
    monkeypatch.delenv("NO_SUCH_FOLDER", raising=False)
    monkeypatch.setattr("resource.getrlimit", lambda _: limits)
    facts = inspect_machine(cluster)
    assert facts.shm_free_bytes == pytest.approx(shutil.disk_usage("/dev/shm").free, rel=0.2)
    assert facts.stage is not None
    assert "NO_SUCH_FOLDER" in str(facts.stage.problem)
    assert facts.limits.get("locked memory") == told
    assert facts.interfaces["lo"] == Path("/sys/class/net/lo/operstate").read_text(encoding="ascii").strip()


def _kernel(root: Path, files: dict[str, str]) -> Path:
    """Write what a kernel shows as files below a folder, and return the folder."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="ascii")
    return root


def test_adapters_and_memory_are_those_that_the_kernel_lists(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemTotal:       9 kB\nMemAvailable:      5 kB\n",
        "sys/class/net/ib0/operstate": "up\n",
        "sys/class/infiniband/mlx5_0/ports/2/state": "1: DOWN\n",
        "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
    }
    _kernel(tmp_path, files)
    (tmp_path / "sys/class/net/eth0").mkdir()
    cluster = load_both("digits", None, ["cluster.paths.stage=null"])[1]
    facts = inspect_machine(cluster, tmp_path)
    assert (facts.memory_available_bytes, facts.memory_limit, facts.usable_cores) == (5 * 1024, None, None)
    assert facts.interfaces == {"ib0": "up", "eth0": None}
    assert facts.adapters == {"mlx5_0": ["4: ACTIVE", "1: DOWN"]}
    assert facts.shm_free_bytes is None, "there is none"
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\n", encoding="ascii")
    assert inspect_machine(cluster, tmp_path).memory_available_bytes is None


def test_the_control_group_limits_cores_and_memory(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemAvailable: 900000 kB\n",
        "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "proc/self/cgroup": "0::/job\n",
        "sys/fs/cgroup/job/memory.max": f"{400 << 20}\n",
        "sys/fs/cgroup/job/memory.current": f"{100 << 20}\n",
        "sys/fs/cgroup/job/cpu.max": "50000 100000\n",
    }
    facts = inspect_machine(load_both("digits", None, [])[1], _kernel(tmp_path, files))
    assert (facts.memory_available_bytes, facts.usable_cores) == (300 << 20, 0.5)
    assert facts.memory_limit == f"{tmp_path}/sys/fs/cgroup/job has 0.42 GB"


def test_a_missing_data_set_of_the_user_is_a_problem_and_a_synthetic_one_has_no_folder(tmp_path: Path) -> None:
    recipe, cluster = load_both("digits", None, [f"cluster.paths.data={tmp_path}"])
    folder = str(tmp_path / "digits")
    assert inspect_dataset(recipe, cluster) == DatasetFacts(folder, exists=False), "the first run packs it"
    own, _ = load_both("digits", None, ["data.source=idx"])
    facts = inspect_dataset(own, cluster)
    assert (facts.exists, facts.folder, "digits" in str(facts.problem)) == (True, folder, True)
    synthetic, _ = load_both("digits", None, ["data.source=synthetic"])
    assert inspect_dataset(synthetic, cluster) == DatasetFacts(folder=None)


def test_a_sound_data_set_is_told_in_records_and_bytes_and_a_broken_one_by_its_file(
    tmp_path: Path, shared_digits: Path
) -> None:
    folder = shutil.copytree(shared_digits, tmp_path / "digits")
    recipe, cluster = load_both("digits", None, [f"cluster.paths.data={tmp_path}"])
    facts = inspect_dataset(recipe, cluster)
    assert (facts.folder, facts.problem) == (str(folder), None)
    assert facts.records == recipe.data.train_samples + recipe.data.eval_samples
    assert facts.bytes >= sum(path.stat().st_size for path in folder.glob("*.rec"))
    (folder / "more.rec").mkdir()
    facts = inspect_dataset(recipe, cluster)
    assert (facts.problem, facts.exists) == (f"{folder / 'more.rec'}: Is a directory", True)
    (folder / "manifest.json").write_text("{", encoding="utf-8")
    facts = inspect_dataset(recipe, cluster)
    assert facts.problem
    assert facts.exists


@pytest.mark.medium
def test_both_ends_of_each_file_of_records_are_read(tmp_path: Path, shared_digits: Path) -> None:
    path, size = shutil.copytree(shared_digits, tmp_path / "digits") / "more.rec", 32 << 20
    path.write_bytes(bytes(size))
    drop_pages([path])
    if resident_bytes([path]):
        pytest.skip("this folder keeps its pages: set TMPDIR to a folder on a disk")
    facts = inspect_dataset(*load_both("digits", None, [f"cluster.paths.data={tmp_path}"]))
    assert facts.problem is None

    def is_cached(offset: int) -> bool:
        with path.open("rb") as file:
            try:
                return os.preadv(file.fileno(), [bytearray(1)], offset, os.RWF_NOWAIT) == 1
            except BlockingIOError:
                return False
            except OSError as error:  # The file system of a container's layers cannot tell.
                pytest.skip(f"{path}: {error.strerror}: set TMPDIR to a folder on a disk")

    assert [is_cached(offset) for offset in (0, size // 2, size - 1)] == [True, False, True]
