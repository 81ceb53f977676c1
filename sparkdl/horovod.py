"""Messages to the driver from functions that :class:`sparkdl.HorovodRunner` runs. Runs on ranks."""

from sparkdl.cluster import current_rank

__all__ = ["log_to_driver"]

MAX_MESSAGE = 4000  # characters, as Databricks documents it


def log_to_driver(message: str) -> None:
    """Print a message on the driver, truncated to 4,000 characters. Outside of a run, it is printed locally."""
    text = str(message)[:MAX_MESSAGE]
    rank = current_rank()
    if rank is None:
        print(text, flush=True)
    else:
        rank.log(text)
