"""Masks secrets in settings, addresses and errors before they are shown or stored."""

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

__all__ = ["MASK", "masked", "without_credentials"]

MASK = "***"
SECRET_WORD = re.compile(
    r".*(credentials?|passphrase|passwd|password|pwd|secrets?|signature)"
    r"|(.*(access|account|api|auth|private|secret|session|shared))?(key|token)|sas|sig"
)
MEASURES = {"dim", "dims", "dimension", "dimensions", "heads", "length", "size", "width"}
"""Names that end with one of these words are no secrets: ``key_dim`` is a size in an attention layer."""
# Up to the last @, because a password may contain one; and it may contain a slash, unless a port follows the colon.
CREDENTIALS = re.compile(r"(?<=://)(?:[^/:@\s\[]*:(?!\d{1,5}[/,])[^\s\"]*|[^/\s]*)@")
ORACLE = re.compile(r"(?i)\b((?:jdbc|oracle)[:\w]*:)[^/:@\s]+/\S*@")  # jdbc:oracle:thin:user/password@host
QUERY = re.compile(r"([?&;]([\w.-]+)=)[^&;\s]+")


def masked(value: Any, *, name: str = "") -> Any:
    """A copy that can be written as JSON, in which secrets are masked.

    Secrets are values with a name such as ``password``, ``token`` or ``key``, and credentials in URIs. Callables are
    replaced by their import paths.
    """
    if value is not None and not isinstance(value, bool) and _is_secret(name):
        return MASK
    if isinstance(value, Mapping):
        return {str(key): masked(item, name=str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [masked(item) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str | PurePath):
        return without_credentials(str(value))
    if callable(value):
        kind = value if hasattr(value, "__qualname__") else type(value)
        return f"{kind.__module__}:{kind.__qualname__}"
    return without_credentials(str(value))


def without_credentials(text: str) -> str:
    """The text with ``user:password@`` (and a lone ``token@``) in addresses, and secrets in their queries, masked."""
    text = ORACLE.sub(rf"\1{MASK}@", CREDENTIALS.sub(f"{MASK}@", text))
    return QUERY.sub(lambda found: f"{found[1]}{MASK}" if _is_secret(found[2]) else found[0], text)


def _is_secret(name: str) -> bool:
    """Whether a name contains a word for a secret, as ``fs.s3a.secret.key``, ``apiToken`` or ``DB_PASSWORD`` do."""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
    if not words or words[-1] in MEASURES:
        return False
    return any(SECRET_WORD.fullmatch(word) for word in words) or "connectionstring" in "".join(words)
