"""Export to and import from LeRobot v3.0 datasets."""

from dovetail.episodes.lerobot._totals import FileSizes
from dovetail.episodes.lerobot.export import EpisodeSource, ExportReport, export
from dovetail.episodes.lerobot.read import Dataset, import_episodes, open_dataset, read_dataset

__all__ = [
    "Dataset",
    "EpisodeSource",
    "ExportReport",
    "FileSizes",
    "export",
    "import_episodes",
    "open_dataset",
    "read_dataset",
]
