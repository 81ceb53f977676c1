"""A parameter server: its initial values, its calls, and its shard of a checkpoint. Runs in a task."""

import time
from collections.abc import Callable
from typing import Any

import torch
from pyspark import TaskContext
from torch import nn

from sparkdl.cluster import limited_threads
from sparkdl.errors import CheckpointError
from sparkdl.models import full_state, load_full_state
from sparkdl.parameters import ParameterServer, Part, Partition, answers_of
from sparkdl.settings.strategies import AsynchronousOptions, DecoupledDiLoCoOptions, SandblasterOptions
from sparkdl.training.asynchronous.exchange import shared_buffers
from sparkdl.training.asynchronous.line import Invitation, Line
from sparkdl.training.asynchronous.methods import rule_of
from sparkdl.training.checkpoints.checkpoint import load_manifest, load_shard, load_shared, load_weights, save_shard
from sparkdl.training.checkpoints.state import consensus_weights
from sparkdl.training.job import Job
from sparkdl.training.network_to_train import build_model

__all__ = ["partition_of", "serve", "starting_model"]

POLL_SECONDS = 0.2


def serve(job: Job, invitation: Invitation, number: int, *, servers: int) -> list[str]:
    """Serve part ``number`` of the parameters until the coordinator ends the task.

    It starts from the checkpoint that the coordinator names, or else from the initial weights.
    """
    context = TaskContext.get()
    with Line(invitation, "server", number) as line, limited_threads(context.cpus() if context else 1):
        model = starting_model(job)
        part = _starting_part(job, model, line.welcome["checkpoint"], number, servers)
        rest = _not_shared(model) if number == 0 else {}

        def save(place: str) -> dict[str, Any]:
            """Write a shard of a checkpoint; returns its description, or an error."""
            state = part.state()
            state["model"] |= rest
            try:
                return save_shard(job.folder, place, f"rank-{number}", state).model_dump()
            except CheckpointError as error:
                return {"error": str(error)}

        answers: dict[str, Callable[..., dict[str, Any]]] = {"tally": part.tally, "applied": part.applied, "save": save}
        if isinstance(job.settings.strategy, SandblasterOptions):
            answers |= answers_of(part)
        with ParameterServer(line.own_host, invitation.credentials, part, answers) as server:
            line.tell("serve", address=server.address)
            while not line.ended:
                time.sleep(POLL_SECONDS)
    return []


def starting_model(job: Job) -> nn.Module:
    """The network before training, the same in every task of a run."""
    model = build_model(job.dataset, job.settings)
    if job.start_weights:
        load_full_state(model, load_weights(job.start_weights))
    return model


def partition_of(model: nn.Module, options: AsynchronousOptions, servers: int) -> Partition:
    """How a model is partitioned over servers."""
    trained = {name: each.detach() for name, each in model.named_parameters() if each.requires_grad}
    fragments = options.fragments if isinstance(options, DecoupledDiLoCoOptions) else 1
    return Partition(trained, shared_buffers(model), servers=servers, fragments=fragments)


def _starting_part(job: Job, model: nn.Module, checkpoint: str | None, number: int, servers: int) -> Part:
    """A server's part: from its shard, from the consensus if a checkpoint's shards do not fit, or from the model."""
    assert isinstance(job.settings.strategy, AsynchronousOptions)
    partition = partition_of(model, job.settings.strategy, servers)
    shard: dict[str, Any] | None = None
    if checkpoint:
        manifest = load_manifest(checkpoint)
        alike = manifest.strategy == job.settings.strategy.model_dump()
        if alike and len(manifest.shards) == servers:
            shard = load_shard(job.folder, manifest.shards[number])
        if shard is None or not partition.shapes.keys() <= shard["model"].keys():  # old shards lack some buffers
            shard = None
            shared = load_shared(job.folder, manifest)
            load_full_state(model, consensus_weights(job.folder, manifest, shared))
    memory = partition.new_memory(number)
    partition.cut(_shared_tensors(model), number, memory)
    part = Part(partition, number, memory, rule_of(job.settings.strategy))
    if shard:
        part.load(shard)
    return part


def _not_shared(model: nn.Module) -> dict[str, torch.Tensor]:
    """The tensors that training does not change, which complete the model in a checkpoint."""
    changed = {name for name, each in model.named_parameters() if each.requires_grad} | shared_buffers(model).keys()
    return {name: each for name, each in full_state(model).items() if name not in changed}


def _shared_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.detach() for name, each in model.named_parameters()} | shared_buffers(model)
