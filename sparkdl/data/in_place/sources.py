"""Folders of existing Parquet files that are given in place of a dataset. Runs on the driver."""

import hashlib
import json

from sparkdl.data.card import CARD_NAME
from sparkdl.data.preparing.decisions import kept_settings
from sparkdl.data.sources.table_formats import is_delta_table
from sparkdl.settings import Prepare, Source
from sparkdl.storage import exists, join, list_files, list_folder

__all__ = ["foreign_source", "name_of_card"]


def foreign_source(folder: str) -> Source | None:
    """The source for the Parquet files or the Delta table in a folder; None if it contains a dataset, or neither."""
    if exists(join(folder, CARD_NAME)):
        return None
    if is_delta_table(folder):
        return Source(format="delta", path=folder)
    entries = list_folder(folder)
    has_files = any(entry.name.endswith(".parquet") or (entry.is_folder and "=" in entry.name) for entry in entries)
    return Source(format="parquet", path=folder) if has_files else None


def name_of_card(folder: str, settings: Prepare) -> str:
    """The name of the folder for the card of such rows; it depends on the files and the settings."""
    content = [folder, sorted(list_files(folder)), kept_settings(settings)]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return f"{folder.rstrip('/').rpartition('/')[2]}-{digest[:12]}"
