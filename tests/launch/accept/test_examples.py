"""The examples of docs/examples, without the programs that they are for."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from configs.load import ROOT
from launch.accept.document import Acceptance, Check, Figures, Node
from logs.energy import RunEnergy, Totals
from tests.launch.stand_in import write_program

EXAMPLES = ROOT / "docs" / "examples"
SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)*)\} (\S+)')
"""A sample with labels. *Source*: https://prometheus.io/docs/instrumenting/exposition_formats, text-based format."""


def test_prometheus_gets_the_worst_verdict_of_a_check_and_no_figure_that_is_unknown(tmp_path: Path) -> None:
    checks = [
        Check("limits", "", "pass", ""), Check("limits", "", "failed", ""), Check("limits", "", "pass", ""),
        Check("compute", "n1", "slow", "", 0.25, "s"), Check("energy", "", "skipped", "", None, "images/J"),
    ]  # fmt: skip
    nodes, energy = [Node("n1", "slow", [], [0], [], "")], RunEnergy(nodes={"n1": Totals(), "n2": Totals(7.5)})
    place = "1970-01-01T01:01:00+01:00", 'a "b"\\', "digits", None
    source, target = tmp_path / "accept.json", tmp_path / "accept.prom"
    source.write_text(json.dumps(Acceptance(*place, False, nodes, checks, Figures(), energy).to_json([])))
    subprocess.run([sys.executable, EXAMPLES / "accept_prometheus.py", source, target], check=True)
    lines = target.read_text(encoding="utf-8").splitlines()
    found = [SAMPLE.fullmatch(line) for line in lines if not line.startswith("#")]
    samples = {each and (each[1], each[2].partition('recipe="digits"')[2]): float(each[3]) for each in found if each}
    assert None not in found
    assert all(each and each[2].startswith(r'cluster="a \"b\"\\",recipe="digits"') for each in found)
    assert samples == {
        ("accept_verdict", ""): 2, ("accept_end_timestamp_seconds", ""): 60,
        ("accept_node_verdict", ',host="n1"'): 1, ("accept_energy_joules", ',host="n2"'): 7.5,
        ("accept_check_verdict", ',host="",topic="limits"'): 2,
        ("accept_check_verdict", ',host="n1",topic="compute"'): 1,
        ("accept_check_verdict", ',host="",topic="energy"'): -1,
        ("accept_figure", ',host="n1",topic="compute",unit="s"'): 0.25,
    }  # fmt: skip
    assert [line.split()[2] for line in lines if line.startswith("# TYPE")] == list(
        dict.fromkeys(n for n, _ in samples)
    )


@pytest.mark.parametrize(("status", "ends", "calls"), [(0, 0, 1), (1, 1, 2), (2, 0, 2)])
def test_the_prolog_drains_a_node_for_its_own_faults_and_asks_a_sound_one_once(
    status: int, ends: int, calls: int, tmp_path: Path
) -> None:
    called = tmp_path / "called"
    program = write_program(tmp_path / "run.sh", f"echo >> {called}\nexit {status}")
    variables = {**os.environ, "ACCEPT_PROGRAM": str(program), "ACCEPT_STATE": str(tmp_path)}
    done = [subprocess.run([EXAMPLES / "accept_prolog.sh"], env=variables, check=False) for _ in range(2)]
    assert ([each.returncode for each in done], called.read_text().count("\n")) == ([ends, ends], calls)
