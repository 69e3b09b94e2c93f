"""The queue against a plain dictionary, with several processes, and with damaged or unexpected files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.errors import UsageError
from dovetail.labels.queue import LabelQueue, Opinion, Reason, Waiting
from support.example_labels import labels

EPISODES = ("e1", "e2", "e3")

opinions = st.lists(
    st.builds(
        Opinion,
        labeler=st.sampled_from(["outcome", "vlm"]),
        version=st.text(max_size=5),
        success=st.booleans(),
        confidence=st.floats(0, 1),
    ),
    max_size=2,
)
put = st.tuples(st.lists(st.sampled_from(Reason), min_size=1, max_size=3), opinions, st.text(max_size=20))
# episode, operation (None: done), and which of two queues executes it
steps = st.lists(st.tuples(st.sampled_from(EPISODES), st.none() | put, st.integers(0, 1)), max_size=25)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_random_queue_operations_match_reference_model(tmp_path_factory: pytest.TempPathFactory, sequence) -> None:
    folder = tmp_path_factory.mktemp("run") / "labels/queue"
    ticks = iter(range(1, 1000))
    queues = [LabelQueue(folder, now_unix_ns=lambda: next(ticks)) for _ in range(2)]
    model: dict[str, Waiting] = {}
    since = 0
    for episode_id, operation, which in sequence:
        if operation is None:
            assert queues[which].done(episode_id) == (model.pop(episode_id, None) is not None)
        else:
            reasons, opinions, note = operation
            if episode_id not in model:
                since += 1
            model[episode_id] = Waiting(
                episode_id=episode_id,
                reasons=tuple(dict.fromkeys(reasons)),
                opinions=tuple(opinions),
                note=note,
                since_unix_ns=model[episode_id].since_unix_ns if episode_id in model else since,
            )
            queues[which].put(episode_id, reasons, opinions=opinions, note=note)
        other = queues[1 - which]
        assert other.waiting() == sorted(model.values(), key=lambda item: item.since_unix_ns)
        assert other.ids() == sorted(model)
        for each in EPISODES:
            assert other.get(each) == model.get(each)


def test_opinion_is_made_from_labels() -> None:
    opinion = Opinion.of(labels(labeler="vlm", version="2", success=False, confidence=0.5))
    assert opinion == Opinion(labeler="vlm", version="2", success=False, confidence=0.5)


WORK = """
import sys
from dovetail.labels.queue import LabelQueue, Reason
queue = LabelQueue(sys.argv[1])
for number in range(60):
    queue.put(f"{sys.argv[2]}-{number}", [Reason.NEW], note="x" * 500)
    queue.put(f"shared-{number % 5}", [Reason.AWAY], note=sys.argv[2] * 100)
    if number % 2:
        assert queue.done(f"{sys.argv[2]}-{number}")
        queue.done(f"shared-{number % 5}")
for number in range(5):
    queue.put(f"shared-{number}", [Reason.NEW])
"""


def test_concurrent_processes_share_queue(tmp_path: Path) -> None:
    names = ("left", "right")
    processes = [
        subprocess.Popen([sys.executable, "-c", WORK, str(tmp_path), name], stderr=subprocess.PIPE)
        for name in names
    ]
    reader = LabelQueue(tmp_path)
    while any(process.poll() is None for process in processes):
        for item in reader.waiting():  # never an incomplete file
            assert item.note in ("", "x" * 500, "left" * 100, "right" * 100)
    assert [process.communicate()[1] for process in processes] == [b"", b""]
    left = {f"{name}-{number}" for name in names for number in range(0, 60, 2)}
    assert set(reader.ids()) == left | {f"shared-{number}" for number in range(5)}


def test_damaged_entry_still_waits(tmp_path: Path) -> None:
    queue = LabelQueue(tmp_path)
    queue.put("e1", [Reason.UNCERTAIN])
    (tmp_path / "e1.json").write_bytes((tmp_path / "e1.json").read_bytes()[:20])
    (tmp_path / ".e2.json.123.tmp").write_text("{")  # a leftover temporary file
    (tmp_path / "notes.txt").write_text("mine")
    (item,) = queue.waiting()
    assert (item.episode_id, item.reasons) == ("e1", (Reason.NEW,))
    assert "damaged" in item.note
    assert queue.done("e1")
    assert queue.waiting() == []


@pytest.mark.parametrize("name", ["../e1", "a/b", "", ".lock", "e1\n", "x" * 200, "..", "e\x00"])
def test_episode_id_with_path_is_refused(tmp_path: Path, name: str) -> None:
    queue = LabelQueue(tmp_path / "queue")
    for ask in (queue.get, queue.done, lambda name: queue.put(name, [Reason.NEW])):
        with pytest.raises(UsageError, match="is not an episode id"):
            ask(name)
    assert not (tmp_path / "queue").exists()
