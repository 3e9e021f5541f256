"""A correction of checkpoints of DALI 1.34, which count wrongly once a pipeline has been restored. Imports no DALI.

The state of a reader is the number of passes over its shards, and the number of samples since the present pass began.
A pipeline that was restored within a pass adds the samples before its restoration a second time until the pass ends, so
that its next checkpoint leaves as many images out. DALI 2.4 counts rightly. *Source*: the checkpoints of both, messages
of Protocol Buffers, after every number of batches (2026-11-27).
"""

from collections.abc import Callable

# onnx brings protobuf into every environment of MXNet.
from google.protobuf import descriptor_pb2, message_factory  # type: ignore[import-untyped]

_MESSAGE, _BYTES, _INT32, _INT64 = 11, 12, 5, 3
_FORM = {
    "Checkpoint": [{"name": "operators", "number": 1, "label": 3, "type": _MESSAGE, "type_name": "Operator"}],
    "Operator": [{"name": "name", "number": 1, "type": _BYTES}, {"name": "state", "number": 2, "type": _BYTES}],
    "Reader": [{"name": "loader", "number": 1, "type": _MESSAGE, "type_name": "Loader"}],
    "Loader": [
        {"name": "random", "number": 1, "type": _BYTES},
        {"name": "passes", "number": 2, "type": _INT32},
        {"name": "samples", "number": 3, "type": _INT64},
    ],
}
"""Message -> the fields that are read here, and those before them: protobuf writes what it does not know at the end."""


def with_reader_age(checkpoint: bytes, samples: int, length_of_pass: Callable[[int], int]) -> bytes:
    """Return the checkpoint of a pipeline with the right number of samples since the reader's pass began.

    Args:
        checkpoint: Of a pipeline with one reader.
        samples: Samples that the pipeline has given since its first pass began.
        length_of_pass: Returns the samples of a pass, counted from 0.
    """
    form = [{"name": name, "field": fields} for name, fields in _FORM.items()]
    messages = message_factory.GetMessages([descriptor_pb2.FileDescriptorProto(name="dali", message_type=form)])
    whole = messages["Checkpoint"].FromString(checkpoint)
    (reader,) = (each for each in whole.operators if each.name.startswith(b"readers"))
    state = messages["Reader"].FromString(reader.state)
    state.loader.samples = samples - sum(map(length_of_pass, range(state.loader.passes)))
    reader.state = state.SerializeToString()
    return bytes(whole.SerializeToString())
