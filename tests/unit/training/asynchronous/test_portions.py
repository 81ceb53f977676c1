"""Every portion is done once, whatever becomes of those who have it."""

import random

from sparkdl.training.asynchronous.portions import Portions

ORDERS = [{"name": name} for name in "abcdef"]


def taken(portions: Portions, worker: str) -> tuple[str, bool]:
    found = portions.take(worker)
    assert found is not None
    return found[1]["name"], found[1]["again"]


def test_portions_are_dealt_in_order_and_each_once() -> None:
    portions = Portions(ORDERS)
    assert [taken(portions, worker) for worker in "xyx"] == [("a", False), ("b", False), ("c", False)]
    assert not portions.finished


def test_what_a_lost_worker_had_goes_to_others_first() -> None:
    portions = Portions(ORDERS)
    for worker in "xxy":
        portions.take(worker)
    portions.finish("x", 0, "done")
    portions.give_back("x")
    assert taken(portions, "y") == ("b", True)
    assert taken(portions, "y") == ("d", False)


def test_at_the_end_who_is_free_does_what_the_slowest_has() -> None:
    portions = Portions(ORDERS[:2])
    portions.take("slow")
    portions.take("fast")
    portions.finish("fast", 1, "done")
    assert taken(portions, "fast") == ("a", True)
    assert portions.take("fast") is None
    assert portions.take("third") is None
    assert portions.finish("fast", 0, "first")
    assert not portions.finish("slow", 0, "second")
    assert portions.finished
    assert portions.results == {0: "first", 1: "done"}
    assert (portions.backups, portions.backups_won) == (1, 1)


def test_who_is_to_work_alone_does() -> None:
    portions = Portions(ORDERS, at_once=1)
    assert taken(portions, "x") == ("a", False)
    assert portions.take("y") is None
    assert taken(portions, "x") == ("b", False)
    portions.give_back("x")
    assert taken(portions, "y")[1]


def test_workers_that_come_and_go_at_random_do_everything_once() -> None:
    draw = random.Random(0)
    portions = Portions([{"number": number} for number in range(200)])
    having: dict[str, list[int]] = {str(worker): [] for worker in range(4)}
    counted = [0] * 200
    while not portions.finished:
        worker = draw.choice(list(having))
        match draw.random():
            case chance if chance < 0.1:
                portions.give_back(worker)
                having[worker].clear()
            case chance if chance < 0.6 and having[worker]:
                number = having[worker].pop(draw.randrange(len(having[worker])))
                counted[number] += portions.finish(worker, number, None)
            case _:
                if found := portions.take(worker):
                    having[worker].append(found[0])
    assert counted == [1] * 200
