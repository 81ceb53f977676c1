"""What a function that :class:`sparkdl.HorovodRunner` runs may say to the driver. Runs on ranks."""

from sparkdl.cluster import current_rank

__all__ = ["log_to_driver"]

MAX_MESSAGE = 4000  # characters, as Databricks documents it


def log_to_driver(message: str) -> None:
    """Print a message on the driver, cut off after 4,000 characters. Outside of a run it is printed here."""
    text = str(message)[:MAX_MESSAGE]
    rank = current_rank()
    if rank is None:
        print(text, flush=True)
    else:
        rank.log(text)
