"""What the README tells people to type and to open is there."""

import re
from pathlib import Path

import pytest

from sparkdl.cli import commands
from sparkdl.config import load_settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SHELL = "\n".join(re.findall(r"```sh\n(.*?)```", README, re.DOTALL)).replace("\\\n", " ")


def test_every_command_and_target_exists() -> None:
    told = set(re.findall(r"^sparkdl ([\w-]+)", SHELL, re.MULTILINE))
    assert told and told <= commands.commands.keys()
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    told = set(re.findall(r"\bmake ([\w-]+)", SHELL))
    assert told and told <= targets


def test_every_job_and_configuration_exists_and_takes_the_keys() -> None:
    lines = re.findall(r"(?:sparkdl [\w-]+|(jobs/\w+\.py)) +(conf/\w+\.yaml)([^#\n]*)", SHELL)
    assert len(lines) >= 4
    for job, configuration, overrides in lines:
        assert (ROOT / job).exists()
        load_settings(ROOT / configuration, overrides.split())


def test_every_link_leads_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert len(links) > 3
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_layout_names_what_is_there_and_leaves_nothing_out() -> None:
    layout = re.search(r"## The layout\n\n```\n(.*?)```", README, re.DOTALL)
    assert layout
    named = {name or beside for name, beside in re.findall(r"^  (\w+(?:\.py|/))|; (\w+\.py)", layout[1], re.MULTILINE)}
    there = {f"{path.name}/" if path.is_dir() else path.name for path in (ROOT / "sparkdl").glob("[a-z]*")}
    assert named == there


@pytest.mark.parametrize("name", commands.commands)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        commands([name, "--help"], prog_name="sparkdl")
    assert ending.value.code == 0
    assert f"Usage: sparkdl {name}" in (text := capsys.readouterr().out)
    assert len(text.splitlines()) >= 5
