"""What is shown of settings and errors has no passwords in it, wherever it ends up."""

import logging
from collections.abc import Callable

import pytest

from sparkdl import main
from sparkdl.errors import ConfigError, DatasetError, RankError, SparkdlError
from sparkdl.settings import Cluster, Prepare, Settings, Source, Tracking, Train

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
    with pytest.raises(ConfigError) as caught:
        mistake()
    assert SECRET not in str(caught.value)


def test_no_error_shows_the_credentials_in_an_address() -> None:
    cause = f"OSError: cannot open {ADDRESS}?sig={SECRET}"
    errors = [SparkdlError(cause), DatasetError(cause), RankError(cause, reason=cause)]
    for error in errors:
        assert SECRET not in f"{error} {error!r} {error.args} {vars(error)}"
        assert "s3://***@bucket/data" in str(error)


@pytest.mark.parametrize(
    "address",
    [
        "https://bucket/data?X-Amz-Date=1&X-Amz-Signature={}",
        "https://bucket/data?X-Goog-Signature={}&X-Goog-Date=1",
        "jdbc:sqlserver://host;user=me;pwd={}",
        "jdbc:postgresql://host/db?user=me&passwd={}",
        "https://host/?userpassword={}&sharedaccesskey={}",
        "jdbc:oracle:thin:me/{}@host:1521:orcl",
        "jdbc:oracle:thin:me/{}/with@signs@//host:1521/orcl",
    ],
)
def test_an_address_shows_no_secret_however_it_holds_it(address: str) -> None:
    address = address.replace("{}", SECRET)
    error = SparkdlError(f"cannot read {address}: it is gone")
    assert SECRET not in str(error) and "***" in str(error)
    assert str(error).startswith(f"cannot read {address[:12]}") and str(error).endswith("it is gone")


@pytest.mark.parametrize(
    "address",
    ["models:/flowers@candidate", "s3://bucket/data@v2?part=1", "jdbc:postgresql://host/db?sort=key", "rows/of@day"],
)
def test_an_address_without_a_secret_is_shown_as_it_is(address: str) -> None:
    assert str(SparkdlError(address)) == address


@pytest.mark.parametrize(
    "name",
    ["secretkey", "accesskey", "privatekey", "connection_string", "connectionString", "fs.azure.account.key.mine.blob"],
)
def test_an_option_that_tells_of_a_secret_is_masked(name: str) -> None:
    assert SECRET not in repr(Source(format="csv", path="/rows", options={name: SECRET}))


@pytest.mark.parametrize("name", ["key_dim", "token_dim", "keyDim", "num_tokens", "monkey", "tokenizer"])
def test_a_number_of_a_network_is_not_taken_for_a_secret(name: str) -> None:
    assert repr({name: 64}) in repr(Train(model_options={name: 64}))


def test_the_command_shows_and_logs_no_secrets(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(SystemExit):
        main(["verify", f"memory://me:{SECRET}@nowhere/data"])
    printed = capsys.readouterr()
    assert "there is no dataset in memory://***@nowhere/data" in printed.err
    assert SECRET not in printed.out + printed.err + caplog.text
