"""Forms of a small network that has learned something, measured on rows that are held out. Needs no Spark."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from sparkdl.data import Dataset, Loader
from sparkdl.forms.network_forms import NetworkForms
from sparkdl.models import FORM_FILES, NETWORK_FILE, Form, build, export_network, write_forms
from sparkdl.scoring.network import NetworkModel
from sparkdl.scoring.predictor import Predictor
from sparkdl.settings import Compress


def _folder(folder: Path, dataset: Dataset, network: nn.Module) -> Path:
    folder.mkdir()
    export_network(network, folder / NETWORK_FILE, torch.zeros(2, *dataset.input.shape))
    (folder / "card.json").write_text(dataset.card_json)
    return folder


@pytest.fixture(scope="module")
def model(clouds: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model of four numbers in four classes."""
    torch.manual_seed(0)
    network = build("mlp", input_shape=(4,), num_classes=4, options={"hidden": [32, 32]})
    optimizer = torch.optim.Adam(network.parameters(), 0.02)
    for epoch in range(10):
        for batch in Loader(clouds, "train", batch_size=32).epoch(epoch):
            assert isinstance(batch.inputs, torch.Tensor)
            optimizer.zero_grad()
            functional.cross_entropy(network(batch.inputs), batch.labels).backward()
            optimizer.step()
    return _folder(tmp_path_factory.mktemp("model") / "model", clouds, network)


def _maker(model: Path, dataset: Dataset, target: Path, **settings: object) -> NetworkForms:
    target.mkdir(exist_ok=True)
    return NetworkForms(model, dataset, "validation", Compress.model_validate(settings), target)


@pytest.mark.parametrize("calibration_rows", [0, 30])
def test_every_form_answers_as_the_original_does_and_says_what_it_lost(
    model: Path, clouds: Dataset, tmp_path: Path, calibration_rows: int
) -> None:
    maker = _maker(model, clouds, tmp_path / "made", calibration_rows=calibration_rows, gate={"lose": 0.05})
    forms = {name: Form.model_validate(maker.make(name)["form"]) for name in FORM_FILES}
    assert {(form.metric, form.rows) for form in forms.values()} == {("validation_accuracy", 30)}
    assert all(form.original_figure > 0.7 and form.figure >= form.original_figure - 0.05 for form in forms.values())
    assert forms["float16"].bytes < forms["float16"].original_bytes
    for file in (*model.iterdir(), *(tmp_path / "made").iterdir()):
        (tmp_path / file.name).symlink_to(file)
    write_forms(tmp_path, forms)
    rows = torch.randn(50, 4).numpy()
    expected = _logits(tmp_path, "original", rows)
    for name in ("auto", *FORM_FILES):
        assert (_logits(tmp_path, name, rows) - expected).abs().mean() < 0.05 * expected.std()


def _logits(folder: Path, form: str, rows: object) -> torch.Tensor:
    found = Predictor.load(folder, form=form).model  # type: ignore[arg-type]
    assert isinstance(found, NetworkModel)
    return found.outputs_of(rows)["logits"]


def test_a_form_that_loses_more_than_the_gate_allows_is_left_out_and_both_figures_are_told(
    model: Path, clouds: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = _maker(model, clouds, tmp_path / "made", gate={"lose": 0.01})
    maker.make("onnx")
    monkeypatch.setattr("sparkdl.forms.network_forms.load_network", lambda path: nn.Linear(4, 4))
    refused = str(maker.make("float16")["refused"])
    assert "it loses too much: its validation_accuracy is 0." in refused
    assert refused.endswith("and compress.gate.lose allows a loss of 0.01")
    assert not (tmp_path / "made" / FORM_FILES["float16"]).exists()


class Norm(nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.square()


def test_a_network_without_weights_that_could_be_int8_is_told_with_its_operations(
    clouds: Dataset, tmp_path: Path
) -> None:
    maker = _maker(_folder(tmp_path / "model", clouds, Norm()), clouds, tmp_path / "made")
    refused = str(maker.make("int8")["refused"])
    assert refused.endswith("has weights to quantise; those that may have are Conv, Gather, Gemm, MatMul")
    assert "operations (Mul)" in refused or "operations (Pow)" in refused
