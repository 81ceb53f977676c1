"""Networks of tables of vectors, for inputs that have names."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl.errors import ModelError
from sparkdl.inputs.sample import sample_inputs
from sparkdl.inputs.spec import InputSpec
from sparkdl.inputs.tensors import answer
from sparkdl.models import build, build_named, export_network, load_network, named_outputs
from sparkdl.settings import Train
from sparkdl.training.checks.trial import try_training
from sparkdl.training.tasks import Classification

SPECS = {
    "user": InputSpec(column="user", kind="ids", shape=(1,), dtype="int32", vocabulary=50),
    "visited": InputSpec(column="visited", kind="sequence", shape=(6,), dtype="int32", vocabulary=30),
    "age": InputSpec(column="age", kind="vector", shape=(1,), dtype="float32"),
    "item": InputSpec(column="item", kind="ids", shape=(2,), dtype="int32", vocabulary=30),
    "price": InputSpec(column="price", kind="vector", shape=(2,), dtype="float32"),
}
TOWERS = {"user": ["user", "visited", "age"], "item": ["item", "price"]}


def built(model: str, *, specs: dict[str, InputSpec] = SPECS, classes: int = 2, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return build_named(model, specs, num_classes=classes, options=options).eval()


def rows() -> dict[str, torch.Tensor]:
    found = sample_inputs(SPECS, rows=4)
    return {
        name: torch.arange(each.numel()).view(each.shape) % 29
        if each.dtype == torch.int64
        else each
        if each.dtype == torch.bool
        else torch.linspace(-1, 1, each.numel()).view(each.shape)
        for name, each in found.items()
    }


def test_dlrm_reads_its_numbers_and_the_dot_products_of_all_pairs_of_vectors() -> None:
    network, inputs = built("dlrm", width=4, top=[]), rows()
    numbers = network.bottom(torch.cat([inputs["age"], inputs["price"]], dim=1))
    user, visited, item = (network.ids.tables[name](inputs[name]) for name in ("user", "visited", "item"))
    there = inputs["visited_mask"].unsqueeze(-1)
    mean = (visited * there).sum(1) / there.sum(1)
    vectors = [numbers, user[:, 0], mean, item[:, 0], item[:, 1]]
    pairs = [(vectors[one] * vectors[other]).sum(1) for one in range(5) for other in range(one)]
    torch.testing.assert_close(network(**inputs), network.top(torch.cat([numbers, torch.stack(pairs, 1)], 1)))


def test_two_towers_answer_the_dot_product_of_their_vectors() -> None:
    network, inputs = built("two_towers", **TOWERS), rows()
    found = network(**inputs)
    score = (found["user_vector"] * found["item_vector"]).sum(1)
    torch.testing.assert_close(found["logits"].softmax(1)[:, 1], score.sigmoid())
    one = built("two_towers", classes=1, **TOWERS)(**inputs)
    torch.testing.assert_close(one["logits"][:, 0], (one["user_vector"] * one["item_vector"]).sum(1))


def test_a_tower_says_the_same_of_a_user_whatever_the_item_is() -> None:
    network, inputs = built("two_towers", **TOWERS), rows()
    other = inputs | {"item": inputs["item"].flip(0), "price": inputs["price"] + 1}
    assert torch.equal(network(**inputs)["user_vector"], network(**other)["user_vector"])


@pytest.mark.parametrize("model", ["dlrm", "two_towers"])
def test_gradients_of_tables_are_sparse_on_request(model: str) -> None:
    options = TOWERS if model == "two_towers" else {}
    for sparse in (False, True):
        network = built(model, sparse=sparse, **options)
        named_outputs(answer(network, rows()))["logits"].sum().backward()
        tables = [each.weight for each in network.modules() if isinstance(each, nn.Embedding)]
        assert len(tables) == 3
        assert all(table.grad is not None and table.grad.is_sparse == sparse for table in tables)


@pytest.mark.parametrize("model", ["dlrm", "two_towers"])
def test_the_file_of_a_recommender_answers_as_it_does(model: str, tmp_path: Path) -> None:
    outputs = ["logits", "user_vector", "item_vector"] if model == "two_towers" else ["logits"]
    network = built(model, sparse=True, **(TOWERS if model == "two_towers" else {}))
    path = tmp_path / "network.safetensors"
    export_network(network, path, rows(), outputs=outputs, lengths=("visited", "visited_mask"))
    with torch.no_grad():
        ours, theirs = (named_outputs(answer(each, rows())) for each in (network, load_network(path)))
    for name in outputs:
        torch.testing.assert_close(theirs[name], ours[name])


@pytest.mark.parametrize(
    ("model", "changed", "says"),
    [
        ("two_towers", {"options": {"user": ["user"], "item": ["item"]}}, "name each of the inputs user, visited, age"),
        ("two_towers", {"options": TOWERS, "num_classes": 3}, "can separate two classes, but not 3"),
        ("dlrm", {"inputs": {"user": SPECS["user"]}}, "at least two vectors for dot products"),
        (
            "dlrm",
            {"inputs": SPECS | {"photo": InputSpec(column="p", kind="image", shape=(4, 4, 3), dtype="uint8")}},
            "the input 'photo' is of kind image",
        ),
    ],
)
def test_what_a_recommender_cannot_read_is_named(model: str, changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        build_named(model, **{"inputs": SPECS, "num_classes": 2, **changed})


def test_a_recommender_wants_inputs_that_have_names() -> None:
    with pytest.raises(ModelError, match="'dlrm' needs named inputs; prepare the dataset with `inputs`"):
        build("dlrm", input_shape=[3], num_classes=2)


def test_the_loss_on_the_page_learns_from_the_other_items_of_a_batch() -> None:
    page = (Path(__file__).parents[3] / "docs" / "recommenders.md").read_text()
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[1], names)
    users, items = (torch.eye(2, 3).requires_grad_() for _ in range(2))
    one_click = SimpleNamespace(labels=torch.tensor([1, 0]))
    names["others_of_the_batch"]({"user_vector": users, "item_vector": items}, one_click).backward()
    assert users.grad is not None and items.grad is not None
    assert users.grad[0].any() and not users.grad[1].any()
    assert items.grad[1].any()  # as a negative of the first row's user
    settings = Train(loss=names["others_of_the_batch"], optimizer="sparse_adam")
    try_training(built("two_towers", sparse=True, **TOWERS), rows(), settings, Classification(2), weighted=False)
