"""Recommend items: users and items as ids, each with a vector in a table, and a network of two towers."""

import random

import sparkdl

spark = sparkdl.get_session()
random.seed(0)
pairs = [(random.randrange(40), random.randrange(60)) for _ in range(4000)]
clicks = [(user, item, int(user % 4 == item % 4)) for user, item in pairs]  # a user likes items of the same remainder
rows = spark.createDataFrame(clicks, "user int, item int, clicked int")
ids = {name: {"column": name, "kind": "ids"} for name in ("user", "item")}
split = sparkdl.Split(fractions={"validation": 0.1, "test": 0.1})
preparation = sparkdl.Prepare(output="output/clicks", label="clicked", inputs=ids, split=split)
dataset = sparkdl.prepare(rows, preparation)
towers = {"user": ["user"], "item": ["item"], "width": 8, "hidden": [16], "sparse": True}
settings = sparkdl.Train(
    model="two_towers", model_options=towers, optimizer="sparse_adam", learning_rate=0.05, epochs=12, batch_size=32
)
trained = sparkdl.train(dataset, settings)
print(f"test accuracy {trained.metrics['test_accuracy']:.2f}")
