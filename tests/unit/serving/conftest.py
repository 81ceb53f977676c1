from pathlib import Path

import pytest
import torch

from sparkdl.data.card import PREPROCESSING, InputSpec
from sparkdl.data.model_card import ModelCard
from sparkdl.models import NETWORK_FILE, build, export_network
from sparkdl.preprocessing.assembling import Assemble
from sparkdl.preprocessing.calendar_parts import CalendarParts
from sparkdl.preprocessing.categories import Index
from sparkdl.preprocessing.stages_file import STAGES_FILE, as_json


@pytest.fixture(scope="session")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that reads a number, a whole one, a category, a field of a struct and a date."""
    folder = tmp_path_factory.mktemp("people")
    card = ModelCard(
        input=InputSpec(column="features", kind="vector", shape=(5,), dtype="float32"),
        label_names=("no", "yes"),
        raw_columns={"age": "double", "rooms": "int", "side": "string", "home.lat": "double", "born": "date"},
        fields={"home.lat": ("home", "lat")},
        preprocessing=True,
    )
    stages = [
        Index(("side",), ("place",), (("port", "star"),)),
        CalendarParts("born", ("year",), ("year",), 0),
        Assemble(("age", "rooms", "place", "home.lat", "year"), "features", "float32"),
    ]
    (folder / PREPROCESSING).mkdir()
    (folder / PREPROCESSING / STAGES_FILE).write_bytes(as_json(stages))
    torch.manual_seed(0)
    export_network(build("mlp", input_shape=(5,), num_classes=2), folder / NETWORK_FILE, torch.zeros(1, 5))
    (folder / "card.json").write_text(card.model_dump_json())
    return folder
