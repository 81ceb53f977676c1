"""What one GPU does in six minutes, without Spark: two networks beside other loops, very many classes, and scoring.

Each part has a budget of seconds; what it has not found by then is left out, and the other parts are measured all the
same. Rows are made up, and lie in the memory of the CPU, as they do when they come from files.
"""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import FrameType
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import sparkdl
from benchmarks.extreme.made_up import Shape, write_dataset
from benchmarks.report import Report
from benchmarks.sequences import Classifier
from sparkdl.collectives import Communicator, TorchBackend
from sparkdl.data import Batch
from sparkdl.extreme.fit import Epoch, choose_buckets, fit
from sparkdl.inputs.spec import InputSpec
from sparkdl.inputs.tensors import Inputs, answer, count_rows, moved
from sparkdl.models import build, build_named
from sparkdl.scoring.network import NetworkModel
from sparkdl.settings import Train
from sparkdl.training.groups import Groups
from sparkdl.training.recipes.recipe import autocast, build_optimizer
from sparkdl.training.replica import Replica
from sparkdl.training.tasks import Classification

__all__ = ["Sizes", "measured", "run"]

SECONDS = 345
"""Of all parts; what is left of six minutes is for imports, and for what a budget cannot interrupt."""
CLASSES, IMAGE = 10, (32, 32, 3)
ODP = Shape(rows=1_084_404, features=421_705, classes=105_033)
MACH = sparkdl.Extreme(buckets=32, repetitions=25, hidden=[], epochs=2, batch_size=1024, hashing="random")

Row = list[str | float]
Step = Callable[[Batch], object]


class Sizes(NamedTuple):
    """How much is computed, and for how long."""

    images: int = 512
    """Of a batch."""
    channels: tuple[int, ...] = (64, 128, 256)
    blocks: int = 3
    """Of each stage of the residual network, which has so many channels."""
    texts: int = 256
    length: int = 128
    width: int = 256
    rows: int = 32 * 8192
    """That very many classes are learned from: a part of ODP's."""
    shape: Shape = ODP
    scored: int = 100_000
    steps: int = 10
    """That a loop takes in a turn."""
    seconds: float = 20.0
    """For which loops take turns."""


def run() -> Report:
    """Measure the parts in turn, in this process. Runs on a machine with a GPU; elsewhere it ends and says so."""
    if not torch.cuda.is_available():
        raise SystemExit(f"gpu: PyTorch {torch.__version__} sees no GPU here, and there is nothing to be measured")
    return measured("cuda", Sizes())


def measured(device: str, sizes: Sizes) -> Report:
    """The report, computed on a device."""
    started = time.monotonic()
    parts: dict[str, tuple[float, Callable[[torch.device, Sizes], list[Row]]]] = {
        "residual network, bfloat16": (70, _residual),
        "transformer of 4 layers, bfloat16": (120, _transformer),
        "MACH, ODP's features and classes": (110, _mach),
        "scoring": (45, _scoring),
    }
    rows: list[Row] = []
    for name, (seconds, measure) in parts.items():
        budget = min(seconds, SECONDS - (time.monotonic() - started))
        try:
            with _at_most(budget):
                rows += [[name, *row] for row in measure(torch.device(device), sizes)]
        except Exception as error:  # the parts after it are measured all the same
            rows.append([name, f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}", "", "", ""])
    where = torch.cuda.get_device_name() if device == "cuda" else "the CPU"
    return Report(
        title=f"gpu: {where}, PyTorch {torch.__version__}, in {time.monotonic() - started:.0f} s",
        columns=["part", "loop", "rows/s", "seconds", "of what"],
        rows=rows,
        note=f"Medians of turns of {sizes.steps} steps. Batches of {sizes.images} images of 32x32 pixels and of"
        f" {sizes.texts} texts of {sizes.length} tokens; MACH has {MACH.repetitions} linear repetitions of"
        f" {MACH.buckets} buckets, in one pack, and learns from {sizes.rows:,} rows.",
    )


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raise ``TimeoutError`` in the block when so many seconds are over, or at once if there are none."""

    def end(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not finished within its {seconds:.0f} s")

    if seconds <= 0:
        raise TimeoutError("no time was left for it")
    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _residual(device: torch.device, sizes: Sizes) -> list[Row]:
    """Our step and one that is written by hand, with the same network."""
    random = torch.Generator().manual_seed(0)
    images = [torch.randint(0, 256, (sizes.images, *IMAGE), dtype=torch.uint8, generator=random) for _ in range(4)]
    options = {"optimizer": "sgd", "optimizer_options": {"momentum": 0.9}, "precision": "bfloat16"}
    settings = Train.model_validate({"model": "resnet", **options})
    with TorchBackend().connect(device) as world:
        ours = _ours(_resnet(sizes), settings, world, device)
        by_hand = _by_hand(_resnet(sizes).to(device), settings, device)
        return _in_turn({"sparkdl": ours, "by hand": by_hand}, _batches(images, random), device, sizes)


def _transformer(device: torch.device, sizes: Sizes) -> list[Row]:
    """The same with and without ``torch.compile``."""
    random = torch.Generator().manual_seed(0)
    spec = InputSpec(column="words", kind="sequence", shape=(sizes.length,), dtype="int32", vocabulary=8_000)
    shape = sizes.texts, sizes.length
    texts = [
        {"words": torch.randint(0, 8_000, shape, generator=random), "words_mask": torch.ones(shape, dtype=torch.bool)}
        for _ in range(4)
    ]

    def network() -> nn.Module:
        return build_named(Classifier, {"words": spec}, num_classes=CLASSES, options={"width": sizes.width})

    plain = Train(precision="bfloat16")
    with TorchBackend().connect(device) as world:
        loops = {"sparkdl": _ours(network(), plain, world, device)}
        loops["by hand"] = _by_hand(network().to(device), plain, device)
        found = _in_turn(loops, _batches(texts, random), device, sizes)
        compiled = {"sparkdl, compile": _ours(network(), Train(precision="bfloat16", compile=True), world, device)}
        try:
            return found + _in_turn(compiled, _batches(texts, random), device, sizes)
        except Exception as error:  # no compiler, or no time: what was found stays
            return [*found, [f"sparkdl, compile: {type(error).__name__}", "", "", ""]]


def _mach(device: torch.device, sizes: Sizes) -> list[Row]:
    """The second epoch of all repetitions together."""
    with TemporaryDirectory() as folder:
        shape = Shape(sizes.rows, sizes.shape.features, sizes.shape.classes)
        dataset = write_dataset(Path(folder) / "odp", shape)
        rates: list[float] = []

        def note(_: int, epochs: list[Epoch]) -> None:
            rates.append(epochs[0].rows_per_second)

        fit(dataset, MACH, choose_buckets(dataset, MACH, range(MACH.repetitions)), device=device, on_epoch=note)
    return [["sparkdl", rates[-1], sizes.shape.rows / rates[-1], f"an epoch of {sizes.shape.rows:,} rows"]]


def _scoring(device: torch.device, sizes: Sizes) -> list[Row]:
    """What a task that scores does with decoded rows, by the size of a batch."""
    rows = np.random.default_rng(0).integers(0, 256, (sizes.scored, *IMAGE), dtype=np.uint8)
    spec = InputSpec(column="image", kind="image", shape=IMAGE, dtype="uint8")
    model = NetworkModel(_resnet(sizes).eval().to(device), spec, {"logits": (CLASSES,)}, str(device))
    found: list[Row] = []
    for size in (256, 4096):
        model.outputs_of(rows[: 2 * size], batch_size=size)
        started = time.perf_counter()
        model.outputs_of(rows, batch_size=size)
        seconds = time.perf_counter() - started
        found.append([f"batches of {size:,}", sizes.scored / seconds, seconds, f"{sizes.scored:,} images"])
    return found


def _resnet(sizes: Sizes) -> nn.Module:
    torch.manual_seed(0)
    options = {"channels": sizes.channels, "blocks": sizes.blocks}
    return build("resnet", input_shape=IMAGE, num_classes=CLASSES, options=options).train()


def _batches(inputs: Sequence[Inputs], random: torch.Generator) -> list[Batch]:
    counts = [count_rows(each) for each in inputs]
    labels = [torch.randint(0, CLASSES, (count,), generator=random) for count in counts]
    return [Batch(each, of, count) for each, of, count in zip(inputs, labels, counts, strict=True)]


def _ours(network: nn.Module, settings: Train, world: Communicator, device: torch.device) -> Step:
    replica = Replica(network.train(), settings, Classification(CLASSES), Groups(world, world), device)
    return lambda batch: replica.step([batch], rate=settings.learning_rate)


def _by_hand(network: nn.Module, settings: Train, device: torch.device) -> Step:
    optimizer = build_optimizer(settings, network.train())

    def step(batch: Batch) -> None:
        inputs, labels = moved(batch.inputs, device), batch.labels.to(device, non_blocking=True)
        optimizer.zero_grad()
        with autocast(settings, device):
            loss = functional.cross_entropy(answer(network, inputs), labels)
        loss.backward()
        optimizer.step()

    return step


def _in_turn(loops: dict[str, Step], batches: list[Batch], device: torch.device, sizes: Sizes) -> list[Row]:
    """Rows a second and seconds of a step, as long as there is time, and once at least."""
    endless, found = cycle(batches), {name: list[float]() for name in loops}
    for step in loops.values():
        for _ in range(3):  # kernels are chosen, and compiled
            step(next(endless))
    until = time.monotonic() + sizes.seconds
    while time.monotonic() < until or not all(found.values()):
        for name, step in loops.items():
            _wait(device)
            started = time.perf_counter()
            for _ in range(sizes.steps):
                step(next(endless))
            _wait(device)
            found[name].append((time.perf_counter() - started) / sizes.steps)
    rows = len(batches[0].labels)
    return [[name, rows / median(each), median(each), f"a step of {rows:,} rows"] for name, each in found.items()]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
