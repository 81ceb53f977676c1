"""What a container has left, by the files of Linux's control groups."""

from pathlib import Path

import psutil

from sparkdl.cluster import free_memory


def test_without_a_limit_it_is_what_the_host_has_left(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    assert 0 < free_memory(tmp_path) <= psutil.virtual_memory().total


def test_a_container_has_what_its_limit_leaves_and_the_files_that_would_be_dropped(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 300\n")
    assert free_memory(tmp_path) == 400


def test_control_groups_of_version_1_count_as_well(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("1000\n")
    (tmp_path / "memory" / "memory.usage_in_bytes").write_text("1200\n")
    (tmp_path / "memory" / "memory.stat").write_text("total_inactive_file 100\n")
    assert free_memory(tmp_path) == 0
