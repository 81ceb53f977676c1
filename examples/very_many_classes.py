"""Very many classes: 100 classes, distinguished by four small networks of 16 outputs each, trained in Spark tasks."""

import sparkdl

spark = sparkdl.get_session()
texts = [(f"word{number} noise{copy}", f"class {number}") for number in range(100) for copy in range(10)]
rows = spark.createDataFrame(texts, "text string, label string")
preparation = sparkdl.Prepare(
    output="output/words",
    features=["text"],
    stages=[sparkdl.Stage(kind="count_text", columns=["text"])],
    sparse=True,
    split=sparkdl.Split(fractions={"test": 0.2}),
)
dataset = sparkdl.prepare(rows, preparation)
print(sparkdl.plan_extreme(100, num_features=110, num_buckets=16, repetitions=4, rows=800))
settings = sparkdl.Extreme(buckets=16, repetitions=4, repetitions_per_task=2, hidden=[32], epochs=10, batch_size=32)
trained = sparkdl.train_extreme(dataset, settings)
print(f"precision at 1: {trained.evaluations['test'].precision[0]:.2f}")
