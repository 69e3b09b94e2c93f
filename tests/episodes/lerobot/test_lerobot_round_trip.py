"""Export and import: everything round-trips except the video codec's loss."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dovetail.core.errors import StoreError, UsageError
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Array, Episode, Observation, Outcome, PromptChange, Purpose, Segment
from dovetail.episodes.lerobot import export, open_dataset
from dovetail.episodes.log import EpisodeLog
from support.lerobot_episodes import (
    ROBOT,
    WITH_DEPTH,
    MemoryLog,
    StreamingLog,
    make_labels,
    make_lerobot_episode,
    psnr_db,
)
from support.prompt_changes import with_prompts

LOSSY_DB = 30.0


def same(before: Episode, after: Episode, *, without: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    """Equal to the bit, but for pictures."""
    assert after.start == replace(before.start, robot=after.robot)
    assert (after.outcome, after.judgement) == (before.outcome, before.judgement)
    assert after.prompt_changes == before.prompt_changes
    names = {name for name in before.segments[0].columns if name.removeprefix("observation/") not in without}
    assert set(after.segments[0].columns) == names
    for name in names:
        equal(before.column(name), after.column(name), what=name)
    assert after.last_observation.time_ns == before.last_observation.time_ns
    assert set(after.last_observation.values) == set(before.last_observation.values) - without
    for key, value in after.last_observation.values.items():
        equal(before.last_observation.values[key][None], value[None], what=f"last {key}")


def equal(before: Array, after: Array, *, what: str) -> None:
    assert (after.dtype, after.shape) == (before.dtype, before.shape), what
    if before.dtype == np.uint8 and before.ndim == 4:
        assert psnr_db(before, after) > LOSSY_DB, what
    elif before.dtype.kind == "f":
        missing = np.isnan(before)  # the bits of a NaN may differ
        assert (np.isnan(after) == missing).all(), what
        assert after[~missing].tobytes() == before[~missing].tobytes(), what
    else:
        assert after.tobytes() == before.tobytes(), what


def test_prompt_of_each_frame_round_trips(tmp_path: Path) -> None:
    """LeRobot stores the task of each frame. The middle episode goes back to its first prompt."""
    plain = [make_lerobot_episode(number) for number in range(3)]
    first = plain[1].prompt
    middle = with_prompts(plain[1], {2: "close the lid", 3: first, 5: "wait"})
    log = _Made([plain[0], middle, plain[2]])
    export(log, tmp_path / "out", ids=[plain[0].id, middle.id, plain[2].id])
    tasks = pq.read_table(tmp_path / "out/meta/tasks.parquet").to_pydict()
    texts = dict(zip(tasks["task_index"], tasks["task"], strict=True))
    table = pq.read_table(tmp_path / "out/data/chunk-000/file-000.parquet").to_pydict()
    assert [texts[number] for number in table["task_index"][6:12]] == [
        first,
        first,
        "close the lid",
        first,
        first,
        "wait",
    ]
    rows = pq.read_table(tmp_path / "out/meta/episodes/chunk-000/file-000.parquet").to_pydict()
    assert rows["tasks"][1] == [first, "close the lid", "wait"]
    for before, after in zip((plain[0], middle, plain[2]), open_dataset(tmp_path / "out").episodes(), strict=True):
        same(before, after)


@pytest.mark.parametrize("codec", ["av1", "h264"])
@pytest.mark.parametrize("log_type", [MemoryLog, StreamingLog])
def test_export_and_import_round_trip(tmp_path: Path, codec: str, log_type: type[MemoryLog]) -> None:
    log = log_type(range(4), cuts=(1, 4))
    seen: list[Any] = []
    export(log, tmp_path / "out", codec=codec, on_episode=lambda *args: seen.append(args))
    assert seen == [(id, count, 4) for count, id in enumerate(log.ids(), start=1)]
    episodes = list(open_dataset(tmp_path / "out").episodes())
    assert [episode.id for episode in episodes] == log.ids()
    for episode in episodes:
        assert episode.robot == ROBOT
        same(log.episode(episode.id), episode)


def test_round_trip_through_episode_log(tmp_path: Path) -> None:
    first, second = EpisodeLog(tmp_path / "first"), EpisodeLog(tmp_path / "second")
    for number in range(2):
        first.commit(make_lerobot_episode(number, robot=WITH_DEPTH))
    export(first, tmp_path / "out")
    for episode in open_dataset(tmp_path / "out", robot=ROBOT).episodes():
        second.commit(episode)
        second.commit(episode)  # harmless
    assert second.ids() == first.ids()
    for id in first.ids():
        same(first.load(id), second.load(id), without={"depth"})


@pytest.mark.parametrize("log_type", [MemoryLog, StreamingLog])
def test_depth_round_trips_to_the_bit(tmp_path: Path, log_type: type[MemoryLog]) -> None:
    log = log_type(range(2), robot=WITH_DEPTH, cuts=(2,))
    report = export(log, tmp_path / "out")
    assert not report.not_exported
    export(log_type(range(3), robot=WITH_DEPTH), tmp_path / "out")  # adds one
    for number, episode in enumerate(open_dataset(tmp_path / "out", robot=WITH_DEPTH).episodes()):
        before = make_lerobot_episode(number, robot=WITH_DEPTH)
        assert episode.robot == WITH_DEPTH
        np.testing.assert_array_equal(episode.column("observation/depth"), before.column("observation/depth"))
        np.testing.assert_array_equal(
            episode.last_observation.values["depth"], before.last_observation.values["depth"]
        )


@pytest.mark.parametrize("damage", ["missing", "other", "text"])
def test_damaged_depth_file_is_an_error_of_one_line(tmp_path: Path, damage: str) -> None:
    export(MemoryLog([0], robot=WITH_DEPTH), tmp_path / "out")
    small = replace(
        WITH_DEPTH, observation={**WITH_DEPTH.observation, "depth": ArraySpec(shape=(8, 8, 1), dtype="uint16")}
    )
    export(MemoryLog([0], robot=small), tmp_path / "small")
    (path,) = (tmp_path / "out/dovetail/depth").rglob("*.mkv")
    if damage == "missing":
        path.unlink()
    else:
        (other,) = (tmp_path / "small/dovetail/depth").rglob("*.mkv")
        path.write_bytes(b"#EXTM3U\n/etc/passwd" if damage == "text" else other.read_bytes())
    with pytest.raises(StoreError) as caught:
        list(open_dataset(tmp_path / "out").episodes())
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_labels_round_trip(tmp_path: Path) -> None:
    log = MemoryLog([0, 1])
    labels = make_labels(log.episode(log.ids()[1]), success=True)
    export(log, tmp_path / "out", labels={labels.episode_id: labels}.get)
    dataset = open_dataset(tmp_path / "out")
    assert dataset.is_ours and len(dataset) == 2
    assert [dataset.episode_id(index) for index in range(2)] == log.ids()
    assert dataset.labels(0) is None
    again = dataset.labels(1)
    assert again is not None
    np.testing.assert_array_equal(again.rewards, labels.rewards)
    np.testing.assert_array_equal(again.discounts, labels.discounts)
    assert again.labeler == "imported" and again.priority == 0  # a dataset must not outrank a person
    assert again.version == f"{labels.labeler} {labels.version}, priority {labels.priority}"
    assert (again.success, again.confidence, again.discard) == (labels.success, labels.confidence, labels.discard)


def test_discarded_episode_is_exported_only_by_id(tmp_path: Path) -> None:
    log = MemoryLog([0, 1])
    labels = replace(make_labels(log.episode(log.ids()[1]), success=False), discard=True)
    report = export(log, tmp_path / "out", labels={labels.episode_id: labels}.get)
    assert report.left_out == {labels.episode_id: "it was discarded"}
    export(log, tmp_path / "out", labels={labels.episode_id: labels}.get, ids=[labels.episode_id])
    again = open_dataset(tmp_path / "out").labels(1)
    assert again is not None
    assert again.discard


def test_robots_of_same_kind_share_dataset_and_keep_names(tmp_path: Path) -> None:
    export(MemoryLog([0]), tmp_path / "out")
    other = replace(ROBOT, name="panda-2")
    export(MemoryLog([1], robot=other), tmp_path / "out")
    assert [episode.robot.name for episode in open_dataset(tmp_path / "out").episodes()] == ["panda-1", "panda-2"]


def test_evaluations_and_aborted_episodes_are_exported_only_by_id(tmp_path: Path) -> None:
    class Mixed(MemoryLog):
        def episode(self, episode_id: str) -> Episode:
            number = self.ids().index(episode_id)
            changes: dict[str, Any] = [{}, {"purpose": Purpose.EVAL}, {"outcome": Outcome.ABORTED}][number]
            return replace(super().episode(episode_id), **changes)

    log = Mixed([0, 1, 2])
    report = export(log, tmp_path / "out")
    assert report.exported == (log.ids()[0],)
    assert report.left_out == {log.ids()[1]: "it is an evaluation", log.ids()[2]: "it was aborted"}
    report = export(log, tmp_path / "out", ids=[log.ids()[2], log.ids()[1]])
    assert report.exported == (log.ids()[2], log.ids()[1])
    assert [episode.outcome for episode in open_dataset(tmp_path / "out").episodes()][1] is Outcome.ABORTED
    with pytest.raises(UsageError, match="1 episodes were left out, the first because it is an evaluation"):
        export(_Only(log, log.ids()[1]), tmp_path / "none")
    assert not (tmp_path / "none").exists()


class _Only:
    def __init__(self, log: MemoryLog, id: str) -> None:
        self._log, self._id = log, id
        self.manifest, self.load = log.manifest, log.load

    def ids(self) -> list[str]:
        return [self._id]


def test_fractional_control_rate_needs_fps(tmp_path: Path) -> None:
    log = MemoryLog([0], robot=replace(ROBOT, control_hz=12.5))
    with pytest.raises(UsageError, match=r"runs at 12\.5 Hz, but LeRobot needs an integer frame rate.* --fps 12"):
        export(log, tmp_path / "out")
    export(log, tmp_path / "out", fps=13)
    (episode,) = open_dataset(tmp_path / "out").episodes()
    assert episode.robot.control_hz == 12.5
    same(log.episode(episode.id), episode)


def test_episode_of_one_step_round_trip(tmp_path: Path) -> None:
    log = MemoryLog([0], num_steps=1)
    export(log, tmp_path / "out")
    (episode,) = open_dataset(tmp_path / "out").episodes()
    same(log.episode(episode.id), episode)


def test_broken_datasets_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "out"
    export(MemoryLog([0, 1]), root)
    data = root / "data/chunk-000/file-000.parquet"
    whole = data.read_bytes()
    data.write_bytes(whole[:-100])
    with pytest.raises(StoreError, match=r"cannot read .*data/chunk-000/file-000\.parquet"):
        list(open_dataset(root).episodes())
    data.write_bytes(whole)
    video = next((root / "videos").rglob("*.mp4"))
    video.write_bytes(b"")
    with pytest.raises(StoreError, match=r"file-000\.mp4 cannot be decoded"):
        list(open_dataset(root).episodes())
    video.unlink()
    with pytest.raises(StoreError, match=r"file-000\.mp4 is missing"):
        list(open_dataset(root).episodes())
    (root / "meta/episodes/chunk-000/file-000.parquet").unlink()
    with pytest.raises(StoreError, match="2 episodes, but meta/episodes describes 0"):
        list(open_dataset(root).episodes())


# Any numeric dtype and any small shape: low-dimensional values are stored exactly.
_DTYPES = st.sampled_from(
    [
        "float32",
        "float64",
        "float16",
        "bool",
        "uint8",
        "int8",
        "int16",
        "uint16",
        "int32",
        "uint32",
        "int64",
        "uint64",
    ]
)


@st.composite
def recordings(draw: st.DrawFn) -> list[Episode]:
    keys = draw(st.lists(st.sampled_from(["state", "a.b", "a/b", "q", "tactile"]), min_size=1, unique=True))
    specs = {
        key: ArraySpec(shape=draw(hnp.array_shapes(min_dims=0, max_dims=2, max_side=3)), dtype=draw(_DTYPES))
        for key in keys
    }
    action = ArraySpec(shape=(draw(st.integers(1, 3)),))
    robot = RobotSpec(
        name="r",
        embodiment="e",
        observation=specs,
        action=action,
        action_kind="k",
        control_hz=float(draw(st.integers(1, 60))),
    )

    def numbers(dtype: str, shape: tuple[int, ...]) -> Array:
        return draw(hnp.arrays(dtype, shape))

    episodes = []
    for number in range(draw(st.integers(1, 3))):
        num_steps = draw(st.integers(1, 4))
        columns: dict[str, Array] = {
            "time_ns": numbers("int64", (num_steps,)),
            "proposed": numbers("float32", (num_steps, *action.shape)),
            "executed": numbers("float32", (num_steps, *action.shape)),
            "source": draw(hnp.arrays("uint8", num_steps, elements=st.integers(0, 1))),
            "policy_version": numbers("int64", (num_steps,)),
            "chunk_id": numbers("int64", (num_steps,)),
            "chunk_index": numbers("int64", (num_steps,)),
            "extra/odd": numbers(draw(_DTYPES), (num_steps, 2)),
            **{f"observation/{key}": numbers(of.dtype, (num_steps, *of.shape)) for key, of in specs.items()},
        }
        last = Observation(
            time_ns=draw(st.integers(-(2**63), 2**63 - 1)),
            values={key: numbers(of.dtype, of.shape) for key, of in specs.items()},
        )
        later = draw(st.sets(st.integers(1, num_steps - 1), max_size=3)) if num_steps > 1 else set()
        segment = Segment(
            episode_id=f"e{number}",
            first=0,
            final=True,
            columns=columns,
            last_observation=last,
            # texts differ: LeRobot's table of tasks has no two equal ones
            prompt_changes=tuple(PromptChange(step=step, prompt=f"stage {step}") for step in sorted(later)),
        )
        episodes.append(
            Episode(
                id=f"e{number}",
                task=draw(st.text(min_size=1, max_size=5)),
                prompt=draw(st.text(max_size=5)),
                robot=robot,
                operator=draw(st.text(max_size=3)),
                purpose=Purpose.DEMO,
                outcome=draw(st.sampled_from(list(Outcome))),
                judgement=draw(st.none() | st.sampled_from(list(Outcome))),
                seed=draw(st.integers(0, 2**40)),
                config_hash="h",
                started_unix_ns=draw(st.integers(0, 2**62)),
                segments=(segment,),
            )
        )
    return episodes


class _Made(MemoryLog):
    def __init__(self, episodes: list[Episode]) -> None:
        self._made = {episode.id: episode for episode in episodes}
        self._numbers = dict.fromkeys(self._made, 0)

    def episode(self, episode_id: str) -> Episode:
        return self._made[episode_id]


@pytest.mark.extended
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(recordings())
def test_all_dtypes_round_trip_exactly(episodes: list[Episode]) -> None:
    log = _Made(episodes)
    with tempfile.TemporaryDirectory() as folder:
        export(log, Path(folder) / "out", ids=[episode.id for episode in episodes])
        for before, after in zip(episodes, open_dataset(Path(folder) / "out").episodes(), strict=True):
            same(before, after)
