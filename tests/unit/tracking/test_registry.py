import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlflow.pyfunc
import pytest
from mlflow import MlflowClient

from sparkdl.errors import ConfigError, RegistryError
from sparkdl.settings import Gate, Tracking
from sparkdl.tracking import Registered, check_gate, download, start_run, sync
from sparkdl.tracking.registry import register

Make = Callable[..., Tracking]


def _register(settings: Tracking, folder: Path, **metrics: float) -> Registered:
    with start_run(settings, params={}) as run:
        return run.register(run.log_model(folder, inputs={"a": "double"}), metrics)


def test_versions_count_up_and_the_alias_follows_the_better_one(
    settings: Make, client: MlflowClient, folder: Path
) -> None:
    first = _register(settings(), folder, test_accuracy=0.90)
    worse = _register(settings(), folder, test_accuracy=0.88)
    better = _register(settings(), folder, test_accuracy=0.91)
    assert [(made.version, made.moved) for made in (first, worse, better)] == [(1, True), (2, False), (3, True)]
    assert worse.reason == "alias 'candidate' stays on version 1: test_accuracy 0.88 is worse than its 0.9"
    assert better.reason.endswith("no worse than the 0.9 of version 1")
    assert client.get_model_version_by_alias(better.name, "candidate").version == 3
    assert better.uri == f"models:/{better.name}/3"


class Held:
    """A client of the registry that waits before one of its calls until it is let go."""

    def __init__(self, client: MlflowClient, before: int) -> None:
        self._client, self._left = client, before
        self.waits, self.let_go = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> object:
        found = getattr(self._client, name)
        if not callable(found):
            return found

        def call(*args: object, **keys: object) -> object:
            self._left -= 1
            if self._left == 0:
                self.waits.set()
                assert self.let_go.wait(timeout=60)
            return found(*args, **keys)

        return call


@pytest.mark.parametrize("first", ["worse", "better"])
def test_the_alias_ends_on_the_better_of_two_whatever_the_interleaving(
    settings: Make, client: MlflowClient, tmp_path: Path, first: str
) -> None:
    """One job is held before each of its calls in turn, while the other one registers; the name is new for both."""
    second = "worse" if first == "better" else "better"
    accuracy = {"worse": 0.90, "better": 0.95}
    logged = {}
    for kind in accuracy:
        with start_run(settings(), params={}) as run:
            (tmp_path / kind).mkdir()
            (tmp_path / kind / "card.json").write_text(kind)
            logged[kind] = run.run_id, run.log_model(tmp_path / kind, inputs={"a": "double"})
    ends = []
    while True:
        ours = settings(register_as=f"{settings().register_as}-{len(ends)}")

        def job(client: MlflowClient, kind: str, ours: Tracking = ours) -> Registered:
            run_id, model = logged[kind]
            return register(client, model, ours, run_id=run_id, metrics={"test_accuracy": accuracy[kind]})

        held = Held(client, before=len(ends) + 1)
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(job, held, first)  # type: ignore[arg-type]
            while not held.waits.wait(0.01) and not future.done():
                pass
            if future.done():
                break
            job(client, second)
            held.let_go.set()
            future.result()
        at = client.get_model_version_by_alias(str(ours.register_as), "candidate")
        ends.append(at.tags["test_accuracy"])
    assert len(ends) > 5 and set(ends) == {"0.95"}


def test_a_version_that_a_person_has_taken_the_alias_from_does_not_get_it_back(
    settings: Make, client: MlflowClient, folder: Path
) -> None:
    for accuracy in (0.90, 0.99):
        name = _register(settings(), folder, test_accuracy=accuracy).name
    client.set_registered_model_alias(name, "candidate", "1")
    assert _register(settings(), folder, test_accuracy=0.95).moved
    assert client.get_model_version_by_alias(name, "candidate").version == 3


KILLED = """
import os, sys
from sparkdl.settings import Tracking
from sparkdl.tracking import courier, start_run
courier.Courier.run = lambda self: None  # the store has taken nothing when the process ends
courier.Courier.wait_for = lambda self, entry, uploading: False
with start_run(Tracking.model_validate_json(sys.argv[1]), params={}) as run:
    run.register(run.log_model(sys.argv[2], inputs={"a": "double"}), {"test_accuracy": 0.9})
    print(run.run_id, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_a_driver_killed_before_it_registered_then_synced_then_resumed_makes_one_version(
    settings: Make, client: MlflowClient, folder: Path
) -> None:
    program = [sys.executable, "-c", KILLED, settings().model_dump_json(), str(folder)]
    killed = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (synced,) = sync(settings())
    assert [made.version for made in synced.registered] == [1]
    with start_run(settings(), params={}, resume=killed.stdout.strip()) as run:
        made = run.register(run.log_model(folder, inputs={"a": "double"}), {"test_accuracy": 0.9})
    assert made is not None and (made.version, made.moved) == (1, True)
    assert len(client.get_run(run.run_id).outputs.model_outputs) == 1


def test_a_threshold_keeps_the_alias_away(settings: Make, folder: Path) -> None:
    made = _register(settings(gate=Gate(minimum=0.9)), folder, test_accuracy=0.88)
    assert not made.moved
    assert made.reason == "alias 'candidate' is not set: test_accuracy 0.88 is below 0.9"
    loss = Gate(metric="test_loss", maximum=0.5)
    assert not _register(settings(gate=loss), folder, test_loss=0.6).moved
    assert _register(settings(gate=loss), folder, test_loss=0.4).moved
    assert not _register(settings(gate=loss), folder, test_loss=0.45).moved  # smaller is better here


def test_equal_is_good_enough_and_no_gate_is_open(settings: Make, folder: Path) -> None:
    assert _register(settings(), folder, test_accuracy=0.9).moved
    assert _register(settings(), folder, test_accuracy=0.9).moved
    assert _register(settings(gate=Gate(better_than_current=False)), folder).moved


def test_a_metric_that_is_missing_or_not_a_number_does_not_pass(settings: Make, folder: Path) -> None:
    gate = Gate(metric="test_f1", minimum=0.5)
    made = _register(settings(gate=gate), folder, test_accuracy=0.9)
    assert made.reason.endswith(
        "this version has no test_f1 that the gate asks for (tracking.gate.metric); it has test_accuracy"
    )
    assert not _register(settings(gate=gate), folder, test_f1=float("nan")).moved


def test_what_is_not_a_number_never_gets_the_alias(settings: Make, folder: Path) -> None:
    made = _register(settings(), folder, test_accuracy=float("nan"))
    assert made.reason == "alias 'candidate' is not set: test_accuracy is nan"
    assert not _register(settings(gate=Gate(better_than_current=False)), folder, test_accuracy=float("inf")).moved
    assert _register(settings(), folder, test_accuracy=0.1).moved


def test_a_gate_that_asks_for_what_is_not_there_is_closed_from_the_first_version_on(
    settings: Make, folder: Path
) -> None:
    gate = Gate(metric="test_f1")
    for _ in range(2):
        made = _register(settings(gate=gate), folder, test_accuracy=0.9)
        assert made.reason == (
            "alias 'candidate' is not set: this version has no test_f1 that the gate asks for"
            " (tracking.gate.metric); it has test_accuracy"
        )
    with pytest.raises(ConfigError, match="'test_f1' is not measured here; there will be test_accuracy, test_loss"):
        check_gate(settings(gate=gate), ["test_loss", "test_accuracy"])
    check_gate(settings(gate=gate, register_as=None), ["test_loss"])


def test_a_version_without_the_figure_of_the_one_before_does_not_take_its_place(settings: Make, folder: Path) -> None:
    assert _register(settings(), folder, test_accuracy=0.9).moved
    for metrics in ({"validation_accuracy": 0.95}, {"test_loss": 0.1}, {}):
        assert "this version has no test_accuracy" in _register(settings(), folder, **metrics).reason


@pytest.mark.parametrize("metric", ["test_precision_at_1", "validation_accuracy"])
def test_versions_are_compared_by_the_usual_metric_that_they_have(settings: Make, folder: Path, metric: str) -> None:
    assert _register(settings(), folder, **{metric: 0.9}).moved
    assert "is worse than its 0.9" in _register(settings(), folder, **{metric: 0.8}).reason
    assert _register(settings(), folder, **{metric: 0.95}).moved


@pytest.mark.parametrize("name", ["it's", 'the "best"', "main.models.it-s_1"])
def test_whatever_name_mlflow_takes_is_registered_and_found(settings: Make, folder: Path, name: str) -> None:
    first = _register(settings(register_as=name), folder, test_accuracy=0.5)
    assert (first.version, first.moved) == (1, True)
    assert _register(settings(register_as=name), folder, test_accuracy=0.5).version == 2
    with pytest.raises(RegistryError, match="it has 1, 2"):
        download(f"models:/{name}/7", settings())


def test_without_a_name_nothing_is_registered(settings: Make, folder: Path) -> None:
    with pytest.raises(RegistryError, match=r"set tracking\.register_as"):
        _register(settings(register_as=None), folder)


def test_a_model_is_found_by_alias_version_run_and_folder(
    settings: Make, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _register(settings(), folder, test_accuracy=0.5)
    expected = (folder / "network.safetensors").read_bytes()
    monkeypatch.chdir(tmp_path)
    for uri in (made.uri, f"models:/{made.name}@candidate", str(download(made.uri, settings()).parent.parent)):
        found = download(uri, settings())
        assert (found / "network.safetensors").read_bytes() == expected
    assert download(made.uri, settings()) == download(made.uri, settings())
    assert not list(tmp_path.iterdir())


def test_what_does_not_exist_is_told_with_what_does(settings: Make, folder: Path, tmp_path: Path) -> None:
    name = _register(settings(alias="best"), folder, test_accuracy=0.5).name
    for uri, words in {
        "models:/nobody@best": f"no registered model 'nobody'; registered are .*'{name}'",
        f"models:/{name}@worst": rf"'{name}' has no alias 'worst'; it has 'best' \(version 1\).*models:/{name}/1",
        f"models:/{name}/7": f"'{name}' has no version 7; it has 1",
        "models:/m-0123456789": "there is no model models:/m-0123456789.* set another store in `tracking`",
        "runs:/0123/model": "cannot download runs:/0123/model",
        str(tmp_path): "is not a model that sparkdl can load",
    }.items():
        with pytest.raises(RegistryError, match=words):
            download(uri, settings())


def test_somebody_elses_model_is_not_opened(settings: Make, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    mlflow.pyfunc.save_model(
        str(tmp_path / "model"), loader_module="mlflow.sklearn", data_path=str(tmp_path / "data"), pip_requirements=[]
    )
    with pytest.raises(RegistryError, match="was not made by sparkdl"):
        download(str(tmp_path / "model"), settings())
