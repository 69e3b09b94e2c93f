"""Wrong use gets one line, the right exit code, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.core.disk import dump_json
from support.command_line import Cli

WITHOUT_ROOT = """
import os, sys
import dovetail.cli._session
from dovetail.api.checks import check_fits
from dovetail.cli.main import main
from dovetail.config.load import load
check_fits(load(["toy.yaml"]))  # imports everything first: another user may not read root's Python
if os.geteuid() == 0:  # root may write anywhere
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["peg-insertin"], "no recipe or file named 'peg-insertin'. Did you mean 'peg-insertion'?"),
        (["missing.yaml"], "config file not found: missing.yaml"),
        ([], "name a recipe or a config file"),
        (["toy.yaml", "run.sed=3"], "Did you mean 'run.seed'?"),
        (["toy.yaml", "lerner.utd=3"], "Did you mean 'learner'?"),
        (["toy.yaml", "task=peg_insertoin"], "no task named 'peg_insertoin'. Did you mean 'peg_insertion'?"),
        (["toy.yaml", "robot=smi"], "no robot named 'smi'. Did you mean 'sim'?"),
        (["toy.yaml", "policy=gausian_mlp"], "Did you mean 'gaussian_mlp'?"),
        (["toy.yaml", "policy=no_such_module:Policy"], "cannot import module 'no_such_module'"),
        (
            ["toy.yaml", "actor=rtc", "policy.type=gaussian_mlp"],
            "use actor.type=sequential or a policy with a longer horizon",
        ),
        (["toy.yaml", "run.demos=many"], "run.demos"),
        (["toy.yaml", "=3"], "should look like key.sub=value"),
        (["toy.yaml", "policy.inputs=[joint_pso]"], "Did you mean 'joint_pos'?"),
        (["toy.yaml", "robot.images=[fornt]"], "Did you mean 'front'?"),
        (["toy.yaml", "--seed", "-1"], "--seed"),
        (["toy.yaml", "--name", "../escape"], "is not a name for a run"),
        (["toy.yaml", "--name", ""], "is not a name for a run"),
        (["toy.yaml", "--nmae", "x"], "--nmae"),
        (["--resume"], "name the run to continue"),
        (["--resume", "nothing"], "no run named 'nothing'"),
        (["--resume", "."], "is not a run folder"),
    ],
)
def test_wrong_arguments_of_run_are_refused(cli: Cli, toy: str, arguments: list[str], message: str) -> None:
    result = cli("run", *arguments)
    assert message in result.line
    assert result.code == 2
    assert os.listdir() == [toy]


def test_a_task_that_does_not_fit_the_arm_is_refused(cli: Cli, toy: str) -> None:
    result = cli("run", toy, "task=table_cleanup", "robot.arm=x5")
    assert "table_cleanup" in result.line
    assert "x5" in result.line
    assert result.code == 2
    assert os.listdir() == [toy]


def test_a_viewer_needs_a_display(cli: Cli, toy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    result = cli("run", toy, "--viewer", "--quiet")
    assert "needs a display" in result.err
    assert result.code == 1
    assert not list(Path("runs").glob("*"))


@pytest.mark.extended
def test_an_existing_run_folder_is_refused(cli: Cli, toy: str, finished: Path) -> None:
    before = sorted(finished.rglob("*"))
    result = cli("run", toy, "--name", "done")
    assert "exists already: choose another --name, or use --resume" in result.line
    assert result.code == 2
    assert sorted(finished.rglob("*")) == before


def test_resume_with_another_config_is_refused(cli: Cli, toy: str, finished: Path) -> None:
    result = cli("run", toy, "run.seed=5", "--name", "done", "--resume")
    assert "belongs to config" in result.line
    assert result.code == 2


def test_resume_with_overrides_is_refused(cli: Cli, finished: Path) -> None:
    result = cli("run", "--resume", "done", "run.seed=5")
    assert "leave out run.seed, or start a new run. It accepts " in result.line
    assert "run.env_steps, run.eval_episodes" in result.line
    assert result.code == 2
    assert not (finished / "changes.json").exists()


def test_wrong_value_in_a_resume_is_refused_and_not_recorded(cli: Cli, finished: Path) -> None:
    result = cli("run", "--resume", "done", "run.env_steps=many")
    assert "'run.env_steps' should be a whole number, got 'many'" in result.line
    assert result.code == 2
    assert not (finished / "changes.json").exists()


def test_resume_refuses_a_changes_file_that_was_edited_or_names_other_settings(cli: Cli, finished: Path) -> None:
    (finished / "changes.json").write_bytes(dump_json({"settings": {"run.seed": 5}}, indent=2))
    assert "changes.json: a resumed run keeps its config: leave out run.seed" in cli("eval", "done").line
    (finished / "changes.json").write_text('{"settings": {"run.env_steps": 5}}')
    assert "changes.json is damaged" in cli("eval", "done").line


def test_an_edited_config_is_refused(cli: Cli, finished: Path) -> None:
    text = (finished / "config.yaml").read_text()
    (finished / "config.yaml").write_text(text.replace("demos: 2", "demos: 3"))
    result = cli("eval", "done")
    assert "changed since it was saved" in result.line
    assert result.code == 2


def test_a_locked_run_is_refused(cli: Cli, finished: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl,sys; f=open(sys.argv[1],'w'); fcntl.flock(f,2); print(flush=True); sys.stdin.read()",
            str(finished / ".lock"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    try:
        result = cli("run", "--resume", "done")
    finally:
        holder.communicate()
    assert "another process is working in" in result.line
    assert result.code == 2


@pytest.mark.extended
def test_read_only_folders_are_refused(toy: str, finished: Path) -> None:
    """In a process without root's rights: a new run and a resumed one."""
    shutil.move(str(finished), "frozen")
    os.mkdir("read-only")
    Path(".").chmod(0o755)
    for path in (Path("runs"), Path("read-only"), Path("frozen"), *Path("frozen").rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    for arguments, message in (
        ((toy, "--runs-dir", "read-only"), "cannot make run folder read-only/"),
        (("--resume", "frozen"), "cannot write to run folder frozen"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT_ROOT, "run", *arguments], capture_output=True, text=True, check=False
        )
        assert message in done.stderr, done.stderr
        assert done.stderr.splitlines()[-1].startswith("error: ")
        assert done.returncode == 2
    assert not os.listdir("read-only")


NO_GL = """
import contextlib, io, json
from dovetail.cli.main import main
def call(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    return [code, out.getvalue(), err.getvalue()]
print(json.dumps([
    call("run", "toy.yaml", "robot.images=[front]", "--name", "pictures"),
    call("doctor", "toy.yaml"),
    call("doctor", "toy.yaml", "robot.images=[front]"),
    call("run", "toy.yaml", "--name", "numbers", "--quiet"),
]))
"""


@pytest.mark.extended
def test_without_gl_only_images_fail(toy: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_GL],
        env={**os.environ, "MUJOCO_GL": "broken"},
        capture_output=True,
        text=True,
        check=True,
    )
    pictures, doctor, doctor_of_pictures, numbers = json.loads(done.stdout.splitlines()[-1])
    assert pictures[0] == 1
    assert pictures[2].startswith("error: cannot render images (MUJOCO_GL=broken")
    assert pictures[2].count("\n") == 1
    assert not Path("runs/pictures").exists()
    line = next(line for line in doctor[1].splitlines() if "rendering" in line)
    assert line.startswith("✗")
    assert "apt-get install libegl1" in line
    assert (doctor[0], doctor_of_pictures[0]) == (0, 1)
    assert numbers[0] == 0, numbers
    assert json.loads(Path("runs/numbers/report.json").read_text())["video"] is None


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["eval", "toy.yaml"], 1, "toy.yaml is not a checkpoint"),
        (["eval", "."], 2, "is not a run folder"),
        (["eval", "published"], 2, "looks like published weights. Name a run, and the folder in its policy"),
        (["eval", "nothing"], 2, "no run named 'nothing' in runs. Did you mean"),
        (["eval", "done", "--version", "77"], 2, "has no weights of version 77; it has: 1, 2"),
        (["eval", "done", "--episodes", "0"], 2, "--episodes"),
        (["eval", "runs/done/checkpoints/last", "--version", "1"], 2, "a checkpoint has no versions"),
        (["episodes", "ls", "done", "--outcome", "sucess"], 2, "Did you mean 'success'?"),
        (["episodes", "show", "done", "sim_panda"], 2, "matches"),
        (["episodes", "show", "done", "zzz"], 2, "no episode 'zzz'"),
        (["episodes", "video", "done", "last", "--camera", "bakc"], 2, "camera"),
        (["plugins", "--kind", "rowbot"], 2, "Did you mean 'robot'?"),
        (["bench", "smi"], 2, "Did you mean 'sim'?"),
        (["rnu"], 2, "rnu"),
        (["doctor", "run.seed=1"], 2, "name a recipe"),
    ],
)
def test_other_refusals(cli: Cli, finished: Path, arguments: list[str], code: int, message: str) -> None:
    if message.startswith("no run named"):
        shutil.copytree(finished, "runs/nothings")
    Path("published").mkdir()
    Path("published/config.json").write_text("{}")
    result = cli(*arguments)
    assert message in result.line
    assert result.code == code


def test_a_damaged_checkpoint_is_refused(cli: Cli, finished: Path) -> None:
    (state,) = (finished / "checkpoints/last").glob("state-*")
    state.write_bytes(state.read_bytes()[:-1] + b"x")
    result = cli("eval", "runs/done/checkpoints/last")
    assert "is damaged" in result.line
    assert result.code == 1
    (finished / "evaluations/after.json").unlink()
    result = cli("run", "--resume", "done", "--quiet")
    assert "is damaged" in result.err
    assert result.code == 1
    assert (finished / "config.yaml").exists()
    (finished / "checkpoints/last/manifest.json").write_text("not json")
    result = cli("eval", "runs/done/checkpoints/last")
    assert "is not a checkpoint" in result.line
    assert result.code == 1


def test_damaged_weights_are_refused(cli: Cli, finished: Path) -> None:
    for path in (finished / "weights/components").iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    result = cli("eval", "done")
    assert result.line
    assert result.code == 1


def test_demonstrations_without_an_expert_are_refused(cli: Cli, toy: str) -> None:
    Path("gym.yaml").write_text("{robot: {type: gym, id: Pendulum-v1}, policy: gaussian_mlp, algorithm: rlpd}")
    result = cli("run", "gym.yaml", "--name", "a")
    assert (result.code, result.err) == (
        2,
        "error: gym env 'Pendulum-v1' has no scripted expert: set run.demos=0 and operator=none\n",
    )
    assert not Path("runs/a").exists()


@pytest.mark.parametrize("name", ["progress.json", "evaluations/cloning.json"])
def test_a_damaged_small_file_is_named(cli: Cli, finished: Path, name: str) -> None:
    (finished / name).write_text("{")
    result = cli("run", "--resume", "done")
    assert result.code == 1
    assert f"{name} is damaged" in result.err
    assert "delete it" in result.err


@pytest.mark.extended
def test_learning_continues_when_the_output_pipe_is_closed(toy: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "dovetail.cli", "run", toy, "--name", "alone"], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.wait(timeout=120)
    assert Path("runs/alone/evaluations/after.json").exists()
