"""The one training loop. Runs on ranks.

Every rank takes the same number of steps. The last batch of an epoch may have fewer rows on one rank than on another.
Therefore each rank weighs its mean loss by its share of the step's rows: the average over ranks is then the exact mean
over all rows of the step.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from math import ceil

import torch
from torch import nn

from sparkdl.cluster import Rank
from sparkdl.collectives import Communicator
from sparkdl.data import Batch, Dataset, Loader
from sparkdl.inputs.tensors import Inputs, count_rows, moved
from sparkdl.models import full_state, load_full_state
from sparkdl.training.best import is_better, is_over
from sparkdl.training.checkpoints.checkpoint import Manifest, load_manifest, load_weights
from sparkdl.training.checkpoints.random_states import seed_everything
from sparkdl.training.checkpoints.saver import Saver
from sparkdl.training.checkpoints.state import TrainingState, best_model, copied, go_on, resume
from sparkdl.training.evaluation import Evaluation, evaluate
from sparkdl.training.groups import Groups
from sparkdl.training.job import Job, TrainingResult
from sparkdl.training.network_to_train import build_for_ranks
from sparkdl.training.pipelined_replica import make_replica, ranks_of_replica, returning_memory
from sparkdl.training.recipes.batching import Batching, batching, evaluation_batch
from sparkdl.training.recipes.losses import build_loss
from sparkdl.training.recipes.rate_schedule import RateSchedule
from sparkdl.training.recipes.recipe import autocast
from sparkdl.training.replica import Replica
from sparkdl.training.reports.reporter import Reporter
from sparkdl.training.task_to_train import task_to_train

__all__ = ["begin", "evaluate_split", "train_epoch", "train_rank"]


class StopRequested(Exception):  # noqa: N818 - nothing went wrong
    """The driver has asked for an end, and a checkpoint has been written."""


def train_rank(job: Job, rank: Rank) -> TrainingResult | None:
    """Train on this rank, from the beginning or from a checkpoint; rank 0 returns the result.

    Rank 0 returns None if the driver asked for an end before the last epoch; a checkpoint has then been written.

    Raises :class:`~sparkdl.errors.TrainingError` when the loss is no longer a number; the last good checkpoint stays.
    """
    with job.backend.connect(torch.device(rank.device)) as world, returning_memory(job.settings, job.plan):
        replica = _build(job, rank, world)
        reporter = Reporter(rank, replica.task)
        manifest, state = begin(job, replica, reporter)
        with _saver(job, rank, replica, manifest, state) as saver:
            try:
                while state.epoch < job.last_epoch and not is_over(state.history, job.settings, replica.task):
                    _one_epoch(job, replica, state, reporter, saver)
                reporter.trace(reporter.stopwatch.only_steps())
            except StopRequested:
                return None
            except Exception:
                reporter.trace(reporter.stopwatch.last_steps())
                raise
            best = saver.finish()
        evaluations = {} if job.until is not None else _evaluate_best(job, replica, best, reporter)
    return TrainingResult(state.history, state.best_epoch, best, evaluations) if rank.rank == 0 else None


def _build(job: Job, rank: Rank, world: Communicator) -> Replica:
    """The replica of this rank, or its part of one, with the weights that the run starts from."""
    settings, plan = job.settings, job.plan
    groups = Groups.of(world, ranks_of_replica=ranks_of_replica(plan))
    task = task_to_train(job.dataset.card, settings)
    model = build_for_ranks(job.dataset, settings, on_disk=plan is not None)
    if job.start_weights and not job.checkpoint and rank.rank == 0:
        load_full_state(model, load_weights(job.start_weights))
    return make_replica(model, settings, task, groups, torch.device(rank.device), plan=plan)


def begin(job: Job, replica: Replica, reporter: Reporter) -> tuple[Manifest | None, TrainingState]:
    """Start the run, or resume it from a checkpoint and restore this rank's state; returns manifest and progress."""
    data = replica.groups.data
    # Weights are equal, dropout differs. Saved random states replace these, if the number of ranks is the same.
    draws = 1 + data.rank, *replica.draws_apart
    if job.checkpoint is None:
        seed_everything(job.settings.seed, 0, *draws)
        return None, TrainingState(totals=[0.0] * (2 + replica.task.sum_size))
    manifest = load_manifest(job.checkpoint)
    seed_everything(job.settings.seed, manifest.step, *draws)
    strategy = job.settings.strategy
    # Keys that were added after the checkpoint was written count with their defaults.
    alike = type(strategy)().model_dump() | manifest.strategy == strategy.model_dump()
    manifest = go_on(replica, job.folder, manifest, alike=alike)
    if not alike:
        reporter.warn(
            f"going on from step {manifest.step} with another train.strategy ({strategy}) than before: all"
            " replicas begin with what they agreed on then"
        )
    batch_size = _batching(replica, job.reference).batch_size
    return manifest, resume(manifest, rank=data.rank, size=data.size, batch_size=batch_size)


def _saver(job: Job, rank: Rank, replica: Replica, manifest: Manifest | None, state: TrainingState) -> Saver:
    return Saver(
        job.folder,
        job.settings,
        rank,
        replica,
        batch_size=_batching(replica, job.reference).batch_size,
        step=state.step,
        begun=manifest,
        begun_at=job.checkpoint,
    )


def _one_epoch(job: Job, replica: Replica, state: TrainingState, reporter: Reporter, saver: Saver) -> None:
    """Train one epoch, or the rest of it; agree on weights, evaluate and save them. Raises :class:`StopRequested`."""
    started = time.perf_counter() - state.seconds

    def save_if_due(state: TrainingState) -> None:
        order = saver.poll(state.step)
        if order.save:
            state.measure(reporter.flush())
            saver.save(state)
        if order.stop:
            saver.finish()
            raise StopRequested

    figures = train_epoch(replica, job.dataset, state, reporter, reference=job.reference, after_step=save_if_due)
    replica.strategy.end_epoch()
    with autocast(job.settings, replica.device):
        replica.strategy.find_statistics(_training_inputs(job, replica, state.epoch))
    figures |= replica.strategy.figures()
    with replica.strategy.consensus() as model:
        if "validation" in job.dataset.splits:
            found = evaluate_split(replica, model, job.dataset, "validation", reporter)
            figures |= {f"validation_{name}": value for name, value in found.figures.items()}
        figures["seconds"] = time.perf_counter() - started
        best = is_better(figures, state.history, state.best_epoch, job.settings, replica.task)
        weights = _weights_to_save(replica, model, best=best)
    state.finish_epoch(figures, best=best)
    reporter.epoch(state.epoch - 1, figures)
    saver.save(state, consensus=weights, best=best)


def _weights_to_save(replica: Replica, model: nn.Module, *, best: bool) -> dict[str, torch.Tensor]:
    """A copy, on rank 0, of the weights that replicas have agreed on, if the checkpoint needs one.

    The best weights are always needed. Others are not where replicas differ and each saves its own. A network that is
    split over ranks is saved in parts, without a copy.
    """
    whole = replica.groups.world.rank == 0 and not replica.strategy.sharded
    return copied(full_state(model)) if whole and (best or not replica.strategy.replicas_differ) else {}


def _evaluate_best(job: Job, replica: Replica, best: str, reporter: Reporter) -> dict[str, Evaluation]:
    """Evaluate the best epoch's weights on all splits but ``train``."""
    held_out = [split for split in job.dataset.splits if split != "train"]
    with best_model(replica, best) as found:
        return {split: evaluate_split(replica, found, job.dataset, split, reporter) for split in held_out}


def train_epoch(
    replica: Replica,
    dataset: Dataset,
    state: TrainingState,
    reporter: Reporter,
    *,
    reference: int | None = None,
    after_step: Callable[[TrainingState], None] = lambda state: None,
) -> dict[str, float]:
    """Take the steps of an epoch, or the rest of them; returns means over the rows of all ranks, and rows per second.

    ``reference`` is the number of ranks that the learning rate and the batch size are meant for, by default all.
    """
    settings, data, stopwatch = replica.settings, replica.groups.data, reporter.stopwatch
    reference = reference or data.size
    shape = _batching(replica, reference)
    loader = _loader(replica, dataset, "train", batch_size=shape.batch_size)
    steps = ceil(loader.steps_after(state.phases) / shape.accumulation)
    schedule = RateSchedule(
        settings,
        epoch=state.epoch,
        rows=loader.rows_after(()),
        rows_left=loader.rows_after(state.phases),
        steps=steps,
        reference=reference,
    )
    started = time.perf_counter() - state.seconds
    first = ceil(state.batches / shape.accumulation)
    left = steps - first + (settings.epochs - state.epoch - 1) * ceil(loader.steps / shape.accumulation)
    reporter.start_epoch(state.epoch, epochs=settings.epochs, step=state.step, total=state.step + left)
    replica.strategy.begin_epoch(state.epoch)
    replica.model.train()
    stopwatch.start_epoch(replica.groups.world)
    rows_of_rank = stopwatch.loading(loader.epoch(state.epoch, state.batches, after=state.phases))
    batches = _grouped(rows_of_rank, shape.accumulation)
    for number, group in enumerate(batches, start=first):
        rate = schedule.rate(number) * shape.rate_factor
        with replica.pruned(schedule.epochs(number), schedule.epochs(number + 1)):
            figures = replica.step(group, rate=rate)
        rows = sum(batch.global_rows for batch in group)
        if measured := reporter.step(state.step, figures, global_rows=rows, rate=rate):
            state.measure(measured)
        state.finish_step(batches=len(group), seconds=time.perf_counter() - started)
        with stopwatch.phase("save"):
            after_step(state)
        reporter.trace(stopwatch.finish_step(state.step))
    reporter.times(state.epoch, stopwatch.end_epoch())
    state.measure(reporter.flush())
    totals = torch.tensor(state.totals, dtype=torch.float64)
    loss, *sums, weight = data.all_reduce(totals, op="sum").tolist()
    return {
        "train_loss": loss / weight,
        **{f"train_{name}": value for name, value in replica.task.figures(sums, weight).items()},
        "rows_per_second": dataset.rows("train") / (time.perf_counter() - started),
    }


def evaluate_split(replica: Replica, model: nn.Module, dataset: Dataset, split: str, reporter: Reporter) -> Evaluation:
    """Evaluate a model, which all ranks have, on one split; returns the same figures on every rank."""
    settings = replica.settings
    batch_size = evaluation_batch(settings, replica.task)
    loader = _loader(replica, dataset, split, batch_size=batch_size, shuffle=False)
    return evaluate(
        model,
        reporter.watched(loader.epoch(0)),
        task=replica.task,
        loss=build_loss(settings, replica.task, device=replica.device, smoothing=False),
        communicator=replica.groups.data,
        device=replica.device,
        context=autocast(settings, replica.device),
        together=replica.strategy.sharded is not None,
    )


def _training_inputs(job: Job, replica: Replica, epoch: int) -> Iterator[Inputs]:
    """The inputs of an epoch on this rank, in the batches of a training step that have two rows or more."""
    loader = _loader(replica, job.dataset, "train", batch_size=_batching(replica, job.reference).batch_size)
    for batch in loader.epoch(epoch):
        if count_rows(batch.inputs) > 1:
            yield moved(batch.inputs, replica.device)


def _batching(replica: Replica, reference: int) -> Batching:
    return batching(replica.settings, size=replica.groups.data.size, reference=reference)


def _loader(replica: Replica, dataset: Dataset, split: str, *, batch_size: int, shuffle: bool = True) -> Loader:
    data = replica.groups.data
    return Loader(
        dataset,
        split,
        batch_size=batch_size,
        rank=data.rank,
        size=data.size,
        seed=replica.settings.seed,
        shuffle=shuffle,
    )


def _grouped(batches: Iterator[Batch], count: int) -> Iterator[list[Batch]]:
    """The batches of each optimizer step; the last step of an epoch may have fewer."""
    while group := list(itertools.islice(batches, count)):
        yield group
