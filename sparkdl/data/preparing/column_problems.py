"""The problems that values of a raw column can have, in words."""

from sparkdl.data.bad_rows import COUNT, Problem
from sparkdl.data.preparing.features import InputPlan

__all__ = ["column_problems"]


def column_problems(name: str, inputs: InputPlan, is_staged: bool) -> list[tuple[str, Problem]]:
    """The possible problems of a column, ``missing``, ``infinite`` and ``width`` (of another width), without tests.

    Problems that a stage handles are not included.
    """
    kind, column = inputs.raw_columns[name], f"column {name!r}"
    in_lists = kind == "vector" or kind.startswith("array")
    problems = []
    if name not in inputs.may_be_missing:
        impute = "" if in_lists or kind == "string" else ", add the stage `impute`"
        says = f"{column} has {COUNT} rows that are null or NaN"
        problems.append(("missing", Problem(says, f"drop these rows{impute}", None)))
    if name not in inputs.may_be_infinite:
        beyond = "" if is_staged else " or beyond float32, which ends at 3.4e38"
        says = f"{column} has {COUNT} rows that are infinite{beyond}"
        problems.append(("infinite", Problem(says, "drop these rows", None)))
    if name in inputs.widths:
        what = "vectors" if kind == "vector" else "arrays"
        says = f"{column} has {COUNT} {what} that are not {inputs.widths[name]} wide, as most are"
        problems.append(("width", Problem(says, "give all of them one width, drop these rows", None)))
    return problems
