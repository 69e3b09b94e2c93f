"""The episodes of a run survive kills and deletions, and the replay follows log and labels."""

from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.core.errors import Interrupted, StoreError
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import (
    Episode,
    EpisodeStart,
    Labels,
    Observation,
    Outcome,
    Purpose,
    Segment,
    View,
)
from dovetail.episodes.images import ImageCodec
from dovetail.episodes.log import EpisodeLog
from dovetail.episodes.spool import Spool
from dovetail.episodes.verify import verify_spool
from dovetail.labels.chain import LabelerChain
from dovetail.labels.human import human_labels
from dovetail.labels.outcome import OutcomeLabeler
from dovetail.labels.store import LabelStore
from dovetail.replay.mapped import MappedReplay, MappedReplayConfig
from dovetail.runs.experience import Experience
from dovetail.runs.folder import RunFolder
from dovetail.runtime.inline import InlineRun
from dovetail.weights.store import DiskWeightStore
from support.toy_run import TOY

ROBOT = RobotSpec(
    name="panda",
    embodiment="arm7",
    observation={"state": ArraySpec(shape=(2,)), "wrist": ArraySpec(shape=(32, 32, 3), dtype="uint8")},
    action=ArraySpec(shape=(1,), low=(-1.0,), high=(1.0,)),
    action_kind="ee_delta",
    control_hz=10.0,
)


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text(TOY)
    return load([path])


@pytest.fixture
def folder(tmp_path, config):
    return RunFolder.create(tmp_path / "run", config)


def start_of(name, purpose=Purpose.ONLINE):
    return EpisodeStart(
        id=name,
        task="t",
        prompt="",
        robot=ROBOT,
        operator="none",
        purpose=purpose,
        seed=0,
        config_hash="",
        started_unix_ns=0,
    )


def segment_of(name, number, ticks, *, final):
    ticks = np.asarray(ticks)
    smooth = np.add.outer(np.arange(32), np.arange(32))[..., None] * [1, 2, 3] + 5 * number
    pictures = np.stack([(smooth + t).clip(0, 255).astype(np.uint8) for t in [*ticks, ticks[-1] + 1]])
    states = np.stack([np.full(len(ticks) + 1, number), [*ticks, ticks[-1] + 1]], axis=1).astype(np.float32)
    last = Observation(time_ns=0, values={"state": states[-1], "wrist": pictures[-1]})
    segment = Segment(
        episode_id=name,
        first=int(ticks[0]),
        final=final,
        columns={
            "time_ns": ticks.astype(np.int64),
            "observation/state": states[:-1],
            "observation/wrist": pictures[:-1],
            "proposed": np.zeros((len(ticks), 1), np.float32),
            "executed": np.zeros((len(ticks), 1), np.float32),
            "source": np.zeros(len(ticks), np.uint8),
            "policy_version": np.zeros(len(ticks), np.int64),
            "chunk_id": np.full(len(ticks), -1, np.int64),
            "chunk_index": np.zeros(len(ticks), np.int64),
        },
        last_observation=last if final else None,
    )
    return segment, last


def episode_of(name, number, num_steps, *, purpose=Purpose.ONLINE, outcome=Outcome.SUCCESS):
    segment, _ = segment_of(name, number, range(num_steps), final=True)
    return Episode.of(start_of(name, purpose), (segment,), outcome=outcome)


def make(folder, *, keys=("state",), codec="auto", encoder=None, **settings):
    return Experience(
        folder,
        labelers=LabelerChain([OutcomeLabeler()]),
        replay=MappedReplay(MappedReplayConfig(**settings), folder=folder.replay, keys=keys),
        cameras=tuple(key for key in keys if key == "wrist"),
        codec=ImageCodec(name=codec),
        encoder=encoder,
    )


def commit_and_add(experience, *episodes):
    for episode in episodes:
        experience.commit(episode)
        experience.add(episode, experience.dispatcher.label(episode))


def draw(experience, size=400, **names):
    into = {"observation/state": np.zeros((size, 2), np.float32), "reward": np.zeros(size, np.float32), **names}
    experience.replay.sample(into, view=View(), rng=np.random.default_rng(0))
    return into


def test_spool_keeps_an_episode_until_the_log_has_it(folder):
    experience = make(folder)
    segment, last = segment_of("e1", 1, range(4), final=True)
    experience.spool.begin(start_of("e1"))
    experience.spool.append(segment, after=last)
    experience.spool.end(outcome=Outcome.SUCCESS, judgement=None)
    assert experience.spool.pending() == ["e1"]
    experience.commit(Episode.of(start_of("e1"), (segment,), outcome=Outcome.SUCCESS))
    assert experience.spool.pending() == []
    assert experience.log.ids() == ["e1"]


def test_recover_commits_what_was_left_in_the_spool(folder):
    """It commits one complete episode and one interrupted episode. The second is aborted and does not train."""
    for number, ends in ((1, True), (2, False), (3, False)):
        spool = Spool(folder.spool)
        spool.begin(start_of(f"e{number}"))
        if number < 3:  # the third has no steps
            segment, after = segment_of(f"e{number}", number, range(5), final=ends)
            spool.append(segment, after=after)
        if ends:
            spool.end(outcome=Outcome.SUCCESS, judgement=None)
        spool.close()
    experience = make(folder)
    known = experience.recover()
    assert [record.info.id for record in known] == ["e1"]
    assert experience.replay.ids() == ["e1"]
    assert experience.log.ids() == ["e1", "e2"]
    cut = experience.log.load("e2")
    assert (cut.outcome, len(cut)) == (Outcome.ABORTED, 5)
    assert cut.last_observation.values["state"].tolist() == [2.0, 5.0]
    assert experience.spool.pending() == []
    experience.close()
    again = make(folder)  # a second resume
    assert [record.info.id for record in again.recover()] == ["e1"]
    assert again.replay.ids() == ["e1"]


def test_unreadable_journal_does_not_stop_recovery(folder):
    spool = Spool(folder.spool)
    spool.begin(start_of("e1"))
    spool.close()
    (journal,) = folder.spool.glob("*.journal")
    journal.write_bytes(b"\xff" * 100)
    experience = make(folder)
    commit_and_add(experience, episode_of("e2", 2, 3))
    assert [record.info.id for record in experience.recover()] == ["e2"]
    assert journal.exists()
    assert "cannot be recovered" in (folder.path / "events.jsonl").read_text()


def test_damaged_journal_is_kept(folder):
    """Steps before the damage are recovered. The damaged file stays for inspection."""
    experience = make(folder)
    experience.spool.begin(start_of("e1"))
    for first in (0, 4, 8):
        segment, after = segment_of("e1", 1, range(first, first + 4), final=False)
        experience.spool.append(segment, after=after)
    experience.spool.end(outcome=Outcome.SUCCESS, judgement=None)
    (journal,) = folder.spool.glob("*.journal")
    data = bytearray(journal.read_bytes())
    data[len(data) // 2] ^= 1
    journal.write_bytes(data)
    experience.recover()
    assert len(experience.log.load("e1")) in (4, 8)
    (aside,) = folder.spool.glob("*.journal.damaged")
    assert aside.read_bytes() == data
    assert experience.spool.pending() == []
    assert any(finding.path == aside for finding in verify_spool(folder.spool))
    assert "damaged in the spool" in (folder.path / "events.jsonl").read_text()


def test_damaged_episode_is_named_with_what_to_do(folder):
    experience = make(folder)
    commit_and_add(experience, episode_of("e1", 1, 3))
    experience.close()
    (folder.episodes / "e1" / "manifest.json").write_bytes(b"{}")
    with pytest.raises(
        StoreError, match=r"`dovetail episodes verify .*or remove the episode with `dovetail episodes rm .* e1`"
    ):
        make(folder).recover()


def test_label_that_changes_back_returns_the_episode_to_the_replay(folder):
    experience = make(folder)
    commit_and_add(experience, episode_of("e1", 1, 3, purpose=Purpose.DEMO), episode_of("e2", 2, 3))
    for priority, success, held in ((1, False, ["e2"]), (2, True, ["e1", "e2"])):
        experience.close()
        ones = np.ones(3, np.float32)
        description = Labels(
            episode_id="e1",
            rewards=ones,
            discounts=ones,
            success=success,
            confidence=1.0,
            labeler="human",
            version="1",
            priority=priority,
        )
        LabelStore(folder.labels).add(description)
        experience = make(folder)
        experience.recover()
        assert experience.replay.ids() == held


def test_discarded_episode_leaves_the_replay_and_undo_returns_it(folder):
    experience = make(folder)
    commit_and_add(experience, episode_of("e1", 1, 3), episode_of("e2", 2, 3))
    experience.close()
    description = human_labels("e1", num_steps=3, outcome=Outcome.SUCCESS, judgement=Outcome.ABORTED, by="anna")
    LabelStore(folder.labels).add(description)
    for _ in range(2):
        again = make(folder)
        again.recover()
        assert again.replay.ids() == ["e2"]
        assert set(draw(again)["observation/state"][:, 0]) == {2.0}
        again.close()
        shutil.rmtree(folder.replay)  # nor does a rebuild bring it back
    LabelStore(folder.labels).retract(description)
    again = make(folder)
    again.recover()
    assert again.replay.ids() == ["e1", "e2"]


def test_rebuild_leaves_out_the_oldest_episodes(folder):
    """Recency also counts steps that are no longer in the replay."""
    settings = {"capacity_rows": 30}
    demo = episode_of("e0", 0, 4, purpose=Purpose.DEMO)
    experience = make(folder, **settings)
    commit_and_add(experience, demo, *(episode_of(f"e{n}", n, 4) for n in range(1, 40)))
    experience.close()
    recent = View(half_life_steps=20.0)

    def share(experience):
        into = {"observation/state": np.zeros((2000, 2), np.float32)}
        experience.replay.sample(into, view=recent, rng=np.random.default_rng(0))
        return float((into["observation/state"][:, 0] == 0).mean())

    live = make(folder, **settings)
    live.recover()
    before = share(live)
    live.close()
    shutil.rmtree(folder.replay)
    again = make(folder, **settings)
    again.recover()
    assert share(again) == pytest.approx(before, abs=0.01)
    assert before < 0.01  # the demonstration is the oldest by far


def test_recover_after_a_kill_between_log_and_replay(folder):
    experience = make(folder)
    commit_and_add(experience, episode_of("e1", 1, 3))
    experience.commit(episode_of("e2", 2, 3))  # committed, then killed: no labels, not in replay
    experience.close()
    again = make(folder)
    assert [record.info.id for record in again.recover()] == ["e1", "e2"]
    assert again.replay.ids() == ["e1", "e2"]
    assert again.labels.current("e2") is not None


def test_deleted_episodes_leave_the_replay(folder):
    experience = make(folder)
    commit_and_add(experience, episode_of("e1", 1, 3), episode_of("e2", 2, 3))
    experience.close()
    EpisodeLog(folder.episodes).remove("e1")
    again = make(folder)
    assert [record.info.id for record in again.recover()] == ["e2"]
    assert set(draw(again)["observation/state"][:, 0]) == {2.0}


def test_streamed_steps_of_an_aborted_episode_leave_the_replay_after_a_kill(folder):
    """The store was killed between the commit and the removal from the replay."""
    before = make(folder)
    before.recover()
    for name in ("cut", "running"):
        segment, _ = segment_of(name, 0, range(3), final=False)
        before.replay.extend(start_of(name), segment)
    before.log.commit(episode_of("cut", 0, 5, outcome=Outcome.ABORTED))
    before.close()
    after = make(folder)
    after.recover()
    assert after.replay.ids() == ["running"]  # its recorder still writes it
    after.close()


def test_later_labels_reach_the_replay(folder):
    experience = make(folder)
    commit_and_add(experience, episode_of("e1", 1, 3))
    experience.close()
    rewards = np.array([0.25, 0.25, 0.5], np.float32)
    person = Labels(
        episode_id="e1",
        rewards=rewards,
        discounts=np.ones(3, np.float32),
        success=False,
        confidence=1.0,
        labeler="human",
        version="1",
        priority=10,
    )
    LabelStore(folder.labels).add(person)
    LabelStore(folder.labels).add(OutcomeLabeler().label(episode_of("e1", 1, 3)))  # later, but of no priority
    again = make(folder)
    again.recover()
    assert set(draw(again)["reward"].tolist()) == {0.25, 0.5}
    assert again.replay.size(View(part="accepted")) == 0


def test_lost_replay_is_rebuilt_from_log_and_labels(folder):
    experience = make(folder, keys=("state", "wrist"))
    commit_and_add(experience, *(episode_of(f"e{n}", n, 3 + n) for n in range(1, 5)))
    wrist = np.zeros((400, 32, 32, 3), np.uint8)
    before = {name: array.copy() for name, array in draw(experience, **{"observation/wrist": wrist}).items()}
    experience.close()
    shutil.rmtree(folder.replay)
    again = make(folder, keys=("state", "wrist"))
    description = []
    again.recover(on_added=lambda done, total: description.append((done, total)))
    after = draw(again, **{"observation/wrist": np.zeros_like(wrist)})
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert description == [(n, 4) for n in range(4)]


def test_rebuild_keeps_what_eviction_would_keep(folder):
    """It reads all demonstrations and only the newest other episodes that fit."""
    settings = {"capacity_rows": 24}
    experience = make(folder, **settings)
    demo = episode_of("e0", 0, 3, purpose=Purpose.DEMO)
    commit_and_add(experience, demo, *(episode_of(f"e{n}", n, 4) for n in range(1, 30)))
    held = set(experience.replay.ids())
    experience.close()
    shutil.rmtree(folder.replay)
    again, read = make(folder, **settings), []
    load_one = again.log.load
    again.log.load = lambda name, **options: read.append(name) or load_one(name, **options)
    again.recover()
    assert set(again.replay.ids()) == held
    assert "e0" in held
    assert len(read) <= 6
    again.close()
    once_more = make(folder, **settings)
    once_more.log.load = lambda name, **options: pytest.fail(f"{name} was read again")
    once_more.recover()
    assert set(once_more.replay.ids()) == held


def test_replay_has_the_images_of_the_log(folder):
    """A video codec changes pixels, so a live replay must hold the same pixels as a rebuilt one."""
    experience = make(folder, keys=("wrist",), codec="h264")
    episode = episode_of("e1", 1, 6)
    commit_and_add(experience, episode)
    into = {"observation/wrist": np.zeros((300, 32, 32, 3), np.uint8)}
    experience.replay.sample(into, view=View(), rng=np.random.default_rng(0))
    drawn = {picture.tobytes() for picture in into["observation/wrist"]}
    decoded = experience.log.load("e1").column("observation/wrist")
    assert drawn == {picture.tobytes() for picture in decoded}
    assert not np.array_equal(decoded, episode.column("observation/wrist"))  # otherwise the test proves nothing


def test_failed_demonstrations_and_aborted_episodes_do_not_train(folder):
    experience = make(folder)
    commit_and_add(experience, episode_of("e1", 1, 3))
    for name, purpose, outcome in (
        ("e2", Purpose.DEMO, Outcome.TIMEOUT),
        ("e3", Purpose.ONLINE, Outcome.ABORTED),
        ("e4", Purpose.EVAL, Outcome.SUCCESS),
    ):
        experience.commit(episode_of(name, 2, 3, purpose=purpose, outcome=outcome))
    experience.close()
    again = make(folder)
    known = again.recover()
    assert [(record.info.id, record.trains) for record in known] == [("e1", True), ("e2", False)]
    assert again.replay.ids() == ["e1"]


# ---- whole runs


def weights_of(path):
    snapshot = DiskWeightStore(path / "weights").latest()
    return {f"{c}/{n}": v for c, arrays in snapshot.components.items() for n, v in arrays.items()}


def run(path, config=None, *, polls=None):
    folder = RunFolder.open(path) if config is None else RunFolder.create(path, config)
    asked = iter(range(10**9))
    InlineRun(folder, should_stop=lambda: polls is not None and next(asked) >= polls).run()


@pytest.mark.extended
def test_resume_after_two_interrupts_and_lost_replay_is_identical(tmp_path, config):
    run(tmp_path / "whole", config)
    with pytest.raises(Interrupted):
        run(tmp_path / "cut", config, polls=150)
    shutil.rmtree(tmp_path / "cut" / "replay")
    with pytest.raises(Interrupted):
        run(tmp_path / "cut", polls=60)
    run(tmp_path / "cut")
    whole, cut = weights_of(tmp_path / "whole"), weights_of(tmp_path / "cut")
    assert all(np.array_equal(whole[name], cut[name]) for name in whole)


@pytest.mark.extended
def test_prefetching_changes_no_result(tmp_path, config):
    ahead = config.model_copy(update={"learner": config.learner.model_copy(update={"prefetch": 3})})
    run(tmp_path / "a", config)
    run(tmp_path / "b", ahead)
    first, second = weights_of(tmp_path / "a"), weights_of(tmp_path / "b")
    assert all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.extended
def test_full_disk_fails_in_one_line_and_resume_continues(tmp_path):
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip(
            "this machine does not allow mounting a small disk"
        )  # the stores' own tests limit file sizes instead
    (tmp_path / "toy.yaml").write_text(TOY)
    command = [sys.executable, "-m", "dovetail.cli.main", "run", "--runs-dir", str(place), "--quiet"]
    try:
        first = subprocess.run(
            [*command, str(tmp_path / "toy.yaml"), "--name", "r"], capture_output=True, text=True
        )
        assert first.returncode == 1
        assert first.stderr.startswith("error: ")
        assert first.stderr.count("\n") == 1
        assert "no space left" in first.stderr.lower()
        before = EpisodeLog(place / "r" / "episodes")
        kept = before.ids()
        for episode_id in kept:
            before.verify(episode_id)
        subprocess.run(["mount", "-o", "remount,size=200m", str(place)], check=True)
        second = subprocess.run([*command, "--resume", "r"], capture_output=True, text=True)
        assert second.returncode == 0, second.stderr
        assert set(kept) <= set(before.ids())
        assert (place / "r" / "report.json").exists()
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


class CountingEncoder:
    """A frozen encoder that counts the frames it encodes."""

    feature_specs = {"wrist": ArraySpec(shape=(2, 1, 3), dtype="float16")}  # noqa: RUF012

    def __init__(self, digest="a", gain=1.0):
        self.feature_digest, self._gain = digest, gain
        self.num_encoded = 0

    def encode(self, key, frames):
        assert frames.dtype == np.uint8
        self.num_encoded += len(frames)
        return (self._gain * frames.reshape(len(frames), 2, -1, 3).mean(axis=2, keepdims=True)).astype(np.float16)


def test_each_frame_is_encoded_once_and_samples_have_its_features(folder):
    """A restart encodes nothing, and the log keeps the images."""
    encoder = CountingEncoder()
    experience = make(folder, keys=("state", "wrist"), encoder=encoder)
    first, second = episode_of("e1", 1, 4), episode_of("e2", 2, 3)
    still = segment_of("e3", 3, range(4), final=True)[0]
    still.columns["observation/wrist"][:] = still.columns["observation/wrist"][0]  # nothing moved but at the end
    third = Episode.of(start_of("e3"), (still,), outcome=Outcome.SUCCESS)
    commit_and_add(experience, first, second, third)
    assert encoder.num_encoded == 5 + 4 + 2
    for _ in range(3):
        drawn = draw(experience, **{"observation/wrist": np.zeros((400, 2, 1, 3), np.float16)})
    for state, features in zip(drawn["observation/state"], drawn["observation/wrist"], strict=True):
        episode = (first, second, third)[int(state[0]) - 1]
        frame = episode.column("observation/wrist")[int(state[1])]
        assert np.array_equal(features, encoder.encode("wrist", frame[None])[0])
    assert experience.log.load("e1").column("observation/wrist").dtype == np.uint8
    experience.close()
    again = CountingEncoder()
    experience = make(folder, keys=("state", "wrist"), encoder=again)
    experience.recover()
    assert again.num_encoded == 0
    experience.close()


def test_another_encoder_rebuilds_the_replay(folder):
    experience = make(folder, keys=("state", "wrist"), encoder=CountingEncoder())
    experience.recover()
    commit_and_add(experience, episode_of("e1", 1, 4))
    experience.close()
    other = CountingEncoder(digest="b", gain=0.5)
    experience = make(folder, keys=("state", "wrist"), encoder=other)
    experience.recover()
    assert other.num_encoded == 5
    drawn = draw(experience, **{"observation/wrist": np.zeros((400, 2, 1, 3), np.float16)})
    frame = episode_of("e1", 1, 4).column("observation/wrist")[int(drawn["observation/state"][0, 1])]
    assert np.array_equal(drawn["observation/wrist"][0], other.encode("wrist", frame[None])[0])
    experience.close()
    assert "another encoder" in (folder.path / "events.jsonl").read_text()
