"""Every token counts alike, in whatever rows and batches; and what cannot learn to tell the next one is refused."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from sparkdl.data import Dataset, Loader
from sparkdl.errors import ConfigError, ModelError
from sparkdl.settings import Train
from sparkdl.training.checks.tried_model import check_model
from sparkdl.training.evaluation import add_up, evaluation_of
from sparkdl.training.recipes.losses import build_loss
from sparkdl.training.task_to_train import task_to_train
from tests.language_blocks import LENGTH, VOCABULARY, language_blocks


class Bigrams(nn.Module):
    """What comes next follows from the token alone."""

    def __init__(self, rows: int = VOCABULARY, answers: int = VOCABULARY, pooled: bool = False) -> None:
        super().__init__()
        self.table, self.pooled = nn.Embedding(rows, answers), pooled

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.table(input_ids) + 0 * attention_mask.unsqueeze(2)
        return {"logits": logits.mean(dim=1) if self.pooled else logits}


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return language_blocks(tmp_path_factory.mktemp("blocks"))


def test_figures_are_those_of_all_tokens_whatever_the_batches(blocks: Dataset) -> None:
    settings, network = Train(model=Bigrams), Bigrams()
    task = task_to_train(blocks.card, settings)
    losses, right = [], []
    for batch in Loader(blocks, "validation", batch_size=1).epoch(0):
        assert isinstance(batch.inputs, dict)
        targets = batch.inputs["input_ids"][0, 1:]
        logits = network(**batch.inputs)["logits"][0, :-1]
        losses += functional.cross_entropy(logits, targets, reduction="none").tolist()
        right += (logits.argmax(dim=1) == targets).tolist()
    mean = sum(losses) / len(losses)
    for size in (1, 7, 30):
        sums = add_up(
            network,
            Loader(blocks, "validation", batch_size=size, shuffle=False).epoch(0),
            task=task,
            loss=build_loss(settings, task),
            device=torch.device("cpu"),
            context=torch.no_grad(),
            parts=1,
        )
        found = evaluation_of(sums.added, [sums.points], task)
        assert found.rows == 30 and found.figures.keys() == {"loss", *task.figure_names}
        expected = {"loss": mean, "perplexity": math.exp(mean), "accuracy": sum(right) / len(right)}
        assert found.figures == pytest.approx(expected, rel=1e-5)


def test_labels_are_the_tokens_and_the_loss_is_given_those_that_come_next(blocks: Dataset) -> None:
    task = task_to_train(blocks.card, Train(model=Bigrams))
    batch = next(Loader(blocks, "validation", batch_size=30, shuffle=False).epoch(0))
    assert isinstance(batch.inputs, dict) and batch.weights is not None
    tokens, mask = batch.inputs.values()
    assert torch.equal(batch.labels, tokens.where(mask, -100))
    assert torch.equal(task.targets(batch.labels)[:, :-1], batch.labels[:, 1:])
    counted = (task.targets(batch.labels) != -100).sum(dim=1)
    torch.testing.assert_close(batch.weights * blocks.card.mean_weight, counted.double())
    assert set(counted.tolist()) > {LENGTH - 1}


def test_smoothed_labels_are_for_tokens_too(blocks: Dataset) -> None:
    settings = Train(model=Bigrams, label_smoothing=0.1)
    task = task_to_train(blocks.card, settings)
    batch, network = next(Loader(blocks, "train", batch_size=9).epoch(0)), Bigrams()
    answered = network(**batch.inputs)  # type: ignore[arg-type]
    smoothed, plain = (build_loss(settings, task, smoothing=smoothing) for smoothing in (True, False))
    assert smoothed(answered, batch.labels, batch.weights) != plain(answered, batch.labels, batch.weights)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"pooled": True}, r"returned \(2, 12\) for two rows of 8 tokens.* must have the shape \(n, 8, 12\)"),
        ({"answers": 10}, "returns logits for 10 tokens, but the dataset's tokeniser has 12"),
        ({"rows": 10}, "fewer rows than there are ids, or places.* input_ids go up to 11"),
    ],
)
def test_a_network_that_cannot_tell_the_next_token_is_refused(
    blocks: Dataset, options: dict[str, Any], error: str
) -> None:
    with pytest.raises(ModelError, match=error):
        check_model(blocks, Train(model=Bigrams, model_options=options))


def test_settings_that_are_of_rows_are_refused_and_those_that_fit_are_tried(blocks: Dataset) -> None:
    for change, error in [
        ({"outputs": ["logits"]}, "outputs are per row"),
        ({"class_weights": "balanced"}, "class_weights is for classification"),
        ({"standardise_labels": True}, "standardise_labels is for regression"),
    ]:
        with pytest.raises(ConfigError, match=error):
            check_model(blocks, Train.model_validate({"model": Bigrams, **change}))
    check_model(blocks, Train(model=Bigrams, model_options={"answers": 16}))
