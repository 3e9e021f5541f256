"""Rows of a table in which a batch norm has taken the addition and the ReLU behind it into itself. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from train.networks.kinds import KINDS
from train.networks.layer import Layer

BN_RELU = replace(KINDS["bn"], name="bn_relu")
"""A batch norm that ends with a ReLU. As in one without, a second input is added before that."""


def fuse_norms(rows: Sequence[Layer]) -> list[Layer]:
    """Return rows that compute the same with as few batch norms, additions and ReLUs as possible.

    An addition or a ReLU becomes part of a batch norm whose output nothing else reads. The batch norm keeps its name,
    and stands where the last of its rows stood. Of two batch norms before an addition, the first input takes it. A
    frozen batch norm computes no statistics, and stays as it is.

    Args:
        rows: Neighbouring rows of a table; nothing but the last of them is read by other rows.
    """
    reads = Counter(name for row in rows for name in row.inputs)
    readers = {name: row for row in rows for name in row.inputs}
    names: dict[str, str] = {}
    waiting: dict[str, Layer] = {}
    fused: list[Layer] = []
    for each in rows:
        row = replace(each, inputs=tuple(names.get(name, name) for name in each.inputs))
        if row.kind.name in ("add", "relu"):
            row = _joined(row, waiting) or row
            names[each.name] = row.name
        # What was not joined is a row of its own, before its reader.
        fused += [waiting.pop(name) for name in row.inputs if name in waiting]
        takes = ("relu", "add")[: 3 - len(row.inputs)] if row.kind == KINDS["bn"] and not row.is_frozen else ()
        if reads[each.name] == 1 and readers[each.name].kind.name in takes:
            waiting[row.name] = row
        else:
            fused.append(row)
    return fused


def _joined(row: Layer, waiting: dict[str, Layer]) -> Layer | None:
    """Return the batch norm that waits for an addition or a ReLU, with that in it; None if none does."""
    for place, name in enumerate(row.inputs):
        if name in waiting:
            norm, others = waiting.pop(name), row.inputs[:place] + row.inputs[place + 1 :]
            return replace(norm, kind=norm.kind if others else BN_RELU, inputs=norm.inputs + others)
    return None
