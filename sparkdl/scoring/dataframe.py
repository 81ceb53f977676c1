"""A registered model as new columns of a DataFrame.

Runs on the driver; the work is done by tasks, when rows are asked for.
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
    """What training returns, of networks and of ensembles for very many classes."""

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

    ``model`` is what :func:`sparkdl.train` or :func:`sparkdl.train_extreme` has returned, which knows its store; or a
    model in the store of ``tracking``, named ``models:/name@alias`` or ``models:/name/version``; or the folder of a
    saved model. The result has all columns of ``df``, and ``prediction`` (the label, in the type that it had when the
    dataset was prepared; a text for older models, whose cards do not say which), ``probability`` (of that label)
    and ``top_k`` (an array of label and probability, the likeliest first). Of a model for several labels,
    ``prediction`` is the array of those whose probability is above one half, and there is no ``probability``; of one
    for regression, it is the number, of one for ranking the score, higher for what should come first, and nothing else
    is added. A language model adds each text's ``log_likelihood``, in nats, ``num_tokens``, and ``perplexity``, e to
    the mean loss of a token. Outputs that the model was told to keep (``train.outputs``) are columns behind these,
    float or arrays of it; with ``predict``, one of them is the only column that is added: ``predict="embedding"`` makes
    vectors.

    The driver fetches the model and Spark brings it to the executors, where each Python worker loads it once; executors
    need no access to MLflow.

    An image may be the bytes of a file, which is decoded and resized to what the model reads, or raw bytes of exactly
    that size; a Spark task is handed ``spark.sql.execution.arrow.maxRecordsPerBatch`` of them at a time.

    A row may be one that the model cannot answer: null, of another size, no image, NaN or infinite, or with a number
    that is none of the type that the model was trained on, such as 1.5 where that is int. With ``on_error="fail"`` its
    task fails with a :class:`~sparkdl.errors.DataError` that names the row by the column ``key`` and says why; with
    ``"null"`` the row has no prediction, one more column ``error`` says why, and all other rows are scored.

    ``form`` is one of the lighter forms that :func:`sparkdl.compress` has made of the network, ``original`` the network
    itself. By default a task chooses between the original and ``onnx``, where the model has that, by trying both for a
    second when it loads them. The forms ``int8`` and ``onnx`` compute on the CPU.

    Nothing in a model's folder is executed. A network that could not be exported is built by its own code, which is
    imported, here and in tasks, where its module or package is among ``trusted_modules``. Preprocessing with stages of
    your own (``prepare(pipeline=...)``) is loaded when their classes are among ``trusted_stages``, each as
    ``package.module.Class``.

    Raises :class:`~sparkdl.errors.RegistryError` for a model that does not exist, :class:`~sparkdl.errors.ModelError`
    for one that is damaged or would run code, :class:`~sparkdl.errors.DataError` for columns that are missing, of
    another type or of the same name, and :class:`ConfigError` for a ``top_k`` or ``batch_size`` below 1, an output
    that the model does not keep and a form that it does not have.
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
    """Append what pyspark.ml's columns are made from, lazily. Runs on the driver.

    ``features`` are the columns that the model reads; None: those that its card names. The rows' own columns are called
    by their places, so that none can clash with those that are added.
    Of a classifier (``vectors``), that is ``prediction`` (the label), ``logits`` and ``probabilities``, arrays
    by class index; of a model for regression or ranking ``prediction``. With ``contributions``, an array of these comes
    last: see :class:`~sparkdl.scoring.predictor.Asked`. Otherwise like :func:`score`, whose errors it raises.
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
    """The rows with the columns that are added, all called by their places."""
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
    """Rows with all that a task reads of them. Columns are called by their places: Arrow has one of each name."""

    frame: DataFrame
    """First all columns of the rows, then what is not one of them."""
    reads: dict[str, int]
    """The model's raw columns, or where Spark has preprocessed its input, by their places."""
    refused: int | None
    """The place of the column that says why a row is refused, if there is one."""
    preprocessed: bool


def rows_to_score(df: DataFrame, names: Iterable[str]) -> RowsToScore:
    """Rows whose raw columns, which have these names, go to the task as they are."""
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
            from sparkdl.scoring.by_spark import with_inputs  # which takes pyspark.ml

            made = with_inputs(df, card, folder, trusted_stages=trusted)
            width = len(made.columns)
            frame = made.toDF(*map(str, range(width)))
            return RowsToScore(frame, {card.input.column: width - 2}, width - 1, preprocessed=True)
    return rows_to_score(df, card.raw_columns)


def _parts(folder: Path, form: FormChoice, *, preprocessed: bool) -> list[Path]:
    """What a task needs of a model's folder."""
    left = files_to_leave(folder, form)
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name not in left)
    return files if preprocessed or not (folder / PREPROCESSING).is_dir() else [*files, folder / PREPROCESSING]
