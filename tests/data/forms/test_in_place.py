"""Images that are read where they lie: each once an epoch, as if packed, to the bit after a stop; changes are named."""

import io
import itertools
import json
import os
import re
import struct
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from configs.errors import UserError
from configs.load import load_recipe
from configs.schema import Data, Recipe
from data.__main__ import main
from data.cache import clear_dataset, resident_bytes
from data.input.batches import DataError, TrainingSource
from data.manifest import load_manifest
from data.shards import shard_range
from data.stage import stage
from data.verify import check_dataset, verify_dataset
from tests.data.input.test_packed import evaluation, one_pass, take, training
from tests.data.input.test_packed import jpeg as encoded
from tests.data.input.test_packed import recipe_for as packed_recipe
from tests.disk_order import DiskOrder
from tests.programs import Said

TRAIN, EVAL = 23, 7
SUFFIXES = (".cls", ".json")
PARTS = {"train": range(TRAIN), "val": range(EVAL)}


def jpeg(number: int) -> bytes:
    """Return an image of noise, so that no two images and no two crops are alike; its class is its number."""
    return encoded(np.random.default_rng(number).integers(0, 256, (20, 24, 3), np.uint8))


class Place(NamedTuple):
    """Where an image of the training part lies.

    Attributes:
        file: The file.
        begin: Its first byte there.
        name: What a message says of it, a pattern.
        label: First byte of its label in the file, if that has it.
    """

    file: Path
    begin: int
    name: str
    label: int | None = None


Made = Callable[[Path], dict[int, Place]]


def class_folders(source: Path) -> dict[int, Place]:
    places = {}
    for part, numbers in PARTS.items():
        for number in numbers:
            file = source / part / f"class {number:02}" / f"an{chr(13) * (number == 5)} image {number}.jpg"
            file.parent.mkdir(parents=True)
            file.write_bytes(jpeg(number))
            if part == "train":
                places[number] = Place(file, 0, re.escape(str(file).replace("\r", r"\r")))
    return places


def records(source: Path) -> dict[int, Place]:
    """Pack as MXNet's im2rec does: keys in another order than the records, images with one label in either form."""
    places = {}
    source.mkdir()
    for part, numbers in PARTS.items():
        rec, rows, at = source / f"made_{part}.rec", [], 0
        with rec.open("wb") as file:
            for number in numbers:
                flag = number % 2
                label = struct.pack("<f", number) * flag
                payload = struct.pack("<IfQQ", flag, 0 if flag else number, number, 0) + label + jpeg(number)
                written = struct.pack("<II", 0xCED7230A, len(payload)) + payload
                file.write(written + bytes(-len(written) % 4))
                rows.append(f"{number * 7 % 31}\t{at}\n")
                if part == "train":
                    name = rf"{re.escape(str(rec))}: record {number * 7 % 31} at byte {at}"
                    places[number] = Place(rec, at + 32 + len(label), name, at + (32 if flag else 12))
                at = file.tell()
        rec.with_suffix(".idx").write_text("".join(rows))
    return places


def shards(source: Path) -> dict[int, Place]:
    """Write two shards a part; labels in .cls and .json in turn, a caption in each sample, a long name with a space."""
    places = {}
    for part, numbers in PARTS.items():
        for shard, rows in enumerate((numbers[:4], numbers[4:])):
            tar = source / f"{part}-{shard:03}.tar"
            tar.parent.mkdir(exist_ok=True)
            with tarfile.open(tar, "w") as archive:
                for number in rows:
                    name = f"a folder/{'long ' * 25 * (number == 5)}{number:04}"
                    label = json.dumps({"caption": "7", "label": number}) if number % 2 else f"{number}\n"
                    contents = {".txt": b"caption", ".jpg": jpeg(number), SUFFIXES[number % 2]: label.encode()}
                    for end, content in contents.items():
                        member = tarfile.TarInfo(name + end)
                        member.size = len(content)
                        archive.addfile(member, io.BytesIO(content))
            with tarfile.open(tar) as archive:
                found = {member.name: member.offset_data for member in archive}
            for number, name in zip(rows, [name for name in found if name.endswith(".jpg")], strict=True):
                if part == "train":
                    told = re.escape(f"{tar}: {name}")
                    places[number] = Place(
                        tar, found[name], told, found[name.removesuffix(".jpg") + SUFFIXES[number % 2]]
                    )
    return places


FORMS: dict[str, Made] = {"folders": class_folders, "records": records, "webdataset": shards}


class Prepared(NamedTuple):
    """A data set in place: its form, its folder, the user's folder, and where the training images lie."""

    form: str
    folder: Path
    source: Path
    places: dict[int, Place]

    def overwrite(self, number: int, content: bytes, at: int = 0) -> bytes:
        """Write into an image, leave length and time of the file as they were, and return what was there."""
        place = self.places[number]
        times = place.file.stat()
        with place.file.open("r+b") as file:
            file.seek(place.begin + at)
            before = file.read(len(content))
            file.seek(place.begin + at)
            file.write(content)
        os.utime(place.file, ns=(times.st_atime_ns, times.st_mtime_ns))
        return before

    def files(self) -> dict[Path, tuple[bytes, int]]:
        """Return content and time of change of every file."""
        paths = [path for folder in (self.source, self.folder) for path in folder.rglob("*") if path.is_file()]
        return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


@pytest.fixture(scope="module", params=FORMS)
def pristine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("in-place")
    places = FORMS[request.param](folder / "source")
    prepare(folder / "source", folder / "set", "--in-place")
    return Prepared(request.param, folder / "set", folder / "source", places)


@pytest.fixture
def prepared(pristine: Prepared) -> Iterator[Prepared]:
    """Lend the data set of a form to a test, which may change it."""
    before = pristine.files()
    yield pristine
    for path, found in pristine.files().items():
        if path not in before:
            path.unlink()
        elif found == before[path]:
            del before[path]
    for path, (content, time_ns) in before.items():
        path.write_bytes(content)
        os.utime(path, ns=(time_ns, time_ns))


def prepare(*words: str | Path) -> None:
    assert main(["prepare", "--workers", "1", *map(str, words), "--no-recipe"]) == 0


def recipe_for(*sets: str) -> Recipe:
    return packed_recipe(TRAIN, EVAL, ["data.shuffle_buffer=5", "data.crop={kind: resized}", "data.flip=true", *sets])


@pytest.mark.medium
@pytest.mark.parametrize("world", [1, 3, 4])
def test_every_image_is_read_once_an_epoch_and_evaluated_once_on_any_number_of_ranks(
    prepared: Prepared, world: int
) -> None:
    shards = [len(shard_range(TRAIN, rank, world)) for rank in range(world)]
    seen: list[Counter[int]] = [Counter(), Counter()]
    for rank in range(world):
        source = training(prepared.folder, recipe_for(), batch=1, rank=rank, world=world)
        for epoch, counted in enumerate(seen):  # in its second pass, a rank reads the shard of the next one
            counted.update(take(source, shards[(rank + epoch) % world]))
        source.close()
    assert seen == [Counter(range(TRAIN))] * 2
    evaluated = []
    for rank in range(world):
        evaluated += one_pass(evaluation(prepared.folder, recipe_for(), rank=rank, world=world))
    assert evaluated == [*range(EVAL)]


@pytest.mark.medium
def test_the_images_are_those_of_the_packed_data_set(prepared: Prepared, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    prepare(prepared.source, packed)
    found: list[tuple[Any, ...]] = []
    recipe = recipe_for("data.crop={kind: none}", "data.flip=false")
    for folder, access in (
        (packed, "mapped"), *((prepared.folder, access) for access in ("mapped", "mapped_ahead", "read")),
    ):  # fmt: skip
        batch = training(folder, recipe, file_access=access, batch=TRAIN).next_batch()
        (evaluated,) = evaluation(folder, recipe_for(), batch=EVAL).batches()
        assert batch.labels.dtype == np.float32
        found.append((*evaluated[:2], np.sort(batch.labels), batch.images[np.argsort(batch.labels)]))
    for in_place, expected in itertools.product(found[1:], found[:1]):
        for one, other in zip(in_place, expected, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.medium
def test_a_stream_continues_wherever_it_was_interrupted(prepared: Prepared) -> None:
    def batches(source: TrainingSource, count: int) -> list[Any]:
        return [source.next_batch().images for _ in range(count)]

    recipe = recipe_for()
    place: dict[str, Any] = {"rank": 1, "world": 2}
    whole = batches(training(prepared.folder, recipe, **place), 12)
    source, images = training(prepared.folder, recipe, **place), []
    for count in (1, 1, 2, 4, 3, 1):  # a shard has three batches
        images += batches(source, count)
        source = training(prepared.folder, recipe, state=source.state(), **place)
    np.testing.assert_array_equal(np.stack(images), np.stack(whole))


@pytest.mark.medium
def test_a_damaged_image_stops_training_and_is_named_or_is_left_out(
    prepared: Prepared, caplog: pytest.LogCaptureFixture
) -> None:
    bad = {5, 17}
    for number in bad:
        prepared.overwrite(number, b"no image at all")
    with pytest.raises(DataError) as caught:
        take(training(prepared.folder, recipe_for()), 6)
    named = "|".join(prepared.places[number].name for number in bad)
    assert re.search(rf"({named}).*: cannot be decoded .*--verify {prepared.folder}", str(caught.value))
    source = training(prepared.folder, recipe_for("data.bad_record=skip"))
    seen = take(source, 20)
    assert set(seen) == set(range(TRAIN)) - bad
    assert len(caplog.messages) == len(bad)
    for number in bad:
        assert sum(re.search(prepared.places[number].name, each) is not None for each in caplog.messages) == 1
    again = training(prepared.folder, recipe_for("data.bad_record=skip"), state=source.state())
    assert take(again, 6) == take(source, 6)
    assert len(caplog.messages) == len(bad), "what was left out is not tried again"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda file: file.write_bytes(file.read_bytes() + b"1"), "was changed"),
        (lambda file: os.utime(file, ns=(0, 0)), "was changed"),
        (lambda file: file.rename(f"{file}.old"), "No such file"),
    ],
    ids=["longer", "touched", "gone"],
)
def test_a_file_that_changed_is_named_before_a_run_with_the_command_that_lists_again(
    prepared: Prepared, change: Callable[[Path], object], told: str
) -> None:
    data, file = _data(prepared), prepared.places[3].file
    assert check_dataset(prepared.folder, data, TRAIN).train.records == TRAIN
    change(file)
    remedy = rf"prepare --in-place {re.escape(str(prepared.source))} {re.escape(str(prepared.folder))}"
    with pytest.raises(UserError, match=rf"{re.escape(str(file))}.*{told}.*; move .* {remedy}$"):
        check_dataset(prepared.folder, data, TRAIN)
    assert check_dataset(prepared.folder, data, TRAIN, is_first=False), "one process of a host looks at the files"
    moved = prepared.source.rename(f"{prepared.source}.moved")
    with pytest.raises(
        UserError, match=rf"No such file.*; mount or move its images to {re.escape(str(prepared.source))}"
    ):
        check_dataset(prepared.folder, data, TRAIN)
    moved.rename(prepared.source)


def _data(prepared: Prepared) -> Data:
    kind = load_manifest(prepared.folder).source.kind
    return load_recipe(
        "digits", [f"data.source={kind}", f"data.train_samples={TRAIN}", f"data.eval_samples={EVAL}"]
    ).data


@pytest.mark.medium
def test_a_byte_that_changed_is_found_and_its_image_named(prepared: Prepared, said: Said) -> None:
    assert [*verify_dataset(prepared.folder)] == []
    prepared.overwrite(9, b"\x01", at=25)  # in a table of the JPEG, which can still be decoded
    (found,) = verify_dataset(prepared.folder)
    assert re.match(rf"{prepared.places[9].name}.*: other bytes than at ./run.sh prepare", found)
    place = prepared.places[11]
    if place.label is not None:
        label = prepared.overwrite(11, b"9", at=place.label - place.begin)
        assert [each for each in verify_dataset(prepared.folder) if each != found and re.match(place.name, each)]
        assert len([*verify_dataset(prepared.folder)]) == 2, "of one image alone"
        prepared.overwrite(11, label, at=place.label - place.begin)
    prepared.overwrite(4, b"no image")
    last, at = TRAIN - 1, len(jpeg(TRAIN - 1)) - 3
    prepared.overwrite(last, bytes([jpeg(last)[at] ^ 1]), at=at)
    out = said(main, "prepare", "--verify", prepared.folder, "--workers", "2", status=1).out
    assert re.search(rf"{prepared.places[4].name}.*: is neither a JPEG nor a PNG", out)
    assert re.search(prepared.places[last].name, out)
    assert "3 findings" in out


ONE_FORM = pytest.mark.parametrize("pristine", ["webdataset"], indirect=True)
"""For what all forms share."""


@ONE_FORM
@pytest.mark.parametrize(
    ("name", "change"),
    [("train.npz", lambda old: b""), ("eval.npz", lambda old: old[:-9]),
     ("train.npz", lambda old: old.replace(b"crcs", b"cars"))],
)  # fmt: skip
def test_facts_that_are_damaged_are_named(prepared: Prepared, name: str, change: Callable[[bytes], bytes]) -> None:
    (prepared.folder / name).write_bytes(change((prepared.folder / name).read_bytes()))
    with pytest.raises(UserError, match=rf"{name}: .*; move "):
        check_dataset(prepared.folder, _data(prepared), TRAIN)
    assert name in "".join(verify_dataset(prepared.folder))


def test_an_index_that_was_changed_by_hand_is_found(prepared: Prepared) -> None:
    index = min(path for path in prepared.folder.rglob("*") if path.suffix in (".lst", ".idx") and path.is_file())
    index.write_bytes(index.read_bytes().replace(b"1", b"2"))
    assert ": sha256 is not that of the manifest" in "".join(verify_dataset(prepared.folder))


def test_what_a_reader_cannot_do_is_said_in_one_line(prepared: Prepared, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be copied .*; set cluster\.paths\.stage to null"):
        stage(prepared.folder, tmp_path / "disk")
    files = [place.file for place in prepared.places.values()]
    told = clear_dataset(prepared.folder)
    if prepared.form == "folders":
        assert told is not None and "too many files" in told
    elif told is None:
        assert resident_bytes(files) == 0


@pytest.mark.medium
@ONE_FORM
def test_listing_again_changes_nothing_and_packing_into_the_same_folder_is_refused(
    prepared: Prepared, capsys: pytest.CaptureFixture[str]
) -> None:
    before = prepared.files()
    prepare(prepared.source, prepared.folder, "--in-place", "--workers", "2")
    assert "up to date" in capsys.readouterr().out
    assert main(["prepare", str(prepared.source), str(prepared.folder)]) == 2
    told = capsys.readouterr().err
    assert str(prepared.source) in told and "move it away or name another folder" in told
    assert prepared.files() == before


@pytest.mark.medium
def test_the_first_recipe_measures_images_in_place(prepared: Prepared) -> None:
    assert main(["prepare", "--in-place", str(prepared.source), str(prepared.folder)]) == 0
    recipe = load_recipe(str(prepared.folder / "recipe.yaml"))
    assert (recipe.data.train_samples, recipe.data.eval_samples, recipe.model.num_classes) == (TRAIN, EVAL, TRAIN)
    np.testing.assert_allclose(recipe.data.mean, 127.5, atol=3)  # of noise


LABEL_OF_9 = {"records": struct.pack("<f", 9), "webdataset": b"09"}


@pytest.mark.medium
@pytest.mark.parametrize("form", LABEL_OF_9)
def test_the_neighbours_of_an_image_that_is_left_out_are_sound(tmp_path: Path, form: str) -> None:
    source = Prepared(form, tmp_path / "set", tmp_path / "source", FORMS[form](tmp_path / "source"))
    place = source.places[10]
    assert place.label is not None
    source.overwrite(10, LABEL_OF_9[form], at=place.label - place.begin)  # half of a class may be left out
    source.overwrite(9, b"no image at all")
    prepare(source.source, source.folder, "--in-place", "--skip-bad")
    assert [*verify_dataset(source.folder)] == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["digits"], "--in-place does not apply to"),
        (["{source}", "--size", "64"], "leave out --size"),
        (["{source}", "--quality", "90"], "--quality"),
    ],
)
def test_what_cannot_be_in_place_is_refused(tmp_path: Path, words: list[str], told: str, said: Said) -> None:
    class_folders(tmp_path / "source")
    source, *more = [word.format(source=tmp_path / "source") for word in words]
    assert told in said(main, "prepare", "--in-place", source, tmp_path / "set", *more, status=2).err
    assert not (tmp_path / "set").exists()


def test_a_name_with_a_line_break_is_refused(tmp_path: Path, said: Said) -> None:
    image = class_folders(tmp_path / "source")[4].file
    image.rename(image.with_name("4\n.jpg"))
    told = said(main, "prepare", "--in-place", tmp_path / "source", tmp_path / "set", "--no-recipe", status=2).err
    assert "line break" in told


def test_lists_are_on_the_disk_before_a_data_set_gets_its_name(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = DiskOrder(monkeypatch)
    prepare(prepared.source, tmp_path / "other", "--in-place")
    assert len(order.named) >= 5  # the manifest, and for each split an index and the facts
    assert order.unsafe() == []
