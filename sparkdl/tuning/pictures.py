"""Pictures of a search, drawn by Optuna from its study. Runs on the driver."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sparkdl.extras import require

if TYPE_CHECKING:
    import optuna
    from matplotlib.figure import Figure

__all__ = ["draw_search"]

log = logging.getLogger(__name__)


def draw_search(study: "optuna.Study", figures: Sequence[str]) -> "Iterator[tuple[str, Figure]]":
    """Names and pictures: history, importance, parallel coordinates and Pareto front.

    Each figure has its own, but for the Pareto front, which is drawn for two or three figures. Pictures that need more
    trials, or trials that differ, are left out.
    """
    import matplotlib.pyplot as plt  # Optuna draws with it

    visual: Any = require("optuna.visualization.matplotlib", extra="tune")
    drawn: list[tuple[str, Any, dict[str, Any]]] = []
    for place, name in enumerate(figures):
        target = {"target": _figure(place), "target_name": name}
        ending = f"_{name}" if len(figures) > 1 else ""
        drawn.append((f"history{ending}", visual.plot_optimization_history, target))
        drawn.append((f"parallel_coordinates{ending}", visual.plot_parallel_coordinate, target))
        drawn.append((f"importance{ending}", visual.plot_param_importances, target))
    if len(figures) in (2, 3):
        drawn.append(("pareto_front", visual.plot_pareto_front, {"target_names": list(figures)}))
    for name, draw, options in drawn:
        # With too few trials, or only equal ones, Optuna raises one of these.
        with warnings.catch_warnings(), suppress(ValueError, RuntimeError, ZeroDivisionError, IndexError):
            warnings.simplefilter("ignore")
            axes = draw(study, **options)
            figure = _figure_of(axes)
            figure.set_size_inches(8, 5)
            figure.set_layout_engine("tight")
            yield name, figure
        plt.close("all")


def _figure(place: int) -> Any:
    return lambda trial: trial.values[place]


def _figure_of(axes: Any) -> Any:
    """The figure of the axes that Optuna returns, which may be one or an array."""
    while not hasattr(axes, "figure"):
        axes = axes[0]
    return axes.figure
