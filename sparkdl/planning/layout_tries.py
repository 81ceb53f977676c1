"""How long a step takes in a layout: ranks take some. Runs on the driver, which starts ranks for each layout."""

import time
from collections.abc import Callable
from statistics import median

import torch
from tqdm.auto import tqdm

from sparkdl.cluster import Rank
from sparkdl.collectives import Backend
from sparkdl.data import Dataset
from sparkdl.errors import RankError
from sparkdl.layouts import SharingPlan
from sparkdl.planning.layout_choice import Choice, Choices
from sparkdl.planning.layout_costs import LayoutCosts
from sparkdl.planning.layout_names import layout_name
from sparkdl.planning.measure import batches_of_steps
from sparkdl.settings import Train
from sparkdl.training.groups import Groups
from sparkdl.training.network_to_train import build_for_ranks
from sparkdl.training.pipelined_replica import make_replica, ranks_of_replica, returning_memory
from sparkdl.training.recipes.batching import batching
from sparkdl.training.task_to_train import task_to_train

__all__ = ["step_seconds", "tried"]

WARM_UP_STEPS, STEPS = 2, 8
MOST_SECONDS = 10.0
"""Of the steps that are measured in one layout, of which there are at least two."""


def tried(
    choices: Choices,
    costs: LayoutCosts,
    dataset: Dataset,
    settings: Train,
    backend: Backend,
    launch: Callable[[Callable[[Rank], float]], list[float]],
) -> Choices:
    """The same choices; those that may be the best have the seconds that a step took, or the reason why it failed.

    ``launch`` calls a function on every rank of the cluster.
    """
    worth = choices.worth_trying
    for each in tqdm(worth, desc="trying layouts", unit="layout", leave=False, disable=None):
        choices = choices.replaced(each, _tried(each, costs, dataset, settings, backend, launch))
    return choices


def _tried(
    choice: Choice,
    costs: LayoutCosts,
    dataset: Dataset,
    settings: Train,
    backend: Backend,
    launch: Callable[[Callable[[Rank], float]], list[float]],
) -> Choice | str:
    layout = choice.layout
    reference = layout.data * layout.sharing
    own = settings.model_copy(update={"strategy": choice.strategy})
    plan = costs.plans[layout_name(layout)]

    def work(rank: Rank) -> float:
        return step_seconds(dataset, own, backend, reference, plan, rank)

    try:
        return choice._replace(measured=launch(work)[0])
    except RankError as error:
        said = error.reason.strip() or str(error).strip()
        return f"ranks failed when they tried it: {said.splitlines()[-1]}"


def step_seconds(
    dataset: Dataset, settings: Train, backend: Backend, reference: int, plan: SharingPlan | None, rank: Rank
) -> float:
    """The median time of a step, until the slowest rank has taken it. Runs on ranks, all of which call it.

    A step is that of a run whose recipe is for ``reference`` ranks with whole replicas.
    """
    device = torch.device(rank.device)
    with backend.connect(device) as world, returning_memory(settings, plan):
        groups = Groups.of(world, ranks_of_replica=ranks_of_replica(plan))
        model = build_for_ranks(dataset, settings, on_disk=plan is not None)
        replica = make_replica(model, settings, task_to_train(dataset.card, settings), groups, device, plan=plan)
        shape = batching(settings, size=groups.data.size, reference=reference)
        replica.model.train()
        steps = batches_of_steps(dataset, groups.data, shape)
        seconds: list[float] = []
        count = WARM_UP_STEPS
        while len(seconds) < count:
            group = next(steps)
            world.barrier()
            started = time.perf_counter()
            replica.step(group, rate=settings.learning_rate)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - started)
            if len(seconds) == WARM_UP_STEPS:
                slowest = max(float(each) for each in world.all_gather(torch.tensor([seconds[-1]])))
                count += max(2, min(STEPS, int(MOST_SECONDS / slowest)))
        gathered = torch.stack(world.all_gather(torch.tensor(seconds[WARM_UP_STEPS:])))
        return float(median(gathered.amax(dim=0).tolist()))
