"""The short run that learns, by real ranks."""

from pathlib import Path

import pytest

from configs.load import load_cluster, load_recipe
from launch.accept.learning import learn
from logs.folder import RunFolder, Summary


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.parametrize("name", ["accept", "mine"])
def test_only_the_run_of_an_earlier_acceptance_gives_way(name: str, tmp_path: Path) -> None:
    cluster, earlier = load_cluster("laptop"), RunFolder(tmp_path / "learning")
    earlier.make()
    earlier.write_settings(load_recipe("digits").model_copy(update={"name": name}), cluster)
    earlier.write_summary(Summary(name, "success", top1=1.0, epochs=1))
    learned = learn(cluster, earlier.path)
    assert (learned.failure == "", earlier.summary().recipe) == (name == "accept", name)
    assert learned.epochs != 1 or name == "mine", "not the result of the earlier run"
