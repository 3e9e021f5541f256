"""Rows in the columns of the public points: from identity, count and batch to a machine, never from a measure."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from configs.errors import UserError
from train.sim.hardware import Accelerator, Machine, System, find_accelerator, find_system
from train.sim.step_time import SUMS_APART, Software

__all__ = ["Point", "read_points"]


_ONE_GROUP, _GRAPHS = 0.7, 1.0
"""Rounds since which NVIDIA's program reduces gradients as one group, and launches kernels as one CUDA graph."""
_NODES = (r"^(\d+)x(?=[A-Z])", r"_n(\d+)(?![0-9])", r"_(\d+)N(?![a-zA-Z0-9])", r"^(\d+)R\d", r"[_-]N(\d+)$")
_FUSING_STACKS, _FUSED_TRAFFIC = ("xla", "synapse", "mindspore"), 0.5
"""Graph compilers that fuse batch norms into their neighbours, and what that leaves of their traffic (assumed)."""
_SUMS_APART_SINCE = 0.7
"""Round since which NVIDIA's networks for several nodes are such; in 0.6 the one of DGX-2H was (families.yaml)."""
_WHOLE_PROGRAMS = ("xla", "synapse")
"""Of these, the ones whose step is one program on the device; MindSpore hands the device kernel after kernel."""
_MINDSPORE_GROUPS = (75, 86)
"""Tensors that MindSpore's ResNet-50 reduces together, last layer first (``all_reduce_fusion_config=[85, 160]``)."""
_SHAMPOO_WORK = 0.26
"""What Distributed Shampoo adds to a step's compute: 1,729 steps took 13 % less time than 2,512 of the usual
optimizer at batch 32,768 (arXiv:2002.09018)."""
_LARGEST_NODE = 16
_LARGEST_PCIE_NODE = 24
"""A system whose name counts no nodes is one chassis of cards up to here."""


@dataclass(frozen=True)
class Point:
    """One system of a points file. What was measured is beside what identifies it, for comparison only."""

    round: str
    submitter: str
    system: str
    accelerator: Accelerator
    ranks: int
    batch: float
    measured_images_per_s: float | None
    measured_time_s: float | None
    measured: Mapping[str, str]
    includes_evaluation: bool

    @cached_property
    def known(self) -> System:
        """What the catalogue knows of this very machine."""
        return find_system(f"{self.round} {self.submitter} {self.system}")

    @cached_property
    def machine(self) -> Machine:
        """The system's hardware: nodes counted from its name, rates from the catalogue."""
        kind, known = self.accelerator, self.known
        node = min(self.ranks, known.node or ranks_per_node(self.system, self.ranks, kind))
        nics = known.nics or (max(1, round(kind.nics * node / kind.node)) if node < kind.node else kind.nics)
        return Machine(
            kind, self.ranks, node, kind.link, nics, known.nic or kind.nic,
            known.nodes_per_rack, known.uplink_share, known.rack_ordered,
        )  # fmt: skip

    @cached_property
    def effects(self) -> tuple[str, ...]:
        """Names of the calibrated factors that apply, coarse to fine."""
        chip, node = self.accelerator.chip, self.machine.ranks_per_node
        names = [f"chip:{chip}", f"product:{self.accelerator.name}", f"round:{chip}/{self.round}"]
        if stack := _stack(self.submitter, self.accelerator):
            names.insert(0, f"stack:{stack}")
        if self.ranks > node:
            names.append(f"network:{chip}/{self.round}")
        return tuple(names)

    @cached_property
    def software(self) -> Software:
        """Rounds up to 0.6 reduced in groups as backward went, later ones and whole programs once at its end."""
        mlperf_round, stack = _number(self.round, 3.0), _stack(self.submitter, self.accelerator)
        is_program = stack in _WHOLE_PROGRAMS
        return Software(
            bucket_bytes=(4 if mlperf_round < _ONE_GROUP and not is_program else 64) << 20,
            algorithm=self.known.algorithm,
            boundaries=self.known.boundaries or (_MINDSPORE_GROUPS if stack == "mindspore" else ()),
            graphs=mlperf_round >= _GRAPHS or is_program,
            norm_traffic=self.known.norm_traffic or self._norm_traffic(stack, mlperf_round),
            optimizer_work=_SHAMPOO_WORK if "shampoo" in self.system.lower() else 0.0,
        )

    def _norm_traffic(self, stack: str, mlperf_round: float) -> float:
        if stack in _FUSING_STACKS:
            return _FUSED_TRAFFIC
        spans_nodes = self.ranks > self.machine.ranks_per_node
        return SUMS_APART if not stack and spans_nodes and mlperf_round >= _SUMS_APART_SINCE else 1.0


def _stack(submitter: str, kind: Accelerator) -> str:
    """Name the framework of those who did not run NVIDIA's MXNet, by who they are or what it must be."""
    by_chip = {"TPUv2": "xla", "TPUv3": "xla", "TPUv4": "xla", "Gaudi": "synapse", "Gaudi2": "synapse"}
    by_submitter = {"tinycorp": "tinygrad", "google": "tensorflow"}
    by_chip["Ascend910"] = "mindspore"
    return by_chip.get(kind.chip, "") or by_submitter.get(submitter.lower(), "")


def ranks_per_node(system: str, ranks: int, kind: Accelerator) -> int:
    """Read nodes from names like ``2xXE8545``, ``dgxa100_n8``, ``..._16N_mxnet`` and ``HLS-1H-N4``; else the usual."""
    found = next((match for pattern in _NODES if (match := re.search(pattern, system))), None)
    nodes = int(found.group(1)) if found else 0
    if nodes and ranks % nodes == 0 and (ranks // nodes > 1 or kind.node == 1) and ranks // nodes <= _LARGEST_NODE:
        return ranks // nodes
    if kind.link_kind == "pcie" and ranks <= _LARGEST_PCIE_NODE:
        return ranks
    return min(ranks, kind.node)


def read_points(path: Path) -> list[Point]:
    """Read a file of points; only ``n_acc`` and ``batch_per_acc`` (or ``global_batch``) must be there.

    Raises:
        UserError: The file cannot be read, or a row has no usable count or batch.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    if not rows:
        raise UserError(f"{path}: no rows; a points file has a header with n_acc and batch_per_acc, and rows")
    return [_point(row, f"{path}, row {number}") for number, row in enumerate(rows, start=2)]


def _point(row: Mapping[str, str], where: str) -> Point:
    ranks = _number(row.get("n_acc"), 0)
    batch = _number(row.get("batch_per_acc"), 0) or _number(row.get("global_batch"), 0) / max(ranks, 1)
    if ranks < 1 or ranks != int(ranks) or batch <= 0:
        got = {key: row.get(key) for key in ("n_acc", "batch_per_acc", "global_batch")}
        raise UserError(f"{where}: got {got}, allowed: n_acc a whole number above 0, batch_per_acc above 0")
    system = row.get("system") or ""
    kind = find_accelerator(row.get("accelerator") or "")
    if not kind.known:
        kind = find_accelerator(f"{row.get('accelerator') or ''} {system}")
    time_key = next((key for key in row if key and key.startswith("time_to_train_s")), "")
    return Point(
        round=row.get("mlperf_round") or "", submitter=row.get("submitter") or "", system=system, accelerator=kind,
        ranks=int(ranks), batch=batch,
        measured_images_per_s=_number(row.get("img_per_s"), 0) or None,
        measured_time_s=_number(row.get(time_key), 0) or None,
        measured=row, includes_evaluation="incl eval" in (row.get("how") or ""),
    )  # fmt: skip


def _number(text: str | None, otherwise: float) -> float:
    try:
        return float(text or otherwise)
    except ValueError:
        return otherwise
