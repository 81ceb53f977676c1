from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

from sparkdl.errors import ModelError
from sparkdl.forms.onnx_export import export_onnx
from sparkdl.inputs.sample import sample_inputs
from sparkdl.inputs.spec import InputSpec
from sparkdl.models import Network, OnnxNetwork, export_network, load_network
from sparkdl.models.experts import mixture_of_experts

WORDS = InputSpec(column="words", kind="sequence", shape=(9,), dtype="int32", vocabulary=30)


class Reader(nn.Module):
    """A small transformer over sequences of any length, which answers an embedding, too."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(8, 3)

    def forward(self, words: torch.Tensor, words_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.layers(self.table(words), src_key_padding_mask=~words_mask)
        there = words_mask.unsqueeze(-1).float()
        mean = (hidden * there).sum(1) / there.sum(1)
        return {"logits": self.out(mean), "embedding": mean}


class Sorted(nn.Module):
    """Uses an operation that ONNX has no word for."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.linalg.matrix_exp(rows.unsqueeze(2) * rows.unsqueeze(1)).sum(2)


def _in_file(network: nn.Module, folder: Path, sample: object, **options: object) -> Network:
    export_network(network, folder / "network.safetensors", sample, **options)  # type: ignore[arg-type]
    found = load_network(folder / "network.safetensors")
    assert isinstance(found, Network)
    return found


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> tuple[Network, OnnxNetwork]:
    folder = tmp_path_factory.mktemp("reader")
    torch.manual_seed(0)
    sample = sample_inputs({"words": WORDS})
    lengths = list(sample)
    network = _in_file(Reader(), folder, sample, outputs=["logits", "embedding"], lengths=lengths)
    export_onnx(network, folder / "network.onnx", sample, _words(5, 7), lengths=lengths)
    return network, OnnxNetwork(folder / "network.onnx")


def _words(rows: int, length: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(rows * length)
    lengths = torch.randint(1, length + 1, (rows, 1), generator=random)
    return {
        "words": torch.randint(0, 30, (rows, length), generator=random),
        "words_mask": torch.arange(length) < lengths,
    }


@pytest.mark.parametrize(("rows", "length"), [(1, 1), (1, 12), (17, 4)])
def test_batches_and_sequences_of_any_size_are_answered_as_by_the_network_and_all_its_outputs_by_name(
    reader: tuple[Network, OnnxNetwork], rows: int, length: int
) -> None:
    network, exported = reader
    given = _words(rows, length)
    with torch.inference_mode():
        expected, found = network(**given), exported(**given)
    assert list(found) == ["logits", "embedding"]
    for name in found:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5)


def test_a_file_has_no_notes_and_short_names(tmp_path: Path) -> None:
    network = _in_file(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), tmp_path, torch.zeros(2, 3))
    export_onnx(network, tmp_path / "network.onnx", torch.zeros(2, 3), torch.rand(4, 3))
    graph = onnx.load(tmp_path / "network.onnx").graph
    assert [value.name for value in (*graph.input, *graph.output)] == ["input", "logits"]
    assert not graph.value_info and not any(node.metadata_props or node.name for node in graph.node)
    inner = {name for node in graph.node for name in (*node.input, *node.output)} - {"input", "logits"}
    assert inner and max(map(len, inner)) == 1


def test_a_mixture_of_experts_is_written_with_its_choice_of_experts(tmp_path: Path) -> None:
    torch.manual_seed(0)
    mixture = mixture_of_experts(input_shape=(6,), num_classes=3, width=8, experts=4, hidden=5)
    network = _in_file(mixture, tmp_path, torch.rand(2, 6))
    export_onnx(network, tmp_path / "network.onnx", torch.rand(2, 6), torch.rand(40, 6))
    rows = torch.randn(7, 6)
    torch.testing.assert_close(OnnxNetwork(tmp_path / "network.onnx")(rows)["logits"], mixture.eval()(rows))


def test_inputs_of_other_names_are_refused(reader: tuple[Network, OnnxNetwork]) -> None:
    with pytest.raises(ModelError, match="takes the inputs words, words_mask, but was given words"):
        reader[1](words=torch.zeros(1, 2, dtype=torch.int64))


def test_an_operation_that_onnx_has_no_word_for_is_named(tmp_path: Path) -> None:
    network = _in_file(Sorted(), tmp_path, torch.rand(2, 3))
    with pytest.raises(ModelError, match=r"ONNX has no operator for aten\.linalg_matrix_exp"):
        export_onnx(network, tmp_path / "network.onnx", torch.rand(2, 3), torch.rand(4, 3))


def test_a_network_that_answers_otherwise_as_onnx_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = _in_file(nn.Linear(3, 2), tmp_path, torch.zeros(2, 3))
    forward: Callable[..., torch.Tensor] = Network.forward
    drawn = iter([1.0, 1.0])  # what tracing and the first comparison see

    def changing(self: Network, *rows: torch.Tensor) -> torch.Tensor:
        return forward(self, *rows) * next(drawn, 2.0)

    monkeypatch.setattr(Network, "forward", changing)
    with pytest.raises(ModelError, match="as ONNX it answers logits of shape"):
        export_onnx(network, tmp_path / "network.onnx", torch.zeros(2, 3), torch.rand(4, 3))
