"""What MACH's paper claims, on its two shapes and beyond: how small a model is beside a classifier for each class."""

import math

import sparkdl
from benchmarks.report import Report, Target
from sparkdl.extreme.plan import fewest_repetitions

__all__ = ["run"]

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
