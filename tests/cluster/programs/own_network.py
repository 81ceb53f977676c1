"""A network that only the client has."""

from torch import Tensor, nn

__all__ = ["Net"]


class Net(nn.Module):
    """One layer."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(*input_shape, num_classes)

    def forward(self, rows: Tensor) -> Tensor:
        outputs: Tensor = self.layer(rows)
        return outputs
