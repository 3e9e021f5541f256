"""Max pooling that keeps places of one byte, by Triton's kernels through its interpreter and on a GPU."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from tests.train.engine.torch.kernel_program import POOLS, Pool
from tests.train.engine.torch.kernel_program import computed as compute

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

Found = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Pool], Found]:
    return compute("pool", tmp_path_factory.mktemp("interpreted"), "cpu", TRITON_INTERPRET="1")


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Pool], Found]:
    return compute("pool", tmp_path_factory.mktemp("gpu"), "gpu")


@pytest.mark.parametrize("case", POOLS, ids=lambda case: case.name)
@pytest.mark.parametrize("computed", [
    pytest.param("interpreted", marks=pytest.mark.skipif(find_spec("triton") is None, reason="no Triton, which "
        "./run.sh setup --engine torch --extra test installs")),
    pytest.param("on_gpu", marks=pytest.mark.gpu("torch")),
])  # fmt: skip
def test_maxima_are_those_of_pytorch_which_takes_the_first_of_equal_ones_and_what_is_no_number(
    computed: str, case: Pool, request: pytest.FixtureRequest
) -> None:
    found: Found = request.getfixturevalue(computed)(case)
    x, gradient = (each.double() for each in case.inputs())
    output: Any = torch.nn.functional.max_pool2d(x.requires_grad_(), *case.window)
    output.backward(gradient)
    assert np.array_equal(found["output"], output.detach().numpy(), equal_nan=True)
    exact, rounding = x.grad.numpy(), {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[case.kind]
    # Sums of gradients are float32, and rounded once; bfloat16 is cut by Triton's interpreter, not rounded.
    assert (np.abs(found["gradient"] - exact) <= 2 * rounding * np.abs(exact) + 2.0**-20).all()
