"""Write napkinxc_measures.json: predictions, labels, and what napkinXC's measures say about them.

python -m pip install napkinxc==0.7.2 && python tests/unit/extreme/napkinxc_measures.py

The tests read the recorded values, so that they run without napkinXC, which needs a compiler on some platforms.
"""

import json
from pathlib import Path

import numpy as np
from napkinxc import metrics

ROWS, CLASSES, K = 60, 40, 5

rng = np.random.default_rng(0)
frequency = 1 / np.arange(1, CLASSES + 1)
counts = rng.poisson(300 * frequency).tolist()
truth, predicted = [], []
for _ in range(ROWS):
    row = rng.choice(CLASSES, rng.integers(0, 8), replace=False, p=frequency / frequency.sum()).tolist()
    guesses = [*rng.permutation(row)[:3].tolist(), *rng.permutation(CLASSES).tolist()]
    best = rng.permutation(list(dict.fromkeys(guesses))[:K]).tolist()
    truth.append(row + [CLASSES] * int(rng.random() < 0.2))  # class 40 was never seen in training
    predicted.append(best)

found = {}
for name, (a, b) in {"default": (0.55, 1.5), "amazon": (0.6, 2.6)}.items():
    trained = [[label] for label, count in enumerate(counts) for _ in range(count)]
    weights = np.append(metrics.Jain_et_al_inverse_propensity(trained, A=a, B=b), np.zeros(CLASSES))[:CLASSES]
    unseen = 1 + (np.log(len(trained)) - 1) * (b + 1) ** a * b**-a  # the same formula for a count of 0
    weights = np.append(np.where(np.array(counts) == 0, unseen, weights), unseen)
    found[f"psp_{name}"] = metrics.psprecision_at_k(truth, predicted, weights, k=K).tolist()
found["precision"] = metrics.precision_at_k(truth, predicted, k=K).tolist()
found["recall"] = metrics.recall_at_k(truth, predicted, k=K).tolist()
found["ndcg"] = metrics.ndcg_at_k(truth, predicted, k=K).tolist()
content = {"counts": counts, "num_rows": sum(counts), "truth": truth, "predicted": predicted, "measures": found}
Path(__file__).with_suffix(".json").write_text(json.dumps(content) + "\n")
