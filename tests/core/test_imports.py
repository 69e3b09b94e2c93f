"""The control process must start fast and never pause for a library it does not need."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "room",
    [
        "actor.actors",
        "runtime.cell",
        "runtime._role_control",
        "runtime._role_recorder",
        "robots.safety",
        "robots.sim.robot",
        "human.scripted",
    ],
)
def test_the_control_side_leaves_torch_and_ray_out(room):
    code = f"import sys, dovetail.{room}; print([m for m in ('torch', 'ray') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_core_needs_numpy_only():
    code = (
        "import sys, numpy, numpy.typing, dovetail; before = set(sys.modules);"  # dovetail/envs.py needs gymnasium
        "import dovetail.core.contracts, dovetail.core.clock, dovetail.core.streams, dovetail.core.disk;"
        "new = {m.split('.')[0] for m in set(sys.modules) - before};"
        "print(sorted(new - set(sys.stdlib_module_names) - {'numpy'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['dovetail']"


def test_the_package_itself_is_light():
    code = "import sys, dovetail; print([m for m in ('torch', 'mujoco', 'pydantic', 'av') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
