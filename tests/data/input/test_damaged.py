"""Which records of a batch cannot be decoded: those and no other ones, of the first batch that has any."""

from pathlib import Path
from typing import Any, cast

import pytest

from configs.schema import EngineSettings
from data.input import damaged
from data.input.batches import HostArrays
from data.input.stream import ReadRequest
from tests.data.input.test_packed import recipe_for, take, training, write_split


def test_only_damaged_records_are_found_and_only_those_of_the_first_batch_with_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = write_split(tmp_path, "train", 12, bad=dict.fromkeys((4, 7, 9), b"no JPEG"))
    monkeypatch.setattr(damaged, "_batches_after", lambda *_: iter([at[:4], at[4:8], at[8:]]))
    request = ReadRequest(recipe_for(12), EngineSettings(), tmp_path, "train", 4, 0, 1, None, HostArrays())
    assert damaged.find_damaged(request, {}, b"") == {at[4], at[7]}
    monkeypatch.setattr(damaged, "_batches_after", lambda *_: iter([at[:4]]))
    assert damaged.find_damaged(request, {}, b"") == frozenset()


def test_the_records_are_looked_for_in_the_batches_that_follow_the_last_one_given(tmp_path: Path) -> None:
    at = write_split(tmp_path, "train", 40)
    source = cast(Any, training(tmp_path, recipe_for(40)))
    source.begin_epoch(1)
    take(source, 5)
    request, reader = source._stream._find_damaged.args
    batches = list(damaged._batches_after(request, reader, bytes(source._stream._pipeline.checkpoint())))
    assert len(batches) > request.engine.prefetch_depth, "those that were read ahead, and one that may be begun"
    assert [at.index(offset) for batch in batches for offset in batch] == take(source, len(batches))
    source.close()


@pytest.mark.parametrize("length", [0, 1, 127, 128, 300, 16_384])
def test_fields_of_a_message_come_back_as_they_were_encoded(length: int) -> None:
    content = bytes(range(256)) * (length // 256) + bytes(length % 256)
    message = damaged._encoded(3, content) + damaged._encoded(15, b"x")
    assert list(damaged._fields(message)) == [(3, content), (15, b"x")]
