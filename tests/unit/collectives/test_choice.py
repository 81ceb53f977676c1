"""Which backend a job gets."""

import pytest

from sparkdl.collectives import HorovodBackend, TorchBackend, create_backend
from sparkdl.errors import ConfigError


def test_where_ranks_speak_to_single_others_the_backend_is_torch() -> None:
    assert isinstance(create_backend("auto"), HorovodBackend)
    assert isinstance(create_backend("auto", point_to_point=True), TorchBackend)
    assert isinstance(create_backend("torch", point_to_point=True), TorchBackend)
    with pytest.raises(ConfigError, match=r"train\.strategy\.topology .* which Horovod cannot; set cluster\.backend"):
        create_backend("horovod", point_to_point=True)
