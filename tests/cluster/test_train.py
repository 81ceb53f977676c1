"""Training on real ranks: exact steps, exact figures, and clear ends."""

import json
from pathlib import Path
from shutil import copy

import numpy as np
import pytest
import torch
from mlflow import MlflowClient
from torch import nn
from torch.nn import functional

import sparkdl
from sparkdl import Cluster, Prepare, Split, Tracking, Train
from sparkdl.cluster import current_rank
from sparkdl.errors import (
    ConfigError,
    DataError,
    ModelError,
    NotEnoughSlotsError,
    RankError,
    RegistryError,
    TrainingError,
)
from sparkdl.models import NETWORK_FILE
from sparkdl.models import load_weights as load_network_weights
from sparkdl.settings import Gate, RankLayout
from sparkdl.tracking import download
from sparkdl.training.checkpoints.checkpoint import load_manifest, load_shard, load_shared, load_weights
from sparkdl.training.checkpoints.checkpoint_folder import latest

ROWS = 203  # odd, so that two ranks cannot share them evenly
ONE, TWO = Cluster(num_ranks=1), Cluster(num_ranks=2)
SHARED = Cluster(layout=RankLayout(tensor=2))
STAGED = Cluster(layout=RankLayout(pipeline=2))
DEALT = Cluster(layout=RankLayout(experts=2))


@pytest.fixture(scope="module")
def raw(spark):
    """Three overlapping clouds of points in four dimensions, and their labels."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, ROWS)
    points = random.normal(size=(ROWS, 4)) + 2 * np.eye(4)[labels]
    return spark.createDataFrame(
        [(*map(float, point), int(label)) for point, label in zip(points, labels, strict=True)],
        "a double, b double, c double, d double, label int",
    ).cache()


@pytest.fixture(scope="module")
def dataset(raw, tmp_path_factory):
    settings = Prepare(
        output=str(tmp_path_factory.mktemp("data") / "points"),
        split=Split(fractions={"validation": 0.25, "test": 0.2}),
        rows_per_group=16,
    )
    return sparkdl.prepare(raw, settings)


@pytest.fixture
def tracking(tmp_path, empty_store):
    copy(empty_store, tmp_path / "mlflow.db")
    return Tracking(uri=f"sqlite:///{tmp_path / 'mlflow.db'}", experiment="tests")


@pytest.fixture
def fit(dataset, tracking, tmp_path, spark):
    """Train on the points with a few settings; plain gradient descent unless told otherwise."""

    def fit(cluster=TWO, tracking=tracking, **settings):
        defaults = {"optimizer": "sgd", "schedule": "constant", "learning_rate": 0.1, "run_dir": str(tmp_path / "runs")}
        return sparkdl.train(dataset, Train(**(defaults | settings)), cluster=cluster, tracking=tracking, spark=spark)

    return fit


def weights(trained) -> torch.Tensor:
    return nn.utils.parameters_to_vector(load_weights(trained.checkpoint).values())


def test_two_ranks_take_the_same_step_as_one_over_the_same_rows(fit):
    one = fit(ONE, epochs=3, batch_size=ROWS)
    two = fit(TWO, epochs=3, batch_size=ROWS)
    assert torch.allclose(weights(one), weights(two), atol=1e-6)


def test_what_horovod_cannot_do_is_done_by_torch_or_refused_before_anything_starts(fit, tracking):
    strategy = {"kind": "allreduce", "topology": "two_levels"}
    plain, elsewhere = fit(batch_size=ROWS), fit(batch_size=ROWS, strategy=strategy)
    assert torch.allclose(weights(plain), weights(elsewhere), atol=1e-6)
    assert MlflowClient(tracking.uri).get_run(elsewhere.run_id).data.params["backend"] == "torch"
    with pytest.raises(ConfigError, match=r"topology two_levels, which Horovod cannot; set cluster\.backend"):
        fit(Cluster(backend="horovod"), strategy=strategy)


def test_a_network_in_parts_is_trained_and_registered_as_a_whole_one_is(fit, tracking):
    whole, parts = (fit(batch_size=20, epochs=2, strategy={"kind": "ist", "sharded": sharded}) for sharded in (0, 1))
    assert parts.metrics == pytest.approx(whole.metrics, rel=1e-5)
    ours, theirs = (load_network_weights(download(each.model_uri, tracking) / NETWORK_FILE) for each in (parts, whole))
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-6) for name in ours)


def test_replicas_in_shards_are_trained_and_registered_as_whole_ones_are(fit, tracking):
    whole, shards = (
        fit(batch_size=20, epochs=2, strategy={"kind": "allreduce", "shard": shard}) for shard in (None, "all")
    )
    assert shards.metrics == pytest.approx(whole.metrics, rel=1e-4)
    assert MlflowClient(tracking.uri).get_run(shards.run_id).data.params["backend"] == "torch"
    ours, theirs = (load_network_weights(download(each.model_uri, tracking) / NETWORK_FILE) for each in (shards, whole))
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-5) for name in ours)
    with pytest.raises(ConfigError, match=r"shards \(shard\), which Horovod cannot; set cluster\.backend"):
        fit(Cluster(backend="horovod"), strategy={"kind": "allreduce", "shard": "all"})


@pytest.mark.parametrize("cluster", [SHARED, STAGED], ids=["cut", "staged"])
def test_a_replica_that_two_ranks_share_is_trained_registered_and_scored_as_a_whole_one(fit, raw, tracking, cluster):
    whole, cut = fit(ONE, batch_size=20, epochs=2), fit(cluster, batch_size=20, epochs=2)
    assert cut.metrics == pytest.approx(whole.metrics, rel=1e-4)
    params = MlflowClient(tracking.uri).get_run(cut.run_id).data.params
    key = "tensor" if cluster is SHARED else "pipeline"
    assert (params["backend"], params[f"cluster.layout.{key}"]) == ("torch", "2")
    ours, theirs = (load_network_weights(download(each.model_uri, tracking) / NETWORK_FILE) for each in (cut, whole))
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-5) for name in theirs)
    predicted = [sparkdl.score(raw, each).select("prediction").collect() for each in (cut, whole)]
    assert predicted[0] == predicted[1]


class Convolutions(nn.Module):
    """Points as images of two by two, and wide layers."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.images = nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Flatten())
        self.wide = nn.Sequential(nn.Linear(24, 33), nn.ReLU(), nn.Linear(33, num_classes))

    def forward(self, points):
        return self.wide(self.images(points))


def test_convolutions_by_rows_and_wide_layers_in_parts_are_trained_as_by_one_rank_which_may_go_on(
    fit, raw, tracking, tmp_path
):
    recipe = {"model": Convolutions, "optimizer": "adam", "learning_rate": 0.02, "clip_norm": 0.5, "batch_size": 21}
    whole = fit(ONE, epochs=3, **recipe)
    begun = fit(SHARED, epochs=2, **recipe)
    assert begun.history[1]["validation_loss"] == pytest.approx(whole.history[1]["validation_loss"], rel=1e-4)
    on = fit(ONE, epochs=3, resume=begun.run_id, **recipe)
    assert on.metrics == pytest.approx(whole.metrics, rel=1e-4)
    ours, theirs = (load_network_weights(download(each.model_uri, tracking) / NETWORK_FILE) for each in (on, whole))
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-5) for name in theirs)
    assert sparkdl.score(raw, begun).count() == ROWS


def test_two_ranks_that_share_experts_train_what_one_rank_trains_which_goes_on_with_it(fit, raw, tracking):
    """Steps have all rows, of which the ranks have unequal numbers, so that they are the same for one and for two."""
    options = {"width": 8, "experts": 3, "hidden": 8}
    recipe = {"model": "mixture_of_experts", "model_options": options, "batch_size": ROWS, "optimizer": "adam"}
    whole, dealt = (fit(cluster, epochs=8, **recipe) for cluster in (ONE, DEALT))
    assert dealt.metrics == pytest.approx(whole.metrics, rel=1e-4)
    ours, theirs = (fit(ONE, epochs=10, resume=each.run_id, **recipe) for each in (dealt, whole))
    assert ours.metrics == pytest.approx(theirs.metrics, rel=1e-4)
    params = MlflowClient(tracking.uri).get_run(dealt.run_id).data.params
    assert (params["backend"], params["cluster.layout.experts"]) == ("torch", "2")
    predicted = [sparkdl.score(raw, each).select("prediction").collect() for each in (dealt, whole)]
    assert predicted[0] == predicted[1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"strategy": {"kind": "local_sgd"}}, r"with cluster\.layout\.experts all ranks take each step together"),
        ({"precision": "float16"}, r"with train\.precision float16, a rank skips steps"),
        ({"optimizer": "lamb"}, r"train\.optimizer lamb needs the norms of whole layers, but cluster\.layout\.experts"),
        ({}, r"cluster\.layout\.experts deals out the experts of .*, and the network has no such layer"),
        (
            {"model": "mixture_of_experts", "model_options": {"experts": 1, "top": 1}},
            r"cluster\.layout\.experts is 2, and the layer '2\.mixture' has 1 experts",
        ),
    ],
)
def test_what_dealt_experts_cannot_do_is_refused_before_anything_starts(fit, tmp_path, changes, reason):
    with pytest.raises((ConfigError, ModelError), match=reason):
        fit(DEALT, **changes)
    with pytest.raises(ConfigError, match=r"runs on parts of a network \(cluster\.layout\), which Horovod cannot"):
        fit(Cluster(layout=DEALT.layout, backend="horovod"), model="mixture_of_experts")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"strategy": {"kind": "ist"}}, r"train\.strategy ist deals out the neurons of a whole network; change it"),
        (
            {"optimizer": "adagrad", "strategy": {"kind": "downpour", "rule": "adagrad"}},
            r"train\.strategy downpour has parameter servers; change it, or set cluster\.layout\.tensor to 1",
        ),
        ({"strategy": {"kind": "allreduce", "shard": "all"}}, r"train\.strategy\.shard needs ranks"),
        ({"strategy": {"kind": "allreduce", "compression": "powersgd"}}, r"compression powersgd needs whole layers"),
        ({"precision": "float16"}, r"with train\.precision float16, a rank skips steps"),
        ({"compile": True}, r"train\.compile: compile is for a network that one rank computes"),
        ({"optimizer": "lamb"}, r"train\.optimizer lamb needs the norms of whole layers"),
        ({"model_options": {"hidden": []}}, "the network has nothing to cut"),
    ],
)
def test_what_a_shared_replica_cannot_do_is_refused_before_anything_starts(fit, tmp_path, changes, reason):
    with pytest.raises((ConfigError, ModelError), match=reason):
        fit(SHARED, **changes)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"strategy": {"kind": "diloco", "fragments": 2}},
            r"strategy\.fragments are of all parameters, and cluster\.layout\.pipeline gives a rank those of its",
        ),
        ({"compile": True}, r"train\.compile: compile is for a network that one rank computes"),
        (
            {"model_options": {"hidden": []}},
            "can be cut into 1 stages with parameters at most, and 2 are asked for",
        ),
    ],
)
def test_what_stages_cannot_do_is_refused_before_anything_starts(fit, tmp_path, changes, reason):
    with pytest.raises((ConfigError, ModelError), match=reason):
        fit(STAGED, **changes)
    assert not (tmp_path / "runs").exists()


def test_accumulated_batches_take_the_same_step_as_one_large_batch(fit):
    large = fit(TWO, epochs=2, batch_size=ROWS)
    small = fit(TWO, epochs=2, batch_size=7, accumulation=100)
    assert torch.allclose(weights(large), weights(small), atol=1e-6)


def test_evaluation_is_the_same_on_one_rank_and_on_two(fit):
    one = fit(ONE, batch_size=ROWS).metrics
    two = fit(TWO, batch_size=ROWS).metrics
    assert one["test_accuracy"] == two["test_accuracy"]
    assert one["validation_loss"] == pytest.approx(two["validation_loss"], abs=1e-6)


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(fit):
    first, again, other = (fit(epochs=2, batch_size=8, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(weights(first), weights(again))
    assert not torch.allclose(weights(first), weights(other))


def test_it_learns(fit):
    assert fit(epochs=12, batch_size=8, optimizer="adamw", learning_rate=0.02).metrics["test_accuracy"] > 0.7


def test_clipping_bounds_the_averaged_gradient(fit):
    start = fit(learning_rate=1e-12, batch_size=ROWS)
    clipped = fit(learning_rate=1.0, batch_size=ROWS, clip_norm=1e-3)
    assert (weights(clipped) - weights(start)).norm() == pytest.approx(1e-3, rel=0.01)


def test_mixed_precision_learns_about_the_same_from_rounded_products(fit):
    whole, mixed = (fit(epochs=2, batch_size=8, precision=precision) for precision in ("float32", "bfloat16"))
    assert weights(mixed).dtype == torch.float32
    assert 1e-6 < (weights(mixed) - weights(whole)).abs().max() < 0.05
    assert mixed.history[1]["train_loss"] < mixed.history[0]["train_loss"]


def test_the_best_epoch_is_kept_and_evaluated(fit):
    trained = fit(epochs=6, batch_size=8, learning_rate=0.5, best_by="loss")
    best = min(epoch["validation_loss"] for epoch in trained.history)
    assert trained.metrics["validation_loss"] == pytest.approx(best)
    assert load_manifest(latest(str(Path(trained.checkpoint).parent))).epoch == 6


def batch_normalised(input_shape, num_classes):
    return nn.Sequential(nn.Linear(*input_shape, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, num_classes))


def test_running_means_agree_across_ranks(fit):
    trained = fit(model=batch_normalised, epochs=2, batch_size=8)
    folder = str(Path(trained.checkpoint).parent)
    first, second = (load_shard(folder, shard)["buffers"] for shard in load_manifest(latest(folder)).shards)
    assert first["1.running_mean"].abs().max() > 0
    for name, mean in first.items():
        assert torch.equal(mean, second[name]), name


# what MLflow remembers


def test_one_run_holds_parameters_curves_pictures_dataset_and_model(fit, tracking, dataset):
    trained = fit(epochs=2, tracking=tracking.model_copy(update={"register_as": "points"}))
    client = MlflowClient(tracking.uri)
    runs = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
    assert [run.info.run_id for run in runs] == [trained.run_id]
    (run,) = runs
    assert run.info.status == "FINISHED"
    assert run.data.params["train.epochs"] == "2" and run.data.params["cluster.num_ranks"] == "2"
    assert run.data.metrics["test_accuracy"] == trained.metrics["test_accuracy"]
    assert [point.step for point in client.get_metric_history(trained.run_id, "validation_loss")][:2] == [1, 2]
    steps = [point.step for point in client.get_metric_history(trained.run_id, "step_loss")]
    assert steps == sorted(set(steps)) and len(steps) >= 2
    (used,) = run.inputs.dataset_inputs
    assert used.dataset.digest == dataset.digest[: len(used.dataset.digest)]
    pictures = {file.path for file in client.list_artifacts(trained.run_id)}
    assert {"loss.png", "accuracy.png", "confusion_test.png"} <= pictures
    assert Path(client.download_artifacts(trained.run_id, "verdict.txt")).read_text() == trained.verdict
    trace = json.loads(Path(client.download_artifacts(trained.run_id, "trace.json")).read_text())
    assert {event["tid"] for event in trace["traceEvents"] if event["name"] == "step 1"} == {0, 1}
    share, efficiency = run.data.metrics["communication_share"], run.data.metrics["scaling_efficiency"]
    assert 0 <= share < 1 and share == pytest.approx(1 - efficiency)
    assert run.data.metrics["rank_1/computing_seconds"] > 0 and run.data.metrics["bytes_per_step"] > 0
    assert trained.registered.moved and trained.registered.version == 1
    assert client.get_model_version_by_alias("points", "candidate").version == 1


def test_the_alias_stays_when_the_gate_is_not_passed(fit, tracking):
    gate = Gate(metric="test_accuracy", minimum=1.1)
    trained = fit(tracking=tracking.model_copy(update={"register_as": "points", "gate": gate}))
    assert not trained.registered.moved
    assert "test_accuracy" in trained.registered.reason and "1.1" in trained.registered.reason


def test_a_run_ends_when_it_has_reached_its_target_and_logs_the_seconds(fit, tracking):
    trained = fit(epochs=30, target={"metric": "train_accuracy", "value": 0.5})
    assert len(trained.history) < 30
    assert trained.seconds_to_target == sum(epoch["seconds"] for epoch in trained.history)
    run = MlflowClient(tracking.uri).get_run(trained.run_id)
    assert run.data.metrics["seconds_to_target"] == trained.seconds_to_target


def test_fine_tuning_starts_from_a_registered_model(fit, tracking):
    registering = tracking.model_copy(update={"register_as": "points"})
    first = fit(epochs=3, tracking=registering)
    second = fit(tracking=registering, start_from="models:/points@candidate", learning_rate=1e-12)
    assert torch.allclose(weights(first), weights(second), atol=1e-6)


# bad input


def test_a_registry_name_that_does_not_exist_is_named(fit):
    with pytest.raises(RegistryError, match="absent"):
        fit(start_from="models:/absent@candidate")


def test_a_gate_for_a_figure_that_there_will_not_be_is_an_error_before_anything_starts(fit, tracking):
    gate = Gate(metric="test_f1")
    known = "test_accuracy, test_log_loss, test_loss, test_macro_f1, validation_accuracy"
    with pytest.raises(ConfigError, match=f"'test_f1' is not measured here; there will be {known}"):
        fit(tracking=tracking.model_copy(update={"register_as": "points", "gate": gate}))


def test_more_ranks_than_slots_says_both_numbers_and_leaves_no_run_to_be_resumed(fit, tmp_path):
    with pytest.raises(NotEnoughSlotsError, match=r"(?s)5.*2"):
        fit(Cluster(num_ranks=5))
    assert not (tmp_path / "runs").exists()


def test_fewer_rows_than_ranks_is_an_error_before_anything_starts(fit):
    with pytest.raises(DataError, match="1000"):
        fit(Cluster(num_ranks=1000))


def test_a_model_whose_output_does_not_fit_the_labels_is_an_error_before_anything_starts(fit):
    with pytest.raises(ModelError, match="3 classes"):
        fit(model=lambda: nn.Linear(4, 7))


def test_a_loss_that_does_not_fit_is_an_error_before_anything_starts(fit):
    with pytest.raises(ModelError, match="must return one number"):
        fit(loss=lambda outputs, labels: functional.cross_entropy(outputs, labels, reduction="none"))


def test_no_dataset_is_an_error_that_says_where_to_name_one():
    with pytest.raises(ConfigError, match=r"train\.dataset"):
        sparkdl.train(None, Train())


class NotANumber:
    """A loss that becomes NaN at its seventh call with gradients; the driver's trial is the first."""

    def __init__(self):
        self.calls = 0

    def __call__(self, outputs, labels):
        loss = functional.cross_entropy(outputs, labels)
        if torch.is_grad_enabled() and outputs.requires_grad:
            self.calls += 1
        return loss * float("nan") if self.calls > 6 else loss


def test_a_loss_that_turns_nan_stops_with_its_step_and_keeps_the_last_good_checkpoint(fit, tracking, tmp_path):
    with pytest.raises(TrainingError, match=r"^the loss is nan at step 5\b"):
        fit(loss=NotANumber(), epochs=9, batch_size=64)
    (folder,) = (tmp_path / "runs").iterdir()
    weights = load_shared(str(folder), load_manifest(latest(str(folder))))["model"]
    assert torch.isfinite(nn.utils.parameters_to_vector(weights.values())).all()
    client = MlflowClient(tracking.uri)
    (run,) = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
    assert run.info.status == "FAILED"


def raises_on_rank_one(outputs, labels):
    rank = current_rank()
    if outputs.requires_grad and rank is not None and rank.rank == 1:
        raise ZeroDivisionError("from the user's own loss")
    return functional.cross_entropy(outputs, labels)


def test_an_exception_on_a_rank_arrives_with_that_ranks_traceback_first(fit):
    with pytest.raises(RankError) as caught:
        fit(loss=raises_on_rank_one)
    text = str(caught.value)
    assert "rank 1" in text and "ZeroDivisionError: from the user's own loss" in text
    assert "raises_on_rank_one" in text and "Py4JJavaError" not in text
