"""Readers of a dataset's files for consecutive episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dovetail.core.errors import StoreError
from dovetail.episodes.lerobot import _tables
from dovetail.episodes.lerobot._meta import Meta

__all__ = ["KeptReader", "RowReader"]


class RowReader:
    """Reads rows of data files. Caches the last row groups, because they usually contain the next episode."""

    def __init__(self) -> None:
        self._key: tuple[Path, tuple[int, ...]] | None = None
        self._table: pa.Table | None = None

    def read(self, path: Path, first: int, num_rows: int) -> pa.Table:
        with _tables.open_parquet(path) as file:
            sizes = file.num_rows
            ends = np.cumsum(sizes)
            groups = [g for g, end in enumerate(ends) if end > first and end - sizes[g] < first + num_rows]
            if not groups:
                raise StoreError(f"{path} has {sum(sizes)} rows, so there is no row {first}")
            key = (path, tuple(groups))
            if self._table is None or key != self._key:
                self._table, self._key = None, None  # before the next is read
                self._table, self._key = file.read(groups=groups), key
        return self._table.slice(first - int(ends[groups[0]] - sizes[groups[0]]), num_rows)


class KeptReader:
    """Reads what Dovetail's export stored in `dovetail/`, by episode. Episodes added by other tools have none."""

    def __init__(self, meta: Meta) -> None:
        self._places: dict[int, tuple[Path, int]] = {}
        for path in meta.kept_files():
            table = _tables.read_table(path, ["episode_index"])
            if table.column_names != ["episode_index"]:
                raise StoreError(f"{path} has no column 'episode_index'")
            indices = table["episode_index"].to_pylist()
            self._places.update({index: (path, place) for place, index in enumerate(indices)})
        self._path: Path | None = None
        self._table: pa.Table | None = None

    def row(self, index: int) -> dict[str, Any] | None:
        if index not in self._places:
            return None
        path, place = self._places[index]
        if self._table is None or path != self._path:
            self._table, self._path = _tables.read_table(path), path
        row: dict[str, Any] = self._table.slice(place, 1).to_pylist()[0]
        return row
