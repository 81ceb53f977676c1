"""From a registered model to a version of it that has lighter forms. Runs on the driver."""

import json
import logging
import re
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import SparkSession

from sparkdl.cluster import IndependentTasks, exit_on_sigterm, get_session, spark_reason
from sparkdl.data import Dataset
from sparkdl.data.model_card import ModelCard
from sparkdl.data.model_inputs import packages_for_inputs
from sparkdl.errors import ConfigError, DataError, DatasetError, ModelError
from sparkdl.forms.make import make_forms
from sparkdl.models import NETWORK_FILE, Form, files_to_leave, module_of, read_forms, write_forms
from sparkdl.scoring.dataframe import Trained
from sparkdl.scoring.shipping import ship
from sparkdl.settings import Cluster, Compress, Tracking
from sparkdl.settings.compress import FormName
from sparkdl.settings.score import BATCH_SIZE, TOP_K
from sparkdl.storage import check_writable, download_files, join, remove
from sparkdl.tracking import Registered, check_store, download, original_of, pinned, start_run

__all__ = ["CompressedModel", "check_compress", "compress", "split_to_measure_by"]

log = logging.getLogger(__name__)

FEWEST = 32
"""Rows to calibrate by: of fewer, the ranges that they show are not those of others."""
OF_ONNX = ("int8", "onnx")
"""The forms that ONNX Runtime computes."""


@dataclass(frozen=True)
class CompressedModel:
    """What :func:`compress` returns."""

    run_id: str
    """The MLflow run."""
    forms: dict[FormName, Form]
    """The forms that the new version has, and what they lost."""
    left_out: dict[FormName, str]
    """Those that it has not, and why."""
    model_uri: str
    """The logged model; the registered version when there is one."""
    registered: Registered | None
    """The version in the registry and whether the alias moved to it."""
    tracking: Tracking
    """The store that has the model."""


@dataclass(frozen=True)
class _Checked:
    """What can begin."""

    uri: str
    folder: Path
    card: ModelCard
    dataset: Dataset
    split: str
    tracking: Tracking


def compress(
    model: "str | Trained | None" = None,
    settings: Compress | None = None,
    *,
    dataset: Dataset | str | None = None,
    cluster: Cluster | None = None,
    tracking: Tracking | None = None,
    spark: SparkSession | None = None,
) -> CompressedModel:
    """Make lighter forms of a registered model and register a version that has them beside it. Runs on the driver.

    ``model`` is what :func:`sparkdl.train` or :func:`sparkdl.train_extreme` has returned or a model's URI, by default
    ``settings.model``; ``dataset`` a prepared one with its inputs and labels, by default ``settings.dataset``. A Spark
    task makes the forms and compares each with the original on the rows of ``validation``, or of ``test`` if there is
    no such split. A form that cannot be made, or loses more than ``settings.gate`` allows, is left out, and the log
    says why. The new version keeps the signature, example, metadata, description, tags and figures of the old one, and
    the alias moves to it as ``tracking.gate`` says. The tags ``sparkdl.made_from`` and ``sparkdl.trained_in`` name the
    old one, and the run that trained it. Of an ensemble for very many classes there is the form ``int8``, and its
    figure is the precision at 1.

    Raises :class:`ModelError` for a network that is not exported, and when no form is left, in which case there is no
    new version; :class:`~sparkdl.errors.RegistryError` for a model that does not exist; :class:`DatasetError` for a
    dataset of other inputs or labels, or without rows that are held out; :class:`DataError` for too few rows to
    calibrate by.
    """
    settings, cluster, tracking = settings or Compress(), cluster or Cluster(), tracking or Tracking()
    checked = _checked(model, settings, dataset, tracking)
    spark, tracking = spark or get_session(cluster), checked.tracking
    sections = {"compress": settings, "tracking": tracking}
    params: dict[str, Any] = {name: section.model_dump() for name, section in sections.items()}
    params |= {"model": checked.uri, "dataset": checked.dataset.path}
    with exit_on_sigterm(), start_run(tracking, params=params) as run, TemporaryDirectory() as scratch:
        opened = checked.dataset
        run.log_dataset(name=Path(opened.path).name, digest=opened.digest, source=opened.path, card=opened.card_json)
        folder, left = Path(scratch, "model"), join(settings.run_dir, run.run_id, "forms")
        shutil.copytree(checked.folder, folder)
        try:
            forms, left_out = _made(checked, settings, spark, left, folder)
        finally:
            remove(left)
        for name, reason in left_out.items():
            log.warning("the form %s is left out: %s", name, reason)
        if not forms:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
            raise ModelError(f"no form of {checked.uri} could be made, so no version was registered: {reasons}")
        write_forms(folder, read_forms(checked.folder) | forms)
        original = original_of(checked.uri, tracking)
        measured = {f"{name}_{form.metric}": form.figure for name, form in forms.items()}
        metrics = original.figures | measured
        run.log_metrics(metrics | {f"{name}_bytes": float(form.bytes) for name, form in forms.items()}, step=0)
        uri = run.log_model_made_from(
            original,
            folder,
            requirements=[*packages_for_inputs(folder), *_packages(checked.card, forms)],
            params={"form": "auto", "top_k": TOP_K, "batch_size": BATCH_SIZE},
        )
        registered = run.register(uri, metrics, kept=original.kept_beside(measured)) if tracking.register_as else None
        return CompressedModel(run.run_id, forms, left_out, registered.uri if registered else uri, registered, tracking)


def check_compress(
    model: "str | Trained | None" = None,
    settings: Compress | None = None,
    *,
    dataset: Dataset | str | None = None,
    cluster: Cluster | None = None,
    tracking: Tracking | None = None,
    spark: SparkSession | None = None,
) -> dict[str, str]:
    """Check what :func:`compress` needs, make nothing, and say what would be made. Runs on the driver.

    Takes its arguments and raises its errors, as far as they can be found without making a form.
    """
    settings, tracking = settings or Compress(), tracking or Tracking()
    checked = _checked(model, settings, dataset, tracking)
    check_writable(settings.run_dir)
    return {
        "model": checked.uri,
        "forms": ", ".join(settings.forms),
        "measured on": f"{checked.dataset.rows(checked.split):,} rows of {checked.split} in {checked.dataset.path}",
        "registers": checked.tracking.register_as or "nothing (tracking.register_as)",
        "tracking": check_store(tracking),
    }


def _made(
    checked: _Checked, settings: Compress, spark: SparkSession, target: str, folder: Path
) -> tuple[dict[FormName, Form], dict[FormName, str]]:
    """The forms that a task has made, whose files are then in the folder, and why others are left out."""
    left = files_to_leave(checked.folder, "original")
    paths = sorted(path for path in checked.folder.iterdir() if path.is_file() and path.name not in left)
    files = [(path.name, ship(spark, path)) for path in paths]
    work = partial(make_forms, files, checked.dataset, checked.split, settings, target)
    with IndependentTasks(spark) as tasks:
        try:
            lines = tasks.submit(work, description=f"forms of {checked.uri}").result()
        except Exception as error:
            raise ModelError(f"the task that makes forms failed: {spark_reason(error)}") from None
    found = {line["name"]: line for line in map(json.loads, lines)}
    forms = {name: Form.model_validate(line["form"]) for name, line in found.items() if "form" in line}
    if forms:
        download_files(target, folder)
    return forms, {name: line["refused"] for name, line in found.items() if "refused" in line}


def _checked(
    model: "str | Trained | None", settings: Compress, dataset: Dataset | str | None, tracking: Tracking
) -> _Checked:
    if model is not None and not isinstance(model, str):
        tracking, model = model.tracking, model.model_uri
    uri = model or settings.model or (tracking.register_as and f"models:/{tracking.register_as}@{tracking.alias}")
    if not uri:
        raise ConfigError("there is no model to compress: set compress.model, or tracking.register_as")
    where, uri = _where(uri, tracking), pinned(uri, tracking)  # an alias may move meanwhile
    folder = download(uri, tracking)
    card = ModelCard.load(folder)
    if card.labels:
        if "int8" not in settings.forms:
            raise ModelError(
                f"{uri} is an ensemble for very many classes, which only has the form int8; add it to compress.forms"
            )
    elif module := module_of(folder / NETWORK_FILE):
        raise ModelError(
            f"{uri} could not be exported (code of {module} builds its network), but forms need an exported network"
        )
    opened = _opened(dataset or settings.dataset, card, uri)
    return _Checked(uri, folder, card, opened, split_to_measure_by(opened, settings), where)


def split_to_measure_by(dataset: Dataset, settings: Compress) -> str:
    """The rows of a dataset by which forms of what is trained on it are measured. Runs on the driver.

    Raises :class:`DatasetError` where none are held out, and :class:`DataError` for too few to calibrate by.
    """
    split = next((name for name in ("validation", "test") if name in dataset.splits), None)
    if split is None:
        raise DatasetError(
            f"{dataset.path} has no rows held out to measure forms by; prepare it with a split `validation` or `test`"
        )
    rows, wanted = dataset.rows(split), settings.calibration_rows
    if "int8" in settings.forms and not dataset.card.labels and rows < min(wanted, FEWEST):
        raise DataError(
            f"{dataset.path} has {rows} rows of {split}, too few to calibrate int8 by ({min(wanted, FEWEST)} or more);"
            " hold out more, or set compress.calibration_rows to 0"
        )
    return split


def _packages(card: ModelCard, forms: Collection[FormName]) -> list[str]:
    """Those that open a model's forms, and its original."""
    if card.labels:
        return ["numba"]
    return ["onnx", "onnxruntime"] if {*OF_ONNX} & {*forms} else []


def _opened(dataset: Dataset | str | None, card: ModelCard, uri: str) -> Dataset:
    """The dataset, whose rows the model reads."""
    if dataset is None:
        raise ConfigError(
            "there are no rows to measure forms by: set compress.dataset, train.dataset or prepare.output"
        )
    opened = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    theirs = opened.card
    for what, ours, found in (
        ("inputs", card.inputs or card.unnamed, theirs.inputs or theirs.unnamed),
        ("task", card.task, theirs.task),
        ("labels", card.labels or card.label_names, theirs.labels or theirs.label_names),
    ):
        if ours != found:
            raise DatasetError(f"the dataset {opened.path} has other {what} than {uri} was trained on; name its own")
    return opened


def _where(uri: str, tracking: Tracking) -> Tracking:
    """The registered model that gets a new version, and the alias that moves to it: those that the URI names."""
    found = re.fullmatch(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/]+)|/\d+)", uri)
    if not found:
        return tracking
    return tracking.model_copy(update={"register_as": found["name"], "alias": found["alias"] or tracking.alias})
