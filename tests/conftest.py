"""What tests share: an embedded Spark, a real standalone cluster with a process for everything, a small dataset."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import fsspec
import numpy as np
import psutil
import pyarrow as pa
import pyspark
import pytest
from pyspark import cloudpickle as spark_cloudpickle
from pyspark.sql import SparkSession

from benchmarks.standalone import StandaloneCluster, standalone_cluster
from sparkdl.cluster.session import get_session
from sparkdl.collectives import Backend, HorovodBackend, TorchBackend
from sparkdl.data import Dataset
from sparkdl.data.card import LABEL_COLUMN, Card, InputSpec
from sparkdl.data.card_parts import SplitCard
from sparkdl.data.preparing.row_group import write_row_group
from sparkdl.data.row_groups import file_name, write_row_groups_file
from sparkdl.data.sparse_rows import SPARSE_COUNTS, write_sparse_row_group
from sparkdl.sessions import is_remote
from sparkdl.settings import Cluster, Tracking
from sparkdl.tracking.store import connect

from .left_out import LEFT_OUT_ON_CLASSIC, LEFT_OUT_ON_CURRENT, LEFT_OUT_OVER_CONNECT, is_left_out
from .s3_server import S3Server, s3_server

ROOT = Path(__file__).parent.parent
OF_JAVA = "WARNING: Using incubator modules: jdk.incubator.vector\n"
"""What Java says of a module that Spark 4 uses."""
ON_CURRENT = int(pyspark.__version__.partition(".")[0]) >= 4


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=6, help="how many parts of YARN and HDFS tests/clusters kills")
    parser.addoption("--connect", action="store_true", help="from a client of a Spark Connect server (Spark 4)")


def pytest_configure(config: pytest.Config) -> None:
    """See to it that interrupts are heard and no core is wasted; the workers of pytest-xdist inherit the latter."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores them for what it starts with &
    before = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")  # a proxy does not know our S3 server
    os.environ["no_proxy"] = ",".join([*filter(None, [before]), "localhost", "127.0.0.1"])
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin take the cores from other tests
    if not hasattr(config, "workerinput") and not all({"unit", "ranks"} & set(Path(arg).parts) for arg in config.args):
        options = subprocess.run(
            [sys.executable, ROOT / "tests" / "class_archive.py"], stdout=subprocess.PIPE, text=True, check=True
        )
        os.environ.setdefault("JDK_JAVA_OPTIONS", options.stdout.strip())


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Files that a stack leaves out import what it has not."""
    return True if is_left_out(str(collection_path.relative_to(ROOT)), current=ON_CURRENT) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Workers of pytest-xdist take files in this order: first what waits most, last what is short."""
    names = {item: f"{item.path.relative_to(ROOT)}::{item.name}" for item in items}
    connect = config.getoption("connect")
    left_out = [item for item, name in names.items() if is_left_out(name, current=ON_CURRENT, connect=connect)]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
    order = ["test_faults.py", "end_to_end", "cluster", "clusters", "kubernetes", "tables", "ranks", "unit"]
    items.sort(key=lambda item: next(place for place, name in enumerate(order) if name in item.path.parts))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was left out, and why."""
    for test, reason in (LEFT_OUT_ON_CURRENT if ON_CURRENT else LEFT_OUT_ON_CLASSIC).items():
        terminalreporter.write_line(f"left out on this stack: {test}: {reason}")
    if terminalreporter.config.getoption("connect"):
        for test, reason in LEFT_OUT_OVER_CONNECT.items():
            terminalreporter.write_line(f"left out over Spark Connect: {test}: {reason}")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Ranks and tasks cannot import test modules, so what these define travels by value."""
    for module in {item.module for item in session.items if isinstance(item, pytest.Function)}:
        cloudpickle.register_pickle_by_value(module)
        spark_cloudpickle.register_pickle_by_value(module)


@pytest.fixture(scope="session", params=[HorovodBackend(), TorchBackend()], ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    """By which library ranks exchange tensors: what is promised of ranks is promised with each of them."""
    return request.param


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """The embedded Spark with two slots; with ``--connect``, a client of a server over a cluster with two."""
    with ExitStack() as stack:
        if request.config.getoption("connect"):
            stack.enter_context(served(request.getfixturevalue("tmp_path_factory").mktemp("served")))
        options = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": 2}
        session = get_session(Cluster(embedded_slots=2, options=options))
        assert is_remote(session) == request.config.getoption("connect")
        yield session
        session.stop()


@contextmanager
def served(folder: Path) -> Iterator[None]:
    """Jobs and the programs that are started meanwhile are clients of a Spark Connect server of their own."""
    with (
        standalone_cluster(folder, cores=(2,), pythonpath=str(ROOT)) as cluster,
        cluster.connect_server() as port,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SPARK_REMOTE", f"sc://localhost:{port}")
        yield


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's tables and nothing in them, to be copied: making them takes seconds."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    connect(Tracking(uri=f"sqlite:///{path}"))
    return path


@pytest.fixture
def use_store() -> Iterator[Callable[[str], None]]:
    """Points MLflow's own functions to a store for one test: MLflow would tell every later process of it, too."""
    import mlflow

    yield mlflow.set_tracking_uri
    mlflow.set_tracking_uri(None)


def reported(command: Sequence[str | Path], environment: Mapping[str, str], *, timeout: float) -> dict[str, Any]:
    """What a program prints as JSON in its last line; under ``said`` all that it says."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr[-8000:]
    return json.loads(done.stdout.splitlines()[-1]) | {"said": done.stdout + done.stderr}


class Standalone(StandaloneCluster):
    """A Spark master and two workers with one core each, as processes of their own on loopback."""

    def submit(
        self, script: str | Path, *args: str, timeout: float = 600, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a script through spark-submit, in the repository; with ``check``, its failure is the test's."""
        done = subprocess.run(
            self.command(script, *args, options=["--properties-file", str(ROOT / "conf" / "spark-defaults.conf")]),
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode:
            pytest.fail(f"{script} ended with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}")
        return done


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A real cluster. Afterwards none of its processes is left."""
    with standalone_cluster(tmp_path_factory.mktemp("standalone"), pythonpath=str(ROOT)) as cluster:
        yield Standalone(cluster.master_url, cluster.environment)


def end_processes(processes: list[psutil.Process]) -> None:
    """End processes and all their descendants; those that do not listen are killed."""
    everyone = [*processes, *(child for process in processes for child in process.children(recursive=True))]
    for process in processes:
        process.terminate()
    for process in psutil.wait_procs(everyone, timeout=10)[1]:
        process.kill()


@pytest.fixture(scope="session")
def s3_process() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def s3(s3_process: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A real S3 server, to which ``s3://`` leads; in its bucket ``tests`` nothing is left by the tests before."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_process.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "tests")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")  # it is our patience that is tried, and not botocore's
    store = fsspec.filesystem("s3", use_listings_cache=False)
    store.mkdir("tests")
    yield s3_process
    store.rm("tests", recursive=True)


@pytest.fixture(scope="session")
def clouds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Four overlapping clouds of points: 106 rows to train on and 30 to validate with."""
    classes = 4
    random = np.random.default_rng(0)
    splits = {}
    for split, sizes in {"train": [27, 27, 26, 26], "validation": [15, 15]}.items():
        splits[split] = []
        for rows in sizes:
            labels = random.integers(0, classes, rows)
            splits[split].append((random.normal(size=(rows, classes)) + 2 * np.eye(classes)[labels], labels))
    names = tuple(map(str, range(classes)))
    return write_vectors(tmp_path_factory.mktemp("clouds") / "dataset", splits, label_names=names)


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Texts of up to six words of forty, of which each of four classes has ten for itself: 0 is no word."""
    random = np.random.default_rng(0)
    splits = {}
    for split, rows in (("train", 106), ("validation", 30)):
        labels = random.integers(0, 4, rows)
        words = random.integers(1, 11, (rows, 6)) + 10 * labels[:, None]
        splits[split] = [(words * (random.random(words.shape) < 0.8), labels)]
    return write_vectors(tmp_path_factory.mktemp("texts") / "dataset", splits, label_names=tuple("0123"))


def write_vectors(folder: Path, splits: Mapping[str, Sequence[tuple[Any, Any]]], **card: Any) -> Dataset:
    """Vectors and their labels as a dataset, without Spark: a file for each pair of a split; ``card`` says the rest.

    For ranking, there are the matrices of groups, and the arrays of their labels.
    """
    inputs = InputSpec(column="features", kind="vector", shape=splits["train"][0][0][0].shape[-1:], dtype="float32")
    found, groups = {}, {}
    for split, pairs in splits.items():
        (folder / split).mkdir(parents=True)
        records, sums = [], np.zeros(len(SPARSE_COUNTS), int)
        for number, (points, labels) in enumerate(pairs):
            path = str(folder / split / file_name(number))
            if card.get("task") == "ranking":
                rows = {"features": [group.tolist() for group in points], LABEL_COLUMN: [list(each) for each in labels]}
                records.append(write_sparse_row_group(path, pa.table(rows), inputs, None, ""))
                sums += records[-1]["counts"]
            else:
                column = pa.array(list(points.astype(np.float32)), pa.list_(pa.float32()))
                rows = {"features": column, LABEL_COLUMN: labels}
                records.append(write_row_group(path, pa.table(rows), inputs))
        groups[split] = pa.Table.from_pylist(records)
        classes = len(card["label_names"])
        counts = np.bincount(np.concatenate([labels for _, labels in pairs]), minlength=classes) if classes else ()
        sparse = dict(zip(SPARSE_COUNTS, sums.tolist(), strict=True)) if sums.any() else None
        found[split] = SplitCard(
            num_rows=sum(record["rows"] for record in records),
            num_groups=len(records),
            class_counts=tuple(counts),
            sparse=sparse,
        )
    written = Card.create(
        input=inputs,
        splits=found,
        row_groups=write_row_groups_file(str(folder), groups),
        raw_columns={"features": "array<float>"},
        preprocessing=False,
        settings={"seed": 0},
        source="3-abc",
        **card,
    )
    (folder / "card.json").write_text(written.to_json())
    return Dataset.open(str(folder))
