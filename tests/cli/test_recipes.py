"""Every recipe runs from demonstrations to report, with a budget too small to learn."""

import json
import subprocess
import sys
import time

import pytest

from dovetail.config.load import load, recipes
from dovetail.core.specs import ArraySpec
from dovetail.emulators.emulator import EmulatorProcess
from dovetail.labels.learned.calibration import Calibration
from dovetail.labels.learned.folder import save_classifier
from dovetail.labels.learned.network import SuccessNet
from dovetail.labels.learned.training import Trained, TrainingConfig
from dovetail.policies.images.backbones import MobileNetV2, save_backbone
from dovetail.policies.images.encoders import EncoderConfig
from support.lerobot_folder import widen, write_folder

TINY = (
    "run.demos=1",
    "run.env_steps=10",
    "run.eval_episodes=1",
    "run.untrained_episodes=0",
    "run.video_episodes=0",
    "learner.bc_updates=5",
    "learner.warmup_updates=5",
    "learner.utd=0.02",
    "task.time_limit_s=40.0",
)

EMULATED = ("igris-b", "so101")  # they need an emulator: see test_emulated_recipes.py


WHOLE_LOOP = ("improve-served-vla",)  # several runs: see tests/api/test_improvement.py


def test_every_task_has_a_recipe():
    tasks = {
        "push_cube",
        "push_by_prompt",
        "peg_insertion",
        "charger",
        "pick_place",
        "cap_tightening",
        "table_cleanup",
        "table",
        "igris_reach",
    }
    assert {recipe.task for recipe in recipes()} == tasks


@pytest.fixture
def weights(tmp_path):
    """Random weights of a frozen encoder; ImageNet weights are not part of the package."""
    file = tmp_path / "mobilenet_v2.safetensors"
    save_backbone(MobileNetV2(), file, arch="mobilenet_v2")
    return f"policy.encoder.file={file}"


@pytest.fixture
def classifier(tmp_path):
    """A random classifier that accepts every image as success."""
    encoder = EncoderConfig(features=8)
    seen = {"wrist": ArraySpec(shape=(96, 96, 3), dtype="uint8")}
    trained = Trained(
        net=SuccessNet(encoder, cameras=seen, proprio={}),
        config=TrainingConfig(cameras=("wrist",), encoder=encoder),
        calibration=Calibration(),
        threshold=0.5,
        num_updates=0,
        episodes=(),
        held_out=(),
        probabilities=(),
    )
    save_classifier(tmp_path / "anything", trained, facts={})
    return (f"labels.0.folder={tmp_path / 'anything'}", "labels.0.threshold=0.000001")


@pytest.fixture
def emulator(recipe):
    """Settings for a recipe whose robot is emulated by a process of its own."""
    if recipe != "franka-peg-emulated":
        yield ()
        return
    with EmulatorProcess("franka", "port=0", "task=peg_insertion", "lockstep=true") as process:
        yield (f"robot.address={process.lines[0].removeprefix('http://')}",)


@pytest.fixture
def base(cli, tmp_path, recipe):
    """Settings for a recipe whose policy has another run as its base: that run, hardly trained."""
    bases = {
        "peg-insertion-residual": "peg-insertion-offset-base",
        "pick-place-residual": "pick-place-sft",
        "push-cube-rlt": "push-cube-rlt-base",
    }
    if recipe not in bases:
        return ()
    folder = tmp_path / "bases"
    made = cli("train", bases[recipe], *TINY, "--runs-dir", str(folder), "--name", "base", "--quiet")
    assert made.code == 0, made.err
    return (f"policy.base.run={folder / 'base'}",)


@pytest.mark.extended
@pytest.mark.parametrize("recipe", [one.name for one in recipes() if one.name not in (*EMULATED, *WHOLE_LOOP)])
def test_recipe_runs(cli, tmp_path, weights, classifier, emulator, base, recipe):
    needs = {
        "peg-insertion-images": (weights,),
        "peg-insertion-classifier": classifier,
        "franka-peg-emulated": emulator,
        "table": (
            "operator={type: 'support.table_person:TablePerson'}",
            "robot.realtime=false",
            "actor.layout=one_process",
        ),
    }
    more = (*needs.get(recipe, ()), *base)
    result = cli(
        "run", recipe, *TINY, "runtime=inline", *more, "--runs-dir", str(tmp_path), "--name", "a", "--quiet"
    )
    assert result.code == 0, result.err
    report = json.loads((tmp_path / "a" / "report.json").read_text())
    assert report["demos"] == 1
    assert report["success_after"]["episodes"] == 1


# ---- each with its own runtime, for a minute


A_WHILE = (
    "run.demos=5",
    "run.eval_episodes=5",
    "run.untrained_episodes=2",
    "run.video_episodes=0",
    "learner.bc_updates=200",
    "learner.warmup_updates=200",
)
VERBS = {"pick-place-demos": "collect", "pick-place-sft": "train"}
ON_ONE_MACHINE = {"pick-place-hi-ors-two-machines": ("cluster.machines=null",)}
LONG_S = 60.0


def dovetail(*arguments, cwd):
    command = [sys.executable, "-m", "dovetail.cli", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow  # in shards: -k RECIPE
@pytest.mark.parametrize(
    "recipe", [recipe.name for recipe in recipes() if recipe.name not in (*EMULATED, *WHOLE_LOOP, "table")]
)  # needs a person
def test_recipe_runs_for_a_minute_and_reports(tmp_path, weights, classifier, emulator, base, recipe):
    """Or until its budget is spent. `dovetail eval` then evaluates the result."""
    config = load([recipe])
    more = {
        "peg-insertion-images": (weights,),
        "peg-insertion-classifier": classifier,
        "franka-peg-emulated": emulator,
        **ON_ONE_MACHINE,
    }
    settings = [*(A_WHILE[1:] if recipe in VERBS else A_WHILE), *more.get(recipe, ()), *base]
    steps, seconds = min(400, config.run.env_steps) if "ppo" not in recipe else 20_000, 0.0
    while True:
        name, began_s = f"a{steps}", time.monotonic()
        ordered = VERBS.get(recipe, "run")
        dovetail(ordered, recipe, *settings, f"run.env_steps={steps}", "--name", name, "--quiet", cwd=tmp_path)
        if ordered == "collect":
            dovetail("run", "--resume", name, "--quiet", cwd=tmp_path)
        seconds = time.monotonic() - began_s
        if seconds > LONG_S or steps >= config.run.env_steps:
            break
        steps = min(config.run.env_steps, max(2 * steps, int(1.3 * steps * LONG_S / seconds)))
    run = tmp_path / "runs" / name
    report = json.loads((run / "report.json").read_text())
    assert report["demos"] >= (config.run.demos if recipe in VERBS else 5)
    assert report["env_steps"] >= steps
    assert report["updates"] > 0
    after = report["success_after"]
    assert after["episodes"] == 5
    assert 0.0 <= after["low"] <= after["rate"] <= after["high"] <= 1.0
    assert 0.0 < report["wall_s"] < seconds
    assert "of 3" in dovetail("eval", name, "--episodes", "3", "--quiet", cwd=tmp_path)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("recipe", "more"),
    [
        ("pick-place-act", "policy.horizon=8"),
        ("pick-place-diffusion", "policy.num_observations=2"),
    ],
)
def test_act_and_diffusion_run_with_images(cli, tmp_path, recipe, more):
    images = ("robot.images=[front, wrist]", "policy.inputs=[ee_error, front, wrist]", "policy.width=16")
    names = ("--runs-dir", str(tmp_path), "--name", "a", "--quiet")
    result = cli("run", recipe, *TINY, *images, more, *names)
    assert result.code == 0, result.err
    weights = next((tmp_path / "a" / "weights").glob("v*.json"))
    assert {"actor", "encoder", "normalizer"} <= set(json.loads(weights.read_text())["components"])


@pytest.mark.extended
def test_run_trains_a_policy_of_lerobot_further_and_resumes_from_its_own_copy(cli, tmp_path):
    folder = write_folder(tmp_path / "folder", "act_environment")
    widen(folder, state=16, environment_state=6, action=6)
    policy = f"policy={{type: act, checkpoint: {folder}, state: [task_state], environment: [ee_error]}}"
    names = ("--runs-dir", str(tmp_path), "--name", "a", "--quiet")
    result = cli("run", "push-cube", "algorithm=hg_dagger", policy, *TINY, *names)
    assert result.code == 0, result.err
    assert {path.stem for path in (tmp_path / "a" / "parts").glob("*")} == {"actor", "normalizer"}
    (folder / "model.safetensors").write_bytes(b"gone")
    evaluated = cli("eval", str(tmp_path / "a"), "--episodes", "1", "--quiet")
    assert evaluated.code == 0, evaluated.err
