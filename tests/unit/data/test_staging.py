import json
from pathlib import Path

import pytest

from sparkdl.data.staging import staging
from sparkdl.errors import DatasetError

from .conftest import MakeDataset


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyError), staging(str(tmp_path / "out")) as folder:
        (Path(folder.path) / "half").write_text("half")
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_published_folder_holds_what_was_written_and_the_card(make_dataset: MakeDataset, tmp_path: Path) -> None:
    card = make_dataset([4]).card
    with staging(str(tmp_path / "out")) as folder:
        (Path(folder.path) / "rows").write_text("rows")
        folder.publish(card)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["card.json", "rows"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dataset", "out"]


def test_an_output_that_cannot_be_written_is_found_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatasetError, match="cannot write the dataset to"), staging(str(tmp_path / "file" / "out")):
        pytest.fail("work began")


def test_an_output_that_is_something_else_is_kept(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years")
    with pytest.raises(DatasetError, match="exists and is not a dataset"), staging(str(tmp_path / "out")):
        pytest.fail("work began")
    assert (tmp_path / "out" / "thesis.txt").read_text() == "years"
    assert len(list(tmp_path.iterdir())) == 1


def leftover(folder: Path, owner: dict[str, object]) -> Path:
    folder.mkdir()
    (folder / "_preparing.json").write_text(json.dumps(owner))
    return folder


def test_leftovers_of_dead_runs_are_removed_and_of_living_ones_kept(tmp_path: Path) -> None:
    with staging(str(tmp_path / "out")) as alive:
        owner = json.loads((Path(alive.path) / "_preparing.json").read_text())
        dead = leftover(tmp_path / ".out.preparing-dead", owner | {"born": owner["born"] - 1000})
        elsewhere = leftover(tmp_path / ".out.preparing-elsewhere", owner | {"host": "elsewhere"})
        forgotten = leftover(tmp_path / ".out.preparing-old", owner | {"host": "elsewhere", "started": 0})
        stranger = tmp_path / ".out.preparing-stranger"
        stranger.mkdir()
        half_moved = leftover(tmp_path / "out", owner | {"born": owner["born"] - 1000})
        with staging(str(tmp_path / "out")):
            assert not dead.exists()
            assert not forgotten.exists()
            assert not half_moved.exists()
            assert elsewhere.exists()
            assert stranger.exists()
            assert Path(alive.path).exists()
