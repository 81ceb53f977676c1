"""What is tried of a model before anything expensive."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sparkdl.data import Batch, Dataset
from sparkdl.errors import ConfigError, ModelError
from sparkdl.settings import Train
from sparkdl.training.checks.tried_model import check_model
from sparkdl.training.network_to_train import build_model


class Masked(nn.Linear):
    """A layer with a mask, which is a buffer of booleans."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("mask", torch.ones(4, dtype=torch.bool))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(rows) * self.mask


class Half(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4, dtype=torch.bfloat16)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(rows.bfloat16()).float()


class Short(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4, dtype=torch.float16)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(rows.half()).float()


class WithState(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)

    def get_extra_state(self) -> dict[str, int]:
        return {"seen": 1}

    def set_extra_state(self, state: dict[str, int]) -> None:
        pass


def test_a_model_may_have_a_mask(clouds: Dataset) -> None:
    check_model(clouds, Train(model=Masked))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Half, r"trains 'weight', which is torch\.bfloat16.*set train\.precision"),
        (WithState, "'_extra_state', which is not a tensor; make it a buffer"),
    ],
)
def test_what_ranks_cannot_exchange_is_an_error_before_anything_starts(
    clouds: Dataset, model: type[nn.Module], says: str
) -> None:
    with pytest.raises(ModelError, match=says):
        check_model(clouds, Train(model=model))


def test_residual_blocks_are_looked_for_before_anything_starts(clouds: Dataset) -> None:
    with pytest.raises(ModelError, match="resist assigns residual blocks to ranks, but the network has none"):
        check_model(clouds, Train(model="mlp", strategy="resist"), ranks=2)


def test_weights_of_half_precision_are_not_compressed(clouds: Dataset) -> None:
    check_model(clouds, Train(model=Short))
    compressed = Train(model=Short, strategy={"kind": "allreduce", "compression": "powersgd"})
    with pytest.raises(
        ModelError, match=r"torch\.float16, but ranks can only average torch\.float32, torch\.float64 by train\."
    ):
        check_model(clouds, compressed)


def test_options_that_no_checkpoint_gives_back_are_an_error_before_anything_starts(clouds: Dataset) -> None:
    class Strange(torch.optim.SGD):
        def __init__(self, groups: object, lr: float, **options: object) -> None:
            super().__init__(groups, lr)
            self.param_groups[0].update(options)

    check_model(clouds, Train(optimizer=Strange, optimizer_options={"eps": np.float64(1e-7), "at": [np.int64(3)]}))
    for strange in (Path("/"), lambda: None):
        with pytest.raises(
            ConfigError, match=r"train\.optimizer_options of .* have values that a checkpoint cannot store; use only"
        ):
            check_model(clouds, Train(optimizer=Strange, optimizer_options={"at": strange}))


def test_a_buffer_that_the_model_expanded_can_be_written_into(clouds: Dataset) -> None:
    class Expanded(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 4)
            mask = torch.arange(4.0).expand(3, 4)
            for name in ("kept", "passing"):
                self.register_buffer(name, mask, persistent=name == "kept")

    model = build_model(clouds, Train(model=Expanded))
    assert list(model.state_dict()) == ["weight", "bias", "kept"]
    for buffer in model.buffers():
        assert torch.equal(buffer, torch.arange(4.0).repeat(3, 1))
        buffer.copy_(buffer + 1)
    model.load_state_dict(model.state_dict())


def test_noise_that_no_step_lacks_is_refused_and_so_are_rows_without_gradients(clouds: Dataset) -> None:
    noisy = Train.model_validate({"batch_size": 64, "gradient_noise": "fisher_diagonal"})
    check_model(clouds, noisy, ranks=2)
    with pytest.raises(ConfigError, match="it imitates steps of 64 rows, but a step has 64"):
        check_model(clouds, noisy, ranks=1)
    normalised = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with pytest.raises(ModelError, match="normalises rows by each other"):
        check_model(clouds, noisy.model_copy(update={"model": normalised}), ranks=2)


class Remembering(nn.Linear):
    """Keeps a running mean where nobody saves it."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.mean = torch.zeros(4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = 0.5 * self.mean + rows.detach().mean(dim=0)
        self.last = super().forward(rows - self.mean)  # of no consequence
        return self.last


class Growing(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("last", torch.zeros(2, 4), persistent=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.last = rows.detach()
        return super().forward(rows)


def frozen() -> nn.Module:
    return nn.Linear(4, 4).requires_grad_(False)


class Detached(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(rows).detach()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"model": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False))},
            "on one row, ",
        ),
        ({"model": lambda: nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(4, 4))}, "on one row, as the last batch of an"),
        ({"model": Remembering}, r"state of the model .* that is neither .* \(last, mean\), .* use register_buffer"),
        ({"model": Growing}, "the buffer 'last' of the model 'Growing' changes its shape in training"),
        ({"model": frozen}, "has no trained parameter"),
        ({"model": Detached}, "the outputs of the model 'Detached' do not depend on its trained parameters"),
        ({"loss": lambda outputs, labels: outputs.detach().sum()}, "is detached from the network's outputs"),
        ({"loss": lambda outputs, labels: outputs.std(dim=0).sum()}, "is nan for a batch of one row"),
    ],
)
def test_what_would_fail_in_a_step_of_training_is_an_error_of_one_line_before_anything_starts(
    clouds: Dataset, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(ModelError, match=says) as raised:
        check_model(clouds, Train(**{"model": "mlp", **changes}))
    assert "\n" not in str(raised.value)


def test_an_optimizer_that_needs_a_closure_is_refused_before_anything_starts(clouds: Dataset) -> None:
    with pytest.raises(ConfigError, match="cannot use dense gradients in step"):
        check_model(clouds, Train(optimizer=torch.optim.LBFGS, weight_decay=0.0))


@pytest.mark.parametrize(
    ("make", "is_made"),
    [
        (lambda: nn.DataParallel(nn.Linear(4, 4)), False),
        (lambda: torch.compile(nn.Linear(4, 4)), False),
        (lambda: nn.Sequential(torch.compile(nn.DataParallel(nn.Linear(4, 4)))), False),
        (lambda: torch.compile(nn.Linear(4, 4)), True),
    ],
)
def test_what_is_inside_a_wrapper_is_trained_and_told(
    clouds: Dataset, make: Callable[[], Any], is_made: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model = make() if is_made else make  # not before the test: PyTorch's compiler takes seconds to import
    with caplog.at_level("INFO", "sparkdl"):
        trained = check_model(clouds, Train(model=model))
    assert {name.rpartition(".")[2] for name in trained.state_dict()} == {"weight", "bias"}
    assert all(type(module) in (nn.Linear, nn.Sequential) for module in trained.modules())
    assert "the network inside is trained" in caplog.text


def test_a_network_of_torchscript_is_refused_with_the_reason(clouds: Dataset) -> None:
    with pytest.raises(
        ModelError, match=r"is a TorchScript module, which cannot be exported; pass the torch\.nn\.Module"
    ):
        check_model(clouds, Train(model=lambda: torch.jit.script(nn.Linear(4, 4))))


class TwoHeads(nn.Module):
    """Answers logits, a vector, and what is no column."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 4)

    def forward(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        embedding = self.first(rows)
        return {
            "logits": self.second(embedding),
            "embedding": embedding,
            "length": embedding.norm(dim=1),
            "pairs": embedding.unsqueeze(1) * embedding.unsqueeze(2),
        }


def pulled(outputs: dict[str, torch.Tensor], batch: Batch) -> torch.Tensor:
    """A loss of the user's own, of all that a network answers and of a batch."""
    inputs = batch.inputs
    assert isinstance(inputs, torch.Tensor)
    distance = (outputs["embedding"] - inputs[:, :3]).square().sum(dim=1)
    return (distance if batch.weights is None else distance * batch.weights).mean()


def failing(outputs: dict[str, torch.Tensor], batch: Batch) -> torch.Tensor:
    return outputs["vector"].sum()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"outputs": ["vector"]},
            "no tensor 'vector'; it returns a dict with 'logits', 'embedding', 'length', ",
        ),
        ({"outputs": ["pairs"]}, r"the output 'pairs' of the model 'TwoHeads' is torch.float32 of shape \(2, 3, 3\)"),
        ({"loss": failing}, r"fails on outputs \(logits \(2, 4\), embedding .* and labels \(2,\): KeyError: 'vector'"),
        ({"model": lambda: nn.LSTM(4, 4)}, "returns no tensor 'logits'; it returns a tuple, but a network must return"),
    ],
)
def test_an_output_that_is_not_there_and_a_loss_that_fails_are_named_before_anything_starts(
    clouds: Dataset, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(ModelError, match=says) as raised:
        check_model(clouds, Train(**{"model": TwoHeads, **changes}))
    assert "\n" not in str(raised.value)


def test_a_loss_that_takes_the_batch_weighs_classes_itself(clouds: Dataset) -> None:
    with pytest.raises(ConfigError, match="takes the batch and weighs rows itself"):
        check_model(clouds, Train(model=TwoHeads, loss=pulled, class_weights="balanced"))
