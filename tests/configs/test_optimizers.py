"""What optimizers keep for each parameter, what they log, and how ``./run.sh plan`` describes them."""

import pytest

from configs.load import load_recipe
from configs.optimizers import Muon, Shampoo


def test_muon_says_what_it_keeps_and_what_it_logs_and_shampoo_what_it_is() -> None:
    """What the others say is in the plans of tests/train/plan and in the logs of tests/train."""
    muon = Muon(name="muon", sgd_lr_ratio=0.5)
    assert (muon.num_moments, muon.log_prefix, muon.warmup_log_prefix) == (1, "opt", "opt")
    assert muon.momentum_log_key == "opt_momentum"
    assert muon.logged() == {
        "opt_muon_newton_schulz_steps": 5, "opt_muon_sgd_learning_rate_ratio": 0.5, "opt_muon_sgd_momentum": 0.9,
    }  # fmt: skip
    assert muon.describe() == "muon, momentum 0.95, weight_decay 0, sgd_lr_ratio 0.5, sgd_momentum 0.9"
    described = Shampoo(name="shampoo", weight_decay=1e-4).describe()
    assert described == "shampoo, momentum 0.9, weight_decay 0.0001, beta_2 0.999, matrix_epsilon 1e-06"


@pytest.mark.parametrize(
    ("keys", "values"),
    [
        # You et al. 2017; Sutskever et al. 2013; Kingma and Ba 2015; PyTorch's AdamW; timm's LAMB.
        ("name: lars, weight_decay: 0", {"momentum": 0.9, "trust_coefficient": 0.001, "epsilon": 0.0}),
        ("name: sgd, weight_decay: 0", {"momentum": 0.9, "skip_weight_decay": ("gamma", "beta", "bias")}),
        ("name: adam", {"momentum": 0.9, "beta_2": 0.999, "epsilon": 1e-8, "weight_decay": 0.0}),
        ("name: adamw", {"momentum": 0.9, "beta_2": 0.999, "epsilon": 1e-8, "weight_decay": 0.01}),
        ("name: lamb", {"momentum": 0.9, "beta_2": 0.999, "epsilon": 1e-6, "weight_decay": 0.01, "clip_norm": 1.0}),
    ],
)
def test_an_optimizer_begins_with_the_values_of_its_paper_or_program(keys: str, values: dict[str, object]) -> None:
    optimizer = load_recipe("digits", [f"optimizer={{{keys}}}"]).optimizer
    assert optimizer.model_dump().items() >= values.items()
    if "beta_2" in values:  # by MLPerf's names
        prefix = f"opt_{optimizer.name}"
        assert optimizer.momentum_log_key == f"{prefix}_beta_1"
        assert optimizer.logged() == {f"{prefix}_beta_2": values["beta_2"], f"{prefix}_epsilon": values["epsilon"]}
