"""The episodes of a run on disk: the spool that records them, the log, the labels, and the replay made from these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dovetail.config.schema import ImagesConfig
from dovetail.core.abilities import CachesFeatures
from dovetail.core.contracts import Replay
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Episode, Labels, Outcome, Purpose
from dovetail.episodes.images import CODECS, ImageCodec
from dovetail.episodes.log import EpisodeInfo, EpisodeLog
from dovetail.episodes.spool import Spool
from dovetail.labels.queue import LabelQueue
from dovetail.labels.store import LabelStore
from dovetail.runs.assembly.features import encode_episode, encoded_robot
from dovetail.runs.drain_spool import drain_spool
from dovetail.runs.folder import RunFolder
from dovetail.runs.labeling import AsksLabelers, LabelDispatcher

__all__ = ["EpisodeRecord", "Experience", "image_codec"]

_REBUILT = "replay rebuilt"


def image_codec(config: ImagesConfig) -> ImageCodec:
    return ImageCodec(name=config.codec, lossless_up_to_px=config.lossless_up_to_px, crf=config.crf)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRecord:
    """A whole demonstration or online episode of the log, with its labels if it has any yet."""

    info: EpisodeInfo
    labels: Labels | None

    @property
    def trains(self) -> bool:
        """Whether the replay holds it. Failed demonstrations and discarded episodes stay in the log only."""
        labels = self.labels
        if labels is None or labels.discard:
            return False
        return self.info.purpose is Purpose.ONLINE or labels.success


class Experience:
    """Each episode is recorded in the spool, committed to the log, labeled, and added to the replay, in this order.

    A killed process may stop between any two of these steps: `recover` does the rest. `cached(id)` returns an episode that
    is still in memory. Without `replays_online`, only demonstrations enter the replay, as on-policy learning needs it.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        labelers: AsksLabelers,
        replay: Replay,
        cameras: tuple[str, ...],
        codec: ImageCodec,
        encoder: CachesFeatures | None = None,
        replays_online: bool = True,
        cached: Callable[[str], Episode | None] = lambda episode_id: None,
    ) -> None:
        self._folder = folder
        self._purposes = (Purpose.DEMO, Purpose.ONLINE) if replays_online else (Purpose.DEMO,)
        self._cameras = cameras  # that the replay stores
        self._encoder = encoder  # replaces their frames by features
        self._codec, self._cached = codec, cached
        self.replay = replay
        self.spool = Spool(folder.spool)
        self.log = EpisodeLog(folder.episodes, images=codec)
        self.labels = LabelStore(folder.labels)
        self.dispatcher = LabelDispatcher(
            labelers=labelers,
            store=self.labels,
            queue=LabelQueue(folder.label_queue),
            # called on several threads, and an EpisodeLog belongs to one
            load=lambda episode_id: cached(episode_id) or EpisodeLog(folder.episodes).load(episode_id),
            settings=folder.config.labeling,
        )

    def commit(self, episode: Episode) -> None:
        """Move an episode from the spool to the log."""
        self.log.commit(episode)
        self.spool.acknowledge(episode.id)

    def add(self, episode: Episode, labels: Labels) -> None:
        """Add an episode to the replay, with the images that the log returns, so that a rebuilt replay is the same."""
        if self._cameras and self._is_lossy(self.log.manifest(episode.id)):
            episode = self.log.load(episode.id)
        self._add(episode, labels)

    def add_recorded(self, record: EpisodeRecord) -> None:
        """Add an episode of the log to the replay."""
        assert record.labels is not None
        episode = self._cached(record.info.id)
        if episode is None or self._is_lossy(record.info):
            episode = self.log.load(record.info.id, images=bool(self._cameras))
        self._add(episode, record.labels)

    def _add(self, episode: Episode, labels: Labels) -> None:
        self.replay.add(encode_episode(episode, self._encoder) if self._encoder else episode, labels)

    def _is_lossy(self, info: EpisodeInfo) -> bool:
        return any(info.images[key].psnr_db is not None for key in self._cameras if key in info.images)

    def can_stream(self, robot: RobotSpec) -> bool:
        """Whether the replay stores observations unchanged, so that it need not wait until the log has compressed them."""
        cameras = (robot.observation[key] for key in self._cameras)
        return self._encoder is None and all(
            self._codec.choose(shape=spec.shape, dtype=str(spec.dtype)) == CODECS["lossless"] for spec in cameras
        )

    def as_replayed(self, robot: RobotSpec) -> RobotSpec:
        """The robot with the observations that the replay stores."""
        return encoded_robot(robot, self._encoder.feature_specs) if self._encoder else robot

    # ---- after a restart or a change of labels

    def recover(self, *, on_added: Callable[[int, int], None] = lambda done, total: None) -> list[EpisodeRecord]:
        """Finish what an earlier process left undone; return all episodes that count, in the order of the log.

        `on_added(done, total)` is called for each episode that the replay lacked.
        """
        drain_spool(self.spool, self._commit, report=self._folder.event)
        self.dispatcher.changed()  # later calls return only labels that are new from here on
        records = list(self._records())
        self._synchronize_replay([one for one in records if one.trains], on_added)
        return records

    def _commit(self, episode: Episode) -> bool:
        self.log.commit(episode)
        return True

    def rewind(self, records: list[EpisodeRecord]) -> None:
        """Rebuild the replay with these episodes only, as it was before the others came."""
        self.replay.reset()
        self._add_missing([one for one in records if one.trains], lambda done, total: None)

    def fill(self) -> None:
        """Add all other episodes that count to the replay."""
        self._add_missing([one for one in self._records() if one.trains], lambda done, total: None)

    def relabel(self, record: EpisodeRecord) -> None:
        """Add, relabel or drop an episode in the replay, as its newest labels say."""
        episode_id = record.info.id
        if not record.trains:
            if self.replay.was_added(episode_id):
                self.replay.drop(episode_id)
        elif self.replay.was_dropped(episode_id):
            self._folder.event(_REBUILT, reason="an episode that was dropped counts again")
            self.rewind(list(self._records()))
        elif self.replay.was_added(episode_id):
            assert record.labels is not None
            self.replay.relabel(record.labels)
        else:
            self.add_recorded(record)

    def close(self) -> None:
        self.dispatcher.close()
        self.spool.close()
        self.replay.close()

    def _records(self) -> Iterator[EpisodeRecord]:
        for episode_id in self.log.ids():
            info = self.log.manifest(episode_id)
            if info.purpose in self._purposes and info.outcome is not Outcome.ABORTED:
                labels = self.labels.current(episode_id) or self.dispatcher.label_again(episode_id)
                yield EpisodeRecord(info=info, labels=labels)

    def _synchronize_replay(self, records: list[EpisodeRecord], on_added: Callable[[int, int], None]) -> None:
        """Make the replay match log and labels: no deleted episodes, the newest labels, all episodes that fit."""
        reason = self.replay.open()
        if reason is not None:
            self._folder.event(_REBUILT, reason=reason)
        if self._is_other_encoder():
            self._folder.event(_REBUILT, reason="its frames were encoded by another encoder")
            self.replay.reset()
        if any(self.replay.was_dropped(one.info.id) for one in records):
            self._folder.event(_REBUILT, reason="an episode that was dropped counts again")
            self.replay.reset()
        for episode_id in set(self.replay.ids()) - {one.info.id for one in records}:
            # otherwise the episode may still be running, and its robot will stream the rest
            if self.replay.was_added(episode_id) or self._was_aborted(episode_id):
                self.replay.drop(episode_id)
        self._add_missing(records, on_added)
        for one in records:
            if one.labels is not None:
                self.replay.relabel(one.labels)

    def _was_aborted(self, episode_id: str) -> bool:
        return episode_id in self.log and self.log.manifest(episode_id).outcome is Outcome.ABORTED

    def _add_missing(self, records: list[EpisodeRecord], on_added: Callable[[int, int], None]) -> None:
        missing = [one for one in records if not self.replay.was_added(one.info.id)]
        newest = self._newest_that_fit(missing)
        num_added = 0
        for one in missing:
            if one.info.id in newest:
                on_added(num_added, len(newest))
                self.add_recorded(one)
                num_added += 1
            else:
                self.replay.skip(one.info.id, self.as_replayed(one.info.robot), num_steps=one.info.num_steps)

    def _is_other_encoder(self) -> bool:
        """Whether another encoder file made the stored features; records the digest of the present one."""
        if self._encoder is None:
            return False
        digest, before = self._encoder.feature_digest, self._folder.read_json("encoder.json")
        if before is None or before["digest"] != digest:
            self._folder.write_json("encoder.json", {"digest": digest})
        return before is not None and before["digest"] != digest

    def _newest_that_fit(self, records: list[EpisodeRecord]) -> set[str]:
        """Ids without those that newer episodes would evict at once. Demonstrations are always included."""
        chosen: set[str] = set()
        num_rows = 0
        for one in reversed(records):
            num_rows += one.info.num_steps + 1
            capacity = self.replay.total_rows(self.as_replayed(one.info.robot))
            if one.info.purpose is Purpose.DEMO or num_rows <= capacity:
                chosen.add(one.info.id)
        return chosen
