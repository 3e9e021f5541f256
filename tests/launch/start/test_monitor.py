"""The samples of a run's load: no answer of ``nvidia-smi`` ends them, and a cluster file can do without its calls."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from configs.load import load_both
from launch import run
from launch.start import monitor
from launch.start.local import Outcome
from logs.usage import Sample, read_samples

MIB = 1 << 20


def _samples(folder: Path, answer: str, monkeypatch: pytest.MonkeyPatch) -> list[Sample]:
    """Return the samples of a short block, on a machine whose ``nvidia-smi`` prints this answer."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{answer}\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setattr(monitor, "INTERVAL_S", 0.02)
    deadline_s = time.monotonic() + 20
    with monitor.monitored(folder, gpus=2):
        while len(samples := read_samples(folder)) < 2 and time.monotonic() < deadline_s:
            time.sleep(0.02)
    return samples


@pytest.mark.parametrize(
    ("answer", "share", "used_bytes"),
    [
        ("echo '50, 100'; echo '100, 300'", 0.75, 400 * MIB),
        ("echo '[N/A], 100'; echo '[N/A], 300'", None, 400 * MIB),
        ("echo '[N/A], 100'; echo '40, [Insufficient Permissions]'", 0.4, 100 * MIB),
        ("echo 'NVIDIA-SMI has failed, because of the driver, today'; exit 9", None, None),
        ("echo 'No devices were found'", None, None),
    ],
)
def test_no_answer_of_nvidia_smi_ends_the_samples(
    answer: str, share: float | None, used_bytes: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = _samples(tmp_path, answer, monkeypatch)
    assert len(samples) >= 2
    assert (samples[-1].gpu_share, samples[-1].gpu_memory_bytes) == (share, used_bytes)


def test_each_gpu_of_the_run_and_no_other_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,2,7")
    answer = "case $* in *--id=5,2) echo '50, 100'; echo '[N/A], 300';; *) echo '0, 0';; esac"
    samples = _samples(tmp_path, answer, monkeypatch)
    assert (samples[-1].gpu_shares, samples[-1].gpu_share) == ([0.5, None], 0.5)


@pytest.mark.parametrize(("named", "share"), [((), 0.0), (("train.comm.server",), 1.0)])
def test_processor_time_counts_in_the_sample_in_which_it_was_used_and_a_server_s_apart(
    named: tuple[str, ...], share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "INTERVAL_S", 0.02)
    # Reading zeros is work of the kernel, which counts as much as the process's own.
    code = "import time\nzeros = open('/dev/zero', 'rb', 0)\nwhile time.process_time() < 0.3: zeros.read(1 << 20)\n"
    code += "print(flush=True); time.sleep(600)"
    command = [sys.executable, "-S", "-c", code, *named]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        deadline_s, begin_s = time.monotonic() + 20, time.time()
        with monitor.monitored(tmp_path, gpus=0):
            while len(samples := read_samples(tmp_path)) < 3 and time.monotonic() < deadline_s:
                time.sleep(0.02)
        child.kill()
    assert samples[0].busy_cores * (samples[0].time - begin_s) > 0.25
    assert samples[0].server_busy_cores == pytest.approx(share * samples[0].busy_cores)
    assert samples[0].rank_busy_cores == pytest.approx((1 - share) * samples[0].busy_cores)
    assert [sample.busy_cores for sample in samples[1:]] == [pytest.approx(0, abs=0.05)] * (len(samples) - 1)
    assert len(samples) >= 3


@pytest.mark.parametrize(("change", "asked"), [("cluster.sample_gpus=true", 8), ("cluster.sample_gpus=false", 0)])
def test_a_cluster_file_can_do_without_the_calls_of_nvidia_smi(
    change: str, asked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []

    def note(_folder: Path, *, gpus: int) -> nullcontext[None]:
        told.append(gpus)
        return nullcontext()

    monkeypatch.setattr(run, "monitored", note)
    monkeypatch.setattr(run, "run_under", lambda *_: Outcome(0))
    monkeypatch.setattr(run, "record_environment", lambda *_: None)
    run._run_ranks(tmp_path, *load_both("digits", "a100-node", [change]))
    assert told == [asked]
