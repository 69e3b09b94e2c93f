import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from support.lerobot_arm import ArmFolder, end_bridges


@pytest.fixture(scope="session")
def python() -> str:
    """LeRobot's interpreter. The first use makes its environment, unless LEROBOT_ENV names one."""
    repository = Path(__file__).parents[3]
    environment = Path(os.environ.get("LEROBOT_ENV", repository / ".venv-lerobot"))
    subprocess.run([repository / "scripts" / "lerobot-env", environment], check=True)
    return str(environment / "bin" / "python")


@pytest.fixture
def lerobot_root(monkeypatch):
    """A folder of its own for the sockets of LeRobot bridges; they are ended after the test."""
    root = Path(tempfile.mkdtemp(prefix="dv-", dir="/tmp"))
    monkeypatch.setattr("dovetail.robots.drivers.lerobot._client.user_folder", lambda: root)
    yield root
    end_bridges(root)
    shutil.rmtree(root)


@pytest.fixture
def arm(tmp_path, lerobot_root):
    folder = tmp_path / "arm"
    folder.mkdir()
    return ArmFolder(folder)
