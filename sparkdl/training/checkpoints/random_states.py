"""The random number generators of a rank: seeded for a run, saved in checkpoints, and restored from them."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

__all__ = ["random_states", "seed_everything", "set_random_states"]


def seed_everything(*keys: int) -> None:
    """Seed the generators that a network may draw from."""
    sequence = np.random.SeedSequence([key % 2**32 for key in keys])
    torch_seed, numpy_seed, python_seed = (int(word) for word in sequence.generate_state(3))
    torch.manual_seed(torch_seed)
    np.random.seed(numpy_seed)
    random.seed(python_seed)


def random_states(device: torch.device) -> dict[str, Any]:
    """The states of all generators, as tensors and plain values, with the GPU's if the model is on one."""
    name, keys, *rest = np.random.get_state()
    states: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": [name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
        "python": random.getstate(),
    }
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_states(states: Mapping[str, Any], device: torch.device) -> None:
    """Restore the states. They may be on the model's device, and are moved to the host, as generators need."""
    torch.set_rng_state(states["torch"].cpu())
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, keys.cpu().numpy().astype(np.uint32), *rest))
    random.setstate(states["python"])
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)
