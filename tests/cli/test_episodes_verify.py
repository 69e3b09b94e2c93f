"""`dovetail episodes verify` on damaged runs."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dovetail.core.types import Outcome
from dovetail.episodes import _order
from dovetail.episodes.log import EpisodeLog
from dovetail.episodes.spool import Spool
from dovetail.labels.store import LabelStore
from dovetail.learn.checkpoint import save_checkpoint
from dovetail.runs import verify as verify_run
from dovetail.runs.folder import RunFolder
from dovetail.weights.store import DiskWeightStore
from support.command_line import Cli
from support.made_runs import label, made_episode, made_run

IDS = ("e1", "e2", "e3")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """`runs/made`, with something in every store."""
    monkeypatch.chdir(tmp_path)
    folder = made_run(Path("runs/made"), *map(made_episode, IDS))
    for episode_id in IDS:
        label(folder, episode_id)
    weights = DiskWeightStore(folder.weights)
    for number in range(3):
        weights.publish({"actor": {"w": np.full(5, number, np.float32)}, "encoder": {"w": np.ones(3)}})
    weights.pin(2)
    save_checkpoint(folder.checkpoints / "last", {"w": np.arange(6.0)}, facts={"env_steps": 5})
    folder.write_json("evaluations/after.json", {"episodes": 2})
    folder.write_json("progress.json", {"wall_s": 1.0, "updates": 3})
    spooled = made_episode("e9")
    spool = Spool(folder.path / "spool")
    spool.begin(spooled.start)
    spool.append(spooled.segments[0], after=spooled.last_observation)
    spool.end(outcome=Outcome.SUCCESS, judgement=None)
    return folder


def files(run: RunFolder) -> Iterator[Path]:
    for path in sorted(run.path.rglob("*")):
        if path.is_file() and path.name not in (".lock", ".trusted", "events.jsonl"):
            yield path


def test_undamaged_run(cli: Cli, run: RunFolder) -> None:
    for arguments in ((), ("--repair",)):
        result = cli("episodes", "verify", "made", *arguments)
        assert (result.code, result.out, result.err) == (0, "3 episodes, none damaged: runs/made\n", "")


@pytest.mark.extended
def test_flipped_byte_is_found(cli: Cli, run: RunFolder) -> None:
    """In each file with a checksum. In a config only values count; a checkpoint's manifest has no checksum."""
    rng = np.random.default_rng(0)
    for path in files(run):
        data = path.read_bytes()
        places = rng.integers(len(data), size=2).tolist()
        if path.name in ("config.yaml", "progress.json", "after.json") or path.match(
            "checkpoints/*/manifest.json"
        ):
            places = [data.index(b"1" if path.name == "config.yaml" else b'"')]
        for place in places:
            damaged = bytearray(data)
            damaged[place] ^= 1 << int(rng.integers(8))
            path.write_bytes(damaged)
            result = cli("episodes", "verify", "made")
            assert result.code == 1, f"{path} at {place}"
            assert ("checkpoints/last" if "checkpoints" in path.parts else str(path)) in result.out
        path.write_bytes(data)
    assert cli("episodes", "verify", "made").code == 0


@pytest.mark.extended
def test_truncated_file_is_found(cli: Cli, run: RunFolder) -> None:
    for path in files(run):
        data = path.read_bytes()
        for size in (0, len(data) // 2, len(data) - 2):
            path.write_bytes(data[:size])
            result = cli("episodes", "verify", "made")
            if path.suffix == ".journal":  # as after a crash: an incomplete episode
                assert "spool/e9.journal" in result.out
            elif path.name == "config.yaml" and size == len(data) - 2:
                pass
            else:
                assert result.code == 1, f"{path} cut to {size}"
        path.write_bytes(data)


def test_missing_file_is_found(cli: Cli, run: RunFolder) -> None:
    for path in files(run):
        if path.parts[2] in ("spool", "evaluations", "progress.json", "checkpoints") or path.name in (
            "pin.json",
            "committed.json",
        ):
            continue  # nothing else refers to them
        data = path.read_bytes()
        path.unlink()
        result = cli("episodes", "verify", "made")
        gone = (
            path.match("weights/v*.json") and path.name != "v00000002.json"
        )  # old versions are also deleted in normal operation
        assert result.code == (0 if gone else 1), str(path)
        path.write_bytes(data)
    assert cli("episodes", "verify", "made").code == 0


def test_repairable_files_are_repaired(cli: Cli, run: RunFolder) -> None:
    (run.episodes / "e1" / "manifest.json").write_text("{}")
    path = run.labels / "labels.jsonl"
    first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second.replace(b"outcome", b"OUTCOME") + third)
    result = cli("episodes", "verify", "made")
    assert result.code == 1
    assert "runs/made/episodes/e1/manifest.json is damaged" in result.out
    assert "runs/made/labels/labels.jsonl line 2 is damaged" in result.out
    assert result.out.count("`dovetail episodes verify runs/made --repair` repairs it") == 2
    assert result.out.endswith("3 episodes, 1 damaged, 1 problem elsewhere, 0 repaired, 2 left: runs/made\n")
    result = cli("episodes", "verify", "made", "--repair")
    assert result.code == 0
    assert result.out.endswith("3 episodes, 1 damaged, 1 problem elsewhere, 2 repaired, 0 left: runs/made\n")
    assert "kept as runs/made/labels/labels.damaged-1.jsonl" in result.out
    assert cli("episodes", "verify", "made").out == "3 episodes, none damaged: runs/made\n"
    assert EpisodeLog(run.episodes).load("e1").id == "e1"
    assert LabelStore(run.labels).ids() == ["e1", "e3"]


def test_irreparable_files_are_reported(cli: Cli, run: RunFolder) -> None:
    (run.episodes / "e2" / "steps.parquet").unlink()
    (run.episodes / "e3" / "stranger").touch()
    (run.checkpoints / "last" / "manifest.json").write_text("{}")
    (run.weights / "v00000001.json").write_text("{}")
    before = {path: path.read_bytes() for path in files(run)}
    result = cli("episodes", "verify", "made", "--repair")
    assert result.code == 1
    assert {path: path.read_bytes() for path in files(run)} == before
    for message in (
        "episodes/e2/steps.parquet is missing",
        "the images are intact",
        "episodes/e3/stranger is not part of the episode",
        "version 1 of the weights is lost; whole: 2, 3",
        "delete runs/made/checkpoints/last: a resumed run then learns again",
        "3 episodes, 2 damaged, 2 problems elsewhere, 0 repaired, 4 left: runs/made",
    ):
        assert message in result.out
    assert cli("episodes", "rm", "made", "e2", "--yes").code == 0
    assert "2 episodes, 1 damaged" in cli("episodes", "verify", "made").out


def test_interrupted_episode_is_not_damaged(cli: Cli, run: RunFolder) -> None:
    cut = made_episode("e8")
    spool = Spool(run.path / "spool")
    spool.begin(cut.start)
    spool.append(cut.segments[0], after=cut.last_observation)
    assert cli("episodes", "verify", "made").out == "3 episodes, none damaged: runs/made\n"  # still being recorded
    spool.close()
    result = cli("episodes", "verify", "made")
    assert result.code == 0
    assert "e8.journal was interrupted" in result.out
    assert "`dovetail run --resume runs/made` recovers what is left" in result.out
    path = run.path / "spool" / "e8.journal"
    path.write_bytes(path.read_bytes()[:-3])
    result = cli("episodes", "verify", "made", "--repair")
    assert "ends in an incomplete record" in result.out and "repaired" in result.out
    assert result.code == 0
    assert cli("episodes", "verify", "made").code == 0


@pytest.mark.parametrize("how", ["changed", "binary", "missing"])
def test_run_with_a_damaged_config(cli: Cli, run: RunFolder, how: str) -> None:
    path = run.path / "config.yaml"
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(b"\xff\0" * 50 if how == "binary" else path.read_bytes().replace(b"seed: 0", b"seed: 1"))
    (run.episodes / "e1" / "manifest.json").write_text("{}")
    result = cli("episodes", "verify", "made", "--repair")
    assert result.code == 1
    assert "config.yaml" in result.out
    assert "3 episodes, 1 damaged, 1 problem elsewhere, 1 repaired, 1 left" in result.out
    assert EpisodeLog(run.episodes).load("e1").id == "e1"


def test_repair_needs_the_lock_but_reading_does_not(cli: Cli, run: RunFolder) -> None:
    with (run.path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = cli("episodes", "verify", "made", "--repair")
        assert (result.code, "another process is working in" in result.line) == (2, True)
        assert cli("episodes", "verify", "made").code == 0


def test_folder_without_a_run_is_refused(cli: Cli, run: RunFolder) -> None:
    os.mkdir("nothing")
    for name in ("nothing", "gone"):
        assert cli("episodes", "verify", name).code == 2


def lose_episodes(run: RunFolder, number: int) -> None:
    """Add episodes to the list whose folders do not exist."""
    _order.append(run.path / "episodes", *(_order.line(n, f"lost{n:05d}") for n in range(10, 10 + number)))


@pytest.mark.parametrize("number", [1, 300])
def test_repair_of_many_lost_episodes_reads_and_syncs_the_list_once(
    cli: Cli, run: RunFolder, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    lose_episodes(run, number)
    calls: list[str] = []
    read, append = _order.read, _order.append
    monkeypatch.setattr(_order, "read", lambda *given: (calls.append("read"), read(*given))[1])
    monkeypatch.setattr(_order, "append", lambda *given: (calls.append("append"), append(*given))[1])
    result = cli("episodes", "verify", "made", "--repair")
    assert f"{number} damaged, 0 repaired, {number} lost, 0 left" in result.out
    assert calls.count("append") == 1
    assert calls.count("read") <= 6
    assert result.out.count("lost, and removed from the list") == number
    assert cli("episodes", "verify", "made").code == 0


def test_failed_repair_of_lost_episodes_is_reported_for_each(
    cli: Cli, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_episodes(run, 3)
    calls: list[object] = []

    def fail(*given: object) -> None:
        calls.append(given)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_order, "append", fail)
    result = cli("episodes", "verify", "made", "--repair")
    assert result.out.count("could not be repaired: cannot write to runs/made/episodes: No space left") == 3
    assert "3 damaged, 0 repaired, 3 left" in result.out
    assert len(calls) == 1


def test_repair_of_many_damaged_labels_rewrites_the_file_once(
    cli: Cli, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run.path / "labels" / "labels.jsonl"
    path.write_bytes(b"damaged\n" * 50 + path.read_bytes())
    calls: list[object] = []
    repair = verify_run.repair_labels
    monkeypatch.setattr(verify_run, "repair_labels", lambda folder: (calls.append(folder), repair(folder))[1])
    result = cli("episodes", "verify", "made", "--repair")
    assert result.out.count("labels.damaged-1.jsonl") == 50
    assert len(calls) == 1
    assert cli("episodes", "verify", "made").code == 0


@pytest.mark.extended
def test_5000_lost_episodes_are_removed_from_the_list_in_seconds(cli: Cli, run: RunFolder) -> None:
    lose_episodes(run, 5000)
    began_s = time.process_time()
    assert "5000 lost, 0 left" in cli("episodes", "verify", "made", "--repair").out
    assert time.process_time() - began_s < 15  # it took minutes when each repair read the whole list
