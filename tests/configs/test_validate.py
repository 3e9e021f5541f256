"""A mistake in a recipe, a cluster file or a study of either kind is one line that names the key and the remedy."""

from pathlib import Path

import pytest

from configs.errors import ConfigError
from configs.load import ROOT, load_cluster, load_recipe
from configs.study import load_study

GRID = (ROOT / "configs" / "studies" / "chainermn-laptop.yaml").read_text(encoding="utf-8")
CURVES = (ROOT / "configs" / "studies" / "large-batch.yaml").read_text(encoding="utf-8")


def _refusal_of_study(folder: Path, text: str, was: str, now: str) -> str:
    assert was in text
    path = folder / "study.yaml"
    path.write_text(text.replace(was, now, 1), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_study(str(path))
    return str(caught.value)


@pytest.mark.parametrize(
    ("was", "now", "message"),
    [
        ("seeds:", "seedz:", "study.seedz: got [1, 2, 3], allowed: no such key; did you mean 'seeds'?"),
        ("swept:", "swep:", "study.swep: got 'batch.global_size', allowed: no such key; did you mean 'swept'?"),
        ("    grid:", "    griid:", "did you mean 'grid'?"),
        ("seeds: [1, 2, 3]\n", "", "study.seeds: got None, allowed: this key is required; add it"),
        ("[1, 2, 3]", "[1, 2, x]", "study.seeds.2: got 'x', allowed: a valid integer"),
        ("[1, 2, 3]", "[1, 2, 2]", "study.seeds: got [1, 2, 2], allowed: every number once"),
        ("[0.5, 1]", "[half, 1]", "study.curves.LARS.grid.256.0: got 'half', allowed: a valid number"),
    ],
)
def test_a_mistake_in_a_study_of_curves_is_named(tmp_path: Path, was: str, now: str, message: str) -> None:
    told = _refusal_of_study(tmp_path, CURVES, was, now)
    assert message in told
    assert "\n" not in told


@pytest.mark.parametrize(
    ("was", "now", "message"),
    [
        ("repeats:", "repeat:", "study.repeat: got 3, allowed: no such key; did you mean 'repeats'?"),
        ("network:", "netwwork:", "study.netwwork: got {'resnet8': {}}, allowed: no such key; did you mean 'network'?"),
        ("ranks: [1]}", "rank: [1]}", "study.leave_out.0.rank: got [1], allowed: no such key; did you mean 'ranks'?"),
        ("effect: loses", "effectt: loses", "study.expects.0.effectt: got 'loses', allowed: no such key; did you mean"),
        ("effect: loses", "effect: looses", "allowed: 'loses' or 'gains'; did you mean 'loses'?"),
        ("batch: [32]", "batch: []", "study.batch: got [], allowed: "),
        ("ranks: [1, 2,", "ranks: [0, 2,", "study.ranks.0: got 0, allowed: greater than or equal to 1"),
    ],
)
def test_a_mistake_in_a_study_of_a_grid_is_named(tmp_path: Path, was: str, now: str, message: str) -> None:
    told = _refusal_of_study(tmp_path, GRID, was, now)
    assert message in told
    assert "\n" not in told


def test_a_study_that_does_not_exist_or_is_no_block_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^study: got 'large-bach', allowed: a name in configs/studies or a YAML"):
        load_study("large-bach")
    path = tmp_path / "list.yaml"
    path.write_text("- 1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="a study is a block of keys, but the file holds a list; see"):
        load_study(str(path))


def test_an_unknown_key_is_named_before_the_required_key_that_it_misspells() -> None:
    with pytest.raises(ConfigError, match=r"^run\.epoch: got 3, allowed: no such key; did you mean 'epochs'\?"):
        load_recipe("digits", ["run={epoch: 3, target_top1: null}"])


def test_the_keys_offered_are_those_of_the_chosen_alternative() -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe("digits", ["optimizer={name: sgd, weight_decay: 0, zzz: 1}"])
    assert str(caught.value) == (
        "optimizer.zzz: got 1, allowed: no such key; choose one of momentum, name, skip_weight_decay, weight_decay"
    )
    with pytest.raises(ConfigError, match=r"^schedule\.decay\.factr: .*did you mean 'factor'"):
        load_recipe("imagenet-b256", ["schedule.decay.factr=0.5"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("run=3", "run: got 3, allowed: a block of keys"),
        ("optimizer=lars", "optimizer: got 'lars', allowed: a block of keys"),
        ("optimizer={momentum: 1}", "optimizer.name: got None, allowed: one of lars, sgd, adam; add it"),
        ("data.mean=3", "data.mean: got 3, allowed: a list"),
        ("data.mean=[1, 2]", "data.mean: got [1, 2], allowed: more than 2 values"),
        ("data.mean=[1, 2, 3, 4]", "data.mean: got [1, 2, 3, 4], allowed: 3 values"),
        ("schedule.decay={name: step, boundaries: []}", "schedule.decay.boundaries: got [], allowed: 1 or more values"),
        ("data.name=.a", r"data.name: got '.a', allowed: a text that matches ^[^/.\s][^/\x00-\x1f]*$"),
        ("data.name=4", "data.name: got 4, allowed: a text"),
        ("model.parameters=''", "model.parameters: got '', allowed: a text that is not empty"),
    ],
)
def test_allowed_values_are_told_in_the_words_of_yaml(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe("digits", [override])
    assert str(caught.value) == message


def test_several_mistakes_are_counted() -> None:
    with pytest.raises(ConfigError, match=r"^cluster\.num_nodes: got 0, .*; and 1 more to correct$"):
        load_cluster("laptop", ["cluster.num_nodes=0", "cluster.ranks_per_node=0"])


def test_a_key_that_is_called_like_a_network_or_an_optimizer_is_a_key() -> None:
    for key in ("model.resnet50", "optimizer.lars", "optimizer.sgd"):
        with pytest.raises(ConfigError, match=rf"^{key}: got 1, allowed: no such key"):
            load_recipe("digits", [f"{key}=1"])
