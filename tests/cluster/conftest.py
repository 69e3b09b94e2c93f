import tempfile

import pytest


@pytest.fixture(autouse=True)
def _own_temporary_folder(monkeypatch):
    """Of a short path, for Ray's sockets; and other tests' clusters are not ours to see."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield
