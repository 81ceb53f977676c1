import pytest

from sparkdl.settings import Tracking
from sparkdl.tracking.store import connect


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One SQLite store for all tests, because making its tables takes seconds."""
    uri = f"sqlite:///{tmp_path_factory.mktemp('store')}/deeper/mlflow.db"
    connect(Tracking(uri=uri))
    return uri
