"""Every recipe runs from its demonstrations to its report, on a budget too small to learn anything."""

import json

import pytest

from dovetail.config.load import recipes
from dovetail.policies.backbones import MobileNetV2, save_backbone

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


@pytest.mark.parametrize("recipe", [recipe.name for recipe in recipes()])
def test_it_runs(cli, tmp_path, weights, recipe):
    needs = {"peg-insertion-images": (weights,), "push-cube-ppo": ("learner.start_from=scratch",)}
    more = needs.get(recipe, ())
    result = cli("run", recipe, *TINY, *more, "--runs-dir", str(tmp_path), "--name", "a", "--quiet")
    assert result.code == 0, result.err
    report = json.loads((tmp_path / "a" / "report.json").read_text())
    assert report["demos"] == 1
    assert report["success_after"]["episodes"] == 1
