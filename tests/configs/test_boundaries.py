"""Where a rule begins to hold: the last value that is allowed, and the first that is not."""

from pathlib import Path

import pytest

from configs.errors import ConfigError, UserError
from configs.load import ROOT, dump, load_both, load_cluster, load_recipe, resolve_path, with_resolved_paths
from configs.plan import plan_run
from configs.resume_check import fixed_settings, require_unchanged

PLAIN = "data.plain_from_epoch"
ALEXNET, DENSENET = "model.name=alexnet", "model.name=densenet121"

# Recipe, keys set in both cases, the key at stake, its last allowed and its first refused value.
EDGES = [
    ("digits", ["run.epochs=7"], PLAIN, 7, 8),
    ("digits", [], PLAIN, 2, 1),
    ("digits", ["model.image_size=32"], "data.eval_resize", 32, 31),
    ("digits", ["run.epochs=7"], "run.eval_first_epoch", 7, 8),
    ("digits", [], "batch.global_size", 119800, 119801),
    ("digits", [], "model.image_size", 64, 65),
    ("digits", [], "model.image_size", 8, 7),
    ("digits", [ALEXNET], "model.image_size", 63, 62),
    ("digits", [DENSENET], "model.image_size", 29, 28),
    ("digits", ["model.name=resnet50"], "model.image_size", 1024, 1025),
    ("digits", [], "data.crop", "{area: [1, 1]}", "{area: [1, 1.01]}"),
    ("digits", [], "data.crop", "{area: [0.3, 0.3]}", "{area: [0.3, 0.29]}"),
    ("digits", [], "data.crop", "{aspect: [10, 10]}", "{aspect: [9, 11]}"),
    ("digits", [], "data.crop", "{area: [0.001, 1]}", "{area: [0, 1]}"),
    ("digits", [], "schedule.decay", "{name: polynomial, end_lr: 1.0}", "{name: polynomial, end_lr: 1.01}"),
    ("digits", [], "schedule.decay", "{name: step, boundaries: [0.5, 1]}", "{name: step, boundaries: [0, 1]}"),
    ("digits", [], "schedule.decay", "{name: step, boundaries: [1, 2]}", "{name: step, boundaries: [1, 1]}"),
    ("digits", [], "data.std", "[1, 1, 0.001]", "[1, 1, 0]"),
    ("mlperf-b32768", [], "run.eval_first_epoch", 4, 5),
    ("mlperf-b32768", [], "run.eval_every_epochs", 4, 3),
    ("mlperf-b32768", [], "run.target_top1", 0.759, 0.758),
    ("mlperf-b32768", [], "optimizer.weight_decay", 1.25e-5, 1.5e-5),
    ("mlperf-b32768", [], "optimizer.epsilon", 0, 1e-9),
    ("mlperf-b67840", ["batch.bn_span=1"], "batch.global_size", 67840, 67841),
    ("mlperf-b32768", [], "data.crop.aspect", "[0.75, 1.3334]", "[0.75, 1.335]"),
    ("mlperf-b32768", [], "data.crop.area", "[0.05, 1.0]", "[0.06, 1.0]"),
]


@pytest.mark.parametrize(("name", "both", "key", "allowed", "refused"), EDGES)
def test_a_recipe_is_refused_from_the_first_value_beyond_the_rule(
    name: str, both: list[str], key: str, allowed: object, refused: object
) -> None:
    load_recipe(name, [*both, f"{key}={allowed}"])
    with pytest.raises(ConfigError):
        load_recipe(name, [*both, f"{key}={refused}"])


@pytest.mark.parametrize(
    ("both", "key", "allowed", "refused"),
    [
        (["scheduler.wall_time_s=100"], "scheduler.notice_s", 99, 100),
        (["ranks_per_node=2"], "node.rank_cores", "['0', '1']", "['0']"),
        ([], "communication.deferred_fraction", 0.5, 0.51),
        ([], "communication.bucket_fraction", 1, 1.01),
        (["communication.kind=none"], "ranks_per_node", 1, 2),
        (["communication.kind=devices", "launcher=mpirun"], "num_nodes", 1, 2),
        (["device=gpu"], "engine.layout", "NHWC", "NHCW"),
    ],
)
def test_a_cluster_is_refused_from_the_first_value_beyond_the_rule(
    both: list[str], key: str, allowed: object, refused: object
) -> None:
    shared = [f"cluster.{each}" for each in both]
    load_cluster("laptop", [*shared, f"cluster.{key}={allowed}"])
    with pytest.raises(ConfigError):
        load_cluster("laptop", [*shared, f"cluster.{key}={refused}"])


def test_a_warm_up_ends_at_least_a_step_before_the_run() -> None:
    keys = ["schedule.warmup_epochs=null", "run.epochs=1", "run.eval_first_epoch=1"]
    assert plan_run(load_recipe("digits", [*keys, "schedule.warmup_steps=18"]), 2).decay_steps == 1
    with pytest.raises(ConfigError, match=r"got '19 steps', allowed: fewer than the run's 19 steps"):
        plan_run(load_recipe("digits", [*keys, "schedule.warmup_steps=19"]), 2)


def test_an_epoch_that_was_begun_goes_on_at_its_next_step() -> None:
    plan = plan_run(load_recipe("digits"), 2)
    assert plan.epoch_steps(2) == range(19, 38)
    assert plan.epoch_steps(2, 25) == range(25, 38)
    assert plan.epoch_steps(3, 25) == range(38, 57)


def test_a_run_says_its_own_cluster_and_a_recipe_the_laptop(tmp_path: Path) -> None:
    recipe, cluster = load_both("digits", "a100-node")
    (tmp_path / "config.yaml").write_text(dump(recipe, cluster), encoding="utf-8")
    assert load_both(str(tmp_path / "config.yaml"), None)[1].name == "a100-node"
    assert load_both(str(tmp_path / "config.yaml"), "laptop")[1].name == "laptop"
    assert load_both("digits", None)[1].name == "laptop"


def test_paths_begin_at_the_home_folder_the_root_or_the_programs_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_path("~/data") == Path.home() / "data"
    assert resolve_path("/data/x") == Path("/data/x")
    assert resolve_path("runs/data") == ROOT / "runs" / "data"
    paths = with_resolved_paths(load_cluster("laptop", ["cluster.paths.runs=r", "cluster.paths.stage=$TMPDIR/s"])).paths
    assert (paths.data, paths.runs, paths.stage) == (f"{ROOT}/runs/data", f"{ROOT}/r", "$TMPDIR/s")


def test_an_empty_value_is_none(tmp_path: Path) -> None:
    text = (ROOT / "configs" / "recipes" / "digits.yaml").read_text(encoding="utf-8")
    path = tmp_path / "digits.yaml"
    path.write_text(text.replace("  shuffle_buffer: 1198", "  eval_resize:\n  plain_from_epoch: ~"), encoding="utf-8")
    data = load_recipe(str(path)).data
    assert (data.eval_resize, data.plain_from_epoch) == (None, None)


@pytest.mark.parametrize(
    ("override", "is_same"),
    [
        ("cluster.paths.runs=elsewhere", True),
        ("cluster.engine.prefetch_depth=3", True),
        ("card.purpose=another", True),
        ("run.seed=2", False),
        ("run.epochs=5", False),
        ("data.shuffle_buffer=7", False),
        ("optimizer.momentum=0.8", False),
        ("loss.label_smoothing=0.2", False),
    ],
)
def test_a_run_goes_on_only_with_what_it_was_begun_with(override: str, is_same: bool) -> None:
    begun, given = fixed_settings(*load_both("digits", None)), fixed_settings(*load_both("digits", None, [override]))
    assert (begun == given) == is_same
    if is_same:
        require_unchanged(begun, given, "here")
    else:
        key = override.partition("=")[0]
        with pytest.raises(UserError, match=rf"^here: {key}: got "):
            require_unchanged(begun, given, "here")


def test_what_changes_the_images_is_checked_only_where_it_is_asked_for() -> None:
    assert load_recipe("digits", ["data.keep_batches=true"]).data.keep_batches
    assert load_recipe("digits", ["data.plain_from_epoch=2"]).data.plain_from_epoch == 2
    with pytest.raises(ConfigError, match=r"^data\.keep_batches: got True, allowed: false with"):
        load_recipe("digits", ["data.plain_from_epoch=2", "data.keep_batches=true"])
