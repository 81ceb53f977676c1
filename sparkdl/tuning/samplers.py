"""Optuna's samplers by their names in ``tune.sampler``. ``grid`` needs none: see :meth:`Space.combination`."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparkdl.settings.tune import SamplerName

if TYPE_CHECKING:
    import optuna

__all__ = ["SAMPLERS"]

SAMPLERS: Mapping[
    SamplerName, "Callable[[Any, int, Sequence[optuna.trial.FrozenTrial]], optuna.samplers.BaseSampler]"
] = {
    "tpe": lambda samplers, seed, _: samplers.TPESampler(seed=seed, constant_liar=True),
    "random": lambda samplers, seed, _: samplers.RandomSampler(seed=seed),
    "cmaes": lambda samplers, seed, known: samplers.CmaEsSampler(
        seed=seed, warn_independent_sampling=False, source_trials=known or None
    ),
    "gp": lambda samplers, seed, _: samplers.GPSampler(seed=seed),
}
"""Each takes Optuna's module of samplers, a seed, and the finished trials whose values an earlier driver drew."""
