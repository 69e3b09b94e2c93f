"""`dovetail policy`: folders with published weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dovetail.core.errors import UsageError

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Folders with published weights.", no_args_is_help=True)
    group.command(epilog="Example: dovetail policy export pi0_openpi pi0_lerobot --stats norm_stats.json")(export)
    group.command(epilog="Example: dovetail policy new tiny_pi0 --family pi0 --horizon 8")(new)
    group.callback()(_group)
    app.add_typer(group, name="policy")


def _group() -> None:
    """Folders with published weights."""


def export(
    checkpoint: Annotated[
        Path,
        typer.Argument(help="A run with pi0, pi05 or smolvla, or a folder of LeRobot, transformers or openpi."),
    ],
    folder: Annotated[Path, typer.Argument(help="The LeRobot folder to make.")],
    stats: Annotated[
        Path | None, typer.Option(help="Statistics instead of the folder's: stats.json or norm_stats.json.")
    ] = None,
    adapter: Annotated[Path | None, typer.Option(help="A PEFT folder with LoRA, merged into the copy.")] = None,
    lora: Annotated[bool, typer.Option("--lora", help="Of a run: only its LoRA, as a PEFT folder.")] = False,
) -> None:
    """Write a checkpoint, or what a run trained, as a folder that LeRobot's own package loads."""
    from dovetail.cli._terminal import console

    with console.status("loading torch"):
        from dovetail.api.policy_export import export_run
        from dovetail.api.weights import find_weights
        from dovetail.policies.vla.checkpoints.export import export_checkpoint

    file = folder / "model.safetensors"
    if (checkpoint / "config.json").is_file():
        if lora:
            raise UsageError("--lora is for a run. A folder of PEFT is an adapter already")
        export_checkpoint(checkpoint, folder, stats=stats, adapter=adapter)
    else:
        if stats is not None or adapter is not None:
            raise UsageError("--stats and --adapter are for a folder; a run has its own")
        file = export_run(find_weights(checkpoint), folder, lora=lora)
    typer.echo(f"{folder}: {file.stat().st_size / 1e6:.1f} MB")


def new(
    folder: Annotated[Path, typer.Argument(help="The LeRobot folder to make.")],
    family: Annotated[str, typer.Option(help="pi0 or pi05.")] = "pi0",
    size: Annotated[str, typer.Option(help="tiny: 1 million weights. small: 20 million.")] = "tiny",
    horizon: Annotated[int, typer.Option(min=1, max=200, help="Number of actions in a chunk.")] = 8,
    axes: Annotated[
        int, typer.Option(min=1, max=256, help="Action axes of your robot. More are padding, which costs success.")
    ] = 32,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random weights.")] = 0,
) -> None:
    """Write a small model with RANDOM weights: something to train, not to act with."""
    from dovetail.cli._terminal import console

    with console.status("loading torch"):
        from dovetail.policies.vla.families import FAMILIES
        from dovetail.policies.vla.new_model import write_new_model
        from dovetail.policies.vla.settings import NewModelConfig

    if size not in ("tiny", "small"):
        raise UsageError(f"--size {size} is unknown. Use tiny or small")
    if family not in FAMILIES:
        raise UsageError(f"--family {family} is unknown. Use pi0 or pi05")
    settings = NewModelConfig.model_validate({"size": size, "horizon": horizon, "seed": seed})
    num_weights = write_new_model(
        folder, FAMILIES[family], size=settings.size, horizon=horizon, num_actions=axes, seed=seed
    )
    typer.echo(f"{folder}: {family} with {num_weights / 1e6:.1f} million RANDOM weights. Train it before it acts")
