"""Adds the predictions of a registered model to a DataFrame as columns.

Runs on the driver, lazily: Spark tasks compute the predictions when an action needs the rows.
"""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from sparkdl.data.bad_rows import PROBLEM, problem_text
from sparkdl.data.card import PREPROCESSING
from sparkdl.data.model_card import ModelCard
from sparkdl.data.raw_columns import require_columns
from sparkdl.errors import ConfigError, OnlySparkError
from sparkdl.models import files_to_leave
from sparkdl.preprocessing import read_pipeline
from sparkdl.scoring.columns import check_columns, check_room
from sparkdl.scoring.open_form import check_form, checked_choice
from sparkdl.scoring.predictor import Asked, answering_task
from sparkdl.scoring.raw_inputs import Features
from sparkdl.scoring.shipping import ship
from sparkdl.scoring.task import ERROR, ScoringTask
from sparkdl.scoring.trusted_code import code_for
from sparkdl.settings import Tracking
from sparkdl.settings.compress import FormChoice
from sparkdl.settings.score import BATCH_SIZE, TOP_K
from sparkdl.tracking import download

__all__ = ["rows_to_score", "score", "score_vectors"]


class Trained(Protocol):
    """What :func:`sparkdl.train` and :func:`sparkdl.train_extreme` return, as far as scoring needs it."""

    @property
    def model_uri(self) -> str: ...
    @property
    def tracking(self) -> Tracking: ...


def score(
    df: DataFrame,
    model: "str | Trained",
    *,
    top_k: int = TOP_K,
    batch_size: int = BATCH_SIZE,
    on_error: Literal["fail", "null"] = "fail",
    key: str | None = None,
    predict: str | None = None,
    form: FormChoice = "auto",
    trusted_stages: Collection[str] = (),
    trusted_modules: Collection[str] = (),
    tracking: Tracking | None = None,
) -> DataFrame:
    """Append a registered model's predictions to raw rows, lazily. Runs on the driver.

    ``model`` is one of three: the result of :func:`sparkdl.train` or :func:`sparkdl.train_extreme`; the name of a model
    in the store of ``tracking``, ``models:/name@alias`` or ``models:/name/version``; or the folder of a saved model.

    The result has all columns of ``df``, and these, depending on the model's task:

    * classification: ``prediction`` (the label, in its type when the dataset was prepared; a text for models of older
      versions, whose cards lack the type), ``probability`` (of that label), and ``top_k`` (an array of labels with
      their probabilities, the most likely first);
    * several labels: ``prediction`` (the array of labels whose probability is above one half) and ``top_k``;
    * regression: ``prediction``, the number;
    * ranking: ``prediction``, the score; rows with higher scores rank first;
    * language modelling: ``log_likelihood`` of each text in nats, ``num_tokens``, and ``perplexity``, e to the power of
      the mean loss per token.

    The outputs that ``train.outputs`` names follow as further columns, floats or arrays of floats. With ``predict``,
    one of these outputs is the only column that is added: ``predict="embedding"`` makes vectors.

    The driver fetches the model and Spark ships it to the executors, where each Python worker loads it once; executors
    need no access to MLflow.

    An image is either an encoded file, which is decoded and resized to the model's input, or raw bytes of exactly that
    size. A Spark task receives ``spark.sql.execution.arrow.maxRecordsPerBatch`` of them at a time.

    A row cannot be scored if it is null, of another size, no image, NaN or infinite, or has a number that is not of the
    type in training, such as 1.5 in place of an int. With ``on_error="fail"`` its task fails with a
    :class:`~sparkdl.errors.DataError`, which names the row by the column ``key`` and gives the reason. With ``"null"``
    its predictions are null, an additional column ``error`` has the reason, and all other rows are scored.

    ``form`` is one of the lighter forms that :func:`sparkdl.compress` has made of the network, or ``original`` for the
    network itself. With ``auto``, if the model has the form ``onnx``, a task measures it and the original for a second
    when it loads them, and uses the faster one. The forms ``int8`` and ``onnx`` compute on the CPU.

    Nothing in a model's folder is executed. A network that could not be exported is built by its own code, which is
    imported on the driver and in tasks if its module or package is among ``trusted_modules``. Preprocessing with stages
    of your own (``prepare(pipeline=...)``) is loaded if their classes are among ``trusted_stages``, each as
    ``package.module.Class``.

    Raises :class:`~sparkdl.errors.RegistryError` for a model that does not exist, :class:`~sparkdl.errors.ModelError`
    for one that is damaged or would run code, :class:`~sparkdl.errors.DataError` for columns that are missing, of
    another type or of the same name, and :class:`ConfigError` for a ``top_k`` or ``batch_size`` below 1, an output
    that the model does not have and a form that it does not have.
    """
    if min(top_k, batch_size) < 1:
        raise ConfigError(f"score: `top_k` is {top_k} and `batch_size` is {batch_size}; both must be 1 or more")
    if not isinstance(model, str):
        tracking = tracking or model.tracking
        model = model.model_uri
    folder = download(model, tracking)
    card = ModelCard.load(folder)
    asked = Asked.output(predict, card)
    answer = from_arrow_schema(answering_task(card, asked).answer)
    added = answer if on_error == "fail" else StructType([*answer, StructField(ERROR, StringType())])
    check_columns(df, card, key)
    check_room(df, added.names)
    form = check_form(folder, checked_choice(form))
    modules = () if card.labels else code_for(folder, trusted_modules)
    rows = _rows_to_score(df, card, folder, trusted_stages)
    options: dict[str, Any] = {"key": key, "on_error": on_error, "asked": asked}
    options |= {"trusted": tuple(trusted_modules), "modules": modules, "form": form}
    scored = _answered(df, rows, folder, added, top_k=top_k, batch_size=batch_size, **options)
    return scored.toDF(*df.drop(PROBLEM).columns, *added.names)


def score_vectors(
    df: DataFrame,
    model_uri: str,
    features: Features | None,
    *,
    vectors: bool = True,
    contributions: bool = False,
    trusted_modules: Collection[str] = (),
    tracking: Tracking | None = None,
) -> DataFrame:
    """Append the columns from which the estimators' models make those of pyspark.ml, lazily. Runs on the driver.

    ``features`` are the columns that the model reads; if None, those that its card names. The columns of ``df`` are
    renamed to their positions, so that they cannot clash with the columns that are added. These are for a classifier
    (``vectors``) ``prediction`` (the label), ``logits`` and ``probabilities`` (arrays by class index), and for
    regression and ranking only ``prediction``. With ``contributions``, the last column is the array of contributions:
    see :class:`~sparkdl.scoring.predictor.Asked`. Otherwise it is like :func:`score`, and raises the same errors.
    """
    folder = download(model_uri, tracking)
    card = ModelCard.load(folder)
    asked = Asked(outputs=(), vectors=vectors, contributions=contributions)
    added = from_arrow_schema(answering_task(card, asked).answer)
    trusted, modules = tuple(trusted_modules), code_for(folder, trusted_modules)
    options: dict[str, Any] = {"features": features, "asked": asked, "trusted": trusted, "modules": modules}
    if features is None:
        check_columns(df, card, None)
    reads = card.raw_columns if features is None else dict(features.kinds)
    scored = _answered(df, rows_to_score(df, reads), folder, added, **options)
    return scored.toDF(*scored.columns[: -len(added)], *added.names)


def _answered(
    df: DataFrame,
    rows: "RowsToScore",
    folder: Path,
    added: StructType,
    *,
    top_k: int = TOP_K,
    batch_size: int = BATCH_SIZE,
    form: FormChoice = "original",
    **options: Any,
) -> DataFrame:
    """The rows with the columns that are added; every column is named by its position."""
    spark, kept = df.sparkSession, df.drop(PROBLEM)
    parts = _parts(folder, form, preprocessed=rows.preprocessed)
    task = ScoringTask(
        files=tuple((path.name, ship(spark, path)) for path in parts),
        keep=tuple(kept.columns),
        reads=tuple(rows.reads.items()),
        refused=rows.refused,
        preprocessed=rows.preprocessed,
        top_k=top_k,
        batch_size=batch_size,
        form=form,
        threads=int(spark.conf.get("spark.task.cpus", "1") or 1),
        **options,
    )
    made = enumerate([*kept.schema.fields, *added])
    placed = [StructField(str(place), each.dataType, each.nullable, each.metadata) for place, each in made]
    return rows.frame.mapInArrow(task, StructType(placed))


class RowsToScore(NamedTuple):
    """Rows with everything that a task reads. Columns are named by their positions, as Arrow needs distinct names."""

    frame: DataFrame
    """First the columns of the rows themselves, then additional ones."""
    reads: dict[str, int]
    """The position of each raw column of the model; if Spark has preprocessed the rows, that of the model's input."""
    refused: int | None
    """The position of the column with the reason for which a row is refused; None if there is no such column."""
    preprocessed: bool
    """Whether Spark has already preprocessed the rows."""


def rows_to_score(df: DataFrame, names: Iterable[str]) -> RowsToScore:
    """Rows whose raw columns, those of these names, reach the task unchanged."""
    columns = df.columns
    numbered = df.toDF(*map(str, range(len(columns))))
    kept = [f"`{place}`" for place, name in enumerate(columns) if name != PROBLEM]
    reads: dict[str, int] = {}
    more: list[Column] = []
    for name, found in require_columns(df, names).items():
        if len(found.path) == 1:
            reads[name] = kept.index(f"`{found.place}`")
        else:
            reads[name] = len(kept) + len(more)
            more.append(found.of(numbered))
    refused = None
    if PROBLEM in columns:
        refused = len(kept) + len(more)
        more.append(problem_text(numbered[f"`{columns.index(PROBLEM)}`"]))
    chosen = numbered.select(*kept, *more)
    return RowsToScore(chosen.toDF(*map(str, range(len(chosen.columns)))), reads, refused, preprocessed=False)


def _rows_to_score(df: DataFrame, card: ModelCard, folder: Path, trusted: Collection[str]) -> RowsToScore:
    if card.preprocessing:
        try:
            read_pipeline(folder / PREPROCESSING, trusted=trusted)
        except OnlySparkError:
            from sparkdl.scoring.by_spark import with_inputs  # imports pyspark.ml, which others do not need

            made = with_inputs(df, card, folder, trusted_stages=trusted)
            width = len(made.columns)
            frame = made.toDF(*map(str, range(width)))
            return RowsToScore(frame, {card.input.column: width - 2}, width - 1, preprocessed=True)
    return rows_to_score(df, card.raw_columns)


def _parts(folder: Path, form: FormChoice, *, preprocessed: bool) -> list[Path]:
    """The files of a model's folder that a task needs."""
    left = files_to_leave(folder, form)
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name not in left)
    return files if preprocessed or not (folder / PREPROCESSING).is_dir() else [*files, folder / PREPROCESSING]
