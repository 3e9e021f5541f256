"""Measure the packed images, and write ``recipe.yaml`` beside them, unless the user has changed that file."""

import contextlib
import io
import shlex
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import yaml
from PIL import Image

from configs.errors import UserError
from configs.load import ROOT, Dumper, load_cluster, load_recipe, resolve_path
from configs.reading import exists
from configs.schema import Recipe
from configs.validate import validate
from data.first_recipe.choose import Facts, choose
from data.forms.catalogue import form_of
from data.images import to_rgb
from data.manifest import Manifest

NAME = "recipe.yaml"

_MEASURED, _MEASURED_PX, _DECODED_PX, _WIDTH = 200, 64, 256, 120
_HEADER = (
    "# ./run.sh prepare wrote this recipe for the images beside it. Change it as you like: a changed file is kept.\n"
)


class FirstRecipe(NamedTuple):
    """The recipe of a data set.

    Attributes:
        path: The file.
        state: Whether the file was written, was there with the same content, or was kept since it has another.
        reasons: What was chosen and why, a line each.
        command: The command that trains on the images: with this recipe, or with one that comes with the program for
            them and reaches a measured accuracy.
    """

    path: Path
    state: Literal["written", "up to date", "kept"]
    reasons: tuple[str, ...]
    command: str


def write_recipe(folder: Path, manifest: Manifest) -> FirstRecipe:
    """Write the first recipe of a data set.

    Args:
        folder: The data set.
        manifest: Its manifest.

    Raises:
        UserError: The file cannot be written.
    """
    path = folder / NAME
    command = shlex.join(["./run.sh", "train", *(_shipped(folder, manifest) or [str(path)])])
    tree, reasons = choose(_measure(folder, manifest), shlex.join(["./run.sh", "train", str(path)]))
    recipe = validate(Recipe, tree)
    text = _HEADER + "".join(_as_yaml(key, value) for key, value in tree.items())
    try:
        if exists(path):
            return FirstRecipe(path, "up to date" if _is_same(path, recipe) else "kept", reasons, command)
        partial = folder / f".{NAME}.partial"
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        told = f"{path}: cannot be written: {error.strerror}; the images are packed: with --no-recipe, this is no error"
        raise UserError(told) from None
    return FirstRecipe(path, "written", reasons, command)


def _shipped(folder: Path, manifest: Manifest) -> list[str]:
    """Return the recipe of the folder's name that comes with the program for these images, as words; or none."""
    folder = folder.absolute()
    if not (ROOT / "configs" / "recipes" / f"{folder.name}.yaml").is_file():
        return []
    recipe = load_recipe(folder.name)
    facts = (manifest.source.kind, manifest.train.records, manifest.eval.records, len(manifest.class_names))
    data = recipe.data
    if (data.source, data.train_samples, data.eval_samples, recipe.model.num_classes) != facts:
        return []
    is_found = resolve_path(load_cluster("laptop").paths.data) == folder.parent
    return [folder.name, *([] if is_found else ["--set", f"cluster.paths.data={folder.parent}"])]


def _is_same(path: Path, recipe: Recipe) -> bool:
    """Return whether a file is this recipe, but for the card and the names, which change when the folder is moved."""
    names: Any = {"name": True, "card": True, "data": {"name"}}
    try:
        return load_recipe(str(path)).model_dump(exclude=names) == recipe.model_dump(exclude=names)
    except UserError:
        return False


def _as_yaml(key: str, value: Any) -> str:
    """Return a block of the recipe: the card line by line, other blocks of few words in one line."""
    style = None if isinstance(value, dict) and key != "card" else False
    text: str = yaml.dump(
        {key: value}, Dumper=Dumper, sort_keys=False, default_flow_style=style, width=_WIDTH, allow_unicode=True
    )
    return text


def _measure(folder: Path, manifest: Manifest) -> Facts:
    """Return what the manifest and the first training images, whose order is random, say of a data set."""
    sides, pixels = [], []
    images = form_of(folder, "train")
    for sample in islice(images.samples(), _MEASURED):
        encoded = io.BytesIO(images.image(sample))
        with contextlib.suppress(OSError, SyntaxError), Image.open(encoded) as image:  # --no-decode
            side = min(image.size)
            image.draft("RGB", (_DECODED_PX, _DECODED_PX))  # decodes large JPEGs at a fraction of the size
            every = max(1, min(image.size) // _MEASURED_PX)
            pixels.append(np.asarray(to_rgb(image), np.float64)[::every, ::every].reshape(-1, 3))
            sides.append(side)
    if not sides:
        raise UserError(f"{folder}: none of the first images can be decoded; ./run.sh prepare --verify lists them")
    values = np.concatenate(pixels)
    is_grey = bool((values == values[:, :1]).all())
    mean, std = (np.rint(each).astype(int).tolist() for each in (values.mean(axis=0), values.std(axis=0)))
    return Facts(
        name=folder.absolute().name,
        source=manifest.source.description,
        kind=manifest.source.kind,
        train=manifest.train.records,
        eval=manifest.eval.records,
        classes=max(2, len(manifest.class_names)),
        shorter_side=int(np.median(sides)),
        is_grey=is_grey,
        mean=(mean[0], mean[1], mean[2]),
        std=tuple(max(1, each) for each in std),
    )
