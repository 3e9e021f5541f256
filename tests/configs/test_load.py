"""Wrong configs are refused in one line that says what to do; right ones mean what their author meant."""

from pathlib import Path

import pytest
import yaml

from configs.errors import ConfigError, UserError
from configs.load import (
    ROOT,
    dump,
    load_both,
    load_cluster,
    load_recipe,
    load_run,
    parse_yaml,
    resolve_path,
    with_resolved_paths,
)
from configs.plan import plan_run
from configs.schema import Cluster, Recipe

RECIPES = sorted(path.stem for path in (ROOT / "configs" / "recipes").glob("*.yaml"))
CLUSTERS = sorted(path.stem for path in (ROOT / "configs" / "clusters").glob("*.yaml"))


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_loads_and_is_named_after_its_file(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.card.command


def test_a_recipe_may_have_a_second_name() -> None:
    assert load_recipe("lars-v30-b57344", ["run.seed=7"]) == load_recipe("nvidia-v30-n448", ["run.seed=7"])
    with pytest.raises(ConfigError, match="did you mean 'lars-v30-b57344'"):
        load_recipe("lars-v30-b57345")


@pytest.mark.parametrize("name", RECIPES)
def test_a_resolved_config_gives_the_same_run_back(name: str, tmp_path: Path) -> None:
    recipe, cluster = load_recipe(name, ["run.seed=7"]), load_cluster("laptop", ["cluster.environment={X: '1'}"])
    path = tmp_path / "config.yaml"
    path.write_text(dump(recipe, cluster), encoding="utf-8")
    assert load_run(path) == (recipe, cluster)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("run.epoch=3", "run.epoch: no such key; did you mean 'run.epochs'?"),
        ("optimizer.momentun=0.9", "optimizer.momentun: no such key; did you mean 'momentum'?"),
        ("model.parameters=''", "model.parameters: got '', allowed: "),
        ("run..epochs=3", "--set: got 'run..epochs=3', allowed: key=value with dots between blocks"),
        ("run.epochs", "--set: got 'run.epochs', allowed: key=value with dots between blocks"),
        ("run.seed=many", "run.seed: got 'many', allowed: an integer"),
        ("run.seed=-1", "run.seed: got -1, allowed: greater than or equal to 0"),
        ("data.flip=no", "data.flip: got 'no', allowed: true or false"),
        ("run.epochs=12:30", "run.epochs: got '12:30', allowed: an integer"),
        ("run.epochs=2.5", "run.epochs: got 2.5, allowed: an integer"),
        ("model.name=resnet51", "did you mean 'resnet56'?"),
        (
            "optimizer.name=lasr",
            "optimizer.name: got 'lasr', allowed: one of lars, sgd, adam, muon, shampoo; did you mean 'lars'?",
        ),
        ("data.crop.area=[0.9, 0.5]", "data.crop.area: got [0.9, 0.5], allowed: 0 < low <= high <= 1"),
        ("data.std=[1, 2, 0]", "data.std: got [1.0, 2.0, 0.0], allowed: three numbers above 0"),
        ("model.image_size=224", "model.image_size: got 224, allowed: 8 to 64 px for resnet20"),
        (
            "model.image_size=224",
            "or take one of resnet18, resnet34, resnet50, resnet101, resnet152, alexnet",
        ),
        ("model.name=mnist_small_cnn", "model.image_size: got 8, allowed: 28 px for mnist_small_cnn"),
        ("model.name=alexnet", "model.image_size: got 8, allowed: 63 to 1024 px for alexnet"),
        ("model.input_channels=2", "model.input_channels: got 2, allowed: 1, 3 or 4"),
        (
            "model={name: resnet8, num_classes: 10, image_size: 8, zero_gamma: true, last_gamma: 1.4}",
            "model.last_gamma: got 1.4, allowed: 1 where model.zero_gamma is true",
        ),
        ("model.residual={stem: deep}", "model.residual.stem: got 'deep', allowed: standard for resnet20, whose stem"),
        (
            "model={name: densenet121, num_classes: 10, image_size: 32, residual: {blur: convolutions}}",
            "allowed: left out for densenet121, which has no residual blocks",
        ),
        (
            "model.residual.squeeze_excitation=[stage1_block4]",
            "model.residual.squeeze_excitation: got ['stage1_block4'], allowed: blocks of resnet20, stage1_block1 to "
            "stage3_block3",
        ),
        (
            "model={name: resnet50, num_classes: 10, image_size: 48, residual: {stride: pool}}",
            "model.image_size: got 48, allowed: a multiple of 32 px where model.residual halves images by average",
        ),
        (
            "model={name: resnet8, num_classes: 10, image_size: 10, residual: {shortcut: pooled}}",
            "model.image_size: got 10, allowed: a multiple of 4 px where model.residual halves images by average pools",
        ),
        ("loss={kind: sigmoid, label_smoothing: 0.1}", "loss.label_smoothing: got 0.1, allowed: 0 where loss.kind is"),
        ("loss={kind: sigmoid}", "data.source: got 'digits', allowed: table or synthetic where loss.kind is sigmoid"),
        ("data.source=table", "loss.kind: got 'softmax', allowed: sigmoid for data.source: table"),
        (
            "schedule.warmup_steps=3",
            "schedule.warmup_steps: got 3, allowed: null beside schedule.warmup_epochs (1); set one",
        ),
        ("schedule.warmup_epochs=null", "schedule.warmup_epochs: got None, allowed: a number here or in"),
        ("run", "--set: got 'run', allowed: key=value"),
        ("run.seed.x=1", "--set: got 'run.seed.x=1', allowed: 'seed' is a value, not a block"),
        ("cluster.device=tpu", "cluster.device: got 'tpu', allowed: 'cpu' or 'gpu'"),
        (
            "cluster.engine={name: mxnet, layout: NHWC}",
            "cluster.engine.layout: got 'NHWC', allowed: NCHW under MXNet on a CPU",
        ),
        ("cluster.num_nodes=2", "cluster.launcher: got 'local', allowed: horovodrun, mpirun, srun or torchrun"),
        ("cluster.environment={path: x}", "cluster.environment: got 'path', allowed: names in capitals"),
    ],
)
def test_a_wrong_value_is_refused_with_key_value_and_remedy(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe("digits", [override])
        load_cluster("laptop", [override])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5e-5", 5e-5),
        ("1e6", 1e6),
        ("010", 10),
        ("12:30", "12:30"),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("1_000", 1000),
        (".5", 0.5),
        ("1_000_000", 1000000),
        ("-1_0", -10),
        ("+3", 3),
        ("-0.5", -0.5),
        ("+.5", 0.5),
        ("3.", 3.0),
        ("1E6", 1e6),
        ("1e+6", 1e6),
        ("1.5E-3", 1.5e-3),
        ("1e", "1e"),
        ("1e5x", "1e5x"),
        ("1_000.5", "1_000.5"),
        ("1__0", 10),
        ("_1", "_1"),
        ("12a", "12a"),
        ("trueish", "trueish"),
        ("True", "True"),
        ("false", False),
        ("~", None),
        ("Null", "Null"),
        ("nullable", "nullable"),
        ("yes", "yes"),
        ("-", [None]),
        ("'5'", "5"),
        ("null", None),
        ("", None),
        ("0x10", "0x10"),
        ("1.2.3", "1.2.3"),
    ],
)
def test_plain_scalars_mean_what_a_person_reads(text: str, value: object) -> None:
    assert parse_yaml(text, "test") == value


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'digits'"):
        load_recipe("digit")


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text("name: a\nname: b\n", encoding="utf-8")
    with pytest.raises(UserError, match="'name' occurs twice"):
        load_recipe(str(path))


def test_text_that_is_not_yaml_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("name: [a\nb: }", encoding="utf-8")
    with pytest.raises(UserError, match="not YAML") as caught:
        load_recipe(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("line", ["? {}\n: 1", "run: {{seed: {}}}", "name: [{}]", "model: {{name: {}}}"])
@pytest.mark.parametrize("length", [500_000, 20_000_000])
def test_a_key_or_a_value_of_any_length_makes_a_short_message(tmp_path: Path, line: str, length: int) -> None:
    path = tmp_path / "long.yaml"
    path.write_text(line.format("k" * length), encoding="utf-8")
    with pytest.raises(UserError) as caught:
        load_recipe(str(path))
    assert max(map(len, str(caught.value).splitlines())) < 2000


def test_a_missing_key_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "short.yaml"
    path.write_text("name: short\n", encoding="utf-8")
    with pytest.raises(
        ConfigError,
        match=r"^model, data, batch, optimizer, schedule, run: required, and missing; \./run\.sh keys recipe explains$",
    ):
        load_recipe(str(path))


def test_what_several_labels_and_grey_images_rule_out_is_said() -> None:
    many = ["loss={kind: sigmoid}", "data.source=synthetic"]
    with pytest.raises(ConfigError, match=r"run\.target_top1: got 0\.97, allowed: null where loss\.kind is sigmoid"):
        load_recipe("digits", many)
    assert load_recipe("digits", [*many, "run.target_top1=null"]).loss.kind == "sigmoid"
    with pytest.raises(ConfigError, match=r"data\.mean: got \[1\.0, 2\.0, 3\.0\], allowed: three equal numbers"):
        load_recipe("digits", ["model.input_channels=1", "data.mean=[1, 2, 3]"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &a [*a]", "not YAML"),
        ("[\n" * 100_000, "nested too deeply"),
        (f"a: {'9' * 5000}", "not YAML"),
        ("? {a: 1}\n: 2", "not YAML"),
    ],
)
def test_a_text_that_would_grow_or_crash_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        parse_yaml(text, "config.yaml")
    assert str(caught.value).startswith("config.yaml: ")
    assert "\n" not in str(caught.value)


def test_aliases_that_stand_for_few_values_are_read() -> None:
    assert parse_yaml("a: &x [1, 2]\nb: *x", "a.yaml") == {"a": [1, 2], "b": [1, 2]}


def test_a_dumped_run_has_the_keys_in_the_order_of_the_schema() -> None:
    tree = yaml.safe_load(dump(*load_both("digits", "laptop")))
    assert list(tree) == ["recipe", "cluster"]
    assert list(tree["recipe"]) == list(Recipe.model_fields)
    assert list(tree["cluster"]) == list(Cluster.model_fields)


@pytest.mark.parametrize(
    ("words", "purpose"),
    [
        (["card.purpose=a=b"], "a=b"),
        (["card.purpose=a=b=c="], "a=b=c="),
        (["card.purpose='='"], "="),
        (["card.purpose='cluster.x=1'"], "cluster.x=1"),
        (["card.purpose=first", "card.purpose=second"], "second"),
        (["card={purpose: block}", "card.purpose=value"], "value"),
        (["card.purpose=value", "card={purpose: block}"], "block"),
    ],
)
def test_a_value_begins_after_the_first_equals_sign_and_the_last_one_wins(words: list[str], purpose: str) -> None:
    assert load_recipe("digits", words).card.purpose == purpose


def test_a_value_of_a_cluster_may_have_equals_signs_too() -> None:
    assert load_cluster("laptop", ["cluster.purpose=of cluster.x=1"]).purpose == "of cluster.x=1"
    words = ["cluster.notify=A=1 mail b", "run.seed=5", "cluster.environment.X=y=z"]
    cluster = load_cluster("laptop", words)
    assert (cluster.notify, cluster.environment) == ("A=1 mail b", {"X": "y=z"})
    recipe, other = load_both("digits", "a100-node", words)
    assert (recipe.run.seed, other.notify, other.name) == (5, "A=1 mail b", "a100-node")


@pytest.mark.parametrize("word", ["clusters.notify=x", "cluster=x", "clusterx=1"])
def test_only_words_that_begin_with_the_clusters_name_and_a_dot_are_the_clusters(word: str) -> None:
    assert load_cluster("laptop", [word]) == load_cluster("laptop")
    with pytest.raises(ConfigError, match=rf"^{word.partition('=')[0].partition('.')[0]}: no such key"):
        load_recipe("digits", [word])


@pytest.mark.parametrize("word", ["=3", ".run=3", "run.=3", "run", "", "."])
def test_a_word_without_a_key_or_a_value_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match=r"^--set: got .*, allowed: key=value"):
        load_recipe("digits", [word])


def test_a_value_that_is_not_yaml_is_refused_by_its_key() -> None:
    with pytest.raises(UserError, match=r"^--set run\.seed: not YAML: "):
        load_recipe("digits", ["run.seed=[1"])


def test_a_loaded_file_is_the_same_each_time_whatever_was_set_before() -> None:
    before = load_both("digits", "laptop")
    assert load_both("digits", "laptop", ["run.seed=99", "cluster.engine.threads=9"]) != before
    assert load_both("digits", "laptop") == before


def test_a_shipped_file_comes_before_a_file_of_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "digits").write_text("name: own\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert load_recipe("digits").name == "digits"


def test_only_the_config_of_a_run_brings_its_cluster(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(dump(load_recipe("digits"), load_cluster("a100-node")), encoding="utf-8")
    assert load_both(str(path), None)[1].name == "laptop"
    assert load_cluster(str(path)).name == "a100-node"
    path.write_text("recipe: {name: x}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^recipe: no such key"):
        load_recipe(str(path))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"- 1\n", "a recipe is a block of keys, but the file holds a list; see ./run.sh keys recipe"),
        (b"", "a recipe is a block of keys, but the file holds nothing; see"),
        (b"3\n", "a recipe is a block of keys, but the file holds a single value; see"),
        (b"name: a\n\xff\n", "line 2: not UTF-8; save the file in that encoding"),
        (
            b"device: cpu\nlauncher: local\n",
            "got the file of a cluster, allowed: that of a recipe; its use is --cluster ",
        ),
        (
            b"recipe: digits\ntitle: a\n",
            "got the file of a study, allowed: that of a recipe; its use is ./run.sh sweep ",
        ),
        (b"a:\n  b: 1\n\tc: 2\n", "not YAML: line 3, column 1: a tab, and YAML indents by spaces only; write two "),
        (b"a: {b: 1\nc: 2\n", "not YAML: line 2, column 2: did not find expected ',' or '}'; look there and in the "),
    ],
)
def test_a_file_without_keys_is_refused(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        load_recipe(str(path))
    assert str(caught.value).startswith(f"{path}: {told}")
    assert "\n" not in str(caught.value)


def test_paths_begin_at_the_home_folder_the_root_or_the_programs_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert [resolve_path(path) for path in ("~/data", "/data/x")] == [Path("/home/me/data"), Path("/data/x")]
    with pytest.raises(UserError, match=r"^~no-such-user/data: there is no such home folder here; give"):
        resolve_path("~no-such-user/data")
    paths = with_resolved_paths(load_cluster("laptop", ["cluster.paths.runs=r", "cluster.paths.stage=$TMPDIR/s"])).paths
    assert (paths.data, paths.runs, paths.stage) == (f"{ROOT}/runs/data", f"{ROOT}/r", "$TMPDIR/s")


def test_a_folder_and_a_name_that_is_no_file_are_refused_with_what_to_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder, file in (("empty", "x"), ("run", "config.yaml"), ("packed", "manifest.json"), ("own", "recipe.yaml")):
        Path(folder).mkdir()
        Path(folder, file).touch()
    Path("own", "manifest.json").touch()
    Path("flowers.yaml").touch()
    allowed = "allowed: a name in configs/recipes or a YAML file; "
    for name, told in {
        "empty": "this is a folder; ./run.sh recipes lists them",
        "run": "this is a folder: give run/config.yaml",
        "packed": "this is the folder of a data set; ./run.sh recipes lists them",
        "own": "this is the folder of a data set: give own/recipe.yaml",
        "flower": "did you mean 'flowers.yaml'?",
        "other/flowers.yaml": "there is no such file; ./run.sh recipes lists them",
        "Digits": "did you mean 'digits'?",
        "digits.yaml": "did you mean 'digits'?",
    }.items():
        with pytest.raises(ConfigError) as caught:
            load_recipe(name)
        assert str(caught.value) == f"recipe: got {name!r}, {allowed}{told}"
    with pytest.raises(ConfigError, match="there is no such file; choose one of a100-kubernetes, a100-node, a100-tr"):
        load_cluster("zzz")


def test_an_evaluation_that_would_come_first_after_the_last_epoch_comes_after_the_last() -> None:
    recipe = load_recipe("digits", ["run.epochs=2", "run.eval_first_epoch=3"])
    assert plan_run(recipe, 2).eval_epochs == (2,)
