"""Exchange less often: the same network with all-reduce after each step, and with local SGD every eight steps."""

from sklearn.datasets import load_breast_cancer

import sparkdl

spark = sparkdl.get_session()
table = load_breast_cancer(as_frame=True).frame
numbers = [name for name in table.columns if name != "target"]
preparation = sparkdl.Prepare(
    output="output/tumours",
    label="target",
    stages=[sparkdl.Stage(kind="standardise", columns=numbers)],
    split=sparkdl.Split(fractions={"validation": 0.2, "test": 0.2}),
)
dataset = sparkdl.prepare(spark.createDataFrame(table), preparation)
for strategy in ({"kind": "allreduce"}, {"kind": "local_sgd", "period": 8}):
    settings = sparkdl.Train(model="mlp", epochs=4, batch_size=8, strategy=strategy)
    trained = sparkdl.train(dataset, settings, cluster=sparkdl.Cluster(num_ranks=2))
    print(f"{strategy['kind']}: test accuracy {trained.metrics['test_accuracy']:.2f}")
