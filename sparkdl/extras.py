"""Imports packages that only an extra of the distribution installs, when they are first used."""

from importlib import import_module
from types import ModuleType

from sparkdl.errors import ConfigError

__all__ = ["DISTRIBUTION", "how_to_install", "require"]

DISTRIBUTION = "sparkdl-cluster"
"""The name of this distribution on the package index, which has another project called sparkdl."""


def require(module: str, *, extra: str) -> ModuleType:
    """Import a module of a package that an extra installs. Runs anywhere.

    Raises :class:`~sparkdl.errors.ConfigError`, which names the extra, if the package is not installed.
    """
    package = module.partition(".")[0]
    try:
        import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ConfigError(
            f"{package} is not installed in this environment, but is needed here: {how_to_install(extra)}"
        ) from None
    return import_module(module)


def how_to_install(extra: str) -> str:
    """The command that installs an extra, for a message."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
