"""Gradient noise: gives the gradient of a large batch the covariance of a small batch's. Runs on ranks.

The mean gradient of B rows has the covariance C / B, where C is the covariance of a single row's gradient. The mean of
b < B rows has C / b. Normal noise with the covariance C (1/b - 1/B) makes up for the difference (Wen et al., 2020, "An
Empirical Study of Large-Batch Stochastic Gradient Descent with Structured Covariance Noise", arXiv 1902.08234). C is
approximated by the Fisher matrix F = E[g g'] over the gradients g of the batch's rows, and F by its diagonal diag(F),
or by the multiple tr(F)/d of the identity, which is equally strong in all d parameters.

Each rank adds noise to the gradient of its own rows before gradients are averaged: variances of independent noise add
up, as F does over rows. So ranks do not exchange F, the averaged gradient brings the same noise to all replicas, and
the only state is that of a rank's random number generator, which checkpoints have anyway.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from sparkdl.data import Batch
from sparkdl.errors import ModelError
from sparkdl.inputs.tensors import Inputs, like, moved, sliced
from sparkdl.settings import Train
from sparkdl.settings.gradient_noise import FisherTraceOptions, NoiseOptions
from sparkdl.training.recipes.losses import Loss
from sparkdl.training.recipes.recipe import autocast

__all__ = ["FisherNoise", "check_rows_apart", "sums_of_squares"]

CHUNK_BYTES = 32 << 20
"""Memory for gradients of single rows: the fastest size for a small network, and little beside a large network."""

Squares = dict[str, torch.Tensor]


class FisherNoise:
    """The noise of ``train.gradient_noise`` for the replica of one rank."""

    def __init__(self, options: NoiseOptions, model: nn.Module, settings: Train, loss: Loss) -> None:
        self._model, self._settings, self._loss = model, settings, loss
        self._small_batch = options.small_batch or settings.batch_size
        self._by_trace = isinstance(options, FisherTraceOptions)

    def lay(self, batches: Sequence[Batch], *, ranks: int, scaler: torch.amp.GradScaler) -> None:
        """Set the gradients of parameters to noise; the step's back-propagation then adds the true gradients.

        ``batches`` are those of this rank in the step. The mean of the noise over ``ranks`` ranks has the missing
        covariance. There is no noise if the step has no more rows than the small batch.
        """
        found = self.deviations(batches, ranks=ranks)
        for name, parameter in self._model.named_parameters():
            if name in found:
                parameter.grad = scaler.scale(torch.randn_like(parameter).mul_(found[name]))

    def deviations(self, batches: Sequence[Batch], *, ranks: int) -> dict[str, torch.Tensor]:
        """The standard deviation of this rank's noise, by parameter; empty if there is no noise to add."""
        rows = sum(batch.global_rows for batch in batches)
        lacking = 1 / self._small_batch - 1 / rows
        own = [batch for batch in batches if len(batch.labels)]
        if lacking <= 0 or not own:
            return {}
        squares = self._sums_of_squares(own)
        if self._by_trace:
            trace = torch.stack([square.sum() for square in squares.values()]).sum()
            squares = dict.fromkeys(squares, trace / sum(square.numel() for square in squares.values()))
        # The mean over ranks divides the sum of variances by ranks², and F is a mean over the rows of all ranks.
        share = lacking * ranks**2 / rows
        return {name: (share * square).sqrt() for name, square in squares.items()}

    def _sums_of_squares(self, batches: Sequence[Batch]) -> Squares:
        found: Squares = {}
        for batch in batches:
            for name, square in sums_of_squares(self._model, batch, self._settings, self._loss).items():
                found[name] = found[name] + square if name in found else square
        return found


def sums_of_squares(model: nn.Module, batch: Batch, settings: Train, loss: Loss) -> Squares:
    """The squared gradients of single rows, summed over the rows of a batch, by name of the trained parameter."""
    trained = {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}
    device = next(model.parameters()).device

    def loss_of_row(
        parameters: Squares,
        inputs: Inputs,
        label: torch.Tensor,
        weight: torch.Tensor | None,
        teacher: torch.Tensor | None,
    ) -> torch.Tensor:
        with autocast(settings, device):
            row = like(inputs, partial(torch.unsqueeze, dim=0))
            named = isinstance(row, dict)
            outputs = functional_call(model, parameters, () if named else (row,), row if named else {})
            weights, answers = (None if each is None else each.unsqueeze(0) for each in (weight, teacher))
            return loss(outputs, label.unsqueeze(0), weights, inputs=row, teacher=answers)

    of_rows = batch.inputs, batch.labels, batch.weights, batch.teacher
    in_dims = (None, *(None if each is None else 0 for each in of_rows))
    by_row: Any = vmap(grad(loss_of_row), in_dims=in_dims, randomness="different")
    rows = max(1, CHUNK_BYTES // sum(value.nbytes for value in trained.values()))
    found = {name: torch.zeros_like(value) for name, value in trained.items()}
    for first in range(0, len(batch.labels), rows):
        piece = [None if each is None else moved(sliced(each, slice(first, first + rows)), device) for each in of_rows]
        for name, gradients in by_row(trained, *piece).items():
            found[name] += gradients.square().sum(dim=0)
    return found


def check_rows_apart(model: nn.Module, batch: Batch, settings: Train, loss: Loss) -> None:
    """Raise :class:`ModelError` unless the gradient of each row can be computed by itself. Runs on the driver.

    The gradients are tried on ``batch``.
    """
    needed = "train.gradient_noise needs the gradient of each row by itself, and"
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            raise ModelError(
                f"{needed} the layer {name!r} of the model {settings.model!r} normalises rows by each other; take"
                " nn.GroupNorm or nn.LayerNorm, or leave gradient_noise out"
            )
    try:
        sums_of_squares(model, batch, settings, loss)
    except Exception as error:
        raise ModelError(
            f"{needed} the model {settings.model!r} with its loss does not give it; leave gradient_noise out"
            f" ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'})"
        ) from error
