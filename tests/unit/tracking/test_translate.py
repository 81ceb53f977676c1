import pytest

from sparkdl.masking import masked, without_credentials
from sparkdl.tracking.translate import flatten


def test_a_tree_of_settings_becomes_flat_names() -> None:
    tree = {"train": {"epochs": 3, "options": {"momentum": 0.9}, "milestones": [0.5, 0.75], "loss": None}, "empty": {}}
    assert flatten(tree) == {
        "train.epochs": "3",
        "train.options.momentum": "0.9",
        "train.milestones": "[0.5, 0.75]",
        "train.loss": "null",
        "empty": "{}",
    }


def test_a_name_that_mlflow_would_refuse_is_changed() -> None:
    assert flatten({"options": {"a(b)=c": 1, "spark.x-y_z": 2}}) == {"options.a_b__c": "1", "options.spark.x-y_z": "2"}


def test_a_long_value_is_cut_where_it_can_be_seen() -> None:
    (value,) = flatten({"names": "x" * 2000}).values()
    assert len(value) == 500
    assert value.endswith("x…")


def test_a_callable_is_written_as_its_import_path() -> None:
    assert flatten({"model": without_credentials}) == {"model": "sparkdl.masking:without_credentials"}


def test_secrets_are_masked_by_name_wherever_they_are() -> None:
    tree = {
        "password": "x",
        "options": {"fs.s3a.secret.key": "x", "apiToken": "x", "DB_PASSWORD": "x", "num_tokens": 5, "monkey": "ok"},
        "parts": [{"credentials": {"a": "x"}, "access_key": ["x"]}],
    }
    assert masked(tree) == {
        "password": "***",
        "options": {
            "fs.s3a.secret.key": "***",
            "apiToken": "***",
            "DB_PASSWORD": "***",
            "num_tokens": 5,
            "monkey": "ok",
        },
        "parts": [{"credentials": "***", "access_key": "***"}],
    }


def test_credentials_in_addresses_are_masked() -> None:
    assert without_credentials("postgresql://me:word@db/x") == "postgresql://***@db/x"
    assert without_credentials("http://me:p@ss@host, ftp://host/a@b") == "http://***@host, ftp://host/a@b"
    assert without_credentials("abfs://c.net/x?sv=1&sig=abc&y=2") == "abfs://c.net/x?sv=1&sig=***&y=2"
    assert without_credentials("somebody@example.org, http://host/a@b") == "somebody@example.org, http://host/a@b"
    assert without_credentials("postgresql://me:wo/rd@db/x") == "postgresql://***@db/x"
    assert without_credentials("mysql+pymysql://me:/w@o/rd@db:3306/x") == "mysql+pymysql://***@db:3306/x"
    assert flatten({"path": "s3://key:word@bucket/x"}) == {"path": "s3://***@bucket/x"}


@pytest.mark.parametrize(
    "address",
    [
        "http://host:5000/a@b",
        "s3://bucket/x@y",
        "s3://bucket/x:y@z",
        "http://[::1]:5000/a@b",
        "http://host:5000,models:/name@alias",
        '{"uri":"http://host:5000/","mail":"a@b"}',
    ],
)
def test_an_address_without_credentials_stays_as_it_is(address: str) -> None:
    assert without_credentials(address) == address
