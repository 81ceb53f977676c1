"""WordNet's ensemble in fewer bits beside itself: rows per second on one thread, points lost, and bytes.

It is trained as ``conf/wordnet.yaml`` says, with a part of the rows held out for the gate; what its form loses is
measured on ``test``, which nothing has seen. Both take turns in one process.
"""

from collections.abc import Callable
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession

import sparkdl
from benchmarks.report import Report, Target
from benchmarks.turns import seconds_in_turn
from sparkdl.cluster import limited_threads, retained_memory
from sparkdl.data import SparseLoader
from sparkdl.extreme.ensemble import Ensemble
from sparkdl.tracking import download

__all__ = ["measure_ensemble"]

CONFIGURATION = Path(__file__).parents[2] / "conf" / "wordnet.yaml"
HELD_OUT = 0.05
BATCH, BATCHES, ROUNDS = 1024, 4, 7
K = 5


def measure_ensemble(spark: SparkSession, folder: str, raw: Path) -> Report:
    """Train, make the form and measure it. Runs on the driver, which has fetched WordNet to ``raw``."""
    changes = [f"prepare.output={folder}/wordnet", f"prepare.split.fractions.validation={HELD_OUT}"]
    configured = sparkdl.load_settings(str(CONFIGURATION), [*changes, f"prepare.source.path={raw}"])
    dataset = sparkdl.prepare(None, configured.require("prepare"), spark=spark)
    tracking = sparkdl.Tracking(uri=f"sqlite:///{folder}/mlflow.db", spool=f"{folder}/spool", register_as="wordnet")
    settings = configured.extreme.model_copy(update={"run_dir": f"{folder}/repetitions"})
    trained = sparkdl.train_extreme(dataset, settings, tracking=tracking, spark=spark)
    asked = sparkdl.Compress(forms=["int8"], run_dir=f"{folder}/runs", gate=sparkdl.FormGate(lose=None))
    made = sparkdl.compress(trained, asked, dataset=dataset, spark=spark)
    form, model = made.forms["int8"], download(made.model_uri, tracking)
    forms = {"original": Ensemble.open(model), "int8": Ensemble.open(model, "int8")}
    seconds = _seconds(dataset, forms)
    points = {name: _points(each, dataset) for name, each in forms.items()}
    ratio = median(own / light for own, light in zip(seconds["original"], seconds["int8"], strict=True))
    size = form.bytes / form.original_bytes
    sizes, ratios = {"original": 1.0, "int8": size}, {"original": 1.0, "int8": ratio}
    return Report(
        title="forms: WordNet's ensemble, from sparse rows to the five best classes, one thread",
        columns=["form", "rows/s", "ratio", *(f"P@{k}" for k in (1, 3, 5)), "bytes"],
        rows=[
            [name, BATCH * BATCHES / median(seconds[name]), ratios[name], *points[name], sizes[name]] for name in forms
        ],
        targets=[
            Target("int8's rows/s over the original's", ratio, 1.5),
            Target("points of P@1 that int8 loses", points["original"][0] - points["int8"][0], 0.3, at_most=True),
            Target("int8's part of the bytes", size, 0.5, at_most=True),
        ],
        note=f"Medians of {ROUNDS} rounds of {BATCH * BATCHES:,} test rows after a warm-up, taken in turn; ratio of"
        " each pair. Bytes are a part of the original's, whose first layers have 8 bits a weight already."
        f" Made: {form.made}.",
        digits=4,
    )


def _seconds(dataset: sparkdl.Dataset, forms: dict[str, Ensemble]) -> dict[str, list[float]]:
    loader = SparseLoader(dataset, "test", batch_size=BATCH, shuffle=False)
    batches = [batch for _, batch in zip(range(BATCHES), loader.epoch(0), strict=False)]

    def way(ensemble: Ensemble) -> Callable[[], object]:
        return lambda: [ensemble.top_k(batch, ensemble.logits(batch), K) for batch in batches]

    with limited_threads(1), retained_memory():
        return seconds_in_turn({name: way(ensemble) for name, ensemble in forms.items()}, ROUNDS)


def _points(ensemble: Ensemble, dataset: sparkdl.Dataset) -> list[float]:
    (found,) = ensemble.evaluate(dataset, "test", k=K).values()
    return [100 * float(found.precision[k - 1]) for k in (1, 3, 5)]
