import sys
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from sparkdl.errors import ConfigError, ModelError
from sparkdl.models import OnnxNetwork


def _file(path: Path, operator: str = "Neg", domain: str = "", *, weights: TensorProto | None = None) -> Path:
    """An ONNX file of one operation on a matrix."""
    names = ["input"] if weights is None else ["input", weights.name]
    node = helper.make_node(operator, names, ["logits"], domain=domain)
    there = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in ("input", "logits")]
    graph = helper.make_graph([node], "network", there[:1], there[1:], initializer=[weights] if weights else [])
    opsets = [helper.make_opsetid("", 18), *([helper.make_opsetid(domain, 1)] if domain else [])]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def test_outputs_have_their_names_for_any_number_of_rows(tmp_path: Path) -> None:
    network = OnnxNetwork(_file(tmp_path / "network.onnx"))
    for count in (1, 5):
        rows = torch.rand(count, 2)
        torch.testing.assert_close(network(rows), {"logits": -rows})


@pytest.mark.parametrize("count", [1, 2, 5])
def test_pieces_of_a_batch_give_the_same(tmp_path: Path, count: int) -> None:
    rows = torch.rand(count, 2)
    network = OnnxNetwork(_file(tmp_path / "network.onnx"), rows_at_a_time=2)
    torch.testing.assert_close(network(rows), {"logits": -rows})


def test_operators_of_others_are_not_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"ONNX Runtime cannot open the network in .*"):
        OnnxNetwork(_file(tmp_path / "network.onnx", "Launch", "strangers"))


def test_weights_in_other_files_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(8))
    weights = TensorProto(name="weights", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    weights.external_data.add(key="location", value=str(tmp_path / "secret"))
    with pytest.raises(ModelError, match="has weights in other files, which are refused"):
        OnnxNetwork(_file(tmp_path / "network.onnx", "Add", weights=weights))


def test_a_damaged_file_and_one_that_is_missing_are_told(tmp_path: Path) -> None:
    (tmp_path / "network.onnx").write_bytes(b"\xff" * 100)
    with pytest.raises(ModelError, match=r"the network in .*network\.onnx is damaged"):
        OnnxNetwork(tmp_path / "network.onnx")
    with pytest.raises(ModelError, match=r"there is no network at .*other\.onnx"):
        OnnxNetwork(tmp_path / "other.onnx")


def test_where_onnx_runtime_is_not_installed_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"onnxruntime is not installed .* 'sparkdl-cluster\[forms\]'"):
        OnnxNetwork(tmp_path / "network.onnx")


def test_values_that_the_network_cannot_take_are_told(tmp_path: Path) -> None:
    network = OnnxNetwork(_file(tmp_path / "network.onnx"))
    with pytest.raises(ModelError, match="ONNX Runtime cannot compute the network"):
        network(torch.zeros(1, 3))
