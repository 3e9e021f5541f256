"""Load and energy of a run's GPUs, told by a stand-in for NVML; no driver that fails or hangs ends the samples."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from launch.start import monitor
from logs.energy_meter import EnergyMeter
from logs.usage import Sample, read_samples
from tests.libraries import compile_library

MIB = 1 << 20

_NVML = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* Names, structures and numbers of errors are those of NVIDIA's nvml.h. */
typedef struct { const char *uuid; int percent; long long mib; } Gpu;
typedef struct { unsigned gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9 };

static Gpu all[] = { {"GPU-2a61", 50, 100}, {"GPU-2b09", 100, 300}, {"GPU-7f35", 4, 70000}, /* a part: */
                     {"MIG-0c1d", -1, 5000} };
static const unsigned count = 3;
static int status = UNINITIALIZED;

static int number(const char *name, int usual) { const char *set = getenv(name); return set ? atoi(set) : usual; }
static int act(const char *name, int usual)
{ const char *set = getenv(name);
  if (set && !strcmp(set, "hang")) for (;;) pause();
  if (set && !strcmp(set, "crash")) __builtin_trap();
  return number(name, usual); }

int nvmlInitWithFlags(unsigned flags)
{ all[1].percent = number("PERCENT", 100); all[1].mib = number("MIB", 300); return status = act("AT_START", SUCCESS); }
int nvmlDeviceGetCount_v2(unsigned *number) { *number = count; return status; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **gpu)
{ if (index >= count) return INVALID_ARGUMENT; *gpu = &all[index]; return status; }
int nvmlDeviceGetHandleByUUID(const char *uuid, Gpu **gpu)
{ for (*gpu = all; *gpu <= all + count; ++*gpu) if (!strcmp((*gpu)->uuid, uuid)) return status; return NOT_FOUND; }
int nvmlDeviceGetUUID(Gpu *gpu, char *uuid, unsigned size) { strncpy(uuid, gpu->uuid, size); return status; }
int nvmlDeviceGetUtilizationRates(Gpu *gpu, nvmlUtilization_t *found)
{ status = act("AT_QUESTION", status); *found = (nvmlUtilization_t){gpu->percent, 77};
  return gpu->percent < 0 ? NOT_SUPPORTED : status; }
int nvmlDeviceGetMemoryInfo(Gpu *gpu, nvmlMemory_t *found)
{ *found = (nvmlMemory_t){1ull << 37, 7, gpu->mib << 20}; return gpu->mib < 0 ? NO_PERMISSION : status; }
int nvmlDeviceGetTotalEnergyConsumption(Gpu *gpu, unsigned long long *found)
{ long long millijoules[3] = {-1, -1, -1};
  FILE *file = fopen(getenv("MILLIJOULES"), "r");
  if (!file) return NOT_SUPPORTED;
  fscanf(file, "%lld %lld %lld", millijoules, millijoules + 1, millijoules + 2);
  fclose(file);
  *found = millijoules[gpu - all];
  return millijoules[gpu - all] < 0 ? NOT_SUPPORTED : status; }
"""
NOT_SUPPORTED, DRIVER_NOT_LOADED = "3", "9"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the stand-in."""
    folder = tmp_path_factory.mktemp("driver")
    compile_library(folder / "libnvidia-ml.so.1", _NVML)
    return folder


@pytest.fixture
def sample(driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Sample]:
    """Return the function that returns a sample of a run on two GPUs, on a machine with a driver that is told so."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))
    monkeypatch.setenv("MILLIJOULES", "/none")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(monitor, "INTERVAL_S", 0.02)

    def read(*, is_known: bool = True, **told: str) -> Sample:
        for name, value in told.items():
            monkeypatch.setenv(name.upper(), value)
        return _sample(tmp_path, is_known=is_known)

    return read


def _sample(folder: Path, *, is_known: bool) -> Sample:
    """Return the first sample that knows the memory of GPUs; if none will, the second one."""
    before, deadline_s = set(psutil.Process().children(recursive=True)), time.monotonic() + 60
    with monitor.monitored(folder, gpus=2):
        while time.monotonic() < deadline_s:
            samples = read_samples(folder)
            if (samples and samples[-1].gpu_memory_bytes is not None) if is_known else len(samples) > 1:
                break
            time.sleep(0.02)
        asking = set(psutil.Process().children(recursive=True)) - before
        assert {os.getpgid(each.pid) for each in asking}.isdisjoint({os.getpgrp()}), "Ctrl-C would end the samples"
    assert set(psutil.Process().children(recursive=True)) <= before
    return samples[-1]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("told", "shares", "used_bytes"),
    [
        ({}, [0.5, 1.0], 400 * MIB),
        ({"percent": "-1", "mib": "-1"}, [0.5, None], 100 * MIB),
        ({"at_question": NOT_SUPPORTED}, [], None),
        ({"at_start": DRIVER_NOT_LOADED}, [], None),
        ({"at_question": "crash"}, [], None),
    ],
)
def test_what_a_gpu_does_not_report_is_not_known_and_no_failure_ends_the_samples(
    told: dict[str, str], shares: Sequence[float | None], used_bytes: int | None, sample: Callable[..., Sample]
) -> None:
    found = sample(**told, is_known=used_bytes is not None)
    assert (found.gpu_shares, found.gpu_memory_bytes) == (shares, used_bytes)


@pytest.mark.medium
@pytest.mark.parametrize("where", ["at_start", "at_question"])
def test_a_driver_that_hangs_delays_neither_samples_nor_the_end_of_the_run(
    where: str, sample: Callable[..., Sample]
) -> None:
    begin_s = time.monotonic()
    found = sample(**{where: "hang"}, is_known=False)
    assert (found.gpu_shares, found.gpu_memory_bytes) == ([], None)
    assert time.monotonic() - begin_s < 20, "two samples and the end wait a second each"


@pytest.mark.medium
@pytest.mark.parametrize(
    ("visible", "shares", "mib"),
    [
        (" 2,1,0", [0.04, 1.0], 70_300),
        ("1", [1.0], 300),
        ("GPU-7f35, GPU-2a61,GPU-2b09", [0.04, 0.5], 70_100),
        ("MIG-0c1d,GPU-2a61", [None, 0.5], 5100),
        ("GPU-9,9,0", [], None),
    ],
)
def test_each_gpu_that_the_ranks_can_see_and_no_other_is_sampled(
    visible: str, shares: Sequence[float | None], mib: int | None, sample: Callable[..., Sample],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = sample(is_known=mib is not None)
    assert (found.gpu_shares, found.gpu_memory_bytes) == (shares, None if mib is None else mib * MIB)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("millijoules", "told", "joules"),
    [
        (["7000 9000000000000 5", "1507000 9000000000250 99"], {}, [1500, 0.25]),
        (["7000 -1 5", "8000 -1 5"], {}, [1, None]),
        (["7000 3 5", "7000 2 5"], {}, [0, None]),  # the driver was loaded again
        (["7 7 7", "8 9 8"], {"cuda_visible_devices": "1"}, [0.002, None]),
        (["7 7 7", "8 8 8"], {"at_question": "crash"}, [None, None]),
    ],
)
@pytest.mark.usefixtures("sample")
def test_each_gpu_s_energy_is_counted_and_an_unknown_one_is_not_zero(
    millijoules: Sequence[str], told: dict[str, str], joules: Sequence[float | None], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    counters = tmp_path / "counters"
    monkeypatch.setenv("MILLIJOULES", str(counters))
    for name, value in told.items():
        monkeypatch.setenv(name.upper(), value)
    counters.write_text(millijoules[0], encoding="ascii")
    processes = set(psutil.Process().children())
    meter = EnergyMeter(2)
    meter.start()
    counters.write_text(millijoules[1], encoding="ascii")
    meter.stop()
    assert meter.joules.gpus == pytest.approx(joules)
    assert set(psutil.Process().children()) <= processes
