"""A correction of checkpoints of DALI 1.34, which count wrongly once a pipeline has been restored. Imports no DALI.

The state of a reader is the number of passes over its shards, and the number of samples since the present pass began.
A pipeline that was restored within a pass adds the samples before its restoration a second time until the pass ends, so
that its next checkpoint leaves as many images out. DALI 2.4 counts rightly. *Source*: the checkpoints of both, messages
of Protocol Buffers, after every number of batches (2026-11-27).
"""

from collections.abc import Callable
from functools import cache
from typing import Any

# onnx brings protobuf into every environment of MXNet.
from google.protobuf import descriptor_pb2, message_factory, text_format  # type: ignore[import-untyped]

_FORM = """
name: "dali_checkpoint.proto"
message_type { name: "Checkpoint"
  field { name: "operators" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: "Operator" } }
message_type { name: "Operator"
  field { name: "name" number: 1 label: LABEL_OPTIONAL type: TYPE_BYTES }
  field { name: "state" number: 2 label: LABEL_OPTIONAL type: TYPE_BYTES } }
message_type { name: "Reader"
  field { name: "loader" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: "Loader" } }
message_type { name: "Loader"
  field { name: "random" number: 1 label: LABEL_OPTIONAL type: TYPE_BYTES }
  field { name: "passes" number: 2 label: LABEL_OPTIONAL type: TYPE_INT32 }
  field { name: "samples" number: 3 label: LABEL_OPTIONAL type: TYPE_INT64 } }
"""
"""The part of a checkpoint that is read here; all else of it is kept as it is."""


@cache
def _messages() -> dict[str, Any]:
    """Return the messages of a checkpoint by name."""
    form = text_format.Parse(_FORM, descriptor_pb2.FileDescriptorProto())
    messages: dict[str, Any] = message_factory.GetMessages([form])
    return messages


def with_reader_age(checkpoint: bytes, samples: int, length_of_pass: Callable[[int], int]) -> bytes:
    """Return the checkpoint of a pipeline with the right number of samples since the reader's pass began.

    Args:
        checkpoint: Of a pipeline with one reader.
        samples: Samples that the pipeline has given since its first pass began.
        length_of_pass: Returns the samples of a pass, counted from 0.
    """
    whole = _messages()["Checkpoint"].FromString(checkpoint)
    (reader,) = (each for each in whole.operators if each.name.startswith(b"readers"))
    state = _messages()["Reader"].FromString(reader.state)
    state.loader.samples = samples - sum(map(length_of_pass, range(state.loader.passes)))
    reader.state = state.SerializeToString()
    return bytes(whole.SerializeToString())
