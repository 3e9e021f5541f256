"""What the import of DALI does to the process, and what DALI is told of the engine."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from configs.schema import EngineSettings
from data.forms.catalogue import form_of
from data.input import pipeline
from data.input.pipeline import ReadRequest
from tests.data.input.test_packed import recipe_for
from tests.host_arrays import HostArrays
from tests.programs import python


@pytest.mark.ranks
def test_dali_is_imported_without_a_word_and_later_warnings_are_shown() -> None:
    # On Python 3.12, DALI 1.34 calls itself experimental, whatever the filters say.
    code = "import warnings\nimport data.input.pipeline\nwarnings.warn('of ours')"
    done = python("-W", "default", "-c", code, check=True)
    assert done.stderr.splitlines()[0] == "<string>:3: UserWarning: of ours"
    assert "DALI" not in done.stderr


def _request(device_id: int | None, overrides: Sequence[str] = (), **engine: Any) -> ReadRequest:
    recipe = recipe_for(overrides=overrides)
    images = form_of(Path("set"), "train")
    return ReadRequest(recipe, EngineSettings(**engine), Path("set"), "train", images, 4, 0, 1, device_id, HostArrays())


@pytest.mark.parametrize(
    ("engine", "operator"),
    [({}, b"ImageRandomCrop"), ({"decoder": "whole"}, b"RandomResizedCrop"),
     ({"decoded_cache_bytes": 1}, b"RandomResizedCrop")],
)  # fmt: skip
def test_images_that_are_decoded_whole_meet_no_decoder_of_regions(engine: dict[str, Any], operator: bytes) -> None:
    request = _request(None, ["data.crop={kind: resized}"], **engine)
    graph = pipeline.make_pipeline(request, request.images.arguments(), 1, is_augmented=True).serialize()
    assert [name for name in (b"ImageRandomCrop", b"RandomResizedCrop") if name in graph] == [operator]


def test_dali_is_told_how_to_read_the_file() -> None:
    graphs = {}
    for access in ("mapped", "mapped_ahead", "read"):
        request = _request(None, file_access=access)
        made = pipeline.make_pipeline(request, request.images.arguments(), 1, is_augmented=False)
        graphs[access] = {name for name in (b"read_ahead", b"dont_use_mmap") if name in made.serialize()}
    assert graphs == {"mapped": set(), "mapped_ahead": {b"read_ahead"}, "read": {b"dont_use_mmap"}}


def test_dali_has_the_threads_and_reads_ahead_as_the_engine_says() -> None:
    request = _request(None, input_threads=3, prefetch_depth=4)
    made = pipeline.make_pipeline(request, request.images.arguments(), 1, is_augmented=True)
    assert (made.num_threads, made.prefetch_queue_depth, made.max_batch_size) == (3, 4, 4)


@pytest.mark.parametrize("load", [None, 0.0, 0.7])
def test_a_gpu_decodes_the_share_of_the_images_that_the_engine_says_with_memory_for_the_largest(
    load: float | None,
) -> None:
    decoder = pipeline.decoder_options(_request(0, hw_decoder_load=load))
    assert (decoder["device"], decoder.get("hw_decoder_load")) == ("mixed", load)
    assert (decoder["preallocate_width_hint"], decoder["preallocate_height_hint"]) == (5980, 6430)
    on_cpu = pipeline.decoder_options(_request(None, hw_decoder_load=load))
    assert on_cpu.keys() - {"device", "output_type", "adjust_orientation"} == set()


@pytest.mark.parametrize(("size_bytes", "size_mb"), [(1, 1), (5 << 20, 5), (3 << 30, 3072)])
def test_the_cache_of_decoded_images_is_told_in_megabytes_and_only_to_a_gpu(size_bytes: int, size_mb: int) -> None:
    request = _request(0, decoded_cache_bytes=size_bytes, file_access="read")
    assert pipeline.cache_options(request) == {"cache_size": size_mb, "cache_type": "threshold"}
    assert pipeline.reader_options(request) == {"skip_cached_images": True, "dont_use_mmap": True}
    for other in (_request(None, decoded_cache_bytes=size_bytes), _request(0, decoder="whole")):
        assert pipeline.cache_options(other) == pipeline.reader_options(other) == {}
