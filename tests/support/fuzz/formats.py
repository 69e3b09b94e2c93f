"""The formats: how to make a valid sample, how to damage it, and all that reads it.

Damage with a valid checksum reaches the code behind the checksum, so each format can also seal what it has changed.
"""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st

from dovetail.api.rounds import _lineage
from dovetail.config.load import load, load_saved, save
from dovetail.core.disk import dump_json, load_json, sha256
from dovetail.core.specs import ArraySpec
from dovetail.core.tensor_files import tensor_blocks
from dovetail.core.types import Episode, PromptChange, View
from dovetail.episodes import _journal
from dovetail.episodes.lerobot import export, open_dataset
from dovetail.episodes.log import EpisodeLog
from dovetail.episodes.spool import Spool
from dovetail.episodes.verify import verify_log, verify_spool
from dovetail.human.mailbox import Mailbox, MailboxReader, MailboxWriter
from dovetail.labels.learned.calibration import Calibration
from dovetail.labels.learned.folder import load_classifier, save_classifier
from dovetail.labels.learned.network import SuccessNet
from dovetail.labels.learned.training import Trained, TrainingConfig
from dovetail.labels.queue import LabelQueue, Reason
from dovetail.labels.store import LabelStore
from dovetail.labels.verify import repair_labels, verify_labels
from dovetail.labels.vlm import VLMConfig, VLMLabeler
from dovetail.learn.checkpoint import checkpoint_facts, load_checkpoint, save_checkpoint
from dovetail.live.link import LiveLink
from dovetail.live.run_stop import RunStop
from dovetail.live.view import LiveView
from dovetail.policies.images.encoders import EncoderConfig
from dovetail.processes.array_channel import ArrayChannel
from dovetail.processes.channel import Channel, ChannelClosed
from dovetail.processes.shared_memory import SharedJson
from dovetail.replay import reader as replay_reader
from dovetail.replay._rings import Counters
from dovetail.replay.mapped import MappedReplay, MappedReplayConfig
from dovetail.replay.reader import MappedReplayReader
from dovetail.runs.assembly.base_policy import find_base
from dovetail.runs.deployment import Deployment
from dovetail.runs.deployment_request import apply_change, take_request
from dovetail.runs.folder import RunFolder, read_events
from dovetail.runs.rounds import Rounds
from dovetail.weights.store import DiskWeightStore
from support.chat_server import ChatServer
from support.example_labels import labels
from support.fuzz.mutate import mutate_bytes, mutate_json
from support.lerobot_episodes import MemoryLog
from support.small_episodes import ROBOT, make_episode, record
from support.traceable_episodes import batch, label, make_traceable_episode

__all__ = ["FORMATS", "Format"]


class Format(ABC):
    """A folder with a valid sample. `read` raises a DovetailError, or returns what is intact."""

    name: ClassVar[str]

    @abstractmethod
    def make(self, folder: Path) -> None: ...

    def damage(self, folder: Path, data: st.DataObject) -> None:
        """Change any file; by default only its bytes, so checksums no longer match."""
        damage_any_file(folder, data)

    @abstractmethod
    def read(self, folder: Path) -> None: ...


def damage_any_file(folder: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(path for path in folder.rglob("*") if path.is_file())))
    path.write_bytes(mutate_bytes(data, path.read_bytes()))


def damage_json(path: Path, data: st.DataObject, *, indent: int | None) -> None:
    """Change the tree and write a valid checksum."""
    tree = mutate_json(data, load_json(path.read_bytes(), name=str(path), indent=indent))
    path.write_bytes(seal(tree, indent=indent))


def seal(tree: Any, *, indent: int | None = None) -> bytes:
    return dump_json(tree, indent=indent) if isinstance(tree, dict) else json.dumps(tree).encode()


class EpisodeFolders(Format):
    name = "episodes"

    def make(self, folder: Path) -> None:
        episode = make_episode(id="e1", num_steps=3)
        changes = (PromptChange(step=1, prompt="pick"), PromptChange(step=2, prompt="place"))
        (segment,) = episode.segments
        EpisodeLog(folder).commit(replace(episode, segments=(replace(segment, prompt_changes=changes),)))
        EpisodeLog(folder).commit(make_episode(id="e2", num_steps=2, seed=1))

    def damage(self, folder: Path, data: st.DataObject) -> None:
        how = data.draw(st.sampled_from(["bytes", "manifest", "sealed bytes"]))
        manifest = folder / "e1" / "manifest.json"
        if how == "bytes":
            damage_any_file(folder, data)
        elif how == "manifest":
            damage_json(manifest, data, indent=1)
        else:
            tree = load_json(manifest.read_bytes(), name="manifest", indent=1)
            name = data.draw(st.sampled_from(sorted(tree["files"])))
            changed = mutate_bytes(data, (folder / "e1" / name).read_bytes())
            (folder / "e1" / name).write_bytes(changed)
            tree["files"][name] = {"sha256": sha256(changed), "num_bytes": len(changed)}
            manifest.write_bytes(seal(tree, indent=1))

    def read(self, folder: Path) -> None:
        log = EpisodeLog(folder)
        list(verify_log(folder))
        for name in log.ids():
            in_turn(
                partial(log.manifest, name),
                partial(log.load, name),
                partial(log.load, name, images=False),
                lambda name=name: list(log.frames(name, "camera/wrist")),
                partial(log.verify, name),
            )


class Journals(Format):
    name = "spool"

    def make(self, folder: Path) -> None:
        spool = Spool(folder)
        record(spool, make_episode(id="e1", num_steps=4, cuts=(2,)))
        record(spool, make_episode(id="e2", num_steps=2))

    def damage(self, folder: Path, data: st.DataObject) -> None:
        path = folder / "e1.journal"
        if data.draw(st.booleans()):
            path.write_bytes(mutate_bytes(data, path.read_bytes()))
            return
        with path.open("rb") as file:
            records = [(one.kind, one.payload) for one in _journal.read(file)]
        number = data.draw(st.integers(0, len(records) - 1))
        kind, payload = records[number]
        if kind is _journal.Kind.SEGMENT:
            payload = mutate_bytes(data, payload)
        else:
            payload = seal(mutate_json(data, load_json(payload, name="record")))
        records[number] = (data.draw(st.sampled_from([kind, kind, *_journal.Kind])), payload)
        path.write_bytes(b"".join(_journal.pack(*one) for one in records))

    def read(self, folder: Path) -> None:
        spool = Spool(folder)
        list(verify_spool(folder))
        in_turn(spool.pending, spool.running, lambda: spool.holds_steps)
        in_turn(lambda: spool.load("e1"), lambda: spool.tail("e1"), lambda: spool.is_damaged("e1"))
        assert spool.load("e2") is not None


class LabelLines(Format):
    name = "labels"

    def make(self, folder: Path) -> None:
        store = LabelStore(folder)
        store.add(labels())
        store.add(labels("e2"))
        store.add(labels(reward=0.5, labeler="human", priority=10, why="it fell"))
        store.retract(labels(reward=0.5, labeler="human", priority=10, why="it fell"))

    def damage(self, folder: Path, data: st.DataObject) -> None:
        path = folder / "labels.jsonl"
        if data.draw(st.booleans()):
            damage_any_file(folder, data)
            return
        lines = path.read_bytes().splitlines()
        number = data.draw(st.integers(0, len(lines) - 1))
        lines[number] = seal(mutate_json(data, load_json(lines[number], name="line")))
        path.write_bytes(b"".join(line + b"\n" for line in lines))

    def read(self, folder: Path) -> None:
        def everything(store: LabelStore) -> None:
            for name in store.ids():
                in_turn(partial(store.current, name), partial(store.history, name))
            store.changed()
            store.add(labels("e9"))

        in_turn(
            lambda: everything(LabelStore(folder)), lambda: verify_labels(folder), lambda: repair_labels(folder)
        )
        everything(LabelStore(folder))


class QueueFiles(Format):
    name = "label queue"

    def make(self, folder: Path) -> None:
        LabelQueue(folder).put("e1", [Reason.NEW], note="why")

    def damage(self, folder: Path, data: st.DataObject) -> None:
        if data.draw(st.booleans()):
            damage_any_file(folder, data)
        else:
            damage_json(folder / "e1.json", data, indent=None)

    def read(self, folder: Path) -> None:
        queue = LabelQueue(folder)
        queue.put("e2", [Reason.UNCERTAIN])
        assert {"e1", "e2"} <= {one.episode_id for one in queue.waiting()} | {"e1"}
        queue.settle(labels("e1", labeler="human"))
        queue.done("e1")


class Weights(Format):
    name = "weights"

    def make(self, folder: Path) -> None:
        store = DiskWeightStore(folder)
        arrays = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array([1, 2], np.int64)}
        store.publish({"actor": arrays})
        store.publish({"actor": arrays, "critic": {"w": np.ones(3, np.float16)}})
        store.pin(1)

    def damage(self, folder: Path, data: st.DataObject) -> None:
        manifest = folder / "v00000002.json"
        how = data.draw(st.sampled_from(["bytes", "manifest", "pin", "component"]))
        if how == "bytes":
            damage_any_file(folder, data)
        elif how == "manifest":
            damage_json(manifest, data, indent=1)
        elif how == "pin":
            damage_json(folder / "pin.json", data, indent=None)
        else:
            tree = load_json(manifest.read_bytes(), name="manifest", indent=1)
            blob = damage_safetensors(
                (folder / "components" / f"{tree['components']['actor']}.safetensors").read_bytes(), data
            )
            tree["components"]["actor"] = sha256(blob)
            (folder / "components" / f"{sha256(blob)}.safetensors").write_bytes(blob)
            manifest.write_bytes(seal(tree, indent=1))

    def read(self, folder: Path) -> None:
        store = DiskWeightStore(folder)
        in_turn(store.pinned, store.latest, lambda: store.pin(None), store.latest)
        for version in store.versions()[:5]:
            in_turn(partial(store.load, version))
        store.publish({"actor": {"w": np.ones(2, np.float32)}})


def damage_safetensors(blob: bytes, data: st.DataObject) -> bytes:
    """Change the bytes, or the header with a length that fits."""
    if data.draw(st.booleans()):
        return mutate_bytes(data, blob)
    size = int.from_bytes(blob[:8], "little")
    header = json.dumps(mutate_json(data, json.loads(blob[8 : 8 + size]))).encode()
    return len(header).to_bytes(8, "little") + header + blob[8 + size :]


class CheckpointFiles(Format):
    name = "checkpoints"

    def make(self, folder: Path) -> None:
        state = {"policy/w": np.arange(6, dtype=np.float32), "num_updates": np.array(5)}
        save_checkpoint(folder, state, facts={"env_steps": 5, "config_hash": "abc"})

    def damage(self, folder: Path, data: st.DataObject) -> None:
        manifest = folder / "manifest.json"
        how = data.draw(st.sampled_from(["bytes", "manifest", "state"]))
        if how == "bytes":
            damage_any_file(folder, data)
        elif how == "manifest":
            damage_json(manifest, data, indent=2)
        else:
            tree = load_json(manifest.read_bytes(), name="manifest", indent=2)
            blob = damage_safetensors((folder / tree["file"]).read_bytes(), data)
            (folder / tree["file"]).write_bytes(blob)
            manifest.write_bytes(seal({**tree, "sha256": hashlib.sha256(blob).hexdigest()}, indent=2))

    def read(self, folder: Path) -> None:
        in_turn(lambda: checkpoint_facts(folder), lambda: load_checkpoint(folder))
        save_checkpoint(folder, {"w": np.ones(1)}, facts={})
        load_checkpoint(folder)


class ReplayFiles(Format):
    name = "replay"

    def _open(self, folder: Path) -> MappedReplay:
        return MappedReplay(MappedReplayConfig(capacity_rows=40), folder=folder, keys=("state", "wrist"))

    def make(self, folder: Path) -> None:
        replay_reader._TIMEOUT_S = 0.02
        replay = self._open(folder)
        for number in (1, 2):
            episode = make_traceable_episode(number, 5)
            replay.add(episode, label(episode))
        replay.close()

    def damage(self, folder: Path, data: st.DataObject) -> None:
        how = data.draw(st.sampled_from(["bytes", "layout", "counters", "tables"]))
        if how == "bytes":
            damage_any_file(folder, data)
        elif how == "layout":
            damage_json(folder / "layout.json", data, indent=1)
        else:
            names = (
                ["counters"] if how == "counters" else ["episodes.bin", "segments.bin", "spans.bin", "seen.bin"]
            )
            path = folder / data.draw(st.sampled_from(names))
            words = np.frombuffer(path.read_bytes(), np.int64).copy() if how == "counters" else None
            if words is None:
                path.write_bytes(mutate_bytes(data, path.read_bytes()[:400]) + path.read_bytes()[400:])
                return
            place = data.draw(st.integers(1, len(Counters.NAMES) + 1))
            words[place] = data.draw(st.sampled_from([0, 1, 2, 5, 41, 2**40, 2**62, -1, -(2**62)]))
            path.write_bytes(words.tobytes())

    def read(self, folder: Path) -> None:
        def sample(source: Any) -> None:
            if source.size(View()):
                source.sample(batch(8), view=View(), rng=np.random.default_rng(0))

        in_turn(lambda: sample(MappedReplayReader(folder)))
        replay = self._open(folder)
        replay.open()
        in_turn(lambda: sample(replay))
        episode = make_traceable_episode(3, 5)
        replay.add(episode, label(episode))
        assert "e3" in replay.ids()
        replay.close()


class RunFiles(Format):
    """The run is led by this process, so that valid files are attached to."""

    name = "run"
    _link: LiveLink | None = None

    def make(self, folder: Path) -> None:
        save(load(["peg-insertion"]), folder)
        events = [
            {"time": 1.0, "event": "episode", "id": "e1", "success": True},
            {"time": 2.0, "event": "checkpoint"},
        ]
        (folder / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in events))
        self._link = LiveLink(folder, robot=ROBOT)
        self._link.open()
        LiveView.attach(folder).close()
        RunStop.attach(folder).close()

    def damage(self, folder: Path, data: st.DataObject) -> None:
        if data.draw(st.booleans()):
            damage_any_file(folder, data)
            return
        path = folder / data.draw(st.sampled_from(["live.json", "stop.json"]))
        path.write_text(json.dumps(mutate_json(data, json.loads(path.read_text()))))

    def read(self, folder: Path) -> None:
        in_turn(
            lambda: list(read_events(folder, "episode", "checkpoint")),
            lambda: LiveView.attach(folder).close(),
            lambda: RunStop.attach(folder).close(),
            lambda: load_saved(folder),
        )


class LeRobotDataset(Format):
    name = "lerobot"

    def make(self, folder: Path) -> None:
        from support.faults.stores import Export

        export(MemoryLog([1, 2], robot=Export._ROBOT, num_steps=3), folder / "data", codec="h264")

    def damage(self, folder: Path, data: st.DataObject) -> None:
        if data.draw(st.booleans()):
            damage_any_file(folder, data)
            return
        path = (
            folder
            / "data"
            / data.draw(st.sampled_from(["meta/info.json", "dovetail/dataset.json", "meta/stats.json"]))
        )
        path.write_text(json.dumps(mutate_json(data, json.loads(path.read_text()))))

    def read(self, folder: Path) -> None:
        dataset = open_dataset(folder / "data")
        for index in range(min(4, len(dataset))):
            in_turn(partial(dataset.episode, index), partial(dataset.labels, index))


class ChatAnswers(Format):
    """The bytes with which a chat server answers, and the file that keeps an answer."""

    name = "chat answers"

    def make(self, folder: Path) -> None:
        server = ChatServer(
            answer=lambda question: {
                "id": question.token,
                "success": True,
                "confidence": 0.9,
                "progress": [0.5] * 2,
            }
        )
        with server.running():
            self._labeler(folder, server.url).label(self._episode())
        (kept,) = (folder / "cache").iterdir()
        said = {
            "choices": [
                {"message": {"role": "assistant", "content": load_json(kept.read_bytes(), name="x")["said"]}}
            ]
        }
        (folder / "response").write_bytes(self._response(json.dumps(said).encode()))

    def damage(self, folder: Path, data: st.DataObject) -> None:
        (kept,) = (folder / "cache").iterdir()
        response = (folder / "response").read_bytes()
        body = json.loads(response.partition(b"\r\n\r\n")[2])
        how = data.draw(st.sampled_from(["bytes", "body", "answer", "kept", "kept bytes"]))
        if how == "bytes":
            response = mutate_bytes(data, response)
        elif how == "body":
            response = self._response(json.dumps(mutate_json(data, body)).encode())
        elif how == "answer":
            message = body["choices"][0]["message"]
            answer = mutate_json(data, json.loads(message["content"]))
            if isinstance(answer, dict) and data.draw(st.booleans()):
                answer[data.draw(st.sampled_from(["confidence", "success"]))] = 10**400
            message["content"] = json.dumps(answer)
            response = self._response(json.dumps(body).encode())
        elif how == "kept":
            damage_json(kept, data, indent=None)
        else:
            kept.write_bytes(mutate_bytes(data, kept.read_bytes()))
        (folder / "response").write_bytes(response)
        if how in ("bytes", "body", "answer"):
            kept.unlink()

    def read(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            thread = threading.Thread(
                target=self._serve, args=(server, (folder / "response").read_bytes()), daemon=True
            )
            thread.start()
            try:
                label = self._labeler(folder, f"http://127.0.0.1:{server.getsockname()[1]}/v1").label(
                    self._episode()
                )
            finally:
                server.shutdown(socket.SHUT_RDWR)
                thread.join()
        assert isinstance(label.success, bool)
        assert 0.0 <= label.confidence <= 1.0
        assert np.isfinite(label.rewards).all()

    def _labeler(self, folder: Path, url: str) -> VLMLabeler:
        config = VLMConfig(url=url, model="m", tries=1, timeout_s=1.0, num_frames=2, reward="progress")
        return VLMLabeler(config, folder=folder / "cache")

    def _episode(self) -> Episode:
        return make_episode(id="e1", num_steps=3)

    def _response(self, body: bytes) -> bytes:
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body

    def _serve(self, server: socket.socket, response: bytes) -> None:
        """Answer every question with the same bytes, until the socket is shut down."""
        with suppress(OSError):
            while True:
                asked, _ = server.accept()
                with asked, suppress(OSError):
                    while b"}" not in asked.recv(1 << 20)[-3:]:
                        continue
                    asked.sendall(response)


class ClassifierFolders(Format):
    name = "classifiers"
    _SEEN: ClassVar = {"wrist": ArraySpec(shape=(16, 16, 3), dtype="uint8"), "state": ArraySpec(shape=(3,))}

    def make(self, folder: Path) -> None:
        cameras, proprio = {"wrist": self._SEEN["wrist"]}, {"state": self._SEEN["state"]}
        config = TrainingConfig(encoder=EncoderConfig(features=4))
        trained = Trained(
            net=SuccessNet(config.encoder, cameras=cameras, proprio=proprio),
            config=config,
            calibration=Calibration(),
            threshold=0.5,
            num_updates=1,
            episodes=(),
            held_out=(),
            probabilities=(),
        )
        save_classifier(folder / "judge", trained, facts={"task": "lamp"})

    def damage(self, folder: Path, data: st.DataObject) -> None:
        manifest = folder / "judge" / "classifier.json"
        how = data.draw(st.sampled_from(["bytes", "manifest", "settings", "weights"]))
        if how == "bytes":
            damage_any_file(folder, data)
        elif how == "manifest":
            damage_json(manifest, data, indent=2)
        else:
            tree = load_json(manifest.read_bytes(), name="manifest", indent=2)
            if how == "settings":
                part = data.draw(st.sampled_from(["config", "cameras", "proprio", "calibration"]))
                tree[part] = mutate_json(data, tree[part])
            else:
                path = folder / "judge" / "weights.safetensors"
                path.write_bytes(damage_safetensors(path.read_bytes(), data))
                tree["files"][path.name]["sha256"] = sha256(path.read_bytes())
            manifest.write_bytes(seal(tree, indent=2))

    def read(self, folder: Path) -> None:
        classifier = load_classifier(folder / "judge")
        classifier.check(replace(ROBOT, observation=self._SEEN))
        frames = {key: np.zeros((2, *spec.shape), spec.dtype) for key, spec in self._SEEN.items()}
        assert classifier.probabilities(frames).shape == (2,)


class Messages(Format):
    """Messages between the processes of an arm. The folder holds what was sent."""

    name = "channels"

    def make(self, folder: Path) -> None:
        ours, theirs = Channel.pair()
        ours.send({"kind": "begin", "values": [1, 2, {"a": None}]})
        (folder / "channel").write_bytes(theirs._socket.recv(1 << 16))
        with_arrays, other = ArrayChannel.pair()
        with_arrays.send({"kind": "act"}, {"x": np.arange(6, dtype=np.float32)})
        (folder / "arrays").write_bytes(other._socket.recv(1 << 16))
        for end in (ours, theirs, with_arrays, other):
            end.close()

    def read(self, folder: Path) -> None:
        for name, kind in (("channel", Channel), ("arrays", ArrayChannel)):
            ours, theirs = socket.socketpair()
            with ours, theirs:
                ours.sendall((folder / name).read_bytes()[: 1 << 16])
                ours.shutdown(socket.SHUT_WR)
                channel = kind(theirs)
                try:
                    for _ in range(3):
                        message = channel.receive()
                        assert isinstance(message[0] if isinstance(message, tuple) else message, dict)
                except ChannelClosed:
                    continue


class SharedMemory(Format):
    """A mailbox and a status whose writer misbehaves. The reader never raises."""

    name = "shared memory"

    def make(self, folder: Path) -> None:
        memory = bytearray(Mailbox.num_bytes(6))
        writer = MailboxWriter(Mailbox(6, memoryview(memory)))
        writer.drive(session=1, sequence=1, held=True, axes=[0.5] * 6)
        (folder / "mailbox").write_bytes(memory)
        status = bytearray(SharedJson.NUM_BYTES)
        SharedJson(memoryview(status)).write({"phase": "online", "done": 5})
        (folder / "status").write_bytes(status)

    def damage(self, folder: Path, data: st.DataObject) -> None:
        path = folder / data.draw(st.sampled_from(["mailbox", "status"]))
        before = path.read_bytes()
        head = 400 if path.name == "status" else len(before)
        path.write_bytes(
            (mutate_bytes(data, before[:head]) + before[head:]).ljust(len(before), b"\0")[: len(before)]
        )

    def read(self, folder: Path) -> None:
        status = bytearray((folder / "status").read_bytes())
        assert isinstance(SharedJson(memoryview(status)).read(), dict)
        box = Mailbox(6, memoryview(bytearray((folder / "mailbox").read_bytes())))
        reader = MailboxReader(box)
        command = reader.command()
        assert command is None or not command.is_valid or np.isfinite(command.axes).all()
        for _ in range(3):
            reader.next_event()
        assert isinstance(box.emergency, bool)


def in_turn(*calls: Any) -> None:
    """Call all, also after an error, and raise the first one."""
    from dovetail.core.errors import DovetailError

    first: DovetailError | None = None
    for call in calls:
        try:
            call()
        except DovetailError as error:
            first = first or error
    if first is not None:
        raise first


class PolicyFiles(Format):
    """The deployed policy of a run, and the copy of its base. The folder is as one from elsewhere."""

    name = "policy files"

    def make(self, folder: Path) -> None:
        save(load(["peg-insertion"]), folder)
        (folder / ".trusted").unlink()
        config = folder / "config.yaml"
        config.write_text(
            config.read_text() + "# copied\n"
        )  # another file than the one that this process has made
        self._deploy(folder)
        copies = folder / "parts" / "base"
        copies.mkdir(parents=True)
        arrays = {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}
        (copies / "actor.safetensors").write_bytes(b"".join(tensor_blocks(arrays)))
        section = {"type": "flow", "horizon": 4, "hidden": 8, "components": {}}
        (copies / "policy.json").write_bytes(dump_json(section, indent=1))

    def _deploy(self, folder: Path) -> None:
        deployed = {"weights": str(folder / "weights" / "v00000001.json"), "expected_rate": 0.5}
        state = {"deployed": deployed, "earlier": [deployed], "candidate": None, "outcomes": [True, False]}
        (folder / "deployment.json").write_bytes(dump_json(state, indent=2))

    def damage(self, folder: Path, data: st.DataObject) -> None:
        self._deploy(folder)  # the sample is a copy, and a path outside it would be refused
        copies = folder / "parts" / "base"
        how = data.draw(st.sampled_from(["bytes", "deployment", "section", "tensors"]))
        if how == "bytes":
            names = ("deployment.json", "parts/base/policy.json", "parts/base/actor.safetensors")
            path = folder / data.draw(st.sampled_from(names))
            path.write_bytes(mutate_bytes(data, path.read_bytes()))
        elif how == "tensors":
            path = copies / "actor.safetensors"
            path.write_bytes(damage_safetensors(path.read_bytes(), data))
        else:
            path, indent = (folder / "deployment.json", 2) if how == "deployment" else (copies / "policy.json", 1)
            damage_json(path, data, indent=indent)

    def read(self, folder: Path) -> None:
        def deployed() -> None:
            found = Deployment.load(RunFolder(folder, load(["peg-insertion"])))
            for one in (found.deployed, *found.earlier):
                assert one.weights.isprintable() and Path(one.weights).resolve().is_relative_to(folder.resolve())
            found.observe(success=False)

        def copied() -> None:
            load_saved(folder, quiet=True)
            assert ":" not in find_base({"run": ""}, copies=folder / "parts" / "base").section.type

        in_turn(deployed, copied)


class RunRecords(Format):
    """Small files of a run: a request to its gate, rounds of distillation, their lineage, and changed settings."""

    name = "run records"
    _NAMES = ("deployment_request.json", "rounds.json", "lineage.json", "changes.json", "deployment.json")

    def make(self, folder: Path) -> None:
        save(load(["peg-insertion"]), folder)
        run = RunFolder(folder, load(["peg-insertion"]))
        policy = {"weights": str(folder / "weights" / "v00000001.json"), "expected_rate": 0.5}
        made = {"env_steps": 100, "base": "first-base-1", "answer": "not worse", "successor": None}
        lineage = {"run": "first", "config_hash": "abc", "base": "first-base-1", "base_version": 3}
        for name, content in zip(
            self._NAMES,
            (
                {"change": "roll back", "seen": policy["weights"], "by": "eva"},
                {"due": {"env_steps": 200, "finished": False}, "made": [made]},
                {**lineage, "round": 2, "num_distilled": 1},
                {"settings": {"run.env_steps": 500}},
                {"deployed": policy, "earlier": [policy], "candidate": None, "outcomes": [True]},
            ),
            strict=True,
        ):
            run.write_json(name, content)

    def damage(self, folder: Path, data: st.DataObject) -> None:
        path = folder / data.draw(st.sampled_from(self._NAMES))
        if data.draw(st.booleans()):
            path.write_bytes(mutate_bytes(data, path.read_bytes()))
        else:
            damage_json(path, data, indent=2)

    def read(self, folder: Path) -> None:
        run = RunFolder(folder, load(["peg-insertion"]))

        def rounds() -> None:
            found = Rounds(run)
            assert found.env_steps >= 0 and isinstance(found.is_waiting, bool)
            assert found.due_steps is None or found.due_steps + 1
            found.end_round(10**6, finished=True)

        def request() -> None:
            deployment = Deployment.load(run)
            take_request(run, lambda change, seen, by: apply_change(deployment, change, seen=seen, by=by))
            assert not (folder / self._NAMES[0]).exists()

        in_turn(rounds, request, lambda: _lineage(run), lambda: load_saved(folder, quiet=True))
        list(read_events(folder, "deployment refused"))


FORMATS: dict[str, Format] = {
    one.name: one
    for one in (
        EpisodeFolders(),
        Journals(),
        LabelLines(),
        QueueFiles(),
        Weights(),
        CheckpointFiles(),
        ReplayFiles(),
        RunFiles(),
        LeRobotDataset(),
        ChatAnswers(),
        ClassifierFolders(),
        Messages(),
        SharedMemory(),
        PolicyFiles(),
        RunRecords(),
    )
}
