"""The board against a plain list of everything that happened."""

import json
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.actor.board import Board, BoardLayout
from dovetail.actor.board_layout import MAX_METRICS, MAX_REWARDS
from dovetail.core.errors import SpecMismatch
from dovetail.core.images import resize_images, seen_robot
from dovetail.core.specs import ArraySpec, PolicySpec, RobotSpec
from dovetail.core.types import Observation, Segment, Source, Step, Verdict

OBSERVATION = {
    "joints": ArraySpec(shape=(2,)),
    "counts": ArraySpec(shape=(1,), dtype="int64"),
    "front": ArraySpec(shape=(2, 3, 3), dtype="uint8"),  # slower than the tick
    "depth": ArraySpec(shape=(2, 2, 1), dtype="uint16"),
}
ROBOT = RobotSpec(
    name="r",
    embodiment="r",
    observation=OBSERVATION,
    action=ArraySpec(shape=(3,)),
    action_kind="any",
    control_hz=10.0,
)
EXTRAS = {
    "held": np.array(False),
    "clipped": np.zeros(3, np.bool_),
    "qpos": np.zeros(4, np.float64),
    "fixtures": np.zeros((0, 7), np.float64),
    "reasons": np.array(0, np.uint8),
}


def layout(num_rows=5, extras=EXTRAS):
    return BoardLayout.of(ROBOT, extras=extras, horizon=4, num_rows=num_rows)


def make_board(num_rows=5, **changes):
    return Board(layout(num_rows, **changes))


def observation(number, *, frame=None, time_ns=None):
    """All values contain `number`, except the frame of the slow camera."""
    frame = number if frame is None else frame
    return Observation(
        time_ns=1000 + 10 * number if time_ns is None else time_ns,
        values={
            "joints": np.array([number, -number], np.float32),
            "counts": np.array([number * 2**33], np.int64),
            "front": np.full((2, 3, 3), frame % 256, np.uint8),
            "depth": np.full((2, 2, 1), 7 * number, np.uint16),
        },
        captured_ns={"front": 5000 + frame},
    )


def step(number, seen):
    return Step(
        observation=seen,
        proposed=np.full(3, number + 0.25, np.float32),
        executed=np.full(3, number + 0.5, np.float32),
        source=Source.HUMAN if number % 3 == 0 else Source.POLICY,
        policy_version=2**40 + number,
        chunk_id=number // 4,
        chunk_index=number % 4,
        verdict=Verdict(outcome=None, rewards={"a": number, "b": -1.5}, metrics={"distance": number / 8}),
        extras={
            "held": np.array(number % 2 == 0),
            "clipped": np.array([True, False, number % 2 == 1]),
            "qpos": number + np.array([1e-12, 1 / 3, 2.0, 3.0]),
            "fixtures": np.zeros((0, 7), np.float64),
            "reasons": np.array(number % 256, np.uint8),
        },
    )


def complete(board, row, done, *, first):
    board.act(
        row,
        proposed=done.proposed,
        executed=done.executed,
        source=done.source,
        policy_version=done.policy_version,
        chunk_id=done.chunk_id,
        chunk_index=done.chunk_index,
        extras=done.extras,
    )
    board.judge(row, done.verdict, first=first)


@dataclass
class Model:
    """Every row that was ever seen, and the steps that were completed."""

    seen: list[Observation] = field(default_factory=list)
    steps: dict[int, Step] = field(default_factory=dict)

    def inputs(self, key, row, first, num_wanted):
        rows = [max(at, first) for at in range(row - num_wanted + 1, row + 1)]
        mask = [at >= first for at in range(row - num_wanted + 1, row + 1)]
        return np.stack([self.seen[at].values[key] for at in rows]), np.array(mask)


@st.composite
def stories(draw):
    """How long each episode is, and at which ticks the slow camera has a new frame and the driver fills buffers."""
    lengths = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    num = sum(lengths) + len(lengths)
    flags = st.lists(st.booleans(), min_size=num, max_size=num)
    return lengths, draw(flags), draw(flags)


@pytest.mark.extended
@settings(max_examples=150, deadline=None)
@given(stories(), st.integers(2, 12), st.data())
def test_board_equals_a_list_model(story, num_rows, data):
    lengths, new_frames, fills = story
    memory = bytearray(layout(num_rows).num_bytes)
    board, reader = (Board(layout(num_rows), memoryview(memory)) for _ in range(2))
    model, frame, number = Model(), 0, 0
    for length in lengths:
        first = board.begin()
        assert first == len(model.seen)
        for at in range(length + 1):
            frame += new_frames[number]
            seen = observation(number, frame=frame)
            if fills[number]:  # the driver has put it there itself
                for key in ("front", "depth"):
                    buffer = board.frame_buffer(key)
                    if key == "depth" or new_frames[number]:
                        buffer[...] = seen.values[key]
                        seen.values[key] = buffer
            row = board.observe(seen)
            model.seen.append(observation(number, frame=frame))
            number += 1
            assert row == first + at
            if at:
                done = step(row - 1, model.seen[row - 1])
                complete(board, row - 1, done, first=at == 1)
                model.steps[row - 1] = done
        check(reader, model, first=first, num_rows=num_rows, data=data)


def check(board, model, *, first, num_rows, data):
    """Another process looks at the same memory."""
    num_seen = len(model.seen)
    assert board.num_seen == num_seen
    kept = range(max(0, num_seen - num_rows), num_seen)
    for row in range(num_seen):
        assert board.is_overwritten(row) == (row <= num_seen - num_rows)
    for row in kept:
        seen, copy = board.observation(row), board.copy(row)
        for mine in (seen, copy):
            assert mine.time_ns == model.seen[row].time_ns
            assert mine.values.keys() == OBSERVATION.keys()
            for key, value in model.seen[row].values.items():
                assert mine.values[key].dtype == value.dtype
                np.testing.assert_array_equal(mine.values[key], value)
        assert not any(value.flags.writeable for value in seen.values.values())
        assert all(value.flags.writeable and value.base is None for value in copy.values.values())
    _check_steps(board, model, [row for row in kept if row in model.steps and row >= first])
    row = data.draw(st.integers(max(first, kept[0]), num_seen - 1), label="row")
    longest = row - kept[0] + 1 if first < kept[0] else num_rows
    history = {key: data.draw(st.integers(1, longest), label=key) for key in ("joints", "front")}
    spec = PolicySpec(name="p", observation=OBSERVATION, action=ROBOT.action, action_kind="any", history=history)
    inputs = board.inputs(spec, row=row, first=first)
    assert inputs.keys() == {*OBSERVATION, "joints/mask", "front/mask"}
    for key in OBSERVATION:
        values, mask = model.inputs(key, row, first, history.get(key, 1))
        if key in history:
            np.testing.assert_array_equal(inputs[key], values[None])
            np.testing.assert_array_equal(inputs[f"{key}/mask"], mask[None])
        else:
            np.testing.assert_array_equal(inputs[key], values)
        assert inputs[key].dtype == OBSERVATION[key].dtype


def _check_steps(board, model, rows):
    if not rows:
        return
    assert board.num_stepped == rows[-1] + 1
    wanted = Segment.of([model.steps[row] for row in rows], episode_id="e").columns
    got = board.columns(rows[0], rows[-1] + 1)
    assert got.keys() == wanted.keys()
    for name, column in wanted.items():
        assert (got[name].dtype, got[name].shape) == (column.dtype, column.shape), name
        np.testing.assert_array_equal(got[name], column, err_msg=name)


def test_history_matches_values_computed_by_hand():
    """Rows 0 to 2 are another episode's; row 3 begins this one."""
    board = make_board(num_rows=8)
    for number in range(6):
        board.observe(observation(number))
    spec = PolicySpec(
        name="p",
        observation={"joints": OBSERVATION["joints"]},
        action=ROBOT.action,
        action_kind="any",
        history={"joints": 4},
    )
    inputs = board.inputs(spec, row=4, first=3)
    assert inputs["joints"][0, :, 0].tolist() == [3, 3, 3, 4]
    assert inputs["joints/mask"].tolist() == [[False, False, True, True]]


# ---- frames


def test_repeated_frame_is_stored_once():
    board = make_board()
    for number, frame in enumerate((1, 1, 1, 2)):
        board.observe(observation(number, frame=frame))
    views = [board.observation(row).values["front"] for row in range(4)]
    assert np.shares_memory(views[0], views[2])
    assert not np.shares_memory(views[2], views[3])
    assert [view[0, 0, 0] for view in views] == [1, 1, 1, 2]
    depth = [board.observation(row).values["depth"] for row in range(4)]
    assert not any(np.shares_memory(depth[row], depth[row + 1]) for row in range(3))


def test_frame_of_a_slow_camera_survives_the_ring():
    board = make_board(num_rows=3)
    for number in range(20):
        board.observe(observation(number, frame=9))
    assert (board.observation(19).values["front"] == 9).all()


def test_new_episode_stores_a_new_frame():
    """Clocks may restart: the same capture time may be another image."""
    board = make_board()
    board.observe(observation(0, frame=1))
    board.begin()
    seen = observation(0, frame=1)
    seen.values["front"][...] = 77
    row = board.observe(seen)
    assert (board.observation(row).values["front"] == 77).all()
    assert (board.observation(row - 1).values["front"] == 1).all()


def test_frame_buffer_is_used_without_a_copy():
    board = make_board()
    buffer = board.frame_buffer("front")
    assert np.shares_memory(buffer, board.frame_buffer("front"))  # until there is a frame in it
    seen = observation(3)
    buffer[...] = 42
    seen.values["front"] = buffer
    row = board.observe(seen)
    assert np.shares_memory(board.observation(row).values["front"], buffer)
    assert (board.observation(row).values["front"] == 42).all()
    assert not np.shares_memory(board.frame_buffer("front"), buffer)  # the next one goes elsewhere


def test_views_are_read_only():
    board = make_board()
    row = board.observe(observation(1))
    for value in board.observation(row).values.values():
        with pytest.raises(ValueError, match="read-only"):
            value[...] = 0


# ---- observe_again


def test_observe_again_replaces_the_observation():
    board = make_board()
    board.observe(observation(1))
    row = board.observe(observation(2))
    board.observe_again(row, observation(8))
    assert board.num_seen == row + 1
    assert board.observation(row).time_ns == 1080
    assert board.observation(row).values["joints"].tolist() == [8, -8]
    assert (board.observation(row).values["front"] == 8).all()
    assert (board.observation(row - 1).values["front"] == 1).all()


def test_observe_again_uses_a_frame_and_marks_overwritten_rows():
    """Five rows and their frames; three more frames write over those of rows 0 and 1, though no row is gone."""
    memory = bytearray(layout(5).num_bytes)
    board, reader = (Board(layout(5), memoryview(memory)) for _ in range(2))
    for number in range(4):
        board.observe(observation(number))
    assert not any(reader.is_overwritten(row) for row in range(4))
    for number in range(10, 13):
        board.observe_again(3, observation(number))
    assert [reader.is_overwritten(row) for row in range(4)] == [True, True, True, False]
    assert (reader.observation(3).values["front"] == 12).all()
    assert (reader.observation(1).values["front"] != 1).all()


def test_rows_without_camera_are_overwritten_after_one_ring():
    blind = BoardLayout(num_rows=3, observation={"joints": ("float32", (2,))}, extras={}, chunk=(4, 3))
    board = Board(blind)
    for number in range(4):
        board.observe(observation(number))
    assert [board.is_overwritten(row) for row in range(4)] == [True, True, False, False]  # row 1 may be next


def test_row_is_a_step_only_after_its_verdict():
    board = make_board()
    row = board.observe(observation(0))
    assert (board.num_seen, board.num_stepped) == (1, 0)
    complete(board, row, step(0, observation(0)), first=True)
    assert (board.num_seen, board.num_stepped) == (1, 1)


# ---- verdicts


def judged(board, verdict):
    row = board.observe(observation(0))
    board.judge(row, verdict, first=True)
    return row


def test_verdict_without_names_is_accepted():
    board = make_board()
    row = judged(board, Verdict(outcome=None))
    columns = board.columns(row, row + 1)
    assert not [name for name in columns if name.startswith(("reward/", "metric/"))]


def test_names_may_come_in_another_order_but_not_change():
    board = make_board()
    row = judged(board, Verdict(outcome=None, rewards={"a": 1, "b": 2}))
    board.judge(row, Verdict(outcome=None, rewards={"b": 4, "a": 3}), first=False)
    columns = board.columns(row, row + 1)
    assert (columns["reward/a"].tolist(), columns["reward/b"].tolist()) == ([3], [4])


@pytest.mark.parametrize("names", [("a",), ("a", "b", "c"), ("a", "c"), ()])
def test_changed_names_within_an_episode_are_rejected(names):
    board = make_board()
    row = judged(board, Verdict(outcome=None, rewards={"a": 1, "b": 2}))
    with pytest.raises(SpecMismatch, match="but at first a, b"):
        board.judge(row, Verdict(outcome=None, rewards=dict.fromkeys(names, 0.0)), first=False)


def test_another_episode_may_have_other_names():
    memory = bytearray(layout().num_bytes)
    board, reader = (Board(layout(), memoryview(memory)) for _ in range(2))
    judged(board, Verdict(outcome=None, rewards={"a_long_name": 1, "b": 2}, metrics={"m": 1}))
    row = judged(board, Verdict(outcome=None, rewards={"ä": 3}))
    columns = reader.columns(row, row + 1)
    assert [name for name in columns if name.startswith(("reward/", "metric/"))] == ["reward/ä"]
    assert columns["reward/ä"].tolist() == [3]


@pytest.mark.parametrize(
    ("rewards", "metrics"),
    [(MAX_REWARDS + 1, 0), (0, MAX_METRICS + 1)],
)
def test_too_many_names_are_rejected(rewards, metrics):
    board = make_board()
    verdict = Verdict(
        outcome=None,
        rewards={f"r{i}": 0.0 for i in range(rewards)},
        metrics={f"m{i}": 0.0 for i in range(metrics)},
    )
    with pytest.raises(SpecMismatch, match=f"this one has {rewards} and {metrics}"):
        judged(board, verdict)


def test_maximum_number_of_names_is_accepted():
    board = make_board()
    rewards, metrics = {f"r{i}": i for i in range(MAX_REWARDS)}, {f"m{i}": -i for i in range(MAX_METRICS)}
    row = judged(board, Verdict(outcome=None, rewards=rewards, metrics=metrics))
    columns = board.columns(row, row + 1)
    assert [columns[f"reward/{name}"][0] for name in rewards] == list(rewards.values())
    assert [columns[f"metric/{name}"][0] for name in metrics] == list(metrics.values())


# ---- the memory itself


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=4),
        st.tuples(
            st.sampled_from(["<f4", "<f8", "|b1", "|u1"]), st.lists(st.integers(0, 3), max_size=3).map(tuple)
        ),
        max_size=4,
    )
)
def test_a_layout_survives_json_and_no_two_arrays_overlap(extras):
    mine = layout(extras={name: np.zeros(shape, dtype) for name, (dtype, shape) in extras.items()})
    again = BoardLayout.from_json(json.loads(json.dumps(mine.to_json())))
    assert again == mine
    assert list(again.arrays()) == list(mine.arrays())
    memory = np.zeros(mine.num_bytes, np.uint8)
    start, end = memory.ctypes.data, memory.ctypes.data + memory.nbytes
    for array in Board(mine, memoryview(memory))._arrays.values():
        if array.size:
            assert start <= array.ctypes.data, "it overlaps with the one before"
            assert array.ctypes.data % array.itemsize == 0
            start = array.ctypes.data + array.nbytes
    assert start <= end


def test_private_and_shared_memory_behave_the_same():
    board = make_board()
    assert (board.num_seen, board.num_stepped, board.heartbeat_ns, board.stopping) == (0, 0, 0, False)
    board.beat(123)
    board.ask_to_stop()
    assert (board.heartbeat_ns, board.stopping) == (123, True)
    assert (board.request.read(), board.answer.read()) == (None, None)


@pytest.mark.parametrize("row", [0, 1, 77])
def test_success_check_has_row_and_result(row):
    board = make_board()
    assert board.success_check == (-1, False)
    for done in (True, False):
        board.post_success_check(row, done)
        assert board.success_check == (row, done)


LARGE = RobotSpec(
    name="r",
    embodiment="r",
    observation={
        "front": ArraySpec(shape=(60, 80, 3), dtype="uint8"),
        "depth": ArraySpec(shape=(60, 80, 1), dtype="uint16"),
    },
    action=ArraySpec(shape=(3,)),
    action_kind="any",
    control_hz=10.0,
)
SEEN = PolicySpec(
    name="p",
    observation=seen_robot(LARGE, 16).observation,
    action=LARGE.action,
    action_kind="any",
    history={"front": 3},
)


def large(tick, *, seed=0, captured_ns=None):
    rng = np.random.default_rng((seed, tick))
    values = {
        "front": rng.integers(0, 256, (60, 80, 3), np.uint8),
        "depth": rng.integers(0, 9000, (60, 80, 1), np.uint16),
    }
    captured = {} if captured_ns is None else dict.fromkeys(values, captured_ns)
    return Observation(time_ns=1000 * seed + tick, values=values, captured_ns=captured)


def assert_seen(board, row, first, shown):
    """Inputs are the scaled frames of `shown`, oldest first."""
    inputs = board.inputs(SEEN, row=row, first=first)
    for place, one in enumerate(shown[-3:]):
        expected = resize_images(one.values["front"], SEEN.observation["front"])
        np.testing.assert_array_equal(inputs["front"][0, 3 - len(shown[-3:]) + place], expected)
    np.testing.assert_array_equal(
        inputs["depth"][0], resize_images(shown[-1].values["depth"], SEEN.observation["depth"])
    )


def test_policy_sees_scaled_frames_of_each_episode_also_where_memory_is_reused():
    board = Board(BoardLayout.of(LARGE, extras={}, horizon=1, num_rows=5))
    for episode in range(3):
        first, shown = board.begin(), []
        for tick in range(8):
            shown.append(large(tick, seed=episode))
            assert_seen(board, board.observe(shown[-1]), first, shown)


def test_frame_that_replaces_another_in_the_same_row_is_seen():
    board = Board(BoardLayout.of(LARGE, extras={}, horizon=1, num_rows=5))
    first, old, new = board.begin(), large(0), large(1)
    row = board.observe(old)
    assert_seen(board, row, first, [old])
    board.observe_again(row, new)
    assert_seen(board, row, first, [new])


def test_control_process_that_starts_again_shows_its_own_frames():
    """It counts frames from 0 again, in the same memory; the inference process keeps its board."""
    layout = BoardLayout.of(LARGE, extras={}, horizon=1, num_rows=5)
    memory = memoryview(bytearray(layout.num_bytes))
    control, inference = Board(layout, memory), Board(layout, memory)
    for seed in range(2):
        first, shown = control.begin(), []
        for tick in range(2):
            shown.append(large(tick, seed=seed))
            assert_seen(inference, control.observe(shown[-1]), first, shown)
        control = Board(layout, memory)


def test_each_frame_is_scaled_once(monkeypatch):
    scaled = []
    monkeypatch.setattr(
        "dovetail.actor.seen_frames.resize_images",
        lambda frames, spec: scaled.append(spec.shape) or resize_images(frames, spec),
    )
    board = Board(BoardLayout.of(LARGE, extras={}, horizon=1, num_rows=5))
    first = board.begin()
    for tick in range(6):  # a new frame at every second tick
        row = board.observe(large(tick // 2, captured_ns=tick // 2))
        board.inputs(SEEN, row=row, first=first)
    assert sorted(scaled) == [(12, 16, 1)] * 3 + [(12, 16, 3)] * 3
