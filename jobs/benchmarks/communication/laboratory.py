"""What is measured of a method: the steps that it needs, the seconds that one takes on each link, whole runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from statistics import fmean

from tqdm.auto import tqdm

import sparkdl
from benchmarks.communication.course import BACKEND, Course, Meter, Track, find_link, follow
from benchmarks.communication.methods import Method
from benchmarks.communication.results import Confirmation, MethodResults, OnLink, Results
from benchmarks.network import Network
from sparkdl.errors import RankError, TrainingError
from sparkdl.planning.cost import Link, StepCost
from sparkdl.planning.measure import adds_up

__all__ = ["RANKS", "Laboratory", "Plan", "name_of_link", "predict"]

RANKS = 4
WARM_UP_STEPS = 3
DIVERGED = f"{TrainingError.__module__}.{TrainingError.__qualname__}"
TIMED_STEPS = 12
"""At least so many steps are timed, and a whole number of cycles."""
TRY = 1 / 4
"""The part of a training that is enough to choose a learning rate."""


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    methods: Sequence[Method]
    links: Sequence[float]
    """Megabits a second, the slowest link first."""
    hidden: Sequence[int]
    batch_size: int
    steps: int
    """Of a training; methods of a greater length take more, and are looked at more rarely."""
    look_every: int
    target: float
    validation: float
    """The part of the training rows that is kept to validate with."""


class Laboratory:
    """The measurements, on one dataset."""

    def __init__(self, plan: Plan, dataset: sparkdl.Dataset, bar: "tqdm[None]") -> None:
        self._plan, self._dataset, self._bar = plan, dataset, bar

    def learn(self, hosts: Network, method: Method, seeds: int, tries: int) -> MethodResults:
        """Tune the learning rate on the validation rows, then train with each seed, on links without a limit."""
        hosts.limit(None)
        rate = self._tune(hosts, method, tries)
        courses = [
            self._course(method, rate, seed=seed, look_every=self._plan.look_every, test=True)
            for seed in range(1, 1 + seeds)
        ]
        ranks = self._run(hosts, courses, f"{method.name}, {seeds} seeds")
        return MethodResults(
            name=method.name,
            rate=rate,
            curves=[track.accuracies for track in ranks[0]],
            test=[track.test or 0.0 for track in ranks[0]],
        )

    def _tune(self, hosts: Network, method: Method, tries: int) -> float:
        """The rate with the highest accuracy after a quarter of a training.

        A try whose loss is no longer a number has lost.
        """
        accuracies, steps = {}, round(TRY * self._plan.steps)
        for rate in method.rates(tries):
            course = self._course(method, rate, seed=0, steps=steps, look_every=steps)
            try:
                ((track,), *_) = self._run(hosts, [course], f"{method.name}, rate {rate:g}")
            except RankError as error:
                if error.exception_type != DIVERGED:
                    raise
                accuracies[rate] = 0.0
            else:
                (accuracies[rate],) = track.accuracies.values()
        return max(accuracies, key=lambda each: accuracies[each])

    def find_links(self, hosts: Network, results: Results) -> None:
        """What the cost model knows of the links, from exchanges."""
        for megabits in self._plan.links:
            if (name := name_of_link(megabits)) not in results.links:
                hosts.limit(megabits)
                results.links[name] = hosts.run(find_link, backend=BACKEND)[0]

    def time(self, hosts: Network, results: Results, method: Method, found: MethodResults) -> None:
        """What a step of a method takes on each link, and what the cost model says of it.

        The model knows a method from steps on links without a limit, in the same minute: this machine's cores may be
        faster in another one.
        """
        hosts.limit(None)
        free, cost = self._steps(hosts, method, found.rate, "no limit")
        for megabits in self._plan.links:
            hosts.limit(megabits)
            name = name_of_link(megabits)
            step, _ = self._steps(hosts, method, found.rate, name)
            found.links[name] = OnLink(
                seconds=step.seconds,
                megabytes=step.bytes / 1e6,
                exchanging=step.waited / step.seconds,
                predicted=predict(results.links[name], free.seconds, cost),
            )

    def _steps(self, hosts: Network, method: Method, rate: float, title: str) -> tuple[Meter, StepCost]:
        """A step on the links as they are: the mean over some, and what it is to the cost model."""
        steps = method.cycle * ceil(TIMED_STEPS / method.cycle)
        course = replace(self._course(method, rate, seed=0), steps=WARM_UP_STEPS + steps)
        step = _mean([track for (track,) in self._run(hosts, [course], f"{method.name}, {title}")], steps)
        options = course.settings.strategy
        payload = step.handed_over * method.cycle
        return step, StepCost(step.seconds - step.waited, payload, method.cycle, adds_up(options))

    def confirm(self, hosts: Network, results: Results) -> None:
        """Whole runs to the target: of the three shortest on the slowest link, and of the shortest on the fastest."""
        slow, fast = name_of_link(self._plan.links[0]), name_of_link(self._plan.links[-1])
        runs = [(name, slow) for name in _shortest(results, slow)[:3]]
        runs += [(name, fast) for name in _shortest(results, fast)[:1] if (name, fast) not in runs]
        self._bar.total += len(runs)
        for name, link in runs:
            hosts.limit(self._plan.links[0] if link == slow else self._plan.links[-1])
            method = next(each for each in self._plan.methods if each.name == name)
            found = next(each for each in results.methods if each.name == name)
            course = self._course(method, found.rate, seed=1, look_every=self._plan.look_every, target=results.target)
            ((track,), *_) = self._run(hosts, [course], f"{name}, the whole run, {link}")
            steps = found.steps_to(results.target)[0] or 0
            results.confirmations.append(
                Confirmation(
                    method=name,
                    link=link,
                    steps=len(track.steps),
                    seconds=track.steps[-1].seconds,
                    product=steps * found.links[link].seconds,
                )
            )

    def _course(
        self,
        method: Method,
        rate: float,
        *,
        seed: int,
        steps: int | None = None,
        look_every: int = 0,
        target: float = 2.0,
        test: bool = False,
    ) -> Course:
        """A whole training, or one of so many steps and looks, times the length of the method."""
        settings = sparkdl.Train(
            model="mlp",
            model_options={"hidden": list(self._plan.hidden)},
            epochs=1_000,  # more than there will be: a course ends after so many steps
            batch_size=self._plan.batch_size,
            optimizer="sgd",
            optimizer_options=method.optimizer,
            learning_rate=rate,
            schedule="constant",
            seed=seed,
            strategy=method.strategy,  # type: ignore[arg-type]
        )
        length = method.length
        steps = length * (steps or self._plan.steps)
        return Course(self._dataset, settings, steps, length * look_every, target, test)

    def _run(self, hosts: Network, courses: Sequence[Course], title: str) -> list[list[Track]]:
        """What each rank has seen of each course."""
        self._bar.set_description(title)
        ranks = hosts.run(partial(follow, courses), backend=BACKEND)
        self._bar.update(len(courses))
        return ranks


def _shortest(results: Results, link: str) -> list[str]:
    """The methods with which the first seed has reached the target, first those for which that takes the least time."""
    seconds = {
        found.name: steps * found.links[link].seconds
        for found in results.methods
        if (steps := found.steps_to(results.target)[0])
    }
    return sorted(seconds, key=lambda name: seconds[name])


def _mean(tracks: Sequence[Track], steps: int) -> Meter:
    """What one of the last steps took: the mean over so many steps, and over ranks."""
    stretches = [track.steps[-1].since(track.steps[-1 - steps]) for track in tracks]
    return Meter(*(fmean(each) / steps for each in zip(*stretches, strict=True)))


def predict(link: Link, free: float, cost: StepCost) -> float:
    """Seconds of a step on a link, by the cost model: at least those on links without a limit.

    There, too, ranks that share cores wait for each other.
    """
    return max(free, cost.seconds(link, RANKS))


def name_of_link(megabits: float) -> str:
    """What tables call a link of so many megabits a second."""
    return f"{megabits / 1000:g} Gbit/s" if megabits >= 1000 else f"{megabits:g} Mbit/s"
