"""A network's modules have their own modes again after it was put into one."""

import pytest
from torch import nn

from sparkdl.models import in_mode


@pytest.mark.parametrize("training", [True, False])
def test_each_module_has_its_own_mode_again_also_after_an_exception(training: bool) -> None:
    network = nn.Sequential(nn.Dropout(), nn.Sequential(nn.BatchNorm1d(2), nn.Dropout()))
    network[1][0].eval()  # as a layer that is not trained is left
    before = [module.training for module in network.modules()]
    with pytest.raises(ZeroDivisionError), in_mode(network, training=training) as same:
        assert same is network and all(module.training is training for module in network.modules())
        raise ZeroDivisionError
    assert [module.training for module in network.modules()] == before
