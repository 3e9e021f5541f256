"""A mistake in a recipe, a cluster file or a study of either kind is one line that names the key and the remedy."""

from pathlib import Path

import pytest

from configs.errors import ConfigError
from configs.json_schema import list_blocks
from configs.load import ROOT, load_both, load_cluster, load_recipe
from configs.study import load_study
from configs.synonyms import SYNONYMS, VALUE_SYNONYMS

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
        ("seeds:", "seedz:", "study.seedz: no such key; did you mean 'seeds'?"),
        ("swept:", "swep:", "study.swep: no such key; did you mean 'swept'?"),
        ("    grid:", "    griid:", "did you mean 'grid'?"),
        ("seeds: [1, 2, 3]\n", "", "study.seeds: required, and missing; ./run.sh keys study explains"),
        ("[1, 2, 3]", "[1, 2, x]", "study.seeds.2: got 'x', allowed: an integer"),
        ("[1, 2, 3]", "[1, 2, 2]", "study.seeds: got [1, 2, 2], allowed: every number once"),
        ("[1, 2, 4]", "[half, 2, 4]", "study.curves.LARS.grid.256.0: got 'half', allowed: a number"),
    ],
)
def test_a_mistake_in_a_study_of_curves_is_named(tmp_path: Path, was: str, now: str, message: str) -> None:
    told = _refusal_of_study(tmp_path, CURVES, was, now)
    assert message in told
    assert "\n" not in told


@pytest.mark.parametrize(
    ("was", "now", "message"),
    [
        ("repeats:", "repeat:", "study.repeat: no such key; did you mean 'repeats'?"),
        ("network:", "netwwork:", "study.netwwork: no such key; did you mean 'network'?"),
        ("ranks: [1]}", "rank: [1]}", "study.leave_out.0.rank: no such key; did you mean 'ranks'?"),
        ("effect: loses", "effectt: loses", "study.expects.0.effectt: no such key; did you mean"),
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
    with pytest.raises(ConfigError, match=r"^run\.epoch: no such key; did you mean 'run.epochs'\?"):
        load_recipe("digits", ["run={epoch: 3, target_top1: null}"])


def test_the_keys_offered_are_those_of_the_chosen_alternative() -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe("digits", ["optimizer={name: sgd, weight_decay: 0, zzz: 1}"])
    assert str(caught.value) == (
        "optimizer.zzz: no such key; choose one of "
        "average_every_steps, average_half_life_steps, decoupled_weight_decay, momentum, momentum_correction, "
        "name, skip_weight_decay, weight_decay"
    )
    with pytest.raises(ConfigError, match=r"^schedule\.decay\.factr: .*did you mean 'factor'"):
        load_recipe("imagenet-b256", ["schedule.decay.factr=0.5"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("run=3", "run: got 3, allowed: a block of keys; see ./run.sh keys run"),
        ("optimizer=lars", "optimizer: got 'lars', allowed: a block of keys; did you mean optimizer.name=lars?"),
        ("optimizer={momentum: 1}", "optimizer.name: got None, allowed: one of lars, sgd, adam, muon, shampoo; add it"),
        ("data.mean=3", "data.mean: got 3, allowed: a list of 3 values"),
        ("schedule.decay={name: step, boundaries: 30}", "schedule.decay.boundaries: got 30, allowed: a list"),
        ("run.seed=1e3", "run.seed: got 1000.0, allowed: an integer; write 1000"),
        (
            "loss.kind=CE",
            "loss.kind: got 'CE', allowed: 'softmax', 'sigmoid' or 'one_hot_sigmoid'; did you mean 'softmax'?",
        ),
        (
            "optimizer.name=adamw",
            "optimizer.name: got 'adamw', allowed: one of lars, sgd, adam, muon, shampoo; did you mean 'adam'?",
        ),
        ("data.mean=[1, 2]", "data.mean: got [1, 2], allowed: 3 values"),
        ("data.mean=[1, 2, 3, 4]", "data.mean: got [1, 2, 3, 4], allowed: 3 values"),
        ("schedule.decay={name: step, boundaries: []}", "schedule.decay.boundaries: got [], allowed: 1 or more values"),
        ("data.name=a/b", "data.name: got 'a/b', allowed: the name of a folder in paths.data, without a slash"),
        ("data.name=..", "data.name: got '..', allowed: the name of a folder in paths.data, without a slash"),
        ("data.name=4", "data.name: got 4, allowed: a text"),
        ("batch=32", "batch: got 32, allowed: a block of keys; did you mean 'batch.global_size'?"),
        ("run.target_top1=97", "run.target_top1: got 97, allowed: less than 1; a share, so that 97 % is 0.97"),
        ("run.target_top1=1", "run.target_top1: got 1, allowed: less than 1"),
        ("loss.kind=mse", "loss.kind: got 'mse', allowed: 'softmax', 'sigmoid' or 'one_hot_sigmoid'"),
        ("model.parameters=''", "model.parameters: got '', allowed: a text that is not empty"),
    ],
)
def test_allowed_values_are_told_in_the_words_of_yaml(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe("digits", [override])
    assert str(caught.value) == message


def test_all_mistakes_of_a_file_are_told_a_line_each_and_what_a_block_lacks_in_one() -> None:
    with pytest.raises(ConfigError) as caught:
        load_cluster("laptop", ["cluster.num_nodes=0", "cluster.ranks_per_nod=0", "cluster.scheduler={kind: slrum}"])
    assert str(caught.value).splitlines() == [
        "cluster.ranks_per_nod: no such key; did you mean 'ranks_per_node'?",
        "cluster.num_nodes: got 0, allowed: greater than or equal to 1",
        "cluster.scheduler.kind: got 'slrum', allowed: 'none', 'slurm', 'gridengine', 'pbs', 'lsf', 'kubernetes' "
        "or 'trainjob'; did you mean 'slurm'?",
    ]
    with pytest.raises(ConfigError) as caught:
        load_recipe("digits", ["model={name: resnet8}", "run={}"])
    assert str(caught.value).splitlines() == [
        "model.num_classes, model.image_size: required, and missing; ./run.sh keys model explains",
        "run.epochs, run.target_top1: required, and missing; ./run.sh keys run explains",
    ]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("lr", "schedule.base_lr"),
        ("run.lr", "schedule.base_lr"),
        ("batch-size", "batch.global_size"),
        ("gpus", "cluster.ranks_per_node"),
        ("cluster.epochs", "run.epochs"),
        ("ranks_per_node", "cluster.ranks_per_node"),
        ("bn_momentum", "model.bn_momentum"),
        ("bn_momentun", "model.bn_momentum"),
        ("boundaries", "schedule.decay.boundaries"),
    ],
)
def test_a_key_by_the_name_of_other_programs_or_of_another_block_is_found(word: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_both("digits", None, [f"{word}=3"])
    assert str(caught.value) == f"{word}: no such key; did you mean {meant!r}?"


def test_every_key_with_another_name_exists() -> None:
    known = {key.path for kind in ("recipe", "cluster") for block in list_blocks(kind) for key in block.keys}
    assert set(SYNONYMS.values()) <= known


def test_every_value_with_another_name_exists() -> None:
    blocks = [block for kind in ("recipe", "cluster") for block in list_blocks(kind)]
    texts = " ".join(str(key.schema) for block in blocks for key in block.keys)
    assert [value for value in VALUE_SYNONYMS.values() if f"'{value}'" not in texts] == []


def test_another_name_drops_the_keys_of_the_old_one_and_keeps_what_both_inherit() -> None:
    base = load_recipe("digits").optimizer
    adam = load_recipe("digits", ["optimizer.weight_decay=0.01", "optimizer.name=adam"]).optimizer
    assert adam.model_dump(exclude={"skip_weight_decay", "average_half_life_steps", "average_every_steps"}) == {
        "name": "adam", "momentum": base.momentum, "weight_decay": 0.01, "beta_2": 0.999, "epsilon": 1e-8
    }  # fmt: skip
    assert load_recipe("digits", ["schedule.decay.name=cosine"]).schedule.decay.name == "cosine"
    assert load_recipe("digits", ["optimizer.name=lars"]).optimizer == base
    for own in (["optimizer.name=adam", "optimizer.epsilon=0.1"], ["optimizer.epsilon=0.1", "optimizer.name=adam"]):
        assert load_recipe("digits", own).optimizer.model_dump()["epsilon"] == 0.1
    with pytest.raises(ConfigError, match=r"^optimizer\.trust_coefficient: no such key; "):
        load_recipe("digits", ["optimizer.trust_coefficient=0.1", "optimizer.name=adam"])


def test_a_key_that_is_called_like_a_network_or_an_optimizer_is_a_key() -> None:
    for key in ("model.resnet50", "optimizer.lars", "optimizer.sgd"):
        with pytest.raises(ConfigError, match=rf"^{key}: no such key"):
            load_recipe("digits", [f"{key}=1"])
