"""Networks, losses, stages and helpers in files beside the program, which executors lack, work as installed ones."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NET = """
import torch
from helpers.layers import middle

class Net(torch.nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.layers = torch.nn.Sequential(middle(*input_shape), torch.nn.ReLU(), torch.nn.Linear(4, num_classes))

    def forward(self, rows):
        return self.layers(rows)

def loss(outputs, labels) -> torch.Tensor:
    import lazily  # a module that nothing has imported before
    return lazily.FACTOR * torch.nn.functional.cross_entropy(outputs, labels)
"""
STAGES = """
from pyspark.ml import Transformer
from pyspark.ml.functions import array_to_vector
from pyspark.ml.util import DefaultParamsReadable, DefaultParamsWritable
from pyspark.sql.functions import udf
from helpers import numbers

class Doubled(Transformer, DefaultParamsReadable, DefaultParamsWritable):
    def _transform(self, rows):
        return rows.withColumn("features", array_to_vector(udf(numbers.doubled, "array<double>")("id")))
"""
LAYERS = "import torch\n\ndef middle(width):\n    return torch.nn.Linear(width, 4)\n"
SCRIPT = """
import json
import sys
from pathlib import Path

from pyspark.ml import Pipeline

import my_net
import sparkdl
from stages import Doubled

dataset, folder = sys.argv[1:]
chosen = {"model": my_net.Net, "loss": my_net.loss, "batch_size": 8, "run_dir": f"{folder}/runs"}
tracking = sparkdl.Tracking(uri=f"sqlite:///{folder}/mlflow.db", spool=f"{folder}/spool")
losses = []
for factor in (1, 1000):  # a Python worker that is used again has seen the file as it was
    Path(folder, "lazily.py").write_text(f"FACTOR = {factor}")
    trained = sparkdl.train(dataset, sparkdl.Train(**chosen), tracking=tracking)
    losses.append(trained.history[0]["train_loss"])
apart = sparkdl.Cluster(num_ranks=1, servers=1)
trained = sparkdl.train(dataset, sparkdl.Train(strategy="downpour", **chosen), cluster=apart, tracking=tracking)
losses.append(trained.history[0]["train_loss"])
rows = sparkdl.get_session().range(20).selectExpr("id", "id % 2 AS label")
plan = sparkdl.Prepare(output=f"{folder}/dataset", split=sparkdl.Split(fractions={}))
prepared = sparkdl.prepare(rows, plan, pipeline=Pipeline(stages=[Doubled()]))
losses.append(prepared.rows("train"))
print(json.dumps(losses))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "helpers").mkdir()
    for name, text in {
        "my_net.py": NET,
        "helpers/layers.py": LAYERS,
        "helpers/numbers.py": "def doubled(number):\n    return [2.0 * number]\n",
        "stages.py": STAGES,
        "lazily.py": "FACTOR = 1",
        "program.py": SCRIPT,
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_files_beside_a_submitted_script_reach_executors_as_they_are_now(standalone, clouds, project: Path) -> None:
    done = standalone.submit(project / "program.py", clouds.path, str(project))
    first, second, by_a_server, prepared = json.loads(done.stdout.splitlines()[-1])
    assert min(second, by_a_server) > 100 * first
    assert prepared == 20


def test_the_command_finds_a_network_in_the_current_folder(clouds, project: Path) -> None:
    (project / "conf.yaml").write_text(
        f"train: {{dataset: {clouds.path}, model: 'my_net:Net', loss: 'my_net:loss', run_dir: runs, batch_size: 8}}\n"
    )
    command = [sys.executable, "-P", "-c", "import sparkdl; sparkdl.main(['train', 'conf.yaml'])"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert not [line for line in done.stdout.splitlines() if "ModuleNotFoundError" in line]
