"""Reads settings from one YAML file and the command line, and validates them."""

import difflib
import importlib
import re
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml
from yaml.error import MarkedYAMLError
from yaml.nodes import MappingNode, Node, ScalarNode

from sparkdl.errors import ConfigError
from sparkdl.masking import without_credentials
from sparkdl.settings import Settings
from sparkdl.settings.file_options import check_options
from sparkdl.settings.keys import set_key

__all__ = ["import_object", "load_settings", "makes"]


def load_settings(path: str | Path, overrides: Sequence[str] = ()) -> Settings:
    """Read a pipeline's YAML file and apply overrides of the form ``section.key=value``.

    Runs on the driver. Values on the command line are YAML, so ``train.epochs=3`` is a number and
    ``prepare.features=[age,fare]`` a list. Reading a file neither runs nor imports anything, and a file cannot contain
    code: a job imports what ``train.model``, ``train.loss`` and ``train.optimizer`` name, and only from installed
    packages and the current folder. Of Spark's settings, a file may set only amounts and times; overrides may set any.

    Raises :class:`ConfigError`, which names the file, the key and a valid value, and never shows a secret.
    """
    path = Path(path)
    try:
        tree = _parse(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path} is not UTF-8 in line {line}; save it as UTF-8") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {_problem(error)}") from None
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{path} must hold sections ({', '.join(Settings.model_fields)}), not a {type(tree).__name__}"
        )
    check_options(tree, path)
    for override in overrides:
        _apply(tree, override)
    return Settings.checked(tree, place=str(path))


def makes(found: Any, kind: type) -> bool:
    """Whether ``found`` is a subclass of ``kind``, or a function annotated to return one. Calls nothing.

    Without this check, a file could name any installed function and have it called with any arguments.
    """
    if isinstance(found, type):
        return issubclass(found, kind)
    try:
        returned = typing.get_type_hints(found).get("return")
    except (TypeError, NameError, AttributeError):
        return False
    return isinstance(returned, type) and issubclass(returned, kind)


def import_object(path: str, *, key: str, names: Iterable[str] = ()) -> Any:
    """Import the object with the path ``package.module:name``, which is the value of the setting ``key``.

    ``names`` are the short names that the setting also allows, for the error. Raises :class:`ConfigError`.
    """
    module, colon, name = path.partition(":")
    if not colon:
        near = difflib.get_close_matches(path, list(names), n=1)
        hint = f"did you mean {near[0]!r}? It" if near else f"it must be one of {', '.join(names)}; it"
        raise ConfigError(f"{key}: {path!r} is not known; {hint} can also be an import path, package.module:name")
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ConfigError(
            f"{key}: cannot import {module!r} ({error}): it is neither installed, nor beside the script, nor in the"
            f" current folder, {Path.cwd()}; install it on driver and executors, or start the job in its folder"
        ) from None
    except AttributeError:
        raise ConfigError(f"{key}: the module {module!r} has no {name!r}") from None


class _Loader(yaml.SafeLoader):
    """YAML without two surprises: a key that is given twice is an error, and ``1e-8`` is a number, not a text."""

    def compose_mapping_node(self, anchor: dict[Any, Node]) -> MappingNode:
        """Refuse a key that is given twice: its first value would be lost."""
        node = super().compose_mapping_node(anchor)
        known: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, ScalarNode) and key.value != "<<" and key.value in known:
                raise MarkedYAMLError(problem=f"the key {key.value!r} is given twice", problem_mark=key.start_mark)
            known.add(str(key.value))
        return node


# The numbers of YAML 1.2. In YAML 1.1, numbers in scientific notation without a point or a sign are texts.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)[eE][-+]?\d+$"), list("-+.0123456789")
)


def _parse(text: str) -> Any:
    return yaml.load(text, _Loader)


def _apply(tree: dict[str, Any], override: str) -> None:
    """Set one ``a.b.c=value`` in the tree."""
    key, equals, text = override.partition("=")
    shown = re.split(r"[^\w.-]", override, maxsplit=1)[0]  # only the key: the value may be a secret
    if not equals or not key:
        raise ConfigError(f"cannot read the override {shown!r}: write section.key=value, for example train.epochs=3")
    try:
        value = _parse(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"cannot read the value in the override {shown!r}: {_problem(error)}") from None
    set_key(tree, key, value, section=Settings, what=f"the override {shown!r}")


def _problem(error: yaml.YAMLError) -> str:
    """The problem and its position, without the text of the line, which may contain a secret."""
    if isinstance(error, MarkedYAMLError) and error.problem_mark:
        # Without quotes, a password may look like an alias, an anchor or a tag.
        problem = re.sub(r"(alias|anchor|tag|handle) '(?!tag:yaml)[^']*'", r"\1", str(error.problem))
        return f"{problem} in line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}"
    return without_credentials(str(error))
