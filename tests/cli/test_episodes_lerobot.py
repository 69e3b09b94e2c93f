"""`dovetail episodes export` and `import`: from one run into another."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from dovetail.cli._rename import rename_pairs
from dovetail.config.load import load_saved
from dovetail.core.types import Outcome, Purpose
from dovetail.episodes.log import EpisodeLog
from dovetail.labels.store import LabelStore
from dovetail.runs.folder import RunFolder
from support.command_line import TOY, Cli
from support.made_runs import label, made_episode, made_run


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = made_run(
        Path("runs/made"),
        made_episode("e1", purpose=Purpose.DEMO),
        made_episode("e2"),
        made_episode("e3", outcome=Outcome.ABORTED),
        made_episode("e4", purpose=Purpose.EVAL),
    )
    label(folder, "e1")
    return folder.path


def info(out: str = "data") -> dict[str, int]:
    found: dict[str, int] = json.loads(Path(out, "meta/info.json").read_text())
    return found


def test_export_leaves_out_evaluations_and_aborted_episodes_by_default(cli: Cli, made: Path) -> None:
    done = cli("episodes", "export", "made", "--out", "data")
    assert done.code == 0, done.err
    assert "2 episodes exported" in done.out
    assert "left out: observation" not in done.out, "depth is kept, too"
    assert info()["total_episodes"] == 2
    asked = cli("episodes", "export", "made", "--out", "other", "--purpose", "eval")
    assert asked.code == 0, asked.err
    assert info("other")["total_episodes"] == 1


def test_second_export_adds_new_episodes(cli: Cli, made: Path) -> None:
    assert cli("episodes", "export", "made", "--out", "data", "--codec", "h264").code == 0
    before = {path: path.read_bytes() for path in Path("data").rglob("*") if path.suffix in (".mp4", ".parquet")}
    EpisodeLog(made / "episodes").commit(made_episode("e5"))
    again = cli("episodes", "export", "made", "--out", "data", "--codec", "h264")
    assert again.code == 0, again.err
    assert "1 episodes exported, 2 were there already" in again.out
    assert info()["total_episodes"] == 3
    kept = {path: data for path, data in before.items() if path.parts[1] in ("data", "videos")}
    assert kept
    assert all(path.read_bytes() == data for path, data in kept.items())


def test_second_export_without_purpose_does_not_mix_practice_into_demonstrations(cli: Cli, made: Path) -> None:
    assert cli("episodes", "export", "made", "--out", "data", "--purpose", "demo").code == 0
    refused = cli("episodes", "export", "made", "--out", "data")
    assert refused.code == 2
    assert "data has demonstrations only, and 1 of 1 new episodes are none. Add --purpose demo" in refused.line
    assert info()["total_episodes"] == 1
    EpisodeLog(made / "episodes").commit(made_episode("e5", purpose=Purpose.DEMO))
    assert cli("episodes", "export", "made", "--out", "data", "--purpose", "demo").code == 0
    asked = cli("episodes", "export", "made", "--out", "data", "--purpose", "online")
    assert asked.code == 0, asked.err
    assert info()["total_episodes"] == 3


def test_default_folder_and_codec_of_an_export(cli: Cli, made: Path) -> None:
    assert cli("episodes", "export", "made", "--format", "lerobot", "--codec", "h264", "--limit", "1").code == 0
    assert info("runs/made/lerobot")["total_episodes"] == 1
    again = cli("episodes", "export", "made")
    assert again.code == 0, again.err
    assert info("runs/made/lerobot")["total_episodes"] == 2


def test_import_after_a_kill_between_label_and_episode_is_complete(
    cli: Cli, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("episodes", "export", "done", "--out", "data", "--purpose", "demo").code == 0

    class Killed(BaseException):
        pass

    def kill(self: EpisodeLog, episode: object, **options: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(EpisodeLog, "commit", kill)
        with pytest.raises(Killed):
            cli("episodes", "import", "second", "data", "--recipe", "toy.yaml")
    assert cli("episodes", "import", "second", "data").code == 0
    ours = EpisodeLog("runs/second/episodes")
    assert len(ours.ids()) == 2
    assert all(LabelStore("runs/second/labels").current(episode_id) for episode_id in ours.ids())


def test_export_without_matches_is_refused(cli: Cli, made: Path) -> None:
    none = cli("episodes", "export", "made", "--out", "data", "--task", "juggling")
    assert none.code == 2
    assert "no episode of runs/made matches" in none.line
    assert not Path("data").exists()


@pytest.mark.extended
def test_import_as_demonstrations_of_a_new_run(cli: Cli, finished: Path) -> None:
    assert cli("episodes", "export", "done", "--out", "data", "--purpose", "demo").code == 0
    Path("toy2.yaml").write_text(TOY)
    first = cli("episodes", "import", "second", "data", "--recipe", "toy2.yaml")
    assert first.code == 0, first.err
    assert "2 demonstrations imported" in first.out
    theirs, ours = EpisodeLog(finished / "episodes"), EpisodeLog("runs/second/episodes")
    for episode_id in ours.ids():
        one, other = theirs.load(episode_id), ours.load(episode_id)
        assert other.purpose is Purpose.DEMO
        assert np.array_equal(one.column("executed"), other.column("executed"))
        for key, value in one.last_observation.values.items():
            assert np.array_equal(value, other.last_observation.values[key])
        assert LabelStore("runs/second/labels").current(episode_id) is not None
    again = cli("episodes", "import", "second", "data")
    assert "0 demonstrations imported (0 steps), 2 were there already" in again.out
    assert cli("run", "--resume", "second", "--quiet").code == 0
    assert len([i for i in ours.ids() if ours.manifest(i).purpose is Purpose.DEMO]) == 2  # none had to be recorded


def test_import_with_recipe_accepts_overrides(cli: Cli, finished: Path) -> None:
    assert cli("episodes", "export", "done", "--out", "data", "--purpose", "demo").code == 0
    done = cli("episodes", "import", "second", "data", "run.seed=7", "run.demos=1", "--recipe", "toy.yaml")
    assert done.code == 0, done.err
    settings = load_saved(Path("runs/second")).config.run
    assert (settings.seed, settings.demos) == (7, 1)


@pytest.mark.parametrize(("num_failed", "demos"), [(0, 2), (1, 1), (2, 5)])
def test_new_run_of_an_import_records_no_demonstrations_itself(
    cli: Cli, finished: Path, num_failed: int, demos: int
) -> None:
    log = EpisodeLog(finished / "episodes")
    demos_made = [id for id in log.ids() if log.manifest(id).purpose is Purpose.DEMO]
    for episode_id in demos_made[:num_failed]:
        steps = len(log.load(episode_id))
        label(RunFolder.open(finished), episode_id, success=False, num_steps=steps, labeler="person", priority=100)
    assert cli("episodes", "export", "done", "--out", "data", "--purpose", "demo").code == 0
    Path("toy.yaml").write_text(TOY.replace("demos: 2", "demos: 5"))
    done = cli("episodes", "import", "second", "data", "--recipe", "toy.yaml")
    assert done.code == 0, done.err
    assert load_saved(Path("runs/second")).config.run.demos == demos
    assert (f"run.demos={demos}: the run records no demonstrations itself" in done.out) == (demos < 5)


def test_rename_may_be_joined_by_commas_and_repeated() -> None:
    texts = ["observation.images.top=front, observation.state[0:7]=joint_pos", "observation.state[7]=gripper"]
    assert rename_pairs(texts) == {
        "observation.images.top": "front",
        "observation.state[0:7]": "joint_pos",
        "observation.state[7]": "gripper",
    }


def test_import_of_another_task_rate_or_camera_says_what_to_do(cli: Cli, finished: Path) -> None:
    assert cli("episodes", "export", "done", "--out", "data", "--purpose", "demo").code == 0

    def refused(*settings: str) -> str:
        done = cli("episodes", "import", "third", "data", "--recipe", "toy.yaml", *settings)
        assert done.code == 2
        assert not Path("runs/third").exists()
        return done.line

    assert "the dataset is of task peg_insertion, but the recipe's task is push_cube" in refused(
        "task.type=push_cube"
    )
    rate = refused("robot.control_hz=20")
    assert "recorded at 10 Hz, but robot 'sim_panda' runs at 20 Hz. Set robot.control_hz=10" in rate
    assert "has no observation 'wrist'" in refused("robot.images=[wrist]")
    assert "The dataset's cameras: none; its other observations: " in refused("robot.images=[wrist]")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("third", "data"), "add --recipe RECIPE"),
        (("done", "data", "run.seed=7"), "run.seed can be set for a new run only"),
        (("third", "data", "run.sed=7", "--recipe", "toy.yaml"), "Did you mean 'run.seed'?"),
        (("done", "data", "--recipe", "toy.yaml"), "exists already: leave out --recipe"),
        (("third", "nowhere", "--recipe", "toy.yaml"), "nowhere"),
        (("third", "data", "--recipe", "toy.yaml", "--rename", "front"), "--rename should look like THEIRS=OURS"),
    ],
)
def test_refused_import_leaves_no_folder(
    cli: Cli, finished: Path, arguments: tuple[str, ...], message: str
) -> None:
    assert cli("episodes", "export", "done", "--out", "data", "--purpose", "demo").code == 0
    refused = cli("episodes", "import", *arguments)
    assert refused.code in (1, 2)
    assert message in refused.line
    assert not Path("runs/third").exists()


def test_import_skips_cameras_that_the_run_does_not_record(cli: Cli, finished: Path) -> None:
    Path("seeing.yaml").write_text(TOY.replace("robot: sim", "robot: {type: sim, images: [front]}"))
    assert cli("collect", "seeing.yaml", "--name", "seen", "--quiet").code == 0
    assert cli("episodes", "export", "seen", "--out", "data").code == 0
    taken = cli("episodes", "import", "blind", "data", "--recipe", "toy.yaml")
    assert taken.code == 0, taken.err
    seen, blind = EpisodeLog("runs/seen/episodes"), EpisodeLog("runs/blind/episodes")
    assert seen.manifest(seen.ids()[0]).cameras == ("front",)
    assert blind.ids() == seen.ids()
    assert blind.manifest(blind.ids()[0]).cameras == ()
    assert set(blind.load(blind.ids()[0]).last_observation.values) == set(
        blind.manifest(blind.ids()[0]).robot.observation
    )


def test_failed_import_leaves_no_folder(cli: Cli, finished: Path) -> None:
    assert cli("episodes", "export", "done", "--out", "data", "--purpose", "demo").code == 0
    (rows,) = Path("data/data").rglob("*.parquet")
    rows.write_bytes(rows.read_bytes()[:-20])
    refused = cli("episodes", "import", "third", "data", "--recipe", "toy.yaml")
    assert refused.code == 1
    assert refused.line
    assert not Path("runs/third").exists()


def test_import_from_another_robot_is_refused(cli: Cli, made: Path) -> None:
    assert cli("episodes", "export", "made", "--out", "data").code == 0
    Path("toy.yaml").write_text(TOY)
    refused = cli("episodes", "import", "third", "data", "--recipe", "toy.yaml")
    assert refused.code == 2
    assert "robot 'panda'" in refused.line
    assert not Path("runs/third").exists()


def test_import_of_a_v21_dataset(cli: Cli, finished: Path) -> None:
    """As LeRobot 0.3 wrote it: a table for each episode, JSON Lines for the rest."""
    assert cli("episodes", "export", "done", "--out", "new", "--purpose", "demo").code == 0
    table, old = pq.read_table("new/data/chunk-000/file-000.parquet"), Path("old")
    episodes = []
    for index in range(info("new")["total_episodes"]):
        rows = table.filter(pc.equal(table["episode_index"], index))
        path = old / f"data/chunk-000/episode_{index:06d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, path)
        episodes.append({"episode_index": index, "tasks": ["reach"], "length": len(rows)})
    (old / "meta").mkdir()
    (old / "meta/episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in episodes))
    (old / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "reach"}\n')
    paths = {"data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet", "video_path": None}
    (old / "meta/info.json").write_text(json.dumps({**info("new"), "codebase_version": "v2.1", **paths}))
    refused = cli("episodes", "import", "second", "old", "--recipe", "toy.yaml")
    assert refused.code == 2 and "Use `--rename " in refused.line
    (rename,) = re.findall(r"--rename '([^']*)'", refused.line)
    done = cli("episodes", "import", "second", "old", "--recipe", "toy.yaml", "--rename", rename)
    assert done.code == 0, done.err
    assert "2 demonstrations imported" in done.out
    log, theirs = EpisodeLog("runs/second/episodes"), EpisodeLog(finished / "episodes")
    demos = [i for i in theirs.ids() if theirs.manifest(i).purpose is Purpose.DEMO]
    for one, other in zip(log.ids(), demos, strict=True):
        assert log.load(one).prompt == "reach"
        assert np.array_equal(log.load(one).column("executed"), theirs.load(other).column("executed"))
    assert "2 were there already" in cli("episodes", "import", "second", "old", "--rename", rename).out
