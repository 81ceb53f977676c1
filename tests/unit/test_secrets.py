"""What is shown of settings and errors has no passwords in it, wherever it ends up."""

import logging
from collections.abc import Callable

import pytest
from pydantic import ValidationError

from sparkdl import main
from sparkdl.errors import DatasetError, RankError, SparkdlError
from sparkdl.settings import Cluster, Prepare, Settings, Source, Tracking

SECRET = "hunter2"
ADDRESS = f"s3://me:{SECRET}@bucket/data"


def test_settings_show_no_secrets() -> None:
    settings = Settings(
        prepare=Prepare(output=ADDRESS, source=Source(format="csv", path=ADDRESS, options={"password": SECRET})),
        cluster=Cluster(options={"spark.hadoop.fs.s3a.secret.key": SECRET, "spark.driver.memory": "1g"}),
        tracking=Tracking(uri=f"http://me:{SECRET}@host"),
    )
    for shown in (repr(settings), str(settings), f"{settings.cluster}"):
        assert SECRET not in shown
    assert "'spark.driver.memory': '1g'" in repr(settings)
    assert settings.cluster.options["spark.hadoop.fs.s3a.secret.key"] == SECRET


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: Cluster(options=f"password={SECRET}"),  # type: ignore[arg-type]
        lambda: Tracking(uri=[ADDRESS]),  # type: ignore[arg-type]
        lambda: Source(format="parquet", path=[SECRET], options={"token": [SECRET]}),  # type: ignore[arg-type,dict-item]
    ],
)
def test_a_setting_that_is_refused_in_python_is_not_shown(mistake: Callable[[], object]) -> None:
    with pytest.raises(ValidationError) as caught:
        mistake()
    assert SECRET not in str(caught.value)


def test_no_error_shows_the_credentials_in_an_address() -> None:
    cause = f"OSError: cannot open {ADDRESS}?sig={SECRET}"
    errors = [SparkdlError(cause), DatasetError(cause), RankError(cause, reason=cause)]
    for error in errors:
        assert SECRET not in f"{error} {error!r} {error.args} {vars(error)}"
        assert "s3://***@bucket/data" in str(error)


def test_the_command_shows_and_logs_no_secrets(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(SystemExit):
        main(["verify", f"memory://me:{SECRET}@nowhere/data"])
    printed = capsys.readouterr()
    assert "there is no dataset in memory://***@nowhere/data" in printed.err
    assert SECRET not in printed.out + printed.err + caplog.text
