"""Whether a run can go on from its state: finite on every rank, and of equal ranks the same to the bit.

A gradient that is not finite need not show in the loss, since MXNet's ReLU turns NaN into 0 on a CPU; nor does a sum
that one rank received otherwise than the others. But the traces of both stay in weights and optimizer's state. So a
look before each evaluation and each checkpoint misses none, and no step waits for one. ``run.compare_every_steps`` asks
for more looks.
"""

from collections.abc import Sequence

import numpy as np

from configs.plan import Position
from train.comm.communicator import Communicator
from train.engine.init import require_equal
from train.measure.progress import HOW_TO_GO_ON
from train.step import Step

_HOW_TO_GO_ON = (
    "; --resume goes on from the last checkpoint, before which all were the same; if this happens again, examine the "
    "hosts with ./run.sh doctor"
)


class StateNotFinite(RuntimeError):
    """A value of the state is infinite or not a number.

    Args:
        at: The position after the last step.
        tensor: The first such tensor.
        ranks: The ranks that hold such values.
    """

    def __init__(self, at: Position, tensor: str, ranks: Sequence[int]) -> None:
        self.ranks = tuple(ranks)
        super().__init__(f"state not finite {_when(at)}: {tensor} on rank {', '.join(map(str, ranks))}{HOW_TO_GO_ON}")


def _when(at: Position) -> str:
    return f"at step {at.step - 1} of epoch {at.epoch}"


def require_sound(step: Step, at: Position) -> None:
    """Raise, on every rank alike, unless all ranks' state is finite, and equal where ranks are to have the same.

    Every rank calls this after the same step. Compared are the weights, what ideas evaluate in their place, and the
    optimizer's state, but for asynchronous ranks' own; running statistics are a rank's own until an evaluation.

    Args:
        step: Has the state.
        at: The position after the last step.

    Raises:
        StateNotFinite: A value is not finite.
        RanksDiffer: The ranks' states differ.
    """
    network, engine, communicator = step.network, step.engine, step.communicator
    communicator.exchange(settled=True)  # of asynchronous ranks, the last updates are still with the servers
    weights = {each.name: master for each, master in zip(network.parameters, network.masters, strict=True)}
    momenta = {f"optimizer's state {number}": each for number, each in enumerate(step.optimizer.momenta)}
    statistics = network.statistics
    evaluated = {f"average of {name}": each for part in step.parts for name, each in part.evaluated_weights.items()}
    equal = weights | (momenta if communicator.keeps_ranks_equal else {}) | evaluated
    found = engine.first_not_finite([*weights.values(), *momenta.values(), *evaluated.values(), *statistics])
    digests = np.array(engine.digests([*equal.values()]), np.uint64)
    own = np.array([0 if found is None else found + 1, digests.sum()], np.uint64)
    firsts, sums = _gathered(communicator, "state", own).T.tolist()
    if ranks := [rank for rank, first in enumerate(firsts) if first]:
        names = [*weights, *momenta, *evaluated, *network.read_statistics()]
        raise StateNotFinite(at, names[firsts[ranks[0]] - 1], ranks)
    if len(set(sums)) > 1:
        by_tensor = _gathered(communicator, "digests", digests).T
        tensor = [*equal][int((by_tensor != by_tensor[:, :1]).any(axis=1).argmax())]
        require_equal(sums, f"{_when(at)}, first in {tensor}", "state is", _HOW_TO_GO_ON)


def _gathered(communicator: Communicator, name: str, numbers: np.ndarray) -> np.ndarray:
    """Return a row of unsigned 64-bit integers from each rank."""
    return np.stack([np.frombuffer(each, np.uint64) for each in communicator.gather_bytes(name, numbers.tobytes())])
