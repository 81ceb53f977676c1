"""Everything that a run is made of between two steps, and how it goes into a checkpoint and comes back. Runs on ranks.

Gradients are accumulated within a step, so that there is nothing of them to save between two.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from sparkdl.data import Phase
from sparkdl.training.replica import Replica

__all__ = ["TrainingState", "collect", "copied", "restore", "seed_everything"]


@dataclass
class TrainingState:
    """How far a run has come, and what it has measured."""

    epoch: int = 0
    """Epochs that are over."""
    phases: list[Phase] = field(default_factory=list)
    """Parts of the epoch in progress that were done with other batches, or by another number of ranks."""
    batches: int = 0
    """Batches of the rest of the epoch that each rank has taken."""
    step: int = 0
    """Optimizer steps since the run began."""
    totals: torch.Tensor = field(default_factory=lambda: torch.zeros(3, dtype=torch.float64))
    """Summed loss, correct answers and rows of this rank in the epoch in progress."""
    seconds: float = 0.0
    """Time that the epoch in progress has taken."""
    history: list[dict[str, float]] = field(default_factory=list)
    best_epoch: int = 0
    """Which entry of the history is the best one."""
    best: str = ""
    """The name of the file with its weights."""
    figures: list[list[float]] = field(default_factory=list)
    """Of rank 0's last steps, as they were reported: step, loss, accuracy, learning rate."""

    def finish_epoch(self, figures: dict[str, float]) -> None:
        """Count the epoch as over."""
        self.history.append(figures)
        self.epoch += 1
        self.phases, self.batches, self.seconds = [], 0, 0.0
        self.totals = torch.zeros(3, dtype=torch.float64)


def collect(state: TrainingState, replica: Replica, batch_size: int) -> dict[str, Any]:
    """A copy of everything, for a checkpoint; all ranks call it together, and it is complete on rank 0."""
    collectives = replica.strategy.collectives
    random_states = _random_states(replica.device)
    own = {"random": random_states, "buffers": _buffers(replica), "totals": state.totals}
    ranks = collectives.all_gather_object(own)
    if collectives.rank:
        return {}
    return {
        "model": copied(replica.model.state_dict()),
        "optimizer": copied(replica.optimizer.state_dict()),
        "scaler": replica.scaler.state_dict(),
        "ranks": ranks,
        "batch_size": batch_size,
        "epoch": state.epoch,
        "phases": [tuple(phase) for phase in state.phases],
        "batches": state.batches,
        "step": state.step,
        "seconds": state.seconds,
        "history": [dict(figures) for figures in state.history],
        "best_epoch": state.best_epoch,
        "best": state.best,
        "figures": torch.tensor(state.figures, dtype=torch.float64),
    }


def restore(saved: Mapping[str, Any], replica: Replica, batch_size: int) -> TrainingState:
    """Continue where a checkpoint was made, on this rank.

    With as many ranks as then, every rank gets its own random states and buffers back and the run goes on as if nothing
    had happened. With another number, the rows that are left of the epoch are shared anew and random states start
    afresh.
    """
    collectives = replica.strategy.collectives
    replica.model.load_state_dict(saved["model"])
    replica.optimizer.load_state_dict(saved["optimizer"])
    replica.scaler.load_state_dict(saved["scaler"])
    state = TrainingState(
        epoch=saved["epoch"],
        phases=[Phase(*phase) for phase in saved["phases"]],
        batches=saved["batches"],
        step=saved["step"],
        seconds=saved["seconds"],
        history=saved["history"],
        best_epoch=saved["best_epoch"],
        best=saved["best"],
        figures=saved["figures"].tolist(),
    )
    ranks = saved["ranks"]
    if len(ranks) == collectives.size:
        own = ranks[collectives.rank]
        state.totals = own["totals"]
        _set_random_states(own["random"], replica.device)
        for name, buffer in replica.model.named_buffers():
            buffer.copy_(own["buffers"][name])
    elif collectives.rank == 0:
        state.totals = torch.stack([own["totals"] for own in ranks]).sum(dim=0)
    if state.batches and (len(ranks), saved["batch_size"]) != (collectives.size, batch_size):
        state.phases.append(Phase(len(ranks), saved["batch_size"], state.batches))
        state.batches = 0
    return state


def copied(value: Any) -> Any:
    """The same tree with its tensors copied to the host, so that training can go on while they are written.

    NumPy's numbers become Python's: a checkpoint that is opened without executing anything may not hold them.
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


def seed_everything(*keys: int) -> None:
    """Seed the generators that a network may draw from."""
    sequence = np.random.SeedSequence([key % 2**32 for key in keys])
    torch_seed, numpy_seed, python_seed = (int(word) for word in sequence.generate_state(3))
    torch.manual_seed(torch_seed)
    np.random.seed(numpy_seed)
    random.seed(python_seed)


def _random_states(device: torch.device) -> dict[str, Any]:
    name, keys, *rest = np.random.get_state()
    states: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": [name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
        "python": random.getstate(),
    }
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def _set_random_states(states: Mapping[str, Any], device: torch.device) -> None:
    torch.set_rng_state(states["torch"])
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    random.setstate(states["python"])
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)


def _buffers(replica: Replica) -> dict[str, torch.Tensor]:
    """What differs between ranks until they agree: running means. Parameters are the same everywhere."""
    return {name: buffer.detach().cpu() for name, buffer in replica.model.named_buffers()}
