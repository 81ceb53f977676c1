"""The jobs on YARN with HDFS, each a ``spark-submit`` of its own, as ``docs/clusters.md`` says.

All hosts are this one: the environment of the tests takes the place of ``--archives``.
"""

import re
import shutil
import sys
from pathlib import Path

import pytest

from .hadoop import CONFIGURATION, PROPERTIES, ROOT, Hadoop

SMALL = ("train.epochs=2", "train.batch_size=16", "tracking.gate.minimum=0.2")
JOBS = ("prepare", "train", "score")


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
