"""Ranks that are processes on the driver, and what becomes of what they start."""

import logging
import os
import subprocess
import threading
import time

import psutil
import pytest

from sparkdl import errors
from sparkdl.cluster import Rank, local, run_local
from sparkdl.errors import RankError
from sparkdl.training.attempts import Budget

NOBODY_WAITS_SECONDS = 45.0  # less than the minute after which results are missed


@pytest.fixture(autouse=True)
def nobody_waits():
    started = time.monotonic()
    yield
    assert time.monotonic() - started < NOBODY_WAITS_SECONDS


class DataError(Exception):
    """A user's own, with the name of one of ours."""


def test_a_user_s_exception_named_like_one_of_ours_keeps_its_traceback() -> None:
    def fail(rank: Rank) -> None:
        raise DataError("no such tenant")

    with pytest.raises(RankError) as caught:
        run_local(fail, 1)
    with pytest.raises(RankError, match=r"(?s)^Traceback.*in fail\n.*DataError: no such tenant"):
        Budget(max_restarts=0, first_pause=0.0).spend(caught.value, 0)


def test_an_exception_of_ours_is_told_as_itself() -> None:
    def fail(rank: Rank) -> None:
        raise errors.DataError("column 'x' is null")

    with pytest.raises(RankError) as caught:
        run_local(fail, 1)
    with pytest.raises(errors.DataError, match=r"^column 'x' is null$"):
        Budget(max_restarts=9, first_pause=0.0).spend(caught.value, 0)


def test_a_program_that_outlives_its_rank_does_not_hold_its_result() -> None:
    def start(rank: Rank) -> int:
        return subprocess.Popen(["sleep", "60"], close_fds=False).pid

    (program,) = run_local(start, 1)
    psutil.Process(program).kill()  # a rank that ends well leaves running what it has started


def test_a_forked_process_that_outlives_its_rank_does_not_hold_its_result() -> None:
    def fork(rank: Rank) -> int:
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
        return child

    (child,) = run_local(fork, 1)
    psutil.Process(child).kill()


def test_a_thread_that_does_not_end_costs_no_result(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "EXIT_SECONDS", 3.0)

    def work(rank: Rank) -> str:
        threading.Thread(target=time.sleep, args=(60,)).start()
        return "done"

    assert run_local(work, 2) == ["done", "done"]
    assert "rank 1 returned its result, and then its process was killed" in caplog.text


def test_a_process_that_ends_badly_after_its_result_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    def work(rank: Rank) -> str:
        import atexit

        atexit.register(os._exit, 3)
        return "done"

    with caplog.at_level(logging.WARNING, "sparkdl"):
        assert run_local(work, 1) == ["done"]
    assert "rank 0 returned its result, and then its process ended with code 3" in caplog.text


def test_a_cancelled_rank_takes_along_what_it_has_started() -> None:
    started: list[int] = []

    def work(rank: Rank) -> None:
        if rank.rank == 1:
            time.sleep(1)
            raise ValueError("no data")
        program = subprocess.Popen(["sleep", "60"])
        rank.send("started", process=program.pid)
        program.wait()

    with pytest.raises(RankError, match="no data"):
        run_local(work, 2, on_message=lambda _, message: started.append(message["process"]))
    (program,) = started
    psutil.wait_procs([psutil.Process(program)] if psutil.pid_exists(program) else [], timeout=5)
    assert not psutil.pid_exists(program) or psutil.Process(program).status() == psutil.STATUS_ZOMBIE


def test_processes_that_end_before_they_hear_what_to_do_are_named_with_their_codes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local, "main", os._exit)
    large = bytes(1 << 20)  # more than a pipe holds
    with pytest.raises(RankError, match=r"rank 0 ended with code \d+, the process of rank 1 ended with code \d+"):
        run_local(lambda rank: len(large), 2)


def test_text_that_cannot_be_encoded_does_not_end_a_run(capfd: pytest.CaptureFixture[str]) -> None:
    def name(rank: Rank) -> str:
        rank.log("file \udcff")
        print("printed \udcff")
        return "done"

    assert run_local(name, 1) == ["done"]
    assert capfd.readouterr().out == "file \\udcff\n[rank 0] printed \\udcff\n"
