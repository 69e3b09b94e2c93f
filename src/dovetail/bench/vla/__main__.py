"""`python -m dovetail.bench.vla [--quick] [--only PART...]`: see `chunks`."""

import json
import sys

from dovetail.bench.vla.chunks import bench

if __name__ == "__main__":
    chosen = sys.argv[sys.argv.index("--only") + 1 :] if "--only" in sys.argv else []
    for row in bench(quick="--quick" in sys.argv, parts=chosen):
        sys.stdout.write(json.dumps(row.to_json()) + "\n")
        sys.stdout.flush()
