"""Finds the images that made a DALI pipeline stop: DALI 2 says that a batch cannot be decoded, but not which image.

A pipeline that only reads, with the same reader and seed, gives the images in the same order; it passes over the
batches that were given, whose pages it does not touch. Pillow decodes the next ones, as ``./run.sh prepare --verify``
does. DALI 2.4 must not decode them: one in four of its processes crashed at a damaged image.
"""

from typing import Any

from data.forms.form import Sample
from data.input.pipeline import make_reading_pipeline
from data.input.stream import ReadRequest, sample_in


def find_damaged(request: ReadRequest, reader: dict[str, Any], seed: int, batches_given: int) -> frozenset[Sample]:
    """Return the images that cannot be decoded, in the first batch that has any.

    Args:
        request: The images that the pipeline read.
        reader: Arguments of the reader operator of that pipeline.
        seed: Seed of that pipeline.
        batches_given: Batches that the pipeline gave before it stopped, since the beginning of its first shard.

    Returns:
        At least one image, or none if every image can be decoded: the cause was another one.
    """
    pipeline = make_reading_pipeline(request, reader, seed)
    pipeline.build()
    for number in range(batches_given + request.engine.prefetch_depth + 1):
        (sources,) = pipeline.run()
        if number < batches_given:
            continue
        samples = (sample_in(request.images, sources, row) for row in range(len(sources)))
        if bad := frozenset(sample for sample in samples if request.images.decoding_problem(sample)):
            return bad
    return frozenset()
