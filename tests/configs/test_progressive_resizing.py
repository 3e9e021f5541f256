"""Sizes of the training images by epoch: the published schedules, worked out by hand, and what is refused."""

import pytest

from configs.errors import ConfigError
from configs.load import load_recipe

KEY = "data.progressive_resizing"
MOSAIC = f"{KEY}={{initial_size: 88, size_step: 4, ramp_start_share: 0.4, ramp_end_share: 0.8}}"
FFCV = f"{KEY}={{initial_size: 160, size_step: 32, ramp_start_share: 0.75, ramp_end_share: 0.875}}"
GROWING = f"{KEY}={{initial_size: 8, size_step: 4, ramp_start_share: 0.25, ramp_end_share: 0.75}}"


@pytest.mark.parametrize(
    ("epochs", "full", "setting", "sizes"),
    [
        # rn50_configs of libffcv/ffcv-imagenet count epochs from 0 and ramp from epoch 11 to 13 of 16 (17 to 20 of 24,
        # 23 to 27 of 32, 29 to 34 of 40, 41 to 48 of 56, 65 to 76 of 88): 24 epochs are at 160 px up to epoch 18 (170.7
        # px, next to 160), 88 up to epoch 70 (174.5 px). Halfway, in epoch 12 of 16, NumPy rounds 5.5 x 32 px to 192.
        (16, 192, FFCV, {160: (1, 12), 192: (13, 16)}),
        (24, 192, FFCV, {160: (1, 19), 192: (20, 24)}),
        (88, 192, FFCV, {160: (1, 71), 192: (72, 88)}),
        # MosaicML v2.0 open, 28 epochs: half the size for 0.4 of them, full size for 0.2. At the end of epoch 13, the
        # scale is 0.5 + 0.5 x (13/28 - 0.4) / 0.4, or 25.54 x 4 px.
        (28, 176, MOSAIC, {
            88: (1, 11), 96: (12, 12), 104: (13, 13), 112: (14, 14), 116: (15, 15), 124: (16, 16), 132: (17, 17),
            140: (18, 18), 148: (19, 19), 156: (20, 20), 164: (21, 21), 172: (22, 22), 176: (23, 28),
        }),
    ],
)  # fmt: skip
def test_published_schedules_have_the_sizes_of_their_programs(
    epochs: int, full: int, setting: str, sizes: dict[int, tuple[int, int]]
) -> None:
    keys = [f"run.epochs={epochs}", f"model.image_size={full}", setting]
    recipe = load_recipe("imagenet-b256", [*keys, "data.eval_size=224"])
    spans = [(span.recipe.model.image_size, (span.epochs[0], span.epochs[-1])) for span in recipe.spans]
    assert spans == [*sizes.items()]
    assert [recipe.of_epoch(epoch).model.image_size for epoch in (1, epochs)] == [min(sizes), full]
    assert recipe.evaluated.model.image_size == 224
    assert load_recipe("imagenet-b256", [*keys]).evaluated.model.image_size == full


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.image_size=18"], r"model\.image_size: got 18, allowed: a multiple of .*size_step \(4\)"),
        ([f"{KEY}.initial_size=10"], r"initial_size: got 10, allowed: a multiple of size_step \(4\) below model\."),
        ([f"{KEY}.initial_size=16"], r"initial_size: got 16, allowed: .* below model\.image_size \(16\)"),
        ([f"{KEY}.ramp_end_share=0.25"], r"ramp_end_share: got 0\.25, allowed: more than ramp_start_share \(0\.25\)"),
        (["data.keep_batches=true"], r"data\.keep_batches: got True, allowed: false with data\.progressive_resizing"),
        (["data.plain_from_epoch=3", "data.eval_resize=16"], r"data\.plain_from_epoch: got 3, allowed: .* 16 px by"),
        (["model.residual.shortcut=pooled", f"{KEY}={{initial_size: 10, size_step: 2, ramp_start_share: 0.25, "
          "ramp_end_share: 0.75}"], r"got 10, allowed: a multiple of 4 px where model\.residual"),
        (["model.name=densenet121", "model.image_size=32", "data.eval_resize=null"], "got 8, allowed: "
          "29 to 1024 px for densenet121"),
        (["model.name=densenet121", "model.image_size=32", "data.eval_resize=null", f"{KEY}.initial_size=28"],
         "got 28, allowed: 29 to"),
        (["model.name=alexnet", "model.image_size=64", "data.eval_resize=null", f"{KEY}.initial_size=63", f"{KEY}."
          "size_step=1"], "got 63, allowed: null for alexnet, which takes images of one size"),
    ],
)  # fmt: skip
def test_sizes_that_cannot_be_trained_are_refused_in_one_line(overrides: list[str], message: str) -> None:
    keys = [GROWING, "model.image_size=16"]
    load_recipe("digits", [*keys, "data.plain_from_epoch=4", "data.eval_resize=16"])
    with pytest.raises(ConfigError, match=message) as refused:
        load_recipe("digits", [*keys, *overrides])
    assert "\n" not in str(refused.value)
