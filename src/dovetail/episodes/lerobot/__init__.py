"""Export to and import from LeRobot v3.0 datasets."""

from dovetail.episodes.lerobot._totals import FileSizes
from dovetail.episodes.lerobot.export import EpisodeSource, ExportReport, export
from dovetail.episodes.lerobot.read import Dataset, open_dataset

__all__ = [
    "Dataset",
    "EpisodeSource",
    "ExportReport",
    "FileSizes",
    "export",
    "open_dataset",
]
