"""The end of a process by a signal is one that `finally` sees."""

import os
import signal

import pytest

from gpushare.runtime.process import as_interrupt


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_the_process_interrupts_it(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # under nohup, SIGHUP is ignored

    def told() -> None:
        with as_interrupt():
            os.kill(os.getpid(), number)
            signal.pause()

    try:
        with pytest.raises(KeyboardInterrupt):
            told()
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with as_interrupt():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
