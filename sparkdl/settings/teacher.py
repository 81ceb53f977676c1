"""The section ``train.teacher``: a network learns from the logits of another one (distillation)."""

from typing import Annotated

from pydantic import ConfigDict, Field

from sparkdl.settings.section import Section

__all__ = ["Teacher"]


class Teacher(Section):
    """A registered model from whose logits a network learns, besides labels (Hinton et al., 2015, arXiv 1503.02531).

    Each row's loss is (1 - weight) times that of its label, plus weight times temperature squared times the
    Kullback-Leibler divergence of the network's probabilities from the teacher's, both of logits divided by the
    temperature. With several labels per row, the divergence is the mean over labels, of two probabilities each. For
    regression, it is the squared difference of the two numbers, whatever the temperature.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    model: str | Annotated[list[str], Field(min_length=1)]
    """The teacher: ``models:/name@alias`` or ``models:/name/version``, of one network or of an ensemble for very many
    classes, trained for the same labels on inputs that were preprocessed as the dataset's. A Spark job computes its
    logits for all training rows once, and keeps them below ``train.run_dir``, where the next run finds them. Of a list
    of networks, the mean of their logits is used."""
    temperature: Annotated[float, Field(gt=0)] = 4.0
    """Logits are divided by it: the higher, the more the classes that the teacher finds unlikely count."""
    weight: Annotated[float, Field(gt=0, le=1)] = 0.5
    """The weight of the teacher in the loss; that of the labels is 1 minus it."""

    @property
    def models(self) -> list[str]:
        """The URIs of its networks."""
        return [self.model] if isinstance(self.model, str) else self.model
