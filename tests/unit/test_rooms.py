"""Who may know whom, as CONTRIBUTING says; no circles; no two files or classes of one name."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "sparkdl"
GROUND = {"config", "errors", "extras", "forks", "java", "masking", "sessions", "settings", "stack", "storage"}
GROUND |= {"inputs", "program", "tables"}
FIRST = {"cluster", "collectives", "data", "models", "parameters", "preprocessing", "tracking"}
SECOND = {"extreme", "forms", "layouts", "planning", "scoring", "serving", "training", "tuning"}
ALSO = {"data": {"preprocessing"}, "scoring": {"extreme", "training"}, "tuning": {"training"}}
ALSO |= {"forms": {"extreme", "scoring", "training"}, "serving": {"scoring"}, "training": {"extreme", "layouts"}}
ALSO |= {"planning": {"layouts", "training"}}
"""Rooms that a room may know beside those below it: data has stages that preprocessing applies, scoring opens what
extreme has made and asks training's tasks what outputs mean, planning tries training's steps, tuning runs trials by
training, forms are measured by training's and extreme's figures and found by scoring's card, serving answers by
scoring, and training has models that layouts spread over ranks, and asks extreme's ensembles as teachers."""
ENTRY_POINTS = {"sparkdl.daemon", "sparkdl.scoring.pyfunc"}
"""What Spark and MLflow import by name in processes of their own: to say that name is not to import it."""
MIRRORS = {
    # Settings mirror what they are for, MACH the synchronous training, and planning decides what is left to it.
    "train.py": {"settings", "training", "extreme", "planning"},
    "prepare.py": {"settings", "data"},
    "tune.py": {"settings", "tuning"},
    "compress.py": {"settings", "forms"},
    "backend.py": {"cluster", "collectives"},  # what a launch asks of a library, and what libraries answer
    "horovod.py": {"", "collectives"},  # sparkdl.horovod is the name that Databricks' users import
}
"""Files that have one name in several rooms on purpose."""


def name_of(file: Path) -> str:
    parts = file.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(file): ast.parse(file.read_text()) for file in ROOT.rglob("*.py")}


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def known(tree: ast.AST, *, for_types: bool = True) -> Iterator[str]:
    """The modules that a module imports, in a function too, or names by a string: ``module`` or ``module:name``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            submodules = {f"{node.module}.{each.name}" for each in node.names} & MODULES.keys()
            yield from submodules or {node.module}
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in ENTRY_POINTS:
            yield node.value.partition(":")[0]
        if for_types or not is_for_types(node):
            yield from known(node, for_types=for_types)


def room_of(module: str) -> str:
    return [*module.split("."), ""][1]


def test_an_import_is_seen_wherever_it_hides() -> None:
    hidden = """
from sparkdl.errors import DataError
def f():
    from sparkdl import config
    import_module("sparkdl.masking")
TABLE = {"sparkdl.storage:join": "x"}
if TYPE_CHECKING:
    import sparkdl.settings
"""
    tree = ast.parse(hidden)
    for_types = {"sparkdl.settings"}
    seen = {"sparkdl.errors", "sparkdl.config", "sparkdl.masking", "sparkdl.storage"}
    assert set(known(tree)) & MODULES.keys() == seen | for_types
    assert set(known(tree, for_types=False)) & MODULES.keys() == seen


@pytest.mark.parametrize("room", sorted(GROUND | FIRST | SECOND))
def test_a_room_knows_only_the_floors_below(room: str) -> None:
    allowed = (GROUND if room in GROUND | FIRST else GROUND | FIRST) | ALSO.get(room, set()) | {room}
    found = {
        (module, other)
        for module, tree in MODULES.items()
        if room_of(module) == room
        for other in known(tree)
        if other in MODULES and other != "sparkdl" and room_of(other) not in allowed
    }
    assert found == set()


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_modules_do_not_import_each_other_in_circles() -> None:
    """The package's own file, which imports a public name when it is used, is a table of contents and left out."""
    others = MODULES.keys() - {"sparkdl"}
    graph = {module: set(known(MODULES[module], for_types=False)) & others - {module} for module in others}
    assert circle(graph) == []
    assert circle(graph | {"sparkdl.errors": {"sparkdl.config"}}) != []


def test_no_two_files_have_one_name_but_those_that_mirror_each_other() -> None:
    rooms = defaultdict(list)
    for file in ROOT.rglob("*.py"):
        rooms[file.name].append((*file.relative_to(ROOT).parts[:-1], "")[0])
    shared = {name: places for name, places in rooms.items() if len(places) > 1 and name != "__init__.py"}
    assert {name: places for name, places in shared.items() if set(places) != MIRRORS.get(name)} == {}


def test_no_two_classes_or_types_have_one_name() -> None:
    homes = defaultdict(list)
    for module, tree in MODULES.items():
        for node in ast.iter_child_nodes(tree):
            for name in names_of_types(node):
                homes[name].append(module)
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


def names_of_types(node: ast.AST) -> Iterator[str]:
    """The class or the type alias that a statement defines, unless it is private to its file."""
    if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
        yield node.name
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    for target in targets:
        if isinstance(target, ast.Name) and target.id[0].isupper() and not target.id.isupper():
            yield target.id
