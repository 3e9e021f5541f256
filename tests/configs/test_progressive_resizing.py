"""Sizes of the training images by epoch: the published schedules, worked out by hand, and what is refused."""

import pytest

from configs.errors import ConfigError
from configs.load import load_recipe

MOSAIC = "data.progressive_resizing={initial_size: 88, size_step: 4, ramp_start_epochs: 11.52, ramp_end_epochs: 23.04}"
GROWING = "data.progressive_resizing={initial_size: 8, size_step: 4, ramp_start_epochs: 1, ramp_end_epochs: 3}"
KEY = "data.progressive_resizing"


def _ffcv(start: int, end: int) -> str:
    return f"{KEY}={{initial_size: 160, size_step: 32, ramp_start_epochs: {start}, ramp_end_epochs: {end}}}"


@pytest.mark.parametrize(
    ("epochs", "full", "setting", "sizes"),
    [
        # rn50_configs of libffcv/ffcv-imagenet count epochs from 0: 16 epochs are at 160 px up to epoch 11, 24 up to
        # epoch 18 (170.7 px, next to 160), 88 up to epoch 70 (174.5 px). Halfway, in epoch 12 of 16, NumPy rounds
        # 5.5 x 32 px to 192.
        (16, 192, _ffcv(11, 13), {160: (1, 12), 192: (13, 16)}),
        (24, 192, _ffcv(17, 20), {160: (1, 19), 192: (20, 24)}),
        (88, 192, _ffcv(65, 76), {160: (1, 71), 192: (72, 88)}),
        # MosaicML v2.0 open, 28.8 epochs: half the size for 0.4 of them, full size for 0.2. After 13 epochs, the scale
        # is 0.5 + 0.5 x 1.48 / 11.52, or 24.83 x 4 px.
        (29, 176, MOSAIC, {
            88: (1, 12), 92: (13, 13), 100: (14, 14), 108: (15, 15), 116: (16, 16), 124: (17, 17), 128: (18, 18),
            136: (19, 19), 144: (20, 20), 152: (21, 21), 160: (22, 22), 168: (23, 23), 176: (24, 29),
        }),
    ],
)  # fmt: skip
def test_published_schedules_have_the_sizes_of_their_programs(
    epochs: int, full: int, setting: str, sizes: dict[int, tuple[int, int]]
) -> None:
    keys = [f"run.epochs={epochs}", f"model.image_size={full}", setting]
    recipe = load_recipe("imagenet-b256", [*keys, "data.eval_size=224"])
    assert {side: (each[0], each[-1]) for side, each in recipe.epochs_by_size.items()} == sizes
    assert [*recipe.epochs_by_size] == sorted(sizes)
    assert recipe.evaluated.model.image_size == 224
    assert load_recipe("imagenet-b256", [*keys]).evaluated.model.image_size == full


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.image_size=18"], r"model\.image_size: got 18, allowed: a multiple of .*size_step \(4\)"),
        ([f"{KEY}.initial_size=10"], r"initial_size: got 10, allowed: a multiple of size_step \(4\) below model\."),
        ([f"{KEY}.initial_size=16"], r"initial_size: got 16, allowed: .* below model\.image_size \(16\)"),
        ([f"{KEY}.ramp_end_epochs=1"], r"ramp_end_epochs: got 1\.0, allowed: more than ramp_start_epochs \(1\)"),
        (["data.keep_batches=true"], r"data\.keep_batches: got True, allowed: false with data\.progressive_resizing"),
        (["data.plain_from_epoch=3", "data.eval_resize=16"], r"data\.plain_from_epoch: got 3, allowed: .* 16 px by"),
        (["model.residual.shortcut=pooled", f"{KEY}={{initial_size: 10, size_step: 2, ramp_start_epochs: 1, "
          "ramp_end_epochs: 3}"], r"got '10 px in epoch 1', allowed: a multiple of 4 px where model\.residual"),
        (["model.name=densenet121", "model.image_size=32", "data.eval_resize=null"], "got '8 px in epoch 1', allowed: "
          "29 to 1024 px for densenet121"),
        (["model.name=densenet121", "model.image_size=32", "data.eval_resize=null", f"{KEY}.initial_size=28"],
         "got '28 px in epoch 1', allowed: 29 to"),
        (["model.name=alexnet", "model.image_size=64", "data.eval_resize=null", f"{KEY}.initial_size=63", f"{KEY}."
          "size_step=1"], "got '63 px in epoch 1', allowed: null for alexnet, which takes images of one size"),
    ],
)  # fmt: skip
def test_sizes_that_cannot_be_trained_are_refused_in_one_line(overrides: list[str], message: str) -> None:
    keys = [GROWING, "model.image_size=16"]
    load_recipe("digits", [*keys, "data.plain_from_epoch=4", "data.eval_resize=16"])
    with pytest.raises(ConfigError, match=message) as refused:
        load_recipe("digits", [*keys, *overrides])
    assert "\n" not in str(refused.value)
