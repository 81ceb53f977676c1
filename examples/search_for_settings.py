"""Search for settings: four trials of learning rates and widths, and a model trained with the best of them."""

from sklearn.datasets import load_iris

import sparkdl

spark = sparkdl.get_session()
rows = spark.createDataFrame(load_iris(as_frame=True).frame)
split = sparkdl.Split(fractions={"validation": 0.3, "test": 0.2})
dataset = sparkdl.prepare(rows, sparkdl.Prepare(output="output/iris_search", label="target", split=split))
settings = sparkdl.Settings(
    train=sparkdl.Train(model="mlp", epochs=3, batch_size=8),
    cluster=sparkdl.Cluster(num_ranks=1),
    tune={
        "space": {"train.learning_rate": {"log": [1e-4, 1e-1]}, "train.model_options.hidden": [[8], [64]]},
        "trials": 4,
    },
)
tuned = sparkdl.tune(settings, dataset=dataset)
print(f"best of {len(tuned.trials)} trials: {tuned.best[0].values}")
