"""Batches that are read once and used in every epoch."""

from hypothesis import given
from hypothesis import strategies as st

from data.input.batches import TrainingBatch
from data.input.cached_batches import CachedBatches


class Counting:
    """A source whose batch number n contains n."""

    def __init__(self) -> None:
        self.given, self.epochs, self.is_closed = 0, [0], False

    def begin_epoch(self, epoch: int) -> None:
        assert not self.is_closed
        self.epochs.append(epoch)

    def next_batch(self) -> TrainingBatch:
        assert not self.is_closed
        assert len(self.epochs) > 1
        self.given += 1
        return TrainingBatch(self.given, None)

    def state(self) -> bytes:
        raise AssertionError("cached batches need no state of the source")

    def close(self) -> None:
        assert not self.is_closed, "closed once"
        self.is_closed = True


@given(st.integers(1, 20), st.integers(1, 30), st.integers(0, 60), st.integers(1, 60))
def test_a_resumed_source_gives_the_batches_that_the_first_would_have_given(
    size: int, per_epoch: int, before: int, after: int
) -> None:
    def take(cached: CachedBatches, numbers: range) -> list[object]:
        seen: list[object] = []
        for number in numbers:
            if number % per_epoch == 0 or number == numbers.start:
                cached.begin_epoch(1 + number // per_epoch)
            seen.append(cached.next_batch().images)
        return seen

    source = Counting()
    whole = CachedBatches(source, size)
    expected = take(whole, range(before + after))
    assert expected == [number % size + 1 for number in range(before + after)]
    assert source.given == min(size, before + after)
    assert source.is_closed == (before + after >= size)
    whole.close()
    assert source.is_closed
    first = CachedBatches(Counting(), size)
    take(first, range(before))
    again = Counting()
    resumed = CachedBatches(again, size, batches_given=int(first.state()))
    assert take(resumed, range(before, before + after)) == expected[before:]
    assert set(again.epochs) == {0, 1}
