"""A script of the user's own as a function for ranks, which have not its file. Made on the driver, called on ranks."""

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
    """What ``python script.py`` would run. Called with its arguments, in a process that runs nothing after it."""

    text: str = field(repr=False)
    file: str
    """Where the driver has it, as tracebacks show."""
    imports: frozenset[str]
    """The modules that it imports: those beside it travel with it."""

    @classmethod
    def open(cls, path: Path) -> "Script":
        """Read it. Raises :class:`ConfigError` for a file that is not there, or is not Python."""
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
        """Run it as ``__main__``; an exit with another code than 0 is an error."""
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
