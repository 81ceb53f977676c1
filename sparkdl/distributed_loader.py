"""A prepared dataset for the user's own training loop: batches of this rank's rows, equally many on every rank."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import distributed

from sparkdl.data import Dataset
from sparkdl.data.reading.loader import Loader
from sparkdl.data.reading.shards import Phase, rank_sizes
from sparkdl.errors import ConfigError, DatasetError
from sparkdl.inputs.tensors import Inputs

__all__ = ["DistributedLoader", "dataloader"]


class DistributedLoader:
    """The result of :func:`dataloader`. Each pass over it is an epoch, with rows in a new random order."""

    def __init__(
        self, dataset: Dataset, split: str, *, batch_size: int, seed: int, shuffle: bool, rank: int, size: int
    ) -> None:
        self.dataset, self.batch_size = dataset, batch_size
        self._size = size
        self._loader = Loader(dataset, split, batch_size=batch_size, rank=rank, size=size, seed=seed, shuffle=shuffle)
        self._order = {"dataset": dataset.digest, "split": split, "seed": seed, "shuffle": shuffle}
        self._rows = dataset.rows(split)
        if self._rows < size:
            raise DatasetError(
                f"{dataset.path}: split {split!r} has {self._rows} rows, but there are {size} ranks; use fewer ranks"
            )
        self._epoch, self._batch, self._begun = 0, 0, False
        self._phases: tuple[Phase, ...] = ()

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        return self._steps(())

    def __iter__(self) -> Iterator[tuple[Inputs, torch.Tensor]]:
        """The batches of the next epoch, or the rest of the epoch that ``load_state_dict`` continues."""
        if self._begun:
            self._begin(self._epoch + 1)
        self._begun = True
        epoch, phases, start = self._epoch, self._phases, self._batch
        batches = self._loader.epoch(epoch, start, after=phases)
        for step, batch in zip(range(start, self._steps(phases)), batches, strict=False):
            self._batch = step + 1
            yield batch.inputs, batch.labels
        self._begin(epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be this epoch, as in ``DistributedSampler``. An epoch that is being continued is kept."""
        if epoch != self._epoch or self._begun:
            self._begin(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position in the epoch, as plain values; equal on all ranks after the same number of batches."""
        done = [*self._phases, Phase(self._size, self.batch_size, self._batch)]
        return {**self._order, "epoch": self._epoch, "done": [list(phase) for phase in done]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass continue from this state. The number of ranks and the batch size may have changed.

        Raises :class:`~sparkdl.errors.ConfigError` for the state of another dataset, split, seed or order.
        """
        try:
            other = [name for name, value in self._order.items() if state[name] != value]
            epoch, phases = int(state["epoch"]), [Phase(*map(int, phase)) for phase in state["done"]]
        except (KeyError, TypeError, ValueError):
            raise ConfigError("this is not the state of a dataloader; pass the result of its state_dict()") from None
        if other:
            raise ConfigError(
                f"the state belongs to a dataloader with another {' and another '.join(other)}; use the same ones"
            )
        self._begin(epoch)
        if phases and phases[-1][:2] == (self._size, self.batch_size):
            self._batch = phases.pop().batches
        self._phases = tuple(phase for phase in phases if phase.batches)

    def _begin(self, epoch: int) -> None:
        self._epoch, self._batch, self._begun = epoch, 0, False
        self._phases = ()

    def _steps(self, phases: Sequence[Phase]) -> int:
        """The number of batches that are left; none of them is empty on any rank."""
        _, fewest = rank_sizes(self._loader.rows_after(phases), self._size)
        return -(-fewest // self.batch_size)


def dataloader(
    dataset: Dataset | str, split: str = "train", *, batch_size: int, shuffle: bool = True, seed: int = 0
) -> DistributedLoader:
    """Batches ``(inputs, labels)`` of a prepared dataset, for a program with its own training loop. Runs on a rank.

    Rank and size are those of the process group, or else of the environment (``RANK``, ``WORLD_SIZE``); a process
    without either gets all rows. Every rank gets the same number of batches of ``batch_size`` rows; the last batch may
    be smaller. Each row is used once per epoch, except that if the last batch would be empty on some rank, its rows
    (fewer than there are ranks) are left out.

    Inputs are uint8 of shape (n, height, width, channels) or float32 of shape (n, width); for named inputs, a
    dictionary of tensors. Labels are int64 or float64 of shape (n,), or uint8 of shape (n, classes).

    ``state_dict`` and ``load_state_dict`` continue an epoch at any batch, as in torchdata's ``StatefulDataLoader``.

    Raises :class:`~sparkdl.errors.DatasetError` if there is no such dataset or split, or fewer rows than ranks, and
    :class:`~sparkdl.errors.ConfigError` for a ``batch_size`` below 1.
    """
    if batch_size < 1:
        raise ConfigError(f"batch_size must be at least 1, not {batch_size}")
    opened = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    if distributed.is_available() and distributed.is_initialized():
        rank, size = distributed.get_rank(), distributed.get_world_size()
    else:
        rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    return DistributedLoader(opened, split, batch_size=batch_size, seed=seed, shuffle=shuffle, rank=rank, size=size)
