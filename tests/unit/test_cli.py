"""The command line, where it needs no Spark."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from sparkdl import Tracking, main
from sparkdl.errors import (
    CheckpointError,
    DataError,
    NotEnoughSlotsError,
    RankError,
    RunCancelledError,
    TrackingError,
)
from sparkdl.settings import Settings
from sparkdl.tracking import courier, start_run


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ending:
        main(arguments)
    printed = capsys.readouterr()
    return int(ending.value.code or 0), printed.out, printed.err


def test_the_help_lists_the_numbers_that_it_ends_with_in_lines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "2    arguments, settings, data, or your code" in lines
    assert "130  the job was interrupted, or cancelled in Spark" in lines


def test_every_command_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(["--help"], capsys)
    assert code == 0
    for command in (
        "prepare",
        "train",
        "train-extreme",
        "plan-extreme",
        "plan-training",
        "score",
        "serve",
        "run",
        "sync",
        "fetch",
        "verify",
        "doctor",
        "keys",
    ):
        assert f"  {command} " in text


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DataError("nulls"), 2),
        (RankError("Traceback", exception_type="ValueError"), 2),
        (NotEnoughSlotsError("two"), 69),
        (RankError("it was killed", exception_type="process death"), 69),
        (RankError("they could not be started"), 69),
        (RankError("torn", exception_type="sparkdl.errors.DamagedCheckpointError"), 74),
        (CheckpointError("torn"), 74),
        (TrackingError("no answer"), 74),
        (OSError(errno.ETIMEDOUT, "no answer for 300 s", "s3://bucket/dataset/card.json"), 74),
        (RunCancelledError("it was cancelled"), 130),
    ],
)
def test_the_exit_code_says_whose_fault_it_is(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise error

    monkeypatch.setattr("sparkdl.cli.find_field", fail)
    found, text, problem = run(["keys", "train.epochs"], capsys)
    assert (found, text, len(problem.splitlines())) == (code, "", 1)
    assert f"  {code} " in run(["--help"], capsys)[1]


def test_what_fails_while_an_interrupt_ends_a_job_is_no_error_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise ConnectionError("Answer from Java side is empty")

    monkeypatch.setattr("sparkdl.cli.find_field", interrupted)
    code, text, problem = run(["keys", "train.epochs"], capsys)
    assert (code, text, problem) == (130, "", "sparkdl: interrupted; nothing is left running\n")


def test_a_plan_compares_with_one_vs_all(capsys: pytest.CaptureFixture[str]) -> None:
    odp = ["--classes", "105033", "--features", "421705", "--rows", "1084404", "--buckets", "32", "--linear"]
    code, text, _ = run(["plan-extreme", *odp, "--repetitions", "25"], capsys)
    assert code == 0
    assert "25 x 32" in text and "105,033" in text
    assert "337,364,800" in text and "44,293,046,298" in text


def test_a_plan_that_cannot_fit_says_which_number_to_change(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = ["--classes", "105033", "--features", "421705", "--rows", "1084404", "--buckets", "32", "--linear"]
    code, _, problem = run(["plan-extreme", *numbers, "--slot-memory", "550"], capsys)
    assert code == 2
    assert problem.startswith("sparkdl: ") and "change one of these" in problem


def test_the_keys_of_a_section_and_those_in_it_are_listed_with_defaults_and_choices(
    capsys: pytest.CaptureFixture[str],
) -> None:
    listed = {section: run(["keys", section], capsys)[:2] for section in Settings.model_fields}
    assert {code for code, _ in listed.values()} == {0}
    for section, line in {
        "extreme": "extreme.repetitions = 8  [whole number]",
        "train": "train.schedule = cosine  [constant | cosine | linear | step]",
        "prepare": "prepare.on_bad_rows = error  [error | skip]",
        "cluster": "cluster.num_ranks.max (required)  [whole number]",
        "tracking": "tracking.gate.better_than_current = true  [true | false]",
    }.items():
        assert f"\n{line}" in f"\n{listed[section][1]}"
    assert (
        "\nprepare.stages.0.columns (required)  [list of text]\n    The raw columns it applies" in listed["prepare"][1]
    )
    assert "\nprepare.split.fractions = {validation: 0.1, test: 0.1}  [mapping]" in listed["prepare"][1]


def test_the_kinds_of_a_section_are_listed_and_an_unknown_key_names_its_neighbour(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, text, _ = run(["keys", "train.strategy"], capsys)
    assert code == 0
    assert text.startswith("train.strategy = allreduce  [allreduce") and "\ntrain.strategy.kind = allreduce\n" in text
    code, _, problem = run(["keys", "train.stratgy"], capsys)
    assert code == 2
    assert "unknown key 'train.stratgy'; did you mean 'train.strategy'?" in problem


def test_a_missing_configuration_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, problem = run(["train", "nowhere.yaml"], capsys)
    assert code == 2
    assert "cannot read the configuration nowhere.yaml" in problem


def test_a_missing_script_or_folder_is_one_clear_line_before_anything_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for script, told in {
        tmp_path / "none.py": "sparkdl: cannot read the script",
        tmp_path: "sparkdl: cannot read the script",
    }.items():
        code, _, problem = run(["run", str(script), "--num-ranks", "2", "--", "--lr", "0.1"], capsys)
        assert (code, problem.count("\n")) == (2, 1) and problem.startswith(told)


def test_sync_fails_while_something_is_left_for_another_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courier, "PATIENCE", 1.0)
    spool = f"{tmp_path}/spool"
    with start_run(Tracking(uri="http://me:hunter2@127.0.0.1:9", spool=spool, offline=True), params={"a": 1}):
        pass
    (tmp_path / "pipeline.yaml").write_text(f"tracking: {{uri: 'sqlite:///{tmp_path}/m.db', spool: '{spool}'}}")
    code, text, problem = run(["sync", str(tmp_path / "pipeline.yaml")], capsys)
    assert code == 74
    assert "0 records delivered; 3 left; its store is http://***@127.0.0.1:9, not sqlite" in text
    assert "3 records are still waiting" in problem
    code, text, _ = run(["sync", str(tmp_path / "pipeline.yaml"), "tracking.uri=http://127.0.0.1:9"], capsys)
    assert code == 74
    assert "its store is" not in text and "Connection refused" in text  # nobody answers at the same address


def test_sync_says_when_nothing_is_waiting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pipeline.yaml").write_text(f"tracking: {{spool: {tmp_path}/spool}}")
    code, text, _ = run(["sync", str(tmp_path / "pipeline.yaml")], capsys)
    assert code == 0
    assert text == f"nothing is waiting in {tmp_path}/spool\n"


def test_python_m_runs_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "sparkdl", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("sparkdl, version ")
