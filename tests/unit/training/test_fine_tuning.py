"""The recipes of docs/fine_tuning.md, each taken through a step of training and registered."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from sparkdl.data import Batch
from sparkdl.inputs.tensors import Inputs, answer
from sparkdl.models import build, export_network, full_state, load_network, logits_of
from sparkdl.models.user_network import make_network
from sparkdl.settings import Train
from sparkdl.training.recipes.adapters import merge_adapters, with_adapters
from sparkdl.training.recipes.losses import build_loss
from sparkdl.training.recipes.recipe import build_optimizer
from sparkdl.training.replica import back_propagate
from sparkdl.training.tasks import Classification

PAGE = (Path(__file__).parents[3] / "docs" / "fine_tuning.md").read_text()
RECIPES = re.findall(r"(recipe: pretrained -->\n\n)?```yaml\n(.*?)```", PAGE, re.DOTALL)
LENGTHS = ["input_ids", "attention_mask"]


def texts(rows: int) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(50, (rows, 7)), "attention_mask": torch.ones(rows, 7, dtype=torch.bool)}


def built(settings: Train) -> tuple[nn.Module, Inputs]:
    """The network of a recipe, and a batch for it."""
    torch.manual_seed(0)
    if "Sequence" in str(settings.model):
        offered = {"num_classes": 3, "vocabularies": {"input_ids": 50}, "input_shapes": {"input_ids": (7,)}}
        return make_network(settings.model, offered, settings.model_options), texts(4)
    images = torch.randint(0, 256, (4, 32, 32, 3), dtype=torch.uint8)
    options = settings.model_options
    return build(settings.model, input_shape=(32, 32, 3), num_classes=3, options=options), images


@pytest.mark.parametrize(("from_folder", "recipe"), RECIPES)
def test_a_recipe_of_the_page_is_trained_and_registered(from_folder: str, recipe: str, tmp_path: Path) -> None:
    section: dict[str, Any] = yaml.safe_load(recipe)["train"]
    if from_folder:
        whole = Train.model_validate(yaml.safe_load(RECIPES[0][1])["train"])
        network: Any = built(whole)[0]
        network.save_pretrained(tmp_path)
        section["model_options"] = {"pretrained": str(tmp_path)}
    settings = Train.model_validate(section)
    network, rows = built(settings)
    plain = full_state(network).keys()
    if settings.adapters:
        network = with_adapters(network, settings.adapters)
        assert sum(each.numel() for each in full_state(network).values()) < 10_000
    optimizer = build_optimizer(settings, network)
    task = Classification(3)
    before = {name: weight.clone() for name, weight in full_state(network).items()}
    batch = Batch(rows, torch.tensor([0, 1, 2, 0]), 4)
    for _ in range(2):  # of what LoRA adds, one matrix begins with zeros, and hides the other one's gradient
        back_propagate(network, batch, settings, task, loss=build_loss(settings, task), row_weight=1 / 4)
        optimizer.step()
    trained = {name for name, each in network.named_parameters() if each.requires_grad and each.grad is not None}
    assert all(not torch.equal(before[name], full_state(network)[name]) for name in trained)
    if settings.adapters:
        network = merge_adapters(network)
    assert full_state(network).keys() == plain
    lengths = LENGTHS if isinstance(rows, dict) else []
    loaded = load_network(export_network(network, tmp_path / "network.safetensors", rows, lengths=lengths))
    with torch.no_grad():
        expected = logits_of(answer(network.eval(), rows))
        torch.testing.assert_close(logits_of(answer(loaded, rows)), expected, rtol=1e-3, atol=1e-4)


def test_every_recipe_is_run() -> None:
    assert len(RECIPES) == PAGE.count("```yaml") == 6
