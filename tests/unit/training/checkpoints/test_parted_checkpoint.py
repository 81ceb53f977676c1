"""Parts of several replicas, read from a checkpoint as those of the model that replicas agree on."""

from pathlib import Path

import torch

from sparkdl.layouts import Cuts, fill
from sparkdl.training.checkpoints.checkpoint import Shard, save_shard
from sparkdl.training.checkpoints.parted_checkpoint import pieces_of, whole_state
from sparkdl.training.strategies.keeps_part import CONSENSUS

CUTS = Cuts({"wide.weight": (5, 2), "last.weight": (1, 3)}, {"wide.weight": (0, 5)}, ranks=2)
REPLICAS = 3


def shards_of(folder: Path, *, own: dict[str, object] | None = None) -> tuple[list[Shard], list[dict]]:
    """Of each replica: its whole weights, and on two ranks its parts. The second replica has had no rows yet."""
    replicas, shards = [], []
    for number in range(REPLICAS):
        generator = torch.Generator().manual_seed(number)
        weights = {name: torch.randn(shape, generator=generator) for name, shape in CUTS.shapes.items()}
        replicas.append(weights)
        for place in range(CUTS.ranks):
            rows = CUTS.regions(place)["wide.weight"].indices
            part = {**weights, "wide.weight": weights["wide.weight"][rows]}
            steps = {"wide.weight@step": number, "wide.weight@momentum_buffer": 2 * part["wide.weight"]}
            buffers = {"mask": torch.tensor([0.0, -torch.inf]), "count": torch.tensor(number), "mean": torch.ones(1)}
            moments = {} if number == 1 else steps
            state = {"model": part | buffers, "optimizer": moments, "strategy": own or {}}
            shards.append(save_shard(str(folder), "000000001-00000.01234567", f"rank-{len(shards)}", state))
    return shards, replicas


def test_a_part_is_the_mean_of_all_replicas_with_the_moments_of_those_that_have_some(tmp_path: Path) -> None:
    shards, replicas = shards_of(tmp_path)
    whole = whole_state(str(tmp_path), CUTS, shards)
    for name in CUTS.shapes:
        torch.testing.assert_close(whole[name], sum(each[name] for each in replicas) / REPLICAS)
    first, last = replicas[0]["wide.weight"], replicas[2]["wide.weight"]
    torch.testing.assert_close(whole["wide.weight@momentum_buffer"], first + last)
    assert whole["wide.weight@step"] == 0 and int(whole["count"]) == 0
    assert whole["mask"].tolist() == [0.0, -torch.inf] and whole["mean"] == 1


def test_equal_replicas_stay_what_they_are_to_the_last_bit(tmp_path: Path) -> None:
    shards, replicas = shards_of(tmp_path)
    equal = [*shards[:2]] * REPLICAS
    found = {name: torch.empty(shape) for name, shape in CUTS.shapes.items()}
    pieces = list(pieces_of(str(tmp_path), CUTS, equal, moments=False))
    assert len(pieces) == CUTS.ranks
    fill(found, {}, CUTS.shapes, pieces)
    assert all(torch.equal(found[name], replicas[0][name]) for name in CUTS.shapes)


def test_what_replicas_agree_on_takes_the_place_of_their_mean(tmp_path: Path) -> None:
    centre = {"last.weight": torch.tensor([[1.0, 2.0, 3.0]])}
    shards, _ = shards_of(tmp_path, own={CONSENSUS: centre})
    assert torch.equal(whole_state(str(tmp_path), CUTS, shards)["last.weight"], centre["last.weight"])
