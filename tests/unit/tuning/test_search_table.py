"""What people see of a search that goes on."""

import io
import logging
import re
import sys

import pytest

from sparkdl.settings import Tune
from sparkdl.tuning.search_table import SearchTable
from sparkdl.tuning.trial_records import TrialRecord

SETTINGS = Tune(space={"train.learning_rate": [0.1, 0.2]}, trials=10)


def record(number: int, accuracy: float, state: str = "finished", reason: str = "") -> TrialRecord:
    history = [{"validation_accuracy": accuracy}]
    values = {"train.learning_rate": 0.123456}
    return TrialRecord(number, values, state=state, history=history, seconds=4.0, reason=reason)  # type: ignore[arg-type]


def test_the_table_has_the_best_trial_those_that_run_and_the_seconds_that_are_left() -> None:
    records = [record(0, 0.5), record(1, 0.8), record(2, 0.7, "stopped"), record(3, 0.6, "running")]
    text = SearchTable(SETTINGS, ["validation_accuracy"], 9).text(records, [records[3]])
    lines = text.splitlines()
    assert lines[0] == "4 of 10 trials: 2 finished, 1 running, 1 stopped; about 26 s left"
    assert lines[1].index("values") == lines[2].index("learning_rate")
    assert [line.split() for line in lines[2:]] == [
        ["1", "best", "1/9", "0.8", "learning_rate=0.1235"],
        ["3", "running", "1/9", "0.6", "learning_rate=0.1235"],
    ]


class Terminal(io.StringIO):
    """What a terminal shows: of its escapes, those that lead up and erase what is below."""

    def isatty(self) -> bool:
        return True

    def shown(self) -> list[str]:
        lines: list[str] = []
        for up, line in re.findall(r"(?:\x1b\[(\d+)F\x1b\[J)?([^\n\x1b]*\n?)", self.getvalue()):
            lines = lines[: len(lines) - int(up)] if up else lines
            lines += [line.rstrip("\n")] if line else []
        return lines


def test_a_terminal_has_one_table_below_what_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("LINES", "4")
    handler = logging.StreamHandler(terminal)
    logging.getLogger().addHandler(handler)
    try:
        table = SearchTable(SETTINGS, ["validation_accuracy"], 9)
        running = [record(number, 0.5, "running") for number in range(9)]
        table.update(running, running)
        logging.getLogger("sparkdl").warning("trial 3 failed")
        table.update(running, running, last=True)
        table.update(running[:4], running[:4], last=True)
        table.close()
        logging.getLogger("sparkdl").warning("it was the end")
    finally:
        logging.getLogger().removeHandler(handler)
    lines = terminal.shown()
    assert [lines[0], lines[-1]] == ["trial 3 failed", "it was the end"] and len(lines) == 2 + 3
    assert lines[1].startswith("4 of 10 trials: 4 running") and lines[2].split()[0] == "trial"


def test_a_log_gets_a_line_for_each_trial_that_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    failed = record(1, 0.1, "failed", reason="Traceback\nValueError: no such layer")
    SearchTable(SETTINGS, ["validation_accuracy"], 9).over(failed, [record(0, 0.5), failed])
    assert caplog.messages == ["2 of 10 trials: 1  failed  1/9  -  ValueError: no such layer"]
