from __future__ import annotations

import threading

import pytest

from sparsefleet.errors import DeadlineError
from sparsefleet.server.table_save import BackgroundJob

WAIT_S = 20.0


def test_a_job_gives_its_result_and_cleans_up_when_it_is_ended() -> None:
    cleaned = threading.Event()
    job = BackgroundJob("work", lambda _: {"rows": 3}, lease_s=WAIT_S, clean_up=cleaned.set)
    assert job.wait(WAIT_S) == {"rows": 3}
    assert not cleaned.is_set()
    job.end(WAIT_S)
    assert cleaned.is_set()


def test_what_the_work_raises_is_raised_where_somebody_waits() -> None:
    def fail(job: BackgroundJob) -> dict[str, int]:
        raise OSError("no space left")

    job = BackgroundJob("work", fail, lease_s=WAIT_S, clean_up=lambda: None)
    with pytest.raises(OSError, match="no space left"):
        job.wait(WAIT_S)
    job.end(WAIT_S)


def test_work_that_nobody_asks_after_is_given_up() -> None:
    cleaned, seen = threading.Event(), []

    def work(job: BackgroundJob) -> dict[str, int]:
        try:
            while True:
                job.check()
        except DeadlineError as error:
            seen.append(str(error))
            raise

    BackgroundJob("the save", work, lease_s=0.05, clean_up=cleaned.set)
    assert cleaned.wait(WAIT_S)
    assert "the save was canceled: its client has not polled it for 0.05 s" in seen[0]


def test_work_that_is_called_off_ends() -> None:
    begun = threading.Event()

    def work(job: BackgroundJob) -> dict[str, int]:
        begun.set()
        while True:
            job.check()

    job = BackgroundJob("the save", work, lease_s=WAIT_S, clean_up=lambda: None)
    assert begun.wait(WAIT_S)
    assert job.wait(0.01) is None
    job.end(WAIT_S)
    with pytest.raises(DeadlineError, match="canceled"):
        job.wait(0.01)
