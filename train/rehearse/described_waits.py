"""How long a described GPU computes: times of the simulator, layer by layer, and invented accuracies."""

import numpy as np

from configs.blocks.rehearsal import Waits
from configs.schema import Cluster, Recipe
from train.sim.constants import load_calibration
from train.sim.forecast import forecast, make_scenario
from train.sim.roofline import update_time
from train.sim.step_time import step_model
from train.sim.time_to_train import evaluation_time

_ABOVE_TARGET = 0.005
_BELOW_TARGET = 0.0005
_STEEPNESS = 3
"""Power by which the invented accuracy approaches its end; the published curves rise as steeply."""
_NO_TARGET = 0.9


def waits_of(recipe: Recipe, cluster: Cluster) -> Waits:
    """Return the waits of one rank of a described machine.

    Args:
        recipe: The recipe, with the described machine's share of the batch.
        cluster: The described machine.

    Raises:
        UserError: The simulator does not know the machine, or the recipe does not fit it.
    """
    calibration = load_calibration()
    scenario = make_scenario(recipe, cluster, calibration)
    machine, constants, software = scenario.machine, calibration.constants, scenario.software
    model = recipe.model
    timed = step_model(model.name, model.num_classes, model.image_size, model.input_channels)
    batch, accumulation = scenario.batch, scenario.accumulation
    forward_s = float(timed.kernels(timed.forward, machine, batch, constants, software).sum())
    backward = np.cumsum(timed.kernels(timed.backward, machine, batch, constants, software))
    # Only the last micro-batch's gradients are reduced; the ones before lengthen the step's forward.
    forward_s = accumulation * forward_s + (accumulation - 1) * float(backward[-1])
    last_kernel = {int(layer): kernel for kernel, layer in enumerate(timed.backward.layer)}
    layers = [index for index, layer in enumerate(timed.network.layers) for _ in layer.parameters]
    rate = forecast(scenario, calibration).images_per_s
    return Waits(
        forward_s=forward_s,
        gradients_s=tuple(float(backward[last_kernel[layer]]) for layer in layers),
        update_s=update_time(timed.network.num_parameters, machine, constants),
        evaluation_s=evaluation_time(rate, scenario.mlperf_round, recipe.data.eval_samples),
        top1=invented_top1(recipe.run.epochs, recipe.run.target_top1),
    )


def invented_top1(epochs: int, target: float | None) -> tuple[float, ...]:
    """Return an accuracy for each epoch that rises towards the target and passes it with the last epoch."""
    end = _NO_TARGET if target is None else min(1.0, target + _ABOVE_TARGET)
    curve = [end * (1 - (1 - epoch / epochs) ** _STEEPNESS) for epoch in range(1, epochs + 1)]
    most = end if target is None else target - _BELOW_TARGET
    return (*(min(value, most) for value in curve[:-1]), curve[-1])
