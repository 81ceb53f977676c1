"""Parquet files in memory are read by the thread that asks for them."""

import subprocess
import sys

PROGRAM = """
import io, psutil, pyarrow as pa, pyarrow.parquet as pq
from sparkdl.data.parquet_bytes import read_table

written = io.BytesIO()
table = pa.table({name: range(1000) for name in "abcd"})
pq.write_table(table, written)
count = psutil.Process().num_threads
before = count()
assert read_table(written.getvalue()) == table
assert read_table(written.getvalue(), ["b"]) == table.select(["b"])
print(count() - before)
pq.read_table(written)
print(count() > before)
"""


def test_reading_starts_no_thread_that_a_process_could_end_before() -> None:
    process = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert process.stdout.split() == ["0", "True"], process.stderr
