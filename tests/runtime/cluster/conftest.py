import tempfile

import pytest


@pytest.fixture(autouse=True)
def _own_temporary_folder(monkeypatch, tmp_path_factory):
    """Of a short path, for Ray's sockets; and other tests' clusters are not ours to see."""
    tmp_path_factory.getbasetemp()  # pytest's own stays where it is
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield
