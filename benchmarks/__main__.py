"""`python -m benchmarks NAME... [--quick] [--json FILE]`: the same rows and JSON as `dovetail bench`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.registry import BENCHMARKS
from dovetail.cli._bench import bench
from dovetail.core.errors import DovetailError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Comparisons and long proofs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run; without names: list them")
    parser.add_argument("--quick", action="store_true", help="a rough answer, with tiny budgets")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to this file")
    options = parser.parse_args(arguments)
    # child processes and Ray workers load plugins of this package
    root, inherited = str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([root, inherited] if inherited else [root])
    try:
        bench(
            options.names,
            quick=options.quick,
            json_file=options.json,
            benches=BENCHMARKS,
            command="python -m benchmarks",
        )
    except DovetailError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
