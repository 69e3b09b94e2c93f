"""Every recipe runs from its demonstrations to its report, on a budget too small to learn anything."""

import json

import pytest

from dovetail.config.load import recipes
from dovetail.core.specs import ArraySpec
from dovetail.labels.learned.calibration import Calibration
from dovetail.labels.learned.folder import save_classifier
from dovetail.labels.learned.network import SuccessNet
from dovetail.labels.learned.training import Trained, TrainingConfig
from dovetail.policies.backbones import MobileNetV2, save_backbone
from dovetail.policies.encoders import EncoderConfig

TINY = (
    "run.demos=1",
    "run.env_steps=10",
    "run.eval_episodes=1",
    "run.untrained_episodes=0",
    "run.showcase_episodes=0",
    "learner.bc_updates=5",
    "learner.warmup_updates=5",
    "learner.utd=0.02",
    "task.time_limit_s=40.0",
)


def test_there_is_a_recipe_for_each_task():
    tasks = {"push_cube", "peg_insertion", "charger", "pick_place", "cap_tightening", "table_cleanup"}
    assert {recipe.task for recipe in recipes()} == tasks


@pytest.fixture
def weights(tmp_path):
    """Of a frozen encoder: from chance, for ImageNet's are not ours to ship."""
    file = tmp_path / "mobilenet_v2.safetensors"
    save_backbone(MobileNetV2(), file, arch="mobilenet_v2")
    return f"policy.encoder.file={file}"


@pytest.fixture
def classifier(tmp_path):
    """One from chance, that takes anything for success."""
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


@pytest.mark.parametrize("recipe", [recipe.name for recipe in recipes()])
def test_it_runs(cli, tmp_path, weights, classifier, recipe):
    needs = {
        "peg-insertion-images": (weights,),
        "peg-insertion-classifier": classifier,
    }
    more = needs.get(recipe, ())  # those on Ray run there in test_recipes_slow
    result = cli(
        "run", recipe, *TINY, "runtime=inline", *more, "--runs-dir", str(tmp_path), "--name", "a", "--quiet"
    )
    assert result.code == 0, result.err
    report = json.loads((tmp_path / "a" / "report.json").read_text())
    assert report["demos"] == 1
    assert report["success_after"]["episodes"] == 1
