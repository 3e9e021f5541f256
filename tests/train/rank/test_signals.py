"""What each signal does to a rank, before the first step and after it."""

import os
import signal
from collections.abc import Iterator

import pytest

from train.rank.signals import Stopped, StopSignals

POLITE = [signal.SIGTERM, signal.SIGUSR1]


@pytest.fixture
def signals() -> Iterator[StopSignals]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *POLITE)}
    yield StopSignals()
    for number, handler in before.items():
        signal.signal(number, handler)


def _send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", POLITE)
def test_a_notice_ends_a_rank_at_once_until_its_first_step_and_then_waits(signals: StopSignals, number: int) -> None:
    assert not signals.told_to_stop()
    signals.wait_for_step()
    _send(number)
    assert signals.told_to_stop()
    _send(number)
    _send(POLITE[0])
    assert signals.told_to_stop()


def test_ctrl_c_ends_a_rank_whenever_it_comes(signals: StopSignals) -> None:
    signals.wait_for_step()
    for _ in range(2):
        with pytest.raises(Stopped) as caught:
            _send(signal.SIGINT)
        assert caught.value.exit_status == 130


def test_errors_are_their_own_unless_a_signal_came_before_the_first_step(signals: StopSignals) -> None:
    with pytest.raises(ImportError, match="no such library"), signals.heeded():
        raise ImportError("no such library")
    with pytest.raises(Stopped):
        _send(signal.SIGTERM)
    with pytest.raises(Stopped), signals.heeded():
        raise ImportError("initialization failed")
    signals.wait_for_step()
    with pytest.raises(OSError, match="torn"), signals.heeded():
        raise OSError("record 7 is torn")


@pytest.mark.parametrize("number", POLITE)
def test_a_rank_whose_run_is_over_heeds_no_notice(signals: StopSignals, number: int) -> None:
    signals.rest()
    _send(number)
    assert not signals.told_to_stop()
    with pytest.raises(Stopped):
        _send(signal.SIGINT)


def test_another_notice_does_not_end_a_rank_a_second_time_and_the_last_one_is_remembered(signals: StopSignals) -> None:
    with pytest.raises(Stopped):
        _send(signal.SIGTERM)
    _send(signal.SIGUSR1)
    assert signals.came == signal.SIGUSR1
    with pytest.raises(Stopped) as caught, signals.heeded():
        raise ImportError("initialization failed")
    assert (caught.value.number, type(caught.value.__cause__)) == (signal.SIGUSR1, ImportError)
