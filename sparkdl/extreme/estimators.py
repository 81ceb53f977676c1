"""How bucket scores are turned back into the score of a class: a count-min sketch's query, learned.

Repetition r gives class k the probability p_r(k) of the bucket that k falls into, which k shares with the other classes
there. For true class probabilities P(k) and 2-universal hashes into B buckets, E[p_r(k)] = P(k) + (1 - P(k)) / B.

``mean_probability``
    B/(B-1) (1/R sum_r p_r(k) - N/B), where N is the mass of a repetition's buckets, 1 after a softmax. Unbiased, by the
    line above: MACH (Huang et al., 2018, arXiv 1810.04254); the sketch's form of it is Count-Mean-Min (Deng and Rafiei,
    2007).
``sum_logits``
    sum_r z_r(k) of the buckets' logits: the next one without its normaliser.
``mean_log_probability``
    1/R sum_r log p_r(k), the logarithm of the geometric mean: a product of experts (Hinton, 2002).
``minimum``
    min_r p_r(k). A bucket's probability is never below its class's, so the smallest is the closest: Count-Min (Cormode
    and Muthukrishnan, 2005), which the sequel (Medini et al., 2019, arXiv 1910.13830) shows MACH to be.
``median``
    The median over r of p_r(k), the lower one if R is even: Count Sketch (Charikar, Chen and Farach-Colton, 2002).

After a softmax, ``sum_logits`` and ``mean_log_probability`` put the classes of a row in the same order: they differ by
the row's normaliser. The first needs no exponentials and is faster.

**Prior-aware.** Classes in a bucket share its probability in proportion to their training frequency: p_r(k) is replaced
by p_r(k) s_r(k)^w, where s_r(k) is the share of k in the (add-one smoothed) training counts of its bucket, and w is
:func:`prior_weight`. For logits, w log s_r(k) is added.
"""

from typing import Literal

import torch

__all__ = ["Activation", "Estimator", "bucket_values", "class_scores", "prior_weight"]

Estimator = Literal["mean_probability", "sum_logits", "mean_log_probability", "minimum", "median"]
Activation = Literal["softmax", "sigmoid"]

ADDITIVE = ("sum_logits", "mean_log_probability")
"""Estimators to which a prior adds one constant per class."""


def prior_weight(repetitions: int) -> float:
    """The exponent w of the shares, between 0 (ignore the frequencies) and 1 (trust them).

    With one repetition the frequencies are all that tells the classes of a bucket apart, and w = 1 is Bayes' rule. Each
    further repetition tells more of them apart by itself, and what it sees already contains the prior: the weight falls
    with the fifth power of their number. On rows of WordNet's training split that were held out, P@1 with it was 15.5,
    35.4 and 37.4 for 1, 2 and 4 repetitions, and 4.9, 34.1 and 37.4 without; the third power cost 0.05 points at 4.
    """
    return 1.0 / repetitions**5


def bucket_values(logits: torch.Tensor, estimator: Estimator, activation: Activation, *, dim: int) -> torch.Tensor:
    """What the estimator adds up (or takes the minimum or median of) for each bucket; these are along ``dim``."""
    if estimator == "sum_logits":
        return logits
    if estimator == "mean_log_probability":
        return logits.log_softmax(dim) if activation == "softmax" else torch.nn.functional.logsigmoid(logits)
    return logits.softmax(dim) if activation == "softmax" else logits.sigmoid()


def class_scores(
    reduced: torch.Tensor, estimator: Estimator, *, repetitions: int, num_buckets: int, mass: torch.Tensor | float
) -> torch.Tensor:
    """The estimator's score from the sum (minimum, median) over repetitions; ``mass`` is N, a number or one per row."""
    match estimator:
        case "mean_probability":
            return (reduced / repetitions - mass / num_buckets) * (num_buckets / (num_buckets - 1))
        case "mean_log_probability":
            return reduced / repetitions
        case _:
            return reduced
