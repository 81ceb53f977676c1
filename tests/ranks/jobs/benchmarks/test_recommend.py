"""The benchmark of recommenders at a small size."""

from functools import partial

from benchmarks.recommend import DDP, DENSE, ITEMS, NUMBERS, OURS, SMALL, WIDTH, Sizes, measure
from sparkdl.cluster import run_local
from sparkdl.collectives import TorchBackend


def test_each_loop_takes_its_steps_and_sparse_gradients_send_what_a_batch_has() -> None:
    sizes = Sizes(rows=40_000, few=1_000, batch=32, steps=3, rounds=1)
    found = run_local(partial(measure, sizes), 2, backend=TorchBackend())[0]
    assert found.seconds.keys() == {OURS, SMALL, DENSE, DDP}
    assert all(seconds > 0 for each in found.seconds.values() for seconds in each)
    of_tables = 4 * WIDTH * (sizes.rows + ITEMS)
    others = found.sent[DENSE] - of_tables
    assert 4 * NUMBERS * WIDTH < others < 100_000
    assert found.sent[OURS] - others <= 2 * 8 + 2 * 32 * 4 * (1 + WIDTH)
    assert found.checkpoint[2] > 2 * of_tables  # with Adagrad's sums
