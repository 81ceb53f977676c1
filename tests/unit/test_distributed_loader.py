"""A prepared dataset for a loop of the user's own."""

import copy
import io
from collections import Counter
from pathlib import Path

import pytest
import torch

from sparkdl.distributed_loader import DistributedLoader, dataloader
from sparkdl.errors import ConfigError, DatasetError

from .data.conftest import MakeDataset, make, make_dataset

__all__ = ["make_dataset"]


def rank(path: str, number: int, size: int, monkeypatch: pytest.MonkeyPatch, batch_size: int = 4) -> DistributedLoader:
    monkeypatch.setenv("RANK", str(number))
    monkeypatch.setenv("WORLD_SIZE", str(size))
    return dataloader(path, batch_size=batch_size)


def labels(batches: list[tuple[torch.Tensor, torch.Tensor]]) -> list[int]:
    return [int(label) for _, each in batches for label in each]


def test_ranks_share_the_rows_of_an_epoch_in_as_many_batches_each_and_none_is_empty(
    make_dataset: MakeDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_dataset([13, 12]).path
    ranks = [rank(path, number, 2, monkeypatch) for number in range(2)]
    first, second = ([list(each) for each in ranks] for _ in range(2))
    for epoch in (first, second):  # of 25 rows one rank has 13 and the other one 12: three batches of 4
        assert [len(batches) for batches in epoch] == [len(each) for each in ranks] == [3, 3]
        used = Counter(labels([*epoch[0], *epoch[1]]))
        assert set(used.values()) == {1} and used.total() == 24
    assert labels(first[0]) != labels(second[0])
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    single = dataloader(path, batch_size=10, shuffle=False)
    assert labels(list(single)) == list(range(25)) and len(single) == 3
    inputs, _ = next(iter(single))
    assert inputs.dtype == torch.float32


@pytest.mark.parametrize("taken", [0, 2, 6])
def test_a_state_continues_an_epoch_to_the_same_batches(make_dataset: MakeDataset, taken: int) -> None:
    path = make_dataset([11, 11]).path
    whole = dataloader(path, batch_size=4, seed=3)
    list(whole)
    expected = [labels([batch]) for batch in whole]

    loader = dataloader(path, batch_size=4, seed=3)
    list(loader)
    batches = iter(loader)
    seen = [labels([next(batches)]) for _ in range(taken)]
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    file.seek(0)
    later = dataloader(path, batch_size=4, seed=3)
    later.load_state_dict(torch.load(file, weights_only=True))
    later.set_epoch(1)  # as loops do at the beginning of each epoch
    assert seen + [labels([batch]) for batch in later] == expected
    assert later.state_dict()["epoch"] == 2
    assert [labels([batch]) for batch in later] == [labels([batch]) for batch in whole]


def test_an_epoch_goes_on_with_another_number_of_ranks_and_each_row_is_used_once(
    make_dataset: MakeDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_dataset([16, 16, 16]).path
    used: list[int] = []
    state = {}
    for number in range(3):
        loader = rank(path, number, 3, monkeypatch)
        batches = iter(loader)
        used += labels([next(batches), next(batches)])
        state = loader.state_dict()
    for number in range(2):
        loader = rank(path, number, 2, monkeypatch, batch_size=6)
        loader.load_state_dict(copy.deepcopy(state))
        rest = list(loader)
        assert len(rest) == 2
        used += labels(rest)
    assert Counter(used) == Counter(range(48))


def test_an_epoch_that_was_broken_off_is_over_and_one_can_be_chosen(make_dataset: MakeDataset) -> None:
    loader = dataloader(make_dataset([20]).path, batch_size=4)
    first = labels([next(iter(loader))])
    second = labels(list(loader))
    loader.set_epoch(0)
    assert labels(list(loader))[:4] == first
    assert labels(list(loader)) == second


def test_states_and_datasets_that_cannot_be_are_told(
    make_dataset: MakeDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make_dataset([20])
    loader = dataloader(dataset, batch_size=4)
    with pytest.raises(ConfigError, match="not the state of a dataloader"):
        loader.load_state_dict({"epoch": 1})
    with pytest.raises(ConfigError, match="another seed and another shuffle"):
        loader.load_state_dict(dataloader(dataset, batch_size=4, seed=1, shuffle=False).state_dict())
    with pytest.raises(ConfigError, match="another dataset"):
        loader.load_state_dict(dataloader(make(tmp_path / "other", [30]), batch_size=4).state_dict())
    with pytest.raises(DatasetError, match="there is no dataset"):
        dataloader(str(tmp_path / "nowhere"), batch_size=4)
    with pytest.raises(ConfigError, match="batch_size must be at least 1, not 0"):
        dataloader(dataset, batch_size=0)
    with pytest.raises(DatasetError, match="has 20 rows, but there are 21 ranks"):
        rank(dataset.path, 0, 21, monkeypatch)
