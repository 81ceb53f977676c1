"""Compiling loops."""

from sparkdl.extreme.jit import compiled


def test_where_nothing_can_be_kept_on_disk_it_is_compiled_all_the_same():
    namespace: dict = {}
    exec("def twice(x):\n    return 2 * x", namespace)  # of no file, so Numba finds no place for what it compiles
    assert compiled()(namespace["twice"])(21) == 42
