"""What acts for the name of a run: the policy that is deployed in it, unless a version or checkpoint is named."""

import shutil

import pytest

import dovetail
from dovetail.api.deployment import approve, roll_back
from dovetail.api.evaluation import evaluate
from dovetail.api.weights import acting_weights
from dovetail.cli._serving import _open_run
from dovetail.config.load import load
from dovetail.config.trust import MARK
from dovetail.core.errors import PluginError, PolicyError, UsageError
from dovetail.core.types import ActContext
from dovetail.policies.inputs import zero_inputs
from dovetail.policies.remote.handshake import make_token
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.deployment import DEPLOYMENT
from dovetail.runs.folder import RunFolder
from dovetail.weights.store import DiskWeightStore

CONFIG = """
task: {type: "dovetail.testing.fakes:FakeTask", max_steps: 5}
robot: "dovetail.testing.fakes:FakeArm"
operator: none
policy: {type: gaussian_mlp, hidden: [8]}
algorithm: {type: rlpd, hidden: [8]}
"""


def make_run(path, *settings, versions=1):
    """A run with published weights; its seed decides them."""
    (path.parent / "config.yaml").write_text(CONFIG)
    folder = RunFolder.create(path, load([path.parent / "config.yaml"], settings))
    assembly = build_assembly(folder.config)
    for _ in range(versions):
        DiskWeightStore(folder.weights).publish(assembly.trainable().weights())
    assembly.close()
    return folder.path


@pytest.fixture
def base(tmp_path):
    return make_run(tmp_path / "base")


@pytest.fixture
def second(tmp_path, base):
    """Another run with another number of versions, deployed in the first one."""
    path = make_run(tmp_path / "second", "run.seed=5", versions=2)
    approve(base, path)
    return path


def weights_of(run, version):
    return DiskWeightStore(run / "weights").load(version).hashes


def test_run_acts_with_the_run_that_is_deployed_in_it(base, second):
    source = acting_weights(base)
    assert source.snapshot().hashes == weights_of(second, 2) != weights_of(base, 1)
    assert roll_back(base)
    assert acting_weights(base).snapshot().hashes == weights_of(base, 1)


def test_explicit_names_mean_the_run_itself(base, second):
    best = base / "checkpoints/last"
    best.mkdir(parents=True)
    for target, options in (
        (base, {"version": 1}),
        (base / "weights", {}),
        (base / "weights/v00000001.json", {}),
        (best, {}),
    ):
        source = acting_weights(target, **options)
        assert source.folder.path == base and source.deployed_in is None


def test_evaluation_says_what_acts_and_records_it_in_the_named_run(base, second):
    result = evaluate(base, num_episodes=1)
    assert result.weights == f"weights version 2 of {second}, deployed in {base}" and result.version is None
    (event,) = dovetail.open(base).events("eval")
    assert event["weights"] == result.weights and not dovetail.open(second).events("eval")
    assert evaluate(base, num_episodes=1, version=1).weights == "weights version 1"
    assert dovetail.open(base).events("eval")[-1]["version"] == 1


def test_settings_of_the_named_run_stay(base, tmp_path):
    """The deployed policy acts in its environment, within its safety limits."""
    approve(base, make_run(tmp_path / "other", "task.max_steps=4"))
    with pytest.raises(UsageError, match=r"both policies must have the same task, but task.max_steps is 5"):
        evaluate(base, num_episodes=1)


def test_policy_that_brings_its_weights_is_evaluated_instead(base, second, tmp_path):
    token = make_token(tmp_path / "token")
    settings = {"policy": {"type": "remote", "address": "localhost:1", "token_file": str(token)}}
    with pytest.raises(PolicyError, match="cannot connect"):
        evaluate(base, settings)


def test_server_serves_what_is_deployed_with_the_token_of_the_named_run(base, second, tmp_path):
    lines = []
    opened = _open_run(str(base), None, tmp_path)
    with opened.policy(lines.append, {}) as policy:
        chunk = policy.act(zero_inputs(policy.spec), ActContext(deterministic=True))
    assert chunk.policy_version == 2
    assert lines == [f"policy 'gaussian_mlp', weights version 2 of {second}, deployed in {base}"]
    assert opened.make_token() == base / "serve.token"


def test_deployed_weights_that_are_gone_are_one_line(base, second):
    shutil.rmtree(second)
    with pytest.raises(UsageError, match=r"second/weights/v00000002.json is deployed in .*Roll it back"):
        acting_weights(base)


def test_foreign_folder_names_nothing_outside_it(base, tmp_path):
    folder = RunFolder.create(tmp_path / "foreign", load(["peg-insertion"]))
    deployed = {"weights": str(base / "weights/v00000001.json"), "expected_rate": None}
    folder.write_json(DEPLOYMENT, {"deployed": deployed, "earlier": [], "candidate": None, "outcomes": []})
    (folder.path / MARK).unlink()
    config = folder.path / "config.yaml"
    config.write_text(config.read_text() + "# copied\n")  # nothing that this process has made
    with pytest.raises(PluginError, match="names weights outside it"):
        acting_weights(folder.path)
    assert acting_weights(folder.path, version=1).folder.path == folder.path
