"""One loop that improves a served policy: train and serve it, correct it, distill, compare, deploy.

    run("improve-served-vla")     # its section `improve` makes a loop of the run

The run NAME learns the corrections. NAME-base has the served policy, NAME-distilled the new one, NAME-bad a candidate that
is bad on purpose. `improvement.json` in NAME has the steps that are done, so a resumed loop does not repeat them.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.api.served_process import served
from dovetail.config.deploy import DeployConfig
from dovetail.config.improve import ImproveConfig
from dovetail.config.schema import PluginSection, RunConfig
from dovetail.core.errors import Interrupted, UsageError
from dovetail.core.figures import Performance
from dovetail.core.stats import Rate
from dovetail.policies.remote.handshake import make_token
from dovetail.runs.folder import RunFolder

if TYPE_CHECKING:  # they load torch
    from dovetail.api.launch import RunOptions

__all__ = ["IMPROVEMENT", "STEPS", "Improvement", "describe", "with_served_base"]

IMPROVEMENT = "improvement.json"
STEPS = ("base", "residual", "distilled", "gate", "bad candidate", "deployed")
_TOKEN = "serve.token"
_LAST_SEED = 7000  # of the last evaluation: other resets than those before


def with_served_base(config: RunConfig, folder: Path) -> RunConfig:
    """The config with the key of the server that the loop will start. Raise UsageError if it cannot be such a loop."""
    if config.improve is None:
        return config
    base = getattr(config.policy.config, "base", {})
    if config.policy.type != "residual" or base.get("type") != "openpi":
        raise UsageError("`improve` needs policy.type=residual with a base of type openpi, which the loop serves")
    if config.run.distill_every is not None:
        raise UsageError(
            "`improve` distills once, after the run. Leave out run.distill_every, or the section `improve`"
        )
    served_base = {**base, "api_key_file": str(folder.absolute() / _TOKEN)}
    policy = config.policy.config.model_copy(update={"base": served_base})
    return config.model_copy(update={"policy": dataclasses.replace(config.policy, config=policy)})


class Improvement:
    """`Improvement(folder, options, announce=...).run(learn)`, where `learn` executes the run of the folder itself."""

    def __init__(self, folder: RunFolder, options: RunOptions, *, announce: Callable[[str], None]) -> None:
        assert folder.config.improve is not None
        self._folder, self._config, self._announce = folder, folder.config, announce
        self._settings: ImproveConfig = folder.config.improve
        self._options: RunOptions = {"runs_dir": folder.path.parent}
        self._should_stop = options.get("should_stop", lambda: False)
        self._options["should_stop"] = self._should_stop
        if "on_progress" in options:
            self._options["on_progress"] = options["on_progress"]
        self._done: dict[str, Any] = folder.read_json(IMPROVEMENT) or {"steps": {}, "seconds": {}}

    def run(self, learn: Callable[[], None]) -> None:
        self._step("base", self._train_base)
        self._step("residual", lambda: self._correct(learn))
        self._step("distilled", self._distill)
        self._step("gate", lambda: self._offer(self._run_path("distilled")))
        self._step("bad candidate", self._offer_bad)
        self._step("deployed", self._play_deployed)
        self._draw()

    def _draw(self) -> None:
        from dovetail.reports.improvement import FIGURE, draw_improvement

        title = f"{self._folder.path.name}: success without help"
        draw_improvement(self._done["steps"], self._folder.path / FIGURE, title=title)

    def _step(self, name: str, work: Callable[[], Mapping[str, Any]]) -> None:
        """Do a step, unless it is done. Its time counts also if it is interrupted."""
        if name in self._done["steps"]:
            return
        began_s = time.monotonic()
        self._announce(f"{name} ...")
        try:
            self._done["steps"][name] = dict(work())
        finally:
            seconds = self._done["seconds"].get(name, 0.0) + time.monotonic() - began_s
            self._done["seconds"][name] = round(seconds, 1)
            self._folder.write_json(IMPROVEMENT, self._done)
        self._announce(f"{name}: {describe(self._done['steps'][name])}, {seconds / 60:.1f} minutes")

    def _run_path(self, kind: str) -> Path:
        return self._folder.path.with_name(f"{self._folder.path.name}-{kind}")

    # ---- the steps

    def _train_base(self) -> Mapping[str, Any]:
        return self._trained("base", {"run.seed": self._config.run.seed})

    def _correct(self, learn: Callable[[], None]) -> Mapping[str, Any]:
        with self._served(self._run_path("base")):
            learn()
        return _result(self._folder)

    def _distill(self) -> Mapping[str, Any]:
        from dovetail.api.distilled_candidate import train_candidate  # it loads torch

        made = train_candidate(
            self._run_path("distilled"),
            self._folder.path,
            self._run_path("base"),
            self._settings.distill_settings,
            num_updates=self._settings.distill_updates,
            evaluate=True,
            options=self._options,
        )
        return _result(made)

    def _offer(self, candidate: Path) -> Mapping[str, Any]:
        """Give a candidate to the gate."""
        from dovetail.api.distilled_candidate import offer  # it loads torch

        gate = self._config.deploy or DeployConfig()
        gate = gate.model_copy(update={"max_pairs": self._settings.gate_episodes, "margin": None})
        base = self._run_path("base")
        made = offer(base, candidate, gate, should_stop=self._should_stop, announce=self._announce)
        found = {
            "deployed": made["change"] == "deployed",
            "answer": made["answer"],
            "pairs": made.get("num_pairs"),
        }
        success = Performance.from_json(made["candidate"]).success if "candidate" in made else None
        return {**found, **({} if success is None else _counts(success))}

    def _offer_bad(self) -> Mapping[str, Any]:
        changes = {"run.seed": self._config.run.seed + 1, "learner.warmup_updates": self._settings.bad_updates}
        self._trained("bad", changes, evaluate=False)
        return self._offer(self._run_path("bad"))

    def _play_deployed(self) -> Mapping[str, Any]:
        """Serve what is deployed now, and let it act through a client."""
        from dovetail.api.deployment import deployment_of
        from dovetail.api.evaluation import evaluate

        base = self._run_path("base")
        weights = deployment_of(base).deployed.weights
        with self._served(weights):
            played = evaluate(
                base,
                {"policy": self._server_section().to_plain()},
                num_episodes=self._config.run.eval_episodes,
                seed=_LAST_SEED + self._config.run.seed,
                should_stop=self._should_stop,
            )
        if not played.complete:
            raise Interrupted("the last evaluation was stopped")
        return {"weights": str(weights), **_counts(played.rate)}

    # ---- helpers

    def _trained(self, kind: str, changes: Mapping[str, Any], *, evaluate: bool = True) -> Mapping[str, Any]:
        from dovetail.api.launch import train

        path = self._run_path(kind)
        if path.exists():
            continued: RunOptions = {**self._options, "resume": path}
            train(evaluate=evaluate, **continued)
        else:
            new: RunOptions = {**self._options, "name": path.name}
            settings = {**self._settings.base_settings, **changes}
            train(self._settings.base_recipe, settings, evaluate=evaluate, **new)
        return _result(RunFolder.open(path)) if evaluate else {}

    def _server_section(self) -> PluginSection:
        base: Mapping[str, Any] = getattr(self._config.policy.config, "base", {})
        return PluginSection.parse("policy", base)

    def _served(self, target: str | Path) -> Any:
        settings: Any = self._server_section().config
        token_file = make_token(self._folder.path / _TOKEN)
        return served(target, address=settings.address, token_file=token_file, runs_dir=self._folder.path.parent)


def describe(step: Mapping[str, Any]) -> str:
    """The result of a step in words."""
    parts = []
    if "successes" in step:
        parts.append(f"success {Rate(successes=step['successes'], episodes=step['episodes'])}")
    if "deployed" in step:
        parts.append("deployed" if step["deployed"] else "rejected")
    if step.get("pairs"):
        parts.append(f"'{step['answer']}' after {step['pairs']} pairs of episodes")
    return ", ".join(parts)


def _result(folder: RunFolder) -> Mapping[str, Any]:
    """The last evaluation of a run without help, and the robot time of its online learning."""
    from dovetail.reports.report import read_report

    report = read_report(folder)
    if report.success_after is None:
        raise UsageError(f"run {folder.path} has no evaluation with success, which `improve` needs")
    found = {"run": str(folder.path), **_counts(report.success_after)}
    if report.env_steps:
        found |= {"robot_minutes": report.robot_minutes, "human_share": report.human_share}
    return found


def _counts(rate: Rate) -> Mapping[str, int]:
    return {"successes": rate.successes, "episodes": rate.episodes}
