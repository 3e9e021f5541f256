"""What optimizers keep for each parameter, what they log, and how ``./run.sh plan`` describes them."""

import pytest

from configs.optimizers import AdamW, Lamb, Muon, OptimizerBlock, Shampoo


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


def test_adamw_begins_with_pytorchs_values_and_lamb_with_timms_and_both_log_by_mlperfs_names() -> None:
    adamw = AdamW(name="adamw")
    assert (adamw.momentum, adamw.beta_2, adamw.epsilon, adamw.weight_decay) == (0.9, 0.999, 1e-8, 0.01)
    assert adamw.momentum_log_key == "opt_adamw_beta_1"
    assert adamw.logged() == {"opt_adamw_beta_2": 0.999, "opt_adamw_epsilon": 1e-8}
    lamb = Lamb(name="lamb")
    assert (lamb.momentum, lamb.beta_2, lamb.epsilon, lamb.weight_decay) == (0.9, 0.999, 1e-6, 0.01)
    assert lamb.clip_norm == 1
    assert lamb.momentum_log_key == "opt_lamb_beta_1"
    assert lamb.logged() == {"opt_lamb_beta_2": 0.999, "opt_lamb_epsilon": 1e-6}


def test_an_optimizer_without_a_rule_asks_for_one_of_the_engine() -> None:
    class Own(OptimizerBlock):
        """An optimizer that forgot its rule."""

    own = Own(weight_decay=0.1, skip_weight_decay=("gamma",))
    assert own.describe() == "optimizer, momentum 0.9, weight_decay 0.1"
    with pytest.raises(NotImplementedError, match="Own has no update rule: the engine must implement it"):
        own.update_rule(None, None, (), None)  # type: ignore[arg-type]
