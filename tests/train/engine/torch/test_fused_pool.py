"""Max pooling that keeps places of one byte, by Triton's kernels through its interpreter and on a GPU."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.train.engine.torch.kernel_program import POOLS, WAYS, Found, Pool
from tests.train.engine.torch.kernel_program import computed as compute

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.xdist_group("fused_pool")


@pytest.fixture(scope="module", params=WAYS)
def computed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Pool], Found]:
    return compute("pool", tmp_path_factory.mktemp("kernels"), request.param)


@pytest.mark.parametrize("case", POOLS, ids=lambda case: case.name)
def test_maxima_are_those_of_pytorch_which_takes_the_first_of_equal_ones_and_what_is_no_number(
    computed: Callable[[Pool], Found], case: Pool
) -> None:
    found = computed(case)
    x, gradient = (each.double() for each in case.inputs())
    output: Any = torch.nn.functional.max_pool2d(x.requires_grad_(), *case.window)
    output.backward(gradient)
    assert np.array_equal(found["output"], output.detach().numpy(), equal_nan=True)
    exact, rounding = x.grad.numpy(), {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[case.kind]
    # Sums of gradients are float32, and rounded once; bfloat16 is cut by Triton's interpreter, not rounded.
    assert (np.abs(found["gradient"] - exact) <= 2 * rounding * np.abs(exact) + 2.0**-20).all()
