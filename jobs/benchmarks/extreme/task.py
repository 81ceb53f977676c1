"""What is learned: public data of four kinds, each prepared as its file in ``conf/`` says, or what the user names."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType

import sparkdl
from sparkdl.data.card_parts import File
from sparkdl.data.reading.read import verified_content
from sparkdl.data.sparse_rows import Rows, read_rows
from sparkdl.extreme.metrics import RankingMetrics, evaluate

__all__ = ["KINDS", "Task", "first_groups", "prepared_task", "rows_of", "task_of_files"]

KINDS = {
    "debian": "five labels a row",
    "debian-sources": "eight labels a row",
    "gcide": "short texts, a hundred thousand classes",
    "wordnet": "one label a row",
}
"""Each is a data set that can be fetched, and a file in ``conf/``."""
CONFIGURATIONS = Path(__file__).parents[3] / "conf"
RAW = "output/raw"
"""Where the demo keeps raw files, too."""


@dataclass(frozen=True)
class Task:
    """A prepared sparse dataset with the splits ``train`` and ``test``, and how to train on it."""

    name: str
    dataset: sparkdl.Dataset
    settings: sparkdl.Extreme

    def evaluate(self, predicted: npt.NDArray[np.int64]) -> RankingMetrics:
        """All metrics of the test rows' predicted classes; labels that training never saw count as missed."""
        rows = rows_of(self.dataset, "test")
        counts, num_rows = self.dataset.label_counts, self.dataset.rows("train")
        return evaluate(predicted, rows.labels, rows.label_offsets, counts=counts, num_rows=num_rows)


def prepared_task(kind: str, folder: Path, spark: SparkSession) -> Task:
    """Prepare one of the :data:`KINDS`. Runs on the driver.

    Classes are numbered in the order of their names, which may tell which ones are alike. Here, names begin with a
    hash, so that numbers say nothing.
    """
    paths = [f"prepare.output={folder / kind}", f"prepare.source.path={RAW}/{kind}"]
    configured = sparkdl.load_settings(str(CONFIGURATIONS / f"{kind.replace('-', '_')}.yaml"), paths)
    settings = configured.require("prepare")
    sparkdl.fetch(kind, Path(RAW, kind))
    rows = sparkdl.open_source(settings.source, spark)
    name = sf.col(settings.label)
    is_text = rows.schema[settings.label].dataType == StringType()
    rows = rows.withColumn(settings.label, _shuffled(name) if is_text else sf.transform(name, _shuffled))
    return Task(kind, sparkdl.prepare(rows, settings, spark=spark), configured.extreme)


def task_of_files(paths: Sequence[str], folder: Path, spark: SparkSession) -> Task:
    """Prepare a training and a test file in the Repository's format. Runs on the driver.

    They are learned from with the defaults of ``extreme``, and with as many buckets as the plan says.
    """
    train, test = paths
    settings = sparkdl.Prepare(
        source=sparkdl.Source(format="xc", path={"train": train, "test": test}),
        output=str(folder / "dataset"),
        features=["features"],
        sparse=True,
        on_bad_rows="skip",
    )
    dataset = sparkdl.prepare(settings.source, settings, spark=spark)
    plan = sparkdl.plan_extreme(dataset.num_classes, num_features=dataset.input.shape[0], rows=dataset.rows("train"))
    return Task(Path(train).parent.name or train, dataset, sparkdl.Extreme(buckets=plan.num_buckets))


def _shuffled(name: Column) -> Column:
    return sf.concat(sf.md5(name).substr(1, 8), sf.lit(" "), name)


def rows_of(dataset: sparkdl.Dataset, split: str) -> Rows:
    """All rows of a split, in the dataset's order."""
    return Rows.join([read_rows(verified_content(group)) for group in dataset.row_groups(split)])


def first_groups(dataset: sparkdl.Dataset, number: int) -> sparkdl.Dataset:
    """A dataset of the first so many row groups of the training split, and of no other split."""
    files = tuple(
        File(**asdict(group) | {"path": f"train/{Path(group.path).name}"})
        for group in dataset.row_groups("train")[:number]
    )
    train = dataset.card.splits["train"].model_copy(update={"num_rows": 0, "num_groups": 0, "files": files})
    # As cards of format 2 were, which list their files.
    changed = {"version": 2, "row_groups": None, "splits": {"train": train}}
    return sparkdl.Dataset(dataset.path, dataset.card.model_copy(update=changed))
