"""Networks of transformers, timm and torchvision, at tiny sizes: built from what a file of settings says of them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from sparkdl.errors import ModelError
from sparkdl.models import build, export_network, load_network, logits_of
from sparkdl.models.user_network import make_network

BERT = {
    "model_type": "bert",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
VIT = BERT | {"model_type": "vit", "patch_size": 8}
OFFERED: dict[str, Any] = {"num_classes": 3, "input_shapes": {"input_ids": (9,)}, "vocabularies": {"input_ids": 77}}
AUTO = "transformers:AutoModelForSequenceClassification"


def _texts(rows: int, length: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(77, (rows, length))
    return {"input_ids": ids, "attention_mask": torch.arange(length).expand(rows, -1) < torch.tensor([[length // 2]])}


@pytest.mark.parametrize("name", [AUTO, "transformers:BertForSequenceClassification"])
def test_a_transformer_is_made_from_a_configuration_and_exported_for_any_length(name: str, tmp_path: Path) -> None:
    network = make_network(name, OFFERED, {"config": BERT}).eval()
    assert (network.config.vocab_size, network.config.num_labels) == (77, 3)
    path = tmp_path / "network.safetensors"
    loaded = load_network(export_network(network, path, _texts(2, 5), lengths=["input_ids", "attention_mask"]))
    texts = _texts(4, 12)
    with torch.no_grad():
        torch.testing.assert_close(logits_of(loaded(**texts)), network(**texts).logits)


def test_a_folder_gives_its_weights_to_a_network_with_other_classes(tmp_path: Path) -> None:
    first: Any = make_network(AUTO, OFFERED, {"config": BERT})
    first.save_pretrained(tmp_path)
    second: Any = make_network(AUTO, OFFERED | {"num_classes": 5}, {"pretrained": str(tmp_path)})
    assert second.config.num_labels == 5
    assert second.dtype == torch.float32
    for name, weight in first.bert.state_dict().items():
        assert torch.equal(weight, second.bert.state_dict()[name])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "it was given neither"),
        ({"config": BERT, "width": 3}, "it takes no 'width'"),
        ({"config": {"hidden_size": 3}}, "`config` has no `model_type`"),
        ({"config": BERT | {"hiden_size": 3}}, "a configuration of bert has no 'hiden_size'"),
        ({"pretrained": "bert-base-uncased"}, "there is no config.json in bert-base-uncased; .* nothing is downloaded"),
    ],
)
def test_what_is_neither_a_configuration_nor_a_folder_is_named(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        make_network(AUTO, OFFERED, options)


@pytest.mark.parametrize(
    ("name", "channels", "options"),
    [
        ("transformers:AutoModelForImageClassification", 3, {"config": VIT}),
        ("torchvision.models:resnet18", 3, {}),
        ("timm:create_model", 1, {"model_name": "resnet10t"}),
    ],
)
def test_networks_of_images_get_their_size_channels_and_classes(
    name: str, channels: int, options: dict[str, Any], tmp_path: Path
) -> None:
    network = build(name, input_shape=(32, 32, channels), num_classes=4, options=options).eval()
    images = torch.randint(0, 256, (3, 32, 32, channels), dtype=torch.uint8)
    loaded = load_network(export_network(network, tmp_path / "network.safetensors", images))
    with torch.no_grad():
        torch.testing.assert_close(loaded(images), logits_of(network(images)))


def test_weights_in_a_file_of_safetensors_are_taken_but_those_of_other_classes(tmp_path: Path) -> None:
    first = make_network("torchvision.models:resnet18", {"num_classes": 4}, {})
    save_file(first.state_dict(), tmp_path / "weights.safetensors")
    options = {"pretrained": str(tmp_path / "weights.safetensors")}
    second = make_network("torchvision.models:resnet18", {"num_classes": 5}, options)
    ours, theirs = second.state_dict(), first.state_dict()
    assert torch.equal(ours["conv1.weight"], theirs["conv1.weight"])
    assert ours["fc.weight"].shape == (5, 512)
    save_file({"other": torch.zeros(1)}, tmp_path / "weights.safetensors")
    with pytest.raises(ModelError, match=r"no weight in .* fits"):
        make_network("torchvision.models:resnet18", {"num_classes": 5}, options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"model_name": "hf-hub:somebody/something"}, "is an address, but nothing is downloaded"),
        ({"model_name": "nope"}, "could not be built: RuntimeError: Unknown model"),
        ({"model_name": "resnet10t", "pretrained": True}, "`pretrained` must be a safetensors file"),
        ({"model_name": "resnet10t", "pretrained": "weights.pth"}, "`pretrained` must be a safetensors file"),
        ({"model_name": "resnet10t", "pretrained": "nowhere.safetensors"}, "cannot read the weights in nowhere"),
    ],
)
def test_no_network_of_images_fetches_its_weights_or_opens_a_pickle(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        make_network("timm:create_model", {"num_classes": 4, "input_shape": (3, 32, 32)}, options)
