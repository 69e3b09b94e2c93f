"""The package of docs/extending.md, as its reader would have it: written down, installed by pip, listed, checked, run."""

import json
import os
import re
import socketserver
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

from dovetail.api.checks import check_fits
from dovetail.config.load import load
from dovetail.config.plugins import locate
from dovetail.core.errors import RobotError, UsageError
from dovetail.testing import check_robot
from support.docs_pages import EXTENDING, ROOT, files

NAMES = {
    ("robot", "plotter"),
    ("robot", "net_plotter"),
    ("task", "touch_dot"),
    ("operator", "guide"),
    ("labeler", "nearness"),
    ("policy", "chunk_mlp"),
    ("actor", "ensemble"),
    ("algorithm", "self_imitation"),
    ("algorithm", "a2c"),
}
SHORT = ("run.demos=3", "run.env_steps=60", "run.eval_episodes=2", "run.untrained_episodes=1")
QUICK = ("learner.bc_updates=5", "learner.warmup_updates=5")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The reader's folder, with the package built from it in `site`, where nothing else is."""
    folder = tmp_path_factory.mktemp("my-lab")
    for page in EXTENDING:
        for name, content in files(page.read_text()).items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(content)
    how = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet")
    site = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "pip", "install", *how, "--target", site, folder], check=True)
    for made in (folder / "my_lab").iterdir():  # only what was installed may be imported from here on
        made.unlink()
    (folder / "my_lab").rmdir()
    (folder / "site").symlink_to(site)
    return folder


def child(lab: Path, *arguments: str) -> str:
    """The output of a command in a new process."""
    path = os.pathsep.join((str(lab / "site"), str(ROOT / "src")))
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "250", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=lab, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def here(lab, monkeypatch):
    """The same package, in this process."""
    monkeypatch.chdir(lab)
    monkeypatch.syspath_prepend(str(lab / "site"))
    yield lab
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_lab"]:
        del sys.modules[name]


def test_plugins_of_the_pages_are_listed(lab):
    lines = [line for line in child(lab, "-m", "dovetail.cli", "plugins").splitlines() if "my-lab" in line]
    ours = {(kind, name): rest for kind, name, rest in (line.split(maxsplit=2) for line in lines)}
    assert set(ours) == NAMES
    for kind, name in NAMES:
        assert re.fullmatch(r"entry point \(my-lab\) +\w.*\.", ours[kind, name].strip()), "a line of what it is"


@pytest.mark.extended
def test_tests_of_the_pages_pass(lab):
    output = child(lab, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_lab.py")
    assert "8 passed" in output


def test_plugins_of_the_pages_learn_in_a_run(lab):
    child(lab, "-m", "dovetail.cli", "run", "touch-dot.yaml", *SHORT, *QUICK, "--name", "dots", "--quiet")
    run = lab / "runs" / "dots"
    report = json.loads((run / "report.json").read_text())
    assert report["task"] == "touch_dot"
    config = yaml.safe_load((run / "config.yaml").read_text())
    used = {(kind, config[kind]["type"]) for kind in ("robot", "task", "policy", "actor", "algorithm")}
    others = {("robot", "net_plotter"), ("operator", "guide"), ("labeler", "nearness"), ("algorithm", "a2c")}
    assert used == NAMES - others
    assert [one["type"] for one in config["labels"]] == ["nearness"]
    labels = (run / "labels" / "labels.jsonl").read_text().splitlines()
    assert labels
    assert all(json.loads(line)["labeler"] == "nearness" for line in labels)
    manifests = [json.loads(path.read_text()) for path in (run / "episodes").glob("*/manifest.json")]
    assert len(manifests) > 6
    assert len(list((run / "weights").glob("v*.json"))) > 1


def test_doctor_reports_no_problem(lab):
    assert "policy chunk_mlp, algorithm self_imitation fit each other" in child(
        lab, "-m", "dovetail.cli", "doctor", "touch-dot.yaml"
    )


def test_on_policy_algorithm_of_the_pages_learns_in_a_run(lab):
    short = ("run.env_steps=1024", "run.eval_episodes=2", "run.untrained_episodes=1")
    child(lab, "-m", "dovetail.cli", "run", "touch-dot-a2c.yaml", *short, "--name", "rollouts", "--quiet")
    report = json.loads((lab / "runs" / "rollouts" / "report.json").read_text())
    assert (report["env_steps"], report["updates"]) == (1024, 4)  # 8 worlds of 32 steps


@pytest.mark.slow
def test_on_policy_algorithm_of_the_pages_learns_the_task(lab):
    child(lab, "-m", "dovetail.cli", "run", "touch-dot-a2c.yaml", "--name", "a2c", "--quiet", "--seed", "1")
    report = json.loads((lab / "runs" / "a2c" / "report.json").read_text())
    assert report["success_after"]["low"] > report["untrained"]["high"]


@pytest.mark.slow
def test_actor_of_the_pages_runs_in_processes(lab):
    processes = (*SHORT, *QUICK, "actor.layout=processes")
    child(lab, "-m", "dovetail.cli", "run", "touch-dot.yaml", *processes, "--name", "apart", "--quiet")
    assert (lab / "runs" / "apart" / "report.json").is_file()


@pytest.mark.slow
def test_recipe_of_the_pages_learns(lab):
    child(lab, "-m", "dovetail.cli", "run", "touch-dot.yaml", "--name", "whole", "--quiet", "--seed", "1")
    report = json.loads((lab / "runs" / "whole" / "report.json").read_text())
    assert report["success_after"]["rate"] > report["success_before"]["rate"] + 0.2


def test_plugins_of_the_pages_work_with_built_in_ones(here):
    assert locate("actor", "ensemble").origin == "entry point (my-lab)"
    for override in ("policy=flow", "algorithm=hg_dagger", "actor=naive", "algorithm=rlpd", "operator=guide"):
        check_fits(load(["touch-dot.yaml"], [override]))
    with pytest.raises(UsageError, match="policy 'chunk_mlp' cannot be guided"):
        check_fits(load(["touch-dot.yaml"], ["actor=rtc"]))


# ---- the driver, with a controller that speaks its lines


class Controller(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            command, *numbers = line.decode().split()
            self.server.commands.add(command)
            if command == "go":
                self.server.pen = [float(number) for number in numbers]
            answer = "{} {} 0.1 0.2".format(*self.server.pen) if command == "where" else "ok"
            self.wfile.write(answer.encode() + b"\n")


@pytest.fixture
def controller():
    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        pen, commands = [0.15, 0.15], set()

    with Server(("127.0.0.1", 0), Controller) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_driver_passes_the_robot_checks(here, controller):
    from my_lab.net_plotter import NetPlotter, NetPlotterConfig

    config = NetPlotterConfig(host="127.0.0.1", port=controller.server_address[1], control_hz=10.0, timeout_s=10.0)
    robot = NetPlotter(config)
    robot.stop()  # before any other call, as in the guard process: it connects by itself
    assert controller.commands == {"halt"}
    check_robot(lambda: robot, num_ticks=4)
    assert controller.commands == {"where", "go", "halt"}
    robot.close()
    robot.close()


def test_driver_without_a_controller_names_its_address(here, controller):
    from my_lab.net_plotter import NetPlotter, NetPlotterConfig

    with socketserver.TCPServer(("127.0.0.1", 0), Controller) as closed_server:
        port = closed_server.server_address[1]
    with pytest.raises(RobotError, match=rf"no answer from the plotter at 127\.0\.0\.1:{port}"):
        NetPlotter(NetPlotterConfig(host="127.0.0.1", port=port)).observe()
