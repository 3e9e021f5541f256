"""One rank of ``bench roofline``: steps alone, apart, with sums and with input; or their operators, recorded."""

import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from train.bench.bench_rank import BenchRank, copied_bytes_per_s, open_rank, peak_operations_per_s, steps_of
from train.bench.samples import run_task, write_samples
from train.comm.communicator import SingleProcess
from train.engine.protocol import Array, Operator
from train.networks.kinds import KINDS
from train.networks.least_work import UPDATE, floor_s, work_of_step

_ALONE, _APART, _SUMMED, _READ = "alone", "apart", "summed", "read"
_OTHER, _COPIES = "other", "copies"
_MARKS = {
    "onvolution": KINDS["conv"].group,
    "BatchNorm": KINDS["bn"].group,
    "Activation": KINDS["relu"].group,
    "Pooling": KINDS["relu"].group,
    "elemwise_add": KINDS["add"].group,
    "add_n": KINDS["add"].group,
    "Concat": KINDS["concat"].group,
    "Dropout": KINDS["dropout"].group,
    "FullyConnected": KINDS["dense"].group,
    "softmax": KINDS["dense"].group,
    "pick": KINDS["dense"].group,
    "multi_": UPDATE,
    "_update": UPDATE,
    "Copy": _COPIES,
}
"""Part of an operator's name -> kind; the first that occurs counts."""

Steps = Callable[[int], Array]


def kind_of(operator: Operator) -> str:
    """Return the kind under which the time of an operator of the network or the update counts."""
    return next((kind for mark, kind in _MARKS.items() if mark in operator.name), _OTHER)


def main(overrides: Sequence[str], rounds: int, *, operators: bool) -> None:
    """Measure wall and processor time of a step in every variant, or the operators' time by kind.

    Args:
        overrides: Changes of the recipe ``imagenet-b256`` and of the cluster ``laptop``.
        rounds: Steps of each variant, after one that does not count.
        operators: Record the operators instead of timing whole steps.
    """
    rank = open_rank(overrides, "imagenet-b256", reads_images=True)
    parts = rank.parts
    apart, summed = steps_of(rank, SingleProcess()), steps_of(rank)
    variants: dict[str, Steps] = {
        _ALONE: apart if parts.identity.rank == 0 else _no_steps,
        _APART: apart,
        _SUMMED: summed,
    }
    if operators:
        table = _operators(rank, variants, rounds)
    else:
        with rank.reading_steps() as steps:
            table = _steps(rank, {**variants, _READ: steps}, rounds)
    for name, samples in table.items():
        write_samples(parts.identity, name, samples)


def _no_steps(_number: int) -> None:
    """Do nothing: this rank waits while another is measured alone."""


def _steps(rank: BenchRank, variants: Mapping[str, Steps], rounds: int) -> dict[str, list[dict[str, float]]]:
    """Return the wall and processor time of a step, in the round of each sample one after another."""
    table: dict[str, list[dict[str, float]]] = defaultdict(list)
    for number in range(1 + rounds):
        for name, steps in variants.items():
            begin_s = time.process_time()
            wall_s = rank.time_s(partial(steps, 1))
            if number:
                figures = {"wall_ms": 1e3 * wall_s, "processor_ms": 1e3 * (time.process_time() - begin_s)}
                table[f"step {name}"].append(figures)
    return dict(table)


def _operators(rank: BenchRank, variants: Mapping[str, Steps], rounds: int) -> dict[str, list[dict[str, float]]]:
    """Return kind -> the time of its operators in a step of each variant, and the floor."""
    size = rank.parts.plan.per_rank_batch_size
    world = rank.parts.identity.world_size
    peak, bandwidth = peak_operations_per_s(rank) / world, copied_bytes_per_s(rank) / world
    network: Any = rank.parts.model.network
    work = work_of_step(network.network, size)
    floors = {kind: 1e3 * floor_s(passes, peak, bandwidth) for kind, passes in work.items()}
    rank.time_s(partial(variants[_SUMMED], 1))
    found: dict[str, list[Counter[str]]] = defaultdict(list)
    for name, operators in _recorded(rank, variants, rounds):
        spent: Counter[str] = Counter()
        for operator in operators:
            if not operator.is_communication:  # which waits, for the most part, and beside other operators
                spent[kind_of(operator)] += operator.end_us - operator.begin_us
        found[name].append(spent)
    kinds = sorted({kind for recorded in found.values() for spent in recorded for kind in spent})
    recorded_rounds = [dict(zip(found, each, strict=True)) for each in zip(*found.values(), strict=True)]
    table = {kind: [_figures(kind, spent, floors) for spent in recorded_rounds] for kind in kinds}
    return table | {"core": [{"peak_gflop_per_s": peak / 1e9, "copied_gb_per_s": bandwidth / 1e9}]}


def _recorded(rank: BenchRank, variants: Mapping[str, Steps], rounds: int) -> Iterator[tuple[str, list[Operator]]]:
    """Record steps of every variant in turn; yield the variant and the operators of each step."""
    engine = rank.parts.engine
    spans = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        engine.begin_trace(path)  # once, because MXNet's profiler cannot begin twice
        for _ in range(rounds):
            for name, steps in variants.items():
                rank.barrier()
                begin_s = time.time()
                steps(1)
                engine.wait_all()
                spans.append((name, 1e6 * begin_s, 1e6 * time.time()))
        engine.end_trace()
        recorded = engine.read_trace(path)
    for name, begin_us, end_us in spans:
        yield name, [each for each in recorded if begin_us <= each.begin_us < end_us]


def _figures(kind: str, spent: Mapping[str, Counter[str]], floors: Mapping[str, float]) -> dict[str, float]:
    """Return the milliseconds of a kind in the variants of one round, beside the floor where there is one."""
    figures = {f"{name}_ms": each[kind] / 1e3 for name, each in spent.items()}
    if kind in floors:
        figures |= {"floor_ms": floors[kind], "floor_share": floors[kind] / figures[f"{_APART}_ms"]}
    return figures


if __name__ == "__main__":
    run_task(main)
