"""A user's script as a function for ranks, which lack its file. Made on the driver, called on ranks."""

import importlib.util
import linecache
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from sparkdl.cluster.modules import imports_of
from sparkdl.errors import ConfigError

__all__ = ["Script"]


@dataclass(frozen=True)
class Script:
    """Does the same as ``python script.py``. It is called with the script's arguments, once per process."""

    text: str = field(repr=False)
    file: str
    """Its path on the driver, for tracebacks."""
    imports: frozenset[str]
    """The modules that it imports; those beside it are shipped with it."""

    @classmethod
    def open(cls, path: Path) -> "Script":
        """Read a script. Raises :class:`ConfigError` if the file does not exist or is not Python."""
        file = str(path.absolute())
        try:
            text = importlib.util.decode_source(path.read_bytes())
            compile(text, file, "exec", dont_inherit=True)
        except OSError as error:
            raise ConfigError(f"cannot read the script {path}: {error.strerror}") from None
        except (SyntaxError, UnicodeDecodeError, ValueError) as error:
            line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            raise ConfigError(f"the script {path}{line} is not Python: {getattr(error, 'msg', error)}") from None
        return cls(text, file, frozenset(imports_of(text, package="")))

    def __call__(self, *arguments: str) -> None:
        """Run the script as ``__main__``. An exit code other than 0 raises an error."""
        module = ModuleType("__main__")
        module.__file__ = self.file
        linecache.cache[self.file] = (len(self.text), None, self.text.splitlines(keepends=True), self.file)
        sys.modules["__main__"] = module
        sys.argv = [self.file, *arguments]
        try:
            exec(compile(self.text, self.file, "exec", dont_inherit=True), module.__dict__)
        except SystemExit as ending:
            if ending.code not in (None, 0):
                raise
