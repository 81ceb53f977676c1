"""An ensemble in its folder: what it computes, what it takes of memory, and whether damage is found."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from sparkdl.data import SparseBatch
from sparkdl.errors import DataError, ModelError
from sparkdl.extreme.ensemble import Ensemble, open_model
from sparkdl.extreme.ensemble_card import ENSEMBLE_NAME
from sparkdl.extreme.meta_model import MetaModels
from sparkdl.extreme.repetitions import save_repetition, weights_name

from .ensembles import BUCKETS, CLASSES, INPUT, VECTOR, WIDTH, rows, write


def test_it_computes_what_the_meta_models_did_to_the_precision_of_its_files(tmp_path: Path) -> None:
    models = write(tmp_path)
    ensemble = Ensemble.open(tmp_path)
    batch = SparseBatch(
        torch.tensor([3, 9, 20]), torch.rand(3), torch.tensor([0, 2, 2, 3]), torch.empty(0), torch.zeros(4)
    )
    torch.testing.assert_close(ensemble.logits(batch), models.logits(batch), rtol=0, atol=5e-3)
    assert ensemble.repetitions == (0, 1, 3)
    assert ensemble.card.missing == (2,)


def test_hashed_features_are_hashed_again_when_it_is_asked(tmp_path: Path) -> None:
    models = write(tmp_path, hashed_features=20)
    ensemble = Ensemble.open(tmp_path)
    batch = SparseBatch(
        torch.tensor([3, 9, 45]), torch.rand(3), torch.tensor([0, 2, 2, 3]), torch.empty(0), torch.zeros(4)
    )
    torch.testing.assert_close(ensemble.logits(batch), models.logits(batch), rtol=0, atol=5e-3)


def test_its_answers_do_not_depend_on_the_batch_size(tmp_path: Path) -> None:
    write(tmp_path)
    model = open_model(tmp_path, INPUT, CLASSES)
    classes, probabilities = model.top_k(rows(40), 5, batch_size=1000)
    assert classes.shape == probabilities.shape == (40, 5)
    assert (np.diff(probabilities, axis=1) <= 0).all() and (probabilities > 0).all() and (probabilities <= 1).all()
    again, close = model.top_k(rows(40), 5, batch_size=7)
    np.testing.assert_allclose(close, probabilities, rtol=1e-5)
    assert (again == classes).mean() > 0.99
    part, _ = model.top_k(rows(40).slice(30, 10), 5, batch_size=1000)
    assert (part == classes[30:]).mean() > 0.99
    assert model.top_k(rows(1)[:0], 5, batch_size=7)[0].shape == (0, 5)


def test_opening_it_copies_no_first_layer_into_memory(tmp_path: Path) -> None:
    width = 1 << 22
    for each in (WIDTH, width):  # the first one loads what PyTorch loads but once
        folder = tmp_path / str(each)
        write(folder, (0,), asked=1, width=each)
        before = _private_bytes()
        model = open_model(folder, INPUT.model_copy(update={"shape": (each,)}), CLASSES)
        model.top_k(rows(100, width=each), 5, batch_size=100)
        grown = _private_bytes() - before
    assert grown < (folder / weights_name(0)).stat().st_size / 2


def _private_bytes() -> int:
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("truncated", r"repetition-0001\.safetensors was altered after training"),
        ("altered", r"repetition-0001\.safetensors was altered after training"),
        ("missing", r"cannot read the weights .*repetition-0001\.safetensors"),
        ("narrower", "is for 40 features, not 50"),
        ("other layers", r"do not fit ensemble\.json"),
        ("labels", r"labels\.parquet was altered"),
        ("card", r"does not describe an ensemble: buckets"),
        ("no card", r"has no readable ensemble\.json"),
    ],
)
def test_damage_is_told_with_the_file(tmp_path: Path, damage: str, words: str) -> None:
    write(tmp_path)
    path, card = tmp_path / weights_name(1), tmp_path / ENSEMBLE_NAME
    content, described = path.read_bytes(), json.loads(card.read_text())
    match damage:
        case "truncated":
            path.write_bytes(content[:-1])
        case "altered":
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case "missing":
            path.unlink()
        case "narrower":
            write(tmp_path, width=40)
            described = json.loads(card.read_text()) | {"width": WIDTH}
            card.write_text(json.dumps(described))
        case "other layers":
            card.write_text(json.dumps(described | {"hidden": [17]}))
        case "labels":
            (tmp_path / "labels.parquet").write_bytes(b"others")
        case "card":
            card.write_text(json.dumps(described | {"buckets": 0}))
        case "no card":
            card.unlink()
    with pytest.raises(ModelError, match=words):
        open_model(tmp_path, INPUT, CLASSES)


def test_a_repetition_with_clusters_is_decoded_by_its_table(tmp_path: Path) -> None:
    models = write(tmp_path, (0, 1))
    table = torch.arange(CLASSES, dtype=torch.int32) % BUCKETS
    cluster(tmp_path, models, table)
    ensemble = Ensemble.open(tmp_path)
    assert ensemble.buckets[0] == ensemble.card.bucket_hash(0)
    np.testing.assert_array_equal(ensemble.buckets[1].buckets(np.arange(CLASSES)), table)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (torch.full((CLASSES,), BUCKETS, dtype=torch.int32), "beyond the 8 there are"),
        (torch.full((CLASSES,), -1, dtype=torch.int32), "beyond the 8 there are"),
        (torch.zeros(CLASSES - 1, dtype=torch.int32), "is not for 30 classes"),
        (torch.zeros(CLASSES), "is not for 30 classes"),
    ],
)
def test_a_table_that_leads_out_of_the_buckets_is_refused(tmp_path: Path, table: torch.Tensor, words: str) -> None:
    cluster(tmp_path, write(tmp_path, (0, 1)), table)
    with pytest.raises(ModelError, match=words):
        Ensemble.open(tmp_path)


def cluster(folder: Path, models: MetaModels, table: torch.Tensor) -> None:
    """Give repetition 1 a table of buckets, as somebody might who also writes the checksum."""
    state = models.state_of(1) | {"buckets": table}
    record = save_repetition(str(folder), 1, state, made_of="this", losses=[1.0], rate=1.0, seconds=1.0)
    described = json.loads((folder / ENSEMBLE_NAME).read_text())
    described["repetitions"]["1"] = record.sha256
    (folder / ENSEMBLE_NAME).write_text(json.dumps(described))


def test_features_of_another_width_and_what_is_no_number_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    model = open_model(tmp_path, INPUT, CLASSES)
    with pytest.raises(DataError, match="column 'features': 3 rows have 60 features instead of 50"):
        model.top_k(rows(3, width=60), 5, batch_size=10)
    broken = rows(3).to_pylist()
    broken[1]["values"][0] = float("nan")
    with pytest.raises(DataError, match="column 'features' has values that are NaN, infinite or beyond float32"):
        model.top_k(pa.array(broken, VECTOR), 5, batch_size=10)
    with pytest.raises(ModelError, match="files of two models are mixed"):
        open_model(tmp_path, INPUT.model_copy(update={"shape": (60,)}), CLASSES)
