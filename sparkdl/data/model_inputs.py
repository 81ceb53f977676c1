"""What a model keeps of the dataset that it was trained on, so that it can be fed raw rows. Runs on the driver."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdl.data.card import CARD_NAME, LABELS_NAME, PREPROCESSING
from sparkdl.data.dataset import Dataset
from sparkdl.errors import ModelError
from sparkdl.preprocessing import read_pipeline
from sparkdl.storage import download_files, join

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["example_row", "keep_inputs", "packages_for_inputs"]


def keep_inputs(dataset: Dataset, folder: Path, *, changed: Mapping[str, Any] | None = None) -> None:
    """Copy the card (schema, class names), the file of class names where there is one, and the fitted preprocessing.

    ``changed`` are keys of the card of which the network knows better than the dataset.
    """
    card = json.dumps(json.loads(dataset.card_json) | changed, indent=1) if changed else dataset.card_json
    (folder / CARD_NAME).write_text(card)
    if dataset.card.labels:
        download_files(join(dataset.path, LABELS_NAME), folder / LABELS_NAME)
    if dataset.preprocessing_path:
        download_files(dataset.preprocessing_path, folder / PREPROCESSING)


def packages_for_inputs(folder: Path) -> list[str]:
    """What has to be installed where a model is fed raw rows.

    That is Pillow for images, which may be encoded, tokenizers for tokens, and Spark, if a stage that the model keeps
    is Spark's alone.
    """
    card = json.loads((folder / CARD_NAME).read_bytes())
    kinds = {spec["kind"] for spec in card.get("inputs", {"": card.get("input")}).values()}
    packages = [name for kind, name in {"image": "pillow", "tokens": "tokenizers"}.items() if kind in kinds]
    if not (folder / PREPROCESSING).exists():
        return packages
    try:
        read_pipeline(folder / PREPROCESSING)
    except ModelError:  # a stage of the user's own is one of Spark's, too
        return ["psutil", "pyspark", "tqdm"]
    return packages


def example_row(dataset: Dataset) -> "pd.DataFrame | None":
    """One raw row of zeros and empty strings, to be kept with the model: it shows the columns, and nobody's data.

    None where a column has a type that zero says nothing about, such as a time.
    """
    import pandas as pd

    blanks: dict[str, object] = {
        "string": "",
        "boolean": False,
        **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), 0),
        **dict.fromkeys(("float", "double"), 0.0),
    }
    if unnamed := dataset.card.unnamed:
        zeros = [0.0] * math.prod(unnamed.shape)
        blanks |= dict.fromkeys(("array<float>", "array<double>", "vector"), zeros)
        blanks["binary"] = bytes(unnamed.row_bytes)
    else:
        blanks["string"] = "a"  # of which there is a token
        blanks |= {f"array<{kind}>": [blanks[kind]] for kind in ("int", "bigint", "float", "double")}
    images = {spec.column: bytes(spec.row_bytes) for spec in dataset.card.inputs.values() if spec.kind == "image"}
    kinds = [kind for name, kind in dataset.raw_columns.items() if name not in images]
    if not set(kinds) <= set(blanks) or ("vector" in kinds and len(kinds) > 1):  # the card does not say how wide it is
        return None
    row: dict[str, Any] = {}
    for name, sql_type in dataset.raw_columns.items():
        *above, last = dataset.card.fields.get(name, (name,))
        inside = row
        for part in above:
            inside = inside.setdefault(part, {})
        inside[last] = images[name] if name in images else blanks[sql_type]
    return pd.DataFrame({name: [value] for name, value in row.items()})
