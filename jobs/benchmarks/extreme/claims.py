"""What MACH's paper claims, on its two shapes and beyond: how small a model is beside a classifier for each class."""

import math
from typing import Any

import sparkdl
from benchmarks.extreme.task import CONFIGURATIONS
from benchmarks.report import Report, Target
from sparkdl.extreme.plan import fewest_repetitions

__all__ = ["published_shapes", "run"]

DELTA = 0.01
SHAPES = {
    "ImageNet, as published": (21_841, 6_144, 512, 20),
    "ODP, as published": (105_033, 421_705, 32, 25),
    "ODP, as few repetitions as tell all classes apart": (105_033, 421_705, 32, None),
    "ten million classes": (10**7, 421_705, 32, None),
    "a billion classes": (10**9, 421_705, 32, None),
}
"""Classes, features, buckets and repetitions; all linear, as in the paper (arXiv 1810.04254, section 5)."""
PUBLISHED = 125
"""Times smaller than one-vs-all: what the paper says of ODP's model."""
REPOSITORY: dict[str, dict[str, Any]] = {
    "eurlex_4k": {"num_classes": 3_993, "num_features": 5_000, "rows": 15_539, "labels": 5.31, "nonzeros": 237},
    "amazoncat_13k": {
        "num_classes": 13_330,
        "num_features": 203_882,
        "rows": 1_186_239,
        "labels": 5.04,
        "nonzeros": 71,
    },
    "amazon_670k": {
        "num_classes": 670_091,
        "num_features": 135_909,
        "rows": 490_449,
        "labels": 5.45,
        "nonzeros": 76,
    },
}
"""Shapes of sets of the Extreme Classification Repository, by their files in ``conf/``."""
CORES = 2
"""Slots that the plans are for."""


def run() -> Report:
    """Calculate, with the plan; nothing is trained."""
    rows: list[list[str | float]] = []
    smaller, sizes = {}, {}
    for name, (classes, features, buckets, repetitions) in SHAPES.items():
        plan = sparkdl.plan_extreme(
            classes,
            num_features=features,
            rows=1,
            hidden=(),
            ranked=False,
            num_buckets=buckets,
            repetitions=repetitions or fewest_repetitions(classes, buckets, delta=DELTA),
        )
        (linear,) = plan.one_vs_all
        smaller[name] = linear.model_bytes / plan.mach.model_bytes
        sizes[name] = plan.mach.model_bytes, math.log(classes**2 / DELTA)
        size = f"{plan.num_buckets} x {plan.repetitions}"
        megabytes = [each / 1e6 for each in (plan.mach.model_bytes, plan.mach.task_bytes, linear.model_bytes)]
        rows.append([name, f"{classes:,}", size, *megabytes, smaller[name]])
    (few, of_few), (many, of_many) = sizes["ten million classes"], sizes["a billion classes"]
    return Report(
        title="extreme, what MACH claims: memory grows with the logarithm of the number of classes",
        columns=["shape", "classes", "buckets x repetitions", "MACH MB", "a task MB", "one-vs-all MB", "times smaller"],
        rows=rows,
        targets=[
            Target("times smaller, ODP", smaller["ODP, as published"], PUBLISHED),
            Target(
                "growth from ten million to a billion classes over that of the logarithm",
                (many / few) / (of_many / of_few),
                1.1,
                at_most=True,
            ),
        ],
        note="Calculated by `sparkdl plan-extreme`, linear and in float32; stored, a weight takes a byte, not four.",
    )


def published_shapes() -> Report:
    """What the plan expects of sets that cannot be fetched, with the settings of their files in ``conf/``."""
    rows: list[list[str | float]] = []
    for name, shape in REPOSITORY.items():
        settings = sparkdl.load_settings(str(CONFIGURATIONS / f"{name}.yaml"), []).extreme
        plan = sparkdl.plan_extreme(
            **shape,
            hidden=settings.hidden,
            num_buckets=settings.buckets,
            repetitions=settings.repetitions,
            repetitions_per_task=settings.repetitions_per_task,
            epochs=settings.epochs,
            slots=CORES,
        )
        megabytes = [each / 1e6 for each in (plan.mach.model_bytes, plan.mach.task_bytes, plan.ranker_task_bytes)]
        minutes = [each / 60 for each in (plan.mach.seconds, plan.ranker_seconds, plan.seconds)]
        rows.append([name, f"{plan.num_classes:,}", f"{plan.num_buckets} x {plan.repetitions}", *minutes, *megabytes])
    return Report(
        title="extreme, published sets: what the plan expects",
        columns=[
            "set",
            "classes",
            "buckets x repetitions",
            "meta-models, min",
            "ranker, min",
            "both, min",
            "MACH MB",
            "a task MB",
            "a task of the ranker MB",
        ],
        rows=rows,
        note=f"Calculated for {CORES} slots; nothing was trained.",
    )
