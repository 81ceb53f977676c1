"""Make a registered model lighter: an int8 form of it, measured beside the original, and used for scoring."""

import numpy as np

import sparkdl

spark = sparkdl.get_session()
random = np.random.default_rng(0)
labels = random.integers(0, 4, 2000)
points = random.normal(size=(2000, 16)) + 2 * np.eye(4)[labels].repeat(4, axis=1)
table = list(zip(points.tolist(), labels.tolist(), strict=True))
rows = spark.createDataFrame(table, "point array<double>, label long")
split = sparkdl.Split(fractions={"validation": 0.2})
dataset = sparkdl.prepare(rows, sparkdl.Prepare(output="output/clouds", features=["point"], split=split))
trained = sparkdl.train(
    dataset,
    sparkdl.Train(model="mlp", epochs=2, batch_size=32),
    tracking=sparkdl.Tracking(register_as="clouds"),
)
lighter = sparkdl.compress(trained, sparkdl.Compress(forms=["int8"], calibration_rows=0), dataset=dataset)
for name, form in lighter.forms.items():
    print(f"{name}: {form.bytes:,} bytes, validation accuracy {form.figure:.3f}")
sparkdl.score(rows, lighter, form="int8").show(3)
