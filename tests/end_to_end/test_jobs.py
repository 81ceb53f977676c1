"""The jobs, as spark-submit runs them on a cluster, and the same through the installed command."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
import yaml
from mlflow import MlflowClient

JOBS = Path(__file__).parents[2] / "jobs"


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    """A configuration over a small csv file of two classes with a category and missing values."""
    folder = tmp_path_factory.mktemp("pipeline")
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 240)
    table = pd.DataFrame(
        {
            "size": random.normal(size=240) + 4 * labels,
            "colour": random.choice(["red", "green"], 240),
            "kind": np.where(labels == 1, "cat", "dog"),
        }
    )
    table.loc[::20, "size"] = None
    table.to_csv(folder / "animals.csv", index=False)
    tree = {
        "prepare": {
            "source": {
                "format": "csv",
                "path": str(folder / "animals.csv"),
                "options": {"header": True, "inferSchema": True},
            },
            "output": str(folder / "dataset"),
            "label": "kind",
            "stages": [
                {"kind": "impute", "columns": ["size"]},
                {"kind": "standardise", "columns": ["size"]},
                {"kind": "index", "columns": ["colour"]},
            ],
        },
        "train": {"epochs": 3, "batch_size": 8, "learning_rate": 0.01, "run_dir": str(folder / "runs")},
        "score": {"output": str(folder / "predictions")},
        "tracking": {"uri": f"sqlite:///{folder / 'mlflow.db'}", "register_as": "animals"},
    }
    (folder / "animals.yaml").write_text(yaml.safe_dump(tree))
    return folder


@pytest.fixture(scope="module")
def submitted(standalone, pipeline):
    """The output of a training that spark-submit started on a cluster, over a dataset prepared in the same way."""
    configuration = str(pipeline / "animals.yaml")
    standalone.submit(JOBS / "prepare.py", configuration)
    return standalone.submit(JOBS / "train.py", configuration, "train.epochs=4").stdout


def test_spark_submit_prepares_trains_and_scores_on_a_cluster(standalone, pipeline, submitted):
    assert "alias 'candidate' points to version 1" in submitted
    standalone.submit(JOBS / "score.py", str(pipeline / "animals.yaml"))
    predictions = pd.concat(map(pd.read_parquet, (pipeline / "predictions").glob("*.parquet")))
    assert len(predictions) == 240
    assert (predictions["prediction"] == predictions["kind"]).mean() > 0.9


class Terminal:
    """The installed command in a terminal of its own, as a person has it in front of them."""

    def __init__(self, *arguments):
        screen, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 150, 0, 0))
        self._screen = screen
        self.process = psutil.Popen(
            [Path(sys.executable).parent / "sparkdl", *arguments],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(terminal)
        self.text = ""

    def read_until(self, wanted=None):
        """Read on until a text is on the screen, or to the end."""
        while wanted is None or wanted not in self.text:
            try:
                self.text += os.read(self._screen, 1 << 16).decode()
            except OSError:  # the program has ended
                break
        return self.text

    def press_ctrl_c(self):
        os.write(self._screen, b"\x03")


def test_the_installed_command_does_what_spark_submit_does_and_shows_its_progress(pipeline, submitted):
    terminal = Terminal("train", pipeline / "animals.yaml", "train.epochs=4")
    text = terminal.read_until()
    assert terminal.process.wait(timeout=30) == 0
    bars = [line for line in text.replace("\n", "\r").split("\r") if "step/s" in line]
    assert re.search(r"epoch \d/4: +\d+%.*<\d\d:\d\d.*loss [\d.]+, accuracy [\d.]+, [\d,]+ rows/s", bars[-2]), text
    figures = re.compile(r"(?:train|validation|test) (?:loss|accuracy) +[\d.]+")
    assert figures.findall(text.replace("\r", "")) == figures.findall(submitted)


@pytest.mark.parametrize(
    ("end", "code", "last_words"),
    [
        (Terminal.press_ctrl_c, 130, "interrupted; nothing is left running"),
        (lambda terminal: terminal.process.terminate(), 143, "can be continued from its last checkpoint"),
    ],
    ids=["ctrl-c", "SIGTERM"],
)
def test_a_training_that_is_interrupted_ends_in_order_and_leaves_nothing_running(
    pipeline, submitted, end, code, last_words
):
    terminal = Terminal("train", pipeline / "animals.yaml", "train.epochs=100000")
    assert "epoch 3/100000" in terminal.read_until("epoch 3/100000")
    everyone = terminal.process.children(recursive=True)
    assert len(everyone) >= 3  # Java, Spark's daemon, ranks
    end(terminal)
    text = terminal.read_until()
    assert terminal.process.wait(timeout=30) == code
    assert last_words in text and "Traceback" not in text
    assert psutil.wait_procs(everyone, timeout=10)[1] == []
    client = MlflowClient(f"sqlite:///{pipeline / 'mlflow.db'}")
    runs = client.search_runs([client.get_experiment_by_name("sparkdl").experiment_id])
    assert runs[0].info.status == "KILLED"


@pytest.mark.parametrize(
    ("mistake", "line"),
    [("train.epoch=3", "did you mean 'train.epochs'"), ("prepare.output=nowhere", "there is no dataset in .*/nowhere")],
    ids=["before Spark starts", "after that"],
)
def test_the_installed_command_reports_mistakes_in_one_line(pipeline, mistake, line):
    command = [Path(sys.executable).parent / "sparkdl", "train", pipeline / "animals.yaml", mistake]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert re.match(f"sparkdl: .*{line}", done.stderr.splitlines()[-1])
    assert "Traceback" not in done.stderr and "\tat " not in done.stderr
