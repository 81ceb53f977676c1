"""What the benchmark of very many classes is measured on."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import sparse

from benchmarks.extreme.claims import REPOSITORY, published_shapes
from benchmarks.extreme.made_up import Shape, write_dataset
from benchmarks.extreme.processes import cpu_seconds
from benchmarks.extreme.rivals import write_rows
from benchmarks.extreme.task import CONFIGURATIONS, first_groups, rows_of
from sparkdl import load_settings, plan_extreme
from sparkdl.data import SparseLoader
from sparkdl.data.sources.xc_lines import parse_lines

PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
SHAPE = Shape(rows=20_000, features=3_000, classes=400, draws=16)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("made-up") / "dataset", SHAPE)


def test_made_up_data_is_a_whole_dataset_of_the_wanted_shape(dataset, tmp_path):
    dataset.verify()
    assert (dataset.rows("train"), dataset.num_classes, dataset.input.shape) == (20_000, 400, (3_000,))
    again = write_dataset(tmp_path / "again", SHAPE)
    assert again.digest == dataset.digest
    loader = SparseLoader(first_groups(dataset, 1), "train", batch_size=256)
    assert loader.rows == dataset.row_groups("train")[0].rows
    rows = rows_of(dataset, "train")
    assert np.add.reduceat(rows.values**2, rows.offsets[:-1]) == pytest.approx(1, abs=1e-5)


def test_made_up_classes_are_zipf_like_and_depend_on_the_features(dataset):
    counts = np.sort(dataset.label_counts)[::-1]
    assert counts[-1] >= 1 and counts[:10].sum() > 0.3 * counts.sum()
    rows = rows_of(dataset, "train")
    of_class = np.repeat(rows.labels, np.diff(rows.offsets))
    most = np.argsort(dataset.label_counts)[-2:]
    common = [np.bincount(rows.indices[of_class == number], minlength=3_000) / counts[0] for number in most]
    assert np.abs(common[0] - common[1]).max() > 0.2


def test_made_up_rows_may_have_several_labels_and_others_may_test_them(tmp_path):
    shape = Shape(rows=5_000, features=3_000, classes=400, labels=3, test_rows=1_000)
    dataset = write_dataset(tmp_path / "dataset", shape)
    dataset.verify()
    assert [dataset.rows(split) for split in ("train", "test")] == [5_000, 1_000]
    counts = np.diff(rows_of(dataset, "train").label_offsets)
    assert counts.min() >= 1 and counts.max() == 3
    assert dataset.label_counts.sum() == counts.sum()


def test_rivals_read_the_same_rows(tmp_path):
    dataset = write_dataset(tmp_path / "d", Shape(rows=2_000, features=3_000, classes=400, labels=3, test_rows=100))
    write_rows(dataset, tmp_path)
    header, _, lines = (tmp_path / "train.txt").read_bytes().partition(b"\n")
    assert header == b"2000 3000 400"
    x, y = (sparse.load_npz(tmp_path / f"train_{each}.npz") for each in "xy")
    assert (x.shape, y.shape) == ((2_000, 3_000), (2_000, 400))
    assert sparse.load_npz(tmp_path / "test_x.npz").shape == (100, 3_000)
    found, rows = parse_lines(lines, 3_000, 400), rows_of(dataset, "train")
    assert not found.bad
    for mine, theirs in zip(rows, found[:5], strict=True):
        np.testing.assert_allclose(theirs, mine, rtol=1e-5)


def test_cpu_seconds_count_processes_that_run_and_those_that_have_ended():
    busy = "import time\nwhile time.process_time() < {}: pass\n"
    before = cpu_seconds()
    subprocess.run([sys.executable, "-c", busy.format(0.5)], check=True)
    ended = cpu_seconds()
    assert ended - before >= 0.4
    running = subprocess.Popen([sys.executable, "-c", busy.format(0.5) + "print(flush=True)\ninput()"], **PIPES)
    running.stdout.readline()
    assert cpu_seconds() - ended >= 0.4
    running.communicate(b"\n")


def test_what_the_plan_expects_of_published_sets_is_said_in_minutes_and_megabytes():
    report = published_shapes()
    found = {row[0]: dict(zip(report.columns[1:], row[1:], strict=True)) for row in report.rows}
    assert set(found) == set(REPOSITORY)
    assert found["amazon_670k"]["buckets x repetitions"] == "4096 x 8"
    for row in found.values():
        assert row["both, min"] > row["meta-models, min"] + row["ranker, min"] > 0
        assert row["a task of the ranker MB"] > 500


@pytest.mark.parametrize("name", REPOSITORY)
def test_files_for_published_sets_have_the_buckets_and_layers_that_the_plan_chooses(name):
    settings = load_settings(str(CONFIGURATIONS / f"{name}.yaml"), [])
    plan = plan_extreme(**REPOSITORY[name], hidden=settings.extreme.hidden)
    assert settings.extreme.buckets == plan.num_buckets
    assert plan_extreme(**REPOSITORY[name]).mach.name == plan.mach.name
    assert settings.require("prepare").source.format == "xc"
