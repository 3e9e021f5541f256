"""``./run.sh recipes`` lists what comes with the program."""

import pytest

from configs.load import ROOT
from configs.shipped import main
from tests.programs import Said


def test_every_recipe_is_listed_with_its_data_time_and_hardware(said: Said) -> None:
    told = said(main, "recipes").out
    names = sorted(path.stem for path in (ROOT / "configs" / "recipes").glob("*.yaml"))
    assert [line for line in told.splitlines() if line and not line.startswith(" ")] == names
    assert "  data      digits, 1,198 and 599 images of 10 classes\n" in told
    assert "  network   resnet20 at 8 px, batch 64\n" in told
    assert max(map(len, told.splitlines())) <= 100


@pytest.mark.medium
def test_a_word_narrows_the_list_and_a_word_of_no_recipe_is_refused(said: Said) -> None:
    told = said(main, "recipes", "Handwritten").out
    assert [line for line in told.splitlines() if line[:1] != " "] == ["digits"]
    refusal = "error: zebra: in no recipe; ./run.sh recipes lists all of them\n"
    assert said(main, "recipes", "zebra", status=2).err == refusal
