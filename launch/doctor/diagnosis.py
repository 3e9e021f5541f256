"""What ``./run.sh doctor`` makes of what its ranks saw: findings, each on one line with its remedy. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace

from configs.schema import Cluster
from launch.doctor.finding import Facts, Finding, Level, Subject
from launch.doctor.machine_checks import HARDWARE_CHECKS, SOFTWARE_CHECKS

__all__ = ["judge"]

_DECISIVE = ("python", "mxnet", "mxnet-cu112", "horovod", "numpy", "nvidia-dali-cuda110", "driver", "commit")
"""What must be the same everywhere; other packages only should."""

_CLOCK_WARN_S, _CLOCK_FAIL_S = 0.5, 60.0
_SLOW_SHARE = 0.1
"""Of what the cluster file says of the links: less points to the wrong transport, more may be latency."""

_SHOWN_RANKS = 8


def judge(subject: Subject) -> list[Finding]:
    """Judge all of it, in the order in which things have to be mended."""
    found = [_present(subject)]
    if subject.machines:
        found += [*_merged(subject, SOFTWARE_CHECKS), *_versions(subject), *_merged(subject, HARDWARE_CHECKS)]
        found += [_clocks(subject), _allreduce(subject)]
    return found


def _merged(
    subject: Subject, checks: Iterable[Callable[[Subject, Facts], Finding | None]]
) -> list[Finding]:  # fmt: skip
    """Make one line of what is fine everywhere, and one of each trouble with the hosts that have it."""
    findings = []
    for check in checks:
        hosts: dict[Finding, list[str]] = defaultdict(list)
        for machine in subject.machines:
            finding = check(subject, machine)
            if finding is not None:
                hosts[finding].append(machine["host"])
        fine = [finding for finding in hosts if finding.level == "OK"]
        if fine and len(fine) == len(hosts):
            findings.append(fine[0] if len(fine) == 1 else replace(fine[0], words=f"{fine[0].words}, others likewise"))
        findings += [replace(each, hosts=tuple(names)) for each, names in hosts.items() if each.level != "OK"]
    return findings


def _present(subject: Subject) -> Finding:
    size, came = subject.cluster.world_size, {rank["rank"] for rank in subject.ranks}
    hosts = {machine["host"] for machine in subject.machines}
    silent = [str(rank) for rank in range(size) if rank not in came]
    if silent:
        first = ", ".join(silent[:_SHOWN_RANKS]) + (" ..." if len(silent) > _SHOWN_RANKS else "")
        remedy = "see the launcher's words above; paths.runs must be on a disk that all hosts share"
        return Finding("FAIL", "ranks", f"{len(silent)} of {size} told nothing: {first}", remedy)
    if len(hosts) != subject.cluster.num_nodes:
        words = f"{size} ranks on {len(hosts)} hosts, the cluster file says {subject.cluster.num_nodes}"
        return Finding("WARN", "ranks", words, "ask the scheduler for ranks_per_node tasks a node")
    return Finding("OK", "ranks", f"{size} on {len(hosts)} host{'s' if len(hosts) > 1 else ''}")


def _versions(subject: Subject) -> list[Finding]:
    """Compare every host with the most usual one."""
    rows = {machine["host"]: _versions_of(machine["machine"]["environment"]) for machine in subject.machines}
    if len(rows) == 1:
        (row,) = rows.values()
        named = ", ".join(f"{name} {row[name]}" for name in _DECISIVE[:-1] if name in row)
        return [Finding("OK", "versions", f"{named} (one host, nothing to compare with)")]
    findings = []
    for name in sorted(set().union(*rows.values())):
        values = {host: row.get(name, "none") for host, row in rows.items()}
        usual, _ = Counter(values.values()).most_common(1)[0]
        for value in sorted(set(values.values()) - {usual}):
            hosts = tuple(host for host, each in values.items() if each == value)
            level: Level = "FAIL" if name in _DECISIVE else "WARN"
            remedy = "start all hosts from one folder or image"
            findings.append(Finding(level, "versions", f"{name} {value}, elsewhere {usual}", remedy, hosts))
    return findings or [Finding("OK", "versions", f"the same on all {len(rows)} hosts")]


def _versions_of(environment: Facts) -> dict[str, str]:
    gpus, git = environment["gpus"] or [{}], environment["git"] or {}
    own = {"python": environment["python"].split()[0], "driver": gpus[0].get("driver_version"),
           "commit": git.get("commit"), "changes": git.get("diff_sha256")}  # fmt: skip
    return {**environment["packages"], **{name: value for name, value in own.items() if value}}


def _clocks(subject: Subject) -> Finding:
    told = [rank["clock_offsets_s"] for rank in subject.ranks if "clock_offsets_s" in rank]
    if not told:
        return Finding("WARN", "clocks", "not compared, since the ranks did not meet", "mend the allreduce first")
    if len(subject.machines) == 1:
        return Finding("OK", "clocks", "one host, nothing to compare with")
    hosts = {rank["rank"]: rank["host"] for rank in subject.ranks}
    rank, offset = max(enumerate(told[0]), key=lambda row: abs(row[1]))
    words = f"{hosts.get(rank)} is {abs(offset):.3f} s {'ahead of' if offset > 0 else 'behind'} {hosts.get(0)}"
    if abs(offset) < _CLOCK_WARN_S:
        return Finding("OK", "clocks", f"at most {abs(offset):.3f} s apart")
    return Finding("FAIL" if abs(offset) > _CLOCK_FAIL_S else "WARN", "clocks", words, "start chronyd or ntpd there")


def _allreduce(subject: Subject) -> Finding:
    cluster = subject.cluster
    failed = sorted(
        (rank for rank in subject.ranks if "failure" in rank), key=lambda rank: bool(rank["is_second_hand"])
    )
    if failed:
        first = f"rank {failed[0]['rank']} on {failed[0]['host']}: {failed[0]['failure']}"
        return Finding("FAIL", "allreduce", first, "mend what is above; NCCL_DEBUG=INFO tells more of NCCL")
    told = [rank["allreduce"] for rank in subject.ranks if "allreduce" in rank]
    if len(told) < cluster.world_size:
        return Finding("FAIL", "allreduce", f"{len(told)} of {cluster.world_size} ranks came back from it",
                       "look for a firewall between hosts, at HOROVOD_GLOO_IFACE and NCCL_SOCKET_IFNAME")  # fmt: skip
    if told[0] is None:
        return Finding("OK", "allreduce", "one rank, nothing to reduce")
    if not all(row["is_right"] for row in told):
        return Finding(
            "FAIL", "allreduce", "the sums are wrong", "do not train on this; find the host by halving nodes"
        )
    slowest = min(row["bus_bytes_per_s"] for row in told)
    by = cluster.communication.backend if cluster.communication.kind == "horovod" else cluster.communication.kind
    words = f"{told[0]['bytes'] >> 20} MiB over {cluster.world_size} ranks by {by}: {slowest / 1e9:.2f} GB/s on the bus"
    expected = _expected_bytes_per_s(cluster)
    if expected and slowest < _SLOW_SHARE * expected:
        return Finding("WARN", "allreduce", f"{words}, of {expected / 1e9:.0f} that the cluster file says",
                       "see which transport was taken: NCCL_DEBUG=INFO")  # fmt: skip
    return Finding("OK", "allreduce", words)


def _expected_bytes_per_s(cluster: Cluster) -> float | None:
    """Give what one rank could move: over all cards of its node, or to the GPUs beside it."""
    node = cluster.node
    if cluster.num_nodes > 1:
        return node.nics * node.nic_bytes_per_s if node.nic_bytes_per_s else None
    return node.gpu_link_bytes_per_s
