"""Which strategies work with replicas that several ranks share."""

import pytest

from sparkdl.errors import ConfigError
from sparkdl.settings import RankLayout, Train
from sparkdl.training.checks.shared_replicas import check_shared_replicas
from sparkdl.training.tasks import Classification

TENSOR, PIPELINE, EXPERTS = (RankLayout(data=2, **{axis: 2}) for axis in ("tensor", "pipeline", "experts"))


def check(layout: RankLayout, **strategy: object) -> None:
    settings = Train(strategy=strategy, optimizer="sgd", loss="cross_entropy", epochs=2)
    check_shared_replicas(settings, Classification(3), layout)


@pytest.mark.parametrize("layout", [TENSOR, PIPELINE], ids=["tensor", "pipeline"])
@pytest.mark.parametrize(
    "kind", ["allreduce", "local_sgd", "sparknet", "post_local_sgd", "diloco", "easgd", "deepspark"]
)
def test_what_averages_number_by_number_does_so_with_parts(kind: str, layout: RankLayout) -> None:
    check(layout, kind=kind)


@pytest.mark.parametrize(
    ("layout", "strategy", "reason"),
    [
        (TENSOR, {"kind": "ist"}, "ist deals out the neurons of a whole network"),
        (PIPELINE, {"kind": "ist", "sharded": True}, r"cluster\.layout\.pipeline gives ranks parts of a network, and"),
        (TENSOR, {"kind": "resist"}, "resist deals out the residual blocks of a whole network"),
        (TENSOR, {"kind": "hogwild"}, "hogwild has the ranks of a host step on one copy of the whole network"),
        (PIPELINE, {"kind": "downpour", "rule": "sgd"}, "downpour has parameter servers; change it, or set"),
        (PIPELINE, {"kind": "diloco", "fragments": 2}, r"strategy\.fragments are of all parameters"),
        (TENSOR, {"kind": "diloco", "compression": "int8"}, "compression int8 needs whole layers"),
        (EXPERTS, {"kind": "local_sgd"}, "local_sgd they step alone; set it to allreduce, or set"),
    ],
    ids=lambda each: str(each.get("kind")) if isinstance(each, dict) else "",
)
def test_what_is_not_exact_with_parts_is_refused_with_its_reason(
    layout: RankLayout, strategy: dict[str, object], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        check(layout, **strategy)
