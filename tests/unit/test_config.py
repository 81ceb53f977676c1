"""One YAML file becomes validated settings."""

import traceback
from pathlib import Path

import pytest

from sparkdl.config import import_object, load_settings
from sparkdl.errors import ConfigError
from sparkdl.settings import Settings

EXAMPLES = sorted((Path(__file__).parents[2] / "conf").glob("*.yaml"))


@pytest.fixture
def write(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "pipeline.yaml"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_valid(path):
    assert isinstance(load_settings(path), Settings)


def test_an_empty_file_means_the_defaults(write):
    assert load_settings(write("")) == Settings()


def test_any_key_can_be_set_on_the_command_line(write):
    path = write("train: {epochs: 1}\nprepare: {output: out, stages: [{kind: index, columns: [a]}]}")
    settings = load_settings(path, ["train.epochs=3", "cluster.num_ranks=4", "prepare.stages.0.columns=[a, b]"])
    assert settings.train.epochs == 3
    assert settings.cluster.num_ranks == 4
    assert settings.prepare is not None and settings.prepare.stages[0].columns == ["a", "b"]


def test_a_key_can_be_set_below_a_kind_that_the_file_only_names(write):
    path = write("train: {strategy: allreduce}")
    assert load_settings(path, ["train.strategy.kind=allreduce"]) == load_settings(path) == Settings()


def test_a_number_with_an_exponent_is_a_number(write):
    path = write("train: {optimizer_options: {eps: 1e-8, momentum: 9E-1, name: e5}}")
    settings = load_settings(path, ["train.model_options.dropout=1e-1"])
    assert settings.train.optimizer_options == {"eps": 1e-8, "momentum": 0.9, "name": "e5"}
    assert settings.train.model_options == {"dropout": 0.1}


def test_a_spark_setting_is_set_by_its_own_name(write):
    path = write("cluster: {options: {spark.driver.memory: 1g, spark.ui.enabled: false}}")
    settings = load_settings(path, ["cluster.options.spark.driver.memory=4g"])
    assert settings.cluster.options == {"spark.driver.memory": "4g", "spark.ui.enabled": False}


def test_what_is_merged_in_can_be_overridden(write):
    text = "train: {epochs: 1, model_options: &a {b: 1}, optimizer_options: {<<: *a, b: 2}}"
    assert load_settings(write(text)).train.optimizer_options == {"b": 2}


def test_several_mappings_may_be_merged_in(write):
    text = "train: &a {epochs: 3}\nscore: {}\nextreme:\n  <<: *a\n  <<: {batch_size: 9}\n"
    extreme = load_settings(write(text)).extreme
    assert (extreme.epochs, extreme.batch_size) == (3, 9)


def test_a_file_is_read_as_utf_8(write):
    path = write("")
    path.write_bytes("tracking: {experiment: Grüße}".encode())
    assert load_settings(path).tracking.experiment == "Grüße"
    path.write_bytes("train: {epochs: 1}\ntracking: {experiment: Grüße}".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"pipeline\.yaml is not UTF-8 in line 2"):
        load_settings(path)


def test_plain_paths_become_absolute_and_uris_stay(write):
    settings = load_settings(write("train: {run_dir: runs, dataset: 's3://bucket/data'}"))
    assert settings.train.run_dir == str(Path("runs").absolute())
    assert settings.train.dataset == "s3://bucket/data"


@pytest.mark.parametrize(
    ("text", "overrides", "says"),
    [
        ("train: {epoch: 3}", [], ["pipeline.yaml", "train.epoch", "did you mean 'train.epochs'"]),
        ("training: {epochs: 3}", [], ["'training'", "did you mean 'train'"]),
        ("cluster: {num_ranks: {min: 1, maxx: 3}}", [], ["'cluster.num_ranks.maxx'", "'cluster.num_ranks.max'"]),
        ("tracking: {gate: {minimun: 1}}", [], ["tracking.gate.minimun", "tracking.gate.minimum"]),
        ("prepare: {output: x, stages: [{kind: index, column: [a]}]}", [], ["prepare.stages.0.column", "columns"]),
        ("train: {zzz: 3}", [], ["'train.zzz'", "known here", "epochs"]),
        ("train: {strategy: all_reduce}", [], ["train.strategy", "'all_reduce'", "did you mean 'allreduce'"]),
        ("train: {strategy: allreduce}", ["train.strategy.knd=1"], ["'train.strategy.knd'", "'train.strategy.kind'"]),
        ("train: {epochs: 2, strategy: {kind: ist, allreduce_last: 2}}", [], ["2 epochs of 2", "never train sub-"]),
        ("train: {strategy: {kind: ist, layers: []}}", [], ["train.strategy.layers", "at least 1 item"]),
        (
            "train: {strategy: {kind: allreduce, compression: powersdg}}",
            [],
            ["train.strategy.compression", "'powersdg'", "did you mean 'powersgd'"],
        ),
        (
            "train: {strategy: {kind: allreduce, compression: {kind: topk, rato: 0.1}}}",
            [],
            ["'train.strategy.compression.rato'", "did you mean 'train.strategy.compression.ratio'"],
        ),
        (
            "train: {strategy: {kind: allreduce, compression: powersgd}}",
            ["train.strategy.compression.rank=0"],
            ["train.strategy.compression.rank", "greater than 0"],
        ),
        (
            "train: {strategy: {kind: local_sgd, compression: powersgd}}",
            [],
            ["unknown key 'train.strategy.compression'"],
        ),
        (
            "train: {strategy: {kind: allreduce, topology: star}}",
            [],
            ["train.strategy.topology", "'ring', 'butterfly', 'server'"],
        ),
        (
            "train: {strategy: {kind: allreduce, compression: qsgd, measure_noise: true}}",
            [],
            ["measure_noise compares gradients with their mean", "set compression to null"],
        ),
        (
            "train: {strategy: {kind: allreduce, compression: qsgd, topology: butterfly}}",
            [],
            [
                "train.strategy",
                "compression qsgd cannot be added up on the way",
                "ring or two_levels or sharded_servers",
            ],
        ),
        (
            "train: {optimizer: sgd, strategy: {kind: allreduce, compression: topk}}",
            ["train.optimizer_options.momentum=0.9"],
            ["strategy.compression topk", "momentum would apply it again", "sgd without momentum"],
        ),
        (
            "train: {strategy: {kind: allreduce, compression: demo}}",
            [],
            ["demo", "set optimizer to sgd without momentum"],
        ),
        (
            "train: {strategy: {kind: diloco, compression: demo}}",
            [],
            ["compression demo includes SGD's momentum", "powersgd or int8"],
        ),
        (
            "train: {optimizer: adam, strategy: downpour}",
            [],
            ["strategy downpour", "servers step by strategy.rule, not by adam", "rule: adagrad}"],
        ),
        (
            "train: {strategy: {kind: downpour, rule: adam}}",
            [],
            ["train.strategy.rule", "'adagrad', 'sgd' or 'dynsgd'"],
        ),
        ("train: {precision: float16, strategy: async_easgd}", [], ["async_easgd", "bfloat16 or float32"]),
        (
            "train: {precision: float16, strategy: {kind: allreduce, compression: int8}}",
            [],
            ["strategy.compression int8", "scale would differ", "bfloat16 or float32"],
        ),
        (
            "train: {epochs: 3, strategy: {kind: ist, sharded: true, allreduce_last: 1}}",
            [],
            ["with sharded, no rank has the whole network", "leave layers, allreduce_first and allreduce_last out"],
        ),
        (
            "train: {start_from: 'models:/m/1', strategy: {kind: ist, sharded: true}}",
            [],
            ["start_from needs a rank that has the whole network", "set strategy.sharded to false"],
        ),
        (
            "train: {precision: float16, strategy: {kind: ist, sharded: true}}",
            [],
            ["strategy.sharded computes in bfloat16 or float32"],
        ),
        (
            "train: {strategy: {kind: allreduce, shard: all, compression: int8}}",
            [],
            ["with shard, each rank gets only its shard", "leave compression out, or set shard to null"],
        ),
        (
            "train: {strategy: {kind: allreduce, shard: optimizer, topology: server}}",
            [],
            ["leave topology out, or set shard to null"],
        ),
        ("train: {strategy: {kind: allreduce, shard: weights}}", [], ["train.strategy.shard", "'optimizer' or 'all'"]),
        (
            "train: {compile: true, strategy: {kind: allreduce, shard: all}}",
            [],
            ["shards are gathered layer by layer", "leave compile out, or set strategy.shard to null"],
        ),
        (
            "train: {start_from: 'models:/m/1', strategy: {kind: allreduce, shard: all}}",
            [],
            ["start_from needs a rank that has the whole network", "set strategy.shard to null"],
        ),
        ("train: {epochs: many}", [], ["train.epochs", "integer", "'many'"]),
        ("train: {epochs: 0}", [], ["train.epochs", "greater than 0"]),
        ("train: {precision: int8}", [], ["train.precision", "'float32', 'bfloat16' or 'float16'"]),
        ("prepare: {label: y}", [], ["'prepare.output' is missing"]),
        ("prepare: {output: x, split: {fractions: {test: 0.6, validation: 0.5}}}", [], ["add up to 1.1"]),
        ("prepare: {output: x, image: a, features: [b]}", [], ["either `image` or `features`"]),
        ("prepare: {output: x, image: a, sparse: true}", [], ["`sparse` and `unit_norm` are for `features`"]),
        ("prepare: {output: x, source: {format: csv, path: {train: a}}}", [], ["is for the formats `images` and `xc`"]),
        (
            "prepare: {output: x, source: {format: parqet, path: a}}",
            [],
            ["prepare.source.format: 'parqet'", "did you mean 'parquet'?", "on the command line"],
        ),
        (
            "score: {source: {format: com.stranger.Source}}",
            [],
            ["score.source.format", "'com.stranger.Source' is not among the formats that a file may name"],
        ),
        ("score: {format: com.stranger.Source}", [], ["score.format: 'com.stranger.Source'"]),
        ("prepare: {output: x, source: {format: csv}}", [], ["`path` is missing: csv is read from somewhere"]),
        ("prepare: {output: x}", ["prepare.source.format=a/b"], ["prepare.source.format", "the name of a format"]),
        ("score: {mode: append}", [], ["a failure would leave incomplete files of parquet"]),
        ("score: {mode: merge, format: delta}", [], ["`mode: merge` needs `key`"]),
        ("score: {stream: true}", [], ["`stream: true` needs `checkpoint`"]),
        ("score: {stream: true, checkpoint: /a, output: /a}", [], ["are the same folder"]),
        ("score: {stream: true, checkpoint: /a, split: test}", [], ["a stream has new rows; leave it out"]),
        ("score: {checkpoint: /a}", [], ["are for `stream: true`"]),
        ("score: {stream: true, checkpoint: /a, interval: 0}", [], ["score.interval", "greater than 0"]),
        ("prepare: {output: x, image: a, stages: [{kind: index, columns: [b]}]}", [], ["inside the network"]),
        ("tracking: {register_as: a/b}", [], ["tracking.register_as", "'a/b'", "without '/' and ':'"]),
        ("tracking: {register_as: ' '}", [], ["tracking.register_as"]),
        ("tracking: {alias: Latest}", [], ["tracking.alias", "'Latest' is reserved by MLflow"]),
        ("tracking: {alias: v1}", [], ["tracking.alias", "'v1' is reserved by MLflow"]),
        ("tracking: {alias: the best}", [], ["tracking.alias", "'the best'", "letters, digits"]),
        ("tracking: {gate: {minimum: 0.9, maximum: 0.1}}", [], ["tracking.gate", "`minimum`", "`maximum`, not both"]),
        ("tracking: {gate: {minimum: .nan}}", [], ["tracking.gate.minimum", "finite"]),
        ("train: {epochs: 5}\ntrain: {batch_size: 8}", [], ["pipeline.yaml", "'train' is given twice", "line 2"]),
        ("", ["train.model_options={hidden: [1], hidden: [2]}"], ["'train.model_options'", "'hidden' is given twice"]),
        ("[1, 2]", [], ["must hold sections"]),
        ("train: {epochs: 3", [], ["not valid YAML"]),
        ("", ["train.epochs"], ["'train.epochs'", "section.key=value"]),
        ("train: {epochs: 1}", ["train.epochs.deep=1"], ["'train.epochs.deep'", "not a section"]),
        ("train: {epochs: 1}", ["train.epochs.very.deep=1"], ["reaches into a value"]),
        ("", ["train.epochs=[1"], ["cannot read the value"]),
        ("prepare: {output: x, stages: []}", ["prepare.stages.0.kind=index"], ["prepare.stages.0.kind", "position"]),
    ],
)
def test_a_mistake_names_the_file_the_key_and_what_would_be_right(write, text, overrides, says):
    with pytest.raises(ConfigError) as caught:
        load_settings(write(text), overrides)
    for part in says:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("tracking: {uri: ['http://me:hunter2@host']}", []),
        ("cluster: {options: {fs.s3a.secret.key: [hunter2]}}", []),
        ("cluster:\n  options:\n    token: 'hunter2\n", []),
        ("cluster: {options: [fs.s3a.secret.key=hunter2]}", []),
        ("", ["cluster.options.db_password=[hunter2"]),
        ("", ["cluster.options={fs.s3a.secret.key: hunter2"]),
        ("", ["cluster.options=fs.s3a.secret.key=hunter2"]),
        ("", ["cluster.options.fs.s3a.secret.key: hunter2"]),
        ("", ["tracking.uri.password=http://me:hunter2@host"]),
    ],
)
def test_a_mistake_in_a_secret_does_not_show_it(write, text, overrides):
    with pytest.raises(ConfigError) as caught:
        load_settings(write(text), overrides)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_all_mistakes_are_told_at_once(write):
    with pytest.raises(ConfigError) as caught:
        load_settings(write("train: {epoch: 3, batch_size: 0}"))
    assert "train.epoch" in str(caught.value) and "train.batch_size" in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.yaml"):
        load_settings(tmp_path / "absent.yaml")


def test_settings_cannot_change_after_validation():
    with pytest.raises(ConfigError, match="settings do not change"):
        Settings().train.epochs = 3


def test_a_configuration_cannot_run_code(write, tmp_path):
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_settings(write(f"train: !!python/object/apply:os.mkdir ['{tmp_path / 'made'}']"))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("adamm", "did you mean 'adam'"),
        ("no_such_package.module:Name", "cannot import 'no_such_package.module'"),
        ("torch.optim:NoSuchName", "'torch.optim' has no 'NoSuchName'"),
    ],
)
def test_an_import_path_that_leads_nowhere_says_where_it_ended(path, says):
    with pytest.raises(ConfigError, match=r"train\.optimizer") as caught:
        import_object(path, key="train.optimizer", names=["sgd", "adam"])
    assert says in str(caught.value)
