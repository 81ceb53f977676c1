"""Settings that cannot be meant."""

import copy
import pickle
from collections.abc import Callable
from typing import Any, Literal

import pytest
from pydantic import Field

from sparkdl.errors import ConfigError
from sparkdl.settings import Cluster, Extreme, Prepare, Section, Settings, Split, TimeSplit, Tracking, Train
from sparkdl.settings.describe import describe
from sparkdl.settings.explain import find_field
from sparkdl.settings.kinds import OneKind
from sparkdl.settings.section import Positive


class Bus(Section):
    """Leaves on time."""

    kind: Literal["bus"] = "bus"
    line: str = "10"
    """Its number."""


class Bicycle(Section):
    """Leaves when you do."""

    kind: Literal["bicycle"] = "bicycle"
    gears: Positive = 3


class Journey(Section):
    """Where the tests go."""

    by: OneKind[Bus | Bicycle] = Bus()
    """The vehicle."""
    then: list[OneKind[Bus | Bicycle]] = Field(default_factory=list)


def texts(**words: Any) -> dict[str, Any]:
    """Texts in blocks, for language modelling."""
    of_words = {"column": "text", "kind": "tokens", "vocabulary": 300, "block_length": 8} | words
    return {"output": "d", "task": "language_modelling", "inputs": {"words": of_words}}


TEXTS = texts()


@pytest.mark.parametrize(
    ("section", "values", "says"),
    [
        (Prepare, {"output": "d", "features": ["age", "label"]}, "names the label 'label'; a model would only copy it"),
        (Prepare, {"output": "d", "features": ["age", "fare", "age"]}, "names a column twice"),
        (Prepare, {"output": "d", "class_names": {0: "cat", 1: "cat"}}, "two classes the same name"),
        (Prepare, {"output": "d", "class_names": {0: "cat"}, "sparse": True}, "`class_names` are for plots"),
        (
            Prepare,
            {"output": "d", "task": "language_modelling"},
            "needs exactly one of `inputs`, `tokens` with a `block_",
        ),
        (Prepare, TEXTS | {"label": "text"}, "learns only from the texts.*; leave out `label`"),
        (
            Prepare,
            TEXTS | {"weight": "w", "class_names": {0: "a"}, "split": {"stratify": True, "fractions": {"test": 0.5}}},
            "leave out `weight` and `class_names` and `split.stratify`",
        ),
        (Prepare, TEXTS | {"qid": "q"}, "cannot be combined with `qid`"),
        (Prepare, TEXTS | {"task": "classification"}, "inputs.words.block_length` is for `task: language_modelling`"),
        (Prepare, texts(max_length=9), "with `block_length`, texts may have any length; leave out `max_length`"),
        (Prepare, texts(block_length=None), "needs exactly one of `inputs`, `tokens` with a `block_length`"),
        (Prepare, texts(block_length=1), "greater than or equal to 2"),
        (
            Prepare,
            TEXTS | {"inputs": TEXTS["inputs"] | {"more": {"column": "other"}}},
            "needs exactly one of `inputs`, `tokens` with a `block_length`",
        ),
        (Prepare, {"output": "d", "task": "ranking"}, "`qid` and `task: ranking` go together"),
        (Prepare, {"output": "d", "qid": "query", "sparse": True}, "`qid` and `task: ranking` go together"),
        (
            Prepare,
            {"output": "d", "task": "ranking", "qid": "q", "image": "i"},
            "ranking needs `features`, and does not support an `image`",
        ),
        (
            Prepare,
            {"output": "d", "task": "ranking", "qid": "q", "weight": "q"},
            "which is the label, the weight or one of",
        ),
        (Prepare, {"output": "d", "task": "ranking", "qid": "q", "class_names": {0: "cat"}}, "but ranking has none"),
        (Split, {"fractions": {"train": 0.2}}, "`train` is not among the fractions"),
        (Split, {"stratify": True, "group": ["id"]}, "either `stratify` or `group`"),
        (Split, {"stratify": True, "column": "part"}, "`stratify` is about how `fractions` are drawn"),
        (Split, {"group": ["id"], "fractions": {}}, "`group` is about how `fractions` are drawn"),
        (Split, {"group": ["id", "id"]}, "names a column twice"),
        (Split, {"column": "part", "time": {"column": "at", "test_from": 3}}, "either `column` or `time`"),
        (Split, {"fractions": {"test": 0.1}, "time": {"column": "at", "test_from": 3}}, "a split that `time` makes"),
        (Split, {"time": {"column": "at", "test_from": "tomorrow"}}, "as ISO 8601 writes it"),
        (Split, {"time": {"column": "at", "test_from": True}}, "as ISO 8601 writes it"),
        (TimeSplit, {"column": "at", "test_from": 3, "validation_from": 3}, "must be before `test_from`"),
        (TimeSplit, {"column": "at", "test_from": 3, "validation_from": "2024-01-01"}, "are of two kinds"),
        (Prepare, {"output": "d", "split": {"group": ["label"]}}, "`split` names the label 'label'"),
        (Prepare, {"output": "d", "task": "multi_label", "split": {"stratify": True}}, "no class for each row"),
        (Prepare, {"output": "d", "sparse": True, "split": {"stratify": True}}, "no class for each row"),
        (Train, {"seed": 2**64}, "less than"),
        (Train, {"strategy": "hogwild"}, "set optimizer to sgd without momentum"),
        (
            Train,
            {"strategy": "hogwild", "optimizer": "sgd", "optimizer_options": {"momentum": 0.9}},
            "moments of a rank's optimizer would ignore the steps of other ranks",
        ),
        (Train, {"strategy": "sandblaster", "optimizer": "sgd"}, "chooses direction and step size itself"),
        (
            Train,
            {"strategy": {"kind": "hogwild", "topology": "two_levels"}, "optimizer": "sgd"},
            "only one rank of each host exchanges weights",
        ),
        (
            Train,
            {"strategy": "local_sgd", "gradient_noise": "fisher_trace"},
            "with strategy local_sgd, ranks use other gradients, which have more noise anyway",
        ),
        (
            Train,
            {"strategy": {"kind": "allreduce", "compression": "qsgd"}, "gradient_noise": "fisher_diagonal"},
            "only without compression; set strategy.compression to null",
        ),
        (
            Train,
            {"strategy": {"kind": "allreduce", "measure_noise": True}, "gradient_noise": "fisher_diagonal"},
            "would also measure the noise of gradient_noise",
        ),
        (Train, {"learning_rate": float("inf")}, "finite number"),
        (Train, {"warmup_epochs": float("inf")}, "finite number"),
    ],
)
def test_what_cannot_be_meant_is_an_error(section: type[Section], values: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        section.model_validate(values)


def test_a_class_is_named_by_its_label_whether_that_is_a_number_or_text() -> None:
    assert Prepare(output="d", class_names={0: "cat", "b": "dog"}).class_names == {"0": "cat", "b": "dog"}  # type: ignore[dict-item]


def test_a_limit_of_time_may_be_infinite() -> None:
    assert Cluster(stall_timeout=float("inf")).stall_timeout == float("inf")


def test_what_was_always_possible_still_is() -> None:
    assert Prepare(output="d", seed=-1).seed == -1
    assert not Tracking(register_as="").register_as


@pytest.mark.parametrize("said", ["bicycle", {"kind": "bicycle"}, {"kind": "bicycle", "gears": 3}, Bicycle()])
def test_a_bare_name_stands_for_its_kind_with_the_defaults(said: Any) -> None:
    assert Journey(by=said, then=[said]) == Journey(by=Bicycle(), then=[Bicycle()])


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"by": {"kind": "bicycle", "gear": 7}}, "unknown key 'by.gear'; did you mean 'by.gears'?"),
        ({"by": {"kind": "bus", "gears": 7}}, "unknown key 'by.gears'; known here: kind, line"),
        ({"then": ["bus", {"kind": "bus", "lin": "1"}]}, "unknown key 'then.1.lin'; did you mean 'then.1.line'?"),
        ({"by": {"kind": "bicycle", "gears": 0}}, "by.gears: input should be greater than 0 (got 0)"),
        ({"by": "bycicle"}, "by: unknown kind 'bycicle'; did you mean 'bicycle'?"),
        ({"by": "by foot"}, "by: unknown kind; known here: bus, bicycle"),
        ({"by": {"gears": 7}}, "the key 'by.kind' is missing; known here: bus, bicycle"),
        ({"by": 7}, "by: this must be the name of a kind, or a mapping with the key `kind` (got 7)"),
    ],
)
def test_a_mistake_in_a_section_of_several_kinds_is_answered_for_that_kind(said: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Journey.model_validate(said)
    assert str(caught.value) == f"Journey: {says}"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Train(epochs=0), "Train: epochs: input should be greater than 0 (got 0)"),
        (lambda: Train(epoch=3), "Train: unknown key 'epoch'; did you mean 'epochs'?"),  # type: ignore[call-arg]
        (lambda: Train(strategy="localsgd"), "Train: strategy: unknown kind 'localsgd'; did you mean 'local_sgd'?"),
        (
            lambda: Train(strategy={"kind": "local_sgd", "period": 0}),
            "Train: strategy.period: input should be greater than 0 (got 0)",
        ),
        (
            lambda: Train(schedule="Cosin"),  # type: ignore[arg-type]
            "Train: schedule: input should be 'constant', 'cosine', 'linear' or 'step' (got 'Cosin'); did you mean"
            " 'cosine'?",
        ),
        (lambda: Train(loss=3), "Train: loss: input should be a valid string or callable (got 3)"),  # type: ignore[arg-type]
        (lambda: Train(target=3), "Train: target: this must be a mapping of keys to values (got 3)"),  # type: ignore[arg-type]
        (
            lambda: Train(target={"metrics": "validation_loss", "value": 1}),  # type: ignore[arg-type]
            "Train: unknown key 'target.metrics'; did you mean 'target.metric'?",
        ),
        (
            lambda: Train(epochs=0, batchsize=8),  # type: ignore[call-arg]
            "Train: epochs: input should be greater than 0 (got 0); unknown key 'batchsize'; did you mean"
            " 'batch_size'?",
        ),
        (lambda: Cluster(num_ranks=0), "Cluster: num_ranks: input should be greater than 0 (got 0)"),
        (
            lambda: Cluster(num_ranks={"min": 0, "max": 2}),  # type: ignore[arg-type]
            "Cluster: num_ranks.min: input should be greater than 0 (got 0)",
        ),
        (
            lambda: Cluster(num_ranks=3, layout={"data": 2, "tensor": 2}),  # type: ignore[arg-type]
            "Cluster: layout has 2 x 2 = 4 ranks, but num_ranks is 3; leave num_ranks out",
        ),
        (
            lambda: Cluster(layout={"data": 2, "plan": {"0": "colwise"}}),  # type: ignore[arg-type]
            "Cluster: layout: plan lists the layers that tensor parallelism cuts, but tensor is 1; set it to 2 or"
            " more, or leave plan out",
        ),
        (
            lambda: Cluster(num_ranks="two"),  # type: ignore[arg-type]
            "Cluster: num_ranks: input should be a valid integer, unable to parse string as an integer (got 'two')",
        ),
        (
            lambda: Cluster(options={"spark.executor.cores": [1]}),  # type: ignore[dict-item]
            "Cluster: options.spark.executor.cores: input should be a valid string or a valid integer or a valid number"
            " or a valid boolean",
        ),
        (lambda: Prepare(), "Prepare: the key 'output' is missing"),  # type: ignore[call-arg]
        (
            lambda: Settings(train={"epochs": 0}),  # type: ignore[arg-type]
            "Settings: train.epochs: input should be greater than 0 (got 0)",
        ),
        (
            lambda: Train().model_copy(update={"epochs": 0}),
            "Train: epochs: input should be greater than 0 (got 0)",
        ),
        (
            lambda: Train.model_validate_json('{"epoch": 0}'),
            "Train: unknown key 'epoch'; did you mean 'epochs'?",
        ),
        (
            lambda: setattr(Train(), "epochs", 3),
            "Train: settings do not change once they are made; make others: settings.model_copy(update={'epochs':"
            " ...})",
        ),
    ],
)
def test_a_setting_that_cannot_be_is_told_in_one_line_however_it_is_made(make: Callable[[], object], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert str(caught.value) == says
    assert isinstance(caught.value, ValueError)


def test_a_copy_keeps_what_was_set_and_what_was_not() -> None:
    settings = Train(strategy="downpour", loss=len)
    longer = settings.model_copy(update={"epochs": 3})
    assert (longer.epochs, longer.loss, longer.strategy) == (3, len, settings.strategy)
    assert longer.model_fields_set == {"strategy", "loss", "epochs"}
    assert pickle.loads(pickle.dumps(longer)) == copy.deepcopy(longer) == copy.copy(longer) == longer


def test_a_section_of_several_kinds_is_described_kind_by_kind() -> None:
    assert list(describe(Journey, "trip")) == [
        "trip.by = bus  [bus | bicycle]",
        "    The vehicle.",
        "trip.by.kind = bus",
        "    Leaves on time.",
        "trip.by.line = '10'  [text]",
        "    Its number.",
        "trip.by.kind = bicycle",
        "    Leaves when you do.",
        "trip.by.gears = 3  [whole number]",
        "trip.then = []  [list of bus or bicycle]",
        "trip.then.0.kind = bus",
        "    Leaves on time.",
        "trip.then.0.line = '10'  [text]",
        "    Its number.",
        "trip.then.0.kind = bicycle",
        "    Leaves when you do.",
        "trip.then.0.gears = 3  [whole number]",
    ]


def test_a_key_of_any_kind_is_found_and_others_are_named() -> None:
    assert find_field("by.gears", Journey) is Bicycle.model_fields["gears"]
    assert find_field("then.0.line", Journey) is Bus.model_fields["line"]
    assert find_field("then.0", Journey) is Journey.model_fields["then"]
    for key, says in {
        "by.gear": "did you mean 'by.gears'",
        "buy.line": "did you mean 'by'",
        "by.line.line": "known",
    }.items():
        with pytest.raises(ConfigError, match=says):
            find_field(key, Journey)


@pytest.mark.parametrize(
    ("source", "given", "expected"),
    [
        ({"format": "xc", "path": {"train": "a", "test": "b"}}, None, ("split", {})),
        ({"format": "xc", "path": {"train": "a"}}, {"fractions": {"test": 0.2}}, ("split", {"test": 0.2})),
        ({"format": "xc", "path": {"train": "a"}}, {"column": "part"}, ("part", {})),
        ({"format": "xc", "path": {"train": "a"}}, Split(column="part"), ("part", {})),
        ({"format": "dictionary", "path": "a"}, None, ("split", {})),
        ({"format": "xc", "path": "a"}, None, (None, {"validation": 0.1, "test": 0.1})),
    ],
)
def test_a_source_that_brings_splits_need_not_be_told_so(
    source: dict[str, Any], given: Any, expected: tuple[str | None, dict[str, float]]
) -> None:
    settings = Prepare.model_validate({"output": "x", "source": source} | ({"split": given} if given else {}))
    assert (settings.split.column, settings.split.fractions) == expected


def test_a_bucket_for_each_class_leaves_nothing_to_cluster() -> None:
    with pytest.raises(ConfigError, match="nothing to cluster: set `hashing: random`"):
        Extreme(hash_family="identity")
    assert Extreme(hash_family="identity", hashing="random").buckets == 512


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ({"kind": "index", "parts": ["year"]}, "`parts` and `since` are for the stage `date`, but this one is `index`"),
        ({"kind": "date", "since": "2020-01-01"}, "`since` is only for the part `age`; add `age` to `parts`"),
        ({"kind": "date", "parts": ["year", "year"]}, "`parts` names a part twice"),
    ],
)
def test_what_is_said_of_a_date_goes_together(stage: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Prepare(output="x", stages=[{"columns": ["born"], **stage}])  # type: ignore[list-item]


def test_a_stage_says_nothing_of_dates_where_nothing_was_said() -> None:
    written = Prepare(output="x", stages=[{"kind": "index", "columns": ["a"]}]).model_dump(mode="json")  # type: ignore[list-item]
    assert not {"parts", "since"} & written["stages"][0].keys()  # as in datasets from before


def test_hashes_beyond_what_float32_holds_are_for_ids_alone() -> None:
    def prepared(**inputs: Any) -> Prepare:
        stage = {"kind": "hash", "columns": ["user"], "vocabulary": (1 << 24) + 1}
        own = {name: {"column": "user", "stages": [stage], **each} for name, each in inputs.items()}
        return Prepare.model_validate({"output": "x", **({"inputs": own} if own else {"stages": [stage]})})

    assert prepared(user={"kind": "ids"}).inputs["user"].stages[0].vocabulary == (1 << 24) + 1
    with pytest.raises(ValueError, match=r"numbers beyond 2\^24, which only `kind: ids` keeps exactly"):
        prepared(user={"kind": "vector"})
    with pytest.raises(ValueError, match=r"numbers beyond 2\^24, which float32 does not keep exactly"):
        prepared()


def test_an_ensemble_is_no_teacher_of_another_one_and_the_reason_is_told():
    with pytest.raises(ConfigError, match=r"extreme.*were no better than those that learn from labels alone"):
        Settings.model_validate({"extreme": {"teacher": {"model": "models:/large/1"}}})
