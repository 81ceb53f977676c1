"""What is written of a checkpoint for those who score."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from sparkdl.data import Dataset
from sparkdl.errors import ConfigError, ModelError
from sparkdl.models import NETWORK_FILE, full_state, load_weights
from sparkdl.scoring.predictor import Asked, Predictor
from sparkdl.settings import Train
from sparkdl.training.checkpoints.checkpoint import save_best
from sparkdl.training.checks.tried_model import check_model, tried_model
from sparkdl.training.model_folder import write_model_folder

from .checks.test_tried_model import TwoHeads, pulled


class Drawn(nn.Linear):
    """Has a constant that each network draws for itself, without PyTorch's seed."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("noise", torch.from_numpy(np.random.default_rng().random(4)).float(), persistent=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(rows) + self.noise


@pytest.mark.parametrize("model", ["mlp", lambda input_shape, num_classes: Drawn()])
def test_the_network_of_a_checkpoint_is_written_by_the_trace_of_the_one_that_was_tried(
    clouds: Dataset, tmp_path: Path, model: Any
) -> None:
    settings = Train(model=model)
    network, traced = tried_model(clouds, settings)
    weights = {name: weight + 1 for name, weight in full_state(network).items()}
    kept = save_best(str(tmp_path), weights, step=1, epoch=1)
    write_model_folder(tmp_path, clouds, settings, f"{tmp_path}/{kept.name}", traced=traced)
    for name, weight in load_weights(tmp_path / NETWORK_FILE).items():
        torch.testing.assert_close(weight, weights[name])


def test_outputs_that_scoring_returns_are_kept_and_a_loss_takes_them_with_the_batch(
    clouds: Dataset, tmp_path: Path
) -> None:
    settings = Train(model=TwoHeads, loss=pulled, outputs=["embedding", "length"])
    network, traced = tried_model(clouds, settings)
    kept = save_best(str(tmp_path), full_state(network), step=1, epoch=1)
    columns = write_model_folder(tmp_path, clouds, settings, f"{tmp_path}/{kept.name}", traced=traced)
    assert columns.names == ["prediction", "probability", "top_k", "embedding", "length"]
    predictor, rows = Predictor.load(tmp_path), np.random.default_rng(0).random((5, 4), np.float32)
    answers = predictor.answer(pa.array(rows.tolist()))
    with torch.no_grad():
        expected = network.eval()(torch.from_numpy(rows))
    assert [each.type for each in answers] == predictor.task.answer.types == columns.types
    np.testing.assert_allclose(np.array(answers[3].to_pylist()), expected["embedding"], rtol=1e-5)
    np.testing.assert_allclose(answers[4].to_numpy(), expected["length"], rtol=1e-5)
    alone = Predictor.load(tmp_path, Asked.output("embedding", predictor.card))
    assert alone.task.answer.names == ["embedding"]
    assert alone.answer(pa.array(rows.tolist())) == answers[3:4]
    assert [len(each) for each in alone.answer(pa.array([], pa.list_(pa.float32())))] == [0]
    with pytest.raises(ConfigError, match=r"score\.predict is 'logits', .* trained with embedding, length"):
        Asked.output("logits", predictor.card)


class Halving(nn.Linear):
    """Looks at values, which no export can."""

    def __init__(self) -> None:
        super().__init__(4, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(rows if rows.norm() < 1 else rows / 2)


def test_a_network_that_cannot_be_exported_is_kept_by_its_name(
    clouds: Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Train(model=Halving)
    network, traced = tried_model(clouds, settings)
    assert f"contain weights and the name {__name__}:Halving" in caplog.text
    assert "score.trusted_modules" in caplog.text
    kept = save_best(str(tmp_path), full_state(network), step=1, epoch=1)
    write_model_folder(tmp_path, clouds, settings, f"{tmp_path}/{kept.name}", traced=traced)
    rows = np.random.default_rng(0).random((5, 4), np.float32).tolist()
    found = Predictor.load(tmp_path, trusted=[__name__]).answer(pa.array(rows))[1].to_numpy()
    with torch.no_grad():
        np.testing.assert_allclose(found, network.eval()(torch.tensor(rows)).softmax(1).max(1).values, rtol=1e-5)
    with pytest.raises(ModelError, match="could not be exported"):
        Predictor.load(tmp_path)
    with pytest.raises(
        ModelError, match=r"cannot be exported .* Nor can the model be stored with .* has no name by which"
    ):
        check_model(clouds, Train(model=lambda: Halving()))
