"""Measured steps: the factor of a run, which runs apply to a forecast, and refused folders."""

import json
import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from configs.errors import ConfigError, UserError
from configs.load import dump, load_both, load_cluster
from tests.configs.test_progressive_resizing import GROWING
from train.sim.__main__ import main
from train.sim.collectives import allreduce
from train.sim.conditions import (
    DESCRIPTION,
    MeasuredStep,
    apply_steps,
    conditions,
    fingerprint,
    keep_steps,
    load_steps,
    measure_run,
    predict_allreduce,
)
from train.sim.constants import load_calibration
from train.sim.forecast import Forecast, forecast
from train.sim.hardware import machine_of_cluster

RATES = "{flops: 4e10, memory_bytes_per_s: 8e9, link_bytes_per_s: 2e9, cores: 2}"


SLEPT = (
    "cluster.device=cpu",
    "cluster.communication.backend=gloo",
    "cluster.engine.name=timed",
    "cluster.rehearsal={waits: {forward_s: 0.1, gradients_s: [0.1], update_s: 0.1, evaluation_s: 0.1, top1: [0.5]}}",
)


def run_folder(folder: Path, recipe: str, cluster: str, rates: list[float], *overrides: str) -> Path:
    folder.mkdir()
    (folder / "config.yaml").write_text(dump(*load_both(recipe, cluster, overrides)))
    rows = [{"kind": "interval", "step": step, "images_per_s": rate} for step, rate in enumerate(rates)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize(
    ("recipe", "cluster", "factor"),
    [("digits", "laptop", 0.6), ("imagenet-b256", "a100-node", 0.6), ("imagenet-b256", "h100-node", 0.5),
     ("imagenet-b256", "h100-node", 2.0)],
)  # fmt: skip
def test_after_a_run_the_forecast_of_its_program_is_what_the_run_measured(
    tmp_path: Path, recipe: str, cluster: str, factor: float
) -> None:
    """At 32 images the host's launches bound an H100: a run may still be faster than they are estimated."""
    description, kept = tmp_path / "here.yaml", tmp_path / "new" / "runs" / "steps.yaml"
    description.write_text(RATES)

    def found(*sets: str) -> Forecast:
        return forecast(conditions(*load_both(recipe, cluster, sets), description=description, steps=kept))

    before = found()
    rate = factor * before.images_per_s
    run = run_folder(tmp_path / "run", recipe, cluster, [1.0, *(rate * each for each in (0.98, 1.0, 1.02, 0.99, 1.01))])
    step = measure_run(run, description=description)
    assert step.images_per_s == pytest.approx(rate, rel=1e-3)
    keep_steps(kept, [step])
    keep_steps(kept, [step])
    assert load_steps(kept) == [step]
    after = found()
    assert after.images_per_s == pytest.approx(rate, rel=1e-3)
    assert after.interval.basis == "measured"
    assert 0.08 < after.interval.rate < 0.12
    if cluster == "h100-node":
        assert (before.is_unmeasured, after.is_unmeasured) == (True, False)
        assert found("cluster.engine.compile=true").is_unmeasured


def test_runs_of_other_networks_count_with_the_spread_between_networks_and_other_machines_not_at_all() -> None:
    scenario = conditions(*load_both("imagenet-b256", "a100-node"))
    step = MeasuredStep("a", "A100-SXM-80GB", "alexnet", "float16", 8, 1e4, 0.01, 0.2, "", scenario.cluster.engine.name)
    other = apply_steps(scenario, [step])
    assert other.calibration.constants.compute_factor == pytest.approx(math.exp(0.2))
    # One network: 0.2 between networks, as much for this one, 0.05 between runs, 0.01 within the run.
    assert other.calibration.measured_half_width == pytest.approx(1.645 * math.hypot(0.2, 0.2, 0.05, 0.01))
    networks = [replace(step, network=name, log_factor=log) for name, log in (("b", 0.1), ("c", 0.3), ("d", 0.9))]
    middle = apply_steps(scenario, [step, step, *networks])
    assert middle.calibration.constants.compute_factor == pytest.approx(math.exp(0.2)), (
        "one that is far off does not move it"
    )
    runs, between = (statistics.variance((0.1, 0.2, 0.3, 0.9, *more)) for more in ((0.2,), ()))
    variance = 0.05**2 + 0.01**2 + runs / 5 + between
    assert middle.calibration.measured_half_width == pytest.approx(1.645 * math.sqrt(variance))
    same = apply_steps(scenario, [step, replace(step, network="resnet50", log_factor=0.5)])
    assert same.calibration.constants.compute_factor == pytest.approx(math.exp(0.5))
    known = [replace(step, network="resnet50", ranks=ranks) for ranks in (1, 8)]
    assert apply_steps(scenario, known).calibration.measured_half_width == pytest.approx(
        1.645 * math.hypot(0.05, 0.01)
    ), "one of the runs had as many ranks"
    fewer = apply_steps(scenario, known[:1])
    assert fewer.calibration.measured_half_width == pytest.approx(
        math.hypot(1.645 * math.hypot(0.05, 0.01), scenario.calibration.half_widths["larger"])
    )
    of_others = (
        replace(step, machine="H100-SXM"), replace(step, precision="float32"), replace(step, engine="another"),
        replace(step, program="compiled"),
    )  # fmt: skip
    for foreign in of_others:
        assert apply_steps(scenario, [foreign]) is scenario


def test_steps_of_older_constants_are_named_and_not_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept, asked = tmp_path / "steps.yaml", load_both("imagenet-b256", "a100-node")
    without = conditions(*asked, steps=kept)
    machine, engine = without.machine.accelerator.name, without.cluster.engine.name
    old = MeasuredStep("runs/old", machine, "resnet50", "float16", 8, 1e4, 0.01, 0.2, "stale", engine)
    keep_steps(kept, [old, replace(old, source="runs/elsewhere", machine="H100-SXM")])
    assert conditions(*asked, steps=kept) == without
    told = capsys.readouterr().err
    assert told.startswith("1 measured steps are not used")
    assert told.endswith("--calibrate runs/old\n")
    current = replace(old, source="runs/new", fingerprint=fingerprint(DESCRIPTION, "gpu"))
    keep_steps(kept, [current])
    assert conditions(*asked, steps=kept) == apply_steps(without, [current])
    assert capsys.readouterr().err.endswith("--calibrate runs/old\n"), "those of today's constants are used"
    for content in (b"[{a: 1}]", b"\0", b"\xff"):
        kept.write_bytes(content)
        with pytest.raises(UserError, match="remove it"):
            load_steps(kept)


@pytest.mark.parametrize(
    ("rates", "sets", "words"),
    [
        ([1e4, 1e4, 1e4], (), "has 0 measured intervals after the first, .* least 3;"),
        ([1e4, 1.1e4, 1.2e4], (), "has 2 measured intervals after the first, .* least 3;"),
        ([1e4, 1.1e4, 1.2e4, 1.1e4], (GROWING,), "has images of several sizes; give a run whose images"),
        ([1e4, 1.1e4, 1.2e4, 1.1e4], SLEPT, "is a rehearsal, whose ranks slept; give a run that trained"),
        ([1e9, 1.1e9, 1.2e9, 1.3e9], (), "ran at .*, but its communication and waits alone"),
    ],
)
def test_a_run_that_is_too_short_of_several_sizes_rehearsed_or_faster_than_its_communication_is_refused(
    tmp_path: Path, rates: list[float], sets: tuple[str, ...], words: str
) -> None:
    run = run_folder(tmp_path / "run", "imagenet-b256", "a100-node", rates, *sets)
    with pytest.raises(UserError, match=rf"^--calibrate: {run} {words}"):
        measure_run(run)


@pytest.mark.medium
def test_16_bit_numbers_on_a_cpu_are_refused_until_steps_with_them_are_measured(tmp_path: Path) -> None:
    description, kept = tmp_path / "here.yaml", tmp_path / "steps.yaml"
    description.write_text(RATES)
    torch = ("cluster.engine.name=torch",)
    half = (*torch, "cluster.engine.precision=bfloat16")
    whole = forecast(conditions(*load_both("digits", "laptop", torch), description=description, steps=kept))
    rates = [whole.images_per_s / 15] * 2 + [whole.images_per_s / each for each in (15.1, 14.9, 15.2, 15)]
    with pytest.raises(
        ConfigError, match=r"engine.precision: got 'bfloat16', allowed: float32 on a CPU .* --calibrate"
    ):
        conditions(*load_both("digits", "laptop", half), description=description, steps=kept)
    keep_steps(
        kept, [measure_run(run_folder(tmp_path / "run", "digits", "laptop", rates, *half), description=description)]
    )
    found = {
        words: forecast(conditions(*load_both("digits", "laptop", words), description=description, steps=kept))
        for words in (torch, half)
    }
    assert found[torch] == whole, "a run with 16-bit numbers says nothing about float32"
    assert found[half].images_per_s == pytest.approx(whole.images_per_s / 15, rel=0.02)


def test_intervals_without_a_rate_repeated_ones_and_evaluations_do_not_count(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", "imagenet-b256", "a100-node", [1.0, 1e4, 0.0, 1.1e4, 1.2e4, 1.2e4])
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"kind": "evaluation", "images_per_s": 9e9}) + "\n")
    assert measure_run(run).images_per_s == pytest.approx(1.1e4)


@pytest.mark.medium
def test_runs_are_told_with_their_factors_and_kept_beside_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "steps.yaml"
    monkeypatch.setattr("train.sim.answers.STEPS", kept)
    rate = forecast(conditions(*load_both("imagenet-b256", "a100-node"), steps=kept)).images_per_s
    shares = (0.5, 0.55, 0.6, 0.65, 0.7)
    for name in ("one", "two"):
        run = run_folder(tmp_path / name, "imagenet-b256", "a100-node", [1.0, *(rate * each for each in shares)])
        assert main(["simulate", "--calibrate", str(run)]) == 0
    steps = load_steps(kept)
    assert [step.source for step in steps] == [str(tmp_path / name) for name in ("one", "two")]
    # The spread of a median of n values is 1.25 times that of their mean.
    spread = 1.25 * statistics.stdev(map(math.log, shares)) / math.sqrt(len(shares))
    assert [step.log_spread for step in steps] == pytest.approx([spread] * 2, abs=1e-4)
    _, row, last = capsys.readouterr().out.splitlines()[-3:]
    factor, width = math.exp(steps[1].log_factor), math.expm1(1.645 * steps[1].log_spread)
    assert row.split()[-3:] == [f"{0.6 * rate:.1f}", f"{factor:.3f}", f"{width:.1%}"]
    assert last.startswith(f"kept in {kept}")


def test_other_constants_accelerators_or_processors_outdate_all_steps_and_a_new_description_those_of_its_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    description, before = tmp_path / "here.yaml", fingerprint(tmp_path / "here.yaml", "gpu")
    for name in ("CONSTANTS", "FAMILIES", "PROCESSORS"):
        with monkeypatch.context() as patch:
            (tmp_path / name).write_text("other")
            patch.setattr(f"train.sim.conditions.{name}", tmp_path / name)
            assert fingerprint(description, "gpu") != before
    assert fingerprint(description, "gpu") == before
    digests = []
    for text in ("a", "b"):
        description.write_text(text)
        digests.append(fingerprint(description, "cpu"))
        assert fingerprint(description, "gpu") == before, "only a CPU's steps depend on this machine"
    assert len({before, *digests}) == 3


def test_an_allreduce_is_predicted_by_the_clusters_route_and_links() -> None:
    cluster = load_cluster("dgx-a100", ["cluster.num_nodes=4", "cluster.communication.allreduce=torus"])
    topology = machine_of_cluster(cluster).topology(load_calibration().constants.network_efficiency)
    expected_s = allreduce("hierarchical", topology, 64 << 20)
    assert predict_allreduce(cluster, 64 << 20) == pytest.approx(expected_s)
