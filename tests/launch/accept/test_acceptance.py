"""Acceptances of this machine by real ranks, from the command line to the outputs."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from configs.load import ROOT, load_both, load_cluster, load_recipe
from configs.registry import has_engine
from launch.accept.__main__ import main
from launch.accept.acceptance import learn
from launch.accept.judgement import Evidence, judge
from launch.doctor.examination import train_ranks_alone
from logs.folder import RunFolder, Summary
from tests.logs.rapl import steady_power

WATTS = 50.0
ACCEPT = [sys.executable, "-I", "-m", "launch.accept", "accept"]


@pytest.mark.slow
@pytest.mark.ranks
def test_a_sound_machine_passes_and_every_output_says_so(tmp_path: Path) -> None:
    """It shows a processor that uses 50 W. An earlier acceptance had the same outputs."""
    out, baseline, sys_folder = tmp_path / "out", tmp_path / "baseline.json", tmp_path / "sys"
    earlier = RunFolder(out / "learning")
    earlier.path.mkdir(parents=True)
    earlier.write_settings(load_recipe("digits").model_copy(update={"name": "accept"}), load_cluster("laptop"))
    earlier.write_summary(Summary("accept", "success", top1=1.0, epochs=1))
    words = ["--cluster", "laptop", "--minutes", "1", "--set", "model.image_size=16", "--out", str(out)]
    words += ["--set", f"cluster.paths.runs={tmp_path / 'runs'}", "--save-baseline", str(baseline)]
    begin, variables = time.monotonic(), {**os.environ, "RANK_SYS": str(sys_folder)}
    with steady_power(sys_folder, WATTS):
        done = subprocess.run(
            [*ACCEPT, *words], cwd=ROOT, env=variables, capture_output=True, text=True, check=False, timeout=280
        )
    document = json.loads((out / "accept.json").read_text(encoding="utf-8"))
    checks = {(check["topic"], check["host"]): check for check in document["checks"]}
    assert (done.returncode, document["verdict"]) == (0, "pass"), done.stderr + done.stdout
    assert json.loads(baseline.read_text(encoding="utf-8")) == document
    host, (node,) = os.uname().nodename, document["nodes"]
    assert (node["host"], node["verdict"], node["ranks"]) == (host, "pass", [0, 1])
    assert {topic for topic, place in checks if place == host} >= {"compute", "copy", "bits"}
    assert {"rate", "allreduce of buckets", "learning"} <= {topic for topic, place in checks if not place}
    assert checks["compute", host]["value"] == document["figures"]["parts"][host]["compute"][0] > 0
    assert checks["rate", ""]["value"] > 0
    assert checks["learning", ""]["value"] > 1, "not the result of the earlier run"
    assert 0 < document["energy"]["joules"] == document["energy"]["packages_j"] < WATTS * (time.monotonic() - begin)
    for rank in document["ranks"]:
        (bits,) = set(rank["alone"]["checksums"])
        assert len(rank["alone"]["checksums"]) == 2
        assert document["figures"]["bits"] == {rank["model"]: bits}
    suite = ElementTree.parse(out / "accept.xml").getroot()
    cases = suite.findall("testsuite/testcase")
    assert [suite.get("tests"), suite.get("failures")] == [str(len(document["checks"])), "0"]
    assert {(case.get("name"), case.get("classname")) for case in cases} == {
        (topic, f"laptop.{place}" if place else "laptop") for topic, place in checks
    }
    page = (out / "accept.html").read_text(encoding="utf-8")
    assert all(word in page for word in (host, "laptop", "pass"))
    assert "laptop: pass" in done.stdout


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
    words += ["--set", "cluster.ranks_per_node=2", "--speed", "0.01", "--slow", "1:3", "--slow", "2:link:3"]
    command = [sys.executable, "-I", "-m", "train.rehearse", "rehearse", *words, "--run-dir", str(tmp_path / "out")]
    done = subprocess.run([*command, "--accept", "1"], cwd=ROOT, capture_output=True, text=True, check=False)
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
@pytest.mark.parametrize(("what", "bit"), [("weight", 0), ("product", 10), ("stuck", 5)])
def test_a_rank_that_computes_wrong_bits_is_named(
    what: str, bit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "falsified.so"
    source = Path(__file__).with_name("falsified_rank.cc")
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    victim = bit % 3
    variables = {"LD_PRELOAD": library, "FALSIFIED_RANK": victim, "FALSIFIED": what, "FALSIFIED_BIT": bit}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    sets = ["cluster.ranks_per_node=3", "batch.global_size=24", "cluster.engine.name=mxnet"]
    sets += [f"cluster.paths.runs={tmp_path}"]
    ranks, stopped_by = train_ranks_alone(*load_both("digits", "laptop", sets), ())
    assert (stopped_by, [len(rank.alone.checksums) for rank in ranks if rank.alone]) == (None, [2, 2, 2])
    (check,) = judge(Evidence((), (), alone=ranks))[0]
    assert check.verdict == "failed"
    assert [rank for rank in range(3) if f"rank {rank} on {os.uname().nodename}" in check.words] == [victim]


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
def test_what_cannot_begin_is_refused_in_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["accept", *words]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert (told.startswith("error: "), told.count("\n")) == (True, 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [({}, "make one with --save-baseline"), ({"format": 1, "figures": {}, "cluster": "other"}, "'other'")],
)
def test_a_baseline_of_another_kind_or_machine_is_refused(
    content: dict[str, object], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    assert main(["accept", "--cluster", "laptop", "--baseline", str(path)]) == 2
    assert message in capsys.readouterr().err
