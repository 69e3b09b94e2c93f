"""Several people at one queue: each episode is shown to one at a time and labeled once."""

import threading

import pytest

from dovetail.console.labeling_queue import EpisodeClaims, LabelingQueue, TakenError
from dovetail.core.errors import UsageError
from dovetail.labels.queue import Reason, Waiting


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


class FakeLabels:
    """The queue and the labels, in memory."""

    def __init__(self, *names):
        self.names = list(names)
        self.labels = []
        self.lock = threading.Lock()

    def waiting(self):
        with self.lock:
            return [Waiting(episode_id=name, reasons=(Reason.NEW,)) for name in self.names]

    def label(self, episode_id, verdict, marks, *, by):
        with self.lock:
            self.labels.append((episode_id, verdict, by))
            if episode_id in self.names:
                self.names.remove(episode_id)

    def retract(self, episode_id, *, by):
        with self.lock:
            mine = [label for label in self.labels if (label[0], label[2]) == (episode_id, by)]
            for label in mine[-1:]:
                self.labels.remove(label)
                self.names.insert(0, episode_id)
            return bool(mine)


def claim(queue, page, **options):
    return [item.episode_id for item in queue.claim(page, **{"count": 2, **options})]


def test_free_episodes_are_claimed_in_order_and_own_claims_count():
    queue = LabelingQueue(FakeLabels("a", "b", "c", "d", "e"))
    assert claim(queue, "one") == ["a", "b"]
    assert claim(queue, "two") == ["c", "d"]
    assert claim(queue, "one") == ["a", "b"]
    assert claim(queue, "three") == ["e"]
    queue.release("one", ["a"])
    assert claim(queue, "one", skip={"a"}) == ["b"]
    assert claim(queue, "three") == ["e", "a"]  # its own claim, then a free one
    assert [owner for _, owner in queue.items("two")] == ["other", "other", "mine", "mine", "other"]


def test_claims_expire_unless_renewed():
    clock = Clock()
    queue = LabelingQueue(FakeLabels("a", "b"), claims=EpisodeClaims(claim_s=30, now_s=clock))
    assert claim(queue, "one", count=1) == ["a"]
    assert claim(queue, "two", count=1) == ["b"]
    for _ in range(3):
        clock.now_s += 20
        assert queue.renew("one", ["a"]) == ["a"]
    assert claim(queue, "three") == ["b"]  # the second page was closed without notice
    assert queue.renew("two", ["b"]) == []
    with pytest.raises(TakenError, match="another person is labeling"):
        queue.label("two", "b", "success", [], by="Bo", queued=True)


def test_expired_claim_is_renewed_if_no_page_took_it():
    clock = Clock()
    queue = LabelingQueue(FakeLabels("a"), claims=EpisodeClaims(claim_s=30, now_s=clock))
    claim(queue, "one")
    clock.now_s += 1000
    assert queue.renew("one", ["a"]) == ["a"]
    assert claim(queue, "two") == []


def test_episode_labeled_by_another_page_is_not_labeled_again():
    clock = Clock()
    labels = FakeLabels("a")
    queue = LabelingQueue(labels, claims=EpisodeClaims(claim_s=30, now_s=clock))
    claim(queue, "one")
    clock.now_s += 1000
    claim(queue, "two")
    queue.label("two", "a", "success", [], by="Bo", queued=True)
    with pytest.raises(TakenError, match="has labeled"):
        queue.label("one", "a", "failure", [], by="Ada", queued=True)
    assert labels.labels == [("a", "success", "Bo")]
    queue.label(
        "one", "a", "failure", [], by="Ada", queued=False
    )  # from the list of episodes it may be labeled again
    assert labels.labels[-1] == ("a", "failure", "Ada")


def test_repeated_label_is_harmless_and_retract_works_after_renaming():
    labels = FakeLabels("a")
    queue = LabelingQueue(labels)
    claim(queue, "one")
    for _ in range(2):  # the first answer was lost
        queue.label("one", "a", "success", [], by="Ada", queued=True)
    queue.retract("one", "a", by="Ada L.")
    assert claim(queue, "two") == []  # the first page has claimed it again
    assert "a" in labels.names
    with pytest.raises(UsageError, match="no label by Cy"):
        queue.retract("three", "b", by="Cy")


def test_closed_page_releases_all_claims():
    queue = LabelingQueue(FakeLabels("a", "b", "c"))
    claim(queue, "one", count=3)
    queue.release("one")
    assert claim(queue, "two", count=3) == ["a", "b", "c"]


def test_concurrent_pages_label_each_episode_once():
    """Each thread claims and labels until the queue is empty."""
    names = [f"e{number:03d}" for number in range(120)]
    labels = FakeLabels(*names)
    queue = LabelingQueue(labels)

    def work(page):
        while items := queue.claim(page, count=3):
            queue.label(page, items[0].episode_id, "success", [], by=page, queued=True)

    threads = [threading.Thread(target=work, args=(f"page {number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(name for name, _, _ in labels.labels) == names
