"""What stock Petastorm readers look for beside the files of a split. It takes none of Petastorm's code."""

import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["petastorm_metadata"]

_ROW_GROUPS = "dataset-toolkit.num_row_groups_per_file.v1"


def petastorm_metadata(schema: pa.Schema, names: Sequence[str]) -> pa.Buffer:
    """The content of ``_common_metadata`` for files of one row group each. Runs on the driver.

    Readers learn the columns from the Parquet schema. Petastorm's own schema, which they would prefer, is a pickle, and
    they would execute whatever somebody put in its place.
    """
    content = pa.BufferOutputStream()
    pq.write_metadata(schema.with_metadata({_ROW_GROUPS: json.dumps(dict.fromkeys(names, 1))}), content)
    return content.getvalue()
