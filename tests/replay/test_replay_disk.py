"""Full disk, second writer, damaged or missing files, and very large replays."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dovetail.core.disk import dump_json, load_json
from dovetail.core.errors import SpecMismatch, StoreError
from dovetail.core.specs import ArraySpec
from dovetail.core.types import Episode, Purpose, View
from dovetail.replay import _rings, _writer_files
from dovetail.replay._added_ids import AddedIds
from dovetail.replay._checks import check_same_robot
from dovetail.replay.mapped import MappedReplay
from dovetail.replay.reader import MappedReplayReader
from support.replay_model import Model, assert_matches_model
from support.replay_processes import CAPACITY_ROWS, Child, open_mapped
from support.traceable_episodes import ROBOT, batch, label, make_traceable_episode, steps

# ---- a full disk


@dataclasses.dataclass
class SmallDisk:
    folder: Path
    real: bool
    fill: Callable[[], None]
    clear: Callable[[], None]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk of half a megabyte; where nothing may be mounted, files that may not grow stand for it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    mounted = shutil.which("mount") and not subprocess.run(mount, capture_output=True).returncode
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill() -> None:
        if mounted:
            with (folder / "ballast").open("wb") as ballast, contextlib.suppress(OSError):
                while True:
                    os.write(ballast.fileno(), bytes(4096))
            assert shutil.disk_usage(folder).free == 0
        else:  # no frames behind those that are there
            used = [path.stat().st_blocks * 512 for path in folder.glob("replay/frames-*.bin")]
            resource.setrlimit(resource.RLIMIT_FSIZE, (sum(used), limits[1]))

    def clear() -> None:
        (folder / "ballast").unlink(missing_ok=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    yield SmallDisk(folder, bool(mounted), fill, clear)
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    if mounted:
        # lazily: readers may still have its files mapped
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def big_episode(number: int, num_steps: int, **other: object) -> Episode:
    """Its frames take 12 KB each."""
    robot = dataclasses.replace(
        ROBOT, observation={"state": ArraySpec(shape=(2,)), "wrist": ArraySpec(shape=(64, 64, 3), dtype="uint8")}
    )
    small = make_traceable_episode(number, num_steps, robot=robot, **other)
    segments = []
    for segment in small.segments:
        wrist = segment.columns["observation/wrist"].repeat(16, 1).repeat(16, 2)
        last = segment.last_observation
        if last is not None:
            grown = last.values["wrist"].repeat(16, 0).repeat(16, 1)
            last = dataclasses.replace(last, values={**last.values, "wrist": grown})
        columns = {**segment.columns, "observation/wrist": wrist}
        segments.append(dataclasses.replace(segment, columns=columns, last_observation=last))
    return dataclasses.replace(small, segments=tuple(segments))


def test_full_disk_loses_no_stored_episode(small_disk: SmallDisk) -> None:
    folder, model = small_disk.folder / "replay", Model(200, keep_demos=True)
    with closing(open_mapped(folder, capacity_rows=200)) as replay:
        view = MappedReplayReader(folder)
        running = big_episode(9, 6, cuts=(2,))

        def both(what: str, *arguments: object, extra: tuple[object, ...] = ()) -> None:
            getattr(replay, what)(*arguments)
            getattr(model, what)(*arguments, *extra)

        first = big_episode(1, 5)
        both("add", first, label(first))
        both("extend", running.start, running.segments[0], extra=(running,))
        small_disk.fill()
        second = big_episode(2, 20)
        for attempt in (
            lambda: replay.add(second, label(second)),
            lambda: replay.extend(running.start, running.segments[1]),
            lambda: replay.add(running, label(running)),
        ):
            with pytest.raises(StoreError, match=r"cannot write .*: (No space left|File too large)") as refused:
                attempt()
            assert "\n" not in str(refused.value)
            assert replay.ids() == model.ids()
            for reader in (replay, view, MappedReplayReader(folder)):
                assert_matches_model(reader, model)
        both("relabel", label(first, reward=3.0, terminal=False))  # takes no space
        both("drop", "e7")
        small_disk.clear()
        both("add", second, label(second))
        both("add", running, label(running))
        for reader in (replay, view):
            assert_matches_model(reader, model)


def test_full_disk_during_eviction_keeps_demonstrations(small_disk: SmallDisk) -> None:
    """Ten rows of the ring were never written and need new disk space; the error comes before any change."""
    if not small_disk.real:
        pytest.skip("may mount nothing here, and a limit on files does not limit what is reserved")
    folder, model = small_disk.folder / "replay", Model(30, keep_demos=True)
    demo, online, last = big_episode(1, 7, purpose=Purpose.DEMO), big_episode(2, 11), big_episode(3, 13)
    with closing(open_mapped(folder, capacity_rows=30)) as replay:
        for episode in (demo, online):
            replay.add(episode, label(episode))
            model.add(episode, label(episode))
        small_disk.fill()
        with pytest.raises(StoreError, match=r"cannot write .*Free disk space or lower replay.capacity_gb"):
            replay.add(last, label(last))
        assert replay.ids() == ["e1", "e2"]  # a failed addition evicts no episode
        assert_matches_model(replay, model)
        small_disk.clear()
        replay.add(last, label(last))
        model.add(last, label(last))
        assert replay.ids() == ["e1", "e3"]
        assert_matches_model(replay, model)


def test_disk_full_from_the_start_raises(small_disk: SmallDisk) -> None:
    folder, model, episode = small_disk.folder / "replay", Model(30, keep_demos=True), big_episode(1, 4)
    folder.mkdir()
    with closing(open_mapped(folder, capacity_rows=30)) as replay:
        replay.open()
        small_disk.fill()
        for _ in range(2):
            with pytest.raises(StoreError, match=r"cannot (write|open)") as refused:
                replay.add(episode, label(episode))
            assert "\n" not in str(refused.value)
            assert replay.size(View()) == 0
        small_disk.clear()
        replay.add(episode, label(episode))
        model.add(episode, label(episode))
        assert_matches_model(replay, model)


def test_episode_is_not_added_if_its_id_cannot_be_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when the id is written; nothing has been published yet."""
    folder, first, second = tmp_path / "replay", make_traceable_episode(1, 4), make_traceable_episode(2, 3)

    def fail(self: AddedIds, place: int, data: bytes) -> None:
        raise StoreError("cannot write seen.bin: No space left on device")

    with closing(open_mapped(folder)) as replay:
        replay.add(first, label(first))
        with monkeypatch.context() as full:
            full.setattr(AddedIds, "_write", fail)
            with pytest.raises(StoreError, match="No space left"):
                replay.add(second, label(second))
        assert replay.ids() == ["e1"]
        assert replay.size(View()) == 4
        replay.add(second, label(second))
        assert replay.size(View()) == 7


# ---- two writers


def test_second_writer_is_refused_in_any_process(tmp_path: Path) -> None:
    folder, episode = tmp_path / "replay", make_traceable_episode(1, 3)
    with closing(open_mapped(folder)) as replay, closing(open_mapped(folder)) as second:
        replay.add(episode, label(episode))
        for _ in range(2):
            with pytest.raises(StoreError, match=r"another process is writing the replay in .*; only one may"):
                second.open()
        assert second.size(View()) == 3  # readers need no lock

        def live(write: Callable[[bytes], None]) -> None:
            try:
                open_mapped(folder).add(episode, label(episode))
            except StoreError as error:
                write(str(error).encode())

        output, code = Child(live).join()
        assert code == 0
        assert output.decode().startswith("another process is writing the replay")
        assert b"\n" not in output
        replay.close()
        second.open()
        assert second.ids() == ["e1"]


def test_lock_of_killed_writer_is_released(tmp_path: Path) -> None:
    folder, episode = tmp_path / "replay", make_traceable_episode(1, 3)

    def live(write: Callable[[bytes], None]) -> None:
        replay = open_mapped(folder)
        replay.add(episode, label(episode))
        write(b".")
        time.sleep(60)

    with Child(live) as child, closing(open_mapped(folder)) as replay:
        child.wait_for(1)
        with pytest.raises(StoreError, match="another process is writing"):
            replay.open()
        child.kill()
        assert replay.open() is None
        assert replay.ids() == ["e1"]


# ---- damaged files


def garbage(path: Path) -> None:
    path.write_bytes(np.random.default_rng(0).bytes(path.stat().st_size))


def cut_off(path: Path) -> None:
    os.truncate(path, 1)


def swap_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)


COLUMNS = ["rows-action.bin", "rows-observation%2Fstate.bin", "rows-following.bin", "frames-wrist.bin"]
TABLES = ["episodes.bin", "segments.bin", "spans.bin"]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *itertools.product([*COLUMNS, *TABLES, "counters", "seen.bin"], [Path.unlink, cut_off]),
        *itertools.product([*TABLES, "counters", "layout.json"], [garbage]),
        *itertools.product(["layout.json"], [cut_off, swap_a_byte]),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_damage_resets_replay_with_reason(tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    folder, model = tmp_path / "replay", Model(CAPACITY_ROWS, keep_demos=True)
    episodes = [make_traceable_episode(n, 4 + n, cuts=(2,)) for n in range(1, 9)]  # more than there is room for
    with closing(open_mapped(folder)) as replay:
        for episode in episodes:
            replay.add(episode, label(episode))
        view = MappedReplayReader(folder)
        assert view.size(View()) > 20
    damage(folder / name)
    with closing(open_mapped(folder)) as replay:
        reason = replay.open()
        assert reason
        assert "\n" not in reason
        assert replay.ids() == []
        for reader in (view, MappedReplayReader(folder), replay):
            assert reader.size(View()) == 0
        for episode in episodes[:4]:
            replay.add(episode, label(episode))
            model.add(episode, label(episode))
        for reader in (view, MappedReplayReader(folder), replay):
            assert_matches_model(reader, model)
    with closing(open_mapped(folder)) as replay:
        assert replay.open() is None  # already reset
        assert_matches_model(replay, model)


@pytest.mark.parametrize("size", [0, 1, 40])
def test_reader_refuses_a_file_that_was_cut(tmp_path: Path, size: int) -> None:
    folder = tmp_path / "replay"
    with closing(open_mapped(folder)) as replay:
        for number in range(1, 5):
            episode = make_traceable_episode(number, 6)
            replay.add(episode, label(episode))
    os.truncate(folder / "rows-action.bin", size)
    with pytest.raises(StoreError, match="file of 'action' was cut"):
        MappedReplayReader(folder).size(View())


@pytest.mark.parametrize("num_rows", [1e308, 1 << 64, 0, True, None])
def test_reader_refuses_a_layout_without_a_number_of_rows(tmp_path: Path, num_rows: object) -> None:
    with closing(open_mapped(tmp_path)) as replay:
        episode = make_traceable_episode(1, 3)
        replay.add(episode, label(episode))
    file = tmp_path / "layout.json"
    layout = load_json(file.read_bytes(), name="layout", indent=1)
    file.write_bytes(dump_json({**layout, "num_rows": num_rows}, indent=1))
    with pytest.raises(StoreError, match="not a number of rows"):
        MappedReplayReader(tmp_path).size(View())


@pytest.mark.parametrize("name", [*_rings.Counters.NAMES[5:-1]])
@pytest.mark.parametrize("change", [+1000, -1000])
def test_inconsistent_counters_reset_replay(tmp_path: Path, name: str, change: int) -> None:
    folder, episode = tmp_path / "replay", make_traceable_episode(1, 4)
    with closing(open_mapped(folder)) as replay:
        replay.add(episode, label(episode))
    _rings.Counters(folder / "counters", writable=True)[name] += change
    with closing(open_mapped(folder)) as replay:
        if name != "num_born":  # of which any will do
            assert replay.open()
            assert replay.size(View()) == 0
        replay.add(episode, label(episode))
        assert replay.size(View()) == 4


def test_other_schema_keys_or_capacity_reset_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, episode = tmp_path / "replay", make_traceable_episode(1, 4)

    def filled() -> None:
        with closing(open_mapped(folder)) as replay:
            replay.open()
            replay.add(episode, label(episode))
            assert replay.size(View()) == 4

    def reason(replay: MappedReplay) -> str | None:
        with closing(replay):
            reset_reason = replay.open()
            assert replay.size(View()) == 0
            return reset_reason

    filled()
    with monkeypatch.context() as later:
        later.setattr(_writer_files, "SCHEMA", 9)
        assert reason(open_mapped(folder)) == "its schema is 5, but this version writes 9"
    others = "it was made for other observations or another capacity"
    filled()
    assert reason(MappedReplay(folder=folder, keys=("state",))) == others
    filled()
    assert reason(MappedReplay(folder=folder, keys=("state", "front"))) == others  # the robot has no such camera
    filled()
    assert reason(open_mapped(folder, capacity_rows=31)) == others
    filled()
    assert reason(open_mapped(folder, capacity_gb=1e-6)) == others
    filled()
    with closing(open_mapped(folder, keep_demos=False, num_threads=1)) as replay:  # does not change the layout
        assert replay.open() is None
        assert replay.size(View()) == 4


def test_power_cut_resets_replay_unless_it_was_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, episode = tmp_path / "replay", make_traceable_episode(1, 4)

    def live(write: Callable[[bytes], None]) -> None:
        open_mapped(folder).add(episode, label(episode))

    with closing(open_mapped(folder)) as replay:
        replay.add(episode, label(episode))
    with monkeypatch.context() as later:
        later.setattr(_writer_files, "boot_id", lambda: "another run of the kernel")
        with closing(open_mapped(folder)) as replay:
            assert replay.open() is None  # everything was flushed
            assert replay.size(View()) == 4
    assert Child(live).join()[1] == 0  # never closed
    with closing(open_mapped(folder)) as replay:
        assert replay.open() is None  # the kernel still has the writes
        assert replay.size(View()) == 4
    assert Child(live).join()[1] == 0
    monkeypatch.setattr(_writer_files, "boot_id", lambda: "another run of the kernel")
    with closing(open_mapped(folder)) as replay:
        assert replay.open() == "the machine went down while a writer was active"
        assert replay.size(View()) == 0


def test_readers_follow_recreated_folder(tmp_path: Path) -> None:
    folder, model = tmp_path / "replay", Model(CAPACITY_ROWS, keep_demos=True)
    first, second = make_traceable_episode(1, 4), make_traceable_episode(2, 6)
    view = MappedReplayReader(folder)
    with closing(open_mapped(folder)) as replay:
        replay.add(first, label(first))
        assert view.size(View()) == 4
    shutil.rmtree(folder)
    assert view.size(View()) == 0
    with closing(open_mapped(folder)) as replay:
        replay.add(second, label(second))
        model.add(second, label(second))
        assert_matches_model(view, model)


def test_failed_open_releases_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, episode = tmp_path / "replay", make_traceable_episode(1, 4)
    with closing(open_mapped(folder)) as replay:
        replay.add(episode, label(episode))

    def fail(folder: Path) -> None:
        raise OSError(5, "Input/output error")

    with closing(open_mapped(folder)) as replay, closing(open_mapped(folder)) as other:
        with monkeypatch.context() as broken:
            broken.setattr(_writer_files.WriterFiles, "load", fail)
            for _ in range(2):
                with pytest.raises(OSError, match="Input/output"):
                    replay.add(episode, label(episode))  # an error, not an empty replay
        assert other.open() is None
        assert other.ids() == ["e1"]


def test_no_file_stays_open_after_close(tmp_path: Path) -> None:
    folder, episode = tmp_path / "replay", make_traceable_episode(1, 4)

    def num_open() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def once(number: int) -> None:
        with closing(open_mapped(folder, capacity_rows=(20, 30)[number % 2])) as replay:
            replay.open()
            replay.add(episode, label(episode))
            replay.reset()
            replay.add(episode, label(episode))
            assert replay.size(View()) == 4
            with pytest.raises(StoreError, match="another process"):
                open_mapped(folder).open()

    once(0)
    before = num_open()
    for number in range(1, 5):
        once(number)
    assert num_open() <= before + 1


# ---- a store that is too large to be read


@pytest.mark.extended
def test_large_replay_opens_without_reading_rows(tmp_path: Path) -> None:
    """No pages of rows and frames are mapped into memory."""
    camera = ArraySpec(shape=(128, 128, 3), dtype="uint8")
    robot = dataclasses.replace(
        ROBOT, observation={"state": ArraySpec(shape=(8,)), "left": camera, "right": camera}
    )
    small = make_traceable_episode(1, 400)
    image = np.full((128, 128, 3), 7, np.uint8)  # one frame for a whole episode: the rest of the ring is holes
    columns = {
        **{name: c for name, c in small.segments[0].columns.items() if not name.startswith("observation")},
        "observation/state": np.arange(3200, dtype=np.float32).reshape(400, 8),
        **{f"observation/{key}": np.broadcast_to(image, (400, *image.shape)) for key in ("left", "right")},
    }
    values = {"state": np.zeros(8, np.float32), "left": image, "right": image}
    folder, keys = tmp_path / "replay", ("state", "left", "right")

    def make() -> MappedReplay:
        config = MappedReplay.Config(capacity_gb=10.5, capacity_rows=105_000)
        return MappedReplay(config, folder=folder, keys=keys)

    with closing(make()) as replay:
        for number in range(24):
            segment = dataclasses.replace(
                small.segments[0],
                episode_id=f"e{number}",
                columns=columns,
                last_observation=dataclasses.replace(small.last_observation, values=values),
            )
            episode = dataclasses.replace(small, id=f"e{number}", robot=robot, segments=(segment,))
            replay.add(episode, label(episode))
    for path in folder.glob("frames-*.bin"):
        os.truncate(path, 105_000 * image.nbytes)  # as it will be once it has been filled
    files = [path for path in folder.iterdir() if path.suffix == ".bin"]
    assert sum(path.stat().st_size for path in files) > 10 * 10**9

    def live(write: Callable[[bytes], None]) -> None:
        before = _num_read()
        replay = make()
        assert replay.open() is None
        assert len(replay.ids()) == 24
        assert replay.size(View()) == 9_600
        assert _num_read() - before < 10**6
        assert _resident_kb(folder) == 0
        into = {"observation/state": np.zeros((1, 8), np.float32)}
        replay.sample(into, view=View(), rng=np.random.default_rng(0))
        assert 0 < _resident_kb(folder) < 2000  # check of the measurement itself
        write(b"fine")

    assert Child(live).join() == (b"fine", 0)


def _num_read() -> int:
    """Bytes that this process has asked for with read."""
    return int(Path("/proc/self/io").read_text().split("rchar:")[1].split()[0])


def _resident_kb(folder: Path) -> int:
    """Of the rows and frames that this process has mapped."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.split()[0].endswith(":"):
            total += int(line.split()[1]) if ours and line.startswith("Rss:") else 0
        else:
            name = line.rsplit("/", 1)[-1]
            ours = str(folder) in line and name.startswith(("rows-", "frames-"))
    return total


def test_large_replay_reads_correct_rows(tmp_path: Path) -> None:
    """Rows far apart in a file of gigabytes, round its end."""
    folder = tmp_path / "replay"
    with closing(open_mapped(folder, capacity_rows=20_000_000)) as replay:
        first = make_traceable_episode(1, 3)
        replay.add(first, label(first))
        files = replay._files
        assert files is not None

        def wrap() -> None:  # as if nearly all of the ring had been written and given back, many times
            for name in ("head_row", "tail_row"):
                files.counters[name] = 2**35 * 20_000_000 - 3
            files.counters.head_frame[:] = files.counters.tail_frame[:] = 2**35 * 20_000_000 - 2
            for kind in ("episode", "segment", "span"):
                files.counters[f"tail_{kind}"] = files.counters[f"head_{kind}"]

        files.publish(wrap)
        replay._numbers.clear()
        model = Model(20_000_000, keep_demos=True)
        for number in (2, 3):
            episode = make_traceable_episode(number, 5)
            replay.add(episode, label(episode))
            model.add(episode, label(episode))
        assert_matches_model(replay, model)
        into = batch(100)
        replay.sample(into, view=View(half_life_steps=4.0), rng=np.random.default_rng(0))
        assert steps(into) <= {(n, t) for n in (2, 3) for t in range(5)}


def test_files_grow_with_contents_and_readers_remap(tmp_path: Path) -> None:
    """Programs that copy run folders may not support sparse files."""
    folder = tmp_path / "replay"
    with closing(
        MappedReplay(MappedReplay.Config(capacity_gb=8.0), folder=folder, keys=("state", "wrist"))
    ) as replay:
        episode = make_traceable_episode(0, 5)
        replay.add(episode, label(episode))
        assert sum(path.stat().st_size for path in folder.iterdir()) < 2_000_000
        reader, into = MappedReplayReader(folder), batch(500)
        reader.sample(into, view=View(), rng=np.random.default_rng(0))
        for number in range(1, 200):
            episode = make_traceable_episode(number, 100)
            replay.add(episode, label(episode))
            reader.sample(into, view=View(), rng=np.random.default_rng(number))
            assert (
                into["action"][:, 0] == 1000 * into["observation/state"][:, 0] + into["observation/state"][:, 1]
            ).all()
            assert (into["next/state"] - into["observation/state"] == [0, 1]).all()
        assert reader.size(View()) == 5 + 199 * 100
        used = 20_000 * (48 + 2 * 4 + 4 + 3 * 8 + 4 + 4 + 1 + 8)  # bytes of the rows, about
        assert sum(path.stat().st_size for path in folder.iterdir()) < 3 * used


def test_robot_of_another_embodiment_is_refused_in_one_line(tmp_path: Path) -> None:
    start = make_traceable_episode(1, 3).start
    first = replace(start.robot, embodiment="a\nb" * 100)
    with pytest.raises(SpecMismatch, match="embodiment") as error:
        check_same_robot(first, start, keys=tuple(start.robot.observation))
    assert "\n" not in str(error.value) and len(str(error.value)) < 400
