"""The Python API: everything that the command line does, for scripts and notebooks. The command line calls it too."""

from dovetail.api.comparison import Comparison, compare
from dovetail.api.episodes import Episodes, RecordedEpisode
from dovetail.api.evaluation import ArmEvaluation, Evaluation, evaluate
from dovetail.api.launch import Interrupted, collect, load_config, run, train
from dovetail.api.open_loop import OpenLoop, evaluate_open_loop
from dovetail.api.opened_run import Curve, Run, open

__all__ = [
    "ArmEvaluation",
    "Comparison",
    "Curve",
    "Episodes",
    "Evaluation",
    "Interrupted",
    "OpenLoop",
    "RecordedEpisode",
    "Run",
    "collect",
    "compare",
    "evaluate",
    "evaluate_open_loop",
    "load_config",
    "open",
    "run",
    "train",
]
