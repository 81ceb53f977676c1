"""The search space, and the conversion of values between Optuna and configuration files.

Runs on the driver.
"""

import itertools
import json
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sparkdl.extras import require
from sparkdl.settings.tune import Searched, SearchedRange

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

__all__ = ["Space"]


class Space:
    """The searched keys, each with a list of values or a range of numbers.

    For Optuna, the values of a list are texts, because some are lists or mappings themselves.
    """

    def __init__(self, searched: Mapping[str, Searched]) -> None:
        self.searched = dict(searched)

    def distributions(self) -> "dict[str, BaseDistribution]":
        """Optuna's distributions, by key. Raises :class:`~sparkdl.errors.ConfigError` if Optuna is not installed."""
        kinds = require("optuna.distributions", extra="tune")
        found = {}
        for key, searched in self.searched.items():
            if not isinstance(searched, SearchedRange):
                found[key] = kinds.CategoricalDistribution(list(dict.fromkeys(map(_text, searched))))
                continue
            low, high = searched.ends
            if searched.step is not None:  # Optuna rejects an end that no step reaches
                high = list(searched.values())[-1]
            kind = kinds.IntDistribution if searched.is_whole else kinds.FloatDistribution
            step = {"step": int(searched.step) if searched.is_whole else searched.step} if searched.step else {}
            found[key] = kind(low, high, log=searched.is_log, **step)
        return found

    def values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The values of a configuration file, from Optuna's parameters."""
        return {
            key: params[key]
            if isinstance(searched, SearchedRange)
            else next(value for value in searched if _text(value) == params[key])
            for key, searched in self.searched.items()
        }

    def params(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Optuna's parameters, from the values of a configuration file."""
        return {
            key: values[key] if isinstance(searched, SearchedRange) else _text(values[key])
            for key, searched in self.searched.items()
        }

    def combination(self, number: int) -> dict[str, Any]:
        """The combination of values with this number, where there are finitely many."""
        axes = [list(each.values()) if isinstance(each, SearchedRange) else each for each in self.searched.values()]
        chosen = next(itertools.islice(itertools.product(*axes), number, None))
        return dict(zip(self.searched, chosen, strict=True))

    def corners(self) -> dict[str, list[Any]]:
        """By key, the values to check before a search: all values of a list, and the ends of a range."""
        return {
            key: list(dict.fromkeys(map(int if searched.is_whole else float, searched.ends)))
            if isinstance(searched, SearchedRange)
            else list(searched)
            for key, searched in self.searched.items()
        }

    def explored(self, values: Mapping[str, Any], *, factor: float, resample: float, seed: int) -> dict[str, Any]:
        """Changed values: a number is multiplied or divided by ``factor``, a value of a list becomes its neighbour.

        With the probability ``resample``, a new value is drawn instead (Jaderberg et al., 2017, section 4.1.1).
        """
        draws, found = random.Random(seed), {}
        for key, searched in self.searched.items():
            if draws.random() < resample:
                found[key] = _drawn(searched, draws)
            elif isinstance(searched, SearchedRange):
                low, high = searched.ends
                value = min(max(values[key] * draws.choice([factor, 1 / factor]), low), high)
                found[key] = _on_grid(value, searched)
            else:
                place = searched.index(values[key]) + draws.choice([-1, 1])
                found[key] = searched[min(max(place, 0), len(searched) - 1)]
        return found


def _drawn(searched: Searched, draws: random.Random) -> Any:
    if not isinstance(searched, SearchedRange):
        return draws.choice(searched)
    low, high = searched.ends
    return _on_grid(low * (high / low) ** draws.random() if searched.is_log else draws.uniform(low, high), searched)


def _on_grid(value: float, searched: SearchedRange) -> float:
    """The nearest number in the range."""
    low, _ = searched.ends
    if searched.step is not None:
        return min(searched.values(), key=lambda each: abs(each - value))
    return max(round(value), int(low)) if searched.is_whole else value


def _text(value: Any) -> str:
    """The text of a list's value. It is JSON, which tells 1 from true, while they are equal in Python."""
    return json.dumps(value, sort_keys=True, default=str)
