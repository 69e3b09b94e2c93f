"""Limits for connections without a token: a new one gets in, an old one is closed, one address does not displace others."""

from dovetail.core.unproven_connections import UnprovenConnections


def make(*, max_total=100, max_per_address=100):
    closed = []
    unproven = UnprovenConnections(max_total=max_total, max_per_address=max_per_address)

    def add(key, address="a"):
        unproven.add(key, address, lambda: closed.append(key))

    return unproven, add, closed


def test_oldest_connection_of_an_address_is_closed_above_its_limit():
    unproven, add, closed = make(max_per_address=2)
    for key in (1, 2, 3, 4):
        add(key)
    assert closed == [1, 2] and len(unproven) == 2
    add(5, "b")
    assert closed == [1, 2] and len(unproven) == 3


def test_above_the_total_the_address_with_most_connections_loses_its_oldest():
    unproven, add, closed = make(max_total=4)
    add("robot", "b")
    for key in (1, 2, 3, 4, 5):
        add(key)
    assert closed == [1, 2] and unproven.remove("robot")


def test_proven_and_ended_connections_do_not_count():
    unproven, add, closed = make(max_total=2)
    add(1)
    assert unproven.remove(1) and not unproven.remove(1)
    add(2)
    add(3)
    assert closed == [] and len(unproven) == 2


def test_closed_connection_is_not_counted_any_more():
    unproven, add, closed = make(max_total=1)
    add(1)
    add(2)
    assert closed == [1] and not unproven.remove(1) and unproven.remove(2) and len(unproven) == 0


def test_connection_with_the_key_of_an_earlier_one_replaces_it():
    unproven, add, closed = make(max_per_address=2)
    add(1)
    add(1)
    add(2)
    assert closed == [] and len(unproven) == 2
