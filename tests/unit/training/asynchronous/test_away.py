"""What a coordinator on the cluster brings home."""

import pickle

import pytest

from sparkdl.errors import RankError
from sparkdl.training.asynchronous.away import Outcome


def test_an_error_that_ends_a_run_comes_home_as_it_was_raised() -> None:
    error = RankError("worker 1 failed", rank=1, exception_type="ValueError", reason="a bad row")
    with pytest.raises(RankError, match="worker 1 failed") as raised:
        pickle.loads(pickle.dumps(Outcome(error))).result()
    assert (raised.value.rank, raised.value.exception_type, raised.value.reason) == (1, "ValueError", "a bad row")
    assert raised.value.exit_code == error.exit_code
