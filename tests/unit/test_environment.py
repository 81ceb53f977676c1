"""Variables of the process that are set for a while."""

import os

import pytest

from sparkdl.environment import SharedEnvironment


def test_users_that_overlap_have_it_until_the_last_one_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKDL_TEST_OLD", "theirs")
    monkeypatch.delenv("SPARKDL_TEST_NEW", raising=False)
    shared = SharedEnvironment({"SPARKDL_TEST_OLD": "ours", "SPARKDL_TEST_NEW": "ours"})
    for _ in range(2):
        shared.__enter__()
        shared.__enter__()
        shared.__exit__()
        assert (os.environ["SPARKDL_TEST_OLD"], os.environ["SPARKDL_TEST_NEW"]) == ("ours", "ours")
        shared.__exit__()
        assert os.environ["SPARKDL_TEST_OLD"] == "theirs"
        assert "SPARKDL_TEST_NEW" not in os.environ
