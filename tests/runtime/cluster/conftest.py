import tempfile

import pytest


@pytest.fixture(autouse=True)
def _own_temporary_folder(monkeypatch, tmp_path_factory):
    """A short path, because of Ray's sockets. It also hides the clusters of other tests."""
    tmp_path_factory.getbasetemp()  # pytest keeps its own
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield
