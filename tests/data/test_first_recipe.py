"""``prepare`` writes a recipe that fits what it packed, trains without another word, and may be edited."""

import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from configs.load import load_both, resolve_path
from configs.plan import plan_run
from configs.schema import Cluster, Recipe
from data.__main__ import main
from data.manifest import load_manifest
from data.verify import check_dataset
from logs.folder import RunFolder
from tests.data.sources.test_idx import idx_files
from tests.runs import train

LAPTOP_RANKS = 2


def class_folders(root: Path, classes: int = 2, each: int = 4, side: int = 12, colour: int | None = None) -> Path:
    """Make images of one colour each, or of noise, in one folder a class."""
    noise = np.random.default_rng(0)
    for number in range(classes * each):
        shape = (side, side + number, 3)
        pixels = noise.integers(0, 256, shape) if colour is None else np.full(shape, colour)
        path = root / f"class {number % classes:02}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    return root


def prepared(source: object, folder: Path, *words: str) -> tuple[Recipe, Cluster]:
    """Pack a source, and load its recipe as ``train`` does."""
    assert main(["prepare", str(source), str(folder), "--workers", "1", *words]) == 0
    return load_both(str(folder / "recipe.yaml"), None)


def require_fit(recipe: Recipe, cluster: Cluster, folder: Path) -> None:
    """Require that the recipe is for this folder, and that the laptop's ranks can share its batch."""
    assert resolve_path(cluster.paths.data) / recipe.data.name == folder
    manifest = check_dataset(folder, recipe.data, recipe.model.num_classes)
    assert recipe.model.num_classes == len(manifest.class_names)
    plan = plan_run(recipe, LAPTOP_RANKS)
    assert plan.world_size == cluster.world_size
    assert recipe.batch.global_size <= max(LAPTOP_RANKS, recipe.data.train_samples)
    assert recipe.run.target_top1 is None
    assert 3 <= len(plan.eval_epochs) <= 30


def tables(root: Path) -> Path:
    """Make a table of labels, with an image that has two of them and one that has none."""
    class_folders(root / "images", each=6)
    names = [str(path.relative_to(root)) for path in sorted(root.glob("images/*/*"))]
    for name, part in (("train", names[:8]), ("val", names[8:])):
        rows = [f"{file},{label}" for file, label in zip(part, ["cat|dog", "cat", "dog", ""] * 2, strict=False)]
        (root / f"{name}.csv").write_text("\n".join(["file,labels", *rows]))
    return root


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["digits", "generated", "idx", "folders", "table"])
def test_the_recipe_of_every_source_is_for_the_data_set_beside_it(kind: str, tmp_path: Path) -> None:
    source: object = kind
    if kind == "idx":
        source = tmp_path / "in"
        (tmp_path / "in").mkdir()
        idx_files(tmp_path / "in")
    elif kind in {"folders", "table"}:
        source = class_folders(tmp_path / "in") if kind == "folders" else tables(tmp_path / "in")
    folder = tmp_path / "m\u00f6 bilder"
    words = ["--train", "8", "--eval", "4"] if kind == "generated" else []
    recipe, cluster = prepared(source, folder, *words)
    require_fit(recipe, cluster, folder)
    assert (recipe.data.source, recipe.loss.kind) == (kind, "sigmoid" if kind == "table" else "softmax")
    assert main(["prepare", "--verify", str(folder), "--workers", "1"]) == 0


def test_a_folder_whose_name_no_recipe_can_hold_gets_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a\nb"
    assert main(["prepare", str(class_folders(tmp_path / "in", each=4)), str(folder), "--workers=1"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: data.name: got ")
    assert not (folder / "recipe.yaml").exists()


def test_a_source_whose_name_is_not_utf8_is_packed_and_gets_a_recipe(tmp_path: Path) -> None:
    recipe, _ = prepared(class_folders(tmp_path / "caf\udce9", each=4), tmp_path / "out")
    assert r"caf\xe9" in recipe.card.source


@pytest.mark.medium
def test_any_number_of_images_and_classes_gets_a_recipe(tmp_path: Path) -> None:
    draw = random.Random(0)
    for number in range(4):
        classes, each, side = draw.randint(2, 9), draw.choice([2, 3, 9, 30]), draw.choice([8, 9, 31, 64, 90])
        folder = tmp_path / f"{number}"
        recipe, cluster = prepared(class_folders(tmp_path / f"in{number}", classes, each, side), folder)
        require_fit(recipe, cluster, folder)
        assert recipe.data.flip == (side >= 64)  # small images may be digits or letters


@pytest.mark.medium
def test_the_mean_and_the_deviation_are_those_of_the_pixels(tmp_path: Path) -> None:
    grey, _ = prepared(class_folders(tmp_path / "grey", colour=40), tmp_path / "a")
    assert (grey.data.mean, grey.data.std, grey.model.input_channels) == ((40, 40, 40), (1, 1, 1), 1)
    noise, _ = prepared(class_folders(tmp_path / "noise", each=40), tmp_path / "b")
    assert noise.model.input_channels == 3
    # Numbers from 0 to 255, each as likely: (256^2 - 1) / 12 is their variance.
    assert noise.data.mean == pytest.approx((127.5,) * 3, abs=3)
    assert noise.data.std == pytest.approx((((256**2 - 1) / 12) ** 0.5,) * 3, abs=2)


def test_a_recipe_that_the_user_has_changed_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, folder = class_folders(tmp_path / "in"), tmp_path / "out"
    prepared(source, folder)
    path = folder / "recipe.yaml"
    written = path.read_text(encoding="utf-8")
    assert f"{path}: written\n" in capsys.readouterr().out
    path.write_text(changed := written.replace("seed: 1", "seed: 7"), encoding="utf-8")
    recipe, _ = prepared(source, folder)
    told = capsys.readouterr().out
    assert (recipe.run.seed, path.read_text(encoding="utf-8")) == (7, changed)
    assert f"{path}: kept; remove it to get a new one\n" in told
    assert told.endswith(f"next: ./run.sh train {path}\n")
    assert main(["prepare", "digits", str(resolve_path("runs/data/digits"))]) == 0
    assert capsys.readouterr().out.endswith("next: ./run.sh train digits\n")  # with its measured accuracy
    path.unlink()
    assert main(["prepare", str(source), str(folder), "--no-recipe"]) == 0
    assert not path.exists()


def test_a_data_set_may_be_moved_with_its_recipe_and_settings_come_first(tmp_path: Path) -> None:
    prepared(class_folders(tmp_path / "in"), tmp_path / "a/b")
    moved = (tmp_path / "a").rename(tmp_path / "c") / "b"
    moved = moved.rename(moved.parent / "2024")
    for name in ("recipe.yaml", "mine.yaml"):
        (moved / "recipe.yaml").rename(moved / name)
        require_fit(*load_both(str(moved / name), None), moved)
        (moved / name).rename(moved / "recipe.yaml")
    recipe, cluster = load_both(str(moved / "recipe.yaml"), None, ["data.name=x", "cluster.paths.data=/y"])
    assert (recipe.data.name, cluster.paths.data) == ("x", "/y")
    shutil.copy(moved / "recipe.yaml", elsewhere := tmp_path / "recipe.yaml")
    recipe, cluster = load_both(str(elsewhere), None)
    assert (recipe.data.name, cluster.paths.data) == ("b", "runs/data")


@pytest.mark.ranks
def test_four_images_train_by_the_recipe_alone(tmp_path: Path) -> None:
    prepared(class_folders(tmp_path / "in", each=3), tmp_path / "out")
    done = train(tmp_path / "run", "run.epochs=3", recipe=str(tmp_path / "out/recipe.yaml"))
    summary = RunFolder(tmp_path / "run").summary()
    assert load_manifest(tmp_path / "out").train.records == 4
    assert (done.status, summary.status, summary.world_size) == (0, "success", LAPTOP_RANKS), done.output + done.errors
    assert summary.epochs == 3, "of the many that so few images get"
