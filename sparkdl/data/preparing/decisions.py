"""The settings that decide the content of a dataset, which its card stores. Runs on the driver."""

from collections.abc import Collection, Mapping
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.settings import Prepare
from sparkdl.storage import hash_file

__all__ = ["differing", "kept_settings"]

_KNOWN_BY = "sha256:"


def kept_settings(settings: Prepare) -> dict[str, Any]:
    """All settings except the locations of the source, the output and tokenisers.

    Raises :class:`ConfigError` if a tokeniser does not exist.
    """
    kept = settings.model_dump(mode="json", exclude={"output", "source"})
    if settings.task == "language_modelling":
        del kept["label"]  # there is no label
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
    """The settings, or those of ``keys``, in which a card and the current settings differ, in words for an error."""
    wanted = kept_settings(now) if isinstance(now, Prepare) else now
    before = _as_of_today(kept)
    return [
        f"{key} was {before.get(key)!r} and is now {wanted.get(key)!r}"
        for key in sorted(keys or before.keys() | wanted.keys())
        if before.get(key) != wanted.get(key)
    ]


def _as_of_today(kept: Mapping[str, Any]) -> dict[str, Any]:
    """A card's settings, with the defaults for settings that did not exist when it was written."""
    known = {key: value for key, value in kept.items() if key in Prepare.model_fields}
    somewhere = "output"  # has no influence on the content
    try:
        return {**kept, **kept_settings(Prepare.model_validate({**known, "output": somewhere}))}
    except ConfigError:  # these settings are no longer valid, so they differ from the current ones
        return {**kept_settings(Prepare(output=somewhere)), **kept}
