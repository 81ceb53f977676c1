"""Programs that nobody here wrote run on ranks as they are. They are read from the packages that they come with.

* Spark's own program for TorchDistributor: DDP over gloo, ``pyspark.ml.connect.classification`` (Apache 2.0).
* What ``accelerate test`` starts: ``accelerate/test_utils/scripts/test_script.py`` (Apache 2.0,
  https://github.com/huggingface/accelerate).
* The example of Lightning's README, which the package's metadata repeats (Apache 2.0,
  https://pypi.org/project/pytorch-lightning/).

``Trainer`` of transformers (Apache 2.0, https://github.com/huggingface/transformers) comes with no program:
the one here is ours, and no more than it has to be.
"""

import importlib.metadata
import os
import re
from pathlib import Path
from typing import Any

import accelerate.test_utils
import numpy as np
import pyarrow as pa
import pytest
import torch
from pyspark.ml.connect.classification import _train_logistic_regression_model_worker_fn
from pyspark.ml.torch.distributor import SPARK_DATAFRAME_SCHEMA_FILE, SPARK_PARTITION_ARROW_DATA_FILE
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DoubleType, LongType, StructType

from sparkdl import TorchRunner


def test_what_spark_runs_by_its_own_distributor_trains_by_ddp(spark: SparkSession, tmp_path: Path) -> None:
    """It gets the rows of a rank in a file, as TorchDistributor would write them."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, (2, 64))
    rows = random.normal(size=(2, 64, 3)) + 3 * labels[:, :, None]
    for rank in range(2):
        batch = pa.RecordBatch.from_pydict({"features": rows[rank].tolist(), "label": labels[rank]})
        with pa.OSFile(str(tmp_path / str(rank)), "wb") as file, pa.ipc.new_stream(file, batch.schema) as stream:
            stream.write_batch(batch)
    schema = StructType().add("features", ArrayType(DoubleType())).add("label", LongType())
    (tmp_path / "schema").write_text(schema.json())

    def on_rank(**arguments: Any) -> Any:
        os.environ[SPARK_PARTITION_ARROW_DATA_FILE] = str(tmp_path / os.environ["RANK"])
        os.environ[SPARK_DATAFRAME_SCHEMA_FILE] = str(tmp_path / "schema")
        return _train_logistic_regression_model_worker_fn(**arguments)

    sizes = {"num_samples_per_worker": 64, "num_features": 3, "batch_size": 16, "max_iter": 20, "num_classes": 2}
    weights = TorchRunner(np=2).run(on_rank, **sizes, learning_rate=0.1, momentum=0.9, fit_intercept=True, seed=0)
    logits = torch.tensor(rows.reshape(-1, 3), dtype=torch.float32) @ weights["weight"].T + weights["bias"]
    assert (logits.argmax(1).numpy() == labels.ravel()).mean() > 0.95


def test_accelerate_passes_its_own_test_of_a_set_up(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    script = Path(accelerate.test_utils.__file__).parent / "scripts" / "test_script.py"
    TorchRunner(np=2).run(script)
    told = capfd.readouterr().out
    assert "[rank 1] BF16 training check." in told  # so that it found two ranks, of which each trains
    assert "Training yielded the same results on one CPU or distributed setup with batch split" in told


def test_the_example_of_lightnings_readme_trains_when_it_is_told_how_many_ranks_a_host_has(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = importlib.metadata.metadata("pytorch-lightning")["Description"]
    blocks = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    program = "\n".join(blocks[:3])
    ending = 'pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_steps=3, enable_progress_bar=False)'
    assert program.count("pl.Trainer()") == 1
    (tmp_path / "program.py").write_text(program.replace("pl.Trainer()", ending))
    write_mnist(tmp_path / "MNIST" / "raw")
    monkeypatch.chdir(tmp_path)  # where the program looks for MNIST, and leaves its checkpoint
    TorchRunner(np=-2).run("program.py")
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    assert "step=3" in checkpoint.name


def write_mnist(folder: Path) -> None:
    """Black images in MNIST's files: the program takes them for those that it would have downloaded."""
    folder.mkdir(parents=True)
    for name, rows in {"train": 60_000, "t10k": 1}.items():
        head = [2051, rows, 28, 28], [2049, rows]
        for kind, numbers, size in zip(("images-idx3", "labels-idx1"), head, (28 * 28, 1), strict=True):
            content = np.array(numbers, ">i4").tobytes() + bytes(rows * size)
            (folder / f"{name}-{kind}-ubyte").write_bytes(content)


def test_the_trainer_of_transformers_shares_the_rows_among_ranks(spark: SparkSession, tmp_path: Path) -> None:
    def train() -> tuple[int, int, bool]:
        from torch import distributed
        from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        network = BertForSequenceClassification(BertConfig(vocab_size=10, **sizes))
        rows = [{"input_ids": [1 + row % 2, 3, 4], "labels": row % 2} for row in range(64)]
        arguments = TrainingArguments(
            str(tmp_path), per_device_train_batch_size=8, num_train_epochs=2, save_strategy="no", report_to="none"
        )
        trainer = Trainer(model=network, args=arguments, train_dataset=rows)
        trainer.train()
        gathered: list[Any] = [None] * 2
        distributed.all_gather_object(gathered, network.classifier.weight.detach())
        return arguments.world_size, trainer.state.global_step, torch.equal(gathered[0], gathered[1])

    assert TorchRunner(np=2).run(train) == (2, 8, True)
