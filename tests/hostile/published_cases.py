"""Hostile folders with published weights: served or exported, or named by the config of a run that contains them."""

from __future__ import annotations

import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import ones, zeros

from dovetail.policies.vla.families import FAMILIES
from dovetail.policies.vla.new_model import write_new_model
from hostile.folders import CODE, Place, add_case, nested, put, replace, set_config
from support.lerobot_folder import write_folder
from support.smolvla_folders import write_smolvla

Change = Callable[[Path], object]
WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"


def write_pi0(folder: Path, *, format_: str = "LeRobot") -> Path:
    """As older LeRobot folders: statistics inside the weights."""
    write_new_model(folder, FAMILIES["pi0"], horizon=4)
    weights = load_file(folder / WEIGHTS)
    config = json.loads((folder / CONFIG).read_text())
    for part, size in (("normalize_inputs.buffer_observation_state", 3), ("unnormalize_outputs.buffer_action", 2)):
        weights |= {f"{part}.mean": zeros(size), f"{part}.std": ones(size)}
    config["input_features"]["observation.state"] = {"type": "STATE", "shape": [3]}
    config["output_features"] = {"action": {"type": "ACTION", "shape": [2]}}
    if format_ == "openpi":
        weights = {
            key.removeprefix("model."): value
            for key, value in weights.items()
            if not key.startswith(("normalize_", "unnormalize_"))
        }
        config = {"action_dim": 64, "action_horizon": 4, "paligemma_variant": "gemma_2b"}
        numbers = {"mean": [0.0] * 3, "std": [1.0] * 3, "q01": [-1.0] * 3, "q99": [1.0] * 3}
        stats = {"norm_stats": {"state": numbers, "actions": numbers}}
        put(folder / "assets" / "arm" / "norm_stats.json", json.dumps(stats))
    save_file(weights, folder / WEIGHTS)
    put(folder / CONFIG, json.dumps(config))
    return folder


WRITERS: dict[str, Callable[[Path], Path]] = {
    "pi0": write_pi0,
    "openpi": lambda folder: write_pi0(folder, format_="openpi"),
    "smolvla": write_smolvla,
    "act": lambda folder: write_folder(folder, "act_environment"),
    "diffusion": lambda folder: write_folder(folder, "diffusion_environment"),
}


@functools.cache
def published(kind: str) -> Path:
    """Written once per process, then copied."""
    return WRITERS[kind](Path(tempfile.mkdtemp(prefix="hostile-published-")) / "folder")


def _folder(kind: str, change: Change) -> Callable[[Place], None]:
    def build(place: Place) -> None:
        shutil.copytree(published(kind), place.run)
        change(place.run)

    return build


def _placed(kind: str, change: Callable[[Place], object]) -> Callable[[Place], None]:
    def build(place: Place) -> None:
        shutil.copytree(published(kind), place.run)
        change(place)

    return build


def edit(name: str, change: Callable[[dict[str, Any]], object]) -> Change:
    def apply(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        put(folder / name, json.dumps(content))

    return apply


def _config(**fields: Any) -> Change:
    return edit(CONFIG, lambda config: config.update(fields))


def _feature(part: str, key: str, shape: Any) -> Change:
    return edit(CONFIG, lambda config: config[part][key].update(shape=shape))


def _header(make: Callable[[dict[str, Any]], object] | bytes, *, length: int | None = None) -> Change:
    """Another header before the same data."""

    def apply(folder: Path) -> None:
        data = (folder / WEIGHTS).read_bytes()
        size = int.from_bytes(data[:8], "little")
        if isinstance(make, bytes):
            header = make
        else:
            content = json.loads(data[8 : 8 + size])
            make(content)
            header = json.dumps(content).encode()
        put(folder / WEIGHTS, (length or len(header)).to_bytes(8, "little") + header + data[8 + size :])

    return apply


def _shards(names: dict[str, str] | None = None, text: str = "") -> Change:
    def apply(folder: Path) -> None:
        put(folder / INDEX, text or json.dumps({"weight_map": names}))

    return apply


def _sparse(folder: Path) -> None:
    """Weights of 32 GB that have the right header for their size, and no data."""
    size = 32 << 30
    header = json.dumps({"model.state_proj.weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}})
    with (folder / WEIGHTS).open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header.encode())
        file.truncate(8 + len(header) + size)


def _code(folder: Path) -> None:
    for name in ("modeling", "torch", "av"):
        put(folder / f"{name}.py", CODE)


def _many_cameras(folder: Path) -> None:
    camera = {"type": "VISUAL", "shape": [3, 64, 64]}
    images = {f"observation.images.c{number}": camera for number in range(20_000)}
    edit(CONFIG, lambda config: config["input_features"].update(images))(folder)


def _link(name: str, make: Callable[[Place, Path], object]) -> Callable[[Place], object]:
    return lambda place: replace(place.run / name, lambda path: make(place, path))


def _transformers(**sizes: Any) -> Change:
    """transformers' config tells the sizes of the network, which LeRobot's leaves to the weights."""
    text = {"hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 1}
    text |= {"head_dim": 32, "intermediate_size": 256, "vocab_size": 512, **sizes}
    vision = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 16, "intermediate_size": 128}
    config = {
        "model_type": "pi0",
        "vlm_config": {"text_config": text, "vision_config": {**vision, "image_size": 64, "patch_size": 32}},
        "dit_config": text,
        "chunk_size": 4,
        "max_state_dim": 64,
        "max_action_dim": 64,
        "num_inference_steps": 10,
        "min_period": 0.004,
        "max_period": 4.0,
    }
    return lambda folder: put(folder / CONFIG, json.dumps(config))


_TOKENIZER, _ACT = "tokenizer.json", "act"
FOLDERS: dict[str, Callable[[Place], None]] = {
    # texts
    "config-deep": _folder("pi0", lambda f: put(f / CONFIG, '{"type": ' + nested() + "}")),
    "config-large": _folder("pi0", lambda f: put(f / CONFIG, '{"x": [' + "[]," * 20_000_000 + "0]}")),
    "config-list": _folder("pi0", lambda f: put(f / CONFIG, "[1]")),
    "config-escape": _folder("pi0", _config(type="\x1b[31m\nerror: fake" + "x" * 5000)),
    "config-lists": _folder("pi0", _config(input_features=[], output_features=[], normalization_mapping=[])),
    "tokenizer-deep": _folder("pi0", lambda f: put(f / _TOKENIZER, '{"model": ' + nested() + "}")),
    "tokenizer-large": _folder("pi0", lambda f: put(f / _TOKENIZER, '{"x": [' + "[]," * 40_000_000 + "0]}")),
    "tokenizer-config-deep": _folder("pi0", lambda f: put(f / "tokenizer_config.json", '{"x": ' + nested() + "}")),
    "statistics-deep": _folder("openpi", lambda f: put(f / "assets/arm/norm_stats.json", '{"x": ' + nested())),
    "statistics-huge": _folder(
        "openpi",
        edit("assets/arm/norm_stats.json", lambda s: s["norm_stats"]["state"].update(mean=[10**400] * 3)),
    ),
    "processor-deep": _folder(
        "smolvla", lambda f: put(f / "policy_preprocessor.json", '{"steps": ' + nested() + "}")
    ),
    "processor-file-outside": _folder(
        "smolvla",
        edit("policy_preprocessor.json", lambda p: [s.update(state_file="../outside/x") for s in p["steps"]]),
    ),
    "processor-code": _folder(
        "smolvla",
        edit("policy_preprocessor.json", lambda p: p["steps"].append({"class": "evil.Step", "config": {}})),
    ),
    # sizes of the config
    "horizon-huge": _folder("pi0", _config(chunk_size=10**9)),
    "horizon-infinite": _folder("pi0", _config(chunk_size=float("inf"))),
    "prompt-huge": _folder("pi0", _config(tokenizer_max_length=10**9)),
    "state-huge": _folder("pi0", _feature("input_features", "observation.state", [10**12])),
    "action-huge": _folder("pi0", _feature("output_features", "action", [10**12])),
    "cameras-many": _folder("pi0", _many_cameras),
    "layers-many": _folder("pi0", _transformers(num_hidden_layers=10**9)),
    "width-huge": _folder("pi0", _transformers(hidden_size=1 << 40)),
    "width-text": _folder("pi0", _transformers(hidden_size="x")),
    "act-width-huge": _folder(_ACT, _config(dim_model=1 << 16, dim_feedforward=1 << 16)),
    "act-layers-many": _folder(_ACT, _config(n_encoder_layers=10**9)),
    "act-horizon-huge": _folder(_ACT, _config(chunk_size=10**9)),
    "act-action-huge": _folder(_ACT, _feature("output_features", "action", [10**10])),
    "diffusion-channels-huge": _folder("diffusion", _config(down_dims=[1 << 16] * 2, horizon=8)),
    "diffusion-levels-many": _folder("diffusion", _config(num_train_timesteps=10**11)),
    # tensors
    "header-huge": _folder("pi0", _header(b"{}", length=1 << 60)),
    "header-long": _folder("pi0", _header(b'{"a":' + b" " * (90 << 20) + b"{}}")),
    "header-deep": _folder("pi0", _header(('{"a":' + nested(50_000) + "}").encode())),
    "header-shape-huge": _folder("pi0", _header(lambda h: h[next(iter(h))].update(shape=[1 << 40, 1 << 40]))),
    "header-truncated": _folder("pi0", lambda f: put(f / WEIGHTS, (f / WEIGHTS).read_bytes()[:100_000])),
    "header-no-numbers": _folder(
        "pi0",
        _header(
            lambda h: h.update(
                {
                    "model.paligemma_with_expert.empty.weight": {
                        "dtype": "F32",
                        "shape": [1 << 40, 0],
                        "data_offsets": [0, 0],
                    }
                }
            )
        ),
    ),
    "weights-sparse": _folder("pi0", _sparse),
    "weights-not-finite": _folder(
        "smolvla",
        lambda f: save_file({k: v * float("nan") for k, v in load_file(f / WEIGHTS).items()}, f / WEIGHTS),
    ),
    "pickle": _folder("pi0", lambda f: (f / WEIGHTS).rename(f / "pytorch_model.bin")),
    "code": _folder("pi0", _code),
    # the index
    "index-outside": _folder("pi0", _shards({"a": "../outside/secret.json"})),
    "index-absolute": _folder("pi0", _shards({"a": "/etc/passwd"})),
    "index-deep": _folder("pi0", _shards(text='{"weight_map": ' + nested() + "}")),
    "index-many": _folder("pi0", _shards({f"k{n}": f"model-{n}.safetensors" for n in range(50_000)})),
    "index-zero-byte": _folder("pi0", _shards({"a": "model\0.safetensors"})),
    "index-long": _folder("pi0", _shards({"a": "x" * 100_000})),
    # links and pipes
    "config-outside": _placed("pi0", _link(CONFIG, lambda p, path: path.symlink_to(p.secret))),
    "weights-outside": _placed("pi0", _link(WEIGHTS, lambda p, path: path.symlink_to(p.secret))),
    "tokenizer-outside": _placed("pi0", _link(_TOKENIZER, lambda p, path: path.symlink_to(p.secret))),
    "tokenizer-config-outside": _placed(
        "pi0", _link("tokenizer_config.json", lambda p, path: path.symlink_to(p.secret))
    ),
    "assets-outside": _placed("openpi", _link("assets", lambda p, path: path.symlink_to(p.secret_folder))),
    "assets-root": _placed("openpi", _link("assets", lambda p, path: path.symlink_to("/"))),
    "act-config-outside": _placed(_ACT, _link(CONFIG, lambda p, path: path.symlink_to(p.secret))),
    "act-weights-outside": _placed(_ACT, _link(WEIGHTS, lambda p, path: path.symlink_to(p.secret))),
    "weights-zero": _placed("pi0", _link(WEIGHTS, lambda p, path: path.symlink_to("/dev/zero"))),
    "weights-pipe": _placed("pi0", _link(WEIGHTS, lambda p, path: os.mkfifo(path))),
    "config-loop": _placed("pi0", _link(CONFIG, lambda p, path: path.symlink_to(path.name))),
}
DEFAULT = ("act-width-huge", "config-outside")
EXTENDED = (
    *("config-deep", "config-large", "tokenizer-large", "horizon-huge", "layers-many", "act-layers-many"),
    *(
        "diffusion-channels-huge",
        "header-huge",
        "weights-sparse",
        "index-outside",
        "weights-outside",
        "assets-outside",
    ),
)
for what, build in FOLDERS.items():
    level = "default" if what in DEFAULT else "extended" if what in EXTENDED else "slow"
    commands = ("serve-folder", "policy-export")
    add_case(f"published-{what}", build, *commands, is_dataset=True, level=level)

# ---- inside a run that was made elsewhere


def _in_run(kind: str, change: Callable[[Place, Path], object], **more: Any) -> Callable[[Place], None]:
    """In `episodes`, where links are checked for each episode only."""

    def build(place: Place) -> None:
        folder = place.run / "episodes" / "published"
        shutil.copytree(published(kind), folder)
        change(place, folder)
        name = "pi0" if kind == "openpi" else kind
        set_config(
            place.run, lambda config: config.update(policy={"type": name, "checkpoint": str(folder), **more})
        )

    return build


def _outside(name: str) -> Callable[[Place, Path], object]:
    return lambda place, folder: replace(folder / name, lambda path: path.symlink_to(place.secret))


def _own_blobs(place: Place, folder: Path) -> None:
    """Like Hugging Face's cache, but its blobs are elsewhere."""
    snapshot = folder.parent / "models--a" / "snapshots" / "1"
    snapshot.parent.mkdir(parents=True)
    folder.rename(snapshot)
    folder.symlink_to(snapshot)
    (snapshot.parents[1] / "blobs").symlink_to(place.outside)
    replace(snapshot / CONFIG, lambda path: path.symlink_to("../../blobs/secret.json"))


for what, build in {
    "act-config-outside": _in_run(_ACT, _outside(CONFIG)),
    "act-weights-outside": _in_run(_ACT, _outside(WEIGHTS)),
    "pi0-config-outside": _in_run("pi0", _outside(CONFIG), images={}),
    "pi0-tokenizer-outside": _in_run("pi0", _outside(_TOKENIZER), images={}),
    "pi0-blobs-outside": _in_run("pi0", _own_blobs, images={}),
    "act-width-huge": _in_run(_ACT, lambda place, f: _config(dim_model=1 << 16)(f)),
}.items():
    level = "extended" if what in ("act-config-outside", "pi0-blobs-outside") else "slow"
    add_case(f"published-in-run-{what}", build, "serve", "eval", "ls", "policy-export", level=level, in_run=True)
