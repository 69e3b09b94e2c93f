"""Several people at one queue: an episode is before one of them at a time, and nobody's word is said twice."""

import threading

import pytest

from dovetail.console.episode_handles import Waits
from dovetail.console.labelling import Labelling, TakenError
from dovetail.console.leases import Leases
from dovetail.core.errors import UsageError


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


class PaperDesk:
    """A desk on paper: what waits, and what was said of it."""

    def __init__(self, *names):
        self.names = list(names)
        self.words = []
        self.lock = threading.Lock()

    def waiting(self):
        with self.lock:
            return [Waits(episode_id=name, reasons=("new",), detail="", since_unix_ns=0) for name in self.names]

    def say(self, episode_id, verdict, marks, *, by):
        with self.lock:
            self.words.append((episode_id, verdict, by))
            if episode_id in self.names:
                self.names.remove(episode_id)

    def unsay(self, episode_id, *, by):
        with self.lock:
            mine = [word for word in self.words if (word[0], word[2]) == (episode_id, by)]
            for word in mine[-1:]:
                self.words.remove(word)
                self.names.insert(0, episode_id)
            return bool(mine)


def claimed(labelling, page, **options):
    return [item.episode_id for item in labelling.claim(page, **{"count": 2, **options})]


def test_the_first_that_nobody_has_are_given_out_and_those_held_count():
    labelling = Labelling(PaperDesk("a", "b", "c", "d", "e"))
    assert claimed(labelling, "one") == ["a", "b"]
    assert claimed(labelling, "two") == ["c", "d"]
    assert claimed(labelling, "one") == ["a", "b"]
    assert claimed(labelling, "three") == ["e"]
    labelling.release("one", ["a"])
    assert claimed(labelling, "one", skip={"a"}) == ["b"]
    assert claimed(labelling, "three") == ["e", "a"]  # what it has, then what is free
    assert [whose for _, whose in labelling.queue("two")] == ["theirs", "theirs", "mine", "mine", "theirs"]


def test_a_page_that_is_not_heard_of_loses_its_episodes_and_one_that_renews_does_not():
    clock = Clock()
    labelling = Labelling(PaperDesk("a", "b"), leases=Leases(lease_s=30, now_s=clock))
    assert claimed(labelling, "one", count=1) == ["a"]
    assert claimed(labelling, "two", count=1) == ["b"]
    for _ in range(3):
        clock.now_s += 20
        assert labelling.renew("one", ["a"]) == ["a"]
    assert claimed(labelling, "three") == ["b"]  # the second was closed without a word
    assert labelling.renew("two", ["b"]) == []
    with pytest.raises(TakenError, match="somebody else is labelling"):
        labelling.say("two", "b", "success", [], by="Bo", queued=True)


def test_a_page_that_slept_gets_its_episode_back_if_nobody_took_it():
    clock = Clock()
    labelling = Labelling(PaperDesk("a"), leases=Leases(lease_s=30, now_s=clock))
    claimed(labelling, "one")
    clock.now_s += 1000
    assert labelling.renew("one", ["a"]) == ["a"]
    assert claimed(labelling, "two") == []


def test_what_somebody_labelled_while_we_slept_is_not_labelled_again():
    clock = Clock()
    desk = PaperDesk("a")
    labelling = Labelling(desk, leases=Leases(lease_s=30, now_s=clock))
    claimed(labelling, "one")
    clock.now_s += 1000
    claimed(labelling, "two")
    labelling.say("two", "a", "success", [], by="Bo", queued=True)
    with pytest.raises(TakenError, match="has labelled"):
        labelling.say("one", "a", "failure", [], by="Ada", queued=True)
    assert desk.words == [("a", "success", "Bo")]
    labelling.say("one", "a", "failure", [], by="Ada", queued=False)  # on purpose, from the list, it may be
    assert desk.words[-1] == ("a", "failure", "Ada")


def test_saying_it_twice_is_harmless_and_undo_works_under_another_name():
    desk = PaperDesk("a")
    labelling = Labelling(desk)
    claimed(labelling, "one")
    for _ in range(2):  # the first answer was lost on its way
        labelling.say("one", "a", "success", [], by="Ada", queued=True)
    labelling.unsay("one", "a", by="Ada L.")
    assert claimed(labelling, "two") == []  # it is before the first page again
    assert "a" in desk.names
    with pytest.raises(UsageError, match="no word of Cy's"):
        labelling.unsay("three", "b", by="Cy")


def test_a_closed_page_gives_all_back():
    labelling = Labelling(PaperDesk("a", "b", "c"))
    claimed(labelling, "one", count=3)
    labelling.release("one")
    assert claimed(labelling, "two", count=3) == ["a", "b", "c"]


def test_many_hurried_people_share_a_queue():
    """Threads as the server's: each claims, says, claims on. Every episode is labelled once, by one of them."""
    names = [f"e{number:03d}" for number in range(120)]
    desk = PaperDesk(*names)
    labelling = Labelling(desk)

    def work(page):
        while items := labelling.claim(page, count=3):
            labelling.say(page, items[0].episode_id, "success", [], by=page, queued=True)

    people = [threading.Thread(target=work, args=(f"page {number}",)) for number in range(6)]
    for person in people:
        person.start()
    for person in people:
        person.join(30)
    assert sorted(name for name, _, _ in desk.words) == names
