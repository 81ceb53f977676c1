"""A small dataset for language modelling, written without Spark: texts that count, in blocks."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from sparkdl.data import Card, Dataset
from sparkdl.data.card import LABEL_COLUMN, WEIGHT_COLUMN
from sparkdl.data.card_parts import SplitCard
from sparkdl.data.named_files import write_named_row_group
from sparkdl.data.row_groups import file_name, write_row_groups_file
from sparkdl.inputs.spec import InputSpec
from sparkdl.preprocessing.input_rows import as_binary

VOCABULARY, END, LENGTH = 12, 11, 8
SPEC = InputSpec(column="tokens", kind="tokens", shape=(LENGTH,), dtype="int32", vocabulary=VOCABULARY, end_of_text=END)


def language_blocks(folder: Path, name: str = "input_ids") -> Dataset:
    """One in four blocks is short; what follows a token is the next number, and 0 follows 10."""
    groups, splits, counted = {}, {}, []
    random = np.random.default_rng(0)
    for split, sizes in {"train": [27, 27, 26, 26], "validation": [15, 15]}.items():
        (folder / split).mkdir()
        records = []
        for number, rows in enumerate(sizes):
            lengths = np.where(random.random(rows) < 0.25, random.integers(2, LENGTH, rows), LENGTH)
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            places = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
            tokens = ((np.repeat(random.integers(0, END, rows), lengths) + places) % END).astype(np.int32)
            values = as_binary(tokens, offsets)
            structs = pa.StructArray.from_arrays([values, pa.array(np.zeros(rows, np.int32))], [name, "_wrong"])
            weights = (lengths - 1).astype(np.float64)
            table = pa.table({"inputs": structs, LABEL_COLUMN: np.zeros(rows, np.int64), WEIGHT_COLUMN: weights})
            counted += weights.tolist() if split == "train" else []
            path = str(folder / split / file_name(number))
            records.append(write_named_row_group(path, table, "inputs", {name: SPEC}, has_labels=False))
        groups[split] = pa.Table.from_pylist(records)
        splits[split] = SplitCard(num_rows=sum(sizes), num_groups=len(sizes), class_counts=())
    card = Card.create(
        version=5,
        task="language_modelling",
        inputs={name: SPEC},
        label_names=(),
        splits=splits,
        mean_weight=float(np.mean(counted)),
        row_groups=write_row_groups_file(str(folder), groups),
        raw_columns={"text": "string"},
        preprocessing=False,
        settings={},
        source="none",
    )
    return Dataset(str(folder), card)
