"""What may be shown of settings, addresses and errors: everything but the secrets in them."""

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

__all__ = ["MASK", "masked", "without_credentials"]

MASK = "***"
SECRET_WORDS = {"apikey", "credential", "credentials", "key", "passphrase", "passwd", "password", "pwd", "sas"}
SECRET_WORDS |= {"secret", "secrets", "token"}
# Up to the last @, for a password may hold one. It may hold a slash, too, where what follows the colon is no port.
CREDENTIALS = re.compile(r"(?<=://)(?:[^/:@\s\[]*:(?!\d{1,5}[/,])[^\s\"]*|[^/\s]*)@")


def masked(value: Any, *, name: str = "") -> Any:
    """A copy that JSON can hold: secrets by name (``password``, ``token``, ``key`` ...) and credentials in URIs masked.

    Callables are written as their import path.
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
    text = CREDENTIALS.sub(f"{MASK}@", text)
    return re.sub(r"(?i)([?&;][\w.-]*(?:sig|key|token|password|secret)=)[^&;\s]+", rf"\1{MASK}", text)


def _is_secret(name: str) -> bool:
    """Whether one of the words in ``fs.s3a.secret.key``, ``apiToken`` or ``DB_PASSWORD`` tells of a secret."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return any(word.lower() in SECRET_WORDS for word in words)
