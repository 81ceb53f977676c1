"""How the weights are found."""

import copy
import math
import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn

from sparkdl.errors import ConfigError
from sparkdl.settings import Recipe, Train
from sparkdl.training.recipes.recipe import autocast, build_optimizer, rate_at


def rates(recipe: Recipe, *, steps: int = 10, size: int = 1) -> list[float]:
    total = recipe.epochs * steps
    return [rate_at(recipe, step, steps_per_epoch=steps, size=size) for step in range(total)]


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1), ("sqrt", math.sqrt(8)), ("linear", 8)])
def test_the_rate_grows_with_the_rows_of_a_step(scaling, factor):
    recipe = Recipe(learning_rate=0.1, scaling=scaling, accumulation=2, schedule="constant")
    assert rates(recipe, size=4) == pytest.approx([0.1 * factor] * 10)


def test_warm_up_climbs_in_equal_steps_from_the_unscaled_to_the_scaled_rate():
    recipe = Recipe(learning_rate=0.1, scaling="linear", warmup_epochs=0.5, schedule="constant")
    found = rates(recipe, size=2)
    assert found[:5] == pytest.approx([0.12, 0.14, 0.16, 0.18, 0.2])
    assert found[5:] == pytest.approx([0.2] * 5)


def test_warm_up_ends_at_the_peak_between_two_steps_of_the_recipe_too():
    recipe = Recipe(learning_rate=1.0, scaling="linear", warmup_epochs=0.2, schedule="constant")
    assert [rate_at(recipe, step, steps_per_epoch=10, size=2) for step in (0, 0.5, 1, 1.5, 2)] == [1.5, 1.75, 2, 2, 2]


def test_warm_up_without_scaling_starts_from_zero():
    assert rates(Recipe(learning_rate=1.0, warmup_epochs=0.4, schedule="constant"))[:4] == pytest.approx(
        [0.25, 0.5, 0.75, 1.0]
    )


def test_cosine_falls_from_the_peak_to_almost_nothing():
    found = rates(Recipe(learning_rate=1.0, epochs=2, schedule="cosine"))
    assert found[0] == 1.0 and found[10] == pytest.approx(0.5) and found[-1] < 0.01
    assert found == sorted(found, reverse=True)


def test_step_divides_by_ten_at_each_milestone():
    found = rates(Recipe(learning_rate=1.0, schedule="step", milestones=[0.3, 0.6]))
    assert found == pytest.approx([1.0] * 3 + [0.1] * 3 + [0.01] * 4)


def test_linear_falls_evenly():
    assert rates(Recipe(learning_rate=1.0, schedule="linear")) == pytest.approx([1 - i / 10 for i in range(10)])


def test_weight_decay_leaves_biases_and_normalisation_alone():
    model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
    optimizer = build_optimizer(Train(weight_decay=0.1), model)
    decayed = {id(p) for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}
    assert decayed == {id(model[0].weight)}


def test_weight_decay_among_the_optimizers_options_is_not_ignored():
    with pytest.raises(ConfigError, match=r"set train\.weight_decay instead"):
        build_optimizer(Train(optimizer="adamw", optimizer_options={"weight_decay": 0.05}), nn.Linear(4, 3))


def test_an_optimizer_can_be_an_import_path_or_a_callable():
    model = nn.Linear(2, 2)
    assert isinstance(build_optimizer(Train(optimizer="torch.optim:Adagrad"), model), torch.optim.Adagrad)
    assert isinstance(build_optimizer(Train(optimizer=torch.optim.RMSprop), model), torch.optim.RMSprop)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_a_fused_optimizer_takes_the_steps_of_the_plain_one_and_the_user_may_overrule_it(name):
    steps = {}
    for fused in (None, False):
        options = {} if fused is None else {"fused": fused}
        torch.manual_seed(0)
        model, rows = nn.Linear(5, 3), torch.randn(4, 5)
        optimizer = build_optimizer(Train(optimizer=name, optimizer_options=options, weight_decay=0.1), model)
        assert all(group["fused"] is (fused is None) for group in optimizer.param_groups)
        for _ in range(3):
            optimizer.zero_grad()
            model(rows).square().sum().backward()
            optimizer.step()
        steps[fused] = model.weight.detach()
    torch.testing.assert_close(steps[None], steps[False])


def test_the_first_step_of_lars_is_that_of_its_paper():
    weight, bias, rows = steps_of("lars", {"trust_coefficient": 0.02, "momentum": 0.9})
    gradient = rows.sum(dim=0).expand(3, 5)
    norm = weight[0].norm()
    trust = 0.02 * norm / (gradient.norm() + 0.1 * norm)  # You et al. (2017), equation 6
    torch.testing.assert_close(weight[0] - weight[1], 0.5 * trust * (gradient + 0.1 * weight[0]))
    torch.testing.assert_close(bias[0] - bias[1], torch.full((3,), 0.5 * len(rows)))  # as with plain SGD


def test_the_first_step_of_lamb_is_that_of_its_paper():
    weight, _, rows = steps_of("lamb", {})
    gradient = rows.sum(dim=0).expand(3, 5)
    update = 0.1 * gradient / ((0.001**0.5) * gradient.abs() + 1e-6) + 0.1 * weight[0]
    step = 0.5 * weight[0].norm() / update.norm() * update  # You et al. (2020), algorithm 2, without bias correction
    torch.testing.assert_close(weight[0] - weight[1], step, rtol=1e-4, atol=1e-6)


def steps_of(optimizer: str, options: dict[str, object]) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
    """Weights and biases before and after a step, and the rows whose outputs' sum was the loss."""
    torch.manual_seed(0)
    model, rows = nn.Linear(5, 3), torch.randn(4, 5)
    settings = Train(optimizer=optimizer, optimizer_options=options, weight_decay=0.1, learning_rate=0.5)
    before = copy.deepcopy(model)
    made = build_optimizer(settings, model)
    model(rows).sum().backward()
    made.step()
    return *([getattr(each, name).detach() for each in (before, model)] for name in ("weight", "bias")), rows


def test_without_the_extra_lamb_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with pytest.raises(ConfigError, match=r"pip install 'sparkdl-cluster\[optimizers\]'"):
        build_optimizer(Train(optimizer="lamb"), nn.Linear(2, 2))


def test_sgd_takes_the_sparse_gradients_of_an_embedding():
    table = nn.Embedding(4, 2, sparse=True)
    optimizer = build_optimizer(Train(optimizer="sgd", learning_rate=1.0), table)
    before = table.weight.detach().clone()
    table(torch.tensor([1])).sum().backward()
    optimizer.step()
    assert (before - table.weight.detach()).tolist() == [[0, 0], [pytest.approx(1)] * 2, [0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (Train(optimizer="sdg"), "did you mean 'sgd'"),
        (Train(optimizer="adam", optimizer_options={"momentum": 0.9}), "optimizer_options"),
        (
            Train(optimizer="lamb", optimizer_options={"momentum": 0.9}),
            "Lamb has no option 'momentum'; its options are lr, betas",
        ),
        (Train(optimizer="lars", optimizer_options={"momentum": 1.5}), "momentum must be in the range"),
        (Train(optimizer="adam", optimizer_options={"foreach": True}), "`fused` and `foreach` cannot be `True`"),
    ],
)
def test_an_optimizer_that_does_not_exist_or_fit_is_an_error(settings, says):
    with pytest.raises(ConfigError, match=says):
        build_optimizer(settings, nn.Linear(2, 2))


def test_float16_needs_a_gpu():
    with pytest.raises(ConfigError, match="bfloat16"):
        autocast(Recipe(precision="float16"), torch.device("cpu"))


def test_bfloat16_computes_in_bfloat16_and_keeps_float32_weights():
    layer = nn.Linear(2, 2)
    with autocast(Recipe(precision="bfloat16"), torch.device("cpu")):
        assert layer(torch.ones(1, 2)).dtype == torch.bfloat16
    assert layer.weight.dtype == torch.float32


def test_sparse_adam_is_sparse_adam_for_tables_and_adamw_for_all_other_weights():
    def stepped(make: Callable[[nn.ModuleList], list[torch.optim.Optimizer]]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        layers = nn.ModuleList([nn.Embedding(9, 4, sparse=True), nn.Linear(4, 2)])
        optimizers = make(layers)
        for words in ([1, 5], [5, 7], [1, 1]):
            layers[1](layers[0](torch.tensor(words))).square().sum().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        return [*layers.parameters()]

    settings = Train(optimizer="sparse_adam", learning_rate=0.1, weight_decay=0.2)
    ours = stepped(lambda layers: [build_optimizer(settings, layers)])
    theirs = stepped(
        lambda layers: [
            torch.optim.SparseAdam(layers[0].parameters(), lr=0.1),
            torch.optim.AdamW([layers[1].weight], lr=0.1, weight_decay=0.2),
            torch.optim.AdamW([layers[1].bias], lr=0.1, weight_decay=0.0),
        ]
    )
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)


def test_sparse_adam_goes_on_from_its_state():
    layers = nn.ModuleList([nn.Embedding(9, 4, sparse=True), nn.Linear(4, 2)])
    settings = Train(optimizer="sparse_adam")
    one, other = (build_optimizer(settings, layers) for _ in range(2))
    layers[1](layers[0](torch.tensor([1, 5]))).sum().backward()
    one.step()
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    before = [each.detach().clone() for each in layers.parameters()]
    results = []
    for optimizer in (one, other):
        for weight, value in zip(layers.parameters(), before, strict=True):
            weight.data.copy_(value)
        optimizer.step()
        results.append([each.detach().clone() for each in layers.parameters()])
    assert all(map(torch.equal, *results))
