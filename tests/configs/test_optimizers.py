"""What optimizers keep for each parameter, what they log, and how ``./run.sh plan`` describes them."""

import pytest

from configs.optimizers import Adam, Lars, Muon, OptimizerBlock, Sgd, Shampoo


@pytest.mark.parametrize(
    ("optimizer", "moments", "prefixes", "logged", "line"),
    [
        (
            Lars(name="lars", weight_decay=5e-5, trust_coefficient=0.002, epsilon=1e-9),
            1, ("lars_opt", "lars_opt", "lars_opt_momentum"),
            {"lars_epsilon": 1e-9, "lars_opt_trust_coefficient": 0.002},
            "lars, momentum 0.9, weight_decay 5e-05, trust_coefficient 0.002, epsilon 1e-09",
        ),
        (
            Sgd(name="sgd", weight_decay=1e-4, momentum=0.5),
            1, ("sgd_opt", "opt", "sgd_opt_momentum"), {}, "sgd, momentum 0.5, weight_decay 0.0001",
        ),
        (
            Adam(name="adam", momentum=0.8),
            2, ("opt", "opt", "opt_adam_beta_1"), {"opt_adam_beta_2": 0.999, "opt_adam_epsilon": 1e-8},
            "adam, momentum 0.8, weight_decay 0, beta_2 0.999, epsilon 1e-08",
        ),
        (
            Muon(name="muon", sgd_lr_ratio=0.5),
            1, ("opt", "opt", "opt_momentum"),
            {
                "opt_muon_newton_schulz_steps": 5, "opt_muon_sgd_learning_rate_ratio": 0.5,
                "opt_muon_sgd_momentum": 0.9,
            },
            "muon, momentum 0.95, weight_decay 0, sgd_lr_ratio 0.5, sgd_momentum 0.9",
        ),
        (
            Shampoo(name="shampoo", weight_decay=1e-4),
            2, ("opt", "opt", "opt_shampoo_beta_1"),
            {
                "opt_shampoo_beta_2": 0.999, "opt_shampoo_matrix_epsilon": 1e-6, "opt_shampoo_block_size": 128,
                "opt_shampoo_start_preconditioning_step": 1, "opt_shampoo_root_every_steps": 1,
            },
            "shampoo, momentum 0.9, weight_decay 0.0001, beta_2 0.999, matrix_epsilon 1e-06",
        ),
    ],
)  # fmt: skip
def test_an_optimizer_says_what_it_keeps_and_what_it_logs(
    optimizer: OptimizerBlock, moments: int, prefixes: tuple[str, str, str], logged: dict[str, float], line: str
) -> None:
    assert optimizer.num_moments == moments
    assert (optimizer.log_prefix, optimizer.warmup_log_prefix, optimizer.momentum_log_key) == prefixes
    assert optimizer.logged() == logged
    assert optimizer.describe() == line


def test_an_optimizer_without_a_rule_asks_for_one_of_the_engine() -> None:
    class Own(OptimizerBlock):
        """An optimizer that forgot its rule."""

    own = Own(weight_decay=0.1, skip_weight_decay=("gamma",))
    assert own.describe() == "optimizer, momentum 0.9, weight_decay 0.1"
    with pytest.raises(NotImplementedError, match="Own has no update rule: the engine must implement it"):
        own.update_rule(None, None, (), None)  # type: ignore[arg-type]
