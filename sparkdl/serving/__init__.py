"""A registered model behind HTTP: requests that arrive at the same time are answered by one forward pass."""

from sparkdl.serving.http_server import serve

__all__ = ["serve"]
