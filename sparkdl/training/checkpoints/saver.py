"""Decides when a checkpoint is due, and writes it while training goes on. Runs on ranks."""

import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any, NamedTuple, Self
from uuid import uuid4

import numpy as np
import torch

from sparkdl.cluster import Rank, roam
from sparkdl.errors import CheckpointError, TrainingError
from sparkdl.models import full_state
from sparkdl.settings import Train
from sparkdl.training.checkpoints.checkpoint import Manifest, Shard, save_best, save_manifest, save_shard
from sparkdl.training.checkpoints.checkpoint_folder import prune
from sparkdl.training.checkpoints.parted_checkpoint import save_best_parts
from sparkdl.training.checkpoints.state import Parts, TrainingState, collect
from sparkdl.training.replica import Replica

__all__ = ["Order", "Saver"]

POLL_SECONDS = 0.5  # between two decisions of rank 0, and between two beats of a rank that waits for storage
WORDS = 4  # of 8 bytes, in a SHA-256


class Order(NamedTuple):
    """Rank 0's decision for all ranks."""

    save: bool = False
    stop: bool = False
    """Whether to stop, because the driver has asked for it."""


class Saver:
    """Writes the checkpoints of a run in the background. All ranks call it together.

    Each rank writes a shard of its own. Rank 0 decides by its clock when a checkpoint is due, as clocks differ, and
    all ranks learn of it at the same step. They exchange this at most every :data:`POLL_SECONDS`, so that it costs
    steps no time. The same exchange says whose shards are written; when all are, rank 0 writes the manifest, while the
    shards of the next checkpoint may already be written.
    """

    def __init__(
        self,
        folder: str,
        settings: Train,
        rank: Rank,
        replica: Replica,
        *,
        batch_size: int,
        step: int = 0,
        begun: Manifest | None = None,
        begun_at: str | None = None,
    ) -> None:
        """Count from ``step`` on.

        The checkpoint that this attempt resumed from (manifest ``begun``, path ``begun_at``) is kept with its best
        weights until ``keep_last`` newer ones have been written: newer files that exist already are damaged.
        """
        self._folder, self._settings, self._rank, self._replica = folder, settings, rank, replica
        self._batch_size, self._world = batch_size, replica.groups.world
        sharded = replica.strategy.sharded
        self._in_parts = sharded is not None
        self._attempt = str(self._world.broadcast_object(uuid4().hex[:8]))
        self._best = begun.best if begun else None
        self._kept = {begun_at.rpartition("/")[2]} if begun_at else set()
        if self._best:
            self._kept.add(self._best.name)
        self._polled = self._saved = time.monotonic()
        self._polled_step = self._saved_step = step
        self._next_poll = step + 1
        self._writers = ThreadPoolExecutor(2, thread_name_prefix="sparkdl-shards", initializer=roam)
        self._finisher = ThreadPoolExecutor(1, thread_name_prefix="sparkdl-checkpoint", initializer=roam)
        self._shards: Future[list[Shard]] | None = None
        """The shards that this rank is writing: its own, and on rank 0 also the shared one."""
        self._begun: _Begun | None = None
        """On rank 0: the checkpoint whose shards are being written."""
        self._totals: list[float] = []
        """This rank's sums over the epoch when that checkpoint began."""
        self._finishing: Future[None] | None = None
        self._written = 0
        self._unsaved_best: dict[str, torch.Tensor] | None = None
        """Weights of the best epoch that could not be written yet."""
        self._error: CheckpointError | None = None
        state = sharded.weights() if sharded else full_state(replica.model)
        self._finite = {name for name, tensor in state.items() if _is_finite(tensor)}
        """Tensors that were finite at the start and have to stay so. Attention masks, for example, are not."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for threads in (self._writers, self._finisher):
            threads.shutdown(cancel_futures=error is not None)

    def poll(self, step: int) -> Order:
        """The decision after a step, the same on all ranks."""
        if step < self._next_poll:
            return Order()
        decided = self._decide(step) if self._rank.rank == 0 else (0, 0, 0)
        done = self._shards is not None and self._shards.done() and (not self._finishing or self._finishing.done())
        rows = self._world.all_gather(torch.tensor([*decided, int(done)]))
        if all(int(row[3]) for row in rows):
            self._complete()
        save, stop, self._next_poll = map(int, rows[0][:3])
        return Order(bool(save), bool(stop))

    def save(
        self, state: TrainingState, *, consensus: dict[str, torch.Tensor] | None = None, best: bool = False
    ) -> None:
        """Copy the state now and write the copy in the background; ``best``: the last epoch is the best so far.

        ``consensus`` is a copy of the weights that replicas agree on, if it has been computed; if ``best``, rank 0 has
        it. It is written once, even if it serves both as the best weights and to resume from.

        Waits until the shards of the checkpoint before it are written. If a checkpoint cannot be written, a warning is
        sent and training goes on: the one before it is still there. Weights that are not finite never replace a good
        checkpoint: the next call raises :class:`~sparkdl.errors.TrainingError`. A network that is split over ranks is
        not copied, and training waits; :class:`CheckpointError` is raised if its best weights could not be written.
        """
        self._complete()
        parts = collect(self._replica, consensus)
        best_weights = consensus if best else None
        self._saved, self._saved_step = time.monotonic(), state.step
        if self._rank.rank == 0:
            self._begun = _Begun(self._begin_manifest(state), best_weights)
        self._totals = list(state.totals)
        self._shards = self._writers.submit(self._write_shards, parts, best_weights, state.step, state.epoch)
        if self._in_parts:  # without a copy, training has to wait
            self._complete()
            if self._finishing:
                self._wait_for(self._finishing)
                self._finishing.result()

    def finish(self) -> str:
        """Wait until everything is written; returns the path of the best weights. All ranks call it together.

        Raises :class:`CheckpointError` on rank 0 if the last checkpoint could not be written.
        """
        self._complete()
        if self._finishing:
            self._wait_for(self._finishing)
            self._finishing.result()
        if self._error:
            raise self._error
        return f"{self._folder}/{self._world.broadcast_object(self._best and self._best.name)}"

    def _decide(self, step: int) -> tuple[int, int, int]:
        """Whether to save, whether to stop, and after which step to decide again."""
        now = time.monotonic()
        steps, seconds = step - self._polled_step, now - self._polled
        self._polled, self._polled_step = now, step
        ahead = max(1, min(int(steps * POLL_SECONDS / max(seconds, 1e-9)), 2 * max(steps, 1)))
        minutes, every = self._settings.checkpoint_minutes, self._settings.checkpoint_steps
        stop = self._rank.stop_requested
        due = minutes is not None and now - self._saved >= 60 * minutes
        if every is not None:
            due = due or step // every > self._saved_step // every
            ahead = min(ahead, every - step % every)
        return int(due or stop), int(stop), step + ahead

    def _begin_manifest(self, state: TrainingState) -> Manifest:
        """The manifest as far as it is known before the files are written."""
        return Manifest(
            step=state.step,
            epoch=state.epoch,
            batches=state.batches,
            batch_size=self._batch_size,
            phases=list(state.phases),
            seconds=state.seconds,
            totals=[],
            history=[dict(figures) for figures in state.history],
            best_epoch=state.best_epoch,
            best=None,
            figures=list(state.figures),
            strategy=self._settings.strategy.model_dump(),
            shared=NOT_WRITTEN,
            shards=[],
        )

    def _write_shards(self, parts: Parts, best: dict[str, torch.Tensor] | None, step: int, epoch: int) -> list[Shard]:
        """Runs in the background. If a rank cannot write its shard, the manifest is not written either."""
        shared, once = parts.shared, best is not None and parts.shared.get("model") is best
        for weights in (parts.own.get("model"), shared.get("model"), None if once else best):
            if weights and not all(_is_finite(weights[name]) for name in self._finite):
                raise TrainingError(
                    f"weights are not finite after step {step}; the last good checkpoint in {self._folder} is kept"
                )
        place = f"{step:09d}-{epoch:05d}.{self._attempt}"
        beside = None
        if shared:  # written at the same time, since a file on HDFS takes half a second, however small it is
            shared = shared | {"model": None} if once else shared  # the file of the best weights has them
            beside = self._writers.submit(save_shard, self._folder, place, "shared", shared)
        own = save_shard(self._folder, place, f"rank-{self._world.rank}", parts.own)
        return [own, beside.result()] if beside else [own]

    def _complete(self) -> None:
        """Wait for the shards of all ranks, and on rank 0 for the manifest before.

        Rank 0 then writes the manifest of these shards in the background.
        """
        if self._shards is None:
            return
        self._wait_for(self._shards)
        if self._finishing:
            self._wait_for(self._finishing)
        failure = self._shards.exception()
        if failure and not isinstance(failure, CheckpointError):
            raise failure
        own = NOT_WRITTEN if failure else self._shards.result()[0]
        rows = self._world.all_gather(_packed(own))
        of_ranks = self._world.all_gather(torch.tensor(self._totals, dtype=torch.float64))
        totals = of_ranks[:: self._replica.groups.ranks_of_replica]  # ranks of a replica have the same sums
        if self._begun:
            manifest = self._begun.manifest.model_copy(update={"totals": [each.tolist() for each in totals]})
            begun = self._begun._replace(manifest=manifest)
            found = [_unpacked(row, own.name, rank) for rank, row in enumerate(rows)]
            self._finishing = self._finisher.submit(self._finish_checkpoint, begun, found, self._shards)
        self._shards = self._begun = None

    def _wait_for(self, writing: Future[Any]) -> None:
        """Return when it is done; until then send the driver beats, because slow storage does not mean a stuck rank."""
        while wait([writing], timeout=POLL_SECONDS).not_done:
            self._rank.beat()

    def _finish_checkpoint(self, begun: "_Begun", found: list[Shard], written: Future[list[Shard]]) -> None:
        """Write the best weights, if they are new, and the manifest; then remove old files. Runs on rank 0."""
        manifest, self._error = begun.manifest, None
        if begun.best_weights is not None:
            self._unsaved_best = begun.best_weights
        try:
            _, shared = written.result()
            if absent := [str(rank) for rank, shard in enumerate(found) if not shard.bytes]:
                raise CheckpointError(f"rank {', '.join(absent)} could not write its shard to {self._folder}")
            if self._unsaved_best is not None:
                place = {"step": manifest.step, "epoch": manifest.epoch}
                self._best = (
                    save_best_parts(self._folder, shared, found, **place)
                    if self._in_parts
                    else save_best(self._folder, self._unsaved_best, **place)
                )
                self._unsaved_best = None
            changes: dict[str, Any] = {"best": self._best, "shared": shared, "shards": found}
            path = save_manifest(self._folder, manifest.model_copy(update=changes))
        except CheckpointError as error:
            if self._in_parts and self._unsaved_best is not None:
                raise  # nobody has a copy of the best weights
            self._error = error
            self._rank.send("warning", text=f"{error}. Training goes on; the checkpoint before it is still there")
            return
        self._rank.send("checkpoint", path=path, step=manifest.step)
        self._written += 1
        if self._written >= self._settings.keep_last:
            self._kept = set()
        try:
            keep = {self._best.name, *self._kept} if self._best else self._kept
            keep_last, keep_best = self._settings.keep_last, self._settings.keep_best
            prune(
                self._folder, keep_last=keep_last, keep_best=keep_best, written=path, keep=keep, in_parts=self._in_parts
            )
        except Exception as error:  # any failure of storage: the new one is complete, and old ones cost only space
            self._rank.send("warning", text=f"{error}. Training goes on; old checkpoints stay there")


class _Begun(NamedTuple):
    """A checkpoint whose shards are being written."""

    manifest: Manifest
    """The manifest without shards."""
    best_weights: dict[str, torch.Tensor] | None
    """The best weights, if the last epoch is the best one so far."""


def _is_finite(tensor: torch.Tensor) -> bool:
    """Whether all values of a copy on the host are finite, by its minimum and maximum, which are NaN if a value is.

    Uses NumPy, which computes in this thread alone. PyTorch would start a second pool of OpenMP threads for the thread
    that writes, and when there are more threads than cores, OpenMP stops waiting actively. On two cores, this made
    every step a sixth longer for the rest of the run.
    """
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    values = tensor.detach().cpu()
    array = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    return bool(np.isfinite(array.min()) and np.isfinite(array.max()))


NOT_WRITTEN = Shard(name="", sha256="0" * 64, bytes=0)


def _packed(shard: Shard) -> torch.Tensor:
    """Digest and size of a shard as numbers, which ranks exchange."""
    return torch.frombuffer(bytearray(bytes.fromhex(shard.sha256) + shard.bytes.to_bytes(8, "big")), dtype=torch.uint8)


def _unpacked(row: torch.Tensor, own_name: str, rank: int) -> Shard:
    """The description of a rank's shard, whose name differs from that of rank 0's by the number."""
    content = bytes(row.tolist())
    name = own_name.replace(".rank-0.pt", f".rank-{rank}.pt")
    return Shard(name=name, sha256=content[:32].hex(), bytes=int.from_bytes(content[32:], "big"))
