"""Import of foreign datasets: renaming, matching with a robot, and refusals."""

from __future__ import annotations

import io
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dovetail.core.errors import SpecMismatch, StoreError, UsageError
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Outcome, PromptChange, Purpose, Source
from dovetail.episodes.ids import check_episode_id
from dovetail.episodes.lerobot import open_dataset
from dovetail.episodes.log import EpisodeLog
from support.lerobot_episodes import picture, psnr_db

LENGTHS = (4, 3)
SIZE = (32, 48, 3)


def write_foreign(root: Path, *, fps: int = 10, seed: int = 0, flags: dict[str, list[bool]] | None = None) -> Any:
    """A foreign dataset: one row group, a video, images in the table, names as a mapping."""
    rng = np.random.default_rng(seed)
    total = sum(LENGTHS)
    state = rng.normal(size=(total, 4)).astype(np.float32)
    action = rng.normal(size=(total, 2))  # float64
    matrix = rng.normal(size=(total, 2, 2)).astype(np.float32)
    pictures = rng.integers(0, 256, (total, 16, 20, 3), np.uint8)
    episode = np.repeat(np.arange(2), LENGTHS)
    frame = np.concatenate([np.arange(length) for length in LENGTHS])
    columns: dict[str, Any] = {
        "observation.state": pa.FixedSizeListArray.from_arrays(pa.array(state.ravel()), 4),
        "observation.matrix": pa.array(matrix.tolist(), pa.list_(pa.list_(pa.float32()))),
        "observation.images.pic": [{"bytes": _png(picture), "path": "x.png"} for picture in pictures],
        "action": pa.array(action.tolist(), pa.list_(pa.float64())),
        "next.reward": pa.array(frame.astype(np.float32)),
        "note": pa.array(["words"] * total),
        "timestamp": pa.array((frame / fps).astype(np.float32)),
        "frame_index": frame,
        "episode_index": episode,
        "index": np.arange(total),
        "task_index": 1 - episode,
        **{f"next.{name}": values for name, values in (flags or {}).items()},
    }
    _parquet(root / "data/chunk-000/file-000.parquet", columns)
    _parquet(root / "meta/tasks.parquet", {"task_index": [0, 1], "__index_level_0__": ["sort", "stack"]})
    starts = np.cumsum([0, *LENGTHS])
    places = {
        f"{kind}/{part}_index": [0, 0]
        for kind in ("data", "meta/episodes", "videos/observation.images.top")
        for part in ("chunk", "file")
    }
    _parquet(
        root / "meta/episodes/chunk-000/file-000.parquet",
        {
            "episode_index": [0, 1],
            "tasks": [["stack"], ["sort"]],
            "length": list(LENGTHS),
            "dataset_from_index": starts[:-1],
            "dataset_to_index": starts[1:],
            **places,
            "videos/observation.images.top/from_timestamp": starts[:-1] / fps,
            "videos/observation.images.top/to_timestamp": starts[1:] / fps,
        },
    )
    video = root / "videos/observation.images.top/chunk-000/file-000.mp4"
    video.parent.mkdir(parents=True)
    tops = np.stack([picture(SIZE, tick) for tick in range(total)])
    with av.open(str(video), "w") as container:
        stream = container.add_stream("libx264", rate=fps, options={"g": "50", "crf": "18"})  # few key frames
        stream.height, stream.width, stream.pix_fmt = SIZE[0], SIZE[1], "yuv420p"
        for top in tops:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(top, format="rgb24")))
        container.mux(stream.encode(None))
    one = {"shape": [1], "names": None}
    features = {
        "observation.state": {"dtype": "float32", "shape": [4], "names": {"motors": ["a", "b", "c", "grip"]}},
        "observation.matrix": {"dtype": "float32", "shape": [2, 2], "names": None},
        "observation.images.top": {
            "dtype": "video",
            "shape": [3, 32, 48],
            "names": ["channels", "height", "width"],
        },
        "observation.images.pic": {
            "dtype": "image",
            "shape": [16, 20, 3],
            "names": ["height", "width", "channel"],
        },
        "action": {"dtype": "float64", "shape": [2], "names": ["x", "y"]},
        "next.reward": {"dtype": "float32", **one},
        "note": {"dtype": "string", **one},
        "timestamp": {"dtype": "float32", **one},
        **{name: {"dtype": "int64", **one} for name in ("frame_index", "episode_index", "index", "task_index")},
        **{f"next.{name}": {"dtype": "bool", **one} for name in flags or {}},
    }
    info = {
        "codebase_version": "v3.0",
        "robot_type": "so101",
        "fps": fps,
        "total_episodes": 2,
        "total_frames": total,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": features,
    }
    (root / "meta/info.json").write_text(json.dumps(info))
    return {"state": state, "matrix": matrix, "action": action, "pic": pictures, "top": tops}


def _png(pixels: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _parquet(path: Path, columns: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def change_info(root: Path, **changes: Any) -> None:
    path = root / "meta/info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_tasks(root: Path, numbers: list[int], named: list[list[str]]) -> None:
    """Another task for each frame; `named` are those of each episode, which LeRobot lists in any order."""
    for file, name, values in (
        ("data/chunk-000/file-000.parquet", "task_index", numbers),
        ("meta/episodes/chunk-000/file-000.parquet", "tasks", named),
    ):
        table = pq.read_table(root / file)
        pq.write_table(table.set_column(table.column_names.index(name), name, pa.array(values)), root / file)


def test_task_of_each_frame_is_the_prompt_of_the_step(tmp_path: Path) -> None:
    """Tasks 0 and 1 are `sort` and `stack`. The first episode changes twice, the second one never."""
    root, (first, second) = tmp_path / "theirs", LENGTHS
    write_foreign(root)
    plain = [episode.id for episode in open_dataset(root).episodes()]
    change_tasks(root, [1, 0, 0, *[1] * (first - 3), *[0] * second], [["sort", "stack"], ["sort"]])
    changed, same = open_dataset(root).episodes()
    assert (changed.prompt, same.prompt, same.prompt_changes) == ("stack", "sort", ())
    assert changed.prompt_changes == (PromptChange(step=1, prompt="sort"), PromptChange(step=3, prompt="stack"))
    assert changed.id != plain[0]  # another content
    EpisodeLog(tmp_path / "log").commit(changed)


def test_episode_with_too_many_changes_of_the_task_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, (first, second) = tmp_path / "theirs", LENGTHS
    write_foreign(root)
    change_tasks(root, [1, 0, *[1] * (first - 2), *[0] * second], [["sort", "stack"], ["sort"]])
    monkeypatch.setattr("dovetail.episodes.lerobot._prompts.MAX_PROMPT_CHANGES", 1)
    with pytest.raises(StoreError, match="the prompt of episode 0 changes 2 times, but at most 1 are allowed"):
        open_dataset(root).episode(0)


def test_frame_of_an_unknown_task_is_refused(tmp_path: Path) -> None:
    root, (first, second) = tmp_path / "theirs", LENGTHS
    write_foreign(root)
    change_tasks(root, [1, 7, *[1] * (first - 2), *[0] * second], [["stack"], ["sort"]])
    with pytest.raises(StoreError, match="there is no task 7"):
        open_dataset(root).episode(0)


def test_foreign_dataset_is_imported_as_demonstrations(tmp_path: Path) -> None:
    truth = write_foreign(tmp_path / "theirs")
    episodes = list(open_dataset(tmp_path / "theirs").episodes())
    assert [len(episode) for episode in episodes] == list(LENGTHS)
    assert [episode.prompt for episode in episodes] == ["stack", "sort"]
    first = 0
    for episode in episodes:
        part = slice(first, first + len(episode))
        assert (episode.purpose, episode.operator, episode.outcome) == (Purpose.DEMO, "lerobot", Outcome.SUCCESS)
        assert episode.robot.control_hz == 10
        assert episode.robot.action == ArraySpec(shape=(2,), names=("x", "y"))
        assert episode.robot.observation["state"].names == ("a", "b", "c", "grip")
        assert episode.robot.observation["top"].shape == SIZE, (
            "height, width, channels, whatever their order there"
        )
        np.testing.assert_array_equal(episode.column("observation/state"), truth["state"][part])
        np.testing.assert_array_equal(episode.column("observation/matrix"), truth["matrix"][part])
        np.testing.assert_array_equal(episode.column("executed"), truth["action"][part].astype(np.float32))
        np.testing.assert_array_equal(episode.column("proposed"), episode.column("executed"))
        np.testing.assert_array_equal(episode.column("observation/pic"), truth["pic"][part])
        assert psnr_db(episode.column("observation/top"), truth["top"][part]) > 30
        assert set(episode.column("source")) == {Source.HUMAN}
        assert set(episode.column("policy_version")) == {0} and set(episode.column("chunk_id")) == {-1}
        np.testing.assert_array_equal(episode.column("time_ns"), np.arange(len(episode)) * 100_000_000)
        np.testing.assert_array_equal(episode.column("reward/lerobot"), np.arange(len(episode)))
        last = episode.last_observation
        assert last.time_ns == len(episode) * 100_000_000
        for key, value in last.values.items():
            np.testing.assert_array_equal(value, episode.column(f"observation/{key}")[-1], err_msg="seen twice")
        first += len(episode)


def test_importing_twice_is_harmless(tmp_path: Path) -> None:
    write_foreign(tmp_path / "theirs")
    write_foreign(tmp_path / "others", seed=1)
    log = EpisodeLog(tmp_path / "episodes")
    for _ in range(2):
        for episode in open_dataset(tmp_path / "theirs", task="stacking").episodes():
            log.commit(episode)
    ids = log.ids()
    assert len(ids) == 2 and sorted(ids) == ids
    assert [log.manifest(id).task for id in ids] == ["stacking"] * 2
    (tmp_path / "theirs").rename(tmp_path / "moved")
    assert [episode.id for episode in open_dataset(tmp_path / "moved").episodes()] == ids, "wherever it lies"
    moved = open_dataset(tmp_path / "moved")
    assert [moved.episode_id(index) for index in range(len(moved))] == ids
    others = [episode.id for episode in open_dataset(tmp_path / "others").episodes()]
    assert not set(others) & set(ids)
    assert max(ids + others) < "19700101T000000", "before everything a robot of ours recorded"
    assert all(check_episode_id(id) for id in ids)


@pytest.mark.parametrize(
    ("flags", "outcomes"),
    [
        ({"done": [0, 0, 0, 1, 0, 0, 1]}, ["success", "success"]),
        ({"done": [0, 0, 0, 1, 0, 0, 0]}, ["success", "timeout"]),
        ({"done": [0, 0, 0, 1, 0, 0, 1], "success": [0, 0, 0, 1, 0, 0, 0]}, ["success", "failure"]),
        ({"success": [0, 0, 0, 0, 0, 0, 1]}, ["failure", "success"]),
        (
            {"done": [0, 0, 0, 1, 0, 0, 1], "success": [0] * 7, "truncated": [0, 0, 0, 1, 0, 0, 0]},
            ["timeout", "failure"],
        ),
    ],
)
def test_outcomes_follow_the_flags(tmp_path: Path, flags: dict[str, list[int]], outcomes: list[str]) -> None:
    write_foreign(tmp_path / "d", flags={name: [bool(v) for v in values] for name, values in flags.items()})
    assert [episode.outcome.value for episode in open_dataset(tmp_path / "d").episodes()] == outcomes


ARM = RobotSpec(
    name="panda",
    embodiment="arm7",
    observation={
        "joint_pos": ArraySpec(shape=(3,), names=("j1", "j2", "j3")),
        "gripper": ArraySpec(shape=(1,)),
        "front": ArraySpec(shape=SIZE, dtype="uint8"),
    },
    action=ArraySpec(shape=(2,), low=(-5.0, -5.0), high=(5.0, 5.0)),
    action_kind="ee_delta",
    control_hz=10.0,
)
RENAME = {
    "observation.state[0:3]": "joint_pos",
    "observation.state[3]": "gripper",
    "observation.images.top": "front",
}


def test_rename_maps_features_to_observations(tmp_path: Path) -> None:
    truth = write_foreign(tmp_path / "d")
    episodes = list(
        open_dataset(tmp_path / "d", robot=ARM, task="peg", rename=RENAME, ignore_names=True).episodes()
    )
    assert all(episode.robot == ARM and episode.task == "peg" for episode in episodes)
    columns = episodes[0].segments[0].columns
    assert {name for name in columns if name.startswith("observation/")} == {
        "observation/joint_pos",
        "observation/gripper",
        "observation/front",
    }
    np.testing.assert_array_equal(columns["observation/joint_pos"], truth["state"][:4, :3])
    np.testing.assert_array_equal(columns["observation/gripper"], truth["state"][:4, 3:])
    assert columns["executed"].dtype == np.float32


def test_mismatch_error_names_both_sides(tmp_path: Path) -> None:
    root = tmp_path / "d"
    write_foreign(root)

    def refused(robot: RobotSpec = ARM, rename: dict[str, str] = RENAME, ignore_names: bool = True) -> str:
        with pytest.raises((SpecMismatch, UsageError)) as caught:
            open_dataset(root, robot=robot, rename=rename, ignore_names=ignore_names).episodes()
        return str(caught.value)

    assert "names of the dataset and of robot 'panda' differ: a != j1" in refused(ignore_names=False)
    assert "the dataset lacks 'joint_pos' float32[3], 'gripper' float32[1], 'front'" in refused(rename={})
    assert "It has state float32[4], matrix" in refused(rename={})
    assert "recorded at 10 Hz, but robot 'panda' runs at 20 Hz" in refused(robot=replace(ARM, control_hz=20.0))
    wide = refused(robot=replace(ARM, action=ArraySpec(shape=(7,))))
    assert "action: the dataset's action is float64[2], but robot 'panda' has float32[7]" in wide
    whole_numbers = replace(ARM, observation={"joint_pos": ArraySpec(shape=(3,), dtype="int64")})
    assert "is float32[3], but robot 'panda' has int64[3]" in refused(robot=whole_numbers)
    assert "no feature 'observation.stat'. Did you mean 'observation.state'?" in refused(
        rename={"observation.stat": "x"}
    )
    assert "'observation.state[2:9]' is out of range" in refused(rename={"observation.state[2:9]": "joint_pos"})


def _named_dataset(root: Path) -> None:
    """A dataset whose state names the arrays that it consists of, as an export of this arm would."""
    write_foreign(root)
    features = json.loads((root / "meta/info.json").read_text())["features"]
    features["observation.state"]["names"] = ["joint_pos.j1", "joint_pos.j2", "joint_pos.j3", "gripper.0"]
    change_info(root, features=features)


def test_error_of_missing_observations_lists_all_and_its_rename_option_imports(tmp_path: Path) -> None:
    _named_dataset(tmp_path / "d")
    with pytest.raises(SpecMismatch) as caught:
        open_dataset(tmp_path / "d", robot=ARM, task="peg_insertion")
    message = str(caught.value)
    assert (
        "lacks 'joint_pos' float32[3], 'gripper' float32[1], 'front' uint8[32, 48, 3] of robot 'panda'" in message
    )
    assert "It has state float32[4]" in message
    assert "The dataset describes its task as 'sort'; the recipe's task is peg_insertion" in message
    _, proposed = shlex.split(message.split("`")[1])
    rename = dict(pair.split("=") for pair in proposed.split(","))
    assert rename == RENAME
    assert open_dataset(tmp_path / "d", robot=ARM, rename=rename).robot == ARM, "and names need no --ignore-names"


def test_rename_proposal_keeps_given_names_and_says_what_is_unknown(tmp_path: Path) -> None:
    _named_dataset(tmp_path / "d")
    force = replace(ARM, observation={**ARM.observation, "force": ArraySpec(shape=(3,))})
    with pytest.raises(SpecMismatch) as caught:
        open_dataset(tmp_path / "d", robot=force, rename={"observation.state[0:3]": "joint_pos"})
    expected = "'observation.state[0:3]=joint_pos,observation.state[3]=gripper,observation.images.top=front'"
    assert f"Use `--rename {expected}`. Also name what fits with --rename FEATURE=force." in str(caught.value)


def test_other_dataset_versions_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "d"
    write_foreign(root)
    for version, todo in {
        "v1.6": r"v2\.convert_dataset_v1_to_v2, then lerobot\.datasets\.v21\.convert_dataset_v20_to_v21 of LeRobot 0\.3",
        "v2.0": r"Convert it with the script lerobot\.datasets\.v21\.convert_dataset_v20_to_v21 of LeRobot 0\.3",
        "v4.0": r"Convert it to v3\.0 with the LeRobot that wrote it, or update Dovetail",
    }.items():
        change_info(root, codebase_version=version)
        with pytest.raises(
            UsageError, match=rf"of version {version}, but Dovetail reads v2\.1 and v3\.0\. .*{todo}"
        ) as caught:
            open_dataset(root)
        assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match=r"is not a LeRobot dataset: it has no meta/info\.json"):
        open_dataset(tmp_path).episodes()


def test_path_outside_dataset_is_refused(tmp_path: Path) -> None:
    write_foreign(tmp_path / "d")
    change_info(tmp_path / "d", data_path="../../secret.parquet")
    with pytest.raises(StoreError, match="refers to a file outside the dataset"):
        open_dataset(tmp_path / "d")


def test_intervention_flag_sets_source(tmp_path: Path) -> None:
    root = tmp_path / "d"
    write_foreign(root)
    path = root / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    human = pa.array([False, True, True, False] + [False] * 3)
    pq.write_table(table.append_column("complementary_info.is_intervention", human), path)
    episodes = list(open_dataset(root).episodes())
    assert [list(episode.column("source")) for episode in episodes] == [[0, 1, 1, 0], [0, 0, 0]]
    assert episodes[0].num_interventions == 1
