"""LARS and momentum SGD by Triton's kernels, through its interpreter and on a GPU."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.oracles import LarsOracle, decoupled_sgd_steps
from tests.train.engine.torch.kernel_program import MOMENTUM, RATES, RESCALE, UPDATES, WAYS, Found, Update
from tests.train.engine.torch.kernel_program import computed as compute

pytest.importorskip("torch")
pytestmark = pytest.mark.xdist_group("fused_momentum")


@pytest.fixture(scope="module", params=WAYS)
def computed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Update], Found]:
    return compute("update", tmp_path_factory.mktemp("kernels"), request.param)


@pytest.mark.parametrize("case", UPDATES, ids=lambda case: case.name)
def test_the_weights_are_those_of_the_papers_within_two_roundings_a_step(
    computed: Callable[[Update], Found], case: Update
) -> None:
    found = computed(case)
    config = case.config
    for index, kind in enumerate(found["kinds"].tolist()):
        decay = config.weight_decay if config.decays(kind) else 0.0
        start, end = found[f"before_{index}"], found[f"after_{index}"]
        gradients = [RESCALE * found[f"gradient_{index}_{step}"].astype(np.float64) for step in range(len(RATES))]
        if config.is_decoupled:
            exact = decoupled_sgd_steps(
                start, gradients, list(RATES), momentum=MOMENTUM, decay=decay, base_lr=max(RATES)
            )  # fmt: skip
        else:
            trust_decay = getattr(config, "trust_weight_decay", None)
            oracle = LarsOracle(
                MOMENTUM, decay, getattr(config, "trust_coefficient", 1.0), getattr(config, "epsilon", 0.0),
                decay if trust_decay is None or not decay else trust_decay, config.trusts(kind),
            )  # fmt: skip
            exact = oracle.steps(start, gradients, list(RATES))
        assert np.abs(exact - start).max() > 0.01 * np.abs(start).max(), "the steps are no smaller than the roundings"
        assert np.abs(end - exact).max() <= 2 * len(RATES) * 2.0**-24 * np.abs(exact).max(), kind
        rounding = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-7}[
            "float32" if kind in ("gamma", "beta") else case.kind
        ]
        # Triton's interpreter cuts float32 to bfloat16, which a GPU rounds.
        assert (np.abs(found[f"copy_{index}"] - end) <= rounding * np.maximum(np.abs(end), 2.0**-14)).all()
    skips = case.kind == "float16"
    assert found["flags"].tolist() == ([0, 0, 0, 1] if skips else [-1, -1, -1])
