"""Whether the fitted pipeline beside a card may be loaded: Spark imports and runs whatever class its files name."""

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from sparkdl.errors import ModelError

__all__ = ["check_preprocessing"]

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
"""Of Spark's, what turns columns into columns and is made of numbers and words alone."""
_OURS = frozenset({"sparkdl.data.text.LogCounts", "sparkdl.data.text.WordHashes"})
_JOINED = r"concat\((\w+|array\('\^'\)), \w+\)"
_NAME = r"`([^`$]|``|\$(?!\{))+`"
_STATEMENT = re.compile(rf"SELECT \*, ({_NAME}|{_JOINED}) AS ({_NAME}|\w+) FROM __THIS__")
"""The SQL that sparkdl's own stages are made of. Any other could start a program: ``TRANSFORM``, ``java_method``, and
a name with ``${...}``, which Spark replaces by a setting."""
_METADATA_FILE = re.compile(r"part-00000(-[0-9a-f-]{36}-c000\.txt)?")
"""What Spark 3 and Spark 4 call the file that says what a stage is."""
_UID = re.compile(r"\w[\w.-]*")
"""The name of a stage, which is also the name of its folder."""


def check_preprocessing(folder: Path, *, trusted: Collection[str] = ()) -> None:
    """Look at all stages of a saved pipeline without loading any. Runs on the driver.

    Raises :class:`ModelError` that names the first stage that is neither one of Spark's feature transformers nor one of
    sparkdl's own nor among the ``trusted`` class names; and for files that Spark might read in another way.
    """
    metadata = _metadata(folder)
    name, values = metadata["class"], metadata["paramMap"]
    if _PIPELINE.fullmatch(name):
        uids = values["stageUids"]
        if not isinstance(uids, list) or not all(isinstance(uid, str) and _UID.fullmatch(uid) for uid in uids):
            raise ModelError(f"the preprocessing in {folder} names its stages in a way that Spark never writes")
        for number, uid in enumerate(uids):
            check_preprocessing(folder / "stages" / f"{number:0{len(str(len(uids)))}}_{uid}", trusted=trusted)
        return
    if name in trusted or name in _OURS:
        return
    if not _STAGES.fullmatch(name):
        raise ModelError(
            f"the preprocessing in {folder} has a stage of the class {name!r}, which could run any code; it is not "
            "loaded. If that class is your own, name it in `score.trusted_stages`."
        )
    statements = [part["statement"] for part in (values, metadata["defaultParamMap"]) if "statement" in part]
    if not all(isinstance(statement, str) and _STATEMENT.fullmatch(statement) for statement in statements):
        raise ModelError(
            f"the preprocessing in {folder} runs the SQL {statements[0]!r}, which could start any program; it is not "
            f"loaded. If that pipeline is your own, name {name!r} in `score.trusted_stages`."
        )


def _metadata(folder: Path) -> dict[str, Any]:
    """What a stage says of itself, provided that Spark reads the same: the first line of the only file."""
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
        raise ValueError("it says something twice")
    return dict(pairs)
