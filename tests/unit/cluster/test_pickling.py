import threading
from functools import partial

import pytest

from sparkdl.cluster.pickling import pickle_function, unpickled_function
from sparkdl.errors import ConfigError


def test_a_closure_travels() -> None:
    offset = 41
    with unpickled_function(pickle_function(lambda rank: rank + offset)) as function:
        assert function(1) == 42


class Trainer:
    def __init__(self) -> None:
        self.settings = {"lock": threading.Lock()}

    def train(self, rank: int) -> None: ...


def test_the_attribute_of_a_method_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'Trainer.train'.*Trainer.settings.lock \(a _thread.lock\)"):
        pickle_function(Trainer().train)


def test_the_argument_of_a_partial_is_named() -> None:
    def train(rank: int, logger: object) -> None: ...

    with pytest.raises(ConfigError, match=r"train'.*logger \(a _thread.lock\)"):
        pickle_function(partial(train, logger=threading.Lock()))


def test_a_default_value_is_named() -> None:
    def train(rank: int, guard: object = threading.Lock()) -> None: ...

    with pytest.raises(ConfigError, match=r"guard \(a _thread.lock\)"):
        pickle_function(train)
