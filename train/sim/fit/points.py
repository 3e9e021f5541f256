"""Points: systems of public results, one row of a CSV file each, and what is predicted for them.

A point's machine and software follow from round, submitter, system, accelerator, count and batch. Measured columns are
read for comparison only; a prediction never uses them.
"""

import csv
import io
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

from configs.errors import ConfigError, UserError, nearest
from configs.reading import read_text
from train.sim.constants import Calibration, Constants, Interval, bounds
from train.sim.hardware import Accelerator, Machine, System, find_accelerator, find_system
from train.sim.step_time import MAX_BATCH, MAX_RANKS, Software, norm_traffic, pytorch_software, step_model
from train.sim.time_to_train import (
    IMAGENET,
    epochs_to_target,
    era_of,
    evaluation_time,
    evaluations_of,
    predict_init,
    run_time,
)

_CLASSES = {"densenet121": 14}
"""Classes of a network's data set if it is not ImageNet; DenseNet's published rates are those of CheXNet."""
_BLOCK_EPOCHS = 4
"""Epochs between evaluations in MLPerf's submissions."""
_NODES = (r"^(\d+)x(?=[A-Z])", r"_n(\d+)(?![0-9])", r"_(\d+)N(?![a-zA-Z0-9])", r"^(\d+)R\d", r"[_-]N(\d+)$")
"""Patterns of a system's name in which the number of nodes stands."""
_FUSING_COMPILERS, _FUSED_TRAFFIC = ("xla", "synapse", "mindspore"), 0.5
"""Graph compilers that fuse batch norms into their neighbours, and the share of the traffic that remains (assumed)."""
_WHOLE_PROGRAMS, _WHOLE_PROGRAM_BYTES = ("xla", "synapse"), 64 << 20
"""Compilers whose step is one program on the device; MindSpore launches one kernel after the other."""
_MINDSPORE_BUCKETS = (75, 86)
"""Tensors that MindSpore's ResNet-50 reduces together, last layer first (``all_reduce_fusion_config=[85, 160]``)."""
_SHAMPOO_WORK = 0.26
"""Compute that Distributed Shampoo adds to a step: 1,729 steps took 13 % less time than 2,512 steps of the usual
optimizer at batch 32,768 (arXiv:2002.09018)."""
_PRECISIONS = ("float16", "float32", "tf32")
_LAYOUTS = ("NHWC", "NCHW")
_TINYGRAD = "tinycorp"
"""Submitter of programs that compile kernels of their own, on NVIDIA's and AMD's cards."""
_UNFUSED = "pytorch"
"""What the source of a framework's rate has in its name if batch norm, ReLU and addition are kernels of their own.
NVIDIA's MXNet, TensorFlow (``_FusedBatchNormEx``) and PaddlePaddle (``fuse_bn_add_act_ops``) have one for 16 bits."""
_LARGEST_NODE = 16
_LARGEST_PCIE_NODE = 24
"""Up to this many PCIe cards, a system is taken for a single node if its name has no number of nodes."""


@dataclass(frozen=True)
class Point:
    """One system of a points file.

    Attributes:
        round: MLPerf round, for example ``2.1``; empty if not known.
        submitter: Submitter; empty if not known.
        system: Name of the system; empty if not known.
        accelerator: The product, from the catalogue.
        ranks: Number of accelerators.
        batch: Images of one rank.
        measured_images_per_s: Measured rate over all ranks. If None, it was not measured.
        measured_time_s: Measured time to train. If None, it was not measured.
        measured_init_s: Measured start-up, from init_start to run_start. If None, it was not measured.
        includes_evaluation: Whether the measured rate includes the time of evaluations.
        network: Name of the network.
        precision: ``float16``, ``float32`` or ``tf32``.
        is_framework: Whether a framework's usual program ran, and not a program that was tuned for MLPerf.
        is_fused: Whether this program has one kernel for batch norm, ReLU and addition in 16 bits.
        is_channels_last: Whether this program's tensors have the layout that matrix units read.
        node: Accelerators of a node. If None, by the system's name.
        nics: Network cards of a node. If None, by the catalogue; ``nic_bytes_per_s`` likewise.
    """

    round: str
    submitter: str
    system: str
    accelerator: Accelerator
    ranks: int
    batch: float
    measured_images_per_s: float | None
    measured_time_s: float | None
    measured_init_s: float | None
    includes_evaluation: bool
    network: str = "resnet50"
    precision: str = "float16"
    is_framework: bool = False
    is_fused: bool = False
    is_channels_last: bool = True
    node: int | None = None
    nics: int | None = None
    nic_bytes_per_s: float | None = None

    @cached_property
    def known_system(self) -> System:
        """The catalogue's entry for this system, or a usual system."""
        return find_system(f"{self.round} {self.submitter} {self.system}")

    @cached_property
    def machine(self) -> Machine:
        """The system's hardware: the number of nodes by the system's name, rates by the catalogue."""
        product, system = self.accelerator, self.known_system
        node = min(self.ranks, self.node or system.node or ranks_per_node(self.system, self.ranks, product))
        # A node with fewer accelerators than usual has fewer network ports in proportion.
        nics = max(1, round(product.nics * node / product.node)) if node < product.node else product.nics
        accelerator = replace(
            product,
            node=node,
            link=system.link or product.link,
            nics=self.nics or system.nics or nics,
            nic=self.nic_bytes_per_s or system.nic or product.nic,
        )
        racks = (system.nodes_per_rack, system.uplink_share, system.rack_ordered)
        return Machine(accelerator, self.ranks, *racks, half=self.precision == "float16")

    @property
    def program(self) -> str:
        """``tuned`` for NVIDIA's programs for MLPerf, ``compiler`` on chips of other makers, else ``framework``."""
        # The programs of tinycorp, and of Google on GPUs, were tinygrad and TensorFlow.
        if self.is_framework or self.submitter.lower() == _TINYGRAD:
            return "framework"
        if self.accelerator.compiler:
            return "compiler"
        return "framework" if self.submitter.lower() == "google" else "tuned"

    @property
    def lacks(self) -> str:
        """What the point has in common with no measured system, see `train.sim.constants.Calibration`."""
        if self.program != "framework":
            return ""
        if self.submitter.lower() == _TINYGRAD:
            return "tinygrad"
        if self.network != "resnet50":
            return "another network"
        return "own kernels" if self.precision == "float16" else "float32"

    @cached_property
    def software(self) -> Software:
        """The program that the submitter probably ran.

        Programs up to round 0.6 reduced gradients in buckets during backward. Later programs, and whole programs on the
        device, reduce all gradients once at the end of backward.
        """
        if self.is_framework:
            if not self.is_fused:
                return pytorch_software(self.machine, is_channels_last=self.is_channels_last)
            passes = "separate_sums" if self.machine.half else "unfused"
            traffic = norm_traffic(passes, self.machine, is_channels_last=self.is_channels_last)
            return Software(graphs=False, norm_traffic=traffic)
        era, compiler = era_of(self.round), self.accelerator.compiler
        is_whole_program = compiler in _WHOLE_PROGRAMS
        if compiler in _FUSING_COMPILERS:
            traffic = _FUSED_TRAFFIC
        else:
            has_separate_sums = era.separate_sums and self.machine.nodes > 1 and self.program == "tuned"
            traffic = norm_traffic("separate_sums") if has_separate_sums else 1.0
        return Software(
            bucket_bytes=_WHOLE_PROGRAM_BYTES if is_whole_program else era.bucket_bytes,
            algorithm=self.known_system.algorithm,
            boundaries=self.known_system.boundaries or (_MINDSPORE_BUCKETS if compiler == "mindspore" else ()),
            graphs=era.graphs or is_whole_program,
            norm_traffic=self.known_system.norm_traffic or traffic,
            optimizer_work=_SHAMPOO_WORK if "shampoo" in self.system.lower() else 0.0,
        )


def ranks_per_node(system: str, ranks: int, accelerator: Accelerator) -> int:
    """Return the accelerators of a node.

    Names like ``2xXE8545``, ``dgxa100_n8``, ``..._16N_mxnet`` and ``HLS-1H-N4`` have the number of nodes. If the name
    has no usable number, the node is a usual one of this accelerator.
    """
    found = next((match for pattern in _NODES if (match := re.search(pattern, system))), None)
    nodes = int(found.group(1)) if found else 0
    if nodes and ranks % nodes == 0:
        share = ranks // nodes
        if share <= _LARGEST_NODE and (share > 1 or accelerator.node == 1):
            return share
    if accelerator.link_kind == "pcie" and ranks <= _LARGEST_PCIE_NODE:
        return ranks
    return min(ranks, accelerator.node)


def read_points(path: Path) -> list[Point]:
    """Read a CSV file of points; only the columns ``n_acc`` and ``batch_per_acc`` (or ``global_batch``) are required.

    Raises:
        UserError: The file cannot be read, or a row has no usable count or batch.
    """
    try:
        reader = csv.DictReader(io.StringIO(read_text(path), newline=""))
        rows = list(reader)
    except (OSError, csv.Error) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot be read: {why}; give a file of points") from None
    if not rows:
        raise UserError(
            f"{path}: there are no rows; a points file has a header with n_acc and batch_per_acc, and one row a system"
        )
    titles = reader.fieldnames or []
    if "n_acc" not in titles or len({*titles}) < len(titles):
        raise UserError(
            f"{path}: got the titles {','.join(titles)[:200]!r}, allowed: n_acc,batch_per_acc and others, each once, "
            "with commas"
        )
    return [_point(row, f"{path}, row {number}") for number, row in enumerate(rows, start=2)]


def _point(row: Mapping[str, str], where: str) -> Point:
    cells = defaultdict(str, {key: value or "" for key, value in row.items()})

    def number(key: str) -> float:
        return _number(f"{where}: {key}", cells[key])

    ranks = number("n_acc")
    batch = number("batch_per_acc") or number("global_batch") / max(ranks, 1)
    if not 1 <= ranks <= MAX_RANKS or ranks != int(ranks) or not 0 < batch <= MAX_BATCH:
        got = {key: row.get(key) for key in ("n_acc", "batch_per_acc", "global_batch")}
        raise UserError(
            f"{where}: got {got}, allowed: a whole number above 0 in n_acc (at most "
            f"{MAX_RANKS:,}), and batch_per_acc above 0 (at most {MAX_BATCH:,})"
        )
    precision = _choice("precision", cells["precision"] or "float16", _PRECISIONS, where)
    layout = cells["layout"] or ("NHWC" if precision == "float16" else "NCHW")
    name, system = cells["accelerator"], cells["system"]
    # These two columns have words of explanation after their names.
    time_s, init_s = (
        number(next((key for key in row if key and key.startswith(column)), column))
        for column in ("time_to_train_s", "init_s")
    )
    return Point(
        round=cells["mlperf_round"],
        submitter=cells["submitter"],
        system=system,
        accelerator=find_accelerator(name, f"{name} {system}", key=f"{where}: accelerator"),
        ranks=int(ranks),
        batch=batch,
        measured_images_per_s=number("img_per_s") or None,
        measured_time_s=time_s or None,
        measured_init_s=init_s or None,
        includes_evaluation="incl eval" in cells["how"],
        network=cells["network"] or "resnet50",
        precision=precision,
        is_framework=bool(cells["source"]),
        is_fused=_UNFUSED not in cells["source"].lower(),
        is_channels_last=_choice("layout", layout, _LAYOUTS, where) == "NHWC",
        node=int(number("accelerators_per_node")) or None,
        nics=int(number("nics")) or None,
        nic_bytes_per_s=number("nic_bytes_per_s") or None,
    )


def _choice(key: str, text: str, allowed: Sequence[str], where: str) -> str:
    if text not in allowed:
        raise ConfigError(f"{where}: {key}", text, f"one of {', '.join(allowed)}", nearest(text, allowed))
    return text


def _number(key: str, text: str) -> float:
    """Return the number in ``text``, or 0 if that is empty."""
    try:
        number = float(text or 0)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise ConfigError(key, text, "a finite number, not below 0, or nothing")
    return number


class PointForecast(NamedTuple):
    """What is predicted for a point, without a look at what was measured.

    Attributes:
        point: The point.
        images_per_s: Rate over all ranks.
        interval: How far off the rate and the time may be.
        epochs: Epochs to the target, by the global batch and the round.
        time_to_train_s: From run_start to run_stop.
        init_s: From init_start to run_start.
    """

    point: Point
    images_per_s: float
    interval: Interval
    epochs: int
    time_to_train_s: float
    init_s: float

    @property
    def rate_bounds(self) -> tuple[float, float]:
        """Ends of the interval of images/s."""
        return bounds(self.images_per_s, self.interval.rate)

    def row(self) -> dict[str, object]:
        """Return the row that ``--points --json`` prints."""
        (low, high), (time_low_s, time_high_s) = self.rate_bounds, bounds(self.time_to_train_s, self.interval.time)
        return {
            "mlperf_round": self.point.round,
            "submitter": self.point.submitter,
            "system": self.point.system,
            "accelerator": self.point.accelerator.name,
            "n_acc": self.point.ranks,
            "batch_per_acc": self.point.batch,
            "predicted_img_per_s": round(self.images_per_s, 1),
            "low": round(low, 1),
            "high": round(high, 1),
            "interval_from": self.interval.basis,
            "predicted_epochs": self.epochs,
            "predicted_time_to_train_s": round(self.time_to_train_s, 1),
            "time_low_s": round(time_low_s, 1),
            "time_high_s": round(time_high_s, 1),
            "predicted_init_s": round(self.init_s, 1),
        }


def forecast_point(point: Point, calibration: Calibration) -> PointForecast:
    """Return a point's rate and its time to train, by the reference epochs of its batch, with intervals."""
    epochs = epochs_to_target(point.ranks * point.batch, point.round)
    rate = _steady_rate(point, calibration.constants)
    run = run_time(rate, epochs, point.machine.nodes, mlperf_round=point.round)
    return PointForecast(
        point=point,
        images_per_s=point_rate(point, calibration.constants),
        interval=calibration.interval(point.machine, point.lacks),
        epochs=epochs,
        time_to_train_s=run.total_s + evaluations_of(epochs) * _switch_time(point),
        init_s=predict_init(point.ranks, point.round, has_compiler=bool(point.accelerator.compiler)),
    )


def point_rate(point: Point, constants: Constants) -> float:
    """Return images/s, with evaluations included if the measured rate of the point includes them."""
    rate = _steady_rate(point, constants)
    if not point.includes_evaluation:
        return rate
    block = _BLOCK_EPOCHS * IMAGENET
    return block / (block / rate + evaluation_time(rate, point.round) + _switch_time(point))


def _steady_rate(point: Point, constants: Constants) -> float:
    step_s = _timed(point.network, point.machine, point.batch, point.software, constants)
    return point.ranks * point.batch / step_s


@lru_cache(maxsize=1024)
def _timed(network: str, machine: Machine, batch: float, software: Software, constants: Constants) -> float:
    """Return the seconds of a step. Many points are equal machines with equal software, which are timed once."""
    model = step_model(network, num_classes=_CLASSES.get(network, 1000))
    return model.time_step(machine, batch, constants, software).total_s


def _switch_time(point: Point) -> float:
    return era_of(point.round).switch_s if point.includes_evaluation else 0.0
