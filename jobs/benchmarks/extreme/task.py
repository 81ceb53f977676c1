"""What is learned: WordNet's glosses as the demo prepares them, or files that the user names."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pyspark.sql import SparkSession

import sparkdl
from sparkdl.data.reading.read import verified_content
from sparkdl.data.sparse_rows import Rows, read_rows
from sparkdl.extreme.metrics import RankingMetrics, evaluate

__all__ = ["Task", "first_groups", "prepared_task", "rows_of"]

CONFIGURATION = Path(__file__).parents[3] / "conf" / "wordnet.yaml"
RAW = "output/raw/wordnet"
"""Where the demo keeps WordNet's files, too."""


@dataclass(frozen=True)
class Task:
    """A prepared sparse dataset with the splits ``train`` and ``test``, and how to train on it."""

    name: str
    dataset: sparkdl.Dataset
    settings: sparkdl.Extreme

    @property
    def is_wordnet(self) -> bool:
        """Whether the figures that are known of WordNet apply."""
        return self.name == "WordNet"

    def evaluate(self, predicted: npt.NDArray[np.int64]) -> RankingMetrics:
        """All metrics of the test rows' predicted classes; labels that training never saw count as missed."""
        rows = rows_of(self.dataset, "test")
        return evaluate(predicted, rows.labels, rows.label_offsets)


def prepared_task(data: Sequence[str], folder: Path, spark: SparkSession) -> Task:
    """Prepare WordNet, or a training and a test file in the Repository's format. Runs on the driver.

    Files are learned from with the defaults of ``extreme``, and with as many buckets as the plan says.
    """
    output = str(folder / "dataset")
    if data:
        train, test = data
        settings = sparkdl.Prepare(
            source=sparkdl.Source(format="xc", path={"train": train, "test": test}),
            output=output,
            features=["features"],
            sparse=True,
            on_bad_rows="skip",
            split=sparkdl.Split(column="split", fractions={}),
        )
        dataset = sparkdl.prepare(settings.source, settings, spark=spark)
        plan = sparkdl.plan_extreme(
            dataset.num_classes, num_features=dataset.input.shape[0], rows=dataset.rows("train")
        )
        return Task(Path(train).parent.name or train, dataset, sparkdl.Extreme(buckets=plan.num_buckets))
    configured = sparkdl.load_settings(str(CONFIGURATION), [f"prepare.output={output}", f"prepare.source.path={RAW}"])
    sparkdl.fetch("wordnet", Path(RAW))
    dataset = sparkdl.prepare(None, configured.require("prepare"), spark=spark)
    return Task("WordNet", dataset, configured.extreme)


def rows_of(dataset: sparkdl.Dataset, split: str) -> Rows:
    """All rows of a split, in the dataset's order."""
    return Rows.join([read_rows(verified_content(group)) for group in dataset.row_groups(split)])


def first_groups(dataset: sparkdl.Dataset, number: int) -> sparkdl.Dataset:
    """A dataset of the first so many row groups of the training split, and of no other split."""
    train = dataset.card.splits["train"]
    part = train.model_copy(update={"files": train.files[:number]})
    return sparkdl.Dataset(dataset.path, dataset.card.model_copy(update={"splits": {"train": part}}))
