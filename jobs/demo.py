"""The whole story on Fashion-MNIST: prepare, train, evaluate, register, score. `make demo` runs it."""

import shutil
import sys
import time
from pathlib import Path

import sparkdl


def demo(configuration: str, overrides: list[str]) -> None:
    """Run the pipeline of one configuration and print a summary."""
    started = time.monotonic()
    settings = sparkdl.load_settings(configuration, overrides)
    source, output = settings.require("prepare.source"), settings.require("score.output")
    spark = sparkdl.get_session(settings.cluster)

    step("1/4  The raw images")
    sparkdl.fetch("fashion-mnist", Path(source.path))

    step("2/4  Prepare: images into balanced row groups of Parquet")
    dataset = sparkdl.prepare(source, settings.require("prepare"), spark=spark)

    step(f"3/4  Train: {settings.cluster.num_ranks} ranks in one barrier stage, then evaluate and register")
    trained = sparkdl.train(dataset, settings.train, cluster=settings.cluster, tracking=settings.tracking, spark=spark)

    step("4/4  Score the test images with the registered model")
    rows = sparkdl.open_source(source, spark).where(settings.require("score.where"))
    scored = sparkdl.score(rows, trained.model_uri, top_k=settings.score.top_k, tracking=settings.tracking)
    shutil.rmtree(output, ignore_errors=True)  # of a demo before this one
    sparkdl.write_predictions(scored, output)
    predictions = spark.read.parquet(output)
    right = predictions.where("prediction = cast(label as string)").count() / predictions.count()

    model = f"models:/{settings.require('tracking.register_as')}@{settings.tracking.alias}"
    print(
        f"""
  Fashion-MNIST, from raw images to a column of predictions, in {time.monotonic() - started:.0f} s

  test accuracy   {trained.metrics["test_accuracy"]:.2%}   (by the predictions written: {right:.2%})
  training speed  {trained.rows_per_second:,.0f} images/s on {settings.cluster.num_ranks} ranks
  model           {model}
                  {trained.registered.reason if trained.registered else ""}
  predictions     {output}
  look at it      {sparkdl.page_command(settings.tracking)}
"""
    )


def step(title: str) -> None:
    """A heading between the jobs' own output."""
    print(f"\n── {title}", flush=True)


if __name__ == "__main__":
    demo(sys.argv[1], sys.argv[2:])
