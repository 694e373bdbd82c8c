from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from sparsefleet.engine.notice import HandedOver, Notice

WENT_ON = 7


def notify() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def ending_of(body: Callable[[], None]) -> int:
    """Return how a process ends that calls `body`: its exit code, or minus the signal."""
    pid = os.fork()
    if pid == 0:
        code = WENT_ON
        try:
            body()
        except SystemExit as ended:
            code = int(str(ended.code))
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARSEFLEET_NOTICE_FILE", raising=False)


def test_notice_after_the_last_look_is_heeded() -> None:
    def body() -> None:
        with Notice(is_heeded=True, may_abort=True) as notice:
            assert not notice.is_given
            notify()

    assert ending_of(body) == os.EX_TEMPFAIL


def test_signal_outside_of_training_ends_the_process_as_by_default() -> None:
    def body() -> None:
        with Notice(is_heeded=True, may_abort=True) as notice:
            notice.heed()
        notify()

    assert ending_of(body) == -signal.SIGTERM


def test_notice_is_heeded_when_nothing_is_left_to_train() -> None:
    def body() -> None:
        with Notice(is_heeded=True, may_abort=True) as notice:
            notice.heed()
            notify()
            notice.heed()

    assert ending_of(body) == os.EX_TEMPFAIL


def test_further_signals_do_not_change_the_exit_code_of_a_worker_that_has_handed_over() -> None:
    def body() -> None:
        try:
            with Notice(is_heeded=True, may_abort=True):
                notify()
                raise HandedOver
        finally:
            notify()

    assert ending_of(body) == os.EX_TEMPFAIL


def test_error_of_the_script_is_raised_though_notice_was_given() -> None:
    def body() -> None:
        with Notice(is_heeded=True, may_abort=True):
            notify()
            raise SystemExit(3)

    assert ending_of(body) == 3


def test_signal_of_a_launcher_without_its_file_is_no_notice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "notice"
    monkeypatch.setenv("SPARSEFLEET_NOTICE_FILE", str(file))

    def body() -> None:
        with Notice(is_heeded=True, may_abort=True) as notice:
            notify()
            notice.heed()

    assert ending_of(body) == -signal.SIGTERM
    file.touch()
    assert ending_of(body) == os.EX_TEMPFAIL


def test_handler_of_the_script_stays() -> None:
    def body() -> None:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(9))
        with Notice(is_heeded=True, may_abort=True):
            pass
        notify()

    assert ending_of(body) == 9
