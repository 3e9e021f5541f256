"""Blank batches: as many and as large as a real shard has, and a stream that counts them."""

from hypothesis import given
from hypothesis import strategies as st

from data.input.batches import HostArrays
from data.input.synthetic import open_blank_evaluation, open_blank_training


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 9))
def test_a_pass_has_the_images_of_the_shard_in_full_batches_but_for_the_last(
    start: int, length: int, size: int
) -> None:
    source = open_blank_evaluation(HostArrays(), range(start, start + length), size)
    for _ in range(2):
        valid = [batch.num_valid for batch in source.batches()]
        assert sum(valid) == length
        assert all(count == size for count in valid[:-1])
        assert all(0 < count <= size for count in valid)


def test_a_stream_that_is_opened_with_a_state_continues_there() -> None:
    source = open_blank_training(HostArrays())
    source.begin_epoch(1)
    for _ in range(3):
        source.next_batch()
    again = open_blank_training(HostArrays(), source.state())
    assert again.state() == source.state() == b"3"
    again.next_batch()
    assert again.state() == b"4"
