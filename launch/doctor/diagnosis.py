"""The checks of ``./run.sh doctor`` over all ranks, and the order of all checks. Pure."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from configs.arguments import counted
from configs.schema import Cluster
from launch.doctor.check_result import CheckResult, Level, ProbeReport
from launch.doctor.facts import MachineFacts, RankFacts
from launch.doctor.machine_checks import HARDWARE_CHECKS, SOFTWARE_CHECKS
from launch.doctor.step_checks import check_step

_DECISIVE = (
    "python", "mxnet", "mxnet-cu112", "horovod", "torch", "numpy", "nvidia-dali-cuda110", "nvidia-dali-cuda120",
    "nvidia-dali-cuda130", "driver", "commit",
)  # fmt: skip
"""Versions that must be the same on all hosts; other packages only should be."""

_CLOCK_WARN_S, _CLOCK_FAIL_S = 0.5, 60.0
_SLOW_SHARE = 0.1
"""Least share of the cluster file's bandwidth. Less points to the wrong transport; more may be due to latency."""

_SHOWN_RANKS = 8


def judge(report: ProbeReport) -> list[CheckResult]:
    """Return the results of all checks, in the order in which a user has to solve the problems."""
    results = [_presence(report)]
    if report.machines:
        results += _on_each_machine(report, SOFTWARE_CHECKS)
        results += _versions(report)
        results += _on_each_machine(report, HARDWARE_CHECKS)
        slow_settings = report.plan.slow_settings if report.plan else ()
        results += [CheckResult("WARN", "settings", words) for words in slow_settings]
        results += [_clocks(report), _allreduce(report), *check_step(report)]
    return results


def _on_each_machine(
    report: ProbeReport, checks: Iterable[Callable[[ProbeReport, MachineFacts, RankFacts], CheckResult | None]]
) -> list[CheckResult]:
    """Return one result for a check that is OK on all machines, else one for each problem, with its hosts."""
    results = []
    for check in checks:
        hosts: dict[CheckResult, list[str]] = defaultdict(list)
        for host, machine, rank in report.machines:
            result = check(report, machine, rank)
            if result is not None:
                hosts[result].append(host)
        fine = [result for result in hosts if result.level == "OK"]
        if fine and len(fine) == len(hosts):
            results.append(fine[0] if len(fine) == 1 else replace(fine[0], words=f"{fine[0].words}; others similar"))
        results += [replace(result, hosts=tuple(names)) for result, names in hosts.items() if result.level != "OK"]
    return results


def _presence(report: ProbeReport) -> CheckResult:
    """Check that all ranks reported, from as many hosts as the cluster file has nodes."""
    size, reported = report.cluster.world_size, {rank.rank for rank in report.ranks}
    hosts = {host for host, _, _ in report.machines}
    missing = [str(rank) for rank in range(size) if rank not in reported]
    if missing:
        first = ", ".join(missing[:_SHOWN_RANKS]) + (" ..." if len(missing) > _SHOWN_RANKS else "")
        remedy = "see the launcher's output above; paths.runs must be on a disk that all hosts share"
        return CheckResult("FAIL", "ranks", f"{len(missing)} of {size} did not report: {first}", remedy, report.absent)
    if len(hosts) != report.cluster.num_nodes:
        words = f"{size} ranks on {len(hosts)} hosts, the cluster file has num_nodes: {report.cluster.num_nodes}"
        return CheckResult("WARN", "ranks", words, "ask the scheduler for ranks_per_node tasks per node")
    return CheckResult("OK", "ranks", f"{size} on {counted(len(hosts), 'host')}")


def _versions(report: ProbeReport) -> list[CheckResult]:
    """Compare the versions on every host with the most frequent ones."""
    rows = {host: _versions_of(machine.environment) for host, machine, _ in report.machines}
    if len(rows) == 1:
        (row,) = rows.values()
        named = ", ".join(f"{name} {row[name]}" for name in _DECISIVE[:-1] if name in row)
        return [CheckResult("OK", "versions", f"{named} (one host, nothing to compare with)")]
    results = []
    for name in sorted(set().union(*rows.values())):
        values = {host: row.get(name, "none") for host, row in rows.items()}
        usual, _ = Counter(values.values()).most_common(1)[0]
        for value in sorted(set(values.values()) - {usual}):
            hosts = tuple(host for host, each in values.items() if each == value)
            level: Level = "FAIL" if name in _DECISIVE else "WARN"
            remedy = "start the program of all hosts from one folder or image"
            results.append(CheckResult(level, "versions", f"{name} {value}, elsewhere {usual}", remedy, hosts))
    return results or [CheckResult("OK", "versions", f"the same on all {len(rows)} hosts")]


def _versions_of(environment: Mapping[str, Any]) -> dict[str, str]:
    gpus, git = environment["gpus"] or [{}], environment["git"] or {}
    own = {
        "python": environment["python"].split()[0],
        "driver": gpus[0].get("driver_version"),
        "commit": git.get("commit"),
        "changes": git.get("diff_sha256"),
    }
    return {**environment["packages"], **{name: value for name, value in own.items() if value}}


def _clocks(report: ProbeReport) -> CheckResult:
    """Check how far the clocks of the hosts are apart."""
    offsets = [rank.clock_offsets_s for rank in report.ranks if rank.clock_offsets_s is not None]
    if not offsets:
        words = "not compared, because the ranks did not connect to each other"
        return CheckResult("WARN", "clocks", words, "solve the problem of the allreduce first")
    if len(report.machines) == 1:
        return CheckResult("OK", "clocks", "one host, nothing to compare with")
    hosts = {rank.rank: rank.host for rank in report.ranks}
    rank, offset = max(enumerate(offsets[0]), key=lambda row: abs(row[1]))
    words = f"{hosts.get(rank)} is {abs(offset):.3f} s {'ahead of' if offset > 0 else 'behind'} {hosts.get(0)}"
    if abs(offset) < _CLOCK_WARN_S:
        return CheckResult("OK", "clocks", f"at most {abs(offset):.3f} s apart")
    level: Level = "FAIL" if abs(offset) > _CLOCK_FAIL_S else "WARN"
    return CheckResult(level, "clocks", words, "start chronyd or ntpd on that host")


def _allreduce(report: ProbeReport) -> CheckResult:
    """Check that an allreduce over all ranks ends, has the right sums, and is not much too slow."""
    cluster = report.cluster
    failed = [rank for rank in report.ranks if rank.failure is not None]
    if failed:
        # A rank whose failure is not a consequence of another rank's failure comes first.
        first = min(failed, key=lambda rank: rank.is_second_hand)
        words = f"rank {first.rank} on {first.host}: {first.failure}"
        remedy = "solve the problems above first; with NCCL_DEBUG=INFO, NCCL logs what it does"
        culprits = tuple(dict.fromkeys(rank.host for rank in failed if not rank.is_second_hand))
        return CheckResult("FAIL", "allreduce", words, remedy, culprits or report.absent)
    rows = [rank.allreduce for rank in report.ranks if rank.clock_offsets_s is not None]
    if len(rows) < cluster.world_size:
        words = f"{len(rows)} of {cluster.world_size} ranks completed it"
        remedy = (
            "look for a firewall between the hosts, and check node.interface, HOROVOD_GLOO_IFACE and NCCL_SOCKET_IFNAME"
        )
        return CheckResult("FAIL", "allreduce", words, remedy, report.absent)
    sums = [row for row in rows if row is not None]
    if not sums:
        return CheckResult("OK", "allreduce", "one rank, nothing to reduce")
    if not all(row.is_right for row in sums):
        remedy = "do not train on this cluster; find the faulty host by halving the nodes"
        return CheckResult("FAIL", "allreduce", "the sums are wrong", remedy)
    return _bandwidth(cluster, sums[0].bytes, min(row.bus_bytes_per_s for row in sums))


def _bandwidth(cluster: Cluster, size_bytes: int, slowest_bytes_per_s: float) -> CheckResult:
    """Compare the slowest rank's bandwidth in an allreduce with the cluster file."""
    rate = f"{slowest_bytes_per_s / 1e9:.2f} GB/s on the bus"
    words = f"{size_bytes >> 20} MiB over {cluster.world_size} ranks by {cluster.communication.carrier}: {rate}"
    expected = expected_bytes_per_s(cluster)
    if expected and slowest_bytes_per_s < _SLOW_SHARE * expected:
        words = f"{words}, the cluster file has {expected / 1e9:.0f} GB/s"
        return CheckResult("WARN", "allreduce", words, "with NCCL_DEBUG=INFO, NCCL logs which transport it chose")
    return CheckResult("OK", "allreduce", words)


def expected_bytes_per_s(cluster: Cluster) -> float | None:
    """Return the bandwidth of one rank: over all network cards of its node, or to the GPUs of the same node."""
    node = cluster.node
    if cluster.num_nodes > 1:
        return node.nics * node.nic_bytes_per_s if node.nic_bytes_per_s else None
    return node.gpu_link_bytes_per_s
