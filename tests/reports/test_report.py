"""Reports of run folders with known numbers."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from dovetail.cli._figures import evaluation_lines
from dovetail.config.load import load
from dovetail.core.errors import RunFolderError
from dovetail.core.figures import EpisodeScore, Performance
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.stats import Rate
from dovetail.core.types import Episode, Labels, Observation, Outcome, Purpose, Segment, Source, Step, Verdict
from dovetail.episodes.log import EpisodeLog
from dovetail.labels.store import LabelStore
from dovetail.learn.checkpoint import save_checkpoint
from dovetail.reports import _curve_panels
from dovetail.reports import learning_curve as curve_module
from dovetail.reports._curve_style import running_mean
from dovetail.reports.learning_curve import CurveEpisode, learning_curve
from dovetail.reports.report import write_report
from dovetail.robots.sim import SimRobot
from dovetail.runs.folder import RunFolder


def robot_spec(*, images: bool) -> RobotSpec:
    camera = {"front": ArraySpec(shape=(12, 16, 3), dtype="uint8")} if images else {}
    return RobotSpec(
        name="fake",
        embodiment="fake",
        observation={"state": ArraySpec(shape=(2,)), **camera},
        action=ArraySpec(shape=(2,)),
        action_kind="ee_delta",
        control_hz=10.0,
    )


class Run:
    """A run folder that the test writes."""

    def __init__(self, path: Path, *overrides: str) -> None:
        self.folder = RunFolder.create(path, load(["peg-insertion"], ["run.demos=1", *overrides]))
        self.log = EpisodeLog(self.folder.episodes)
        self.labels = LabelStore(self.folder.labels)
        self._count = 0

    def episode(
        self,
        purpose: Purpose,
        *,
        steps: int,
        outcome: Outcome,
        human: tuple[int, ...] = (),
        images: bool = False,
        extras: dict[str, Any] | None = None,
        has_success: bool = True,
    ) -> str:
        """`human`: the steps by an operator."""
        self._count += 1
        values: dict[str, Any] = {"state": np.zeros(2, np.float32)}
        if images:
            values["front"] = np.full((12, 16, 3), 10 * self._count, np.uint8)
        rows = [
            Step(
                observation=Observation(time_ns=tick, values=values),
                proposed=np.zeros(2, np.float32),
                executed=np.zeros(2, np.float32),
                source=Source.HUMAN if tick in human else Source.POLICY,
                policy_version=1,
                chunk_id=tick,
                chunk_index=0,
                verdict=Verdict(outcome=None),
                extras=extras or {},
            )
            for tick in range(steps)
        ]
        episode_id = f"e{self._count:03}"
        last = Observation(time_ns=steps, values=values)
        self.log.commit(
            Episode(
                id=episode_id,
                task="peg_insertion",
                prompt="",
                robot=robot_spec(images=images),
                operator="scripted",
                purpose=purpose,
                outcome=outcome,
                judgement=None,
                seed=0,
                config_hash=self.folder.config_hash,
                started_unix_ns=self._count,
                segments=(Segment.of(rows, episode_id=episode_id, last_observation=last),),
                has_success=has_success,
            )
        )
        return episode_id

    def label(self, episode_id: str, *, success: bool) -> None:
        ones = np.ones(1, np.float32)
        self.labels.add(
            Labels(
                episode_id=episode_id,
                rewards=ones,
                discounts=ones,
                success=success,
                confidence=1.0,
                labeler="test",
                version="1",
            )
        )

    def evaluation(self, name: str, successes: int, episodes: int, shown: tuple[str, ...] = ()) -> None:
        rate = Rate(successes=successes, episodes=episodes)
        facts = {"successes": successes, "shown": list(shown), **rate.to_json()}
        self.folder.write_json(f"evaluations/{name}.json", facts)

    def figures(self, name: str, scores: list[EpisodeScore]) -> None:
        self.folder.write_json(f"evaluations/{name}.json", {"shown": [], **Performance.of(scores).to_json()})

    def fill(self) -> None:
        """20 + 10 demonstration steps; 12 + 24 + 24 online steps, six of them in two interventions."""
        self.episode(Purpose.DEMO, steps=20, outcome=Outcome.SUCCESS)
        self.episode(Purpose.DEMO, steps=10, outcome=Outcome.TIMEOUT)
        self.episode(Purpose.ONLINE, steps=12, outcome=Outcome.SUCCESS)
        self.episode(Purpose.ONLINE, steps=24, outcome=Outcome.SUCCESS, human=(3, 4, 5, 6, 10, 11))
        self.episode(Purpose.ONLINE, steps=24, outcome=Outcome.TIMEOUT)
        self.episode(Purpose.ONLINE, steps=50, outcome=Outcome.ABORTED, human=(1,))
        self.episode(Purpose.EVAL, steps=30, outcome=Outcome.SUCCESS)

    def finish(self) -> None:
        self.fill()
        self.evaluation("untrained", 0, 20)
        self.evaluation("cloning", 53, 100)
        self.evaluation("after", 99, 100)
        self.folder.write_json("progress.json", {"wall_s": 123.5, "updates": 240})


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run")


def test_report_of_a_complete_run(run: Run) -> None:
    run.finish()
    report = write_report(run.folder)
    found = json.loads((run.folder.path / "report.json").read_text("utf-8"))
    assert found == report.to_json()
    for name, successes, episodes in (
        ("untrained", 0, 20),
        ("success_before", 53, 100),
        ("success_after", 99, 100),
    ):
        assert found.pop(name) == Rate(successes=successes, episodes=episodes).to_json()
    assert found.pop("robots").keys() == {"fake"}
    assert found.pop("evaluations").keys() == {"untrained", "cloning", "after"}
    assert found == {
        "verdict": "peg_insertion: 53 % → 99 % in 0.1 robot minutes",
        "phase_s": {},
        "scheduled": [],
        "task": "peg_insertion",
        "seed": 0,
        "config_hash": run.folder.config_hash,
        "interval_above": True,
        "robot_minutes": pytest.approx(0.1),  # 60 steps at 10 Hz
        "demo_minutes": pytest.approx(0.05),
        "wall_s": 123.5,
        "env_steps": 60,
        "episodes": 3,
        "updates": 240,
        "interventions": 2,
        "interventions_per_minute": pytest.approx(20.0),  # in 0.1 minutes
        "human_share": pytest.approx(0.1),
        "demos": 1,
        "best": None,
        "missing": [],
        "advice": [],
        "figure": "learning_curve.png",
        "video": None,
        "video_missing": "no episodes were recorded for the video: run.video_episodes is 0",
    }
    with Image.open(run.folder.path / found["figure"]) as image:
        assert image.size == (1800, 1200)


@pytest.mark.parametrize(("rate", "named"), [(0.9, True), (0.6, False)])
def test_best_checkpoint_is_named_if_its_evaluation_was_better(run: Run, rate: float, named: bool) -> None:
    run.evaluation("after", 60, 100)
    best = run.folder.checkpoints / "best"
    save_checkpoint(best, {}, facts={"env_steps": 400, "success": rate, "by": "evaluation at-00000400"})
    report = write_report(run.folder)
    found = json.loads((run.folder.path / "report.json").read_text("utf-8"))["best"]
    assert (found is not None) == named
    if named:
        assert found["command"] == f"dovetail eval {best}"
        assert str(report.best) == "the checkpoint at 400 steps was better in its evaluation: 90 %"


def test_best_checkpoint_of_practice_is_not_compared_with_an_evaluation(run: Run) -> None:
    run.evaluation("after", 60, 100)
    facts = {"env_steps": 400, "success": 0.9, "by": "recent practice"}
    save_checkpoint(run.folder.checkpoints / "best", {}, facts=facts)
    assert write_report(run.folder).best is None


def test_second_report_is_identical(run: Run) -> None:
    run.finish()
    assert write_report(run.folder) == write_report(run.folder)
    assert not [path.name for path in run.folder.path.iterdir() if path.name.endswith((".tmp", ".partial"))]


def test_overlapping_intervals_are_not_above(run: Run) -> None:
    run.evaluation("cloning", 50, 100)
    run.evaluation("after", 62, 100)
    assert write_report(run.folder).interval_above is False


def test_labels_overrule_outcomes(run: Run) -> None:
    demo = run.episode(Purpose.DEMO, steps=2, outcome=Outcome.SUCCESS)
    assert write_report(run.folder).demos == 1
    run.label(demo, success=False)
    assert write_report(run.folder).demos == 0


def test_report_of_an_interrupted_run_lists_what_is_missing(run: Run) -> None:
    report = write_report(run.folder)
    assert report.missing == (
        "untrained: not evaluated yet",
        "demonstrations: 0 of 1",
        "success_before: cloning was not evaluated yet",
        "online episodes: none yet",
        "success_after: not evaluated yet",
        "wall_s: the run was killed or is still active",
    )
    assert (report.success_after, report.interval_above, report.wall_s) == (None, None, None)
    assert report.verdict == "peg_insertion: not evaluated yet"
    assert report.video_missing == "the video needs the evaluation 'untrained', which is not done yet"
    assert (run.folder.path / "learning_curve.png").is_file()


def test_report_of_a_run_interrupted_after_cloning(run: Run) -> None:
    run.evaluation("cloning", 53, 100)
    report = write_report(run.folder)
    assert report.verdict == "peg_insertion: 53 % before learning online, not evaluated after it yet"
    assert report.video_missing == "the video needs the evaluation 'after', which is not done yet"


def test_episodes_without_images_have_no_video(run: Run) -> None:
    shown = run.episode(Purpose.EVAL, steps=2, outcome=Outcome.SUCCESS)
    run.evaluation("cloning", 53, 100, (shown,))
    run.evaluation("after", 99, 100, (shown,))
    report = write_report(run.folder)
    assert report.video is None
    assert "record images with robot.images=[front]" in (report.video_missing or "")


def test_updates_come_from_the_newest_checkpoint_of_an_interrupted_run(run: Run) -> None:
    run.folder.event("checkpoint", env_steps=10, updates=40)
    run.folder.event("checkpoint", env_steps=20, updates=80)
    with (run.folder.path / "events.jsonl").open("a") as file:
        file.write('{"time": 1.0, "event": "checkpoint", "upda')  # killed while writing
    assert write_report(run.folder).updates == 80


def test_video_shows_the_same_resets_side_by_side(run: Run) -> None:
    run.finish()
    before = [run.episode(Purpose.EVAL, steps=8, outcome=Outcome.TIMEOUT, images=True) for _ in range(2)]
    after = [run.episode(Purpose.EVAL, steps=5, outcome=Outcome.SUCCESS, images=True) for _ in range(2)]
    run.evaluation("cloning", 53, 100, tuple(before))
    run.evaluation("after", 99, 100, tuple(after))
    report = write_report(run.folder)
    assert (report.video, report.video_missing) == ("before_after.mp4", None)
    with av.open(str(run.folder.path / "before_after.mp4")) as video:
        num_frames = sum(1 for _ in video.decode(video=0))
    assert num_frames == 9 + 1 + 15  # the longest clip, its last frame, and 1.5 s of that frame


@pytest.mark.extended
def test_long_episodes_are_shown_faster(run: Run) -> None:
    shown = run.episode(Purpose.EVAL, steps=601, outcome=Outcome.SUCCESS, images=True)
    run.evaluation("untrained", 0, 20, (shown,))
    run.evaluation("after", 99, 100, (shown,))
    assert write_report(run.folder).video
    with av.open(str(run.folder.path / "before_after.mp4")) as video:
        assert sum(1 for _ in video.decode(video=0)) == 121 + 1 + 15  # each fifth of 602 frames


def test_report_without_gl_has_no_video(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise ImportError("no EGL display")

    run.finish()
    config = run.folder.config
    assert config.task is not None
    probe = SimRobot(task=config.task.build()).probe()
    shown = run.episode(Purpose.EVAL, steps=3, outcome=Outcome.SUCCESS, extras=dict(probe))
    run.evaluation("cloning", 53, 100, (shown,))
    run.evaluation("after", 99, 100, (shown,))
    monkeypatch.setattr("mujoco.Renderer", refuse)
    report = write_report(run.folder)
    assert report.video is None
    assert report.video_missing is not None
    assert report.video_missing.startswith("cannot render images (no EGL display)")
    monkeypatch.undo()
    assert write_report(run.folder).video == "before_after.mp4"


def test_unwritable_folder_is_one_error_line(run: Run) -> None:
    (run.folder.path / "learning_curve.png").mkdir()
    with pytest.raises(RunFolderError, match="cannot write the report of run"):
        write_report(run.folder)


def test_report_has_cycle_time_and_throughput_before_and_after(run: Run) -> None:
    """Before: 1 of 2 in 12 s of 24 s. After: 2 of 2 in 4 s and 8 s, with 6 s of resets."""
    run.fill()
    before = [EpisodeScore(success=success, duration_s=12.0) for success in (True, False)]
    run.figures("cloning", before)
    run.figures("after", [EpisodeScore(success=True, duration_s=s, reset_s=3.0) for s in (4.0, 8.0)])
    report = write_report(run.folder)
    assert report.before.cycle_time_s.median == 12.0
    assert report.after.cycle_time_s.median == 6.0
    assert (report.before.per_minute, report.before.per_minute_with_resets) == (pytest.approx(2.5), None)
    assert (report.after.per_minute, report.after.per_minute_with_resets) == (
        pytest.approx(10.0),
        pytest.approx(20 / 3),
    )
    made = json.loads((run.folder.path / "report.json").read_text("utf-8"))["evaluations"]
    assert [made[name]["cycle_time_s"]["median"] for name in ("cloning", "after")] == [12.0, 6.0]
    text = "\n".join(line.plain for line in evaluation_lines(report.evaluations))
    assert "cycle time 12.0 s (one success), 2.5 successes per minute" in text
    assert "cycle time 6.0 s (5.0 to 7.0), 10.0 successes per minute (6.7 with resets)" in text


def test_report_of_an_environment_without_success_is_about_the_return(run: Run) -> None:
    for total in (-900.0, -300.0):
        episode_id = run.episode(Purpose.ONLINE, steps=30, outcome=Outcome.TIMEOUT, has_success=False)
        rewards = np.full(30, total / 30, np.float32)
        run.labels.add(
            Labels(
                episode_id=episode_id,
                rewards=rewards,
                discounts=np.ones(30, np.float32),
                success=False,
                confidence=1.0,
                labeler="test",
                version="1",
            )
        )
    for name, returns in (("untrained", (-1200.0, -1160.0)), ("after", (-270.0, -254.0))):
        run.figures(name, [EpisodeScore(success=None, duration_s=20.0, total_reward=total) for total in returns])
    report = write_report(run.folder)
    assert report.verdict == "peg_insertion: return -1180 → -262 in 0.1 robot minutes"
    assert report.success_after is None and report.interval_above is True
    assert report.after.returns.mean == -262.0
    found = json.loads((run.folder.path / "report.json").read_text("utf-8"))
    assert found["success_after"] is None
    assert found["evaluations"]["after"]["return"]["mean"] == -262.0
    lines = [line.plain for line in evaluation_lines(report.evaluations)]
    assert any("return -262  [-364, -160] of 2" in line for line in lines)  # 12.706 * 11.31 / sqrt(2) = 101.6
    assert not any("%" in line for line in lines)


def test_curve_without_success_shows_the_return() -> None:
    def episodes(success: bool | None) -> list[CurveEpisode]:
        return [
            CurveEpisode(
                end_minutes=0.1 * (i + 1),
                score=EpisodeScore(success=success, duration_s=6.0, total_reward=-100.0 + i),
                human_share=0.0,
            )
            for i in range(30)
        ]

    def green(success: bool | None) -> Any:
        image = learning_curve(episodes(success), title="t", subtitle="s", evaluations={})
        pixels = np.asarray(Image.open(io.BytesIO(image)).convert("RGB")).astype(int)
        return np.abs(pixels - (0x1D, 0x7F, 0x6E)).sum(-1) < 12

    with_return, with_success = green(None), green(False)
    left, right = (np.flatnonzero(with_return[200:1000, x]).mean() for x in (400, 1300))
    assert left - right > 100  # the mean return rises
    assert not with_success[200:600, 1300].any()  # a success rate of 0 stays at the bottom


@pytest.mark.parametrize("success", [True, None])
def test_curve_without_an_operator_says_nothing_about_help_and_counts_its_episodes(
    success: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles: list[str] = []
    for module in (curve_module, _curve_panels):
        monkeypatch.setattr(module, "panel_title", lambda axes, *parts: titles.extend(text for text, _ in parts))
    score = EpisodeScore(success=success, duration_s=6.0, total_reward=1.0)
    episodes = [CurveEpisode(end_minutes=0.1 * i, score=score, human_share=0.0) for i in range(1, 6)]
    learning_curve(episodes, title="t", subtitle="s", evaluations={}, has_operator=False)
    text = "; ".join(titles)
    assert "operator" not in text
    assert "help" not in text
    assert "last 5" in text
    learning_curve(episodes, title="t", subtitle="s", evaluations={})
    assert "operator" in "; ".join(titles)


def test_running_mean_equals_hand_computation() -> None:
    np.testing.assert_allclose(running_mean([1, 0, 0, 1, 1], window=2), [1, 0.5, 0, 0.5, 1])
    np.testing.assert_allclose(running_mean([1, 0, 0, 1, 1], window=20), [1, 1 / 2, 1 / 3, 1 / 2, 3 / 5])
    assert running_mean([]).shape == (0,)


def test_curve_is_drawn_in_its_colors() -> None:
    """At the right end of the plot, the line of episodes without help is at the top."""
    episodes = [
        CurveEpisode(
            end_minutes=0.1 * (i + 1),
            score=EpisodeScore(success=i >= 5, duration_s=6.0),
            human_share=0.5 if i < 20 else 0.0,
        )
        for i in range(60)
    ]
    image = learning_curve(episodes, title="t", subtitle="s", evaluations={})
    pixels = np.asarray(Image.open(io.BytesIO(image)).convert("RGB")).astype(int)
    green = np.abs(pixels - (0x1D, 0x7F, 0x6E)).sum(-1) < 12
    rows = np.flatnonzero(green[150:640, 1400])  # the upper panel, near its right end
    assert len(rows)
    assert rows.max() < 60  # at 100 %
    blank = learning_curve([], title="t", subtitle="s", evaluations={})
    assert blank != image


def test_report_module_imports_neither_torch_nor_matplotlib() -> None:
    code = "import sys, dovetail.reports.report; print({'torch', 'matplotlib', 'ray'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
