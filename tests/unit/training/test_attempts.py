"""When a failed run is tried again, and when it is not."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparkdl.errors import CheckpointError, RankError, TrainingError
from sparkdl.settings import Cluster
from sparkdl.training import attempts
from sparkdl.training.attempts import Budget, run_attempts


def killed(step: int = 7) -> RankError:
    return RankError("its process ended", rank=1, exception_type="process death", reason="its process ended", step=step)


def raised(reason: str, step: int = 7) -> RankError:
    return RankError(f"Traceback …\nValueError: {reason}", exception_type="ValueError", reason=reason, step=step)


def test_the_pause_doubles_up_to_a_minute() -> None:
    budget = Budget(max_restarts=9, first_pause=1.0)
    assert [budget.spend(killed(), 0) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_run_that_fails_at_the_same_step_again_and_again_stops_with_the_first_cause_on_top() -> None:
    budget = Budget(max_restarts=2, first_pause=0.0)
    budget.spend(raised("the first cause"), 40)
    budget.spend(killed(), 40)
    with pytest.raises(
        RankError, match=r"(?s)^Traceback.*the first cause.*2 more attempts from step 40 failed too"
    ) as told:
        budget.spend(killed(), 40)
    assert told.value.exception_type == "ValueError"


def test_a_new_checkpoint_refills_the_budget() -> None:
    budget = Budget(max_restarts=1, first_pause=1.0)
    for step in range(0, 100, 10):
        assert budget.spend(killed(step + 5), step) == 1.0


def test_the_same_exception_at_the_same_step_without_progress_is_not_tried_a_third_time() -> None:
    budget = Budget(max_restarts=9, first_pause=0.0)
    budget.spend(raised("a mistake"), 40)
    with pytest.raises(RankError, match="failed again in the same way"):
        budget.spend(raised("a mistake"), 40)


def test_another_exception_is_tried_again() -> None:
    budget = Budget(max_restarts=9, first_pause=0.0)
    budget.spend(raised("one mistake"), 40)
    budget.spend(raised("another mistake"), 40)
    budget.spend(raised("one mistake", step=8), 40)


def test_what_no_attempt_would_change_is_not_tried_again() -> None:
    error = RankError("…", exception_type="sparkdl.errors.TrainingError", reason="the loss is nan at step 5")
    with pytest.raises(TrainingError, match=r"^the loss is nan at step 5"):
        Budget(max_restarts=9, first_pause=0.0).spend(error, 0)


def test_without_restarts_the_error_is_the_error() -> None:
    error = killed()
    with pytest.raises(RankError) as told:
        Budget(max_restarts=0, first_pause=0.0).spend(error, 0)
    assert told.value is error


@pytest.mark.parametrize("cause", ["a worker was killed", "the loss is nan at step 5"])
def test_storage_that_fails_after_a_rank_does_not_hide_what_the_rank_died_of(
    cause: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    def fail(*_: object) -> None:
        raise RankError(cause, exception_type="sparkdl.errors.TrainingError" if "loss" in cause else None, reason=cause)

    def gone(folder: str) -> str:
        raise CheckpointError("cannot list the checkpoints")

    monkeypatch.setattr(attempts, "_attempt", fail)
    monkeypatch.setattr(attempts, "latest", gone)
    job = attempts.Job(cast(Any, None), cast(Any, None), str(tmp_path), cast(Any, None), 1)
    spark = cast(Any, SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False))))
    with pytest.raises((RankError, TrainingError)) as told:
        run_attempts(job, Cluster(), spark, on_message=lambda *_: None, on_checkpoint=lambda _: None)
    assert str(told.value).startswith(cause)
    if isinstance(told.value, RankError):
        assert "there was no other attempt: cannot list the checkpoints" in str(told.value)
