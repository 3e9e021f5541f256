"""Batches from real files: which rank gets which image, how images are cut, and what damaged records cause."""

import errno
import io
import itertools
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvidia import dali
from PIL import Image

from configs.load import load_recipe
from configs.schema import EngineSettings, Recipe
from data.input.batches import DataError, EvaluationSource, TrainingSource
from data.input.packed import open_evaluation, open_training
from data.recordio import frame, pack_image, write_records
from data.shards import shard_range
from launch.setup.gpu import search_gpus
from tests.configs.test_progressive_resizing import GROWING
from tests.engines import cpu_engine
from tests.failing_reads import failing_reads
from tests.host_arrays import HostArrays
from tests.programs import python

SIDE = 16
Draw = Callable[[int], "np.ndarray[Any, Any]"]


def plain(number: int) -> np.ndarray[Any, Any]:
    """Return an image whose brightness is its number."""
    return np.full((SIDE, SIDE, 3), number % 250, np.uint8)


def pattern(number: int) -> np.ndarray[Any, Any]:
    """Return a smooth image that differs from its mirror image and is nowhere black."""
    y, x = np.mgrid[:SIDE, :SIDE]
    pixels: np.ndarray[Any, Any] = np.stack([60 + 10 * x, 60 + 10 * y, 100 + 2 * x + 5 * y], axis=-1)
    return pixels.astype(np.uint8)


def jpeg(pixels: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95, subsampling=0)
    return file.getvalue()


def write_split(
    folder: Path, split: str, count: int, *, draw: Draw = plain, bad: Mapping[int, bytes] | None = None
) -> list[int]:
    """Write records whose labels are their numbers, and return the byte offset of each."""
    payloads = [
        pack_image(number, number, bad[number] if bad and number in bad else jpeg(draw(number)))
        for number in range(count)
    ]
    folder.mkdir(exist_ok=True)
    write_records(folder / split, payloads)
    return [0, *itertools.accumulate(len(frame(payload)) for payload in payloads)][:-1]


def recipe_for(train: int = 40, evaluation: int = 10, overrides: Sequence[str] = ()) -> Recipe:
    return load_recipe(
        "digits",
        [
            f"data.train_samples={train}",
            f"data.eval_samples={evaluation}",
            "batch.global_size=4",
            f"model.image_size={SIDE}",
            "model.num_classes=1000",
            "data.mean=[0, 0, 0]",
            "data.std=[1, 1, 1]",
            "data.crop={kind: none}",
            *overrides,
        ],
    )


def training(
    folder: Path, recipe: Recipe, *, batch: int = 4, rank: int = 0, world: int = 1, epoch: int = 1, **more: Any
) -> TrainingSource:
    """Open a stream in an epoch, or before any (0); ``more`` are its state and device, and settings of the engine."""
    place: dict[str, Any] = {"batch_size": batch, "rank": rank, "world_size": world, "device_id": None}
    place["arrays"] = HostArrays()
    place |= {name: more.pop(name) for name in ("state", "arrays", "device_id") if name in more}
    source = open_training(recipe, EngineSettings(**more), folder, **place)
    if epoch:
        source.begin_epoch(epoch)
    return source


def evaluation(
    folder: Path, recipe: Recipe, *, batch: int = 4, rank: int = 0, world: int = 1, **more: Any
) -> EvaluationSource:
    place: dict[str, Any] = {"batch_size": batch, "rank": rank, "world_size": world, "arrays": HostArrays()}
    device_id = more.pop("device_id", None)
    return open_evaluation(recipe, EngineSettings(**more), folder, device_id=device_id, **place)


def take(source: TrainingSource, count: int) -> list[int]:
    """Return the labels of the next ``count`` batches."""
    return [int(label) for _ in range(count) for label in source.next_batch().labels]


def one_pass(source: EvaluationSource) -> list[int]:
    return [int(label) for batch in source.batches() for label in batch.labels[: batch.num_valid]]


@pytest.mark.parametrize(("count", "world", "batch"), [(10, 1, 4), (10, 3, 3), (7, 2, 16), (3, 5, 2), (100, 7, 16)])
def test_every_evaluation_gives_every_image_once_whatever_the_shards(
    tmp_path: Path, count: int, world: int, batch: int
) -> None:
    write_split(tmp_path, "eval", count)
    recipe = recipe_for(evaluation=count)
    ranks = [evaluation(tmp_path, recipe, batch=batch, rank=rank, world=world) for rank in range(world)]
    for _ in range(3):
        seen = [one_pass(source) for source in ranks]
        assert seen == [list(shard_range(count, rank, world)) for rank in range(world)]
    for each in ranks[-1].batches():
        assert (each.images.shape, each.labels.shape) == ((batch, 3, SIDE, SIDE), (batch,)), "the last one is full too"
    for source in ranks:
        source.close()


def test_an_evaluation_cut_short_does_not_shift_the_next_one(tmp_path: Path) -> None:
    write_split(tmp_path, "eval", 10)
    source = evaluation(tmp_path, recipe_for())
    next(iter(source.batches()))
    assert one_pass(source) == list(range(10))


def test_each_pass_over_a_shard_is_complete_and_in_another_order_and_carries_over(tmp_path: Path) -> None:
    write_split(tmp_path, "train", 21)
    labels = take(training(tmp_path, recipe_for(21), rank=1, world=2, stick_to_shard=True), 11)
    passes = [labels[start : start + 11] for start in range(0, 44, 11)]
    assert [sorted(each) for each in passes] == [list(range(10, 21))] * 4
    assert len({tuple(each) for each in [*passes, range(10, 21)]}) == 5


def test_ranks_crop_and_flip_independently(tmp_path: Path) -> None:
    write_split(tmp_path, "train", 40, draw=lambda _: pattern(0))  # the same image for every rank
    overrides = ("data.crop={kind: resized}", "data.flip=true")
    batches = []
    for rank in (0, 1):
        source = training(tmp_path, recipe_for(overrides=overrides), rank=rank, world=2)
        batches.append(np.array(source.next_batch().images))
        source.close()
    assert np.abs(batches[0] - batches[1]).max() > 1


def test_a_network_of_one_channel_gets_grey_images(tmp_path: Path) -> None:
    write_split(tmp_path, "eval", 1, draw=pattern)
    recipe = recipe_for(evaluation=1, overrides=["model.input_channels=1", "data.mean=[10, 10, 10]"])
    images = next(iter(evaluation(tmp_path, recipe, batch=1).batches())).images
    assert images.shape == (1, 1, SIDE, SIDE)
    luma = pattern(0) @ [0.299, 0.587, 0.114]  # ITU-R BT.601, in which JPEG keeps the brightness
    np.testing.assert_allclose(images[0, 0] + 10, luma, atol=2)


def test_channels_can_come_last_with_a_fourth_channel_of_zeros(tmp_path: Path) -> None:
    write_split(tmp_path, "eval", 1, draw=pattern)
    recipe = recipe_for(evaluation=1, overrides=["model.input_channels=4", "data.mean=[10, 20, 30]"])
    images = next(iter(evaluation(tmp_path, recipe, batch=1, layout="NHWC").batches())).images
    assert images.shape == (1, SIDE, SIDE, 4)
    assert not images[..., 3].any()
    np.testing.assert_allclose(images[0, ..., :3] + [10, 20, 30], pattern(0), atol=4)


def test_float16_images_are_the_rounded_float32_ones(tmp_path: Path) -> None:
    write_split(tmp_path, "train", 8, draw=pattern)
    sets = ["data.mean=[123.7, 116.3, 103.5]", "data.std=[58.4, 57.1, 57.4]", "data.crop={kind: resized}"]
    recipe = recipe_for(train=8, overrides=[*sets, "data.flip=true"])
    engine = cpu_engine()
    images, expected = (
        engine.to_host(training(tmp_path, recipe, precision=each, layout="NHWC", arrays=engine).next_batch().images)
        for each in ("float16", "float32")
    )
    assert (images.dtype, expected.dtype) == (np.float16, np.float32)
    assert (images == expected.astype(np.float16)).all()


@pytest.mark.parametrize(
    ("overrides", "across", "down"),
    [
        # 120x60 becomes 60x30, a step of 2 pixels; the 24 in the middle are 18 to 41 of 60, and 3 to 26 of 30.
        (["data.eval_resize=30"], 2 * np.arange(18, 42) + 0.5, 2 * np.arange(3, 27) + 0.5),
        # The centre of 96x48 pixels begins at 12 and 6; each of 24 pixels takes the middle of 4 and of 2.
        (["data.eval_resize=null", "data.eval_central_share=0.8"], 12 + 4 * np.arange(24) + 1.5,
         6 + 2 * np.arange(24) + 0.5),
    ],
)  # fmt: skip
def test_evaluation_images_have_a_size_and_a_crop_of_their_own(
    tmp_path: Path, overrides: list[str], across: np.ndarray[Any, Any], down: np.ndarray[Any, Any]
) -> None:
    y, x = np.mgrid[:60, :120]
    pixels = np.stack([2 * x, 4 * y, 0 * x], axis=-1).astype(np.uint8)
    for split in ("train", "eval"):
        write_split(tmp_path, split, 1, draw=lambda _: pixels)
    recipe = recipe_for(1, evaluation=1, overrides=["data.eval_size=24", *overrides])
    (batch,) = evaluation(tmp_path, recipe, batch=1).batches()
    assert batch.images.shape == (1, 3, 24, 24)
    np.testing.assert_allclose(batch.images[0, 0, 12], 2 * across, atol=3)
    np.testing.assert_allclose(batch.images[0, 1, :, 12], 4 * down, atol=3)
    assert training(tmp_path, recipe, batch=1).next_batch().images.shape == (1, 3, SIDE, SIDE)


def test_a_shift_gives_windows_of_the_image_with_a_black_border(tmp_path: Path) -> None:
    write_split(tmp_path, "train", 8, draw=pattern)
    recipe = recipe_for(8, overrides=["data.crop={kind: shift, padding: 2}"])
    source = training(tmp_path, recipe, batch=50)
    padded = np.pad(pattern(0).astype(np.float32), ((2, 2), (2, 2), (0, 0)))
    is_border = np.pad(np.zeros((SIDE, SIDE), bool), 2, constant_values=True)
    found: Counter[tuple[int, int]] = Counter()
    places = []
    for image in source.next_batch().images.transpose(0, 2, 3, 1):
        errors = {(y, x): np.abs(image - padded[y : y + SIDE, x : x + SIDE]).max() for y in range(5) for x in range(5)}
        best = min(errors, key=lambda place: errors[place])
        assert errors[best] <= 4
        assert not image[is_border[best[0] : best[0] + SIDE, best[1] : best[1] + SIDE]].any()
        found[best] += 1
        places.append(best)
    assert {y for y, _ in found} == {x for _, x in found} == set(range(5))
    if dali.__version__.startswith("1."):  # of this seed: an exchange of the axes changes every recipe's bits
        assert places[:8] == [(3, 0), (3, 2), (0, 0), (3, 2), (0, 1), (0, 1), (3, 1), (2, 4)]


def test_half_of_the_images_are_mirrored_if_the_recipe_says_so(tmp_path: Path) -> None:
    write_split(tmp_path, "train", 8, draw=pattern)
    images = training(tmp_path, recipe_for(8, overrides=["data.flip=true"]), batch=100).next_batch().images
    mirrored = images[:, 0, 0, 0] > images[:, 0, 0, -1]
    assert 30 <= mirrored.sum() <= 70
    np.testing.assert_allclose(
        images[mirrored][..., ::-1], np.broadcast_to(images[~mirrored][:1], images[mirrored].shape)
    )


@pytest.mark.parametrize("engine", [{}, {"decoded_cache_bytes": 1 << 20}, {"decoder": "whole"}])
def test_random_crops_keep_to_the_recipes_share_of_the_area(tmp_path: Path, engine: dict[str, Any]) -> None:
    ramp = np.broadcast_to(np.linspace(0, 250, 100).astype(np.uint8)[None, :, None], (100, 100, 3))
    write_split(tmp_path, "train", 8, draw=lambda _: ramp)
    crop = "data.crop={kind: resized, area: [0.25, 0.25], aspect: [1, 1]}"
    # The decoder of a CPU has no cache, but images are cut as with one.
    rows = training(tmp_path, recipe_for(8, overrides=[crop]), batch=50, **engine).next_batch().images[:, 0, 5]
    # A quarter of the area is half of the width, and half of the ramp.
    np.testing.assert_allclose(rows[:, -1] - rows[:, 0], 125 * (SIDE - 1) / SIDE, atol=6)
    assert np.ptp(rows[:, 0]) > 60


PLAIN = "data.plain_from_epoch"
BAD = b"no image at all" * 9


@pytest.mark.parametrize("depth", [1, 3])
def test_undecodable_images_are_left_out_with_one_warning_each_if_the_recipe_says_skip(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    write_split(tmp_path, "train", 40, bad={3: BAD, 4: b"", 17: jpeg(plain(17))[:300], 39: BAD})
    recipe = recipe_for(overrides=["data.bad_record=skip", "data.shuffle_buffer=1"])
    sources = [training(tmp_path, recipe, rank=rank, world=2, prefetch_depth=depth) for rank in range(2)]
    labels = [label for source in sources for label in take(source, 30)]
    assert set(labels) == set(range(40)) - {3, 4, 17, 39}
    assert all(message.startswith("left out of training: ") for message in caplog.messages)
    for number in (3, 4, 17, 39):
        assert 1 <= sum(f"record {number} at byte" in message for message in caplog.messages) <= 2  # once a rank
    assert len(list(tmp_path.glob("without-bad-records-*"))) == 2
    for source in sources:
        source.close()
    assert list(tmp_path.glob("without-bad-records-*")) == []


def test_the_last_epochs_are_plain_and_in_order_and_are_not_read_before(tmp_path: Path) -> None:
    ramp = np.broadcast_to(np.arange(0, 240, 2, dtype=np.uint8)[None, :, None], (60, 120, 3))
    crop = "data.crop={kind: resized, area: [0.25, 0.25], aspect: [1, 1]}"
    recipe = recipe_for(
        21,
        evaluation=1,
        overrides=[crop, "data.flip=true", "data.eval_resize=20", "data.plain_from_epoch=3", "run.epochs=4"],
    )
    sources = [training(tmp_path, recipe, rank=rank, world=2, epoch=0) for rank in range(2)]
    write_split(tmp_path, "train", 21, draw=lambda _: ramp)
    write_split(tmp_path, "eval", 1, draw=lambda _: ramp)
    # A rank's epoch is 10 images in batches of 4: 3 steps, then 2.
    as_evaluated = next(iter(evaluation(tmp_path, recipe, batch=1).batches())).images[0]
    for source in sources:
        for epoch, steps in ((1, 3), (2, 2)):
            source.begin_epoch(epoch)
            for _ in range(steps):
                assert not any(np.allclose(image, as_evaluated) for image in source.next_batch().images)
    labels: list[list[int]] = []
    for source in sources:
        source.begin_epoch(3)
        batches = [source.next_batch() for _ in range(3)]
        source.begin_epoch(4)
        batches += [source.next_batch() for _ in range(2)]
        for batch in batches:
            np.testing.assert_array_equal(batch.images, np.broadcast_to(as_evaluated, batch.images.shape))
        labels.append([int(label) for batch in batches for label in batch.labels])
    # The shards of 21 images have 10 and 11 images; in the second pass each rank reads the other shard.
    assert labels[0] == [*range(10), *range(10, 20)]
    assert labels[1] == [*range(10, 21), *range(9)]


@pytest.mark.parametrize(
    ("crop", "decoder", "plain"),
    [("{kind: resized}", "region", 4), ("{kind: resized}", "whole", None), ("{kind: shift, padding: 3}", "region", 4)],
)
def test_images_that_grow_are_those_that_have_always_had_the_size(
    tmp_path: Path, crop: str, decoder: str, plain: int | None
) -> None:
    write_split(tmp_path, "train", 21, draw=pattern)
    sets = [f"data.crop={crop}", "data.flip=true", "data.eval_resize=20", f"{PLAIN}={plain or 'null'}"]

    def batches(*more: str) -> list[Any]:
        source = training(tmp_path, recipe_for(21, overrides=[*sets, *more]), rank=1, world=2, decoder=decoder)
        found = []
        for epoch in range(1, 5):
            source.begin_epoch(epoch)
            found += [source.next_batch() for _ in range(3)]
        source.close()
        return found

    growing = batches(GROWING)
    constant = {side: batches(f"model.image_size={side}") for side in (8, 12, 16)}
    for number, batch in enumerate(growing):
        side = [8, 8, 12, 16][number // 3]
        assert batch.images.shape == (4, 3, side, side)
        np.testing.assert_array_equal(batch.images, constant[side][number].images)
        np.testing.assert_array_equal(batch.labels, constant[side][number].labels)


def skipping(folder: Path, bad: Sequence[int], *sets: str, count: int = 40, **place: Any) -> TrainingSource:
    """Open the first rank's stream of images of which some are damaged and left out."""
    write_split(folder, "train", count, bad=dict.fromkeys(bad, BAD))
    recipe = recipe_for(count, overrides=["data.bad_record=skip", *sets])
    return training(folder, recipe, **{"world": 2, **place})


def test_a_record_left_out_before_the_plain_epochs_stays_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = skipping(tmp_path, [3, 17], f"{PLAIN}=2", "run.epochs=3")
    take(source, 30)
    assert len(caplog.messages) == 2
    source.begin_epoch(2)
    assert take(source, 4) == [number for number in range(40) if number not in (3, 17)][:16]
    assert len(caplog.messages) == 2
    source.close()


def test_a_rank_that_leaves_a_record_out_continues_with_the_same_shard(tmp_path: Path) -> None:
    labels = take(skipping(tmp_path, [33], count=60, world=3), 9)
    assert max(labels[:20]) < 20
    assert 19 <= min(labels[20:]) <= max(labels[20:]) < 40  # of 59 records, the second third is 19 to 38


def test_a_rank_that_sticks_to_its_shard_stays_there_whatever_it_leaves_out(tmp_path: Path) -> None:
    source = skipping(tmp_path, [11, 19], "data.shuffle_buffer=1", stick_to_shard=True)
    assert max(take(source, 15)) <= 20  # of 38 records, the first half ends with number 20


def test_a_record_left_out_of_the_plain_epochs_leaves_the_rank_at_its_shard(tmp_path: Path) -> None:
    source = skipping(tmp_path, [33], f"{PLAIN}=2", "run.epochs=4")
    take(source, 5)
    source.begin_epoch(2)
    assert take(source, 5) == [*range(20)]
    source.begin_epoch(3)
    labels = take(source, 6)
    begin = labels.index(19)  # of 39 records, the second half begins with number 19; batches before were read ahead
    assert labels[:begin] == [*range(20, 20 + begin)]
    assert labels[begin:] == [number for number in range(19, 40) if number != 33][: 24 - begin]
    source.close()


@pytest.mark.parametrize(("given", "kind"), [(1, "none"), (6, "resized")])
def test_a_damaged_record_is_found_wherever_it_stops_the_stream_also_one_that_was_resumed(
    tmp_path: Path, given: int, kind: str
) -> None:
    """DALI 2 does not say which record: the program reads the batches again that follow those given."""
    write_split(tmp_path, "train", 60)
    recipe = recipe_for(60, overrides=[f"data.crop={{kind: {kind}}}"])
    sound = training(tmp_path, recipe)
    order = take(sound, 9)
    state = sound.state()
    order += take(sound, 8)
    record = order[4 * (9 + given) - 2]
    folder = tmp_path / "bad"
    offsets = write_split(folder, "train", 60, bad={record: b"x" * len(jpeg(plain(record)))})
    source = training(folder, recipe, state=state)
    with pytest.raises(DataError) as caught:
        take(source, given + 2)
    source.close()
    message = str(caught.value)
    assert message.startswith(f"{folder}/train.rec: record {record} at byte {offsets[record]}: cannot be decoded (")
    reason = re.search(r"decoded \((\w[^;]*)\)", message)
    assert reason is not None and "[" not in reason[1], "what DALI says of the image, not where in DALI it says so"
    assert message.endswith(f"; ./run.sh prepare --verify {folder} names all damaged records")
    assert "\n" not in message and len(message) < 400 + 2 * len(str(folder))


def test_a_stream_of_another_version_of_dali_begins_its_order_anew_in_the_shard_that_is_due(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_split(tmp_path, "train", 40)
    source = training(tmp_path, recipe_for(), rank=0, world=2)
    take(source, 6)  # 24 of 20 images: the second shard is due
    state = source.state().replace(f'"{dali.__version__}"'.encode(), b'"0.1.0"')
    assert state != source.state()
    assert sorted(take(training(tmp_path, recipe_for(), world=2, epoch=2, state=state), 5)) == list(range(20, 40))
    (told,) = caplog.messages
    assert told.startswith("the images are shuffled anew: the checkpoint was written with DALI 0.1.0, this is DALI ")


def test_an_undecodable_evaluation_image_always_stops(tmp_path: Path) -> None:
    write_split(tmp_path, "eval", 10, bad={5: BAD})
    with pytest.raises(DataError, match=r"eval\.rec: record 5 at byte \d+: cannot be decoded"):
        one_pass(evaluation(tmp_path, recipe_for(overrides=["data.bad_record=skip"])))


def test_a_label_outside_the_classes_is_named_with_its_record(tmp_path: Path) -> None:
    offsets = write_split(tmp_path, "eval", 10)
    source = evaluation(tmp_path, recipe_for(overrides=["model.num_classes=7"]))
    with pytest.raises(DataError) as caught:
        one_pass(source)
    assert str(caught.value) == (
        f"{tmp_path}/eval.rec: record 7 at byte {offsets[7]}: label 7, allowed: whole numbers 0 to 6"
    )


@pytest.mark.parametrize("command", ["rm train.rec", "truncate -s 9000 train.rec", "truncate -s 0 train.idx"])
def test_unreadable_files_are_one_line(tmp_path: Path, command: str) -> None:
    write_split(tmp_path, "train", 40)
    subprocess.run(command.split(), cwd=tmp_path, check=True)
    with pytest.raises(DataError, match=r"train\.rec: .*DALI stopped \(.+\); ./run.sh prepare --verify") as caught:
        take(training(tmp_path, recipe_for()), 10)
    assert "\n" not in str(caught.value)


def test_where_files_cannot_be_mapped_the_way_to_read_them_is_told(tmp_path: Path) -> None:
    write_split(tmp_path, "train", 40)
    program = (
        "import sys; from pathlib import Path; from tests.data.input.test_packed import recipe_for, take, training\n"
    )
    program += "take(training(Path(sys.argv[1]), recipe_for()), 1)"
    variables = failing_reads(tmp_path, "mmap", tmp_path / "train.rec", errno.ENODEV, once=False)
    ran = python("-c", program, tmp_path, env=variables)
    assert ran.stderr.strip().endswith("if it names none, --set cluster.engine.file_access=read")


def test_a_data_set_of_another_length_is_refused(tmp_path: Path) -> None:
    write_split(tmp_path, "train", 39)
    with pytest.raises(DataError, match=r"train\.idx: 39 records, expected 40; prepare the data set again"):
        training(tmp_path, recipe_for())


@pytest.mark.medium
def test_a_gpu_pipeline_is_accepted_up_to_the_missing_driver(tmp_path: Path) -> None:
    if search_gpus()[0]:
        pytest.skip("there is a GPU")
    region: dict[str, Any] = {"hw_decoder_load": 0.5}
    cached = {"stick_to_shard": True, "decoded_cache_bytes": 1 << 20}
    for kind, augment, engine in (
        ("shift", "none", region),
        ("resized", "randaugment", region),
        ("resized", "none", {**region, "decoder": "whole"}),
        ("none", "trivialaugment", cached),
    ):
        crop = f"data.crop={{kind: {kind}, padding: 2}}"
        recipe = recipe_for(overrides=[crop, "data.flip=true", f"data.auto_augment={augment}"])
        with pytest.raises(RuntimeError, match=r"(?i)cuda"):
            training(tmp_path, recipe, device_id=0, **engine)


@pytest.mark.gpu("mxnet", "torch")
@pytest.mark.parametrize(
    ("kind", "augment"),
    [("none", "none"), ("shift", "none"), ("resized", "none"), ("none", "randaugment"), ("none", "trivialaugment")],
)
def test_a_gpu_gives_the_same_images_as_a_cpu(tmp_path: Path, kind: str, augment: str) -> None:
    write_split(tmp_path, "train", 40, draw=pattern)
    write_split(tmp_path, "eval", 10, draw=pattern)
    recipe = recipe_for(overrides=[f"data.crop={{kind: {kind}}}", f"data.auto_augment={augment}"])
    # The decoder of DALI 2.4 crashes on regions.
    decoder = "region" if dali.__version__.startswith("1.") else "whole"
    sources = [training(tmp_path, recipe, device_id=device, decoder=decoder) for device in (None, 0)]
    on_cpu, on_gpu = (source.next_batch() for source in sources)
    np.testing.assert_array_equal(on_gpu.labels, on_cpu.labels)
    if augment == "none":
        np.testing.assert_allclose(on_gpu.images, on_cpu.images, atol=8)
    # Some operations make much of little, such as solarize of a pixel at its threshold.
    assert np.abs(on_gpu.images - on_cpu.images).mean() < 8
    assert one_pass(evaluation(tmp_path, recipe, device_id=0)) == list(range(10))


@pytest.mark.gpu("mxnet", "torch")
@pytest.mark.parametrize("kind", ["none", "resized"])
def test_images_in_the_cache_of_a_gpu_keep_their_pixels_and_their_labels_though_nobody_reads_them(
    tmp_path: Path, kind: str
) -> None:
    write_split(tmp_path, "train", 40, draw=pattern)
    write_split(tmp_path, "eval", 10, draw=pattern)
    cached: dict[str, Any] = {"decoder": "whole", "stick_to_shard": True, "decoded_cache_bytes": 64 << 20}
    recipe = recipe_for(overrides=[f"data.crop={{kind: {kind}}}"])
    held = evaluation(tmp_path, recipe, device_id=0, **cached)
    passes = [[training(tmp_path, recipe, device_id=0, **cached).next_batch() for _ in range(10)] for _ in range(3)]
    assert [sorted(np.concatenate([batch.labels for batch in each])) for each in passes] == [list(range(40))] * 3
    first, second = ([batch.images for batch in held.batches()] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    write_split(tmp_path, "eval", 10, draw=plain)  # of which nothing is seen
    np.testing.assert_array_equal(first, [batch.images for batch in held.batches()])


@pytest.mark.parametrize(
    ("vector", "words"),
    [
        ([0, 1, 1], ""),
        ([0, 1, 2], "label 2, allowed: whole numbers 0 to 1"),
        ([0, 0.5, 1], "label 0.5, allowed: whole numbers 0 to 1"),
        ([0, 1], "2 labels per image, expected 3"),
    ],
)
def test_a_vector_of_labels_is_a_nought_or_one_for_each_class(tmp_path: Path, vector: list[Any], words: str) -> None:
    write_records(tmp_path / "eval", [pack_image(vector, 0, jpeg(plain(0)))])
    sets = [
        "model.num_classes=3",
        "loss.kind=sigmoid",
        "loss.label_smoothing=0",
        "data.source=table",
        "run.target_top1=null",
    ]
    source = evaluation(tmp_path, recipe_for(evaluation=1, overrides=sets), batch=1)
    if not words:
        assert [batch.labels.tolist() for batch in source.batches()] == [[vector]]
        return
    with pytest.raises(DataError) as caught:
        next(iter(source.batches()))
    assert str(caught.value).endswith(words)
