"""What stock Petastorm readers look for beside the files of a split, in Petastorm's own format."""

import json
import pickle
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from sparkdl.data.sparse_rows import COLUMNS

__all__ = ["petastorm_metadata"]

_ROW_GROUPS, _UNISCHEMA = "dataset-toolkit.num_row_groups_per_file.v1", "dataset-toolkit.unischema.v1"


def petastorm_metadata(schema: pa.Schema, names: Sequence[str]) -> pa.Buffer:
    """The content of ``_common_metadata`` for files of one row group each. Runs on the driver.

    Readers find the columns in the Parquet schema. Not those of sparse rows: lists that differ in length are large
    lists here, because Petastorm makes a matrix of others, and it knows them from its own schema alone, which is a
    pickle. Nothing in this package reads it, and the card has its digest.
    """
    entries = {_ROW_GROUPS: json.dumps(dict.fromkeys(names, 1)).encode()}
    if schema.names == list(COLUMNS):
        from petastorm.unischema import Unischema, UnischemaField

        fields = [UnischemaField(name, kind, (None,), None, False) for name, kind in COLUMNS.items()]
        entries[_UNISCHEMA] = pickle.dumps(Unischema("Row", fields))
    content = pa.BufferOutputStream()
    pq.write_metadata(schema.with_metadata(entries), content)
    return content.getvalue()
