"""Which backend a job gets."""

from importlib.util import find_spec

import pytest

from sparkdl.collectives import HorovodBackend, TorchBackend, create_backend
from sparkdl.errors import ConfigError
from sparkdl.settings import AllReduceOptions


@pytest.mark.parametrize("options", [{"topology": "butterfly"}, {"compression": "bfloat16"}])
def test_what_horovod_cannot_do_needs_the_torch_backend(options: dict) -> None:
    needs = AllReduceOptions(**options).needs_torch
    usual = HorovodBackend if find_spec("horovod") else TorchBackend
    assert isinstance(create_backend("auto", needs_torch=AllReduceOptions().needs_torch), usual)
    assert isinstance(create_backend("auto", needs_torch=needs), TorchBackend)
    assert isinstance(create_backend("torch", needs_torch=needs), TorchBackend)
    with pytest.raises(ConfigError, match=r"train\.strategy .*(butterfly|bfloat16), which Horovod cannot; set cluster"):
        create_backend("horovod", needs_torch=needs)
