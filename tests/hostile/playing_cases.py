"""Hostile run folders for `compare` and `eval --open-loop`, which play and load episodes of runs."""

from __future__ import annotations

from collections.abc import Callable

from hostile import run_cases as cases
from hostile.folders import Place, add_case

REFUSAL = "was not made by you on this machine or was copied, and its config names"
REFUSED = (
    "robot",
    "task",
    "policy",
    "model-of-a-policy",
    "chat-server",
    "checkpoint",
    "gym-arguments",
    "encoder-file",
)
for what in REFUSED:
    add_case(
        f"played-config-names-{what}",
        cases.NAMED[what],
        "compare",
        "open-loop",
        in_run=True,
        refusal=REFUSAL,
        level="extended" if what in ("robot", "checkpoint", "chat-server") else "slow",
    )

BUILDERS: dict[str, Callable[[Place], None]] = {
    **{f"tensors-{what}": cases._weights(make) for what, make in cases.TENSORS.items()},
    **{f"table-{what}": cases._table(make) for what, make in cases.TABLES.items()},
    **{f"manifest-{what}": build for what, build in cases.MANIFESTS.items()},
    **{f"video-{what}": build for what, build in cases.VIDEOS.items()},
    "config-deep": cases._text(cases.TEXTS["deep"]),
    "weights-sparse": cases._sparse,
    "weights-outside": cases._link(cases.FILES["weights-component"], cases.TARGETS["outside"]),
    "manifest-outside": cases._link(cases.FILES["manifest"], cases.TARGETS["outside"]),
    "steps-outside": cases._link(cases.FILES["steps"], cases.TARGETS["outside"]),
    "episode-outside": cases._link(cases.FOLDERS["episode"], cases.FOLDER_TARGETS["outside"]),
}
EXTENDED = (
    *("tensors-huge-shape", "weights-outside", "weights-sparse", "table-compression-bomb", "steps-outside"),
    *("episode-outside", "video-huge-frames", "manifest-files-parent"),
)
for what, build in BUILDERS.items():
    commands = ("compare", "open-loop") if what.startswith(("tensors", "weights", "config")) else ("open-loop",)
    level = "extended" if what in EXTENDED else "slow"
    add_case(f"played-{what}", build, *commands, level=level)
