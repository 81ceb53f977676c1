"""Very many classes, on WordNet: prepare, train hashed meta-models, evaluate. `make demo-extreme` runs it."""

import sys
import time
from pathlib import Path

import sparkdl


def demo(configuration: str, overrides: list[str]) -> None:
    """Run the pipeline of one configuration and print a summary."""
    started = time.monotonic()
    settings = sparkdl.load_settings(configuration, overrides)
    source, extreme = settings.require("prepare.source"), settings.extreme
    spark = sparkdl.get_session(settings.cluster)

    step("1/3  WordNet's files")
    sparkdl.fetch("wordnet", Path(source.path))

    step("2/3  Prepare: glosses into sparse rows of weighted words")
    dataset = sparkdl.prepare(source, settings.require("prepare"), spark=spark)

    step(f"3/3  Train: {extreme.repetitions} repetitions, {extreme.repetitions_per_task} a task, and evaluate")
    trained = sparkdl.train_extreme(dataset, extreme, cluster=settings.cluster, tracking=settings.tracking, spark=spark)

    found = trained.evaluations["test"]
    plan = sparkdl.plan_extreme(
        dataset.num_classes,
        num_features=dataset.input.shape[0],
        rows=dataset.rows("train"),
        hidden=extreme.hidden,
        num_buckets=extreme.buckets,
        repetitions=extreme.repetitions,
    )
    costs = [plan.mach, *plan.one_vs_all]
    sizes = "\n                  ".join(
        f"{cost.name}: {cost.parameters:,} parameters, {cost.model_bytes / 1e6:,.0f} MB" for cost in costs
    )
    print(
        f"""
  WordNet, from glosses to one of {dataset.num_classes:,} hypernyms, in {time.monotonic() - started:.0f} s

  precision       P@1 {found.precision[0]:.2%}, P@3 {found.precision[2]:.2%}, P@5 {found.precision[4]:.2%}
                  ({found.unseen_labels:,} of {found.labels:,} test labels never occur in training, and count as missed)
  training        {trained.seconds:.0f} s for what was missing of {len(trained.repetitions)} repetitions
  size            {sizes}
  repetitions     {trained.folder}
  look at it      {sparkdl.page_command(settings.tracking)}
"""
    )


def step(title: str) -> None:
    """A heading between the jobs' own output."""
    print(f"\n── {title}", flush=True)


if __name__ == "__main__":
    demo(sys.argv[1], sys.argv[2:])
