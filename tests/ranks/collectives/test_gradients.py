"""Averaged gradients on real ranks: one launch for all promises."""

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from torch import nn

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import Backend, Communicator, GradientAverager, Ring, Wait, sparse_tables

SIZE = 3


def new_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 400), nn.Tanh(), nn.Linear(400, 400), nn.Tanh(), nn.Linear(400, 2))


def gradients(network: nn.Module) -> list[list[float]]:
    return [parameter.grad.flatten().tolist() for parameter in network.parameters() if parameter.grad is not None]


def inputs(number: int) -> torch.Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(number))


def recorded(communicator: Communicator) -> list[list[tuple[int, ...]]]:
    """The shapes of what is sent together, from now on."""
    sent: list[list[tuple[int, ...]]] = []
    start = communicator.start_mean

    def record(tensors: Sequence[torch.Tensor], *, name: str) -> Wait:
        sent.append([tuple(tensor.shape) for tensor in tensors])
        return start(tensors, name=name)

    communicator.start_mean = record  # type: ignore[method-assign]
    return sent


def exercise(backend: Backend, rank: Rank) -> dict:
    found: dict = {}
    with backend.connect() as communicator:
        sent = recorded(communicator)

        def averaged(passes: list[torch.Tensor | None], bucket_bytes: int = 1 << 20) -> list[list[float]]:
            network = new_network()
            averager = GradientAverager(network.parameters(), Ring(communicator), bucket_bytes=bucket_bytes)
            for number, rows in enumerate(passes):
                if number == len(passes) - 1:
                    averager.begin_last_pass()
                if rows is not None:
                    network(rows).square().sum().backward()
            averager.finish()
            return gradients(network)

        mine = inputs(rank.rank)
        found["mean"] = averaged([mine])
        found["small buckets"] = averaged([mine], bucket_bytes=1)
        found["again"] = [averaged([mine]) for _ in range(20)]
        found["two passes"] = averaged([mine, mine])
        found["last pass without rows"] = averaged([mine, None if rank.rank == 1 else mine])
        found["no rows on rank 1"] = averaged([None if rank.rank == 1 else mine])

        network = new_network()
        averager = GradientAverager(network.parameters(), Ring(communicator))
        averager.begin_last_pass()
        network[: 2 if rank.rank == 0 else 5](mine).sum().backward()  # rank 0 leaves the upper layers out
        averager.finish()
        found["branch"] = [parameter.grad is not None for parameter in network.parameters()]

        torch.manual_seed(0)
        branches = nn.ModuleList(nn.Linear(600, 600, bias=False) for _ in range(4))  # each fills a bucket
        weights = list(branches.parameters())
        averager = GradientAverager(weights, Ring(communicator))
        found["of branches"] = []
        for number in range(10):
            output = torch.ones(1, 600) * (rank.rank + 1)
            for place in range(3):  # each rank leaves another one out, and goes through the rest in another order
                output = branches[(rank.rank + number + place) % 4](output).tanh()
            own = torch.autograd.grad(output.sum(), weights, allow_unused=True, retain_graph=True)
            for weight in weights:
                weight.grad = None
            averager.begin_last_pass()
            output.sum().backward()
            averager.finish()
            of_all = [
                communicator.all_reduce(torch.zeros_like(weight) if gradient is None else gradient)
                for weight, gradient in zip(weights, own, strict=True)
            ]
            pairs = zip(weights, of_all, strict=True)
            found["of branches"] += [torch.allclose(weight.grad, mean, atol=1e-7) for weight, mean in pairs]

        table = nn.Embedding(5, 2, sparse=True)
        nn.init.ones_(table.weight)
        averager = GradientAverager(table.parameters(), Ring(communicator))
        averager.begin_last_pass()
        table(torch.tensor([rank.rank])).sum().backward()
        averager.finish()
        found["sparse"] = table.weight.grad.tolist()

        torch.manual_seed(0)
        tables = [nn.Embedding(1000, 8, sparse=True), nn.EmbeddingBag(500, 4, sparse=True, mode="sum")]
        whole = [nn.Embedding.from_pretrained(tables[0].weight, freeze=False), nn.EmbeddingBag(500, 4, mode="sum")]
        ids = torch.tensor([[3, 3, rank.rank], [7, 9, 20 * rank.rank]])
        for step in ("rows", "no rows on rank 1", "no rows"):
            without = step == "no rows" or (rank.rank == 1 and step != "rows")
            of_all = []
            for each, sparse in ((tables, True), (whole, False)):
                averager = GradientAverager(
                    [table.weight for table in each],
                    Ring(communicator),
                    tables=sparse_tables(nn.ModuleList(each)),
                )
                for table in each:
                    table.weight.grad = None
                before = communicator.bytes_sent
                averager.begin_last_pass()
                if not without:
                    (each[0](ids).square().sum() + each[1](ids).sum()).backward()
                averager.finish()
                assert all(table.weight.grad.is_sparse == sparse for table in each)
                of_all.append([table.weight.grad.to_dense() for table in each])
                found[f"{step}, bytes, {sparse}"] = communicator.bytes_sent - before
            pairs = zip(*of_all, strict=True)
            found[f"{step}, same"] = [torch.allclose(one, other, atol=1e-7) for one, other in pairs]
            found[f"{step}, rows"] = [table.weight.grad.indices()[0].tolist() for table in tables]
            found[f"{step}, values"] = [table.weight.grad.values().tolist() for table in tables]

        torch.manual_seed(0)
        picture, rows = nn.Conv2d(2, 3, 3), torch.rand(1, 2, 4, 4).to(memory_format=torch.channels_last)
        found["of one rank"] = torch.autograd.grad(picture(rows).sum(), picture.weight)[0].tolist()
        averager = GradientAverager(picture.parameters(), Ring(communicator))
        averager.begin_last_pass()
        if rank.rank:  # rank 0 has no rows, and the others' gradient has another layout than the zeros it sends
            picture(rows).sum().backward()
        averager.finish()
        found["layout"] = picture.weight.grad.tolist()

        deep = nn.Sequential(nn.Linear(3, 1024), nn.Linear(1024, 256))  # the upper layer has a megabyte
        averager = GradientAverager(deep.parameters(), Ring(communicator))
        sent.clear()
        deep[0].weight.register_hook(lambda gradient: found.update(early=list(sent)))
        averager.begin_last_pass()
        deep(mine).sum().backward()
        averager.finish()
        found["sent"] = list(sent)
    return found


@pytest.fixture(scope="module")
def found(backend: Backend) -> list[dict]:
    return run_local(partial(exercise, backend), SIZE, backend=backend)


def expected(batches: list[torch.Tensor]) -> list[torch.Tensor]:
    network = new_network()
    for rows in batches:
        (network(rows).square().sum() / SIZE).backward()
    return [torch.tensor(values) for values in gradients(network)]


def assert_close(actual: list[list[float]], wanted: list[torch.Tensor]) -> None:
    for one, other in zip(actual, wanted, strict=True):
        torch.testing.assert_close(torch.tensor(one), other, rtol=1e-4, atol=1e-5)


def test_every_rank_has_the_mean_gradient_of_all(found) -> None:
    assert_close(found[0]["mean"], expected([inputs(rank) for rank in range(SIZE)]))
    assert all(each["mean"] == found[0]["mean"] for each in found)


def test_the_size_of_buckets_changes_nothing_but_rounding(found) -> None:
    assert_close(found[0]["small buckets"], expected([inputs(rank) for rank in range(SIZE)]))


def test_a_small_network_exchanges_while_back_propagation_still_runs(found) -> None:
    assert all(each["early"] == [[(256, 1024)]] for each in found)


def test_a_gradient_that_fills_a_bucket_travels_alone_and_small_ones_together(found) -> None:
    assert all(each["sent"] == [[(256, 1024)], [(256,), (1024,), (1024, 3)]] for each in found)


def test_three_ranks_add_up_in_the_same_order_every_time(found) -> None:
    assert all(again == found[0]["mean"] for again in found[0]["again"])


def test_passes_before_the_last_one_are_added_up_without_communication(found) -> None:
    assert_close(found[0]["two passes"], expected([inputs(rank) for rank in (0, 0, 1, 1, 2, 2)]))


def test_a_rank_without_rows_counts_as_zero_and_holds_nobody_up(found) -> None:
    assert_close(found[1]["last pass without rows"], expected([inputs(rank) for rank in (0, 0, 1, 2, 2)]))
    assert_close(found[1]["no rows on rank 1"], expected([inputs(rank) for rank in (0, 2)]))


def test_a_branch_that_one_rank_did_not_use_is_averaged_all_the_same(found) -> None:
    assert all(all(each["branch"]) for each in found)


def test_branches_that_differ_between_ranks_meet_in_one_order(found) -> None:
    assert all(each["of branches"] == [True] * 40 for each in found)


def test_rows_of_tables_are_averaged_and_no_others_travel(found) -> None:
    for each in found:
        assert each["rows, same"] == each["no rows on rank 1, same"] == each["no rows, same"] == [True, True]
        assert each["rows, rows"] == [[0, 1, 2, 3, 7, 9, 20, 40]] * 2
        assert each["no rows on rank 1, rows"] == [[0, 2, 3, 7, 9, 40]] * 2
        assert each["no rows, rows"] == [[], []]
        assert each["rows, values"] == found[0]["rows, values"]


def test_the_bytes_of_rows_are_those_of_their_indices_and_values(found) -> None:
    counts, of_a_row = 2 * 8, (4 + 8 * 4) + (4 + 4 * 4)
    assert found[2]["rows, bytes, True"] == counts + 5 * of_a_row  # 3, 2, 7, 9 and 40
    assert found[0]["rows, bytes, True"] == counts + 5 * of_a_row  # 3, 0, 7 and 9, and as much as the longest
    assert found[0]["no rows, bytes, True"] == counts
    assert found[0]["rows, bytes, False"] == 1000 * 8 * 4 + 500 * 4 * 4


def test_sparse_gradients_of_what_is_no_table_are_made_dense(found) -> None:
    third = pytest.approx(1 / SIZE)
    assert found[0]["sparse"] == [[third, third]] * SIZE + [[0.0, 0.0]] * 2


def test_gradients_of_another_memory_layout_meet_in_the_right_places(found) -> None:
    of_one = torch.tensor(found[1]["of one rank"])
    torch.testing.assert_close(torch.tensor(found[0]["layout"]), of_one * (SIZE - 1) / SIZE)
