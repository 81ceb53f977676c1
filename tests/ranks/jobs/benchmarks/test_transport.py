"""The benchmark of what carries parameters, on two processes."""

from benchmarks.asynchronous.transport import measure


def test_a_small_exchange_is_timed_on_each_way_and_hidden_under_steps() -> None:
    found = measure(size=40_000, rounds=3, periods=(1, 2), exchanges=2, step=0.001)
    assert len(found.flight) == len(found.nearby) == len(found.plain) == 3
    assert min(*found.flight, *found.nearby, *found.plain, found.alone) > 0
    assert [each.period for each in found.hidden] == [1, 2]
    assert all(0 <= each.waited < each.step for each in found.hidden)
