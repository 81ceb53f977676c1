"""Jobs that are submitted twice, and run once."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sparkdl.errors import ConfigError
from sparkdl.once import run_once
from sparkdl.training.checkpoints import owner


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "RENEW_SECONDS", 0.1)
    monkeypatch.setattr(owner, "DEAD_SECONDS", 1.0)
    monkeypatch.setattr(owner, "WATCH_SECONDS", 0.05)


def never() -> dict[str, str]:
    raise AssertionError("the work was done twice")


def test_of_jobs_that_are_submitted_at_once_one_runs_and_all_have_its_result(tmp_path: Path) -> None:
    begun, done = threading.Semaphore(0), threading.Event()

    def work() -> dict[str, str]:
        begun.release()
        done.wait(30)
        return {"model": "models:/animals/1"}

    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(run_once, work, key="monday", job="a", folder=str(tmp_path)) for _ in range(3)]
        begun.acquire(timeout=30)
        with pytest.raises(TimeoutError):
            futures[0].exception(timeout=0.5) or futures[1].exception(timeout=0.5)
        done.set()
        assert [future.result(30) for future in futures] == [{"model": "models:/animals/1"}] * 3
    assert not begun.acquire(blocking=False)


def test_a_job_that_has_failed_runs_again_when_it_is_submitted_again(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        run_once(lambda: {"never": str(1 / 0)}, key="monday", job="a", folder=str(tmp_path))
    assert run_once(lambda: {"rows": "3"}, key="monday", job="a", folder=str(tmp_path)) == {"rows": "3"}
    assert run_once(never, key="monday", job="a", folder=str(tmp_path)) == {"rows": "3"}


def test_the_job_of_a_driver_that_was_killed_runs_again(tmp_path: Path) -> None:
    run_once(lambda: {}, key="monday", job="a", folder=str(tmp_path))
    (place,) = tmp_path.iterdir()
    (place / "result.json").unlink()
    (file,) = place.iterdir()
    file.write_text(json.dumps({"host": "elsewhere", "process": 1, "changed": ""}))  # it was not released
    assert run_once(lambda: {"rows": "3"}, key="monday", job="a", folder=str(tmp_path)) == {"rows": "3"}


def test_a_key_is_for_one_job_and_a_job_may_run_again_with_another_key(tmp_path: Path) -> None:
    run_once(lambda: {"rows": "3"}, key="monday", job="a", folder=str(tmp_path))
    with pytest.raises(ConfigError, match=r"key 'monday' was used in .* for a job with other settings"):
        run_once(never, key="monday", job="b", folder=str(tmp_path))
    assert run_once(lambda: {"rows": "4"}, key="tuesday", job="b", folder=str(tmp_path)) == {"rows": "4"}
