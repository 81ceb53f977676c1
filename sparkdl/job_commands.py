"""Turns jobs into commands: their arguments, their output, and the exit codes of their errors."""

import sys
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import click

from sparkdl.config import load_settings
from sparkdl.errors import ExitCode, SparkdlError
from sparkdl.masking import without_credentials
from sparkdl.settings import Settings

__all__ = ["Commands", "job", "pipeline_arguments"]

Work = Callable[[Settings], dict[str, str]]
"""A job, or the check of a job. Takes settings, and returns what is printed: one line per name."""


class Commands(click.Group):
    """Commands that print errors which a user can fix as one message, and end with an exit code."""

    def invoke(self, context: click.Context) -> Any:
        """Run the command that the arguments name."""
        try:
            return super().invoke(context)
        except (Exception, KeyboardInterrupt) as error:
            if _was_interrupted(error):
                click.secho("sparkdl: interrupted; nothing is left running", err=True)
                sys.exit(ExitCode.INTERRUPTED)
            if isinstance(error, OSError) and error.filename:  # storage has failed, also after retries
                error, code = SparkdlError(f"{error.filename}: {error.strerror}"), ExitCode.STORAGE
            elif isinstance(error, SparkdlError):
                code = error.exit_code
            else:
                raise
            click.secho(f"sparkdl: {error}", fg="red", err=True)
            sys.exit(code)


def pipeline_arguments(command: Any) -> Any:
    """Add the arguments CONFIGURATION and OVERRIDES, which every job takes."""
    command = click.argument("overrides", nargs=-1, metavar="[SECTION.KEY=VALUE]...")(command)
    return click.argument("configuration", type=click.Path(dir_okay=False))(command)


def job(work: Work, check: Work, *, folder: Callable[[Settings], str]) -> Callable[[Any], Any]:
    """A command that runs ``work``, or with ``--dry-run`` only ``check``, and prints the result.

    With ``--idempotency-key``, only one of all submissions with that key runs; they find each other in ``folder``.
    """

    def decorate(described: Any) -> Any:
        @pipeline_arguments
        @click.option("--dry-run", is_flag=True, help="Check everything that the job needs, and print what would run.")
        @click.option(
            "--idempotency-key", metavar="KEY", help="Only one submission with this key runs; all print its result."
        )
        @wraps(described)
        def command(
            configuration: str,
            overrides: Sequence[str],
            dry_run: bool,
            idempotency_key: str | None,
            resume: str | None = None,
        ) -> None:
            section = described.__name__
            settings = load_settings(configuration, [*overrides, *([f"{section}.resume={resume}"] if resume else [])])
            if dry_run:
                _show(check(settings))
                click.echo("nothing was run: this was a dry run")
            elif idempotency_key:
                from sparkdl.once import run_once  # imported here, because other commands do not need it

                how = settings.model_dump_json(exclude={"train": {"resume"}, "tune": {"resume"}})
                what = f"{described.__name__} {how}"
                _show(run_once(partial(work, settings), key=idempotency_key, job=what, folder=folder(settings)))
            else:
                _show(work(settings))

        return command

    return decorate


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is among the causes: the error itself may be one of the JVM, which had ended by then."""
    while error and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _show(summary: dict[str, str]) -> None:
    width = max(map(len, summary)) + 2
    for name, value in summary.items():
        click.echo(f"{name:<{width}}{without_credentials(value)}")
