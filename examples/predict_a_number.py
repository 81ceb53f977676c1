"""Predict a number: regression by an estimator of pyspark.ml, and its R2 by an evaluator of pyspark.ml."""

from pyspark.ml.evaluation import RegressionEvaluator
from sklearn.datasets import load_diabetes

import sparkdl

spark = sparkdl.get_session()
table = load_diabetes(as_frame=True).frame
rows, held_out = spark.createDataFrame(table).randomSplit([0.8, 0.2], seed=1)
features = [name for name in table.columns if name != "target"]
regressor = sparkdl.TorchRegressor(featuresCol=features, labelCol="target", epochs=20, learning_rate=0.005)
model = regressor.fit(rows)
r2 = RegressionEvaluator(labelCol="target", metricName="r2").evaluate(model.transform(held_out))
print(f"R2 on held-out rows: {r2:.2f}")
