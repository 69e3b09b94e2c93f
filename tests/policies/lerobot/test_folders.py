"""LeRobot's folders of ACT and Diffusion Policy: what is refused, how axes and cameras are matched, and training further."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from dovetail.api.evaluation import evaluate
from dovetail.config.load import load
from dovetail.core.errors import DovetailError
from dovetail.core.types import ActContext
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.policies.lerobot.folder import open_folder
from dovetail.runs.assembly.policy_components import save_components
from dovetail.runs.folder import RunFolder
from support.lerobot_folder import ROBOT, load_policy, observations, policy_of, settings, widen, write_folder

STILL = ActContext(deterministic=True)


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "folder", "act_environment")


def change(folder, name="config.json", **changes):
    content = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(content | changes))


def change_weights(folder, edit):
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors")


def refused(folder, message, case="act_environment", **more):
    with pytest.raises(DovetailError, match=message) as caught:
        load_policy(case, folder, **more)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"type": "smolvla"},
            "holds a 'smolvla' policy, but LeRobot's 'act' was expected. Set policy.type=smolvla",
        ),
        ({"type": "diffusion"}, "holds a 'diffusion' policy, but LeRobot's 'act' was expected"),
        (
            {"new_option": 1, "attention": "x"},
            "options of LeRobot's 'act' that are unknown here: attention, new_option",
        ),
        ({"use_peft": True}, "PEFT adapter"),
        (
            {"vision_backbone": "resnet50"},
            "vision_backbone=resnet50, which is unknown here. Known: resnet18, resnet34",
        ),
        ({"replace_final_stride_with_dilation": True}, "replace_final_stride_with_dilation"),
        ({"feedforward_activation": "glu"}, "an option that is unknown here: activation"),
        ({"n_obs_steps": 2}, "n_obs_steps=2, but ACT has no history"),
        ({"dim_model": 32}, r"component 'actor'|actor/.* is \(.*16"),
        ({"n_decoder_layers": 3}, r"component 'actor' lacks decoder\.layers\.2"),
        ({"n_encoder_layers": 1}, r"component 'actor' has unexpected encoder\.layers\.1"),
        ({"output_features": {}}, "has no output 'action'"),
        ({"normalization_mapping": {"STATE": "MEAN_STD"}}, "no normalization of ACTION"),
    ],
)
def test_option_that_could_change_the_network_is_refused(folder, options, message):
    change(folder, **options)
    refused(folder, message)


def test_missing_option_is_named(folder):
    content = json.loads((folder / "config.json").read_text())
    del content["latent_dim"]
    (folder / "config.json").write_text(json.dumps(content))
    refused(folder, "incomplete or contradicts itself.*latent_dim")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda w: w.pop("model.action_head.bias"), r"component 'actor' lacks action_head\.bias"),
        (lambda w: w.update({"model.extra": np.zeros(1, np.float32)}), "component 'actor' has unexpected extra"),
        (lambda w: w.update({"model.action_head.bias": np.zeros(4, np.float32)}), r"action_head.bias is \(4,\)"),
        (
            lambda w: w.update({"model.action_head.bias": np.full(3, np.nan, np.float32)}),
            r"action_head.bias holds non-finite numbers",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(folder, edit, message):
    change_weights(folder, edit)
    refused(folder, message)


def test_folder_without_statistics_is_refused(folder):
    for path in folder.glob("policy_*"):
        path.unlink()
    refused(folder, "statistics of observation.state have no 'mean'.*no unit")


def test_old_folder_whose_statistics_were_never_set_is_refused(tmp_path):
    folder = write_folder(tmp_path / "old", "act_environment", old=True)
    key = "normalize_inputs.buffer_observation_state.mean"
    change_weights(folder, lambda w: w.update({key: np.full(4, np.inf, np.float32)}))
    refused(folder, "statistics of observation.state have no 'mean'")


def test_processor_step_that_is_unknown_or_imports_code_is_refused(folder):
    for step, message in (
        ({"registry_name": "delta_processor"}, "step 'delta_processor', which is unknown here"),
        ({"class": "os.system"}, "step of class 'os.system', which would import code"),
    ):
        change(folder, "policy_preprocessor.json", steps=[step])
        refused(folder, message)


def normalize(folder, name, **modes):
    """Change the modes of one of the processors."""
    steps = json.loads((folder / name).read_text())["steps"]
    for step in steps:
        if "normalizer" in step["registry_name"]:
            step["config"]["norm_map"] |= modes
    change(folder, name, steps=steps)


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("LOG", "has normalization 'LOG', which is unknown here"),
        ("QUANTILES", "have no 'q01', which QUANTILES needs"),
    ],
)
def test_normalization_that_is_unknown_or_lacks_statistics_is_refused(folder, mode, message):
    normalize(folder, "policy_preprocessor.json", STATE=mode)
    refused(folder, message)


def test_processors_decide_the_mode_whatever_the_config_says(folder):
    before = load_policy("act_environment", folder).weights()["normalizer"]
    change(folder, normalization_mapping={"STATE": "IDENTITY", "ACTION": "IDENTITY", "ENV": "IDENTITY"})
    after = load_policy("act_environment", folder).weights()["normalizer"]
    assert all(np.array_equal(before[key], after[key]) for key in before)
    normalize(folder, "policy_postprocessor.json", ACTION="IDENTITY")
    changed = load_policy("act_environment", folder).weights()["normalizer"]
    assert not np.array_equal(changed["std/action"], after["std/action"])
    assert np.array_equal(changed["std/action"], np.ones(3)) and np.array_equal(
        changed["mean/action"], np.zeros(3)
    )


def test_statistics_file_outside_the_folder_is_refused(folder):
    step = {"registry_name": "normalizer_processor", "state_file": "../secret.safetensors"}
    change(folder, "policy_preprocessor.json", steps=[step])
    refused(folder, "not a plain name in the folder")


def test_damaged_and_missing_files_are_refused(folder, tmp_path):
    refused(tmp_path / "nowhere", "is not a folder")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    refused(folder, "damaged or truncated")
    (folder / "model.safetensors").unlink()
    (folder / "model.bin").write_bytes(b"x")
    refused(folder, r"no model.safetensors.*model.bin may be a pickle")


# ---- the robot


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"state": ["joints"], "state_axes": []}, "statistics of 4 state axes, but robot 'arm' gives 3"),
        ({"state_axes": ["c", "a", "d", "e"]}, "policy.state_axes names 'e', which is not an axis"),
        ({"action_axes": ["z", "x", "w"]}, "policy.action_axes names 'w'"),
        ({"environment": []}, r"reads observation.environment_state \(5 axes\)"),
        ({"images": {"front": "left"}}, "policy.images names 'front', which the checkpoint does not have"),
        ({"normalization": {"joints": {"mean": (0, 0, 0), "std": (1, 1, 1)}}}, "policy.normalization is for new"),
    ],
)
def test_robot_that_does_not_fit_is_refused(folder, more, message):
    refused(folder, message, **more)


def test_all_cameras_are_needed_and_their_aspect_is_kept(tmp_path):
    folder = write_folder(tmp_path / "folder", "diffusion_images")
    case = "diffusion_images"
    refused(
        folder,
        "needs camera 'wrist'. Name a camera of robot 'arm' in policy.images",
        case,
        images={"front": "left"},
    )
    refused(folder, "maps 'wrist' to 'top', but robot 'arm' has no such camera", case, images={"wrist": "top"})
    square = dataclasses.replace(ROBOT.observation["left"], shape=(64, 64, 3))
    robot = dataclasses.replace(ROBOT, observation={**ROBOT.observation, "left": square})
    refused(folder, "camera 'left' has 64x64 pixels, but .* was trained with 64x48 of 'front'", case, robot=robot)
    large = dataclasses.replace(ROBOT.observation["left"], shape=(96, 128, 3))
    robot = dataclasses.replace(ROBOT, observation={**ROBOT.observation, "left": large})
    policy = load_policy(case, folder, robot=robot)
    seen = observations(case, 2)
    doubled = seen | {"left": seen["left"].repeat(2, axis=2).repeat(2, axis=3)}
    ours, theirs = policy.act(doubled, STILL).actions, load_policy(case, folder).act(seen, STILL).actions
    assert ours.shape == theirs.shape  # scaled down to the size of the training


def test_cameras_may_have_the_name_of_old_folders(tmp_path):
    folder = write_folder(tmp_path / "folder", "diffusion_images")
    content = json.loads((folder / "config.json").read_text())
    content["input_features"]["observation.image"] = content["input_features"].pop("observation.images.front")
    (folder / "config.json").write_text(json.dumps(content))
    assert list(open_folder(folder).cameras) == ["wrist", "image"]


# ---- training further


def batch_of(case, policy, num_steps):
    rng = np.random.default_rng(0)
    seen = {f"observation/{key}": torch.from_numpy(value) for key, value in observations(case, num_steps).items()}
    actions = torch.from_numpy(rng.uniform(-1.0, 1.0, (2, policy.spec.horizon, 3)).astype(np.float32))
    known = torch.ones(actions.shape[:2], dtype=torch.bool)
    return seen | {"action": actions, "action/mask": known, "human": known}


@pytest.mark.parametrize(("case", "num_steps"), [("act_environment", 1), ("diffusion_environment", 3)])
def test_training_continues_from_the_folder_and_a_run_keeps_its_own_copy(tmp_path, case, num_steps):
    folder, parts = write_folder(tmp_path / "folder", case), tmp_path / "parts"
    policy = load_policy(case, folder)
    save_components(policy, parts)
    untrained = policy.weights()
    assert untrained["normalizer"]["mean/state"].tolist() == pytest.approx(
        open_folder(folder).component("normalizer")["mean/state"].tolist()
    )
    policy.fit_normalizer({"joints": np.zeros((2, 3)), "hand": np.zeros((2, 1)), "task": np.zeros((2, 5))})
    algorithm = Imitation(ImitationConfig(lr=1e-2), policy=policy, seed=0)
    batch = batch_of(case, policy, num_steps)
    losses = [algorithm.update(batch)["imitation_loss"] for _ in range(20)]
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    trained = algorithm.policy_weights()
    for key, value in untrained["normalizer"].items():  # the network needs the statistics that it was trained with
        assert np.array_equal(trained["normalizer"][key], value)
    change_weights(folder, lambda w: w.update({key: 0 * value for key, value in w.items()}))
    again = policy_of(settings(case, folder), components=parts)
    for name, arrays in untrained.items():
        for key, value in arrays.items():
            assert np.array_equal(again.weights()[name][key], value)


def test_components_may_be_frozen(folder):
    policy = load_policy("act_environment", folder, components={"normalizer": {"frozen": False}})
    policy.fit_normalizer({"joints": np.ones((2, 3)), "hand": np.ones((2, 1)), "task": np.ones((2, 5))})
    assert policy.weights()["normalizer"]["mean/state"].tolist() == [1.0] * 4
    refused(folder, "has no component 'actro'", components={"actro": {"frozen": True}})


def test_scheduler_and_steps_of_acting_may_be_chosen(tmp_path):
    folder = write_folder(tmp_path / "folder", "diffusion_environment")
    assert load_policy("diffusion_environment", folder)._noise_schedule.levels == [8, 6, 4, 2, 0]
    policy = load_policy("diffusion_environment", folder, num_denoising_steps=2, scheduler="ddpm")
    assert policy._noise_schedule.levels == [5, 0]
    assert policy._noise_schedule.is_stochastic


def test_eval_acts_with_the_folder_on_the_task_of_another_run_and_with_its_weights_after_training(
    folder, tmp_path
):
    widen(folder, state=16, environment_state=6, action=6)
    policy = {"type": "act", "checkpoint": str(folder), "state": ["task_state"], "environment": ["ee_error"]}
    short = {"task.time_limit_s": 0.3}
    other = RunFolder.create(tmp_path / "other", load(["push-cube"], short))
    found = evaluate(other.path, {"policy": policy}, num_episodes=1)
    assert found.weights == "the act policy"
    assert len(found.arms[0].scores) == 1
    own = RunFolder.create(
        tmp_path / "own", load(["push-cube"], {**short, "policy": policy, "algorithm": "imitation"})
    )
    with pytest.raises(DovetailError, match="no weights"):  # those of the run, which has none yet
        evaluate(own.path, num_episodes=1)
