"""The check of a GPU, as far as a CPU can tell: all parts at their smallest, and what it says without a GPU."""

import time

import pytest
import torch

from benchmarks import gpu
from benchmarks.extreme.made_up import Shape
from benchmarks.gpu import Sizes, measured, run

SMALLEST = Sizes(
    images=1,
    channels=(4,),
    blocks=1,
    texts=2,
    length=6,
    width=8,
    rows=64,
    shape=Shape(rows=640, features=50, classes=40),
    scored=4,
    steps=1,
    seconds=0,
)


def test_every_part_runs_at_its_smallest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda network: network)  # which takes a compiler, and a minute of it
    report = measured("cpu", SMALLEST)
    assert [row[1] for row in report.rows] == [
        *("sparkdl", "by hand"),
        *("sparkdl", "by hand", "sparkdl, compile"),
        "sparkdl",
        *("batches of 256", "batches of 4,096"),
    ]
    assert all(isinstance(row[2], float) and row[2] > 0 for row in report.rows)


def test_a_part_that_fails_or_takes_too_long_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(device: torch.device, sizes: Sizes) -> list[gpu.Row]:
        raise RuntimeError("CUDA out of memory\nmore of it")

    monkeypatch.setattr(gpu, "SECONDS", 0.3)
    monkeypatch.setattr(gpu, "_residual", fails)
    monkeypatch.setattr(gpu, "_transformer", lambda device, sizes: time.sleep(60))
    rows = measured("cpu", SMALLEST).rows
    assert [row[1] for row in rows] == [
        "RuntimeError: CUDA out of memory",
        "TimeoutError: not finished within its 0 s",
        *["TimeoutError: no time was left for it"] * 2,
    ]


def test_without_a_gpu_it_ends_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match=r"^gpu: PyTorch .* sees no GPU here, and there is nothing to be measured$"):
        run()
