"""The task of a dataset with a run's settings for labels and their weights. Runs anywhere."""

from collections.abc import Callable, Sequence
from typing import Any

from sparkdl.data.card import Card
from sparkdl.data.card_parts import LabelScale
from sparkdl.data.label_types import arrow_type
from sparkdl.errors import ConfigError
from sparkdl.settings import Train
from sparkdl.settings.explain import nearest
from sparkdl.training.recipes.losses import find_loss, known
from sparkdl.training.tasks import Classification, Regression, Task, create_task
from sparkdl.training.tasks.language_modelling import token_cross_entropy
from sparkdl.training.tasks.ranking import listnet

__all__ = ["task_to_train"]

ANY_UNIT = {"mse_loss": "variances of the label", "l1_loss": "standard deviations of the label"}
"""Losses whose optimum does not depend on the labels' unit, with their own unit for standardised labels."""
IN_NATS = (
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "nll_loss",
    "poisson_nll_loss",
)
"""Losses that are logarithms of probabilities, in nats."""


def task_to_train(card: Card, settings: Train) -> Task:
    """The task of the dataset's labels, with the settings that concern it.

    Raises :class:`ConfigError` for a loss that does not exist, and for settings that are for another task.
    """
    usual = create_task(card)
    if settings.standardise_labels is not None and usual.name != "regression":
        raise ConfigError(
            f"train.standardise_labels is for regression, but the dataset is for {usual.name}; leave it out"
        )
    if settings.class_weights and usual.name != "classification":
        raise ConfigError(
            f"train.class_weights is for classification, but the dataset is for {usual.name}; leave it out"
        )
    if settings.outputs and usual.name == "language_modelling":
        raise ConfigError(
            "train.outputs are per row, but the rows of language modelling are blocks of texts, which scoring cuts at"
            " other positions; leave them out"
        )
    loss = find_loss(settings.loss or usual.loss)
    if card.label_scale is not None:
        return _regression(card.label_scale, loss, settings)
    task = usual
    if settings.class_weights:
        weights = _class_weights(card, settings)
        task = Classification(usual.outputs, arrow_type(card.label_type), class_weights=weights)
    found = known(loss)
    task.loss_unit = "nats" if loss in (listnet, token_cross_entropy) or (found and found.name in IN_NATS) else ""
    return task


def _regression(scale: LabelScale, loss: Callable[..., Any], settings: Train) -> Regression:
    """The loss determines whether labels are standardised (unless the settings do), and what the output means."""
    found, asked = known(loss), settings.standardise_labels
    name = found.name if found else ""
    by_logarithm = found is not None and name == "poisson_nll_loss" and bool(found.options.get("log_input", True))
    if asked and by_logarithm:
        raise ConfigError(
            "train.standardise_labels: the loss poisson_nll_loss is for counts, whose mean cannot be 0; leave it out"
        )
    standardised = name in ANY_UNIT if asked is None else asked
    task = Regression(scale.mean, scale.std, standardised=standardised, link="log" if by_logarithm else "identity")
    task.loss_unit = ANY_UNIT.get(name, "") if standardised else "nats" if name in IN_NATS else ""
    return task


def _class_weights(card: Card, settings: Train) -> Sequence[float]:
    """The weight of a row by class index, with a mean of 1 over the training rows."""
    chosen, counts = settings.class_weights, card.splits["train"].class_counts
    rows = sum(counts)
    if chosen == "balanced":
        return [rows / (len(counts) * max(count, 1)) for count in counts]
    assert isinstance(chosen, dict)
    for label in chosen:
        if label not in card.label_names:
            raise ConfigError(f"train.class_weights: there is no label {label!r}; {nearest(label, card.label_names)}")
    weights = [chosen.get(label, 1.0) for label in card.label_names]
    mean = sum(count * weight for count, weight in zip(counts, weights, strict=True)) / rows
    return [weight / mean for weight in weights]
