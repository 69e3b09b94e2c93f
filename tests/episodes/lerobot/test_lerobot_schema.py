"""Each file of an export against the LeRobot v3.0 format. The slow tests use the real package."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import jsonschema
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail.core.specs import ArraySpec
from dovetail.core.types import Outcome
from dovetail.episodes.lerobot import ExportReport, FileSizes, export
from support.lerobot_episodes import ROBOT, MemoryLog, StreamingLog, make_labels

STATISTICS = ("min", "max", "mean", "std", "count", "q01", "q10", "q50", "q90", "q99")
FRONT, WRIST = "observation.images.camera_front", "observation.images.wrist"
LENGTHS = 6
NUM_EPISODES = 5

WHOLE = {"type": "integer", "minimum": 0}
INFO = {
    "type": "object",
    "properties": {
        "codebase_version": {"const": "v3.0"},
        "robot_type": {"const": "arm7"},
        "fps": {"const": 10},
        "total_episodes": WHOLE,
        "total_frames": WHOLE,
        "total_tasks": WHOLE,
        "chunks_size": {"const": 1000},
        "data_files_size_in_mb": {"const": 100},
        "video_files_size_in_mb": {"const": 200},
        "data_path": {"const": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"},
        "video_path": {"const": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"},
        "splits": {"type": "object", "required": ["train"], "additionalProperties": {"pattern": r"^\d+:\d+$"}},
        "features": {
            "type": "object",
            "propertyNames": {"pattern": "^[^/]+$"},
            "additionalProperties": {
                "type": "object",
                "properties": {
                    "dtype": {"enum": ["float32", "int64", "bool", "video"]},
                    "shape": {"type": "array", "items": WHOLE, "minItems": 1},
                    "names": {"type": ["array", "null"], "items": {"type": "string"}},
                    "info": {"type": "object"},
                },
                "required": ["dtype", "shape", "names"],
                "additionalProperties": False,
            },
        },
    },
    "additionalProperties": False,
}
INFO["required"] = list(INFO["properties"])  # type: ignore[call-overload]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StreamingLog, ExportReport]:
    """Five episodes in two exports, so that there are two files of everything."""
    root = tmp_path_factory.mktemp("lerobot") / "dataset"
    log = StreamingLog(range(NUM_EPISODES), num_steps=LENGTHS, cuts=(4,))
    export(log, root, ids=log.ids()[:2])
    return root, log, export(log, root)


def load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def files(root: Path, pattern: str) -> list[Path]:
    return sorted(root.glob(pattern))


def rows(root: Path, pattern: str) -> list[dict[str, Any]]:
    return [row for path in files(root, pattern) for row in pq.read_table(path).to_pylist()]


def test_files_have_lerobot_paths(dataset: Any) -> None:
    root, log, report = dataset
    parts = [f"chunk-000/file-{number:03d}" for number in range(2)]
    expected = {"meta/info.json", "meta/stats.json", "meta/tasks.parquet", "dovetail/dataset.json"}
    for part in parts:
        expected |= {f"data/{part}.parquet", f"meta/episodes/{part}.parquet", f"dovetail/episodes/{part}.parquet"}
        expected |= {f"videos/{camera}/{part}.mp4" for camera in (FRONT, WRIST)}
    assert {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()} == expected
    assert not list(root.glob(".*")), "nothing hidden is left to be uploaded"
    assert report.exported == tuple(log.ids()[2:])
    assert report.already_there == tuple(log.ids()[:2])
    assert (report.num_episodes, report.num_frames) == (NUM_EPISODES, NUM_EPISODES * LENGTHS)


def test_info_json_matches_schema(dataset: Any) -> None:
    root = dataset[0]
    info = load(root / "meta/info.json")
    jsonschema.validate(info, INFO)
    assert info["total_episodes"] == NUM_EPISODES
    assert info["total_frames"] == NUM_EPISODES * LENGTHS
    assert info["total_tasks"] == 2
    assert info["splits"] == {"train": f"0:{NUM_EPISODES}"}
    features = info["features"]
    assert features["observation.state"] == {
        "dtype": "float32",
        "shape": [5],
        "names": ["joint_pos.a", "joint_pos.b", "joint_pos.c", "gripper.0", "ticks.0"],
    }
    assert features["action"] == {"dtype": "float32", "shape": [2], "names": ["x", "y"]}
    assert features[FRONT]["shape"] == [48, 64, 3]
    assert features[WRIST]["shape"] == [34, 42, 3], "odd sides are padded, grey has three channels"
    assert features[WRIST]["names"] == ["height", "width", "channels"]
    assert features[FRONT]["info"]["video.codec"] == "av1"
    needed = {"next.reward", "next.done", "next.success", "complementary_info.is_intervention"}
    assert needed <= set(features)
    assert not [name for name in features if "image" in name and features[name]["dtype"] != "video"]


def test_data_files_match_schema(dataset: Any) -> None:
    root, log, _ = dataset
    features = load(root / "meta/info.json")["features"]
    numbers = {name: of for name, of in features.items() if of["dtype"] != "video"}
    for path in files(root, "data/*/*.parquet"):
        schema = pq.read_schema(path)
        assert set(schema.names) == set(numbers), "no video columns"
        for name, of in numbers.items():
            kind = schema.field(name).type
            if of["shape"] == [1]:
                assert kind == pa.from_numpy_dtype(np.dtype(of["dtype"])), name
            else:
                assert pa.types.is_fixed_size_list(kind) and kind.list_size == of["shape"][0], name
                assert kind.value_type == pa.from_numpy_dtype(np.dtype(of["dtype"])), name
    frames = rows(root, "data/*/*.parquet")
    assert [frame["index"] for frame in frames] == list(range(NUM_EPISODES * LENGTHS))
    assert [frame["episode_index"] for frame in frames] == [n for n in range(NUM_EPISODES) for _ in range(LENGTHS)]
    assert [frame["frame_index"] for frame in frames] == list(range(LENGTHS)) * NUM_EPISODES
    assert {frame["task_index"] for frame in frames} == {0, 1}
    for frame in frames:
        assert frame["timestamp"] == np.float32(frame["frame_index"] / 10)
        assert frame["next.done"] == (frame["frame_index"] == LENGTHS - 1)
    outcomes = [log.episode(id).outcome for id in log.ids()]
    ends = [frame for frame in frames if frame["next.done"]]
    assert [end["next.success"] for end in ends] == [outcome is Outcome.SUCCESS for outcome in outcomes]
    assert [end["next.truncated"] for end in ends] == [outcome is Outcome.TIMEOUT for outcome in outcomes]
    assert [end["complementary_info.discount"] for end in ends] == [float(o is Outcome.TIMEOUT) for o in outcomes]
    assert [f["complementary_info.is_intervention"] for f in frames[:LENGTHS]] == [False, True, True] + [False] * 3
    assert frames[3]["next.reward"] == pytest.approx(0.3 + 0.5), "the task's own rewards, added up"


def test_episodes_files_match_schema(dataset: Any) -> None:
    root, log, _ = dataset
    episodes = rows(root, "meta/episodes/*/*.parquet")
    assert [row["episode_index"] for row in episodes] == list(range(NUM_EPISODES))
    assert [row["dovetail/id"] for row in episodes] == log.ids()
    for number, row in enumerate(episodes):
        file = 0 if number < 2 else 1
        assert row["tasks"] == [log.episode(log.ids()[number]).prompt]
        assert row["length"] == LENGTHS
        assert (row["dataset_from_index"], row["dataset_to_index"]) == (number * LENGTHS, (number + 1) * LENGTHS)
        place = number if number < 2 else number - 2  # one more frame for each episode before it
        for kind in ("data", "meta/episodes", f"videos/{FRONT}", f"videos/{WRIST}"):
            assert (row[f"{kind}/chunk_index"], row[f"{kind}/file_index"]) == (0, file), kind
        for camera in (FRONT, WRIST):
            assert row[f"videos/{camera}/from_timestamp"] == place * (LENGTHS + 1) / 10
            assert row[f"videos/{camera}/to_timestamp"] == (place * (LENGTHS + 1) + LENGTHS) / 10
    schema = pq.read_schema(files(root, "meta/episodes/*/*.parquet")[0])
    for feature, of in load(root / "meta/info.json")["features"].items():
        for name in STATISTICS:
            kind, depth = schema.field(f"stats/{feature}/{name}").type, 0
            while pa.types.is_list(kind):
                kind, depth = kind.value_type, depth + 1
            assert depth == (3 if of["dtype"] == "video" and name != "count" else 1), (feature, name)


def test_statistics_are_computed_over_frames(dataset: Any) -> None:
    root, log, _ = dataset
    stats = load(root / "meta/stats.json")
    features = load(root / "meta/info.json")["features"]
    assert list(stats) == list(features)
    for feature, of in features.items():
        assert set(stats[feature]) == set(STATISTICS)
        shape = (3, 1, 1) if of["dtype"] == "video" else tuple(of["shape"])
        for name in STATISTICS:
            assert np.shape(stats[feature][name]) == ((1,) if name == "count" else shape), (feature, name)
    actions = np.concatenate([log.episode(id).column("executed") for id in log.ids()]).astype(np.float64)
    assert stats["action"]["count"] == [len(actions)]
    for name, expected in {
        "min": actions.min(0),
        "max": actions.max(0),
        "mean": actions.mean(0),
        "std": actions.std(0),
        "q01": np.quantile(actions, 0.01, axis=0),
        "q50": np.quantile(actions, 0.5, axis=0),
        "q99": np.quantile(actions, 0.99, axis=0),
    }.items():
        np.testing.assert_allclose(stats["action"][name], expected, rtol=1e-6, atol=1e-9, err_msg=name)
    pictures = np.concatenate([log.episode(id).column("observation/camera/front") for id in log.ids()]) / 255
    for name, expected in {
        "min": pictures.min((0, 1, 2)),
        "max": pictures.max((0, 1, 2)),
        "mean": pictures.mean((0, 1, 2)),
        "std": pictures.std((0, 1, 2)),
    }.items():
        np.testing.assert_allclose(np.ravel(stats[FRONT][name]), expected, rtol=1e-6, err_msg=name)


def test_videos_have_one_frame_more_than_steps(dataset: Any) -> None:
    root = dataset[0]
    for camera, size in ((FRONT, (64, 48)), (WRIST, (42, 34))):
        for path, episodes in zip(files(root, f"videos/{camera}/*/*.mp4"), (2, 3), strict=True):
            with av.open(str(path)) as container:
                stream = container.streams.video[0]
                assert (stream.width, stream.height) == size
                assert stream.codec_context.name in ("libdav1d", "av1")
                assert stream.average_rate == 10
                times = [picture.time for picture in container.decode(stream)]
            np.testing.assert_allclose(times, np.arange(episodes * (LENGTHS + 1)) / 10)


def test_tasks_are_index_of_pandas_frame(dataset: Any) -> None:
    table = pq.read_table(dataset[0] / "meta/tasks.parquet")
    assert table.column_names == ["task_index", "task"]
    assert table["task"].to_pylist() == ["put peg 0 in — büro", "put peg 1 in — büro"]
    assert json.loads(table.schema.metadata[b"pandas"])["index_columns"] == ["task"]


def test_full_files_start_new_ones(tmp_path: Path) -> None:
    log = StreamingLog(range(4))
    export(log, tmp_path / "small", sizes=FileSizes(data_mb=0.001, video_mb=200))
    assert len(files(tmp_path / "small", "data/*/*.parquet")) == 4
    log = StreamingLog(range(3), num_steps=100)  # longer than what an encoder holds back
    export(log, tmp_path / "videos", sizes=FileSizes(data_mb=100, video_mb=0.002))
    assert len(files(tmp_path / "videos", f"videos/{FRONT}/*/*.mp4")) == 3
    frames = rows(tmp_path / "videos", "data/*/*.parquet")
    assert [frame["index"] for frame in frames] == list(range(300))
    starts = [
        row[f"videos/{FRONT}/from_timestamp"] for row in rows(tmp_path / "videos", "meta/episodes/*/*.parquet")
    ]
    assert starts == [0.0] * 3


def test_video_length_is_limited_for_float32_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.episodes.lerobot._part._MAX_FILE_S", 1.5)  # two episodes of 7 frames at 10 Hz
    export(StreamingLog(range(5)), tmp_path / "out")
    assert len(files(tmp_path / "out", f"videos/{FRONT}/*/*.mp4")) == 3


def test_labels_set_success_and_rewards(tmp_path: Path) -> None:
    log = MemoryLog([0, 1])
    failed, won = (make_labels(log.episode(id), success=id.endswith("1-panda-0")) for id in log.ids())
    labels = {failed.episode_id: failed, won.episode_id: won}
    export(log, tmp_path / "out", labels=labels.get)
    frames = rows(tmp_path / "out", "data/*/*.parquet")
    np.testing.assert_array_equal(
        [f["next.reward"] for f in frames], np.concatenate([failed.rewards, won.rewards])
    )
    assert [f["next.success"] for f in frames if f["next.done"]] == [False, True], "and not what was recorded"


def test_report_lists_observations_that_do_not_fit(tmp_path: Path) -> None:
    maps = {**ROBOT.observation, "map": ArraySpec(shape=(24, 32, 2), dtype="uint16")}
    report = export(MemoryLog([0], robot=replace(ROBOT, observation=maps)), tmp_path / "out")
    assert set(report.not_exported) == {"map"}
    assert "uint16[24, 32, 2]" in report.not_exported["map"]


def test_success_without_labels_has_reward_one(tmp_path: Path) -> None:
    class Silent(MemoryLog):
        def episode(self, episode_id: str) -> Any:
            episode = super().episode(episode_id)
            for segment in episode.segments:
                for name in [name for name in segment.columns if name.startswith("reward/")]:
                    del segment.columns[name]  # type: ignore[attr-defined]
            return episode

    export(Silent([0, 1]), tmp_path / "out")
    rewards = [frame["next.reward"] for frame in rows(tmp_path / "out", "data/*/*.parquet")]
    assert rewards == [0.0] * 5 + [1.0] + [0.0] * 6
