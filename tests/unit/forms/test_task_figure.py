import pytest

from sparkdl.forms.task_figure import loss_of


def test_a_form_loses_points_of_accuracy_and_a_part_of_perplexity() -> None:
    assert loss_of("accuracy", 0.9, 0.895) == pytest.approx(0.005)
    assert loss_of("accuracy", 0.9, 0.91) < 0
    assert loss_of("perplexity", 20.0, 20.1) == pytest.approx(0.005)
    assert loss_of("perplexity", 20.0, 19.0) < 0
