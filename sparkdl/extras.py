"""Packages that only an extra of the distribution installs: imported where they are used, and nowhere else."""

from importlib import import_module
from types import ModuleType

from sparkdl.errors import ConfigError

__all__ = ["DISTRIBUTION", "how_to_install", "require"]

DISTRIBUTION = "sparkdl-cluster"
"""What is installed, as the package index names it: the index has another project called sparkdl."""


def require(module: str, *, extra: str) -> ModuleType:
    """Import a module of a package that an extra installs. Runs anywhere.

    Raises :class:`~sparkdl.errors.ConfigError` that names the extra when the package is not installed.
    """
    package = module.partition(".")[0]
    try:
        import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ConfigError(
            f"{package} is not installed in this environment, and is needed here: {how_to_install(extra)}"
        ) from None
    return import_module(module)


def how_to_install(extra: str) -> str:
    """The command that installs an extra, for a message."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
