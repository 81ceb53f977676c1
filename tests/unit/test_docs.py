"""What the README and the pages in `docs/` tell people to type, to set and to open is there."""

import ast
import inspect
import re
import shlex
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import dropwhile
from pathlib import Path
from typing import Any, get_args

import click
import pytest

import sparkdl
from benchmark import benchmark
from sparkdl.cli import commands
from sparkdl.config import load_settings
from sparkdl.errors import SparkdlError
from sparkdl.settings import Settings
from sparkdl.settings.averaging import Topology
from sparkdl.settings.explain import find_field, find_key

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY", "CODE_OF_CONDUCT")]
PAGES += sorted((ROOT / "docs").glob("*.md"))
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
JOBS = {"benchmark": benchmark, **{name.replace("-", "_"): command for name, command in commands.commands.items()}}
FOLDERS = ("conf/", "docs/", "examples/", "jobs/", "notebooks/", "sparkdl/", "tests/", ".setup/")
FOLDERS += tuple(f"{room.name}/" for room in (ROOT / "sparkdl").iterdir() if room.is_dir())
"""What a path in a sentence begins with: a room is also called by its own name."""
OTHERS = {"export", "mlflow", "pip", "source", "venv-pack"}
"""Programs that are not the project's: what follows them is theirs to check."""
ASSIGNMENT = re.compile(r"[A-Z_]+=\S*")
of_each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@of_each_page
def test_every_command_is_there_and_takes_its_arguments(page: Path) -> None:
    for words in shell_commands(page.read_text()):
        check_command(words)


@pytest.mark.parametrize(
    "line",
    [
        "sparkdl trian conf/fashion_mnist.yaml",
        "sparkdl train conf/fashion_mnist.yaml train.epoch=5",
        "sparkdl train conf/fashion.yaml",
        "sparkdl keys train.strateggy",
        "sparkdl plan-extreme --class 3",
        "python jobs/benchmark.py launches",
        "python -m sparkdl.cluster.jav",
        "spark-submit --properties-file conf/spark.conf jobs/train.py conf/fashion_mnist.yaml",
        "spark-submit jobs/training.py conf/fashion_mnist.yaml",
        "make everything",
        "rm -rf output",
    ],
)
def test_a_command_that_is_not_there_is_found(line: str) -> None:
    with pytest.raises((AssertionError, click.ClickException, SparkdlError)):
        check_command(shlex.split(line))


@of_each_page
def test_every_program_calls_public_names_as_they_want_to_be_called(page: Path) -> None:
    for program in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        for call in ast.walk(ast.parse(program)):
            if isinstance(call, ast.Call) and (function := public(call.func)):
                inspect.signature(function).bind(*call.args, **{each.arg or "": each.value for each in call.keywords})


@of_each_page
def test_every_key_and_every_variable_is_one_that_is_read(page: Path) -> None:
    text = page.read_text()
    for key in re.findall(r"`((?:prepare|train|extreme|score|cluster|tracking)\.[a-z_.]+)", text):
        find_field(key, Settings)
    source = "".join(file.read_text() for file in (ROOT / "sparkdl").rglob("*.py"))
    assert [name for name in re.findall(r"SPARKDL_[A-Z_]+", text) if f'"{name}"' not in source] == []


@of_each_page
def test_every_link_and_every_path_leads_somewhere(page: Path) -> None:
    text = page.read_text()
    links = [page.parent / link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert [str(link) for link in links if not link.exists()] == []
    paths = [path for path in re.findall(r"`([\w.]+/[\w./-]*)`", text) if path.startswith(FOLDERS)]
    assert [path for path in paths if not (ROOT / path).exists() and not (ROOT / "sparkdl" / path).exists()] == []


def test_every_strategy_is_explained() -> None:
    strategies = find_key(["train", "strategy"], Settings)
    assert first_column("kind") == list(strategies.kinds)
    compressions = find_key(["train", "strategy", "compression"], Settings)
    assert set(first_column("compression")) == set(compressions.kinds)
    assert first_column("topology") == list(get_args(Topology))


def first_column(title: str) -> list[str]:
    """The names in the first column of the table with this title on the page about training."""
    table = re.search(rf"^\| {title} \|.*\n(\|.*\n)+", (ROOT / "docs" / "training.md").read_text(), re.MULTILINE)
    assert table
    return [name for row in table[0].splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]


def test_every_test_that_the_makefile_names_is_there() -> None:
    paths = re.findall(r"tests/[\w/]+\.py", (ROOT / "Makefile").read_text())
    assert paths and [path for path in paths if not (ROOT / path).exists()] == []


def test_the_layout_names_what_is_there_and_leaves_nothing_out() -> None:
    layout = re.search(r"```\nsparkdl/\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert layout
    named = {name or beside for name, beside in re.findall(r"^  (\w+(?:\.py|/))|; (\w+\.py)", layout[1], re.MULTILINE)}
    found = [path for path in (ROOT / "sparkdl").glob("[a-z]*") if path.name != "py.typed"]  # for type checkers
    there = {f"{path.name}/" if path.is_dir() else path.name for path in found}
    assert named == there


@pytest.mark.parametrize("name", commands.commands)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        commands([name, "--help"], prog_name="sparkdl")
    assert ending.value.code == 0
    assert f"Usage: sparkdl {name}" in (text := capsys.readouterr().out)
    assert len(text.splitlines()) >= 5


def shell_commands(text: str) -> Iterator[list[str]]:
    """The words of each command in the text: a line of a block for the shell, or whole commands in a sentence."""
    blocks = "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")
    sentences = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    in_sentences = re.findall(r"`((?:sparkdl|make|python|spark-submit) [^`…]+)`", sentences)
    for line in [*blocks.splitlines(), *in_sentences]:
        if words := shlex.split(re.sub(r"(^|\s)#.*", "", line)):
            yield words


def check_command(words: Sequence[str]) -> None:
    """Raise an exception for a command that cannot be run as it is written."""
    first, *arguments = dropwhile(ASSIGNMENT.fullmatch, words)
    program = Path(first).name
    if program == "make":
        assert TARGETS.issuperset(arguments), words
    elif program == "sparkdl":
        assert arguments[0] in {*commands.commands, "--version"}, words
        if arguments[1:]:  # a sentence may name the command alone
            check_arguments(commands, arguments)
    elif program == "python" and arguments[0] == "-m":
        assert find_spec(arguments[1]), words
    elif program in ("python", "spark-submit"):
        place = next(place for place, word in enumerate(arguments) if word.endswith(".py"))
        for word in arguments[: place + 1]:
            assert (ROOT / word).exists() or not word.startswith(("conf/", "jobs/", ".setup/")), words
        if arguments[place].startswith("jobs/"):
            check_arguments(JOBS[Path(arguments[place]).stem], arguments[place + 1 :])
    else:
        assert program in OTHERS, words


def check_arguments(command: click.Command, arguments: Sequence[str]) -> None:
    """Let a command read its arguments, and its configuration with the keys that are set behind it."""
    with command.make_context(command.name, list(arguments)) as context:
        if isinstance(command, click.Group):
            _, chosen, rest = command.resolve_command(context, [*context.protected_args, *context.args])
            assert chosen
            check_arguments(chosen, rest)
        elif path := context.params.get("configuration"):
            load_settings(ROOT / path, context.params["overrides"])
        elif key := context.params.get("key"):
            find_field(key, Settings)


def public(function: ast.expr) -> Any:
    """What a program calls, if it is a public name of the package."""
    name = ast.unparse(function).removeprefix("sparkdl.")
    return getattr(sparkdl, name) if name in sparkdl.__all__ else None
