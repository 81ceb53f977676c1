"""Classify the rows of a table: missing values filled, columns standardised, the test accuracy printed."""

from sklearn.datasets import load_wine

import sparkdl

spark = sparkdl.get_session()
table = load_wine(as_frame=True).frame.rename(columns=lambda name: name.replace("/", "_"))
numbers = [name for name in table.columns if name != "target"]
preparation = sparkdl.Prepare(
    output="output/wine",
    label="target",
    stages=[
        sparkdl.Stage(kind="impute", columns=numbers),
        sparkdl.Stage(kind="standardise", columns=numbers),
    ],
    split=sparkdl.Split(fractions={"validation": 0.2, "test": 0.2}),
)
dataset = sparkdl.prepare(spark.createDataFrame(table), preparation)
trained = sparkdl.train(dataset, sparkdl.Train(model="mlp", epochs=10, batch_size=8, learning_rate=0.01))
print(f"test accuracy {trained.metrics['test_accuracy']:.2f}")
