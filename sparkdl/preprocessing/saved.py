"""Reads the files of a pipeline that Spark saved: JSON with a stage's class and parameters, Parquet with fitted values.

Spark imports and runs any class that such files name; here they are only read, and nothing is executed.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sparkdl.errors import ModelError, OnlySparkError

__all__ = ["CAST", "COPY", "JOIN", "SavedStage", "check_preprocessing", "saved_stages"]

Parameter = TypeVar("Parameter", str, int, float, bool, list[Any])

_PIPELINE = re.compile(r"(org\.apache\.spark\.ml|pyspark\.ml\.pipeline)\.PipelineModel")
_STAGES = re.compile(
    r"(?:org\.apache\.spark|pyspark)\.ml\.feature\.(?:"
    "Binarizer|Bucketizer|BucketedRandomProjectionLSHModel|ChiSqSelectorModel|CountVectorizerModel|DCT"
    "|ElementwiseProduct|FeatureHasher|HashingTF|IDFModel|ImputerModel|IndexToString|Interaction|MaxAbsScalerModel"
    "|MinHashLSHModel|MinMaxScalerModel|NGram|Normalizer|OneHotEncoderModel|PCAModel|PolynomialExpansion"
    "|RegexTokenizer|RobustScalerModel|SQLTransformer|StandardScalerModel|StopWordsRemover|StringIndexerModel|Tokenizer"
    "|UnivariateFeatureSelectorModel|VarianceThresholdSelectorModel|VectorAssembler|VectorIndexerModel|VectorSizeHint"
    "|VectorSlicer|Word2VecModel)"
)
"""Spark's own stages that transform columns, and whose saved state is only numbers and texts."""
_OURS = frozenset({"sparkdl.data.dates.DateParts", "sparkdl.data.text.LogCounts", "sparkdl.data.text.WordHashes"})
_NAME = r"`((?:[^`$]|``|\$(?!\{))+)`"
COPY = re.compile(rf"SELECT \*, {_NAME} AS (?:{_NAME}|(\w+)) FROM __THIS__")
"""Sparkdl's SQL statement that copies a column under a new name; names may be quoted."""
CAST = re.compile(
    rf"SELECT \*, (?:CAST\({_NAME} AS (double|string)\)|unix_micros\({_NAME}\)) AS (?:{_NAME}|(\w+)) FROM __THIS__"
)
"""Sparkdl's SQL statement that casts a column to a type that Spark ML accepts."""
JOIN = re.compile(rf"SELECT \*, concat\((\w+|array\('\^'\)), (\w+)\) AS (?:{_NAME}|(\w+)) FROM __THIS__")
"""Sparkdl's SQL statement that concatenates lists of words, or puts ``^`` before the first word. Other statements are
refused, because they could run programs, by ``TRANSFORM``, ``java_method``, or ``${...}``, where Spark inserts a
setting."""
_METADATA_FILE = re.compile(r"part-00000(-[0-9a-f-]{36}-c000\.txt)?")
"""The name of a stage's metadata file in Spark 3 and Spark 4."""
_UID = re.compile(r"\w[\w.-]*")
"""The name of a stage, which is also the name of its folder."""


def check_preprocessing(folder: Path, *, trusted: Collection[str] = ()) -> None:
    """Check all stages of a saved pipeline without loading any. Runs on the driver.

    Raises :class:`ModelError` for the first stage that is neither a feature transformer of Spark, nor one of sparkdl's
    own, nor of a ``trusted`` class; and for files that Spark might read differently.
    """
    for stage in saved_stages(folder):
        if stage.name in trusted or stage.name in _OURS:
            continue
        if not _STAGES.fullmatch(stage.name):
            raise ModelError(
                f"the preprocessing in {stage.folder} has a stage of the class {stage.name!r}, which could run any"
                " code; it is not loaded. If that class is your own, name it in `score.trusted_stages`."
            )
        statements = [part["statement"] for part in (stage.given, stage.defaults) if "statement" in part]
        if not all(
            isinstance(sql, str) and any(ours.fullmatch(sql) for ours in (COPY, CAST, JOIN)) for sql in statements
        ):
            raise ModelError(
                f"the preprocessing in {stage.folder} runs the SQL {statements[0]!r}, which could start any program; it"
                f" is not loaded. If that pipeline is your own, name {stage.name!r} in `score.trusted_stages`."
            )


@dataclass(frozen=True)
class SavedStage:
    """A stage as Spark saved it: its class, its parameters, and its fitted values."""

    folder: Path
    name: str
    """The name of its class, such as ``org.apache.spark.ml.feature.ImputerModel``."""
    given: Mapping[str, Any]
    """Parameters that were set."""
    defaults: Mapping[str, Any]
    renamed: dict[str, str] = field(default_factory=dict)
    """Raw columns by the names of their copies, which earlier stages made; errors name the raw columns."""

    def parameter(self, name: str, kind: type[Parameter]) -> Parameter:
        """A parameter. Raises :class:`ModelError` if it is missing or of another kind."""
        value = self.given.get(name, self.defaults.get(name))
        if type(value) is not kind:
            raise self.damaged(f"its parameter {name} is {value!r}")
        return value  # type: ignore[return-value]

    def require(self, **values: object) -> None:
        """Raise :class:`OnlySparkError` unless parameters have these values; others work in Spark only."""
        for name, expected in values.items():
            value = self.given.get(name, self.defaults.get(name))
            if value != expected:
                raise self.only_spark(f" with {name} {value!r}")

    @property
    def input(self) -> str:
        """The column that it reads."""
        return self.original(self.parameter("inputCol", str))

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that it reads, one or several."""
        return tuple(map(self.original, self.names("inputCol")))

    @property
    def output(self) -> str:
        """The column that it adds."""
        return self.parameter("outputCol", str)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The columns that it adds, one or several."""
        return self.names("outputCol")

    def names(self, parameter: str) -> tuple[str, ...]:
        """The column names in a parameter: a single name, or a list if the parameter's name ends with an s."""
        if f"{parameter}s" not in self.given:
            return (self.parameter(parameter, str),)
        names = self.parameter(f"{parameter}s", list)
        if not all(isinstance(name, str) for name in names):
            raise self.damaged(f"its {parameter}s are {names!r}")
        return tuple(names)

    def original(self, name: str) -> str:
        """The raw column of which ``name`` is a copy, or ``name`` itself."""
        return self.renamed.get(name, name)

    def fitted(self) -> dict[str, Any]:
        """The fitted values, which are one row. Raises :class:`ModelError` for files with anything else."""
        place = self.folder / "data"
        try:
            files = sorted(path for path in place.iterdir() if not path.name.startswith((".", "_")))
            (row,) = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
        except (OSError, ValueError, pa.ArrowException) as error:
            raise ModelError(f"the preprocessing is damaged: {place} is not what Spark writes: {error}") from None
        return dict(row)

    def vector(self, value: Any) -> NDArray[np.float64]:
        """A fitted value as a vector. Raises :class:`ModelError` if it is not a vector."""
        try:
            if value["type"] == 1:
                return np.array(value["values"], np.float64)
            found = np.zeros(value["size"])
            found[value["indices"]] = value["values"]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise self.damaged(f"it holds no vector: {error}") from None
        return found

    def damaged(self, problem: str) -> ModelError:
        """The error for a stage with content that Spark never writes."""
        return ModelError(
            f"the preprocessing is damaged: the stage in {self.folder} is not what Spark writes: {problem}"
        )

    def only_spark(self, which: str = "") -> OnlySparkError:
        """The error for a stage that only Spark can run."""
        kind = self.name.rpartition(".")[2]
        return OnlySparkError(f"the stage {kind}{which} of the model's preprocessing runs in Spark alone")


def saved_stages(folder: Path) -> Iterator[SavedStage]:
    """The stages of a saved pipeline in their order, with nested pipelines flattened. Runs anywhere.

    Raises :class:`ModelError` for files that are damaged, or that Spark might read differently.
    """
    metadata = _metadata(folder)
    name, values = metadata["class"], metadata["paramMap"]
    if not _PIPELINE.fullmatch(name):
        yield SavedStage(folder, name, values, metadata["defaultParamMap"])
        return
    uids = values.get("stageUids")
    if not isinstance(uids, list) or not all(isinstance(uid, str) and _UID.fullmatch(uid) for uid in uids):
        raise ModelError(f"the preprocessing in {folder} names its stages in a way that Spark never writes")
    for number, uid in enumerate(uids):
        yield from saved_stages(folder / "stages" / f"{number:0{len(str(len(uids)))}}_{uid}")


def _metadata(folder: Path) -> dict[str, Any]:
    """The metadata of a stage: the first line of the only file, so that Spark would read the same."""
    place = folder / "metadata"
    try:
        files = [path.name for path in place.iterdir() if not path.name.startswith((".", "_"))]
        if len(files) != 1 or not _METADATA_FILE.fullmatch(files[0]):
            raise ValueError(f"it holds {', '.join(sorted(files)) or 'nothing'}")
        with (place / files[0]).open(encoding="utf-8", newline="\n") as file:
            metadata: dict[str, Any] = json.loads(file.readline(), object_pairs_hook=_no_repetition)
        if not isinstance(metadata["class"], str):
            raise ValueError("its class is not a name")
        for part in ("paramMap", "defaultParamMap"):
            if not isinstance(metadata.setdefault(part, {}), dict):
                raise ValueError(f"its {part} holds no parameters")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"the preprocessing is damaged: {place} is not what Spark writes: {error}") from None
    return metadata


def _no_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise ValueError("it has a key twice")
    return dict(pairs)
