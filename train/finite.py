"""Whether a run can go on from its state: weights, optimizer's state and running statistics are finite on every rank.

A gradient that is not finite need not show in the loss, since MXNet's ReLU turns NaN into 0 on a CPU. But its trace
stays in weights and optimizer's state. So a look before each evaluation and each checkpoint misses none, and no step
waits for one.
"""

from collections.abc import Sequence

from configs.plan import Position
from train.measure.progress import HOW_TO_GO_ON
from train.step import Step


class StateNotFinite(RuntimeError):
    """A value of the state is infinite or not a number.

    Args:
        at: The position after the last step.
        tensor: The first such tensor.
        ranks: The ranks that hold such values.
    """

    def __init__(self, at: Position, tensor: str, ranks: Sequence[int]) -> None:
        self.step = at.step - 1
        where = f"rank {', '.join(map(str, ranks))}"
        super().__init__(f"state not finite at step {self.step} of epoch {at.epoch}: {tensor} on {where}{HOW_TO_GO_ON}")


def require_finite(step: Step, at: Position) -> None:
    """Raise, on every rank alike, if a rank's state is not finite; every rank calls this after the same step.

    Args:
        step: Has the state.
        at: The position after the last step.

    Raises:
        StateNotFinite: The state is not finite.
    """
    network, engine = step.network, step.engine
    step.communicator.exchange(settled=True)  # of asynchronous ranks, the last updates are still with the servers
    momenta = step.optimizer.momenta
    found = engine.first_not_finite([*network.masters, *momenta, *network.statistics])
    numbers = step.communicator.gather("not finite", 0 if found is None else found + 1)
    if not any(numbers):
        return
    state = [f"optimizer's state {number}" for number in range(len(momenta))]
    names = [*(each.name for each in network.parameters), *state, *network.read_statistics()]
    ranks = [rank for rank, number in enumerate(numbers) if number]
    raise StateNotFinite(at, names[numbers[ranks[0]] - 1], ranks)
