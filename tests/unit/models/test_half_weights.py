from pathlib import Path

import pytest
import torch
from torch import nn

from sparkdl.errors import ModelError
from sparkdl.models import export_network, load_network, refer, write_in_half, write_reference


def test_weights_take_half_the_bytes_and_the_network_answers_nearly_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network, rows = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)), torch.randn(5, 64)
    source = export_network(network, tmp_path / "network", rows)
    half = write_in_half(source, tmp_path / "half")
    assert half.stat().st_size < 0.6 * source.stat().st_size
    found = load_network(half)(rows)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, network(rows), rtol=0.01, atol=0.01)
    assert not torch.equal(found, network(rows))


def test_numbers_that_are_too_large_for_float16_stay_as_they_are(tmp_path: Path) -> None:
    network = nn.Linear(4, 2)
    with torch.no_grad():
        network.bias.fill_(1e6)
    source = export_network(network, tmp_path / "network", torch.zeros(2, 4))
    half = load_network(write_in_half(source, tmp_path / "half"))
    torch.testing.assert_close(half(torch.zeros(1, 4)), network(torch.zeros(1, 4)))


def test_a_network_that_its_code_builds_has_no_such_form(tmp_path: Path) -> None:
    arguments = {"input_shape": [4], "num_classes": 2, "options": {}}
    reference = refer("sparkdl.models.networks:mlp", arguments)
    path = write_reference(nn.Linear(4, 2), tmp_path / "network", reference)
    with pytest.raises(ModelError, match=r"is not exported: 'sparkdl\.models\.networks:mlp' builds it"):
        write_in_half(path, tmp_path / "half")
