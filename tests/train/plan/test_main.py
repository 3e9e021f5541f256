"""``./run.sh plan`` prints the plan as text and as JSON, in about a second and without MXNet."""

import io
import json
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest

from configs.load import load_cluster, load_recipe
from configs.rank_variables import rank_environment
from tests.programs import Said, python
from train.networks.arch import network_of
from train.plan.__main__ import main

PLANS = sorted((Path(__file__).parent / "plans").glob("*.txt"))
"""Plans as they are printed, without the recipe's card and the forecast; the first line of each file is the command."""


def _text_of(command: str) -> str:
    told = io.StringIO()
    with redirect_stdout(told):
        assert main(["plan", *shlex.split(command)]) == 0
    text = re.sub(r"\nSimulated,.*?\n\n", "\n", told.getvalue(), flags=re.DOTALL)
    return re.sub(r"\n.*?\n  ranks ", "\n  ranks ", text, count=1, flags=re.DOTALL)


def test_the_plan_holds_the_environment_that_ranks_would_get(said: Said) -> None:
    told = said(main, "plan", "abci-b86016", "--cluster", "abci-v100", "--json").out
    assert json.loads(told)["environment"] == rank_environment(load_cluster("abci-v100"))


def test_weights_that_no_run_could_begin_with_are_refused(tmp_path: Path, said: Said) -> None:
    weights, shapes = tmp_path / "weights.npz", network_of(load_recipe("digits").model).tensor_shapes
    np.savez(weights, **{name: np.ones(shape) for name, shape in shapes.items()})
    assert main(["plan", "digits", "--from", str(weights)]) == 0
    assert main(["plan", "digits", "--from", str(tmp_path / "none")]) == 2
    told = said(main, "plan", "digits", "--from", weights, "--set", "model.name=resnet32", status=2).err
    assert f"error: {weights}: not the parameters of resnet32: " in told


@pytest.mark.ranks
def test_the_command_prints_json_and_a_figure_without_importing_mxnet(tmp_path: Path) -> None:
    picture = tmp_path / "rate.png"
    code = (
        "import sys; from train.plan.__main__ import main; "
        f"status = main(['plan', 'digits', '--json', '--plot', {str(picture)!r}]); "
        "assert 'mxnet' not in sys.modules; sys.exit(status)"
    )
    done = python("-c", code, check=True)
    plan = json.loads(done.stdout)
    assert plan["recipe"] == "digits"
    assert plan["recipe"] == "digits"
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_a_whole_plan_changes_on_purpose_only(path: Path) -> None:
    """``python -m tests.train.plan.test_main`` writes the files anew, for review."""
    command, _, expected = path.read_text(encoding="utf-8").partition("\n")
    text = _text_of(command)
    assert text.splitlines() == expected.splitlines()
    assert max(map(len, text.splitlines())) <= 130


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digits", "--cluser", "laptop"], "error: '--cluser' is not expected here; did you mean '--cluster'?"),
        (["digits", "--cluser=laptop"], "error: '--cluser' is not expected here; did you mean '--cluster'?"),
        (["nosuch"], "error: recipe: got 'nosuch'"),
        (["digits", "--from", "/nonexistent"], "error: --from: no such file or folder: /nonexistent"),
        (["digits", "--cluster", "abci"], "error: cluster: got 'abci', "),
        (["abci-b86016", "--set", "cluster.ranks_per_node=5"], "error: batch.global_size: got 86016, allowed: a "),
        (["digits", "--plot", "/nonexistent/rate.png"], "error: /nonexistent/rate.png: cannot be written"),
        ([str(PLANS[0]), "--plot", str(PLANS[0])], f"error: argument --plot: got '{PLANS[0]}'"),
    ],
)
def test_what_cannot_be_planned_is_one_line_and_status_2(arguments: list[str], message: str, said: Said) -> None:
    captured = said(main, "plan", *arguments, status=2)
    # Another test may have measured this machine beside other work, which every forecast from it tells.
    (told,) = [line for line in captured.err.splitlines() if not line.startswith("warning: ")]
    assert told.startswith(message)
    assert not captured.out


if __name__ == "__main__":
    for plan in PLANS:
        words = plan.read_text(encoding="utf-8").partition("\n")[0]
        plan.write_text(f"{words}\n{_text_of(words)}", encoding="utf-8")
