"""Checkpoints of an asynchronous run: servers write shards, the coordinator the rest. Runs with the coordinator."""

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any
from uuid import uuid4

from sparkdl.errors import CheckpointError
from sparkdl.settings import Cluster
from sparkdl.settings.strategies import AsynchronousOptions
from sparkdl.training.asynchronous.coordinator import Coordinator
from sparkdl.training.asynchronous.merged import Merged
from sparkdl.training.asynchronous.serve import partition_of
from sparkdl.training.checkpoints.checkpoint import Manifest, Shard, save_manifest, save_shard
from sparkdl.training.checkpoints.checkpoint_folder import prune
from sparkdl.training.checkpoints.state import TrainingState
from sparkdl.training.job import Job
from sparkdl.training.network_to_train import build_model

__all__ = ["Recorder"]

INTERRUPTED_SECONDS = 8.0  # how long an interrupted run may take to write a checkpoint


class Recorder:
    """Writes a run's checkpoints in the background, one at a time, in the format of synchronous runs.

    If a checkpoint cannot be written, a warning is sent and training goes on: the one before it is still there.
    """

    def __init__(self, job: Job, cluster: Cluster, coordinator: Coordinator, begun: Manifest | None) -> None:
        self._job, self._coordinator, self._servers = job, coordinator, cluster.servers
        self.best = begun.best if begun else None
        """The file of the weights of the best epoch so far."""
        self._begun_from = coordinator.checkpoint
        self._attempt = uuid4().hex[:8]
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sparkdl-checkpoint")
        self._calls = ThreadPoolExecutor(cluster.servers, thread_name_prefix="sparkdl-servers")
        self._saving: Future[None] | None = None
        self._saved, self._saved_step, self._written = time.monotonic(), begun.step if begun else 0, 0
        self._messages: list[dict[str, Any]] = []
        options = job.settings.strategy
        assert isinstance(options, AsynchronousOptions)
        self._shapes = partition_of(build_model(job.dataset, job.settings), options, 1).shapes

    def close(self) -> None:
        """Let the threads end after their current work."""
        self._thread.shutdown(wait=False)
        self._calls.shutdown(wait=False)

    @property
    def best_weights(self) -> str:
        """The path of the weights of the best epoch. Raises :class:`CheckpointError` if there are none."""
        if self.best is None:
            raise CheckpointError(f"there are no weights of a best epoch in {self._job.folder}")
        return f"{self._job.folder}/{self.best.name}"

    def save(self, state: TrainingState) -> "Future[None]":
        """Begin to write a checkpoint, after the one before it is written."""
        if self._saving:
            wait([self._saving])
        self._saved, self._saved_step = time.monotonic(), state.step
        changes = {"history": [dict(each) for each in state.history], "figures": list(state.figures)}
        self._saving = self._thread.submit(self._write, self._manifest(state, **changes))
        return self._saving

    def save_if_due(self, state: TrainingState, *, steps: int) -> None:
        """Begin to write a checkpoint within an epoch, of which ``steps`` are done, if it is due."""
        minutes, every = self._job.settings.checkpoint_minutes, self._job.settings.checkpoint_steps
        due = minutes is not None and time.monotonic() - self._saved >= 60 * minutes
        due = due or (every is not None and (state.step + steps) // every > self._saved_step // every)
        if due and (self._saving is None or self._saving.done()):
            self.save(state)
            self._saved_step = state.step + steps

    def save_in_time(self, state: TrainingState) -> None:
        """Write a checkpoint before the driver ends, unless that takes too long."""
        with suppress(CheckpointError, ConnectionError):
            wait([self.save(state)], timeout=INTERRUPTED_SECONDS)

    def messages(self) -> list[dict[str, Any]]:
        """The messages on checkpoints since the last call."""
        told, self._messages = self._messages, []
        return told

    def at_servers(self, name: str, **keywords: Any) -> list[dict[str, Any]]:
        """Call all servers at the same time. Raises ConnectionError when one is not running."""
        return list(
            self._calls.map(
                lambda server: self._coordinator.call_server(server, name, **keywords), range(self._servers)
            )
        )

    def _manifest(self, state: TrainingState, **changes: Any) -> Manifest:
        """The manifest without shards. A synchronous run resumes from it at the beginning of the epoch."""
        return Manifest(
            step=state.step,
            epoch=state.epoch,
            batches=0,
            batch_size=self._job.settings.batch_size,
            phases=[],
            seconds=state.seconds,
            totals=[[0.0, 0.0, 0.0]],
            best_epoch=state.best_epoch,
            best=self.best,
            strategy=self._job.settings.strategy.model_dump(),
            shared=Shard(name="", sha256="", bytes=0),
            shards=[],
            **changes,
        )

    def _write(self, manifest: Manifest) -> None:
        """Have servers write their shards, then write the manifest and remove old files. Runs in the background."""
        folder, settings = self._job.folder, self._job.settings
        try:
            step = manifest.step + Merged.most(self.at_servers("tally"), manifest.epoch).steps
            place = f"{step:09d}-{manifest.epoch:05d}.{self._attempt}"
            shards = [_shard(answer) for answer in self.at_servers("save", place=place)]
            state: Mapping[str, Any] = {"strategy": {"shapes": self._shapes}, "scaler": {}}
            changes = {"step": step, "shards": shards, "shared": save_shard(folder, place, "shared", state)}
            path = save_manifest(folder, manifest.model_copy(update=changes))
        except (CheckpointError, ConnectionError) as error:
            text = f"{error}. Training goes on; the checkpoint before it is still there"
            self._messages.append({"kind": "warning", "text": text})
            return
        self._coordinator.checkpoint = path
        self._written += 1
        kept = {self._begun_from.rpartition("/")[2]} if self._begun_from else set()
        keep = (kept if self._written < settings.keep_last else set()) | ({self.best.name} if self.best else set())
        try:
            prune(folder, keep_last=settings.keep_last, keep_best=settings.keep_best, written=path, keep=keep)
        except Exception as error:  # any failure of storage: the new one is complete, and old ones cost only space
            self._messages.append({"kind": "warning", "text": f"{error}. Training goes on; old checkpoints stay there"})


def _shard(answer: Mapping[str, Any]) -> Shard:
    if "error" in answer:
        raise CheckpointError(answer["error"])
    return Shard(**answer)
