"""What layouts are called in tables, in pictures and on the command line."""

from sparkdl.settings import RankLayout

__all__ = ["layout_name", "layout_setting", "sharing_name"]


def layout_name(layout: RankLayout) -> str:
    """What it is called in a table."""
    return f"{{{_axes(layout)}}}{_first(layout)}"


def layout_setting(layout: RankLayout) -> str:
    """The value of ``cluster.layout`` for it."""
    styles = ", ".join(f"'{name}': {style}" for name, style in (layout.plan or {}).items())
    return f"{{{_axes(layout)}{f', plan: {{{styles}}}' if styles else ''}}}"


def sharing_name(layout: RankLayout) -> str:
    """How ranks share the network, on any number of them."""
    return f"{_sharing(layout) or 'whole replicas'}{_first(layout)}"


def _axes(layout: RankLayout) -> str:
    sharing = _sharing(layout)
    return f"data: {layout.data}{f', {sharing}' if sharing else ''}"


def _sharing(layout: RankLayout) -> str:
    axes = {"tensor": layout.tensor, "pipeline": layout.pipeline, "experts": layout.experts}
    return ", ".join(f"{axis}: {size}" for axis, size in axes.items() if size > 1)


def _first(layout: RankLayout) -> str:
    """The first layer that is cut, where a plan says so."""
    return f" from {next(iter(layout.plan))} on" if layout.plan else ""
