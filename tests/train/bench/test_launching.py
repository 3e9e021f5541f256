"""A job of real ranks returns their output, and a failed one shows the last lines of it."""

import sys
from pathlib import Path

import pytest

from configs.load import ROOT, load_both, load_cluster
from configs.programs import Program, command_of
from train.bench import launching
from train.bench.launching import pack_dataset, run, run_ranks
from train.bench.measure import MeasurementFailed


@pytest.mark.ranks
def test_every_rank_runs_the_program_with_the_clusters_variables() -> None:
    output = run_ranks(
        [sys.executable, "-m", "sysconfig"], overrides=["cluster.ranks_per_node=3"], environment={"ONE": "1"}
    )
    assert output.count("Python version:") == 3


@pytest.mark.ranks
def test_the_error_of_a_failed_job_has_the_command_and_the_last_lines() -> None:
    with pytest.raises(MeasurementFailed, match=r"(?s)no.such.module.*No module named"):
        run_ranks([sys.executable, "-m", "no.such.module"])


def test_a_program_that_refuses_is_a_failed_measurement() -> None:
    with pytest.raises(MeasurementFailed, match="COMMAND is missing"):
        run(command_of(Program.RANKS_LAUNCHER, "--cluster", "laptop"))


def test_a_program_runs_in_the_folder_of_this_one_with_its_variables_and_any_bytes_can_be_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BENCHED", "outside")
    monkeypatch.chdir(tmp_path)
    words = "import os, sys; print(os.getcwd(), os.environ['BENCHED'], flush=True); os.write(2, b'caf\\xe9')"
    told = run([sys.executable, "-I", "-S", "-c", words], {"BENCHED": "inside"})
    assert told == f"{ROOT} inside\ncaf\N{REPLACEMENT CHARACTER}"


def test_the_last_lines_of_a_failed_program_are_told() -> None:
    words = "[print('line', number) for number in range(99)]; print('last words'); raise SystemExit(7)"
    with pytest.raises(MeasurementFailed, match=r"ended with exit status 7:\nline 88\n(.*\n)+last words$"):
        run([sys.executable, "-I", "-S", "-c", words])
    with pytest.raises(MeasurementFailed, match=r"ended with exit status -9:\nlast words$"):
        run(["bash", "-c", "echo last words; kill -KILL $$"])


@pytest.mark.parametrize(
    ("cluster", "is_local_cpu"),
    [("laptop", True), ("a100-node", False), ("abci-v100", False)],
)
def test_only_the_cpu_of_one_machine_is_local(cluster: str, is_local_cpu: bool) -> None:
    assert launching.is_local_cpu(load_cluster(cluster)) is is_local_cpu


@pytest.mark.parametrize("is_packed", [True, False])
def test_a_data_set_is_packed_where_none_is_complete(
    is_packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(launching, "run", started.append)
    (tmp_path / "digits").mkdir()
    if is_packed:
        (tmp_path / "digits" / "manifest.json").touch()
    folder = pack_dataset(*load_both("digits", "laptop", [f"cluster.paths.data={tmp_path}"]))
    assert folder == tmp_path / "digits"
    assert len(started) == (not is_packed)
