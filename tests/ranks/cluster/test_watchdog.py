"""Ranks that are quiet, as the driver sees them: real processes, short timeouts."""

import os
import signal
import threading
import time
import weakref
from collections.abc import Callable

import psutil
import pytest

from sparkdl.cluster import Rank, Timeouts, run_local
from sparkdl.cluster.watchdog import Failure, Watchdog
from sparkdl.errors import ConfigError, RankError


def misbehave(how: Callable[[Rank], None], **timeouts: float) -> RankError:
    """Run two ranks of which the second one does ``how`` at step 7; return the error."""
    processes: list[int] = []

    def work(rank: Rank) -> None:
        rank.send("here", process=os.getpid())
        for step in range(1_000):
            rank.beat(step)
            if step == 7 and rank.rank == 1:
                time.sleep(1.5)  # so that a heartbeat says so
                how(rank)
            time.sleep(0.05 if step < 7 else 0.2)

    with pytest.raises(RankError) as caught:
        run_local(work, 2, on_message=lambda _, body: processes.append(body["process"]), timeouts=Timeouts(**timeouts))
    assert len(processes) == 2
    assert not any(psutil.pid_exists(process) for process in processes)
    return caught.value


def test_a_stopped_rank_is_silent_and_named_with_host_and_step() -> None:
    error = misbehave(lambda rank: os.kill(os.getpid(), signal.SIGSTOP), silence_timeout=4)
    assert (error.rank, error.exception_type, error.step, error.host) == (1, "silent", 7, "localhost")
    assert "no heartbeat for 4 s" in str(error)
    assert "rank 1 of 2 failed at step 7 on host localhost" in str(error)


def test_a_stuck_rank_is_stalled_and_named_with_its_stack() -> None:
    def loop_forever(rank: Rank) -> None:
        while True:
            time.sleep(0.01)

    error = misbehave(loop_forever, stall_timeout=3)
    assert (error.rank, error.exception_type, error.step) == (1, "stalled", 7)
    assert str(error).startswith("Stack (most recent call last):\n")
    assert "in loop_forever\n" in str(error)
    assert "run_rank" not in str(error)


def test_a_rank_that_leaves_without_a_word_is_named_with_its_step() -> None:
    error = misbehave(lambda rank: os._exit(3))
    assert (error.rank, error.exception_type, error.step) == (1, "process death", 7)


def test_the_step_of_an_exception_is_known() -> None:
    def fail(rank: Rank) -> None:
        rank.beat(7)
        raise ValueError("no")

    with pytest.raises(RankError, match="rank 0 of 1 failed at step 7") as caught:
        run_local(fail, 1)
    assert (caught.value.rank, caught.value.exception_type, caught.value.step) == (0, "ValueError", 7)


def test_what_a_function_held_does_not_outlive_it_though_heartbeats_look_at_it() -> None:
    def work(rank: Rank) -> bool:
        found = []

        def step() -> None:
            held = threading.Event()
            found.append(weakref.ref(held))
            time.sleep(2.5)  # a heartbeat is sent every second

        step()
        return found[0]() is None

    assert run_local(work, 1) == [True]


def test_ranks_that_are_asked_to_stop_return_their_results() -> None:
    def work(rank: Rank) -> str:
        while not rank.stop_requested:
            time.sleep(0.02)
        return "in order"

    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    assert run_local(work, 2, stop=stop) == ["in order", "in order"]


def test_an_interrupted_run_comes_to_an_end_in_order_and_then_raises() -> None:
    farewells = []

    def work(rank: Rank) -> None:
        rank.send("ready")
        while not rank.stop_requested:
            time.sleep(0.02)
        rank.send("saved")

    def interrupt(rank: int, body: dict) -> None:
        if body["kind"] == "saved":
            farewells.append(rank)
        elif rank == 0:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_local(work, 2, on_message=interrupt)
    assert sorted(farewells) == [0, 1]


def test_a_second_interrupt_does_not_wait() -> None:
    def ignore(rank: Rank) -> None:
        for _ in range(600):
            rank.send("still here")
            time.sleep(0.1)

    def interrupt(rank: int, body: dict) -> None:
        raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_local(ignore, 1, on_message=interrupt)
    assert time.monotonic() - started < 8


class Time:
    """A watchdog over ranks that say what they are told to, second by second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, timeouts: Timeouts, num_ranks: int = 2) -> None:
        self.now = 0.0
        monkeypatch.setattr("sparkdl.cluster.watchdog.time.monotonic", lambda: self.now)
        self.watchdog = Watchdog(num_ranks, timeouts)
        self.beats = [0] * num_ranks
        self.steps: list[int | None] = [None] * num_ranks

    def pass_by(self, seconds: int, *, alive: dict[int, dict] | None = None, queued: bool = False) -> Failure | None:
        """Seconds in which ranks say what is given; a rank with a ``step`` makes progress."""
        for _ in range(seconds):
            self.now += 1.0
            for rank, body in (alive or {}).items():
                self.beats[rank] += "step" in body
                self.steps[rank] = body.get("step", self.steps[rank])
                body = {"waiting": False, **body, "step": self.steps[rank], "beats": self.beats[rank]}
                self.watchdog.hear(rank, "heartbeat", body)
            if failure := self.watchdog.verdict(queued=queued):
                return failure
        return None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch, Timeouts(start_timeout=60, silence_timeout=20, stall_timeout=30))


def hello(clock: Time, *ranks: int) -> None:
    for rank in ranks:
        clock.watchdog.hear(rank, "hello", {})


def test_a_rank_that_never_says_hello_has_not_started(clock: Time) -> None:
    hello(clock, 0)
    failure = clock.pass_by(70, alive={0: {"step": 1}})
    assert failure and (failure.rank, failure.type) == (1, "not started")
    assert 60 < clock.now < 63


def test_ranks_that_are_queued_are_not_late(clock: Time) -> None:
    assert clock.pass_by(3_600, queued=True) is None
    failure = clock.pass_by(70)
    assert failure and failure.type == "not started"
    assert 3_660 < clock.now < 3_663


def test_the_rank_to_blame_is_not_one_that_waits_for_it(clock: Time) -> None:
    hello(clock, 0, 1)
    assert clock.pass_by(5, alive={0: {"step": 4}, 1: {"step": 4}}) is None
    failure = clock.pass_by(40, alive={0: {"waiting": True}, 1: {"stack": "  File data.py\n"}})
    assert failure and (failure.rank, failure.type) == (1, "stalled")
    assert "File data.py" in failure.text


def test_a_rank_that_waits_for_one_that_gets_on_is_not_stalled(clock: Time) -> None:
    hello(clock, 0, 1)
    clock.pass_by(5, alive={0: {"step": 4}, 1: {"step": 4}})
    assert clock.pass_by(200, alive={0: {"waiting": True}, 1: {"step": 5}}) is None


def test_of_ranks_that_all_wait_the_one_that_is_behind_is_named(clock: Time) -> None:
    hello(clock, 0, 1)
    clock.pass_by(5, alive={0: {"step": 4}, 1: {"step": 3}})
    failure = clock.pass_by(40, alive={0: {"waiting": True}, 1: {"waiting": True}})
    assert failure and (failure.rank, failure.type, failure.step) == (1, "stalled", 3)


def test_before_its_first_step_a_rank_may_import_for_as_long_as_a_start_may_take(clock: Time) -> None:
    hello(clock, 0, 1)
    assert clock.pass_by(59, alive={0: {}, 1: {}}) is None
    failure = clock.pass_by(5, alive={0: {}, 1: {}})
    assert failure and failure.type == "stalled"


def test_a_silent_rank_is_named_although_the_other_one_stalls_first(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Time(monkeypatch, Timeouts(silence_timeout=20, stall_timeout=10))
    hello(clock, 0, 1)
    clock.pass_by(5, alive={0: {"step": 4}, 1: {"step": 4}})
    failure = clock.pass_by(30, alive={0: {"waiting": True}})
    assert failure and (failure.rank, failure.type) == (1, "silent")


def test_a_rank_whose_executor_is_stopped_is_silent(clock: Time) -> None:
    hello(clock, 0, 1)
    failure = clock.pass_by(30, alive={0: {"step": 1}, 1: {"step": 1, "executor_stopped": True}})
    assert failure and (failure.rank, failure.type) == (1, "silent")
    assert "executor has been stopped" in failure.text


def test_a_rank_that_said_something_else_before_it_vanished_is_not_blamed_on_its_executor(clock: Time) -> None:
    hello(clock, 0, 1)
    clock.pass_by(5, alive={0: {"step": 4}, 1: {"step": 4}})
    clock.pass_by(1, alive={0: {"step": 4}})
    clock.watchdog.hear(1, "message", {"loss": 0.5})
    failure = clock.pass_by(30, alive={0: {"step": 5}})
    assert failure and (failure.rank, failure.type) == (1, "silent")
    assert "no heartbeat for" in failure.text


def test_ranks_are_not_blamed_for_a_driver_that_was_stopped_itself(clock: Time) -> None:
    hello(clock, 0, 1)
    clock.pass_by(5, alive={0: {"step": 4}, 1: {"step": 4}})
    clock.now += 3_600
    assert clock.watchdog.verdict() is None


def test_results_that_do_not_come_home_are_missed(clock: Time) -> None:
    hello(clock, 0, 1)
    for rank in range(2):
        clock.watchdog.hear(rank, "bye", {})
    failure = clock.pass_by(70)
    assert failure and "results did not arrive within 60 s" in failure.text


@pytest.mark.parametrize("name", ["start_timeout", "silence_timeout", "stall_timeout"])
def test_timeouts_that_cannot_be_kept_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Timeouts(**{name: 0})
    with pytest.raises(ConfigError, match="at least 4 s"):
        Timeouts(silence_timeout=1)
