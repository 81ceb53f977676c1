"""The settings that decide what a dataset holds, as its card keeps them. Runs on the driver."""

from collections.abc import Collection, Mapping
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.settings import Prepare
from sparkdl.storage import hash_file

__all__ = ["differing", "kept_settings"]

_KNOWN_BY = "sha256:"


def kept_settings(settings: Prepare) -> dict[str, Any]:
    """All settings but those that say where rows come from and where they go, and tokenisers are.

    Raises :class:`ConfigError` for a tokeniser that is not there.
    """
    kept = settings.model_dump(mode="json", exclude={"output", "source"})
    if settings.task == "language_modelling":
        del kept["label"]  # it has none
    for each in kept.get("inputs", {}).values():
        if each["tokenizer"] and not each["tokenizer"].startswith(_KNOWN_BY):
            each["tokenizer"] = _KNOWN_BY + _hash(each["tokenizer"])
    return kept


def _hash(tokenizer: str) -> str:
    try:
        return hash_file(tokenizer)
    except FileNotFoundError:
        raise ConfigError(f"there is no tokeniser in {tokenizer}; set `tokenizer` to a tokenizer.json") from None


def differing(kept: Mapping[str, Any], now: Prepare | Mapping[str, Any], keys: Collection[str] = ()) -> list[str]:
    """In which decisions, or in which of ``keys``, a card's are others than those of now, in words for an error."""
    wanted = kept_settings(now) if isinstance(now, Prepare) else now
    before = _as_of_today(kept)
    return [
        f"{key} was {before.get(key)!r} and is now {wanted.get(key)!r}"
        for key in sorted(keys or before.keys() | wanted.keys())
        if before.get(key) != wanted.get(key)
    ]


def _as_of_today(kept: Mapping[str, Any]) -> dict[str, Any]:
    """What a card keeps, with what sparkdl has learned to decide since then at its default."""
    known = {key: value for key, value in kept.items() if key in Prepare.model_fields}
    somewhere = "output"  # of which nothing is decided
    try:
        return {**kept, **kept_settings(Prepare.model_validate({**known, "output": somewhere}))}
    except ConfigError:  # what could be set then cannot be set now, and so is not what is asked for
        return {**kept_settings(Prepare(output=somewhere)), **kept}
