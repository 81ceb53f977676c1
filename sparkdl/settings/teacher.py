"""The section ``train.teacher``: a network that is trained to answer as another one does."""

from typing import Annotated

from pydantic import ConfigDict, Field

from sparkdl.settings.section import Section

__all__ = ["Teacher"]


class Teacher(Section):
    """A registered model whose answers a network learns beside the labels (Hinton et al., 2015, arXiv 1503.02531).

    Each row's loss is (1 - weight) times that of its label, plus weight times temperature squared times the
    Kullback-Leibler divergence of the network's probabilities from the teacher's, both of logits divided by the
    temperature. For several labels a row, it is the mean over them of that of each one's two probabilities. For
    regression, it is the squared difference of the two numbers, whatever the temperature.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    model: str | Annotated[list[str], Field(min_length=1)]
    """The teacher: ``models:/name@alias`` or ``models:/name/version``, of one network or of an ensemble for very many
    classes, trained for the same labels on inputs that were preprocessed as the dataset's. It answers all training rows
    once, in a Spark job; its logits are kept below ``train.run_dir``, where the next run finds them. A list is of
    several networks, the mean of whose logits is the answer."""
    temperature: Annotated[float, Field(gt=0)] = 4.0
    """Logits are divided by it: the higher, the larger the influence of classes that the teacher finds unlikely."""
    weight: Annotated[float, Field(gt=0, le=1)] = 0.5
    """The weight of the teacher in the loss; that of the labels is 1 minus it."""

    @property
    def models(self) -> list[str]:
        """The URIs of its networks."""
        return [self.model] if isinstance(self.model, str) else self.model
