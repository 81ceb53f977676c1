"""The files of a dataset that are copied to a model, so that it can read raw rows. Runs on the driver."""

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
    """Copy the card (schema, class names), the file of class names, if there is one, and the fitted preprocessing.

    ``changed`` are keys of the card whose values depend on the network.
    """
    card = json.dumps(json.loads(dataset.card_json) | changed, indent=1) if changed else dataset.card_json
    (folder / CARD_NAME).write_text(card)
    if dataset.card.labels:
        download_files(join(dataset.path, LABELS_NAME), folder / LABELS_NAME)
    if dataset.preprocessing_path:
        download_files(dataset.preprocessing_path, folder / PREPROCESSING)


def packages_for_inputs(folder: Path) -> list[str]:
    """The packages that a model needs to read raw rows.

    These are Pillow for images, which may be encoded, tokenizers for tokens, and PySpark if only Spark can apply a
    stage of its preprocessing.
    """
    card = json.loads((folder / CARD_NAME).read_bytes())
    kinds = {spec["kind"] for spec in card.get("inputs", {"": card.get("input")}).values()}
    packages = [name for kind, name in {"image": "pillow", "tokens": "tokenizers"}.items() if kind in kinds]
    if not (folder / PREPROCESSING).exists():
        return packages
    try:
        read_pipeline(folder / PREPROCESSING)
    except ModelError:  # a user's own stage also needs Spark
        return ["psutil", "pyspark", "tqdm"]
    return packages


def example_row(dataset: Dataset) -> "pd.DataFrame | None":
    """An example row of zeros and empty strings, stored with the model: it shows the columns without real data.

    None if a column has a type for which there is no zero, such as a time.
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
        blanks["string"] = "a"  # a text with at least one token
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
