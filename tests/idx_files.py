"""Folders of images in the files that Fashion-MNIST comes in."""

import gzip
import struct
from pathlib import Path

import numpy as np


def write_idx(folder: Path, prefix: str, images: np.ndarray, labels: np.ndarray) -> None:
    """Two files: images of one byte a pixel, and a byte for each label."""
    folder.mkdir(parents=True, exist_ok=True)
    header = struct.pack(">HBB3I", 0, 8, 3, *images.shape)
    (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + images.tobytes()))
    header = struct.pack(">HBBI", 0, 8, 1, len(labels))
    (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(header + labels.tobytes()))
