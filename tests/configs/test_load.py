"""Wrong configs are refused in one line that says what to do; right ones mean what their author meant."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

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
from configs.study import load_study

RECIPES = sorted(path.stem for path in (ROOT / "configs" / "recipes").glob("*.yaml"))


def test_a_recipe_may_have_a_second_name() -> None:
    assert load_recipe("lars-v30-b57344", ["run.seed = 7"]) == load_recipe("nvidia-v30-n448", ["run.seed=7"])


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_named_after_its_file_and_a_resolved_config_gives_the_same_run_back(
    name: str, tmp_path: Path
) -> None:
    recipe, cluster = load_recipe(name, ["run.seed=7"]), load_cluster("laptop", ["cluster.environment={X: '1'}"])
    assert recipe.name == name
    assert recipe.card.command
    path = tmp_path / "config.yaml"
    path.write_text(dump(recipe, cluster), encoding="utf-8")
    assert load_run(path) == (recipe, cluster)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5e-5", 5e-5),
        ("010", 10),
        ("12:30", "12:30"),
        ("no", "no"),
        ("true", True),
        (".5", 0.5),
        ("1_000_000", 1000000),
        ("3.", 3.0),
        ("1.5E-3", 1.5e-3),
        ("1e5x", "1e5x"),
        ("1_000.5", "1_000.5"),
        ("_1", "_1"),
        ("trueish", "trueish"),
        ("~", None),
        ("-", [None]),
        ("a: &x [1, 2]\nb: *x", {"a": [1, 2], "b": [1, 2]}),
        ("'5'", "5"),
        ("null", None),
        ("", None),
    ],
)
def test_plain_scalars_mean_what_a_person_reads(text: str, value: object) -> None:
    assert parse_yaml(text, "test") == value


@pytest.mark.medium
@pytest.mark.parametrize("line", ["? {}\n: 1", "run: {{seed: {}}}", "name: [{}]", "model: {{name: {}}}"])
def test_a_key_or_a_value_of_any_length_makes_a_short_message(tmp_path: Path, line: str) -> None:
    path = tmp_path / "long.yaml"
    path.write_text(line.format("k" * 2_000_000), encoding="utf-8")
    with pytest.raises(UserError) as caught:
        load_recipe(str(path))
    assert max(map(len, str(caught.value).splitlines())) < 2000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &a [*a]", "not YAML"),
        ("[\n" * 100_000, "nested too deeply"),
        ("a0: &a0 [1, 1]\n" + "".join(f"a{n + 1}: &a{n + 1} [*a{n}, *a{n}]\n" for n in range(40)), "aliases"),
        ("a: 1\na: 2", "'a' occurs twice in the block of line 1; remove one$"),
        ("? {a: 1}\n: 2", "not YAML"),
        ('a: "x\\0"', "a zero byte in a text, which no path and no variable can hold; leave it out$"),
    ],
)
def test_a_text_that_would_grow_or_crash_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        parse_yaml(text, "config.yaml")
    assert str(caught.value).startswith("config.yaml: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["08", "1e3", "1_0", "-9E9", "012", "1.10", "null", "~", "true", "no", "12:30", ""])
def test_a_text_that_looks_like_a_number_stays_a_text_in_a_dumped_run(tmp_path: Path, text: str) -> None:
    given = [f"card.purpose='{text}'", f"cluster.purpose='{text}'", f"cluster.environment.X='{text}'"]
    path = tmp_path / "config.yaml"
    path.write_text(dump(*load_both("digits", "laptop", given)), encoding="utf-8")
    recipe, cluster = load_run(path)
    assert (recipe.card.purpose, cluster.purpose, cluster.environment["X"]) == (text, text, text)


@pytest.mark.parametrize(
    ("words", "purpose"),
    [
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
    words = ["cluster.notify=A=1 mail b", "run.seed=5", "cluster.environment.X=y=z"]
    recipe, cluster = load_both("digits", "a100-node", words)
    assert (recipe.run.seed, cluster.name) == (5, "a100-node")
    assert (cluster.notify, cluster.environment["X"]) == ("A=1 mail b", "y=z")


@pytest.mark.parametrize("word", ["clusters.notify=x", "cluster=x", "clusterx=1"])
def test_only_words_that_begin_with_the_clusters_name_and_a_dot_are_the_clusters(word: str) -> None:
    assert load_cluster("laptop", [word]) == load_cluster("laptop")
    with pytest.raises(ConfigError, match=rf"^{word.partition('=')[0].partition('.')[0]}: no such key"):
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
    with pytest.raises(ConfigError, match=r"^recipe: got \['recipe'\], allowed: the keys of a recipe"):
        load_recipe(str(path))
    with pytest.raises(
        ConfigError, match=r"^recipe: got \['title', .*\], allowed: the keys of a recipe; give such a file"
    ):
        load_recipe("configs/studies/chainermn.yaml")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        *((each, "a recipe is a block of keys, and the file holds none; see ./run.sh") for each in (b"- 1", b"", b"3")),
        (b"name: a\n\xff\n", "byte 8: not UTF-8; save the file in that encoding"),
        (b"a:\n  b: 1\n\tc: 2\n", "not YAML: line 3, column 1: "),
        (b"a: {b: 1\nc: 2\n", "not YAML: line 2, column 2: "),
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
    with pytest.raises(
        UserError, match=r"^\$SCRATCH/data: a variable is replaced in cluster\.paths\.stage alone; give"
    ):
        resolve_path("$SCRATCH/data")
    paths = with_resolved_paths(load_cluster("laptop", ["cluster.paths.runs=r", "cluster.paths.stage=$TMPDIR/s"])).paths
    assert (paths.data, paths.runs, paths.stage) == (f"{ROOT}/runs/data", f"{ROOT}/r", "$TMPDIR/s")


def test_a_folder_that_is_no_run_is_refused_with_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"digits/config\.yaml: there is no such file; \./run\.sh train"):
        load_run(tmp_path / "digits" / "config.yaml")


def test_a_data_set_below_the_program_is_named_from_there_so_that_both_can_move(tmp_path: Path) -> None:
    with TemporaryDirectory(dir=ROOT, prefix=".test-") as below:
        for folder, named in ((Path(below), Path(below).name), (tmp_path, str(tmp_path))):
            (folder / "mine").mkdir()
            (folder / "mine" / "manifest.json").touch()
            recipe = folder / "mine" / "recipe.yaml"
            recipe.write_text((ROOT / "configs" / "recipes" / "digits.yaml").read_text("utf-8"), encoding="utf-8")
            assert load_both(str(recipe), None)[1].paths.data == named
            assert resolve_path(named) == folder


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
        "run": "this is a folder; give run/config.yaml",
        "packed": "this is a folder; ./run.sh recipes lists them",
        "own": "this is a folder; give own/recipe.yaml",
        "flower": "did you mean 'flowers.yaml'?",
        "other/flowers.yaml": "there is no such file; ./run.sh recipes lists them",
        "DIGITS": "did you mean 'digits'?",
        "FLOWERS": "did you mean 'flowers.yaml'?",
        "digits.yaml": "did you mean 'digits'?",
    }.items():
        with pytest.raises(ConfigError) as caught:
            load_recipe(name)
        assert str(caught.value) == f"recipe: got {name!r}, {allowed}{told}"
    with pytest.raises(ConfigError, match="there is no such file; choose one of a100-kubernetes, a100-node, a100-tr"):
        load_cluster("zzz")
    for load in (load_cluster, load_study):
        with pytest.raises(ConfigError, match="this is a folder; choose one of"):
            load("own")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        # He et al., MXNet's Gluon and MLPerf's reference
        ("model.bn_epsilon", 1e-5),
        ("model.bn_momentum", 0.9),
        ("model.classifier_std", 0.01),
        # ImageNet's mean and standard deviation of 0..255
        ("data.mean", (123.675, 116.28, 103.53)),
        ("data.std", (58.395, 57.12, 57.375)),
        ("data.flip", True),
        ("loss.label_smoothing", 0.0),
        ("schedule.weight_decay_lag_steps", 0),
        ("mlperf.ruleset", "4.0.0"),
        ("cluster.checkpoint.keep", 2),
    ],
)
def test_a_key_that_is_left_out_means_what_its_source_says(key: str, value: object) -> None:
    block: Any = load_both("digits", "laptop")[key.startswith("cluster.")]
    *names, last = key.removeprefix("cluster.").split(".")
    for name in names:
        block = getattr(block, name)
    assert type(block).model_fields[last].default == pytest.approx(value)
