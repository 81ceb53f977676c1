"""What is said of where the time of a run went."""

import json

import pytest

from sparkdl.training.reports.stopwatch import RankTimes
from sparkdl.training.reports.verdict import Timeline, shares, verdict


def times(**seconds: float) -> RankTimes:
    parts = dict.fromkeys(("loading", "computing", "exchanging", "waiting", "saving"), 0.0) | seconds
    return RankTimes(**parts, steps=100, bytes_sent=2e8)


def test_ranks_that_compute_are_bound_by_it() -> None:
    assert verdict([[times(computing=9.5, exchanging=0.5)] * 2]).startswith(
        "bound by computing: ranks computed for 95%"
    )


def test_who_waits_for_whom_and_why_is_named() -> None:
    slow, fast = times(loading=3, computing=5), times(loading=0.5, computing=5, waiting=2.5)
    said = verdict([[slow, fast], [slow, fast]])
    assert "rank 1 waited 31% of its time for rank 0, whose loading took 30.0 ms a step, 25.0 ms more than" in said
    assert "prepare" in said


@pytest.mark.parametrize(
    ("kind", "cure"), [("loading", "storage"), ("exchanging", "local_sgd"), ("saving", "checkpoint_minutes")]
)
def test_what_takes_most_is_named_with_its_cure(kind: str, cure: str) -> None:
    said = verdict([[times(computing=6, **{kind: 4})] * 3])
    assert said.startswith(f"bound by {kind}: 40% of the ranks' time, 40.0 ms a step")
    assert cure in said
    assert ("2.0 MB a step" in said) == (kind == "exchanging")


def test_epochs_before_the_number_of_ranks_changed_do_not_count() -> None:
    assert "bound by computing" in verdict([[times(computing=1, loading=9)], [times(computing=1)] * 2])
    assert "nothing was trained" in verdict([])


def test_figures_of_an_epoch() -> None:
    figures = shares([times(computing=6, exchanging=1, waiting=1), times(computing=7, exchanging=1)])
    assert figures["communication_share"] == pytest.approx(3 / 16)
    assert figures["scaling_efficiency"] == pytest.approx(13 / 16)
    assert figures["bytes_per_step"] == 2e6
    assert figures["rank_0/waiting_seconds"] == 1 and figures["rank_1/computing_seconds"] == 7


def test_a_trace_has_a_row_for_each_rank() -> None:
    timeline = Timeline()
    timeline.add(1, [{"name": "load", "ts": 5.0, "dur": 2.0}])
    timeline.add(0, [{"name": "step 1", "ts": 1.0, "dur": 9.0}])
    events = json.loads(timeline.to_json())["traceEvents"]
    assert [event["args"]["name"] for event in events if event["ph"] == "M"] == ["rank 0", "rank 1"]
    assert {"name": "load", "ts": 5.0, "dur": 2.0, "ph": "X", "pid": 0, "tid": 1} in events
