"""How long a pipeline takes for a microbatch, whatever its stages compute."""

import torch

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import Backend, TorchBackend
from sparkdl.layouts import has_pipelines
from sparkdl.planning.turns import turn_seconds

CPU = torch.device("cpu")


def test_ranks_measure_it_together_where_there_are_pipelines(backend: Backend) -> None:
    def measure(rank: Rank) -> float:
        with backend.connect(CPU) as world:
            return turn_seconds(world, CPU)

    found = run_local(measure, 2, backend=backend)
    assert found[0] == found[1]
    possible = isinstance(backend, TorchBackend) and has_pipelines()
    assert 1e-6 < found[0] < 10 if possible else found[0] == 0
