"""What layouts are called in tables and on the command line."""

from sparkdl.settings import RankLayout

__all__ = ["layout_name", "layout_setting", "sharing_name"]


def layout_name(layout: RankLayout) -> str:
    """What it is called in a table."""
    first = f" from {next(iter(layout.plan))} on" if layout.plan else ""
    return f"{{{_axes(layout)}}}{first}"


def layout_setting(layout: RankLayout) -> str:
    """The value of ``cluster.layout`` for it."""
    styles = ", ".join(f"'{name}': {style}" for name, style in (layout.plan or {}).items())
    return f"{{{_axes(layout)}{f', plan: {{{styles}}}' if styles else ''}}}"


def _axes(layout: RankLayout) -> str:
    sharing = "" if layout.sharing == 1 else f", {sharing_name(layout)}"
    return f"data: {layout.data}{sharing}"


def sharing_name(layout: RankLayout) -> str:
    """How ranks share the network."""
    axes = {"tensor": layout.tensor, "pipeline": layout.pipeline, "experts": layout.experts}
    return ", ".join(f"{axis}: {size}" for axis, size in axes.items() if size > 1) or "whole replicas"
