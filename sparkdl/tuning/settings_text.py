"""The best settings as the text of a configuration file. Runs on the driver."""

from typing import Any

import yaml

from sparkdl.settings import Settings
from sparkdl.settings.keys import given_values

__all__ = ["settings_text"]


def settings_text(settings: Settings) -> str:
    """The settings that were given, without those of the search, as YAML that ``sparkdl train`` takes."""
    tree = {name: value for name, value in given_values(settings).items() if name != "tune" and value is not None}
    sections = {name: {key: _plain(value) for key, value in section.items()} for name, section in tree.items()}
    return yaml.safe_dump(sections, sort_keys=False)


def _plain(value: Any) -> Any:
    """The value as a file can have it: a function becomes its name."""
    if callable(value):
        return f"{value.__module__}:{value.__qualname__}"
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list) else value
