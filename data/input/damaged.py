"""Finds the records that made a DALI pipeline stop: DALI 2 says that a batch cannot be decoded, but not which record.

A pipeline that only reads, with the same reader and seed, gives the records in the same order; it passes over the
batches that were given, whose pages it does not touch. Pillow decodes the next ones, as ``./run.sh prepare --verify``
does. DALI 2.4 must not decode them: one in four of its processes crashed at a damaged image.
"""

from typing import Any

from data.input.pipeline import make_reading_pipeline
from data.input.stream import ReadRequest, offset_in
from data.recordio import RecordFile
from data.verify import decoding_problem


def find_damaged(request: ReadRequest, reader: dict[str, Any], seed: int, batches_given: int) -> frozenset[int]:
    """Return the byte offsets of the records that cannot be decoded, in the first batch that has any.

    Args:
        request: The images that the pipeline read.
        reader: Arguments of the reader operator of that pipeline.
        seed: Seed of that pipeline.
        batches_given: Batches that the pipeline gave before it stopped, since the beginning of its first shard.

    Returns:
        At least one offset, or none if every image can be decoded: the cause was another one.
    """
    pipeline = make_reading_pipeline(request, reader, seed)
    pipeline.build()
    with RecordFile(request.rec) as records:
        for number in range(batches_given + request.engine.prefetch_depth + 1):
            (sources,) = pipeline.run()
            if number < batches_given:
                continue
            offsets = (offset_in(sources, row) for row in range(len(sources)))
            if bad := frozenset(offset for offset in offsets if decoding_problem(records, offset)):
                return bad
    return frozenset()
