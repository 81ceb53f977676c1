"""The jobs on YARN with HDFS, each a ``spark-submit`` of its own, as ``docs/clusters.md`` says.

All hosts are this one: the environment of the tests takes the place of ``--archives``.
"""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from sparkdl.storage import write_file

from .hadoop import CONFIGURATION, PROPERTIES, ROOT, Hadoop

SMALL = ("train.epochs=2", "train.batch_size=16", "tracking.gate.minimum=0.2")
JOBS = ("prepare", "train", "score")


CLASSES = 40


def submit_all(hadoop: Hadoop, folder: Path, *settings: str) -> dict[str, str]:
    """What each job prints, from a folder that relative paths start at."""
    chosen = (*SMALL, f"tracking.uri=sqlite:///{folder}/mlflow.db", f"tracking.spool={folder}/spool", *settings)
    (folder / "conf").mkdir(exist_ok=True)
    shutil.copy(ROOT / "conf" / "log4j2.properties", folder / "conf")
    return {
        job: hadoop.submit(
            ROOT / "jobs" / f"{job}.py", str(CONFIGURATION), *chosen, options=PROPERTIES, cwd=folder
        ).stdout
        for job in JOBS
    }


@pytest.fixture(scope="module")
def on_hdfs(hadoop: Hadoop, images: Path) -> dict[str, str]:
    place = f"{hadoop.configuration.hdfs}/images"
    names = {"prepare.output": "dataset", "train.run_dir": "runs", "score.output": "predictions"}
    return submit_all(hadoop, images, *(f"{key}={place}/{name}" for key, name in names.items()))


def test_images_become_predictions_on_hdfs(on_hdfs: dict[str, str]) -> None:
    assert re.search(r"^rows +\d+ train, 40 test, \d+ validation$", on_hdfs["prepare"], re.MULTILINE)
    assert "alias 'candidate' points to version 1" in on_hdfs["train"]
    assert re.search(r"^rows +40$", on_hdfs["score"], re.MULTILINE), on_hdfs["score"]


def test_relative_paths_are_those_of_the_drivers_folder(hadoop: Hadoop, images: Path) -> None:
    told = submit_all(hadoop, images)
    assert re.search(r"^rows +40$", told["score"], re.MULTILINE), told["score"]
    assert {"dataset", "predictions"} <= {path.name for path in (images / "output" / "fashion-mnist").iterdir()}


def test_a_driver_in_a_container_trains_as_well(hadoop: Hadoop, dataset: str, tmp_path: Path) -> None:
    options = {
        "spark.yarn.appMasterEnv.PYSPARK_PYTHON": sys.executable,
        "spark.driver.extraJavaOptions": "-Dlog4j2.configurationFile=log4j2.properties",
    }
    shipped = ("--files", f"{CONFIGURATION},{ROOT}/conf/log4j2.properties")
    chosen = [part for item in options.items() for part in ("--conf", "=".join(item))]
    settings = (*SMALL, f"train.dataset={dataset}", f"train.run_dir={hadoop.configuration.hdfs}/from-a-container")
    tracking = (f"tracking.uri=sqlite:///{tmp_path}/mlflow.db", f"tracking.spool={tmp_path}/spool")
    job = (ROOT / "jobs" / "train.py", CONFIGURATION.name, *settings, *tracking)
    done = hadoop.submit(*job, options=(*PROPERTIES, *shipped, *chosen), mode="cluster")
    (application,) = set(re.findall(r"application_\d+_\d+", done.stderr))
    logs = hadoop.tool("logs", "-applicationId", application, "-log_files", "stdout")
    assert "alias 'candidate' points to version 1" in logs, logs[-4000:]


def test_workers_and_a_server_train_without_lockstep(hadoop: Hadoop, dataset: str, tmp_path: Path) -> None:
    settings = (*SMALL, f"train.dataset={dataset}", f"train.run_dir={hadoop.configuration.hdfs}/without-lockstep")
    chosen = ("train.strategy={kind: async_easgd, period: 4}", "cluster.num_ranks=1", "cluster.slot_timeout=180")
    tracking = (f"tracking.uri=sqlite:///{tmp_path}/mlflow.db", f"tracking.spool={tmp_path}/spool")
    job = (ROOT / "jobs" / "train.py", str(CONFIGURATION), *settings, *chosen, *tracking)
    told = hadoop.submit(*job, options=PROPERTIES, cwd=tmp_path).stdout
    assert "alias 'candidate' points to version 1" in told, told


def test_very_many_classes_are_learned_and_predicted_on_hdfs(hadoop: Hadoop, tmp_path: Path) -> None:
    place = f"{hadoop.configuration.hdfs}/words"
    rows = [
        {"part": "test" if copy == 0 else "train", "text": f"word{number} noise{copy}", "label": f"class{number}"}
        for number in range(CLASSES)
        for copy in range(12)
    ]
    write_file(f"{place}/raw/rows.json", "\n".join(map(json.dumps, rows)).encode())
    tree = {
        "prepare": {
            "source": {"format": "json", "path": f"{place}/raw"},
            "output": f"{place}/dataset",
            "features": ["text"],
            "label": "label",
            "sparse": True,
            "stages": [{"kind": "count_text", "columns": ["text"]}],
            "split": {"column": "part", "fractions": {}},
        },
        "extreme": {
            "run_dir": f"{place}/repetitions",
            "buckets": 8,
            "repetitions": 4,
            "repetitions_per_task": 2,
            "hidden": [16],
            "epochs": 20,
            "batch_size": 16,
        },
        "score": {"where": "part = 'test'", "output": f"{place}/predictions"},
        "tracking": {
            "uri": f"sqlite:///{tmp_path}/mlflow.db",
            "spool": f"{tmp_path}/spool",
            "register_as": "words",
            "gate": {"metric": "test_precision_at_1", "minimum": 0.5},
        },
    }
    (tmp_path / "words.yaml").write_text(yaml.safe_dump(tree))
    told = {
        job: hadoop.submit(
            ROOT / "jobs" / f"{job}.py", str(tmp_path / "words.yaml"), options=PROPERTIES, cwd=ROOT
        ).stdout
        for job in ("prepare", "train_extreme", "score")
    }
    assert "alias 'candidate' points to version 1" in told["train_extreme"], told["train_extreme"]
    assert re.search(rf"^rows +{CLASSES}$", told["score"], re.MULTILINE), told["score"]
