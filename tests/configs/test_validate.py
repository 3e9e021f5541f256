"""A mistake in a recipe, a cluster file or a study of either kind is one line that names the key and the remedy."""

import pytest

from configs.errors import ConfigError
from configs.json_schema import list_blocks
from configs.load import load_both, load_cluster, load_recipe
from configs.synonyms import SYNONYMS

# Overrides of the digits on the laptop, the key that is named, and what is allowed or what to do.
MISTAKES = [
    ("run.epoch=3", "run.epoch", "no such key; did you mean 'run.epochs'?"),
    ("optimizer.momentun=0.9", "optimizer.momentun", "no such key; did you mean 'momentum'?"),
    ("optimizer.beta_2=0.9", "optimizer.beta_2", "no such key; choose one of average_every_steps, "),
    *((f"{key}=1", key, "no such key") for key in ("model.resnet50", "optimizer.lars", "optimizer.sgd")),
    *((word, "--set", "allowed: key=value with dots between blocks") for word in (
        "run..epochs=3", "run.epochs", "=3", ".run=3", "run.=3", "run", "", ".",
    )),
    ("run.seed.x=1", "--set", "'seed' is a value, not a block"),
    ("run=3", "run", "a block of keys; see ./run.sh keys run"),
    ("optimizer=lars", "optimizer", "a block of keys; see ./run.sh keys optimizer"),
    ("optimizer={momentum: 1}", "optimizer.name", "one of lars, sgd, adam, adamw, lamb, muon, shampoo; add it"),
    ("run.seed=many", "run.seed", "an integer"),
    ("run.seed=1e3", "run.seed", "an integer"),
    (f"run.seed={'9' * 400}", "run.seed", "an integer"),
    (f"schedule.base_lr={'9' * 400}", "schedule.base_lr", "a finite number"),
    ("run.seed=-1", "run.seed", "greater than or equal to 0"),
    ("run.epochs=12:30", "run.epochs", "an integer"),
    ("run.target_top1=97", "run.target_top1", "less than 1"),
    ("run.target_top1=1", "run.target_top1", "less than 1"),
    ("data.flip=no", "data.flip", "true or false"),
    ("data.name=4", "data.name", "a text"),
    ("data.mean=3", "data.mean", "a list, as [a, b]"),
    ("data.mean=[1, 2]", "data.mean.2", "required, and missing"),
    ("data.std=[0.229, 0.224, 0.225]", "data.std", "three numbers of at least 1: pixels are 0 to 255, not 0 to 1"),
    ("data.crop.area=[0.9, 0.5]", "data.crop.area", "0 < low <= high <= 1"),
    ("model.input_channels=1", "data.mean=[1, 2, 3]", "data.mean", "three equal numbers"),
    ("data.source=table", "loss.kind", "sigmoid for data.source: table"),
    ("loss.kind=softmx", "loss.kind", "'softmax', 'sigmoid' or 'one_hot_sigmoid'; did you mean 'softmax'?"),
    ("loss={kind: sigmoid}", "data.source", "table or synthetic where loss.kind is sigmoid"),
    ("loss={kind: sigmoid}", "data.source=synthetic", "run.target_top1", "null where loss.kind is sigmoid"),
    ("loss={kind: sigmoid, label_smoothing: 0.1}", "loss.label_smoothing", "0 where loss.kind is"),
    ("loss.class_weights=[1, 2]", "loss.class_weights", "10 numbers, one for each class"),
    ("loss.class_weights=[1, 0]", "loss.class_weights", "a number above 0 for each class"),
    ("loss.class_weights=equal", "loss.class_weights", "balanced, null, or a list"),
    ("data.auto_augment=trivialaugment", "data.randaugment_layers=3", "data.randaugment_layers", "2 unless "),
    ("loss={kind: one_hot_sigmoid, class_weights: balanced}", "loss.class_weights", "null where loss.kind is"),
    ("loss.mixed_label_threshold=0.2", "loss.mixed_label_threshold", "one_hot_sigmoid with loss.label_smoothing 0"),
    ("optimizer.name=lasr", "optimizer.name", "lars, sgd, adam, adamw, lamb, muon, shampoo; did you mean 'lars'?"),
    ("optimizer.name=AdamW", "optimizer.name", "did you mean 'adamw'?"),
    ("schedule.decay={name: step, boundaries: 30}", "schedule.decay.boundaries", "a list"),
    ("schedule.decay={name: step, boundaries: []}", "schedule.decay.boundaries", "at least 1 item"),
    ("schedule.changes_every=epoch", "schedule.warmup_epochs=1.5", "schedule.warmup_epochs", "a whole number with"),
    ("schedule.changes_every=epoch", "schedule.warmup_start_lr", "above 0 with schedule.changes_every: epoch"),
    ("schedule.changes_every=epoch", "schedule.warmup_epochs=0", "schedule.decay.steps=9", "schedule.decay.steps", ""),
    ("schedule.warmup_steps=3", "schedule.warmup_steps", "null beside schedule.warmup_epochs (1); set one"),
    ("schedule.warmup_epochs=null", "schedule.warmup_epochs", "a number here or in"),
    ("model.parameters=''", "model.parameters", "at least 1 character"),
    ("model.frozen=[backbone]", "model.frozen", "[] where the weights are drawn: frozen layers would stay at random"),
    ("optimizer={name: muon}", "model.parameters=a", "model.frozen=[stem]", "model.frozen", "[] with optimizer.name"),
    ("model.input_channels=2", "model.input_channels", "1, 3 or 4"),
    ("model.name=resnet51", "model.name", "did you mean 'resnet56'?"),
    ("model.name=mnist_small_cnn", "model.image_size", "28 px for mnist_small_cnn"),
    ("model.image_size=224", "model.image_size", "or take one of resnet18, resnet34, resnet50, resnet101"),
    ("model.zero_gamma=true", "model.last_gamma=1.4", "model.last_gamma", "1 where model.zero_gamma is true"),
    ("model.residual={stem: deep}", "model.residual.stem", "standard for resnet20, whose stem"),
    ("model.residual.squeeze_excitation=[stage1_block4]", "model.residual.squeeze_excitation",
     "blocks of resnet20, stage1_block1 to stage3_block3"),
    ("model={name: densenet121, num_classes: 10, image_size: 32, residual: {blur: convolutions}}", "model.residual",
     "left out for densenet121, which has no residual blocks"),
    ("model={name: resnet50, num_classes: 10, image_size: 48, residual: {stride: pool}}", "model.image_size",
     "a multiple of 32 px where model.residual halves images by average"),
    ("model={name: resnet8, num_classes: 10, image_size: 10, residual: {shortcut: pooled}}", "model.image_size",
     "a multiple of 4 px where model.residual halves images by average pools"),
    *((f"cluster.{block}=3", f"cluster.{block}", "a block of keys") for block in ("engine", "environment")),
    ("cluster.engine.name=mxnett", "cluster.engine.name", "'mxnet', 'torch' or 'timed'; did you mean 'mxnet'?"),
    ("cluster.device=tpu", "cluster.device", "'cpu' or 'gpu'"),
    ("cluster.num_nodes=2", "cluster.launcher", "horovodrun, mpirun, srun or torchrun"),
    ("cluster.check_first=true", "cluster.check_first", "no such key; did you mean 'cluster.scheduler.check_first'?"),
    ("cluster.environment={path: x}", "cluster.environment", "names in capitals"),
    ("cluster.engine={name: mxnet, layout: NHWC}", "cluster.engine.layout", "NCHW under MXNet on a CPU"),
]  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_with_the_key_and_what_is_allowed(mistake: tuple[str, ...]) -> None:
    *words, key, told = mistake
    with pytest.raises(ConfigError) as caught:
        load_recipe("digits", words)
        load_cluster("laptop", words)
    assert caught.value.key == key
    assert str(caught.value).startswith(f"{key}: ")
    assert told in str(caught.value)
    assert not any(word in str(caught.value) for word in ("\n", "after validation"))


PLAIN = "data.plain_from_epoch"
ALEXNET, DENSENET = "model.name=alexnet", "model.name=densenet121"

# Recipe, keys set in both cases, the key at stake, its last allowed and its first refused value.
EDGES = [
    ("digits", ["run.epochs=7"], PLAIN, 7, 8),
    ("digits", [], PLAIN, 2, 1),
    ("digits", ["model.image_size=32"], "data.eval_resize", 32, 31),
    ("digits", ["data.eval_size=24"], "data.eval_resize", 24, 23),
    ("digits", ["model.image_size=32", "data.eval_size=24", f"{PLAIN}=2"], "data.eval_resize", 32, 31),
    ("digits", ["data.eval_resize=null"], "data.eval_size", 64, 65),
    ("digits", ["model.name=alexnet", "model.image_size=64", "data.eval_resize=80"], "data.eval_size", 64, 65),
    ("digits", ["model.residual.shortcut=pooled", "data.eval_resize=24"], "data.eval_size", 20, 21),
    ("digits", ["data.eval_resize=8"], "data.eval_central_share", "null", 0.8),
    ("digits", [], "batch.global_size", 119800, 119801),
    ("digits", [], "model.image_size", 64, 65),
    ("digits", [], "model.image_size", 8, 7),
    ("digits", [ALEXNET], "model.image_size", 63, 62),
    ("digits", [DENSENET], "model.image_size", 29, 28),
    ("digits", ["model.name=resnet50"], "model.image_size", 1024, 1025),
    ("digits", [f"{PLAIN}=2"], "data.keep_batches", "false", "true"),
    ("mlperf-b32768", [], "run.eval_every_epochs", 4, 3),
]


@pytest.mark.parametrize(("name", "both", "key", "allowed", "refused"), EDGES)
def test_a_recipe_is_refused_from_the_first_value_beyond_the_rule(
    name: str, both: list[str], key: str, allowed: object, refused: object
) -> None:
    load_recipe(name, [*both, f"{key}={allowed}"])
    with pytest.raises(ConfigError):
        load_recipe(name, [*both, f"{key}={refused}"])


def test_an_unknown_key_is_named_before_the_required_key_that_it_misspells() -> None:
    with pytest.raises(ConfigError, match=r"^run\.epoch: no such key; did you mean 'run.epochs'\?"):
        load_recipe("digits", ["run={epoch: 3, target_top1: null}"])


def test_the_keys_offered_are_those_of_the_chosen_alternative() -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe("digits", ["optimizer={name: sgd, weight_decay: 0, zzz: 1}"])
    offered = str(caught.value).removeprefix("optimizer.zzz: no such key; choose one of ").split(", ")
    assert {"name", "momentum", "decoupled_weight_decay"} < set(offered)  # those of sgd
    assert not {"trust_coefficient", "beta_2"} & set(offered)  # those of lars and adam
    with pytest.raises(ConfigError, match=r"^schedule\.decay\.factr: .*did you mean 'factor'"):
        load_recipe("imagenet-b256", ["schedule.decay.factr=0.5"])


def test_all_mistakes_of_a_file_are_told_a_line_each() -> None:
    with pytest.raises(ConfigError) as caught:
        load_cluster("laptop", ["cluster.num_nodes=0", "cluster.ranks_per_nod=0", "cluster.scheduler={kind: slrum}"])
    assert str(caught.value).splitlines() == [
        "cluster.ranks_per_nod: no such key; did you mean 'ranks_per_node'?",
        "cluster.num_nodes: got 0, allowed: greater than or equal to 1",
        "cluster.scheduler.kind: got 'slrum', allowed: 'none', 'slurm', 'gridengine', 'pbs', 'lsf', 'kubernetes' "
        "or 'trainjob'; did you mean 'slurm'?",
    ]
    with pytest.raises(ConfigError) as caught:
        load_recipe("digits", ["model={name: resnet8}", "run={target_top1: null}"])
    assert str(caught.value).splitlines() == [
        f"{key}: required, and missing; ./run.sh keys {key.partition('.')[0]} explains"
        for key in ("model.num_classes", "model.image_size", "run.epochs")
    ]
    with pytest.raises(ConfigError, match=r"^recipe: got \[.*, allowed: the keys of a recipe; give such a file; "):
        load_recipe("configs/clusters/laptop.yaml")


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


def test_another_name_drops_the_keys_of_the_old_one_and_keeps_what_both_inherit() -> None:
    base = load_recipe("digits").optimizer
    adam = load_recipe("digits", ["optimizer.weight_decay=0.01", "optimizer.name=adam"]).optimizer
    of_ideas = {"clip_norm", "average_half_life_steps", "average_every_steps"}
    assert adam.model_dump(exclude={"skip_weight_decay", *of_ideas}) == {
        "name": "adam", "momentum": base.momentum, "weight_decay": 0.01, "beta_2": 0.999, "epsilon": 1e-8
    }  # fmt: skip
    assert load_recipe("digits", ["schedule.decay.name=cosine"]).schedule.decay.name == "cosine"
    assert load_recipe("digits", ["optimizer.name=lars"]).optimizer == base
    for own in (["optimizer.name=adam", "optimizer.epsilon=0.1"], ["optimizer.epsilon=0.1", "optimizer.name=adam"]):
        assert load_recipe("digits", own).optimizer.model_dump()["epsilon"] == 0.1
    with pytest.raises(ConfigError, match=r"^optimizer\.trust_coefficient: no such key; "):
        load_recipe("digits", ["optimizer.trust_coefficient=0.1", "optimizer.name=adam"])
