"""Rows per second of ``sparkdl.score`` on a table of numbers, beside what runs a network in Spark without sparkdl.

All add the likeliest label and its probability to the rows, sparkdl also the list of the likeliest ones. All run the
same layers, in one task, on rows that lie in memory; the result is computed in full and thrown away (Spark's ``noop``
sink). The memory is that of the task's Python process: what it held at most, beyond what it holds with its imports.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pyspark.ml.functions import predict_batch_udf
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import array
from pyspark.sql.types import StructType

import sparkdl
from benchmarks.images import session
from benchmarks.report import Report, Target
from benchmarks.turns import take_turns

__all__ = ["COLUMNS", "LAYERS", "run", "train_on_table"]

COLUMNS = [f"x{place}" for place in range(20)]
LAYERS = len(COLUMNS), 256, 128, 2
"""Those of sparkdl's ``mlp`` for two classes."""
BATCH_SIZES = 1_000, 10_000, 100_000
"""Rows that ``predict_batch_udf`` gives a network at once; the fastest counts."""
OURS, BY_HAND = "sparkdl.score", "mapInArrow by hand"


def run(rows: int = 1_000_000, rounds: int = 5) -> Report:
    """Measure all in turn. Runs on the driver."""
    with TemporaryDirectory() as folder:
        tracking = sparkdl.Tracking(uri=f"sqlite:///{folder}/mlflow.db", spool=f"{folder}/spool")
        with session() as spark:
            model = train_on_table(spark, folder, tracking)
        with session(sparkdl.Cluster(embedded_slots=1)) as spark:  # in which no task has worked yet
            table = _table(spark, rows).coalesce(1).cache()
            table.count()
            ours = sparkdl.score(table, model, tracking=tracking)
            held, _ = _memory(spark)
            ours.write.format("noop").mode("overwrite").save()
            _, peak = _memory(spark)
            rates = take_turns({OURS: ours, **_rivals(table)}, rows, rounds)
            table.unpersist()
    best = max((name for name in rates if name.startswith("predict")), key=lambda name: median(rates[name]))
    shown = [OURS, BY_HAND, best]
    ratios = {name: [ours / theirs for ours, theirs in zip(rates[OURS], rates[name], strict=True)] for name in shown}
    return Report(
        title=f"score: one slot, {rows:,} rows of {len(COLUMNS)} floats, mlp",
        columns=["through", "rows/s", "slowest round", "fastest round", "sparkdl.score over it"],
        rows=[[name, median(rates[name]), min(rates[name]), max(rates[name]), median(ratios[name])] for name in shown],
        targets=[
            Target("rows/s over predict_batch_udf's", median(ratios[best]), 1.5),
            Target("rows/s over those of mapInArrow by hand", median(ratios[BY_HAND]), 0.7),
            Target("most memory of a task beyond its imports, MB", (peak - held) / 1000, 150, at_most=True),
        ],
        note=f"Medians of {rounds} rounds after a warm-up, taken in turn; ratio of each pair.",
    )


def _table(spark: SparkSession, rows: int) -> DataFrame:
    """Random numbers, the same every time."""
    return spark.range(rows).selectExpr(*[f"float(randn({place})) as {name}" for place, name in enumerate(COLUMNS)])


def train_on_table(spark: SparkSession, folder: str, tracking: sparkdl.Tracking) -> str:
    """The address of a model of such rows."""
    rows = _table(spark, 2_000).selectExpr("*", "int(x0 > 0) as label")
    dataset = sparkdl.prepare(rows, sparkdl.Prepare(output=f"{folder}/dataset", split=sparkdl.Split(fractions={})))
    settings = sparkdl.Train(model="mlp", epochs=1, run_dir=f"{folder}/runs")
    cluster = sparkdl.Cluster(num_ranks=1)
    return sparkdl.train(dataset, settings, cluster=cluster, tracking=tracking, spark=spark).model_uri


def _memory(spark: SparkSession) -> tuple[int, int]:
    """What the process of a task holds with the imports of scoring, and what it held at most, in kB."""

    def ask(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sparkdl.scoring.network
        import sparkdl.scoring.task  # noqa: F401

        for _ in batches:
            status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
            held, peak = (int(status[name].split()[0]) for name in ("VmRSS", "VmHWM"))
            yield pa.RecordBatch.from_pydict({"held": [held], "peak": [peak]})

    (row,) = spark.range(1).coalesce(1).mapInArrow(ask, "held long, peak long").collect()
    return row.held, row.peak


def _rivals(table: DataFrame) -> dict[str, DataFrame]:
    """The same without sparkdl."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(width, next_width) for width, next_width in pairwise(LAYERS)]
    network = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2]).eval()
    names = ", ".join(f"{name} float" for name in COLUMNS)
    found = {BY_HAND: table.mapInArrow(_by_hand(network), f"{names}, prediction long, probability double")}
    for size in BATCH_SIZES:
        answer = predict_batch_udf(
            _by_batches(network),
            return_type=StructType().add("prediction", "long").add("probability", "double"),
            batch_size=size,
            input_tensor_shapes=[[len(COLUMNS)]],
        )
        found[f"predict_batch_udf, {size:,} rows at once"] = table.withColumn("answer", answer(array(*COLUMNS)))
    return found


def _by_hand(network: torch.nn.Module) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        torch.set_num_threads(1)
        with torch.inference_mode():
            for batch in batches:
                rows = np.stack([column.to_numpy() for column in batch.columns], axis=1)
                likeliest = network(torch.from_numpy(rows)).softmax(dim=1).max(dim=1)
                answer = [pa.array(likeliest.indices.numpy()), pa.array(likeliest.values.double().numpy())]
                names = [*batch.schema.names, "prediction", "probability"]
                yield pa.RecordBatch.from_arrays([*batch.columns, *answer], names)

    return task


def _by_batches(
    network: torch.nn.Module,
) -> Callable[[], Callable[[NDArray[np.float32]], dict[str, NDArray[np.generic]]]]:
    def load() -> Callable[[NDArray[np.float32]], dict[str, NDArray[np.generic]]]:
        torch.set_num_threads(1)

        def predict(rows: NDArray[np.float32]) -> dict[str, NDArray[np.generic]]:
            with torch.inference_mode():
                likeliest = network(torch.from_numpy(rows)).softmax(dim=1).max(dim=1)
            return {"prediction": likeliest.indices.numpy(), "probability": likeliest.values.double().numpy()}

        return predict

    return load
