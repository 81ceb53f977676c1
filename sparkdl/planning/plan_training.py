"""Measure a cluster and a network, and say what follows from it. Runs on the driver."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from typing import NamedTuple, TypeVar

from pyspark.sql import SparkSession
from torch import nn

from sparkdl.cluster import Rank, get_session, run_ranks
from sparkdl.collectives import Backend, TorchBackend, create_backend
from sparkdl.data import Dataset
from sparkdl.errors import ConfigError, ModelError
from sparkdl.inputs.tensors import Inputs, moved
from sparkdl.layouts import check_may_be_sharded
from sparkdl.planning.cost import Link, fit_link
from sparkdl.planning.layout_costs import costs_of_layouts
from sparkdl.planning.layout_tries import tried
from sparkdl.planning.links import Links
from sparkdl.planning.measure import Measurement, measure
from sparkdl.planning.memory import memory_of_rank
from sparkdl.planning.subnet_cost import may_be_dealt, of_sub_networks
from sparkdl.planning.training_plan import SHARDED, TrainingPlan, name_of_strategy
from sparkdl.settings import Cluster, Train
from sparkdl.settings.averaging import Averaging, Float16Options, PowerSGDOptions
from sparkdl.settings.strategies import (
    AllReduceOptions,
    DiLoCoOptions,
    EASGDOptions,
    ISTOptions,
    LocalSGDOptions,
    PostLocalSGDOptions,
    RoundsOptions,
    SparkNetOptions,
)
from sparkdl.training.checks.some_rows import some_rows
from sparkdl.training.checks.tried_model import check_model, tried_model
from sparkdl.training.task_to_train import task_to_train

__all__ = ["plan_layout", "plan_training"]

T = TypeVar("T")

STRATEGIES: tuple[Averaging, ...] = (
    AllReduceOptions(),
    AllReduceOptions(compression=Float16Options()),
    AllReduceOptions(compression=PowerSGDOptions()),
    LocalSGDOptions(),
    EASGDOptions(),
    SparkNetOptions(),
    DiLoCoOptions(),
    ISTOptions(),
)
"""What is compared, beside the configuration's own strategy: the last one if the network's neurons can be dealt."""


def plan_training(
    dataset: Dataset | str,
    settings: Train | None = None,
    *,
    cluster: Cluster | None = None,
    spark: SparkSession | None = None,
    ranks: int | None = None,
    hosts: int | None = None,
    bandwidth: float | None = None,
) -> TrainingPlan:
    """Measure network and model on the cluster's ranks, for some seconds, and predict each strategy's steps.

    Runs on the driver. The plan is for as many ranks as have measured, or for ``ranks`` of them on so many ``hosts``,
    each of which is on a link of ``bandwidth`` bytes a second in each direction; what is not given is as it was
    measured.

    Raises :class:`~sparkdl.errors.ConfigError` for a single rank, which exchanges nothing, and what
    :func:`sparkdl.train` raises for a model that does not fit the dataset, or for too few slots.
    """
    settings, cluster = settings or Train(), cluster or Cluster()
    dataset = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    measuring = _ranks_that_measure(cluster)
    _check_hosts(ranks, hosts, bandwidth)
    model = check_model(dataset, settings, ranks=measuring)
    rows = moved(some_rows(dataset), next(model.parameters()).device)
    own = settings.strategy
    if not isinstance(own, Averaging):
        raise ConfigError(
            f"train.strategy is {own.model_dump()['kind']}, which is asynchronous; plan-training only plans synchronous"
            " strategies"
        )
    if isinstance(own, PostLocalSGDOptions):
        own = LocalSGDOptions(period=own.period, topology=own.topology)  # which it becomes
    if isinstance(own, RoundsOptions):  # its epochs of sub-networks
        own = own.model_copy(update={"allreduce_first": 0, "allreduce_last": 0})
    compared = STRATEGIES if may_be_dealt(model, rows, ranks=measuring) else STRATEGIES[:-1]
    backend = create_backend(cluster.backend, needs_torch=own.needs_torch)
    if isinstance(backend, TorchBackend) and _may_be_sharded(model, settings):
        compared = (*compared, *SHARDED)
    compared = tuple({name_of_strategy(each): each for each in (*compared, own)}.values())
    subject = _Subject(dataset, settings, model, rows, compared)
    found = _measured(subject, backend, cluster, spark)
    links = _links(found)
    if ranks is None:
        plan = _plan(subject, found, links, measured_by=measuring, ranks=measuring)
        return _with_tries(plan, subject, backend, cluster, spark) if isinstance(backend, TorchBackend) else plan
    return _plan(subject, found, _elsewhere(links, ranks, hosts, bandwidth), measured_by=measuring, ranks=ranks)


def plan_layout(dataset: Dataset, settings: Train, cluster: Cluster, spark: SparkSession | None) -> TrainingPlan:
    """What there is to know for ``cluster.layout: auto``: only what has the steps of whole replicas is measured.

    Ranks take some steps in the layouts that may be the best by prediction, since predictions err.

    Runs on the driver, and raises what :func:`plan_training` raises.
    """
    ranks = _ranks_that_measure(cluster)
    backend = create_backend(cluster.backend, needs_torch="may share replicas among ranks (cluster.layout: auto)")
    model, _ = tried_model(dataset, settings, ranks=ranks, export=False, on_disk=True)
    rows = some_rows(dataset)
    compared = (AllReduceOptions(), *(SHARDED if _may_be_sharded(model, settings) else ()))
    subject = _Subject(dataset, settings, model, rows, compared)
    found = _measured(subject, backend, cluster, spark)
    plan = _plan(subject, found, _links(found), measured_by=ranks, ranks=ranks)
    return _with_tries(plan, subject, backend, cluster, spark)


class _Subject(NamedTuple):
    """What is measured."""

    dataset: Dataset
    settings: Train
    model: nn.Module
    rows: Inputs
    """Some, as the network reads them."""
    compared: Sequence[Averaging]
    """The first one is all-reduce with whole replicas."""

    def memory(self, ranks: int) -> dict[str, float]:
        """Predicted bytes of one of so many ranks, by strategy as far as they are known."""
        return {
            name_of_strategy(options): memory_of_rank(
                self.model,
                self.rows,
                self.settings.model_copy(update={"strategy": options}),
                ranks=ranks,
                batch=self.settings.batch_size,
            ).total
            for options in self.compared
            if isinstance(options, AllReduceOptions) and not options.compression
        }


def _ranks_that_measure(cluster: Cluster) -> int:
    ranks = cluster.ranks.max
    if cluster.chosen_layout and cluster.chosen_layout.has_parts:
        raise ConfigError(
            f"plan-training compares all layouts of as many ranks; set cluster.num_ranks to {ranks} in place of"
            " cluster.layout"
        )
    if ranks < 2:
        raise ConfigError(
            "a single rank exchanges nothing, so there is nothing to plan; set cluster.num_ranks to 2 or more"
        )
    return ranks


def _check_hosts(ranks: int | None, hosts: int | None, bandwidth: float | None) -> None:
    """Raise :class:`ConfigError` for a cluster that cannot be."""
    if ranks is None and (hosts or bandwidth):
        raise ConfigError("hosts and bandwidth are of a cluster that is not here; give its ranks, too")
    if ranks is not None and ranks < 2:
        raise ConfigError(f"ranks is {ranks}, and a single rank exchanges nothing; give 2 or more")
    if ranks is not None and hosts is not None and not 1 <= hosts <= ranks:
        raise ConfigError(f"hosts is {hosts}, and {ranks} ranks are on 1 to {ranks} hosts")
    if bandwidth is not None and bandwidth <= 0:
        raise ConfigError(f"bandwidth is {bandwidth:g}; give a positive number")


def _measured(subject: _Subject, backend: Backend, cluster: Cluster, spark: SparkSession | None) -> Measurement:
    """What the cluster's ranks have measured."""
    ranks = cluster.ranks.max
    weights = sum(parameter.nbytes for parameter in subject.model.parameters())
    strategies = {name_of_strategy(each): each for each in subject.compared}
    work = partial(
        measure,
        subject.dataset,
        subject.settings,
        backend,
        strategies,
        memory=subject.memory(ranks),
        model_bytes=weights,
    )
    return _on_ranks(work, backend, cluster, spark)[0]


def _on_ranks(work: Callable[[Rank], T], backend: Backend, cluster: Cluster, spark: SparkSession | None) -> list[T]:
    return run_ranks(
        work,
        cluster.ranks.max,
        spark=spark or get_session(cluster),
        backend=backend,
        description="sparkdl plan-training",
        slot_timeout=cluster.slot_timeout,
        resources=cluster.resources,
    )


def _with_tries(
    plan: TrainingPlan, subject: _Subject, backend: Backend, cluster: Cluster, spark: SparkSession | None
) -> TrainingPlan:
    """The plan, after ranks have tried the layouts that may be the best."""
    if not plan.layouts:
        return plan
    launch = partial(_on_ranks, backend=backend, cluster=cluster, spark=spark)
    return replace(plan, tried=tried(plan.choices, plan.layouts, subject.dataset, subject.settings, backend, launch))


def _links(found: Measurement) -> Links:
    """The network as it was measured."""
    between = fit_link(found.exchanges)
    return Links(fit_link(found.inside) if found.inside else between, between, found.ranks_of_host)


def _elsewhere(links: Links, ranks: int, hosts: int | None, bandwidth: float | None) -> Links:
    """The network of another cluster. Raises :class:`ConfigError` where it is not known."""
    of_host = ceil(ranks / hosts) if hosts else links.ranks_of_host
    several_here = links.inside is not links.between
    if of_host >= ranks or (several_here and bandwidth is None):
        return links._replace(ranks_of_host=of_host)
    if bandwidth is None:
        raise ConfigError(
            f"{ranks} ranks would be on {ceil(ranks / of_host)} hosts, and what is between hosts was not measured: all"
            " ranks that measure are on one; give its bandwidth, or put all ranks on one host (hosts=1)"
        )
    return Links(links.inside, Link(links.between.start, bandwidth), of_host)


def _plan(subject: _Subject, found: Measurement, links: Links, *, measured_by: int, ranks: int) -> TrainingPlan:
    """What follows from what was measured, for so many ranks."""
    dataset, settings, model, rows, compared = subject
    steps = dict(found.steps)
    for options in compared:
        name = name_of_strategy(options)
        if isinstance(options, RoundsOptions) and name in steps:
            whole = steps[name_of_strategy(compared[0])].computing
            steps[name] = of_sub_networks(steps[name], options, model, rows, whole=whole, ranks=measured_by)
    return TrainingPlan(
        ranks=ranks,
        links=links,
        model_bytes=sum(parameter.nbytes for parameter in model.parameters()),
        measured=found.topologies,
        measured_by=measured_by,
        link=fit_link(found.exchanges),
        strategies=steps,
        memory=subject.memory(ranks),
        layouts=costs_of_layouts(
            *(model, rows, settings, task_to_train(dataset.card, settings)),
            ranks=ranks,
            cores=found.cores,
            links=links,
        ),
        room=found.room,
    )


def _may_be_sharded(model: nn.Module, settings: Train) -> bool:
    """Whether the settings and the network allow shards."""
    try:
        settings.model_copy(update={"strategy": SHARDED[0]})
        check_may_be_sharded(model)
    except (ConfigError, ModelError):
        return False
    return True
