"""Imports: the control process loads no heavy library."""

import subprocess
import sys

import pytest


@pytest.mark.extended
@pytest.mark.parametrize(
    "module",
    [
        "actor.actors",
        "runs.assembly.workcell",
        "robot_host.control_process",
        "robot_host.recorder_process",
        "robots.safety",
        "robots.sim.robot",
        "human.scripted",
    ],
)
def test_control_modules_import_neither_torch_nor_ray(module):
    code = f"import sys, dovetail.{module}; print([m for m in ('torch', 'ray') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_core_needs_numpy_only():
    code = (
        "import sys, numpy, numpy.typing, dovetail; before = set(sys.modules);"
        "import dovetail.core.contracts, dovetail.core.clock, dovetail.core.streams, dovetail.core.disk;"
        "new = {m.split('.')[0] for m in set(sys.modules) - before};"
        "print(sorted(new - set(sys.stdlib_module_names) - {'numpy'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['dovetail']"


def test_import_dovetail_loads_no_heavy_package():
    code = "import sys, dovetail; print([m for m in ('torch', 'mujoco', 'pydantic', 'av') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
