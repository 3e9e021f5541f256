"""The checks of ``./run.sh doctor --step``: the recipe's step as the ranks took it, beside plan and simulator. Pure."""

import re
import statistics
from collections.abc import Sequence

from launch.doctor.check_result import CheckResult, ExpectedRate, Level, PlannedRun, ProbeReport
from launch.doctor.facts import PartFailure, RankFacts, StepFacts

_SLOW = 1.2
"""A rank is slow if its compute takes so many times the ranks' median; noise on two shared cores reaches 1.1."""

_LISTED = 8
"""Most buckets whose times are listed one by one."""

_SECONDS_FROM = 0.9995
"""Shorter times are told in milliseconds, of which three digits stay below 1000."""

_OVER_PLAN = 1.1
_PROBE_BYTES = 100_000_000
"""What the doctor's own rank takes on top of the plan: it also measures an allreduce of 32 MiB."""

_SMALLER = (
    "take smaller micro-batches (batch.bn_span, batch.accumulation_steps), fewer input_threads or a lower "
    "prefetch_depth; ./run.sh plan lists the memory"
)

_REMEDIES = (
    (r"out of memory|OUT_OF_MEMORY|Failed to allocate CPU Memory|MemoryError", _SMALLER),
    (r"no kernel image|invalid device function", "this MXNet has no kernels for the GPU: see docs/gpu.md"),
    (
        r"driver version is insufficient|(INVALID|UNSUPPORTED)_PTX|(unsupported|invalid) PTX|NVRTC",
        "update the driver to R520 or later, or set MXNET_USE_FUSION: 0 in the cluster file's environment",
    ),
    (
        r"CUDNN_STATUS|cuDNN",
        "cuDNN has no algorithm for these shapes: try engine.layout: NCHW, or another micro-batch",
    ),
    (
        r"NCCL|nccl[A-Z]",
        "run again with NCCL_DEBUG=INFO in the cluster file's environment; in a container, give more /dev/shm and "
        "locked memory",
    ),
    (
        r"nvjpeg|NVJPEG",
        "lower engine.input_threads: nvJPEG reserves 0.2 GB of the GPU and 0.3 GB of the host for each",
    ),
)
"""Pattern of an error -> what to do."""

_Rows = Sequence[tuple[RankFacts, StepFacts]]


def check_step(report: ProbeReport) -> list[CheckResult]:
    """Return the results on the step; none if the ranks did not come so far or were not to take one."""
    rows = [(rank, rank.step) for rank in report.ranks if rank.step is not None]
    if not rows:
        return []
    failed = [(rank, step.failure, step) for rank, step in rows if step.failure]
    if failed:
        return [_failure(report.plan, *failed[0], others=len(failed) - 1)]
    hung = [(rank, step) for rank, step in rows if not step.has_ended]
    if hung or len(rows) < report.cluster.world_size:
        names = ", ".join(f"rank {rank.rank} on {rank.host} ({step.part})" for rank, step in hung[:8])
        words = f"{names or 'a rank'} did not finish its part"
        return [
            CheckResult("FAIL", "step", words, "see the output above; a rank that waits for others is not the cause")
        ]
    results = [_times(rows), _balance(rows), _memory(report, rows)]
    return [*results, *([_forecast(report, report.forecast, rows)] if report.forecast is not None else [])]


def _failure(
    plan: PlannedRun | None, rank: RankFacts, failure: PartFailure, step: StepFacts, *, others: int
) -> CheckResult:
    """Name the first rank that failed, its part and the remedy."""
    remedy = next((text for pattern, text in _REMEDIES if re.search(pattern, failure.words)), "")
    missing = 0
    if plan and plan.available_bytes:
        missing = plan.total_bytes - (plan.available_bytes - (step.memory_before_bytes or 0))
    more = f"; {missing / 1e9:.1f} GB more than the GPU has, by the plan" if missing > 0 and remedy == _SMALLER else ""
    where = f"rank {rank.rank} on {rank.host}" + (f", and {others} more ranks" if others else "")
    return CheckResult("FAIL", "step", f"{where}, {failure.part}: {failure.words}{more}", remedy)


def _times(rows: _Rows) -> CheckResult:
    """Report the parts' times of the slowest rank, and the rate of all."""
    facts = max((step for _, step in rows), key=lambda step: step.seconds["step"])
    seconds = facts.seconds
    parts = {
        "forward": _ms(seconds["forward"]),
        "backward": _ms(max(0.0, seconds["forward and backward"] - seconds["forward"])),
        "update": _ms(seconds["update"]),
        "each bucket alone": _buckets(facts.buckets_s),
        "evaluation batch": _ms(seconds["evaluation"]),
        "first batch": _ms(seconds["first batch"]) if "first batch" in seconds else "random, as no data set is there",
        "warm-up": _ms(seconds["warm-up"]),
    }
    rate = f"{facts.images / seconds['step']:,.1f} images/s on {len(rows)} ranks"
    words = "; ".join([f"{_ms(seconds['step'])}, {rate}", *(f"{name} {value}" for name, value in parts.items())])
    return CheckResult("OK", "step", words)


def _buckets(times_s: Sequence[float]) -> str:
    """Return the times of the buckets, in words; of many only the ends."""
    if len(times_s) <= _LISTED:
        return ", ".join(map(_ms, times_s))
    return f"{_ms(min(times_s))} to {_ms(max(times_s))}, all {len(times_s)} together {_ms(sum(times_s))}"


def _balance(rows: _Rows) -> CheckResult:
    """Name the rank whose own compute takes longest; a synchronous step waits for that rank."""
    times = {rank.rank: step.seconds["forward and backward"] for rank, step in rows}
    middle, slowest = statistics.median(times.values()), max(times, key=lambda rank: times[rank])
    host = next(rank.host for rank, _ in rows if rank.rank == slowest)
    words = f"rank {slowest} on {host} is the slowest: {_ms(times[slowest])} of compute, median {_ms(middle)}"
    if times[slowest] > _SLOW * middle:
        remedy = "look for other programs, a throttled GPU or wrong cores on that host, or take it out of service"
        return CheckResult("WARN", "slowest rank", words, remedy, (host,))
    return CheckResult("OK", "slowest rank", words)


def _memory(report: ProbeReport, rows: _Rows) -> CheckResult:
    """Compare the rank that uses most memory with the plan."""
    rank, step = max(rows, key=lambda row: row[1].memory_bytes or 0)
    if step.memory_bytes is None or report.plan is None:
        return CheckResult("WARN", "step memory", "not measured: nvidia-smi does not report it", "")
    used, expected = step.memory_bytes, report.plan.total_bytes
    expected += 0 if report.cluster.device == "gpu" else _PROBE_BYTES
    words = f"{used / 1e9:.2f} GB in use by rank {rank.rank} on {rank.host}, planned {expected / 1e9:.2f} GB"
    if used > _OVER_PLAN * expected:
        return CheckResult("WARN", "step memory", words, "leave that much room: the plan gives estimates")
    return CheckResult("OK", "step memory", words)


def _forecast(report: ProbeReport, forecast: ExpectedRate, rows: _Rows) -> CheckResult:
    """Compare the rate with the simulator's."""
    if forecast.problem:
        return CheckResult("WARN", "forecast", f"not compared: {forecast.problem}", "")
    rate = rows[0][1].images / max(step.seconds["step"] for _, step in rows)
    low, high = forecast.low, forecast.high
    level: Level = "OK" if rate >= low else "WARN"
    words = f"{rate:,.1f} images/s, the simulator expects {forecast.images_per_s:,.1f} ({low:,.1f} to {high:,.1f})"
    if rate > high and report.cluster.device == "cpu":
        words += "; its figures for this machine are too low: ./run.sh simulate --calibrate-here measures them again"
    remedy = "compare the parts above with ./run.sh simulate RECIPE --cluster C --json" if level == "WARN" else ""
    return CheckResult(level, "forecast", words, remedy)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < _SECONDS_FROM else f"{seconds:.3g} s"
