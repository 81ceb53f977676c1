"""The state of a run between two steps, and how it is saved in a checkpoint and restored. Runs on ranks.

Gradients are accumulated within a step, so that none have to be saved between two steps.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from sparkdl.data import Phase
from sparkdl.layouts import ModelPart, is_moment, moments_by_name, names_in, put_moments, weights_in
from sparkdl.models import full_state, load_full_state
from sparkdl.training.checkpoints.checkpoint import Manifest, load_shard, load_shared, save_best
from sparkdl.training.checkpoints.parted_checkpoint import (
    best_pieces,
    best_weights,
    load_part,
    parting_of,
    pieces_of,
    whole_state,
)
from sparkdl.training.checkpoints.random_states import random_states, set_random_states
from sparkdl.training.replica import Replica
from sparkdl.training.reports.reporter import Measured
from sparkdl.training.strategies import strategy_of

__all__ = ["Parts", "TrainingState", "best_model", "collect", "copied", "go_on", "resume"]

PARTS = "tensor_cuts", "stages"
"""Keys of a strategy's state that describe how ranks share a replica."""
LARGE = "model", "optimizer", "strategy"
"""Keys of a rank's state that grow with the network."""
KEPT_FIGURES = 10_000  # steps whose figures a checkpoint keeps, in case messages were lost with the driver or a rank


@dataclass
class TrainingState:
    """How far a run has come, and what it has measured. Only the loop changes it, by these methods."""

    epoch: int = 0
    """Complete epochs."""
    phases: list[Phase] = field(default_factory=list)
    """Parts of the epoch in progress that were done with another batch size or number of ranks."""
    batches: int = 0
    """Batches that each rank has taken of the epoch in progress, after its ``phases``."""
    step: int = 0
    """Optimizer steps since the run began."""
    totals: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    """Summed loss, the sums of the task's figures (by default one), and the weight of all rows of this rank in the
    epoch in progress."""
    seconds: float = 0.0
    """Seconds that the epoch in progress has taken."""
    history: list[dict[str, float]] = field(default_factory=list)
    best_epoch: int = 0
    """The index of the best epoch in the history."""
    figures: list[list[float]] = field(default_factory=list)
    """Step, loss, the task's figure and learning rate of rank 0's last steps, as they were reported."""

    def finish_step(self, *, batches: int, seconds: float) -> None:
        """Count a completed step; ``seconds`` is the time that the epoch has taken so far."""
        self.step += 1
        self.batches += batches
        self.seconds = seconds

    def measure(self, measured: Measured) -> None:
        """Add the figures of steps, one by one, so that no sum depends on how many are reported together."""
        for sums in measured.sums:
            self.totals = [total + more for total, more in zip(self.totals, sums, strict=True)]
        self.figures = (self.figures + measured.steps)[-KEPT_FIGURES:]

    def finish_epoch(self, figures: dict[str, float], *, best: bool = False) -> None:
        """Count the epoch as complete; ``best``: it is the best one so far."""
        if best:
            self.best_epoch = self.epoch
        self.history.append(figures)
        self.epoch += 1
        self.phases, self.batches, self.seconds = [], 0, 0.0
        self.totals = [0.0] * len(self.totals)


class Parts(NamedTuple):
    """A rank's state for a checkpoint: copies, so that training can go on while they are written."""

    shared: dict[str, Any]
    """State that is the same on all ranks; empty except on rank 0."""
    own: dict[str, Any]
    """This rank's own state."""


def collect(replica: Replica, consensus: Mapping[str, Any] | None = None) -> Parts:
    """A copy of a replica's state; if the network is split over ranks, not a copy. All ranks call it together.

    ``consensus`` is a copy of the weights that replicas agree on, if they have just computed it; only rank 0's is used.

    Replicas that differ are saved as they are, without communication. A run that resumes with another strategy or
    number of ranks computes their consensus by :func:`consensus_weights`.
    """
    strategy, sharded, leads = replica.strategy, replica.strategy.sharded, replica.groups.world.rank == 0
    moments = sharded.moments() if sharded else replica.optimizer.state_dict()
    trainer: dict[str, Any] = {"optimizer": moments, "scaler": replica.scaler.state_dict()}
    if not sharded:
        trainer["trained"] = names_in(replica.optimizer, replica.model)
    own = {
        "random": random_states(replica.device),
        "buffers": dict(replica.model.named_buffers()),
        "strategy": strategy.own_state(),
    }
    shared: dict[str, Any] = {"strategy": strategy.state()}
    if strategy.replicas_differ:
        own |= trainer | {"model": sharded.weights() if sharded else full_state(replica.model)}
    else:
        shared |= trainer
        if consensus is None:
            with strategy.consensus() as model:
                consensus = copied(full_state(model)) if leads else {}
    large = {key: own.pop(key) for key in LARGE if key in own} if sharded else {}
    weights = {} if strategy.replicas_differ else {"model": consensus}
    return Parts(copied(shared) | weights if leads else {}, copied(own) | large)


def consensus_weights(folder: str, manifest: Manifest, shared: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The consensus of all replicas of a checkpoint. Runs on a rank; needs the memory of two replicas.

    It is the model in the shared state, or else computed from the replicas by the strategy of the checkpoint.
    """
    if "model" in shared:
        return dict(shared["model"])
    if parting := parting_of(shared["strategy"]):
        return whole_state(folder, parting, manifest.shards, moments=False)
    replicas = (load_shard(folder, shard)["model"] for shard in manifest.shards)
    return strategy_of(manifest.strategy["kind"]).assemble(shared["strategy"], replicas)


def resume(manifest: Manifest, *, rank: int, size: int, batch_size: int) -> TrainingState:
    """The progress of a checkpoint's run, for replica ``rank`` of ``size`` with batches of ``batch_size`` rows.

    If the number of replicas or the batch size has changed, the remaining rows of the epoch are sharded anew.
    """
    totals = manifest.totals
    state = TrainingState(
        epoch=manifest.epoch,
        phases=list(manifest.phases),
        batches=manifest.batches,
        step=manifest.step,
        seconds=manifest.seconds,
        history=[dict(figures) for figures in manifest.history],
        best_epoch=manifest.best_epoch,
        figures=[list(figures) for figures in manifest.figures],
    )
    if len(totals) == size:
        state.totals = totals[rank]
    elif rank == 0:
        state.totals = [sum(column) for column in zip(*totals, strict=True)]
    if state.batches and (len(totals), manifest.batch_size) != (size, batch_size):
        state.phases.append(Phase(len(totals), manifest.batch_size, state.batches))
        state.batches = 0
    return state


@contextmanager
def best_model(replica: Replica, path: str) -> Iterator[nn.Module]:
    """The model of the best epoch, from the file of its weights. All ranks call it together."""
    if sharded := replica.strategy.sharded:
        replica.optimizer.zero_grad()  # frees memory: no more steps are taken
        replica.optimizer.state.clear()
        sharded.adopt(best_pieces(path, replica.device))
        with replica.strategy.consensus() as model:
            yield model
    else:
        load_full_state(replica.model, best_weights(path, replica.device))
        yield replica.model


def go_on(replica: Replica, folder: str, manifest: Manifest, *, alike: bool) -> Manifest:
    """Resume a replica from a checkpoint; ``alike``: the strategy is the same as then. All ranks call it together.

    Returns the manifest with which the run goes on. If the network was split over ranks and no longer is, the best
    weights are copied into a file of their own, because the shards that have them will be removed.
    """
    world = replica.groups.world
    shared = load_shared(folder, manifest, replica.device)
    parts = replica.part.state() if replica.part else {}
    same = (
        alike
        and len(manifest.shards) == world.size
        and all(shared["strategy"].get(key) == parts.get(key) for key in PARTS)
    )
    own = manifest.shards[world.rank % len(manifest.shards)]
    parting, sharded = parting_of(shared["strategy"]), replica.strategy.sharded
    read_own = partial(load_part if parting else load_shard, folder, own, replica.device)
    if sharded and not same:
        sharded.adopt(_pieces(replica, folder, manifest, shared))
    elif parting and not same:
        whole = whole_state(folder, parting, manifest.shards)
        load_full_state(replica.model, weights_in(whole))
        put_moments(replica.model, replica.optimizer, {name: value for name, value in whole.items() if is_moment(name)})
        replica.strategy.load(None)
        if world.rank == 0 and manifest.best:
            weights = best_weights(f"{folder}/{manifest.best.name}")
            best = save_best(folder, weights, step=manifest.step, epoch=manifest.epoch)
            return manifest.model_copy(update={"best": best})
    else:
        if "model" in shared:
            load_full_state(replica.model, shared["model"])
        elif not same:  # rank 0 reads all replicas, and broadcasts their consensus
            if world.rank == 0:
                load_full_state(replica.model, consensus_weights(folder, manifest, shared))
            world.broadcast_module(replica.model)
        _restore(replica, shared, read_own, alike=alike, same=same)
    return manifest


def _pieces(replica: Replica, folder: str, manifest: Manifest, shared: Mapping[str, Any]) -> Iterator[ModelPart]:
    """The model of a checkpoint, part by part, with the optimizer's moments if they cover the whole network.

    Of whole replicas with moments of their own, the ranks of a replica take those of the one with its number.
    """
    if parting := parting_of(shared["strategy"]):
        return pieces_of(folder, parting, manifest.shards, replica.device)
    weights = consensus_weights(folder, manifest, shared)
    number = replica.groups.data.rank % len(manifest.shards)
    trainer = shared if "optimizer" in shared else load_shard(folder, manifest.shards[number], replica.device)
    if "optimizer" not in trainer or not _has_shapes(weights, trainer.get("model", {})):
        return iter([({}, weights)])
    # Old checkpoints do not name what the optimizer had.
    names = trainer.get("trained", ())
    moments = moments_by_name(replica.model, replica.optimizer, trainer["optimizer"]["state"], names)
    return iter([({}, weights | moments)])


def _restore(
    replica: Replica, shared: Mapping[str, Any], read_own: Callable[[], Mapping[str, Any]], *, alike: bool, same: bool
) -> None:
    """Restore what :func:`collect` returned, except shared weights, which the model already has.

    ``read_own`` reads this rank's shard. ``alike``: the strategy is the same as then. ``same``: so is the number of
    ranks; each replica is then restored exactly, and the run continues as if uninterrupted. Otherwise all replicas
    start from the consensus, with new random states.
    """
    replica.strategy.load(shared["strategy"] if alike else None)
    own = read_own()
    same = same and "strategy" in own  # old checkpoints have no state of a rank's strategy
    trainer = own if "optimizer" in own else shared
    with _options_kept(replica):
        if sharded := replica.strategy.sharded:
            sharded.put(own["model"], own["optimizer"])
        elif same and "model" in own:
            load_full_state(replica.model, own["model"])
        # The moments of a sub-network do not fit the whole network, and those of servers do not fit ranks.
        if not sharded and "optimizer" in trainer and _has_shapes(full_state(replica.model), own.get("model", {})):
            replica.optimizer.load_state_dict(trainer["optimizer"])
    replica.scaler.load_state_dict(trainer["scaler"])
    if same:
        replica.strategy.load_own(own["strategy"])
        set_random_states(own["random"], replica.device)
        for name, buffer in replica.model.named_buffers():
            buffer.copy_(own["buffers"][name])


@contextmanager
def _options_kept(replica: Replica) -> Iterator[None]:
    """Restore only the optimizer's moments and counts: a trial may resume with other options than before."""
    given = {"weight_decay", *replica.settings.optimizer_options}
    now = [{key: group[key] for key in given if key in group} for group in replica.optimizer.param_groups]
    yield
    for group, options in zip(replica.optimizer.param_groups, now, strict=True):
        group.update(options)


def _has_shapes(whole: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor]) -> bool:
    return all(whole[name].shape == value.shape for name, value in weights.items())


def copied(value: Any) -> Any:
    """A copy of a tree, with its tensors on the host, so that training can go on while it is written.

    NumPy's numbers become Python's: a checkpoint that is opened without executing code cannot hold NumPy's.
    """
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {key: copied(part) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return type(value)(copied(part) for part in value)  # type: ignore[call-arg]
    return value
