import dataclasses
import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest

from dovetail.core.disk import dump_json
from dovetail.core.errors import CheckpointError, FailureError
from dovetail.core.types import View, Window
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.learn.algorithms.rlpd import RLPD, RLPDConfig
from dovetail.learn.checkpoint import load_checkpoint, save_checkpoint
from dovetail.learn.learner import Learner


def make(policy, replay, robot, **settings):
    algorithm = RLPD(RLPDConfig(batch_size=8, hidden=(16, 16)), policy=policy, seed=0)
    return Learner(
        algorithm=algorithm, replay=replay, robot=robot, rng=np.random.default_rng(0), **{"utd": 4.0, **settings}
    )


def test_number_of_updates_follows_env_steps(policy, replay, robot):
    learner = make(policy, replay, robot, utd=0.5, start_after_steps=10)
    done = []
    for env_steps in (0, 10, 12, 13, 15, 15):
        learner.step(env_steps=env_steps)
        done.append(learner.num_online_updates)
    assert done == [0, 0, 1, 1, 2, 2]


def test_empty_view_is_replaced_by_the_other(policy, make_replay, robot):
    replay = make_replay(online=0)
    make(policy, replay, robot).warm_up(1)
    assert replay.asked == [("prior", 4), ("all", 4)]


def test_warm_up_updates_count_over_the_whole_run(policy, replay, robot):
    learner = make(policy, replay, robot)
    learner.warm_up(3)
    learner.warm_up(5)
    assert learner.num_warmup_updates == 5


def test_non_finite_metric_raises_failure(policy, replay, robot):
    replay._batch["reward"][:] = np.nan
    learner = make(policy, replay, robot, max_bad_updates=5)
    with pytest.raises(FailureError, match="learning failed at update 4"):
        learner.warm_up(10)
    assert not learner.healthy  # the state must not be saved


def test_resumed_learner_is_identical(policy, replay, robot, tmp_path):
    learner = make(policy, replay, robot)
    learner.warm_up(5)
    learner.step(env_steps=3)
    save_checkpoint(tmp_path / "last", learner.state_dict(), facts={"env_steps": 3})
    expected = learner.step(env_steps=6)
    again = make(policy, replay, robot)
    state, facts = load_checkpoint(tmp_path / "last")
    again.load_state_dict(state)
    assert facts == {"env_steps": 3}
    assert again.step(env_steps=6) == expected
    assert again.num_updates == learner.num_updates == 29


def test_imitation_lowers_its_loss(policy, replay, robot):
    algorithm = Imitation(ImitationConfig(batch_size=8, lr=1e-2), policy=policy)
    learner = Learner(algorithm=algorithm, replay=replay, robot=robot, rng=np.random.default_rng(0))
    first = learner.warm_up(5)["imitation_loss"]
    learner.warm_up(200)
    assert learner.warm_up(205)["imitation_loss"] < 0.1 * first


class ChangingRequest(Imitation):
    """An algorithm whose sample_request the test changes."""

    def __init__(self, policy, **changes):
        super().__init__(ImitationConfig(batch_size=8), policy=policy)
        self.changes = changes

    @property
    def sample_request(self):
        return dataclasses.replace(super().sample_request, **self.changes)


def learner_with(policy, replay, robot, **changes):
    algorithm = ChangingRequest(policy, **changes)
    return algorithm, Learner(algorithm=algorithm, replay=replay, robot=robot, rng=np.random.default_rng(0))


def test_algorithm_may_change_views_only(policy, replay, robot):
    algorithm, learner = learner_with(policy, replay, robot)
    learner.step(env_steps=1)
    algorithm.changes = {"rows": {View(part="human"): 5, View(part="demo"): 3}}
    learner.step(env_steps=2)
    assert replay.asked == [("prior", 8), ("human", 5), ("demo", 3)]
    for changes in ({"rows": {View(): 9}}, {"next_observations": True}, {"window": Window(horizon=2)}):
        algorithm.changes = changes
        with pytest.raises(ValueError, match="but not the number or content"):
            learner.step(env_steps=3)


def test_waiting_learner_owes_its_updates(policy, make_replay, robot):
    replay = make_replay(prior=0, demo=0)
    _, learner = learner_with(policy, replay, robot, waits=True, when_empty=View(part="demo"))
    assert learner.step(env_steps=3) == {}
    assert (learner.num_online_updates, learner.owed(3)) == (0, 3)
    replay._sizes["demo"] = 1
    learner.step(env_steps=4)
    assert learner.num_online_updates == 4


def test_shares_are_in_the_metrics(policy, make_replay, robot):
    views = {"half": (View(part="human"), View(part="demo")), "none": (View(), View(part="policy"))}
    _, learner = learner_with(policy, make_replay(human=2, demo=4, policy=0), robot, shares=views)
    metrics = learner.step(env_steps=1)
    assert metrics["half_share"] == 0.5
    assert "none_share" not in metrics


def rewrite(folder, **changes):
    """Change the manifest and give it a valid checksum."""
    manifest = json.loads((folder / "manifest.json").read_text()) | changes
    del manifest["checksum"]
    (folder / "manifest.json").write_bytes(dump_json(manifest, indent=2))


class TestCheckpointFiles:
    @pytest.fixture
    def folder(self, tmp_path):
        save_checkpoint(tmp_path / "last", {"a": np.arange(3.0)}, facts={"env_steps": 1})
        return tmp_path / "last"

    def test_new_checkpoint_replaces_the_old(self, folder):
        save_checkpoint(folder, {"a": np.arange(4.0)}, facts={"env_steps": 2})
        state, facts = load_checkpoint(folder)
        assert len(state["a"]) == 4
        assert facts["env_steps"] == 2
        assert len(list(folder.glob("state-*"))) == 1

    def test_leftover_temporary_files_are_removed(self, folder):
        for name in (".state-0123456789abcdef.safetensors.4711.tmp", ".manifest.json.4711.tmp"):
            (folder / name).write_bytes(b"half")
        save_checkpoint(folder, {"a": np.arange(4.0)}, facts={"env_steps": 2})
        assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".safetensors"]

    def test_killed_writer_leaves_no_extra_files(self, folder):
        code = (
            "import os, signal, sys\nfrom pathlib import Path\nimport numpy as np\nfrom dovetail.core import disk\n"
            "from dovetail.learn.checkpoint import save_checkpoint\n"
            "disk.os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)\n"
            "save_checkpoint(Path(sys.argv[1]), {'a': np.arange(int(sys.argv[2]))}, facts={})\n"
        )
        for size in range(5, 8):
            done = subprocess.run([sys.executable, "-c", code, str(folder), str(size)])
            assert done.returncode == -9
            assert len(list(folder.glob(".*.tmp"))) == 1
        assert len(load_checkpoint(folder)[0]["a"]) == 3

    def test_flipped_byte_raises_checkpoint_error(self, folder):
        (path,) = folder.glob("state-*")
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match="damaged"):
            load_checkpoint(folder)

    def test_flipped_byte_of_the_manifest_raises_checkpoint_error(self, folder):
        data = (folder / "manifest.json").read_bytes()
        for place in range(len(data)):
            (folder / "manifest.json").write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
            with pytest.raises(CheckpointError, match="is not a checkpoint"):
                load_checkpoint(folder)

    @pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": 1}', "null"])
    def test_folder_without_checkpoint_raises(self, folder, content):
        (folder / "manifest.json").write_text(content)
        with pytest.raises(CheckpointError, match="is not a checkpoint"):
            load_checkpoint(folder)

    def test_other_schema_raises_checkpoint_error(self, folder):
        rewrite(folder, schema=99)
        with pytest.raises(CheckpointError, match="schema 99"):
            load_checkpoint(folder)

    def test_pickle_is_not_loaded(self, folder):
        (path,) = folder.glob("state-*")
        data = b"\x80\x04K\x01."  # a pickle
        path.write_bytes(data)
        rewrite(folder, sha256=hashlib.sha256(data).hexdigest())
        with pytest.raises(CheckpointError, match="is not a safetensors file"):
            load_checkpoint(folder)
