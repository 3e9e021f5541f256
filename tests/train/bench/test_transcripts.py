"""What each bench starts, word for word, and what it makes of the answers; the programs of its ranks answer at once."""

import argparse
import importlib
import itertools
import json
import logging
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from configs.blocks.rehearsal import Waits
from configs.load import ROOT
from configs.programs import Program
from train.bench import (
    bench_allreduce,
    bench_epoch,
    bench_gpu,
    bench_input,
    bench_peers,
    bench_race,
    bench_startup,
    launching,
)
from train.bench.__main__ import _parse
from train.bench.bench_options import BENCHES
from train.bench.measure import BenchRow
from train.networks.arch import network_of
from train.rank.startup import WAITING
from train.rehearse import rehearsed_run

pytest.importorskip("horovod")  # an environment with another engine alone has other defaults

TRANSCRIPTS = Path(__file__).parent / "transcripts.txt"
"""A paragraph for each command line below: what is started, the rows, the notes."""

ON_MXNET = "--set cluster.engine.name=mxnet --set cluster.communication.kind=horovod"
COMMANDS = (
    f"allreduce --ranks 2 4 --sizes 4K 16M 1G --rounds 2 {ON_MXNET}",
    "allreduce --cluster dgx-a100 --ranks 16 --routes flat hierarchical --sizes 100 --rounds 1",
    "epoch --rounds 2",
    "gpu --skip resume",
    "input --quick --steps 5",
    "gpu --tiny --only steps run calibrate",
    f"overlap --compute real --rounds 3 {ON_MXNET}",
    "overlap --compute real --rounds 2 --links 2.5 --no-sweep --set cluster.engine.name=mxnet "
    "--set cluster.communication.kind=shared_memory",
    "overlap --ranks 2 4 --rounds 2",
    "overlap --ranks 2 --links 100 --rounds 2",
    "peers --rounds 2 --gluon",
    "peers --model mnist_small_cnn --ranks 3 --batch 100 --steps 9",
    "peers --model densenet121 --image-size 128",
    "race --seeds 2",
    "roofline --rounds 2 --set cluster.communication.kind=horovod --image-sizes 64 96",
    f"startup --rounds 2 {ON_MXNET}",
    "startup --rounds 1 --cluster dgx-a100 --ranks 4 --set cluster.num_nodes=2",
    f"step --rounds 2 {ON_MXNET}",
    "step --cases resnet18:64:8 mnist_small_cnn:28:4:3x2:float32 resnet18:64:8 --rounds 1 --cluster dgx-a100",
)


class Machine:
    """Stands for `subprocess.run`: notes each command line and answers as the programs of the ranks do."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lines, self._numbers = folder, list[str](), itertools.count(3)
        self._parsed = {Program.GPU_STEP, Program.PYTORCH_PEER, Program.PYTORCH_RACE}  # which need PyTorch

    def run(self, command: Sequence[str], *, timeout: float | None, env: Mapping[str, str], **_: Any) -> Any:
        added = {name: value for name, value in env.items() if os.environ.get(name) != value}
        line = self.plain(shlex.join([*(f"{name}={value}" for name, value in added.items()), *command]))
        line += f" [at most {timeout:g} s]" if timeout else ""
        seen = next((number for number, each in enumerate(self.lines, 1) if each == line), None)
        self.lines.append(line if seen is None else f"as {seen}")
        program = next((each for each in reversed(Program) if each.value in command), None)
        own = [*command][command.index(program.value) + 1 if program else 0 :]
        if program is not None and program.value.startswith("train.bench.programs.") and program not in self._parsed:
            self._parsed.add(program)
            self.lines.append(f"parsed: {self.plain(_parsed_by(program, own))}")
        if "--run-dir" in own:
            _finish_run(Path(own[own.index("--run-dir") + 1]))
        told = '{"step_s": 0.25, "images_per_s": 512.0}' if program is Program.SIMULATE_VERB else ""
        return SimpleNamespace(returncode=0, stdout=told or "".join(self._answers(program, own)))

    def plain(self, text: str) -> str:
        """Return text without what differs between machines and from time to time."""
        for real, name in ((sys.executable, "PYTHON"), (str(self.folder), "FOLDER"), (str(ROOT), "ROOT")):
            text = text.replace(real, name)
        return re.sub(rf"{tempfile.gettempdir()}/[\w-]+", "TEMPORARY", text)

    def _answers(self, program: Program | None, words: list[str]) -> Iterator[str]:
        if program is Program.PYTORCH_RACE:
            reached = 0 if "--channels-last" in words else 1
            sample = {
                "begun_at": _BEGUN_S + 3,
                "ended_at": _BEGUN_S + 20 + next(self._numbers),
                "epochs": 7,
                "reached": reached,
            }
            yield json.dumps({"alternative": "PyTorch", "samples": [sample]})
        for name, count, figures in self._asked(program, words):
            samples = [{figure: next(self._numbers) for figure in figures} for _ in range(count)]
            yield json.dumps({"alternative": name, "samples": samples}) + "\n"

    def _asked(self, program: Program | None, words: list[str]) -> Iterator[tuple[str, int, Sequence[str]]]:
        """Yield the alternatives of a program, how many samples each has, and their figures."""
        rounds = int(words[words.index("--rounds") + 1]) if "--rounds" in words else 1
        if program is Program.OVERLAP_OURS:
            yield from ((each, rounds, ("step_ms", "processor_ms")) for each in words if each.startswith(_TRANSFERS))
        elif program is Program.ALLREDUCE_OURS:
            yield from ((each, rounds, ("allreduce_ms",)) for each in words[words.index("--rounds") + 2 :])
        elif program is Program.ROOFLINE_OURS:
            yield from ((each, rounds, ("wall_ms",)) for each in (["op"] if "--operators" in words else ["alone"]))
        elif program is Program.STEP_OURS:
            yield from (("step", 3, ("evaluation_ms", "unfolded_evaluation_ms")), ("start", 1, ("first_step_ms",)))
        elif program is Program.GPU_STEP:
            yield "step", 4, ("step_ms",)
        elif program in (Program.PEER_OURS, Program.HOROVOD_EXAMPLE, Program.PYTORCH_PEER):
            yield "one", 1, ("images_per_s",)
        elif program in (Program.EPOCH_OURS, Program.EPOCH_TEXTBOOK):
            gaps = {"between_epochs_ms": next(self._numbers), "evaluation_s": next(self._numbers)}
            Path(words[words.index("--output") + 1]).write_text(json.dumps(gaps), encoding="utf-8")
        elif program is Program.STARTUP_TEXTBOOK:
            ledger = Path(next(each for each in words if each.startswith("--output=")).removeprefix("--output="))
            ledger.write_text(json.dumps({**_LEDGER, "run_start_time": _BEGUN_S + 7}), encoding="utf-8")


class _ParsedError(Exception):
    """Ends a program as soon as it has parsed its command line."""


def _parsed_by(program: Program, words: Sequence[str]) -> str:
    """Return the options that a program reads from a command line."""
    parse: Any = argparse.ArgumentParser.parse_args

    def stop(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
        raise _ParsedError(str(parse(parser, arguments)))

    module = importlib.import_module(program.value)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(_ParsedError) as parsed:
        patch.setattr("train.rank.watchdog.die_with_parent", lambda: None)
        patch.setattr(module, "die_with_parent", lambda: None, raising=False)
        patch.setattr(argparse.ArgumentParser, "parse_args", stop)
        module.main(words)
    return str(parsed.value)


_BEGUN_S = 1_700_000_000
"""When each command is given; the readers of logs know no run before 2015."""
_LEDGER: dict[str, Any] = {
    "started_time": _BEGUN_S + 0.5,
    "phases": [
        {"phase": "imports", "thread": "MainThread", "begin_s": 0.0, "end_s": 0.5},
        {"phase": "communicator", "thread": "other", "begin_s": 0.25, "end_s": 2.0},
        {"phase": "imports", "thread": "MainThread", "begin_s": 0.75, "end_s": 1.0},
        {"phase": WAITING, "thread": "MainThread", "begin_s": 1.25, "end_s": 2.25},
    ],
}
"""What a rank tells of its start."""


def _finish_run(folder: Path) -> None:
    """Write what a run that has reached its target writes."""
    folder.mkdir()
    (folder / "trace.json").write_bytes(bytes(77))
    (folder / "startup.json").write_text(json.dumps(_LEDGER), encoding="utf-8")
    summary: dict[str, Any] = {
        "steps": 12,
        "init_s": 1.5,
        "run_s": 4.0,
        "images_per_s": 8.0,
        "input_wait_fraction": 0.25,
    }
    summary |= {"recipe": "digits", "status": "success", "epochs": 6}
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    at_ms = {"run_start": 3000, "eval_start": 5500, "run_stop": 9000}
    lines = [
        ":::MLLOG " + json.dumps({"key": key, "time_ms": 1000 * _BEGUN_S + ms, "value": None})
        for key, ms in at_ms.items()
    ]
    (folder / "result_0.txt").write_text("\n".join(lines), encoding="utf-8")


_TRANSFERS = ("none", "serial", "overlapped")


def _transcript(words: str, folder: Path, patch: Callable[[Any, str, Any], None]) -> str:
    """Return what a command line of `bench` starts, and its report."""
    machine, ticks = Machine(folder), itertools.count(0, 0.5)
    clock = SimpleNamespace(
        time=lambda: float(_BEGUN_S),
        time_ns=itertools.count(7).__next__,
        monotonic=lambda: 5.0,
        perf_counter=lambda: 2 * next(ticks),
        process_time=lambda: next(ticks) ** 2,
    )
    python = folder / "peers" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    for module, name, value in (
        (launching, "subprocess", SimpleNamespace(**{**vars(subprocess), "run": machine.run})),
        (bench_allreduce, "load_description", lambda _: dict(_RATES)),
        (os, "sched_getaffinity", lambda _: {0, 1}),
        (os, "cpu_count", lambda: 2),
        (bench_allreduce, "load_calibration", lambda: SimpleNamespace(constants=_CONSTANTS)),
        (rehearsed_run, "waits_of", lambda recipe, _: _waits(len(network_of(recipe.model).parameters))),
        (bench_epoch, "_python_step", lambda: {"python_step_ms": 1.0}),
        (bench_peers, "_FOLDER", folder / "peers"),
        (bench_peers, "installed_engine", lambda: "mxnet"),
        (bench_peers, "find_spec", lambda package: package != "torch"),
        (bench_peers, "cpu_flags", frozenset),
        (launching, "resolve_path", lambda _: folder / "data"),
        (bench_gpu, "time", clock),
        (bench_input, "time", clock),
        (bench_race, "time", clock),
        (bench_startup, "time", clock),
        *((bench_input, f"read_by_{each}", lambda *_: itertools.repeat(np.zeros((16, 3, 1, 1)))) for each in _READERS),
    ):
        patch(module, name, value)
    options = _parse([*shlex.split(words), *(["--folder", str(folder)] if words.startswith("gpu") else [])])
    told = _Told(machine)
    logger = logging.getLogger("train.bench")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(told)
    report = importlib.import_module(BENCHES[options.name].module).measure(options)
    logger.removeHandler(told)
    logger.setLevel(level)
    rows = [
        f"    {name}: {count} + {warmup}: {'; '.join(map(_told, same))}"
        for (name, count, warmup), same in itertools.groupby(
            report.rows, lambda row: (row.alternative, row.n, row.warmup)
        )
    ]
    started = [f"  {number} {line}" for number, line in enumerate(machine.lines, 1)]
    return "\n".join([words, *started, *rows, *(f"    - {machine.plain(note)}" for note in report.notes)])


def _told(row: BenchRow) -> str:
    spread = "" if row.low == row.high else f" {row.low:.4g} to {row.high:.4g}"
    return f"{row.figure} {row.median:.4g}{spread}{row.verdict and f', {row.verdict}'}"


class _Told(logging.Handler):
    """Notes what a bench says while it measures."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine

    def emit(self, record: logging.LogRecord) -> None:
        self._machine.lines.append(self._machine.plain(record.getMessage()))


_READERS = ("dali", "mxnet", "pillow")


def _waits(count: int) -> Waits:
    """Return the waits of a described GPU whose gradients come at even intervals, last layer first."""
    ends_s = tuple(0.25 * (count - index) / count for index in range(count))
    return Waits(forward_s=0.125, gradients_s=ends_s, update_s=0.01, evaluation_s=0.1, top1=(0.5,) * 100)


_CONSTANTS = SimpleNamespace(network_efficiency=0.5)
_RATES = {"flops": 1e10, "memory_bytes_per_s": 1e10, "link_bytes_per_s": 1e9, "cores": 2.0, "sum_bytes_per_s": 8e9,
          "sum_bucket_s": 1e-4}  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS)
def test_a_bench_starts_and_reports_something_else_on_purpose_only(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``python -m tests.train.bench.test_transcripts`` writes the file anew, for review."""
    expected = TRANSCRIPTS.read_text(encoding="utf-8").rstrip().split("\n\n")
    found = _transcript(words, tmp_path, monkeypatch.setattr)
    assert found.splitlines() == next(each for each in expected if each.startswith(f"{words}\n")).splitlines()


def _write() -> None:
    told = []
    for words in COMMANDS:
        with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
            told.append(_transcript(words, Path(folder), patch.setattr))
    TRANSCRIPTS.write_text("\n\n".join(told) + "\n", encoding="utf-8")


if __name__ == "__main__":
    _write()
