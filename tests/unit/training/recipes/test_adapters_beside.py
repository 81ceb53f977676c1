"""Adapters that are registered beside their base: small files, which peft reads too, and a base that is checked."""

import shutil
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers

from sparkdl.data import Dataset
from sparkdl.errors import ConfigError, ModelError
from sparkdl.inputs.tensors import answer
from sparkdl.models import NETWORK_FILE, full_state, load_network, load_weights, logits_of
from sparkdl.settings import Train
from sparkdl.training.checkpoints.checkpoint import save_best
from sparkdl.training.checkpoints.record import recipe_of
from sparkdl.training.checks.some_rows import some_rows
from sparkdl.training.checks.tried_model import check_model
from sparkdl.training.model_folder import write_model_folder
from sparkdl.training.network_to_train import build_model
from sparkdl.training.recipes.adapters import merge_adapters
from tests.language_blocks import LENGTH, VOCABULARY, language_blocks

CONFIG = {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": LENGTH, "vocab_size": VOCABULARY}
LORA = {"kind": "lora", "rank": 2, "targets": ["c_attn", "c_fc"], "whole": ["ln_f"], "registered": "adapters"}


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return language_blocks(tmp_path_factory.mktemp("blocks"))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As others save theirs: in half precision, and named otherwise than in a network with a head."""
    folder = tmp_path_factory.mktemp("base")
    torch.manual_seed(0)
    transformers.GPT2Model(transformers.GPT2Config(**CONFIG)).bfloat16().save_pretrained(folder)
    return folder


def settings(base: Path | None, **changes: Any) -> Train:
    options = {"pretrained": str(base)} if base else {"config": {"model_type": "gpt2", **CONFIG}}
    model = {"model": "transformers:AutoModelForCausalLM", "model_options": options}
    return Train.model_validate(model | {"adapters": LORA | changes})


@pytest.fixture(scope="module")
def registered(blocks: Dataset, base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.nn.Module]:
    """A model's folder, and the merged network that it is of."""
    folder = tmp_path_factory.mktemp("registered")
    network = build_model(blocks, settings(base))
    with torch.no_grad():
        for weight in network.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn_like(weight), alpha=0.1)
    return write(folder, blocks, network, settings(base)), merge_adapters(network).eval()


def write(folder: Path, blocks: Dataset, network: torch.nn.Module, recipe: Train) -> Path:
    """The folder of the model that a network becomes."""
    kept = save_best(str(folder), full_state(network), step=1, epoch=1)
    (folder / "model").mkdir()
    write_model_folder(folder / "model", blocks, recipe, f"{folder}/{kept.name}")
    return folder / "model"


def test_the_model_is_as_large_as_what_was_learned_and_answers_as_the_merged_one(
    blocks: Dataset, base: Path, registered: tuple[Path, torch.nn.Module]
) -> None:
    folder, merged = registered
    rows = some_rows(blocks)
    with torch.no_grad():
        expected = logits_of(answer(merged, rows))
        torch.testing.assert_close(logits_of(answer(load_network(folder / NETWORK_FILE), rows)), expected)
    adapters = folder / "adapter_model.safetensors"
    assert adapters.stat().st_size < (base / "model.safetensors").stat().st_size / 4
    weights, whole = load_weights(folder / NETWORK_FILE), full_state(merged)
    assert weights.keys() >= whole.keys()
    torch.testing.assert_close({name: weights[name] for name in whole}, dict(whole))


def test_peft_reads_the_same_adapters(blocks: Dataset, base: Path, registered: tuple[Path, torch.nn.Module]) -> None:
    folder, merged = registered
    plain = transformers.GPT2LMHeadModel.from_pretrained(base, dtype=torch.float32)
    theirs = peft.PeftModel.from_pretrained(plain, str(folder)).eval()
    rows = some_rows(blocks)
    with torch.no_grad():
        torch.testing.assert_close(logits_of(answer(theirs, rows)), logits_of(answer(merged, rows)))


def test_a_base_that_is_gone_or_another_one_is_told(blocks: Dataset, base: Path, tmp_path: Path) -> None:
    moved = tmp_path / "base"
    shutil.copytree(base, moved)
    write(tmp_path, blocks, build_model(blocks, settings(moved)), settings(moved))
    weights = bytearray((moved / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (moved / "model.safetensors").write_bytes(weights)
    with pytest.raises(ModelError, match=r"base network, but .*model\.safetensors has changed since training"):
        load_network(tmp_path / "model" / NETWORK_FILE)
    (moved / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"base network, but .*model\.safetensors is missing; restore it"):
        load_network(tmp_path / "model" / NETWORK_FILE)
    shutil.copy(base / "model.safetensors", moved)
    (tmp_path / "model" / "adapter_model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ModelError, match=r"the adapters beside .* are damaged"):
        load_network(tmp_path / "model" / NETWORK_FILE)


def test_adapters_need_a_base_that_stays_and_may_be_registered_otherwise_later(blocks: Dataset, base: Path) -> None:
    with pytest.raises(ConfigError, match="has no `pretrained`; set it to the folder"):
        check_model(blocks, settings(None))
    check_model(blocks, settings(base))
    assert recipe_of(settings(base)) == recipe_of(settings(base, registered="merged"))
