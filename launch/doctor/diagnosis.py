"""The checks of ``./run.sh doctor`` and their order: of each machine, by its first rank, and of all ranks. Pure."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from configs.arguments import counted
from configs.compilers import compiling_key
from configs.machine_limits import gpu_shortage
from configs.registry import CAST_FLAGS, ENGINES, possible_precisions
from configs.schema import Cluster
from launch.doctor.check_result import CheckResult, Level, ProbeReport, culprits_of
from launch.doctor.facts import PROBE_BYTES, FolderFacts, MachineFacts, RankFacts
from launch.doctor.step_checks import check_step
from launch.setup.gpu import NEEDS, Gpu, capability_of
from launch.setup.layout import Kind
from train.plan.memory import LIBRARY_BYTES, PROCESS_BYTES

_DECISIVE = (
    "python", "mxnet", "mxnet-cu112", "horovod", "torch", "numpy", "nvidia-dali-cuda110", "nvidia-dali-cuda120",
    "nvidia-dali-cuda130", "driver", "commit",
)  # fmt: skip
"""Versions that must be the same on all hosts; other packages only should be."""

_CLOCK_WARN_S, _CLOCK_FAIL_S = 0.5, 60.0
_SLOW_SHARE = 0.1
"""Least share of the cluster file's bandwidth. Less points to the wrong transport; more may be due to latency."""

_SHOWN_RANKS = 8

_SHM_BYTES = 64 << 20
"""Shared memory of one rank for NCCL or MPI. Containers often have 64 MB in all."""

_NEEDED_LIMITS = {"open files": 256, "processes": 256, "address space": 16 << 30, "file size": 64 << 20}
"""What a run may need of each limit of a process: sockets and record files; the threads of a user's ranks; addresses,
of which the libraries map far more than they use; records, logs and traces. A checkpoint may be larger."""

_TEMPORARY_BYTES = 100_000_000

_RUN_BYTES = 1_000_000_000
"""Disk space for the logs, metrics and traces of a run."""


def judge(report: ProbeReport) -> list[CheckResult]:
    """Return the results of all checks, in the order in which a user has to solve the problems."""
    results = [_presence(report)]
    if report.machines:
        results += _on_each_machine(report, _SOFTWARE_CHECKS)
        results += _versions(report)
        results += _on_each_machine(report, _HARDWARE_CHECKS)
        slow_settings = report.plan["slow_settings"] if report.plan else ()
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
    if failed := [rank for rank in report.ranks if rank.failure is not None and rank.step is None]:
        first, culprits = culprits_of(failed)
        words = f"rank {first.rank} on {first.host}: {first.failure}"
        remedy = "solve the problems above first; with NCCL_DEBUG=INFO, NCCL logs what it does"
        return CheckResult("FAIL", "allreduce", words, remedy, culprits or report.absent)
    rows = [rank for rank in report.ranks if rank.clock_offsets_s is not None]
    if len(rows) < cluster.world_size:
        words = f"{len(rows)} of {cluster.world_size} ranks completed it"
        remedy = (
            "look for a firewall between the hosts, and check node.interface, HOROVOD_GLOO_IFACE and NCCL_SOCKET_IFNAME"
        )
        return CheckResult("FAIL", "allreduce", words, remedy, report.absent)
    rates = [rank.bus_bytes_per_s for rank in rows if rank.bus_bytes_per_s is not None]
    if not rates:
        return CheckResult("OK", "allreduce", "one rank, nothing to reduce")
    if not all(rank.sums_are_right for rank in rows):
        remedy = "do not train on this cluster; find the faulty host by halving the nodes"
        return CheckResult("FAIL", "allreduce", "the sums are wrong", remedy)
    return _bandwidth(cluster, min(rates))


def _bandwidth(cluster: Cluster, slowest_bytes_per_s: float) -> CheckResult:
    """Compare the slowest rank's bandwidth in an allreduce with the cluster file."""
    rate = f"{slowest_bytes_per_s / 1e9:.2f} GB/s on the bus"
    words = f"{PROBE_BYTES >> 20} MiB over {cluster.world_size} ranks by {cluster.communication.carrier}: {rate}"
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


def _drivers(report: ProbeReport, machine: MachineFacts, rank: RankFacts) -> CheckResult | None:
    if report.cluster.device == "cpu":
        return None
    gpus = machine.environment["gpus"]
    wanted = report.cluster.ranks_per_node
    if shortage := gpu_shortage(len(gpus or ()), wanted):
        return CheckResult("FAIL", "driver", *shortage)
    found = _first_gpu(gpus, report.cluster.engine.name, report.kind)
    if found.level != "FAIL" and any(gpu.get("mig.mode.current") == "Enabled" for gpu in gpus):
        level: Level = "FAIL" if wanted > 1 else "WARN"
        words = f"{found.words}; MIG is on, so that a rank sees one part of one GPU"
        return CheckResult(level, "driver", words, "switch MIG off (nvidia-smi -mig 0), or start one rank")
    return found


def _first_gpu(gpus: Sequence[Mapping[str, str]], engine: str, kind: Kind | None) -> CheckResult:
    """Check the driver and the model of the first GPU; the other GPUs of a machine are alike."""
    choices = NEEDS[engine]
    needs = choices.get(kind.variant if kind else "gpu", choices["gpu"])
    name, version = gpus[0]["name"], gpus[0]["driver_version"]
    words, capability = f"{version}, {len(gpus)} {name}", capability_of(name)
    if kind and kind.base:
        return CheckResult("OK", "driver", f"{words}; not compared with the libraries of {kind.base}")
    if not needs.run_on(version):
        others = [f"--{other}" for other, each in choices.items() if each.run_on(version)]
        remedy = f", or run ./run.sh setup --engine {engine} ".join([f"update the driver to {needs.update}", *others])
        return CheckResult("FAIL", "driver", f"{words}: too old for CUDA {needs.cuda}", remedy)
    if capability is not None and not needs.are_met_by(Gpu(name, capability)):
        remedy = f"{needs.other}, take nodes with other GPUs, or set cluster.device=cpu"
        return CheckResult("FAIL", "driver", f"{words}: {needs.title} has no kernels for this GPU", remedy)
    return CheckResult("OK", "driver", words)


def _libraries(report: ProbeReport, machine: MachineFacts, rank: RankFacts) -> CheckResult:
    libraries, cluster = rank.libraries, report.cluster
    if libraries is None:
        remedy = "./run.sh setup; see the output above"
        return CheckResult("FAIL", "libraries", "a rank ended or hung while it loaded the libraries", remedy)
    if broken := [f"{name}: {problem}" for name, problem in libraries.items() if isinstance(problem, str)]:
        return CheckResult("FAIL", "libraries", "; ".join(broken), "./run.sh setup")
    title = ENGINES[cluster.engine.name].title
    features = {name: has for name, has in libraries.items() if not isinstance(has, str)}
    framework = features[title]
    if cluster.device == "gpu" and not framework.get("CUDA"):
        remedy = f"./run.sh setup --engine {cluster.engine.name} --gpu"
        return CheckResult("FAIL", "libraries", f"this {title} was built without CUDA", remedy)
    if cluster.device == "gpu" and (shortage := gpu_shortage(framework["gpus"], cluster.ranks_per_node)):
        return CheckResult("FAIL", "libraries", f"{title}: {shortage[0]}", shortage[1])
    backend, found = cluster.communication.backend, dict(framework)
    for name in libraries.keys() - {title, "DALI"}:
        found |= features[name]
        if not features[name][backend]:
            remedy = "rm -r .venv and ./run.sh setup where mpicxx can compile, or with --gpu for NCCL"
            return CheckResult("FAIL", "libraries", f"{name} was built without {backend}", remedy)
    built_with = ", ".join(key for key, value in found.items() if value and key != "gpus")
    return CheckResult("OK", "libraries", f"{', '.join(libraries)} load; with {built_with}")


def _instruction_sets(report: ProbeReport, machine: MachineFacts, rank: RankFacts) -> CheckResult | None:
    """Check that the CPU has what the engine needs for the precision; None if there is nothing to tell."""
    engine, flags = report.cluster.engine, machine.environment.get("cpu_flags")
    if report.cluster.device == "gpu" or not flags or engine.precision in possible_precisions(engine.name, flags):
        return None
    lacking = ", ".join(sorted(CAST_FLAGS - {*flags}))
    words = f"the CPU has no {lacking}, which {ENGINES[engine.name].title} needs for {engine.precision}"
    return CheckResult("FAIL", "precision", words, "take nodes with AVX-512, or set cluster.engine.precision=float32")


def _compilers(report: ProbeReport, machine: MachineFacts, rank: RankFacts) -> CheckResult | None:
    """Check that kernels can be compiled; None if the cluster file does not want it."""
    key = compiling_key(report.cluster)
    if key is None:
        return None
    if machine.compiler_shortage:
        return CheckResult("FAIL", "compiler", *machine.compiler_shortage)
    return CheckResult("OK", "compiler", f"what engine.{key} needs is there")


def _cores(report: ProbeReport, machine: MachineFacts, rank: RankFacts) -> CheckResult:
    cluster = report.cluster
    ours = [set(each.cores) for each in report.ranks if each.host == rank.host]
    granted, threads = float(len(set().union(*ours))), cluster.ranks_per_node * cluster.engine.threads
    granted = min(granted, machine.usable_cores or granted)
    words = f"{granted:g} granted for {counted(threads, 'operator thread')}"
    if granted >= max(threads, cluster.node.cores or 0):
        return CheckResult("OK", "cores", words)
    words += f" and node.cores: {cluster.node.cores or 'null'}"
    remedy = "ask the scheduler for whole nodes, or set cluster.node.cores and engine.threads to what is granted"
    return CheckResult("WARN", "cores", words, remedy)


def _memory(report: ProbeReport, machine: MachineFacts, rank: RankFacts) -> CheckResult:
    cluster, free = report.cluster, machine.memory_available_bytes
    limit = f" ({machine.memory_limit})" if machine.memory_limit else ""
    if report.plan is None:
        words = f"{_gb(free)} free{limit}, not compared with a plan"
        return CheckResult("WARN", "memory", words, "name a recipe with --recipe")
    planned = report.plan["total_bytes"]
    on_gpu = cluster.device == "gpu"
    gpus = machine.environment["gpus"] or []
    smallest = min((int(gpu["memory.total"].split()[0]) << 20 for gpu in gpus), default=None) if on_gpu else None
    if smallest is not None and planned > smallest:
        level: Level = "FAIL" if report.plan["certain_bytes"] > smallest else "WARN"
        words = f"the plan needs {_gb(planned)} and a GPU has {_gb(smallest)}"
        return CheckResult(level, "memory", words, "lower batch.global_size or raise batch.accumulation_steps")
    per_rank, certain = planned, report.plan["certain_bytes"]
    if on_gpu:
        per_rank = certain = PROCESS_BYTES[cluster.engine.name] + LIBRARY_BYTES[cluster.engine.name]
    pinned = report.plan["pinned_bytes_per_node"] if on_gpu else 0
    needed, least = (cluster.ranks_per_node * each + pinned for each in (per_rank, certain))
    if free is not None and needed > free:
        words = f"{_gb(free)} free{limit}, {_gb(needed)} needed for {counted(cluster.ranks_per_node, 'rank')}"
        remedy = "end other programs, lower the batch, or start fewer ranks a node"
        return CheckResult("FAIL" if least > free else "WARN", "memory", words, remedy)
    return CheckResult("OK", "memory", f"{_gb(free)} free{limit}, about {_gb(needed)} needed")


def _limits(report: ProbeReport, machine: MachineFacts, rank: RankFacts) -> CheckResult:
    """Check the limits of a process; a checkpoint, a file of 12 bytes a parameter, must not exceed the file size."""
    needed = dict(_NEEDED_LIMITS)
    needed["file size"] += 12 * (report.plan["parameters"] if report.plan else 0)
    short = [
        f"{name}: {machine.limits[name]:,}, {least:,} needed"
        for name, least in needed.items()
        if machine.limits.get(name, least) < least
    ]
    if short:
        return CheckResult("WARN", "limits", "; ".join(short), "raise them with ulimit, or in limits.conf")
    words = ", ".join(f"{name} {limit:,}" for name, limit in machine.limits.items())
    return CheckResult("OK", "limits", words or "none")


def _room(topic: str, place: FolderFacts, needed: float, least: float, remedy: str) -> CheckResult:
    """Check that a folder can be written to, and has room for ``needed`` bytes; ``least`` are a must."""
    if place.problem:
        return CheckResult("FAIL", topic, place.problem)
    if not place.is_writable:
        return CheckResult("FAIL", topic, f"{place.folder} is not writable", remedy)
    words = f"{_gb(place.free_bytes)} free at {place.folder}, {_gb(needed)} needed"
    if place.free_bytes is not None and place.free_bytes >= needed:
        return CheckResult("OK", topic, words)
    level: Level = "FAIL" if place.free_bytes is not None and place.free_bytes < least else "WARN"
    return CheckResult(level, topic, words, f"free some space, or {remedy}")


def _disk(report: ProbeReport, machine: MachineFacts, rank: RankFacts) -> CheckResult:
    # A checkpoint has 12 bytes a parameter (weights, master weights, momentum). There is room for ten of them.
    needed = _RUN_BYTES + 10 * 12 * (report.plan["parameters"] if report.plan else 0)
    return _room("disk", machine.runs, needed, needed / 10, "set cluster.paths.runs to another folder")


def _temporary(report: ProbeReport, machine: MachineFacts, rank: RankFacts) -> CheckResult:
    return _room("temporary files", machine.temporary, _TEMPORARY_BYTES, 0, "set TMPDIR to another folder")


def _stage(report: ProbeReport, machine: MachineFacts, rank: RankFacts) -> CheckResult | None:
    """Check the local disk that the data set is copied to, if the cluster file names one."""
    needed = rank.data.bytes if rank.data else 0
    remedy = "set cluster.paths.stage to another folder, or to null"
    return None if machine.stage is None else _room("stage", machine.stage, needed, needed, remedy)


def _shared_memory(report: ProbeReport, machine: MachineFacts, rank: RankFacts) -> CheckResult:
    place = FolderFacts("/dev/shm", machine.shm_free_bytes, is_writable=True)
    needed = report.cluster.ranks_per_node * _SHM_BYTES
    return _room("shared memory", place, needed, 0, "give the container more: --shm-size, --ipc=host")


def _links(report: ProbeReport, machine: MachineFacts, rank: RankFacts) -> CheckResult:
    """Check the network interfaces and the InfiniBand adapters."""
    cluster = report.cluster
    up = sorted(name for name, state in machine.interfaces.items() if state == "up")
    down = [name for name in cluster.node.hcas if "ACTIVE" not in str(machine.adapters.get(name))]
    gloo_interface = cluster.environment.get("HOROVOD_GLOO_IFACE")
    if gloo_interface and gloo_interface not in {*up, "lo"}:
        down.append(gloo_interface)
    if down:
        known = {*machine.adapters, *machine.interfaces}
        states = ", ".join(f"{name} {'down' if name in known else 'missing'}" for name in down)
        remedy = "see ibstat and ip link; correct node.hcas, or have the node taken out of service"
        return CheckResult("FAIL", "links", states, remedy)
    if cluster.node.hcas and (locked := machine.limits.get("locked memory")) is not None:
        words = f"adapters are up, but locked memory is limited to {_gb(locked)}"
        remedy = "InfiniBand needs ulimit -l unlimited: in limits.conf, or in the scheduler's configuration"
        return CheckResult("WARN", "links", words, remedy)
    if cluster.num_nodes > 1 and not up and not cluster.node.hcas:
        return CheckResult("FAIL", "links", "no network interface is up", "see ip link")
    adapters = ", ".join(cluster.node.hcas)
    without = f"{', '.join(up) or 'only lo'} up; the cluster file names no InfiniBand adapters"
    return CheckResult("OK", "links", f"{adapters} active" if adapters else without)


def _data(report: ProbeReport, machine: MachineFacts, rank: RankFacts) -> CheckResult | None:
    data = rank.data
    if data is None:
        reads_none = report.cluster.rehearsal is not None
        return None if reads_none else CheckResult("WARN", "data", "not checked", "name a recipe with --recipe")
    if data.folder is None:
        return CheckResult("OK", "data", "generated in memory, nothing to read")
    if not data.exists:
        return CheckResult("OK", "data", f"{data.folder} does not exist yet; the first run packs it")
    if data.problem:
        return CheckResult("FAIL", "data", data.problem)
    words = f"{data.folder}: {data.records:,} records; sizes and index as in the manifest, both ends readable"
    return CheckResult("OK", "data", words)


def _gb(size: float | None) -> str:
    return "unknown" if size is None else f"{size / 1e9:.1f} GB"


_SOFTWARE_CHECKS = (_drivers, _libraries)
_HARDWARE_CHECKS = (
    _instruction_sets, _compilers, _cores, _memory, _limits, _disk, _temporary, _shared_memory, _links, _data, _stage,
)  # fmt: skip
