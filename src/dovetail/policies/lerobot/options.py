"""The options in config.json of LeRobot's ACT and Diffusion Policy, and the settings of our networks that they mean. An
option that is not listed here is refused, because it could change the network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.core.errors import CheckpointError, UsageError, shown
from dovetail.policies.checkpoints.folder_files import MAX_IMAGE_SIDE

__all__ = ["POLICIES", "network_settings"]

_SETTINGS = {  # LeRobot's option: our setting
    "act": {
        "chunk_size": "horizon",
        "dim_model": "hidden",
        "n_heads": "num_heads",
        "dim_feedforward": "feedforward",
        "feedforward_activation": "activation",
        "pre_norm": "pre_norm",
        "n_encoder_layers": "num_encoder_layers",
        "n_decoder_layers": "num_decoder_layers",
        "use_vae": "style",
        "latent_dim": "style_size",
        "n_vae_encoder_layers": "num_style_layers",
    },
    "diffusion": {
        "horizon": "horizon",
        "n_obs_steps": "num_observations",
        "down_dims": "channels",
        "kernel_size": "kernel_size",
        "n_groups": "num_groups",
        "diffusion_step_embed_dim": "time_features",
        "use_film_scale_modulation": "film_scale",
        "spatial_softmax_num_keypoints": "num_keypoints",
        "beta_schedule": "schedule",
        "num_train_timesteps": "num_train_steps",
        "prediction_type": "prediction",
    },
}
POLICIES = tuple(_SETTINGS)

_MAX_STAGES = 16
_LIMITS = {  # of our settings
    "horizon": 1000,
    "num_observations": 100,
    "num_encoder_layers": 100,
    "num_decoder_layers": 100,
    "num_style_layers": 100,
    "num_train_steps": 10_000,
    "num_denoising_steps": 10_000,
    "num_keypoints": 10_000,
    "time_features": 10_000,
    "channels": 1 << 20,
    "resize": MAX_IMAGE_SIDE,
    "crop": MAX_IMAGE_SIDE,
}

_READ_BELOW = {
    "act": {"n_obs_steps", "replace_final_stride_with_dilation"},
    "diffusion": {
        *(
            "noise_scheduler_type",
            "num_inference_steps",
            "beta_start",
            "beta_end",
            "clip_sample",
            "clip_sample_range",
        ),
        *("resize_shape", "crop_ratio", "crop_shape", "use_separate_rgb_encoder_per_camera", "use_group_norm"),
    },
}
_FEATURES = {"type", "input_features", "output_features", "normalization_mapping", "vision_backbone", "use_peft"}
_WITHOUT_EFFECT = {  # on the network: training, publication, and how many actions of a chunk are executed
    *("device", "use_amp", "push_to_hub", "repo_id", "private", "tags", "license", "pretrained_path"),
    *(
        "pretrained_revision",
        "pretrained_backbone_weights",
        "n_action_steps",
        "temporal_ensemble_coeff",
        "dropout",
    ),
    *("kl_weight", "optimizer_lr", "optimizer_lr_backbone", "optimizer_weight_decay", "optimizer_betas"),
    *("optimizer_eps", "scheduler_name", "scheduler_warmup_steps", "drop_n_last_frames", "crop_is_random"),
    *("compile_model", "compile_mode", "gradient_checkpointing", "do_mask_loss_for_padding"),
}


def network_settings(config: Mapping[str, Any], *, name: str) -> dict[str, Any]:
    """The settings of our config that the network needs. Raise UsageError for options that are unknown here, and KeyError
    for missing ones."""
    kind = config["type"]
    known = _SETTINGS[kind].keys() | _READ_BELOW[kind] | _FEATURES | _WITHOUT_EFFECT
    if unknown := sorted(config.keys() - known):
        raise UsageError(
            f"{name} has options of LeRobot's '{kind}' that are unknown here: {', '.join(unknown[:5])}. Its network "
            "could differ, so it is not loaded"
        )
    if config.get("use_peft"):
        raise UsageError(f"{name} holds a PEFT adapter (use_peft). Merge it into the weights first")
    backbone = config["vision_backbone"]
    if backbone not in ("resnet18", "resnet34"):
        raise UsageError(
            f"{name} has vision_backbone={backbone}, which is unknown here. Known: resnet18, resnet34"
        )
    settings = {ours: config[theirs] for theirs, ours in _SETTINGS[kind].items()}
    settings["resnet"] = int(backbone.removeprefix("resnet"))
    if kind == "diffusion":
        settings |= _denoising(config, name) | _images(config)
    _check_limits(settings, name)
    if kind == "diffusion":
        return settings
    if config.get("replace_final_stride_with_dilation"):
        raise UsageError(f"{name} has replace_final_stride_with_dilation, which ResNet-18 and 34 do not support")
    if config.get("n_obs_steps", 1) != 1:
        raise UsageError(f"{name} has n_obs_steps={config['n_obs_steps']}, but ACT has no history")
    return settings


def _check_limits(settings: Mapping[str, Any], name: str) -> None:
    """Refuse what takes much memory or time without a weight. Other sizes are compared with the weights."""
    for key, limit in _LIMITS.items():
        value = settings.get(key)
        numbers = value if isinstance(value, list | tuple) else [value]
        if len(numbers) > _MAX_STAGES or any(isinstance(one, int | float) and not one <= limit for one in numbers):
            raise CheckpointError(f"{name} has {key}={shown(value)}. At most {limit} is allowed")


def _denoising(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    scheduler = config["noise_scheduler_type"].lower()
    if scheduler not in ("ddpm", "ddim"):
        raise UsageError(f"{name} has noise_scheduler_type={scheduler}, which is unknown here. Known: DDPM, DDIM")
    return {
        "beta_range": (config["beta_start"], config["beta_end"]),
        "clip_sample": config["clip_sample_range"] if config["clip_sample"] else None,
        "scheduler": scheduler,
        "num_denoising_steps": config.get("num_inference_steps"),
    }


def _images(config: Mapping[str, Any]) -> dict[str, Any]:
    resize, crop = config.get("resize_shape"), config.get("crop_shape")
    if resize is not None:  # LeRobot then replaces crop_shape
        ratio = config.get("crop_ratio", 1.0)
        crop = None if ratio >= 1.0 else [int(side * ratio) for side in resize]
    return {
        "resize": resize,
        "crop": crop,
        "separate_encoders": config.get("use_separate_rgb_encoder_per_camera", False),
    }
