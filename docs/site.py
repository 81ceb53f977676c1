"""What MkDocs makes of the repository besides the pages in this folder: a hook that mkdocs.yml names.

README.md is the first page; CONTRIBUTING.md, CHANGELOG.md, the examples, the commands, the settings and the public
names are pages, too. Files that pages link to are copied, so that no link leads out of the site.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import sparkdl
from sparkdl.cli import commands
from sparkdl.settings import Settings
from sparkdl.settings.describe import describe_key

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"\]\(([^)#:]+)(?=[)#])")
ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):<code>(?:~[\w.]*?(\w+)|([\w.]+))</code>")
NAMES = {
    "Jobs": "get_session fetch open_source prepare train tune train_extreme compress score write_predictions serve"
    " sync",
    "Settings": "Settings Prepare Source Stage Split TimeSplit Train Tune Extreme Compress FormGate Score Cluster"
    " Tracking Gate load_settings",
    "What jobs return": "Dataset TrainedModel TunedModel TrainedEnsemble CompressedModel",
    "Estimators": "TorchClassifier TorchClassificationModel TorchRegressor TorchRegressionModel TorchRanker"
    " TorchRankingModel TorchEstimator TorchModel TrainingSummary TorchTuner",
    "Loops of your own": "TorchRunner HorovodRunner distributed checkpoint_dir dataloader split_rows",
    "Plans": "plan_training TrainingPlan growth_figure plan_extreme page_command",
    "Checks": "check_prepare check_train check_tune check_train_extreme check_compress check_output",
    "The command": "main",
}
"""The public names in the order of a reader."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made, and the files that pages link to."""
    made = {page: _from_root((ROOT / name).read_text()) for name, page in PAGES.items()}
    made["examples.md"] = "\n".join(_examples())
    made["reference/commands.md"] = "\n".join(_commands())
    made["reference/settings.md"] = "\n".join(_settings())
    made["reference/python.md"] = "\n".join(_public_names())
    for place, text in made.items():
        files.append(File.generated(config, place, content=text))
    texts = [*made.values(), *(_from_docs(page.content_string) for page in files.documentation_pages())]
    for name in sorted({link for text in texts for link in LINK.findall(text) if link.startswith("source/")}):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name.removeprefix("source/"))))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links that lead out of this folder lead to a page, or to a copied file."""
    return _from_docs(markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show the names in docstrings without the roles that Sphinx would read."""
    return ROLE.sub(lambda found: f"<code>{found[1] or found[2]}</code>", html)


def _from_root(text: str) -> str:
    """The text of a file in the root of the repository, with links that lead from this folder."""
    return LINK.sub(lambda found: f"]({_place(found[1])}", text)


def _from_docs(text: str) -> str:
    return LINK.sub(lambda found: f"]({_place(found[1][3:]) if found[1].startswith('../') else found[1]}", text)


def _place(path: str) -> str:
    """Where in the site a file of the repository is."""
    if path == "examples":
        return "examples.md"
    return PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}")


def _examples() -> Iterator[str]:
    yield "# Examples"
    yield "Complete programs. Each runs as it is, on data that a package brings or that it makes; a test runs them all."
    for path in sorted((ROOT / "examples").glob("*.py")):
        program = path.read_text()
        title, _, about = (ast.get_docstring(ast.parse(program)) or "").partition(": ")
        yield f"\n## {title}\n\n{about[0].upper()}{about[1:]}\n\n`python examples/{path.name}`\n"
        yield "```python\n" + program.split("\n", 2)[2] + "```"


def _commands() -> Iterator[str]:
    yield "# Commands"
    with click.Context(commands, info_name="sparkdl") as context:
        yield f"```text\n{commands.get_help(context)}\n```"
        for name, command in commands.commands.items():
            with click.Context(command, parent=context, info_name=name) as inner:
                yield f"\n## sparkdl {name}\n\n```text\n{command.get_help(inner)}\n```"


def _settings() -> Iterator[str]:
    yield "# Settings"
    yield "The keys of a configuration with their defaults and what they may be, as `sparkdl keys` prints them."
    for name, field in Settings.model_fields.items():
        yield f"\n## {name}\n\n```text"
        yield from (*describe_key(name, field), "```")


def _public_names() -> Iterator[str]:
    yield "# Python"
    yield "The public names of the package `sparkdl`."
    listed = [name for names in NAMES.values() for name in names.split()]
    if sorted(listed) != sorted(sparkdl.__all__):
        raise ValueError(f"NAMES in {__file__} and sparkdl.__all__ differ: {sorted({*listed} ^ {*sparkdl.__all__})}")
    for title, names in NAMES.items():
        yield f"\n## {title}\n"
        for name in names.split():
            found = getattr(sparkdl, name)
            if found.__name__ == name:
                yield f"::: {found.__module__}.{name}"
            else:  # the name that it had before
                yield f"\n### {name}\n\nThe same as `{found.__name__}`.\n"
