"""A plan for real ranks on Spark."""

import pytest

from sparkdl import Cluster, Train, main, plan_training
from sparkdl.errors import ConfigError
from sparkdl.planning.links import Links
from sparkdl.planning.plan_training import _elsewhere


def test_the_command_measures_ranks_on_spark_and_draws_what_it_predicts(spark, clouds, tmp_path, capsys):
    (tmp_path / "conf.yaml").write_text(f"train: {{dataset: {clouds.path}, model: mlp, batch_size: 8}}")
    arguments = ["train.strategy={kind: local_sgd, period: 3}", "--picture", f"{tmp_path}/plans/picture.png"]
    with pytest.raises(SystemExit) as ending:
        main(["plan-training", f"{tmp_path}/conf.yaml", *arguments])
    assert ending.value.code == 0
    printed = capsys.readouterr().out
    assert printed.startswith("between 2 ranks: ")
    assert "local_sgd, every 3 steps" in printed and "ist, every 80 steps" in printed
    assert "on 2 ranks, allreduce is fastest in topology" in printed
    layouts = printed[printed.index("the same ranks in each layout") :]
    assert all(f"\n{each} " in layouts for each in ("{data: 2}", "{data: 1, tensor: 2}", "{data: 1, pipeline: 2}"))
    assert "of the layouts that fit, {data: " in layouts
    assert (tmp_path / "plans" / "picture.png").stat().st_size > 10_000


def test_a_cluster_that_is_not_here_is_planned_from_what_two_ranks_measure(spark, clouds):
    cluster, elsewhere = Cluster(num_ranks=2, backend="torch"), {"ranks": 16, "hosts": 4, "bandwidth": 1.25e8}
    plan = plan_training(clouds, Train(model="mlp", batch_size=8), cluster=cluster, spark=spark, **elsewhere)
    said = str(plan)
    assert said.startswith("between 2 ranks: ")
    assert "predicted for 16 ranks on 4 hosts, between which 1,000 Mbit/s are assumed" in said
    assert "{data: 4, tensor: 4}" in said and "{data: 16}, shard: all" in said
    assert plan.links.inside == plan.link and plan.links.between.bandwidth == 1.25e8
    with pytest.raises(ConfigError, match=r"would be on 8 hosts.*give its bandwidth"):
        _elsewhere(Links.of_one_host(plan.link, ranks=2), ranks=16, hosts=None, bandwidth=None)


@pytest.mark.parametrize(
    ("elsewhere", "message"),
    [
        ({"hosts": 2}, "give its ranks, too"),
        ({"ranks": 1}, "a single rank exchanges nothing"),
        ({"ranks": 4, "hosts": 5}, "4 ranks are on 1 to 4 hosts"),
        ({"ranks": 4, "hosts": 2, "bandwidth": -1.0}, "give a positive number"),
    ],
)
def test_a_cluster_that_cannot_be_is_an_error_before_a_rank_starts(clouds, elsewhere, message):
    with pytest.raises(ConfigError, match=message):
        plan_training(clouds, Train(), cluster=Cluster(num_ranks=2), **elsewhere)


def test_a_single_rank_has_nothing_to_plan(clouds):
    with pytest.raises(ConfigError, match=r"set cluster\.num_ranks to 2 or more"):
        plan_training(clouds, Train(), cluster=Cluster(num_ranks=1))


def test_a_layout_is_chosen_afterwards(clouds):
    with pytest.raises(ConfigError, match=r"set cluster\.num_ranks to 4 in place of cluster\.layout"):
        plan_training(clouds, Train(), cluster=Cluster(layout={"data": 2, "tensor": 2}))
