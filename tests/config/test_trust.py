"""Only the user who made or read a run folder can make its mark, and it counts while no other user may write there."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.config import _trust_key
from dovetail.config import trust as trusting
from dovetail.config._trust_key import key_file, make_key
from dovetail.config.load import load, load_saved, save
from dovetail.config.trust import MARK, is_trusted, mark_trusted
from dovetail.core.errors import ConfigWarning, PluginError, RunFolderError


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def run(base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with plugins that are not built in, as another process of this user sees it."""
    save(load([base]), tmp_path / "run")
    monkeypatch.setattr(trusting, "_made_here", set())
    return tmp_path / "run"


def test_own_run_is_trusted_by_another_process(run: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from dovetail.config.trust import is_trusted\n"
        "print(is_trusted(Path(sys.argv[1])))"
    )
    done = subprocess.run([sys.executable, "-c", code, run], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_mark_computed_without_the_key_does_not_count(run: Path) -> None:
    """Everything that the mark is made from can be known to another user, except the key."""
    machine, config = trusting._machine_id(), (run / "config.yaml").read_bytes()
    digest = hashlib.sha256(config).hexdigest()
    facts = "\n".join(["dovetail run folder", machine, str(os.getuid()), str(run.stat().st_ino), digest])
    assert trusting._facts(run) == facts.encode()
    (run / MARK).write_text(hashlib.sha256(facts.encode()).hexdigest() + "\n")  # the scheme without a key
    assert not is_trusted(run)
    with pytest.raises(PluginError, match=r"was not made by you on this machine.*`dovetail trust"):
        load_saved(run)
    mark_trusted(run)
    load_saved(run)


def test_mark_of_another_key_does_not_count(run: Path) -> None:
    assert is_trusted(run)
    key_file().unlink()
    assert not is_trusted(run)
    assert not key_file().exists(), "reading makes no key"
    make_key()
    assert not is_trusted(run)


@pytest.mark.parametrize("name", [".", "config.yaml", "changes.json", MARK])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_mark_does_not_count_where_other_users_may_write(run: Path, name: str, mode: int) -> None:
    path = run / name
    if name == "changes.json":
        path.write_text("{}")
    before = path.stat().st_mode
    path.chmod(before | mode)
    assert not is_trusted(run)
    for call in (mark_trusted, lambda folder: load_saved(folder)):
        with pytest.raises(
            (RunFolderError, PluginError), match=f"other users may write to {path}.*chmod go-w {path}`"
        ):
            call(run)
    path.chmod(before)
    assert is_trusted(run)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("name", [".", "config.yaml", MARK])
def test_mark_does_not_count_if_another_user_owns_a_part(run: Path, name: str) -> None:
    os.chown(run / name, 65534, -1)
    assert not is_trusted(run)
    with pytest.raises(RunFolderError, match=r"is not a file or folder of yours. Copy the folder"):
        mark_trusted(run)


def test_new_run_is_trusted_with_a_umask_that_lets_the_group_write(base: str, tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        save(load([base]), tmp_path / "run")
    finally:
        os.umask(before)
    assert is_trusted(tmp_path / "run")


def test_key_is_private(run: Path, state: Path) -> None:
    assert key_file() == state / "dovetail" / "trust.key"
    assert key_file().stat().st_mode & 0o777 == 0o600
    assert key_file().parent.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in key_file().parent.iterdir()] == ["trust.key"]
    key_file().chmod(0o644)
    assert not is_trusted(run)
    with pytest.raises(RunFolderError, match=r"other users may open .*trust.key. Delete it"):
        mark_trusted(run)


def test_key_behind_a_link_is_refused(run: Path, tmp_path: Path) -> None:
    key_file().rename(tmp_path / "elsewhere")
    key_file().symlink_to(tmp_path / "elsewhere")
    assert not is_trusted(run)
    with pytest.raises(RunFolderError, match=r"cannot read .*trust.key"):
        mark_trusted(run)


def test_processes_that_make_the_key_at_the_same_time_get_the_same_key(state: Path) -> None:
    code = (
        "import sys, time; from dovetail.config._trust_key import make_key\n"
        "print('ready', flush=True); sys.stdin.readline(); print(make_key().hex())"
    )
    command = [sys.executable, "-c", code]
    made = [subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, text=True) for _ in range(6)]
    assert [each.stdout.readline() for each in made if each.stdout] == ["ready\n"] * 6
    assert not state.exists()
    for each in made:
        assert each.stdin
        each.stdin.write("\n")
        each.stdin.flush()
    keys = {each.communicate(timeout=60)[0] for each in made}
    assert keys == {make_key().hex() + "\n"}
    assert [path.name for path in (state / "dovetail").iterdir()] == ["trust.key"]


def test_key_of_the_first_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the first look and the link, another process makes the key."""
    first = make_key()
    looks = iter([None])
    read = _trust_key.read_key
    monkeypatch.setattr(_trust_key, "read_key", lambda: next(looks, read()))
    assert make_key() == first
    assert len(list(key_file().parent.iterdir())) == 1


def test_without_a_writable_home_a_run_is_trusted_in_its_process_only(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.warns(ConfigWarning) as caught:
        save(load([base]), tmp_path / "run")
    (message,) = [str(warning.message) for warning in caught]
    assert message.endswith("trust.key: Not a directory")
    assert "\n" not in message
    load_saved(tmp_path / "run")
    monkeypatch.setattr(trusting, "_made_here", set())  # another process
    with pytest.raises(PluginError, match="was not made by you on this machine or was copied, and"):
        load_saved(tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"cannot trust .*trust.key: Not a directory"):
        mark_trusted(tmp_path / "run")
