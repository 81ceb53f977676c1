"""Rank the results of queries: relevance learned within groups of rows, and results put in their order."""

import random

import sparkdl

spark = sparkdl.get_session()
random.seed(0)
results = []
for query in range(200):
    for _ in range(6):
        clicks, age = random.random(), random.random()
        results.append((query, clicks, age, round(3 * clicks * (1 - age))))
rows = spark.createDataFrame(results, "query int, clicks double, age double, relevance int")
ranker = sparkdl.TorchRanker(
    featuresCol=["clicks", "age"], labelCol="relevance", qidCol="query", epochs=10, batch_size=16, learning_rate=0.01
)
model = ranker.fit(rows)
print(f"NDCG at 10 of held-out queries: {model.trainingSummary.metrics['validation_ndcg_at_10']:.2f}")
model.transform(rows).where("query = 0").orderBy("prediction", ascending=False).show()
