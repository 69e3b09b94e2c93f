from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dovetail.core.errors import StoreError, UsageError
from dovetail.core.types import Episode, Observation, Outcome, Purpose, Segment
from dovetail.episodes._manifest import pack_manifest, unpack_manifest
from dovetail.episodes.log import EpisodeLog
from support.small_episodes import assert_same_episode

Make = Callable[..., Episode]


@pytest.mark.parametrize("num_steps", [1, 2, 5])
def test_round_trip(tmp_path: Path, make_episode: Make, num_steps: int) -> None:
    episode = make_episode(num_steps=num_steps, judgement=Outcome.FAILURE, purpose=Purpose.EVAL)
    EpisodeLog(tmp_path / "episodes").commit(episode)
    assert_same_episode(EpisodeLog(tmp_path / "episodes").load("e1"), episode)


def test_segments_are_merged(tmp_path: Path, make_episode: Make) -> None:
    episode = make_episode(num_steps=6, cuts=(2, 3))
    log = EpisodeLog(tmp_path)
    log.commit(episode)
    assert len(log.load("e1").segments) == 1
    assert_same_episode(log.load("e1"), episode)


def test_repeated_frame_is_stored_once(tmp_path: Path, make_episode: Make) -> None:
    log = EpisodeLog(tmp_path)
    log.commit(make_episode(num_steps=9))
    manifest = json.loads((tmp_path / "e1" / "manifest.json").read_text())
    assert manifest["cameras"]["camera/wrist"]["num_frames"] == 5  # 10 observations, a frame for every two
    assert manifest["cameras"]["depth"]["num_frames"] == 10


def test_returning_frame_gets_new_index(tmp_path: Path, make_episode: Make) -> None:
    episode = make_episode(num_steps=4)
    frames = episode.column("observation/camera/wrist").copy()
    frames[0] = frames[3]  # a b b a: paired by value and place, never by counting
    frames[2] = frames[1]
    (segment,) = episode.segments
    changed = dataclasses.replace(segment, columns={**segment.columns, "observation/camera/wrist": frames})
    episode = dataclasses.replace(episode, segments=(changed,))
    EpisodeLog(tmp_path).commit(episode)
    assert_same_episode(EpisodeLog(tmp_path).load("e1"), episode)


def test_load_without_images(tmp_path: Path, make_episode: Make) -> None:
    log = EpisodeLog(tmp_path)
    log.commit(make_episode())
    (tmp_path / "e1" / "frames-depth.mkv").unlink()  # not read
    episode = log.load("e1", images=False)
    assert [name for name in episode.segments[0].columns if name.startswith("observation/")] == [
        "observation/state"
    ]
    assert list(episode.last_observation.values) == ["state"]


def test_manifest_summarizes_episode(tmp_path: Path, make_episode: Make) -> None:
    log = EpisodeLog(tmp_path)
    log.commit(make_episode(num_steps=5))
    info = log.manifest("e1")
    assert (info.num_steps, info.num_human_steps, info.num_interventions) == (5, 3, 2)
    assert info.policy_versions == (3, 4)
    assert info.cameras == ("camera/wrist", "depth")
    assert info.duration_s == 0.5
    assert info.num_bytes > 0
    assert info.prompt == "put the peg in — büro"


def test_time_of_reset_is_stored_but_is_no_part_of_the_content(tmp_path: Path, make_episode: Make) -> None:
    log, other = EpisodeLog(tmp_path / "a"), EpisodeLog(tmp_path / "b")
    log.commit(make_episode(reset_s=2.5, has_success=False, outcome=Outcome.TIMEOUT))
    other.commit(make_episode(outcome=Outcome.TIMEOUT))
    assert log.manifest("e1").reset_s == log.load("e1").reset_s == 2.5
    assert log.manifest("e1").success is log.load("e1").success is None
    assert other.manifest("e1").reset_s is None
    assert other.manifest("e1").success is other.load("e1").success is False
    contents = [json.loads((tmp_path / name / "e1/manifest.json").read_text())["content"] for name in "ab"]
    assert contents[0] == contents[1]


@pytest.mark.parametrize("deterministic", [True, False, None])
def test_exploration_noise_is_stored_and_unknown_in_older_episodes(
    tmp_path: Path, make_episode: Make, deterministic: bool | None
) -> None:
    log = EpisodeLog(tmp_path)
    log.commit(make_episode(deterministic=deterministic))
    assert log.manifest("e1").deterministic is log.load("e1").deterministic is deterministic
    manifest = unpack_manifest((tmp_path / "e1/manifest.json").read_bytes(), name="e1")
    assert ("deterministic" in manifest) == (
        deterministic is not None
    )  # the content of older episodes stays the same
    (tmp_path / "e1/manifest.json").write_bytes(pack_manifest({**manifest, "deterministic": "often"}))
    with pytest.raises(StoreError, match="deterministic should be true or false"):
        log.manifest("e1")


@pytest.mark.parametrize("stored", [..., "soon", True, -1.0, 1e300])
def test_manifest_of_0_6_has_no_time_of_reset_and_a_wrong_one_is_refused(
    tmp_path: Path, make_episode: Make, stored: object
) -> None:
    log = EpisodeLog(tmp_path)
    log.commit(make_episode(reset_s=2.5))
    path = tmp_path / "e1/manifest.json"
    manifest = unpack_manifest(path.read_bytes(), name="e1")
    if stored is ...:
        del manifest["reset_s"], manifest["has_success"]
    else:
        manifest["reset_s"] = stored
    path.write_bytes(pack_manifest(manifest))
    if stored is ...:
        assert log.manifest("e1").reset_s is None
        assert log.manifest("e1").has_success
        assert log.load("e1").reset_s is None
    else:
        with pytest.raises(StoreError, match="reset_s should be a number of seconds"):
            log.manifest("e1")


def test_empty_log_lists_nothing(tmp_path: Path, make_episode: Make) -> None:
    log = EpisodeLog(tmp_path / "episodes")
    assert log.ids() == []
    log.commit(make_episode(id="a", num_steps=1))
    assert log.ids() == ["a"]
    assert "a" in log
    assert "d" not in log


def test_committing_twice_with_other_segments_is_harmless(tmp_path: Path, make_episode: Make) -> None:
    log = EpisodeLog(tmp_path)
    log.commit(make_episode())
    before = (tmp_path / "e1" / "manifest.json").stat()
    log.commit(make_episode(cuts=(2,)))
    assert (tmp_path / "e1" / "manifest.json").stat() == before


@pytest.mark.parametrize("change", [{"seed": 1}, {"outcome": Outcome.FAILURE}, {"num_steps": 4}])
def test_different_episode_with_same_id_is_refused(
    tmp_path: Path, make_episode: Make, change: dict[str, object]
) -> None:
    log = EpisodeLog(tmp_path)
    log.commit(make_episode())
    with pytest.raises(StoreError, match=r"e1 is already in .* different content"):
        log.commit(make_episode(**change))
    assert_same_episode(log.load("e1"), make_episode())


def test_committing_again_refuses_damaged_episode(tmp_path: Path, make_episode: Make) -> None:
    log = EpisodeLog(tmp_path)
    log.commit(make_episode())
    (tmp_path / "e1" / "steps.parquet").write_bytes(b"")
    with pytest.raises(StoreError, match=r"steps\.parquet is damaged"):
        log.commit(make_episode())


def test_leftovers_of_crash_are_ignored_and_removed(tmp_path: Path, make_episode: Make) -> None:
    log = EpisodeLog(tmp_path)
    half = tmp_path / ".tmp" / "e0"
    half.mkdir(parents=True)
    (half / "steps.parquet").write_bytes(b"half")
    assert log.ids() == []
    log.commit(make_episode())
    assert log.ids() == ["e1"]
    assert not half.exists()


@pytest.mark.parametrize("bad", ["../x", "..", "a/b"])
def test_id_with_path_is_refused(tmp_path: Path, make_episode: Make, bad: str) -> None:
    log = EpisodeLog(tmp_path / "episodes")
    for attempt in (
        lambda: log.commit(make_episode(id=bad)),
        lambda: log.load(bad),
        lambda: log.manifest(bad),
    ):
        with pytest.raises(UsageError, match="not an episode id"):
            attempt()
    assert list(tmp_path.iterdir()) == []


def test_flipped_byte_raises_and_names_file(tmp_path: Path, make_episode: Make) -> None:
    log = EpisodeLog(tmp_path)
    log.commit(make_episode(num_steps=2))
    rng = np.random.default_rng(0)
    for path in sorted((tmp_path / "e1").iterdir()):
        data = path.read_bytes()
        places = rng.integers(len(data), size=400 if path.name == "manifest.json" else 40)
        for place in places:
            damaged = bytearray(data)
            damaged[place] ^= 1 << int(rng.integers(8))
            path.write_bytes(damaged)
            with pytest.raises(StoreError, match=path.name):
                log.load("e1")
        path.write_bytes(data[:-1])
        with pytest.raises(StoreError, match=path.name):
            log.verify("e1")
        path.unlink()
        with pytest.raises(StoreError, match=f"{path.name} is missing"):
            log.load("e1")
        path.write_bytes(data)
    log.verify("e1")
    (tmp_path / "e1" / "stray").touch()
    with pytest.raises(StoreError, match="stray is not part"):
        log.verify("e1")


def test_missing_episode_and_renamed_folder_raise(tmp_path: Path, make_episode: Make) -> None:
    log = EpisodeLog(tmp_path)
    with pytest.raises(StoreError, match="no episode e1"):
        log.load("e1")
    log.commit(make_episode())
    (tmp_path / "e1").rename(tmp_path / "e2")
    with pytest.raises(StoreError, match="contains episode e1"):
        log.load("e2")


def test_refuses_objects_gaps_and_unfinished_episodes(tmp_path: Path, make_episode: Make) -> None:
    log = EpisodeLog(tmp_path)
    episode = make_episode(num_steps=4, cuts=(2,))
    first, second = episode.segments
    with pytest.raises(StoreError, match="gap"):
        log.commit(dataclasses.replace(episode, segments=(second,)))
    with pytest.raises(StoreError, match="no last observation"):
        log.commit(dataclasses.replace(episode, segments=(first,)))
    objects = {**first.columns, "extra/log_prob": np.array([None, None])}
    pickled = dataclasses.replace(first, columns=objects, last_observation=second.last_observation)
    with pytest.raises(StoreError, match=r"extra/log_prob.*objects"):
        log.commit(dataclasses.replace(episode, segments=(pickled,)))
    assert log.ids() == []


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_columns_round_trip(
    tmp_path_factory: pytest.TempPathFactory, make_episode: Make, data: st.DataObject
) -> None:
    num_steps = data.draw(st.integers(1, 4))
    kinds = st.one_of(
        hnp.integer_dtypes(), hnp.unsigned_integer_dtypes(), hnp.floating_dtypes(), st.just(np.dtype(bool))
    )
    names = data.draw(st.lists(st.text("abz_/-. é", min_size=1, max_size=6), max_size=3, unique=True))
    base = make_episode(num_steps=num_steps)
    (segment,) = base.segments
    columns, last = dict(segment.columns), dict(base.last_observation.values)
    for name in names:
        shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
        dtype = data.draw(kinds)
        rows = data.draw(hnp.arrays(dtype, (num_steps + 1, *shape)))
        columns[f"observation/{name}"], last[name] = rows[:-1], rows[-1]
        columns[f"extra/{name}"] = rows[1:]
    changed = Segment(
        episode_id="e1",
        first=0,
        final=True,
        columns=columns,
        last_observation=Observation(time_ns=-1, values=last),
    )
    episode = dataclasses.replace(base, segments=(changed,))
    log = EpisodeLog(tmp_path_factory.mktemp("log"))
    log.commit(episode)
    log.commit(episode)
    assert_same_episode(log.load("e1"), episode)
