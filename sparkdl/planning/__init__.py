"""What a training would take on this cluster: exchanges and steps are measured, and predicted for other ranks."""

from sparkdl.planning.cost import Link, StepCost, Traffic, fit_link
from sparkdl.planning.growth import growth_figure
from sparkdl.planning.memory import RankMemory, memory_of_rank
from sparkdl.planning.stage_costs import StagesOfRank, stages_of_ranks
from sparkdl.planning.training_plan import TrainingPlan, plan_training

__all__ = [
    "Link",
    "RankMemory",
    "StagesOfRank",
    "StepCost",
    "Traffic",
    "TrainingPlan",
    "fit_link",
    "growth_figure",
    "memory_of_rank",
    "plan_training",
    "stages_of_ranks",
]
