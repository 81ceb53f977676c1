"""An ensemble in fewer bits: what it answers, what it takes of a disk, and whom it does not trust."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from sparkdl.data import SparseBatch
from sparkdl.errors import ConfigError, ModelError
from sparkdl.extreme.ensemble import Ensemble, open_model
from sparkdl.extreme.ensemble_card import EnsembleCard
from sparkdl.extreme.light_networks import LIGHT_NAME, bits_that_fit, files_it_replaces, open_light, write_light
from sparkdl.extreme.ranker import Classifiers, TrainedRanker
from sparkdl.models import Form, write_forms
from sparkdl.settings import LinearRankerOptions
from sparkdl.storage import hash_file

from .ensembles import CLASSES, INPUT, WIDTH, rows, write

RANDOM = np.random.default_rng(0)
LENGTHS = RANDOM.integers(0, 6, CLASSES)  # of some classes none
RANKER = TrainedRanker(
    Classifiers(
        RANDOM.integers(0, WIDTH, LENGTHS.sum()).astype(np.int32),
        RANDOM.normal(size=LENGTHS.sum()).astype(np.float32),
        np.concatenate([[0], np.cumsum(LENGTHS)]),
        RANDOM.normal(size=CLASSES).astype(np.float32),
    ),
    LinearRankerOptions(candidates=12, ensemble_weight=0.5),
)


def light(folder: Path, *, bits: int = 4, **options: Any) -> EnsembleCard:
    """An ensemble with a lighter form beside it."""
    write(folder, **options)
    card = EnsembleCard.load(folder)
    write_light(folder, card, folder / LIGHT_NAME, bits=bits, shortlist=10 if card.ranker else None)
    described = {"made": "here", "metric": "validation_precision_at_1", "figure": 0.5, "original_figure": 0.5}
    size = (folder / LIGHT_NAME).stat().st_size
    form = Form.model_validate(
        {"file": LIGHT_NAME, "replaces": files_it_replaces(card), "sha256": hash_file(str(folder / LIGHT_NAME))}
        | {"bytes": size, "original_bytes": size, "rows": 1, **described}
    )
    write_forms(folder, {"int8": form})
    return card


def a_batch(count: int = 60) -> SparseBatch:
    places = RANDOM.integers(0, WIDTH, 3 * count)
    ends = torch.arange(0, 3 * count + 1, 3)
    labels = torch.empty(0, dtype=torch.int64), torch.zeros(count + 1, dtype=torch.int64)
    return SparseBatch(torch.from_numpy(places), torch.from_numpy(RANDOM.random(3 * count, np.float32)), ends, *labels)


@pytest.mark.parametrize(("bits", "far"), [(4, 0.15), (2, 0.6)])
@pytest.mark.parametrize("options", [{}, {"hashed_features": 20}, {"hidden": (16, 12)}, {"hidden": ()}])
def test_it_answers_about_as_the_original_does(tmp_path: Path, bits: int, far: float, options: dict[str, Any]) -> None:
    light(tmp_path, bits=bits, **options)
    original, lighter = Ensemble.open(tmp_path), Ensemble.open(tmp_path, "int8")
    batch = a_batch()
    expected = original.logits(batch)
    apart = (lighter.logits(batch) - expected).std()
    assert apart <= far * expected.std()
    assert lighter.repetitions == original.repetitions


def test_a_row_is_answered_alike_whatever_rows_come_with_it(tmp_path: Path) -> None:
    light(tmp_path, ranker=RANKER)
    model = open_model(tmp_path, INPUT, CLASSES, form="int8")
    classes, probabilities = model.top_k(rows(40), 5, batch_size=1000)
    again, close = model.top_k(rows(40), 5, batch_size=7)
    np.testing.assert_allclose(close, probabilities, rtol=1e-5)
    assert (again == classes).mean() > 0.99


def test_its_ranker_orders_a_shorter_list_by_weights_of_eight_bits(tmp_path: Path) -> None:
    light(tmp_path, ranker=RANKER)
    original, lighter = Ensemble.open(tmp_path), Ensemble.open(tmp_path, "int8")
    assert original.ranker and lighter.ranker
    assert (original.ranker.card.candidates, lighter.ranker.card.candidates) == (12, 10)
    batch = a_batch()
    candidates = original.decode(original.logits(batch), CLASSES)
    expected, found = (each.ranker.order(batch, candidates, CLASSES) for each in (original, lighter))
    torch.testing.assert_close(found.scores, expected.scores, rtol=0, atol=0.1)
    assert (found.classes[:, 0] == expected.classes[:, 0]).float().mean() > 0.9


def test_a_feature_takes_a_quarter_of_its_bytes(tmp_path: Path) -> None:
    card = light(tmp_path, bits=2, hidden=(120,))
    replaced = sum((tmp_path / name).stat().st_size for name in files_it_replaces(card))
    tables = {name: each.nbytes for name, each in load_file(tmp_path / LIGHT_NAME).items() if name.endswith("table")}
    assert sum(tables.values()) == len(card.repetitions) * WIDTH * (120 // 4 + 4)
    assert sum(tables.values()) < 0.28 * replaced


def test_a_width_that_fills_no_whole_bytes_has_other_bits_or_none(tmp_path: Path) -> None:
    write(tmp_path)
    card = EnsembleCard.load(tmp_path)
    found = {width: bits_that_fit(card.model_copy(update={"hidden": (width,)})) for width in (15, 16, 18)}
    assert found == {15: (), 16: (2, 4), 18: (4,)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"0.table": torch.zeros(WIDTH, 11, dtype=torch.uint8)}, r"not torch\.uint8 of shape \(50, 12\)"),
        ({"0.weight.1": torch.zeros(8, 16)}, r"is torch\.float32 of shape \(8, 16\), not torch\.int8"),
        ({"1.scale.1": torch.zeros(7)}, r"of shape \(7,\), not torch\.float32 of shape \(8,\)"),
        ({"ranker.features": torch.full((int(LENGTHS.sum()),), WIDTH, dtype=torch.int32)}, "the ranker in .* is not"),
        ({"ranker.scales": torch.zeros(3)}, r"of shape \(3,\)"),
        ({"3.bias.0": None}, "do not fit"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_before_anything_is_computed(
    tmp_path: Path, changes: dict[str, torch.Tensor | None], words: str
) -> None:
    light(tmp_path, ranker=RANKER)
    path = tmp_path / LIGHT_NAME
    tensors = {**load_file(path), **changes}
    save_file({name: each for name, each in tensors.items() if each is not None}, path, {"bits": "4", "shortlist": "5"})
    form = Form.model_validate_json(Form(**_as_it_was(path)).model_dump_json())
    write_forms(tmp_path, {"int8": form})
    with pytest.raises(ModelError, match=words):
        Ensemble.open(tmp_path, "int8")


def _as_it_was(path: Path) -> dict[str, Any]:
    """What a stranger writes who knows the format."""
    figures = {
        "metric": "x",
        "figure": 1,
        "original_figure": 1,
        "rows": 1,
        "bytes": 1,
        "original_bytes": 1,
        "made": "x",
    }
    return {"file": LIGHT_NAME, "sha256": hash_file(str(path)), **figures}


def test_a_file_of_other_bits_or_of_another_kind_is_told(tmp_path: Path) -> None:
    card = light(tmp_path)
    path = tmp_path / LIGHT_NAME
    save_file(load_file(path), path, {"bits": "3", "shortlist": "0"})
    with pytest.raises(ModelError, match="has 3 bits a weight; there are forms of 2 and 4"):
        open_light(path, card)
    path.write_bytes(b"none")
    with pytest.raises(ModelError, match="cannot read the weights"):
        open_light(path, card)
    (tmp_path / "forms.json").unlink()
    with pytest.raises(ConfigError, match="the model has no form 'int8'"):
        Ensemble.open(tmp_path, "int8")
