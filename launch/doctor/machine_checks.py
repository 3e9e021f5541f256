"""What ``./run.sh doctor`` makes of one machine, as its first rank saw it. Pure."""

from __future__ import annotations

from launch.doctor.finding import Facts, Finding, Level, Subject

__all__ = ["HARDWARE_CHECKS", "SOFTWARE_CHECKS"]

_PROCESS_BYTES = 300_000_000
"""A rank's interpreter and libraries, beside what the plan counts: two ranks of ResNet-8 on CPU wheels had 578 MB."""

_SHM_BYTES = 64 << 20
"""Shared memory that a rank may want for NCCL or MPI; containers often have 64 MB in all."""

_RUN_BYTES = 1_000_000_000
"""Disk for logs, metrics and traces of a run."""


def _drivers(subject: Subject, machine: Facts) -> Finding | None:
    if subject.cluster.device == "cpu":
        return None
    gpus = machine["machine"]["environment"]["gpus"]
    if not gpus:
        return Finding("FAIL", "driver", "nvidia-smi finds none", "install NVIDIA's driver, or ask for nodes with GPUs")
    wanted = subject.cluster.ranks_per_node
    if len(gpus) < wanted:
        return Finding("FAIL", "driver", f"{len(gpus)} GPUs for {wanted} ranks a node", "ask for whole nodes")
    return Finding("OK", "driver", f"{gpus[0]['driver_version']}, {len(gpus)} {gpus[0]['name']}")


def _libraries(subject: Subject, machine: Facts) -> Finding:
    told, cluster = machine.get("libraries"), subject.cluster
    if told is None:
        return Finding("FAIL", "libraries", "a rank ended or hung while it loaded them", "./run.sh setup; see above")
    broken = [f"{name}: {row['problem']}" for name, row in told.items() if "problem" in row]
    if broken:
        return Finding("FAIL", "libraries", "; ".join(broken), "./run.sh setup")
    mxnet, horovod = told["MXNet"]["has"], told.get("Horovod", {}).get("has", {})
    if cluster.device == "gpu" and not mxnet.get("CUDA"):
        return Finding("FAIL", "libraries", "this MXNet knows no GPU", "./run.sh setup --gpu")
    if cluster.device == "gpu" and mxnet["gpus"] < cluster.ranks_per_node:
        return Finding("FAIL", "libraries", f"MXNet sees {mxnet['gpus']} GPUs", "check CUDA_VISIBLE_DEVICES")
    backend = cluster.communication.backend
    if horovod and not horovod[backend]:
        return Finding("FAIL", "libraries", f"Horovod was built without {backend}",
                       "./run.sh setup where mpicxx is found, or with --gpu for NCCL")  # fmt: skip
    has = ", ".join(key for key, value in {**mxnet, **horovod}.items() if value and key != "gpus")
    return Finding("OK", "libraries", f"{', '.join(told)} load; with {has}")


def _cores(subject: Subject, machine: Facts) -> Finding:
    cluster = subject.cluster
    ours = [set(rank["cores"]) for rank in subject.ranks if rank["host"] == machine["host"]]
    granted, threads = len(set().union(*ours)), cluster.ranks_per_node * cluster.engine.threads
    remedy = "ask the scheduler for whole nodes, or set cluster.node.cores and engine.threads to what is granted"
    if cluster.node.cores and granted < cluster.node.cores:
        return Finding("WARN", "cores", f"{granted} granted, node.cores: {cluster.node.cores}", remedy)
    if granted < threads:
        return Finding("WARN", "cores", f"{granted} granted for {threads} threads of operators", remedy)
    return Finding("OK", "cores", f"{granted} granted for {threads} threads of operators")


def _memory(subject: Subject, machine: Facts) -> Finding:
    cluster, free = subject.cluster, machine["machine"]["memory_available_bytes"]
    if subject.plan is None:
        return Finding("WARN", "memory", f"{_gb(free)} free, not held against a plan", "name a --recipe")
    planned = subject.plan["memory"]["total_bytes"]
    on_gpu = cluster.device == "gpu"
    gpus = machine["machine"]["environment"]["gpus"] or []
    smallest = min((int(gpu["memory.total"].split()[0]) << 20 for gpu in gpus), default=None) if on_gpu else None
    if smallest is not None and planned > smallest:
        return Finding("FAIL", "memory", f"the plan takes {_gb(planned)} of a GPU's {_gb(smallest)}",
                       "lower batch.global_size or raise batch.accumulation_steps")  # fmt: skip
    needed = cluster.ranks_per_node * (_PROCESS_BYTES + (0 if on_gpu else planned))
    if free is not None and needed > free:
        return Finding("FAIL", "memory", f"{_gb(free)} free, {_gb(needed)} needed for {cluster.ranks_per_node} ranks",
                       "end other programs, lower the batch, or take fewer ranks a node")  # fmt: skip
    return Finding("OK", "memory", f"{_gb(free)} free, about {_gb(needed)} needed")


def _disk(subject: Subject, machine: Facts) -> Finding:
    runs = machine["machine"]["runs"]
    # Weights, masters and momentum of a few checkpoints.
    needed = _RUN_BYTES + 10 * 12 * (subject.plan["parameters"] if subject.plan else 0)
    if not runs["is_writable"]:
        return Finding(
            "FAIL", "disk", f"{runs['folder']} may not be written", "set cluster.paths.runs to a folder of yours"
        )
    words = f"{_gb(runs['free_bytes'])} free at {runs['folder']}, {_gb(needed)} wanted for a run"
    if runs["free_bytes"] < needed:
        level: Level = "FAIL" if runs["free_bytes"] < needed / 10 else "WARN"
        return Finding(level, "disk", words, "free some, or set cluster.paths.runs to another disk")
    return Finding("OK", "disk", words)


def _shared_memory(subject: Subject, machine: Facts) -> Finding:
    free, needed = machine["machine"]["shm_free_bytes"], subject.cluster.ranks_per_node * _SHM_BYTES
    if free is None or free < needed:
        words = f"{_gb(free)} free at /dev/shm, {_gb(needed)} wanted"
        return Finding("WARN", "shared memory", words, "give the container more: --shm-size, --ipc=host")
    return Finding("OK", "shared memory", f"{_gb(free)} free at /dev/shm")


def _links(subject: Subject, machine: Facts) -> Finding:
    cluster, facts = subject.cluster, machine["machine"]
    up = sorted(name for name, state in facts["interfaces"].items() if state == "up")
    down = [name for name in cluster.node.hcas if "ACTIVE" not in str(facts["adapters"].get(name))]
    named = cluster.environment.get("HOROVOD_GLOO_IFACE")
    if named and named not in {*up, "lo"}:
        down.append(named)
    if down:
        states = ", ".join(f"{name} {'down' if _is_there(name, facts) else 'missing'}" for name in down)
        return Finding("FAIL", "links", states, "ibstat and ip link tell more; mend node.hcas or have the node drained")
    if cluster.node.hcas and facts["locked_memory_bytes"] is not None:
        words = f"adapters are up, locked memory is limited to {_gb(facts['locked_memory_bytes'])}"
        return Finding(
            "WARN", "links", words, "InfiniBand needs ulimit -l unlimited: in limits.conf, or the scheduler's"
        )
    if cluster.num_nodes > 1 and not up and not cluster.node.hcas:
        return Finding("FAIL", "links", "no network interface is up", "ip link tells more")
    if cluster.node.hcas:
        return Finding("OK", "links", f"{', '.join(cluster.node.hcas)} active")
    return Finding("OK", "links", f"{', '.join(up) or 'only lo'} up; the cluster file names no adapters")


def _is_there(name: str, facts: Facts) -> bool:
    return name in facts["adapters"] or name in facts["interfaces"]


def _data(subject: Subject, machine: Facts) -> Finding:
    data = machine["data"]
    if data is None:
        return Finding("WARN", "data", "not looked at", "name a --recipe")
    if data["folder"] is None:
        return Finding("OK", "data", "generated in memory, nothing to read")
    if data["problem"] and subject.packs_itself and not data["exists"]:
        return Finding("OK", "data", f"{data['folder']} is not there yet; the first run packs it")
    if data["problem"]:
        return Finding("FAIL", "data", data["problem"])
    words = f"{data['folder']}: {data['records']:,} records, sizes and index as its manifest says, both ends read"
    if not data["is_cache_told"] and subject.cluster.paths.stage is None:
        words += "; the kernel tells only its owner what memory holds of it, so the log will lack cache_clear"
        return Finding("WARN", "data", words, "set cluster.paths.stage to a local disk, or own the files")
    return Finding("OK", "data", words)


def _stage(subject: Subject, machine: Facts) -> Finding | None:
    stage, data = machine["machine"]["stage"], machine["data"]
    if stage is None:
        return None
    if "problem" in stage:
        return Finding("FAIL", "stage", stage["problem"])
    if not stage["is_writable"]:
        return Finding("FAIL", "stage", f"{stage['folder']} may not be written", "set cluster.paths.stage elsewhere")
    needed = (data or {}).get("bytes", 0)
    words = f"{_gb(stage['free_bytes'])} free at {stage['folder']}, the data set takes {_gb(needed)}"
    if stage["free_bytes"] < needed:
        return Finding("FAIL", "stage", words, "free some, or set cluster.paths.stage: null")
    return Finding("OK", "stage", words)


def _gb(size: float | None) -> str:
    return "unknown" if size is None else f"{size / 1e9:.1f} GB"


SOFTWARE_CHECKS = (_drivers, _libraries)
HARDWARE_CHECKS = (_cores, _memory, _disk, _shared_memory, _links, _data, _stage)
