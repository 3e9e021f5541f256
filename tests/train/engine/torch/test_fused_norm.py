"""Batch norm, addition and ReLU as one operator: Triton's kernels through its interpreter, and PyTorch's on a CPU."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.oracles import batch_norm, batch_norm_gradients
from tests.train.engine.torch.kernel_program import EPSILON, NORMS, WAYS, Found, Norm, differentiated, needs_triton, run
from tests.train.engine.torch.kernel_program import computed as compute

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.xdist_group("fused_norm")

ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Number type -> the largest relative error of one rounding."""
SMALLEST = {"float32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126}
"""Number type -> the smallest number that has all digits."""
FEW = 12 * ROUNDING["float32"]
"""Float32 may add a dozen roundings of the terms before the last one, of which large means are the largest."""


@pytest.fixture(scope="module", params=["of_pytorch", *WAYS])
def computed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Norm], Found]:
    if request.param == "of_pytorch":
        from train.engine.torch.fused_norm import batch_norm as operator

        return lambda case: differentiated(case, operator)
    return compute("norm", tmp_path_factory.mktemp("kernels"), request.param)


def _rows(values: Any) -> np.ndarray:
    """Give an activation as a matrix with a row for each pixel, in float64."""
    array = np.asarray(values.float().numpy() if isinstance(values, torch.Tensor) else values, np.float64)
    return array.transpose(0, 2, 3, 1).reshape(-1, array.shape[1])


@pytest.mark.parametrize("case", NORMS, ids=lambda case: case.name)
def test_output_statistics_and_gradients_are_those_of_the_paper_within_two_roundings(
    computed: Callable[[Norm], Found], case: Norm
) -> None:
    found = computed(case)
    of, unit, smallest = case.inputs(), ROUNDING[case.kind], SMALLEST[case.kind]
    x, gradient, gamma, beta = _rows(of["x"]), _rows(of["gradient"]), of["gamma"].numpy(), of["beta"].numpy()
    addend: Any = 0.0 if of["addend"] is None else _rows(of["addend"])
    exact, mean, inverse_std = batch_norm(x, gamma, beta, addend, EPSILON)
    away = (np.abs(x) + np.abs(mean)) * inverse_std

    def allowed(values: np.ndarray, terms: np.ndarray) -> np.ndarray:
        return np.asarray(2 * unit * np.maximum(np.abs(values), smallest) + FEW * terms)

    output, most = _rows(found["output"]), allowed(exact, away * gamma + np.abs(beta) + np.abs(addend))
    assert (np.abs(output - (np.maximum(exact, 0) if case.has_relu else exact)) <= most).all()
    assert (np.abs(found["mean"] - mean) <= FEW * np.abs(x).max(0)).all()
    assert (np.abs(found["inverse_std"] / inverse_std - 1) <= FEW * away.mean(0)).all()

    passes = output > 0 if case.has_relu else np.ones_like(output, bool)
    assert not case.has_relu or ((passes == (exact > 0)) | (np.abs(exact) <= most)).all()
    passed = np.where(passes, gradient, 0)
    of_x, of_gamma, of_beta = batch_norm_gradients(passed, x, gamma, EPSILON)
    weighted = (np.abs(passed) * away).sum(0)
    terms = np.abs(passed) + (
        np.abs(of_beta) + weighted * np.abs(x - mean) * inverse_std + away * np.abs(of_gamma)
    ) / len(x)
    assert (np.abs(_rows(found["of_x"]) - of_x) <= allowed(of_x, terms * gamma * inverse_std)).all()
    assert (np.abs(found["of_gamma"] - of_gamma) <= FEW * weighted).all()
    assert (np.abs(found["of_beta"] - of_beta) <= FEW * np.abs(passed).sum(0)).all()
    assert ("of_addend" in found) == case.has_addend
    if case.has_addend:
        assert np.array_equal(_rows(found["of_addend"]), passed)


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize(
    ("architecture", "kinds"), [(80, ["float16"]), (90, ["float16", "bfloat16", "float32"]), (100, ["bfloat16"])]
)
def test_the_kernels_compile_for_gpus_and_move_each_activation_no_more_often_than_they_must(
    architecture: int, kinds: list[str], tmp_path: Path
) -> None:
    # Statistics and output read the input; their gradients, input and gradient. A ReLU behind an addition is known by
    # the output, and makes the gradient of the addend, which the last kernel reads in the place of both.
    wanted = {
        (False, False): ([1, 0, 2], [2, 0, 3]), (False, True): ([1, 0, 2], [2, 0, 3]),
        (True, False): ([1, 0, 3], [2, 0, 3]), (True, True): ([1, 0, 3], [4, 0, 3]),
    }  # fmt: skip
    found = json.loads(run("launches", str(architecture), *kinds, TRITON_CACHE_DIR=str(tmp_path), TRITON_INTERPRET="0"))
    assert len(found) == len(kinds) * len(wanted)
    for each in found:
        assert (each["forward"], each["backward"]) == wanted[tuple(each["pattern"])]
    codes = [path.read_text() for path in tmp_path.rglob("*.ptx")]
    assert codes
    # Atomic sums would come in any order, and a run's bits with them.
    assert not any("atom." in code or "red.global" in code for code in codes)
    assert all(f"sm_{architecture}" in code for code in codes)


def test_an_infinite_input_is_not_hidden_by_the_relu() -> None:
    case = next(each for each in NORMS if each.kind == "float16" and each.has_relu)
    from train.engine.torch.fused_norm import batch_norm as operator

    of = case.inputs()
    of["x"][0, 0, 0, 0] = float("inf")
    output, mean, _ = operator(of["x"], of["gamma"], of["beta"], None, EPSILON, has_relu=True)
    assert output[:, 0].isnan().all()
    assert not mean[0].isfinite()
    assert output[:, 1:].isfinite().all()


@pytest.mark.slow
@needs_triton
def test_pytorch_takes_the_operator_as_one_of_its_own() -> None:
    run("check", TRITON_INTERPRET="1")
