"""A plan for real ranks on Spark."""

import pytest

from sparkdl import Cluster, Train, main, plan_training
from sparkdl.errors import ConfigError


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


def test_a_single_rank_has_nothing_to_plan(clouds):
    with pytest.raises(ConfigError, match=r"set cluster\.num_ranks to 2 or more"):
        plan_training(clouds, Train(), cluster=Cluster(num_ranks=1))


def test_a_layout_is_chosen_afterwards(clouds):
    with pytest.raises(ConfigError, match=r"set cluster\.num_ranks to 4 in place of cluster\.layout"):
        plan_training(clouds, Train(), cluster=Cluster(layout={"data": 2, "tensor": 2}))
