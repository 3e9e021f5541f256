"""PyTorch on a GPU: eager, compiled and as CUDA graphs, in each number type; and what its forecast owns not to know."""

import math
from dataclasses import replace

import pytest

from configs.load import load_both
from train.sim.constants import load_calibration
from train.sim.forecast import Scenario, forecast, forecast_row, forecast_text, make_scenario
from train.sim.step_time import StepTime, step_model

CALIBRATION = load_calibration()
ALONE = replace(CALIBRATION.constants, straggler=0.0)
BFLOAT16, COMPILED, FUSED, STEP, COMPUTE = (
    "cluster.engine.precision=bfloat16",
    "cluster.engine.compile=true",
    "cluster.engine.batch_norm=fused",
    "cluster.engine.cuda_graphs=step",
    "cluster.engine.cuda_graphs=compute",
)


def _scenario(*sets: str, gpu: str = "H100-SXM5-80GB", ranks: int = 1, batch: int = 256) -> Scenario:
    given = [f"cluster.node.gpu={gpu}", f"cluster.ranks_per_node={ranks}", f"batch.global_size={ranks * batch}"]
    given += ["mlperf.division=open", "batch.bn_span=null"]
    return make_scenario(*load_both("imagenet-b256", "h100-node", [*given, *sets]))


def _step(scenario: Scenario, **constants: float) -> StepTime:
    values = replace(ALONE, **constants)
    return step_model("resnet50").time_step(scenario.machine, scenario.batch, values, scenario.software)


@pytest.mark.parametrize(
    ("sets", "sevenths"),
    [
        ((), 13),  # 3 + 5 passes of batch norm, 2 + 3 of ReLU and addition
        (("precision=bfloat16",), 16),  # PyTorch's own batch norm reads three tensors once more
        (("compile=true",), 8),  # 3 + 5 of one fused kernel each way
        (("compile=true", "precision=bfloat16"), 8),
        (("batch_norm=fused",), 8),  # likewise, by Triton
        (("batch_norm=fused", "precision=bfloat16"), 8),
        (("layout=NCHW",), 18),
        (("layout=NCHW", "precision=float32"), 13),  # without TF32, nothing wants channels last
        (("layout=NCHW", "precision=bfloat16"), 21),
    ],
)
def test_batch_norms_pass_over_a_tensor_as_often_as_the_kernels_of_the_number_type(
    sets: tuple[str, ...], sevenths: int
) -> None:
    found = _scenario(*(f"cluster.engine.{each}" for each in sets)).software.norm_traffic
    assert found == pytest.approx(sevenths / 7)


@pytest.mark.parametrize(("sets", "launches"), [((), 483), ((BFLOAT16,), 532), ((COMPILED,), 404), ((FUSED,), 580)])
def test_a_step_is_no_shorter_than_its_launches_by_the_host(sets: tuple[str, ...], launches: int) -> None:
    step = _step(_scenario(*sets, batch=1), launch_s=0.0, kernel_s=0.0)
    assert step.total_s == pytest.approx(launches * 14.3e-6, rel=1e-6)
    large = _scenario(*sets)
    assert _step(large).total_s == _step(replace(large, software=replace(large.software, host_s=0.0))).total_s


def test_the_launches_of_another_network_are_as_many_as_its_kernels_are_more() -> None:
    small = _scenario("model.name=resnet101", batch=1)
    model = step_model("resnet101")
    kernels = len(model.forward) + len(model.backward)
    step = model.time_step(small.machine, 1, replace(ALONE, launch_s=0.0, kernel_s=0.0), small.software)
    assert step.total_s == pytest.approx(kernels / 303 * 483 * 14.3e-6, rel=1e-6)


@pytest.mark.parametrize("graphs", [STEP, COMPUTE])
def test_the_host_launches_nothing_of_a_graph(graphs: str) -> None:
    scenario = _scenario(graphs, batch=1)
    assert _step(scenario, launch_s=1.0) == _step(scenario, launch_s=0.0)
    assert _step(scenario).total_s < 0.5 * _step(_scenario(batch=1)).total_s


def test_nothing_hides_the_allreduces_beside_a_graph_of_compute() -> None:
    eager, step, compute = (_step(_scenario(*sets, ranks=8)) for sets in ((), (STEP,), (COMPUTE,)))
    assert compute.exposed_communication_s == pytest.approx(compute.communication_s)
    assert compute.contention_s == 0
    assert all(one.start_s >= compute.compute_s for one in compute.reductions)
    for hiding in (eager, step):
        assert hiding.exposed_communication_s < 0.3 * hiding.communication_s
    assert step.total_s < compute.total_s


def test_a_gain_that_nobody_measured_widens_the_interval_to_where_it_fails() -> None:
    eager = forecast(_scenario())
    for sets in ((COMPILED,), (STEP,), (COMPILED, STEP)):
        found = forecast(_scenario(*sets))
        gain = math.log(found.images_per_s / eager.images_per_s)
        assert gain > 0
        assert found.interval.rate == pytest.approx(math.hypot(eager.interval.rate, gain))
        assert found.rate_bounds[0] < eager.images_per_s
    fast = _scenario(COMPILED, STEP)
    slow_input = replace(fast, software=replace(fast.software, images_per_s=100.0))
    assert forecast(slow_input).interval == eager.interval, "both wait for the same images"
    assert (eager.interval.basis, eager.interval.lacks) == ("seen", "PyTorch")
    assert eager.interval.rate == pytest.approx(
        math.hypot(CALIBRATION.half_widths["seen"], CALIBRATION.half_widths["PyTorch"])
    )


@pytest.mark.parametrize(
    ("sets", "widened_by"),
    [
        ((), "PyTorch, not measured"),
        (("cluster.engine.precision=float32",), "float32, not measured"),
        (("model.name=resnet18",), "another network, not measured"),
        (("cluster.engine.name=mxnet", "cluster.engine.precision=float16"), "own kernels"),
    ],
)
def test_a_forecast_says_that_nothing_was_measured(sets: tuple[str, ...], widened_by: str) -> None:
    found = forecast(_scenario(*sets))
    assert forecast_row(found)["interval_widened_by"] == widened_by
    text = forecast_text(found, {}, None)
    assert ("not measured: under PyTorch, only an H200 was timed" in text) is ("not measured" in widened_by)
