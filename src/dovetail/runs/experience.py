"""All that a run remembers: the spool it is written to first, the log, the labels, and the replay made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dovetail.config.schema import ImagesConfig
from dovetail.core.contracts import Replay
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Episode, Labels, Outcome, Purpose
from dovetail.episodes.images import CODECS, ImageCodec
from dovetail.episodes.log import EpisodeInfo, EpisodeLog
from dovetail.episodes.spool import Spool
from dovetail.labels.queue import LabelQueue
from dovetail.labels.store import LabelStore
from dovetail.core.abilities import CachesFeatures
from dovetail.runs.assembly.features import encode_episode, encoded_robot
from dovetail.runs.folder import RunFolder
from dovetail.runs.drain_spool import hand_over
from dovetail.runs.labeling import Hears, LabelDispatcher

__all__ = ["Experience", "Known", "image_codec"]


def image_codec(config: ImagesConfig) -> ImageCodec:
    return ImageCodec(name=config.codec, lossless_up_to_px=config.lossless_up_to_px, crf=config.crf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """An episode that counts: it was not aborted, and was no evaluation. Its labels may still be to come."""

    info: EpisodeInfo
    labels: Labels | None

    @property
    def trains(self) -> bool:
        """Demonstrations that failed show nothing, and what a person discarded is not to be learned from: both stay in
        the log."""
        labels = self.labels
        if labels is None or labels.discard:
            return False
        return self.info.purpose is Purpose.ONLINE or labels.success


class Experience:
    """Written down while it happens, kept when it has ended, labelled, and learned from; in this order, so that what
    is killed at any point is taken up there."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        panel: Hears,
        replay: Replay,
        cameras: tuple[str, ...],
        codec: ImageCodec,
        encoder: CachesFeatures | None = None,
        replays_practice: bool = True,
        at_hand: Callable[[str], Episode | None] = lambda episode_id: None,
    ) -> None:
        """`at_hand` gives an episode that need not be read again."""
        self._folder = folder
        # on-policy learning may record its episodes, but what an older policy did is not for it to learn from
        self._purposes = (Purpose.DEMO, Purpose.ONLINE) if replays_practice else (Purpose.DEMO,)
        self._cameras = cameras  # that the replay keeps
        self._encoder = encoder  # through which it sees them
        self._codec, self.at_hand = codec, at_hand
        self.replay = replay
        self.spool = Spool(folder.spool)
        self.log = EpisodeLog(folder.episodes, images=codec)
        self.labels = LabelStore(folder.labels)
        self.desk = LabelDispatcher(
            panel=panel,
            store=self.labels,
            queue=LabelQueue(folder.label_queue),
            load=lambda episode_id: (
                at_hand(episode_id) or EpisodeLog(folder.episodes).load(episode_id)
            ),  # one for each thread
            settings=folder.config.labeling,
        )

    def keep(self, episode: Episode) -> None:
        """From the spool to the log; the spool lets go of it once the log has it."""
        self.log.commit(episode)
        self.spool.acknowledge(episode.id)

    def _commit(self, episode: Episode) -> bool:
        self.log.commit(episode)
        return True

    def learn_from(self, episode: Episode, labels: Labels) -> None:
        """Into replay, with the images that a rebuild would find: those that the log gives back."""
        if self._cameras and self._loses_something(self.log.manifest(episode.id)):
            episode = self.log.load(episode.id)
        self._add(episode, labels)

    def _loses_something(self, info: EpisodeInfo) -> bool:
        return any(info.images[key].psnr_db is not None for key in self._cameras if key in info.images)

    def replays_as_seen(self, robot: RobotSpec) -> bool:
        """Whether replay holds what the robot saw as it saw it, so that it need not have gone through the log first."""
        cameras = (robot.observation[key] for key in self._cameras)
        return self._encoder is None and all(
            self._codec.choose(shape=spec.shape, dtype=str(spec.dtype)) == CODECS["lossless"] for spec in cameras
        )

    def _add(self, episode: Episode, labels: Labels) -> None:
        self.replay.add(encode_episode(episode, self._encoder) if self._encoder else episode, labels)

    def as_replayed(self, robot: RobotSpec) -> RobotSpec:
        """A robot as the replay knows it."""
        return encoded_robot(robot, self._encoder.feature_specs) if self._encoder else robot

    def recover(self, *, on_added: Callable[[int, int], None] = lambda done, total: None) -> list[Known]:
        """Take up what an earlier process left; returns all that counts, in the order it was committed.

        `on_added(done, total)` is called while the replay is brought up to date with it.
        """
        hand_over(self.spool, self._commit, tell=self._folder.event)
        self.desk.news()  # what is said from here on is
        known = list(self._known())
        self._bring_up_to_date([one for one in known if one.trains], on_added)
        return known

    def rewind(self, known: list[Known]) -> None:
        """Have replay hold these alone, as it did before the others came."""
        self.replay.reset()
        self._add_missing([one for one in known if one.trains], lambda done, total: None)

    def fill(self) -> None:
        """Into replay, whatever else there is to learn from."""
        self._add_missing([one for one in self._known() if one.trains], lambda done, total: None)

    def relabel(self, known: Known) -> None:
        """Have replay hold an episode, or not, as the newest of its labels want it."""
        episode_id = known.info.id
        if not known.trains:
            if self.replay.was_added(episode_id):
                self.replay.drop(episode_id)
        elif self.replay.was_dropped(episode_id):
            self._folder.event("replay is made anew", reason="an episode that was dropped counts again")
            self.rewind(list(self._known()))
        elif self.replay.was_added(episode_id):
            assert known.labels is not None
            self.replay.relabel(known.labels)
        else:
            self.add_known(known)

    def add_known(self, known: Known) -> None:
        """Into replay, from the log."""
        assert known.labels is not None
        episode = self.at_hand(known.info.id)
        if episode is not None and not self._loses_something(known.info):
            self._add(episode, known.labels)
        else:
            self._add(self.log.load(known.info.id, images=bool(self._cameras)), known.labels)

    def close(self) -> None:
        self.desk.close()
        self.spool.close()
        self.replay.close()

    def _known(self) -> Iterator[Known]:
        for episode_id in self.log.ids():
            info = self.log.manifest(episode_id)
            if info.purpose in self._purposes and info.outcome is not Outcome.ABORTED:
                yield Known(info=info, labels=self.labels.current(episode_id) or self.desk.take_up(episode_id))

    def _bring_up_to_date(self, known: list[Known], on_added: Callable[[int, int], None]) -> None:
        """Replay holds what the log and the labels say: nothing that was deleted, the newest labels, all that fits."""
        reason = self.replay.open()
        if reason is not None:
            self._folder.event("replay is made anew", reason=reason)
        if self._is_other_encoder():
            self._folder.event("replay is made anew", reason="its frames were encoded by another encoder")
            self.replay.reset()
        if any(self.replay.was_dropped(one.info.id) for one in known):
            self._folder.event("replay is made anew", reason="an episode that was dropped counts again")
            self.replay.reset()
        for episode_id in set(self.replay.ids()) - {one.info.id for one in known}:
            # otherwise it may still be running, and whoever streams it will tell
            if self.replay.was_added(episode_id) or self._was_aborted(episode_id):
                self.replay.drop(episode_id)
        self._add_missing(known, on_added)
        for one in known:
            if one.labels is not None:
                self.replay.relabel(one.labels)

    def _was_aborted(self, episode_id: str) -> bool:
        return episode_id in self.log and self.log.manifest(episode_id).outcome is Outcome.ABORTED

    def _add_missing(self, known: list[Known], on_added: Callable[[int, int], None]) -> None:
        missing = [one for one in known if not self.replay.was_added(one.info.id)]
        fresh = self._newest_that_fit(missing)
        num_added = 0
        for one in missing:
            if one.info.id in fresh:
                on_added(num_added, len(fresh))
                self.add_known(one)
                num_added += 1
            else:
                self.replay.skip(one.info.id, self.as_replayed(one.info.robot), num_steps=one.info.num_steps)

    def _is_other_encoder(self) -> bool:
        """Whether what the replay holds was seen through another file than there is now; notes which one that is."""
        if self._encoder is None:
            return False
        digest, before = self._encoder.feature_digest, self._folder.read_json("encoder.json")
        if before is None or before["digest"] != digest:
            self._folder.write_json("encoder.json", {"digest": digest})
        return before is not None and before["digest"] != digest

    def _newest_that_fit(self, known: list[Known]) -> set[str]:
        """Without those that would be evicted again before anybody draws from them. Demonstrations come in any case."""
        chosen: set[str] = set()
        num_rows = 0
        for one in reversed(known):
            num_rows += one.info.num_steps + 1
            if one.info.purpose is Purpose.DEMO or num_rows <= self.replay.total_rows(self.as_replayed(one.info.robot)):
                chosen.add(one.info.id)
        return chosen
