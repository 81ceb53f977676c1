"""Networks that are kept as weights and the name of the code that builds them."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn

from sparkdl.errors import ModelError
from sparkdl.models import Reference, load_network, load_weights, module_of, refer, write_reference

SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, input_shape, num_classes, width=WIDTH):
        super().__init__()
        self.first, self.second = nn.Linear(*input_shape, width), nn.Linear(width, num_classes)

    def forward(self, rows):
        hidden = self.first(rows)
        while hidden.norm() > 1:  # which torch.export refuses
            hidden = hidden / 2
        return self.second(hidden)
"""
ARGUMENTS = {"input_shape": (4,), "num_classes": 3, "mean": None, "std": None, "options": {}}


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Writes the package's code anew, and has it imported anew."""
    (tmp_path / "somebodys").mkdir()
    monkeypatch.syspath_prepend(tmp_path)

    def write(width: int) -> None:
        for name in [name for name in sys.modules if name.startswith("somebodys")]:
            monkeypatch.delitem(sys.modules, name)
        (tmp_path / "somebodys" / "nets.py").write_text(SOURCE.replace("WIDTH", str(width)) + f"# {'x' * width}")

    write(5)
    return write


@pytest.fixture
def network(write_module: Callable[[int], None]) -> nn.Module:
    from somebodys.nets import Net  # type: ignore[import-not-found]

    made: nn.Module = Net((4,), 3)
    return made


def test_a_network_is_built_by_its_code_where_its_package_is_trusted(network: nn.Module, tmp_path: Path) -> None:
    reference = refer("somebodys.nets:Net", ARGUMENTS)
    assert reference == refer(type(network), ARGUMENTS)
    path, rows = write_reference(network, tmp_path / "n", reference), 10 * torch.rand(3, 4)
    assert module_of(path) == "somebodys.nets"
    for trusted in (["somebodys"], ["others", "somebodys.nets"]):
        torch.testing.assert_close(load_network(path, trusted=trusted)(rows), network(rows))
    for name, weight in load_weights(path).items():
        assert torch.equal(weight, network.state_dict()[name])
    with safe_open(path, framework="pt") as file:
        assert json.loads(file.metadata()["sparkdl"])["packages"] == {"torch": torch.__version__.partition("+")[0]}


@pytest.mark.parametrize("trusted", [[], ["some"], ["somebodys.nets.Net"], ["somebodys.net"]])
def test_code_that_is_not_trusted_is_not_imported(network: nn.Module, trusted: list[str], tmp_path: Path) -> None:
    path = write_reference(network, tmp_path / "n", refer("somebodys.nets:Net", ARGUMENTS))
    for name in [name for name in sys.modules if name.startswith("somebodys")]:
        del sys.modules[name]
    said = "'somebodys.nets:Net' builds it, whose code is not trusted.* `score.trusted_modules`: [somebodys]"
    with pytest.raises(ModelError, match=re.escape(said).replace(r"\.\*", ".*")):
        load_network(path, trusted=trusted)
    assert "somebodys" not in sys.modules


def test_code_that_is_missing_or_builds_another_network_is_told_with_what_it_was(
    network: nn.Module, write_module: Callable[[int], None], tmp_path: Path
) -> None:
    path = write_reference(network, tmp_path / "n", refer("somebodys.nets:Net", ARGUMENTS))
    write_module(6)
    with pytest.raises(ModelError, match=r"the weights do not fit .* size mismatch .* trained with torch \d"):
        load_network(path, trusted=["somebodys"])
    lost = write_reference(network, tmp_path / "n", Reference("nowhere.nets:Net", ARGUMENTS, {"torch": "2.0"}))
    with pytest.raises(ModelError, match=r"cannot import the model 'nowhere\.nets:Net'.* was trained with torch 2\.0"):
        load_network(lost, trusted=["nowhere"])


@pytest.mark.parametrize("model", ["os:system", "builtins:eval", "sparkdl.models.reference:refer"])
def test_a_strangers_name_calls_nothing_but_what_makes_networks(model: str, tmp_path: Path) -> None:
    path = write_reference(nn.Linear(4, 3), tmp_path / "n", Reference(model, ARGUMENTS, {}))
    with pytest.raises(ModelError, match=r"is neither a torch\.nn\.Module nor a function"):
        load_network(path, trusted=[model.partition(":")[0]])


def test_what_has_no_name_or_no_plain_options_cannot_be_kept_so(network: nn.Module) -> None:
    class Inner(nn.Linear):
        pass

    for model in (network, Inner, lambda: network):
        with pytest.raises(ModelError, match="has no name by which another process could import it"):
            refer(model, ARGUMENTS)
    with pytest.raises(ModelError, match=r"model_options of 'somebodys\.nets:Net' are stored as JSON"):
        refer("somebodys.nets:Net", ARGUMENTS | {"options": {"width": nn.ReLU()}})
