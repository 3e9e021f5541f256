"""Acceptances of this machine by real ranks, from the command line to the outputs."""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from configs.load import load_both, load_cluster, load_recipe
from configs.lock import locked
from configs.registry import has_engine
from launch.accept.__main__ import main
from launch.accept.acceptance import expected_rate, learn
from launch.accept.judgement import Evidence, judge
from launch.doctor.examination import train_ranks_alone
from logs.folder import RunFolder, Summary
from tests.launch.accept.falsified import falsified_ranks
from tests.logs.rapl import steady_power
from tests.programs import Said, run_program

pytestmark = pytest.mark.xdist_group("acceptance")  # Two processes would accept the machine twice.

WATTS = 50.0
ACCEPT = [sys.executable, "-I", "-m", "launch.accept", "accept"]


@dataclass(frozen=True)
class _Accepted:
    """An acceptance that came to its end: its process, its document, its folders and its seconds."""

    done: subprocess.CompletedProcess[str]
    document: dict[str, Any]
    folder: Path
    took_s: float

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def checks(self) -> dict[tuple[str, str], dict[str, Any]]:
        return {(check["topic"], check["host"]): check for check in self.document["checks"]}


@pytest.fixture(scope="module")
def accepted(tmp_path_factory: pytest.TempPathFactory, packed_digits: Path) -> _Accepted:
    """Accept this machine, which shows a processor that uses 50 W. An earlier acceptance had the same outputs."""
    folder = tmp_path_factory.mktemp("accepted")
    earlier = RunFolder(folder / "out" / "learning")
    earlier.path.mkdir(parents=True)
    earlier.write_settings(load_recipe("digits").model_copy(update={"name": "accept"}), load_cluster("laptop"))
    earlier.write_summary(Summary("accept", "success", top1=1.0, epochs=1))
    paths = {"data": packed_digits, "stage": folder / "stage", "runs": folder / "runs"}
    sets = ["model.image_size=16", *(f"cluster.paths.{name}={path}" for name, path in paths.items())]
    words = ["--cluster", "laptop", "--minutes", "1", *(word for each in sets for word in ("--set", each))]
    words += ["--out", str(folder / "out"), "--save-baseline", str(folder / "baseline.json")]
    begin, variables = time.monotonic(), {**os.environ, "RANK_SYS": str(folder / "sys")}
    with steady_power(folder / "sys", WATTS):
        done = run_program(*ACCEPT, *words, env=variables, timeout=280)
    document = json.loads((folder / "out" / "accept.json").read_text(encoding="utf-8"))
    return _Accepted(done, document, folder, time.monotonic() - begin)


@pytest.mark.slow
@pytest.mark.ranks
def test_a_sound_machine_passes_and_every_output_says_so(accepted: _Accepted) -> None:
    done, document, checks = accepted.done, accepted.document, accepted.checks
    assert (done.returncode, document["verdict"]) == (0, "pass"), done.stderr + done.stdout
    assert json.loads((accepted.folder / "baseline.json").read_text(encoding="utf-8")) == document
    host, (node,) = os.uname().nodename, document["nodes"]
    assert (node["host"], node["verdict"], node["ranks"]) == (host, "pass", [0, 1])
    assert {topic for topic, place in checks if place == host} == {"compute", "copy", "input", "bits"}
    assert {"rate", "allreduce of buckets", "learning"} <= {topic for topic, place in checks if not place}
    assert checks["compute", host]["value"] == document["figures"]["parts"][host]["compute"][0] > 0
    assert checks["rate", ""]["value"] > 0
    assert checks["learning", ""]["value"] > 1, "not the result of the earlier run"
    assert 0 < document["energy"]["joules"] == document["energy"]["packages_j"] < WATTS * accepted.took_s
    suite = ElementTree.parse(accepted.out / "accept.xml").getroot()
    cases = suite.findall("testsuite/testcase")
    assert [suite.get("tests"), suite.get("failures")] == [str(len(document["checks"])), "0"]
    assert {(case.get("name"), case.get("classname")) for case in cases} == {
        (topic, f"laptop.{place}" if place else "laptop") for topic, place in checks
    }
    page = (accepted.out / "accept.html").read_text(encoding="utf-8")
    assert all(word in page for word in (host, "laptop", "pass"))
    assert "laptop: pass" in done.stdout


@pytest.mark.slow
@pytest.mark.ranks
def test_the_ranks_of_a_sound_machine_find_it_sound_and_report_their_steps(accepted: _Accepted) -> None:
    """They are those of the doctor, and those that train without the others."""
    assert {path.name for path in (accepted.folder / "runs").iterdir()} <= {"health.jsonl"}, "reports are removed"
    sound = ("ranks", "libraries", "versions", "memory", "disk", "data", "stage", "links", "clocks", "allreduce")
    found = {topic: accepted.checks[topic, ""] for topic in sound}
    assert [topic for topic in sound if found[topic]["verdict"] != "pass" or "warning" in found[topic]["words"]] == []
    assert "1,797 records" in found["data"]["words"]
    ranks = accepted.document["ranks"]
    assert [(rank["rank"], rank["cores"]) for rank in ranks] == [
        (number, sorted(os.sched_getaffinity(0))) for number in range(2)
    ]
    for rank in ranks:
        assert rank["sums_are_right"]
        assert rank["bus_bytes_per_s"] > 1e6
        assert abs(rank["clock_offsets_s"][1]) < 0.5
        assert len(rank["step"]["buckets_s"]) == 6
        assert 1e8 < rank["step"]["memory_bytes"] < 2e9
        assert set(rank["step"]["samples"]) == {"compute", "copy", "input", "allreduce", "step"}
        assert min(map(min, rank["step"]["samples"].values())) > 0
        (bits,) = set(rank["alone"]["checksums"])
        assert len(rank["alone"]["checksums"]) == 2
        assert accepted.document["figures"]["bits"] == {rank["model"]: bits}


@pytest.mark.medium
def test_a_run_of_the_user_in_the_folder_of_the_run_that_learns_stays(tmp_path: Path) -> None:
    cluster, own = load_cluster("laptop", [f"cluster.paths.data={tmp_path}"]), RunFolder(tmp_path / "learning")
    own.make()
    own.write_settings(load_recipe("digits"), cluster)
    own.write_summary(Summary("digits", "success", top1=1.0, epochs=1))
    assert learn(cluster, own.path).verdict == "failed"
    assert own.summary().recipe == "digits"


@pytest.mark.slow
@pytest.mark.ranks
def test_a_rehearsed_acceptance_names_the_slow_ranks_and_ends_with_status_1(tmp_path: Path) -> None:
    words = ["digits", "--cluster", "dgx-a100", "--set", f"cluster.paths.runs={tmp_path / 'runs'}", "--ranks", "4"]
    words += ["--set", "cluster.ranks_per_node=2", "--speed", "0.03", "--slow", "1:3", "--slow", "2:link:3"]
    command = [sys.executable, "-I", "-m", "train.rehearse", "rehearse", *words, "--run-dir", str(tmp_path / "out")]
    done = run_program(*command, "--accept", "1")
    document = json.loads((tmp_path / "out" / "accept.json").read_text(encoding="utf-8"))
    assert (done.returncode, document["verdict"], document["rehearsal"]) == (1, "slow", True), done.stderr
    slow = {(check["host"], check["topic"]) for check in document["checks"] if check["verdict"] == "slow"}
    assert slow == {("node1", "compute"), ("node2", "link")}
    skipped = {check["topic"] for check in document["checks"] if check["verdict"] == "skipped"}
    assert skipped == {"bits", "energy", "learning"}, "ranks that sleep compute nothing"


@pytest.mark.ranks
@pytest.mark.medium
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.skipif(not has_engine("mxnet"), reason="the library falsifies what MXNet calls")
def test_a_rank_that_computes_the_same_wrong_bits_twice_is_named_and_no_other_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`test_submitted` has a rank that computes other bits the second time."""
    for name, value in falsified_ranks(tmp_path, {1: ("stuck", 5)}).items():
        monkeypatch.setenv(name, value)
    sets = ["cluster.ranks_per_node=3", "batch.global_size=24", "cluster.engine.name=mxnet"]
    sets += [f"cluster.paths.runs={tmp_path}"]
    ranks = train_ranks_alone(*load_both("digits", "laptop", sets), ())
    assert [len(rank.alone.checksums) for rank in ranks if rank.alone] == [2] * 3
    (check,) = judge(Evidence((), (), alone=ranks))[0]
    assert check.verdict == "failed"
    assert [rank for rank in range(3) if f"rank {rank} on {os.uname().nodename}" in check.words] == [1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--cluster"),
        (["--cluster", "laptop", "--minutes", "0"], "--minutes: got 0"),
        (["--cluster", "laptop", "--recipe", "digit"], "did you mean 'digits'?"),
        (["--cluster", "laptop", "--set", "batch.global_size=7"], "batch.global_size"),
        (["--cluster", "h100-cluster"], "--accept"),
        (["--cluster", "laptop", "--baseline", "/none.json"], "/none.json"),
        (["--cluster", "laptop", "--save-baseline", "/none/a.json"], "/none/a.json"),
        (["--cluster", "laptop", "--out", "/proc/none"], "/proc/none"),
    ],
)
def test_what_cannot_begin_is_refused_in_one_line(words: list[str], message: str, said: Said) -> None:
    told = said(main, "accept", *words, status=2).err
    assert message in told
    assert (told.startswith("error: "), told.count("\n")) == (True, 1)


def test_an_acceptance_that_does_not_come_to_its_end_leaves_no_verdict_of_an_earlier_one(tmp_path: Path) -> None:
    earlier = {"accept.json", "accept.xml", "accept.html"}
    for name in earlier:
        (tmp_path / name).write_text("{}", encoding="utf-8")
    runs = "cluster.paths.runs=/proc/none"  # in which the ranks cannot report
    assert main(["accept", "--cluster", "laptop", "--out", str(tmp_path), "--set", runs]) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml", *(f"earlier-{name}" for name in earlier)}


def test_an_acceptance_leaves_the_folder_of_another_one_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "accept.json").write_text("{}", encoding="utf-8")
    with locked(tmp_path):
        assert main(["accept", "--cluster", "laptop", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}: another acceptance writes into it; ")
    assert [path.name for path in tmp_path.iterdir()] == ["accept.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [({}, "make one with --save-baseline"), ({"format": 1, "figures": {}, "cluster": "other"}, "'other'")],
)
def test_a_baseline_of_another_kind_or_machine_is_refused(
    content: dict[str, object], message: str, tmp_path: Path, said: Said
) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    assert message in said(main, "accept", "--cluster", "laptop", "--baseline", path, status=2).err


def test_the_rate_is_expected_from_the_simulator_and_the_data_sheet_where_they_know_the_machine() -> None:
    simulated, sheet = expected_rate(*load_both("imagenet-b256", "dgx-a100"))
    assert simulated.low is not None
    assert simulated.high is not None
    assert simulated.low < simulated.high
    world = load_cluster("dgx-a100").world_size
    # ResNet-50 v1.5 has 4.09e9 multiply-adds for an image of 224 px, and an A100 312 TFLOP/s.
    assert sheet.high == pytest.approx(world * 312e12 / (3 * 2 * 4.09e9), rel=0.01)
    (unknown,) = expected_rate(*load_both("digits", "laptop", ["cluster.node.cpu=None such"]))
    assert (unknown.low, unknown.high, "None such" in unknown.note) == (None, None, True)
