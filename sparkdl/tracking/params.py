"""From a tree of settings to flat MLflow parameters, with secrets left out."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from sparkdl.masking import masked

__all__ = ["flatten"]

MAX_LENGTH = 500  # characters; what the oldest servers in use take


def flatten(tree: Mapping[str, Any]) -> dict[str, str]:
    """``{"train": {"epochs": 3}}`` as ``{"train.epochs": "3"}``; secrets masked, long values cut with an ellipsis.

    What MLflow does not want in a name becomes ``_``: it would refuse the parameters all together.
    """
    return {re.sub(r"[^/\w.\- :]", "_", name): _shorten(text) for name, text in _leaves(masked(tree), prefix="")}


def _leaves(tree: Mapping[str, Any], *, prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, prefix=f"{name}.")
        else:
            yield name, value if isinstance(value, str) else json.dumps(value)


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_LENGTH else text[: MAX_LENGTH - 1] + "…"
