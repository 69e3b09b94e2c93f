"""Every setting and command in docs/migrating.md exists, and every name of the other projects is in it."""

import itertools
import re
import types
import typing
from collections.abc import Iterator

import pytest
import typer
import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from dovetail.cli.main import app
from dovetail.config.model import settings
from dovetail.config.plugins import list_plugins, locate, normalize_name, resolve
from dovetail.config.schema import SECTION_KINDS, PluginSection, RunConfig
from dovetail.core.errors import DovetailError
from support.docs_pages import INLINE, LINK, ROOT, command_problem, is_placeholder

PAGE = (ROOT / "docs" / "migrating.md").read_text()
KEY = re.compile(r"(?P<key>[a-z_]+(\.[A-Za-z_]+)*)(=(?P<value>.+))?")
ELSEWHERE = re.compile(
    r"make [\w-]+|dovetail(\.\w+)+|runs/NAME/\S*|tensorboard .*|package\.module:Class|[A-Z]\w+|/tmp"
)
# commands and settings in the documents of the five projects
THEIRS = """
start_ray.sh uv_setup.sh env_setup.sh run_online_rl.py run_online_rl_openpi.py --robot --inference_algorithm --train_config
--policy_yaml --inference_runtime_params_config --inference_runtime_topics_config --human_reward_labeler
model.component_config_paths policy.type HZ training_pc inference_pc labeling_pc
requirements/install.sh SKIP_ROS robot_ip target_ee_pose collect_data.sh RLINF_NODE_RANK PYTHONPATH run_realworld_async.sh
realworld_peginsertion_rlpd_cnn_async realworld_peginsertion_rlpd_cnn_async_2arms run_realworld_dagger_async.sh tensorboard
embodichain.agents.rl.train runtime.exp_name runtime.seed runtime.cuda runtime.headless runtime.iterations
runtime.rollout_steps runtime.eval_freq runtime.save_freq runtime.use_wandb runtime.wandb_project_name env.id
env.cfg.num_envs env.cfg.obs_mode env.cfg.episode_length env.cfg.action_scale env.cfg.success_threshold policy.name
policy.cfg policy.actor.type policy.actor.hidden_sizes policy.actor.activation policy.critic.type policy.critic.hidden_sizes
policy.critic.activation algorithm.name algorithm.cfg.learning_rate algorithm.cfg.n_epochs algorithm.cfg.batch_size
algorithm.cfg.gamma algorithm.cfg.gae_lambda algorithm.cfg.clip_coef algorithm.cfg.ent_coef algorithm.cfg.vf_coef
algorithm.cfg.max_grad_norm embodichain/agents/rl/train.py trainer.buffer_size trainer.buffer_type trainer.iterations
policy.action_dim policy.vla_config.model_path policy.vla_config.model_class policy.vla_config.model_config vision_encoder
language_model freeze_vision_encoder HIORS_PATH HF_LEROBOT_HOME HF_DATASETS_CACHE run_actor.sh run_learner.sh start_dobot.sh
run_actor_data_collection.sh run_learner_data_collection.sh train_reward.sh reward_classifier.yaml
run_actor_reject_sampling.sh run_learner_reject_sampling.sh run_learner_sft.sh run_actor_eval.sh train_rlpd.py algo= task=
unique_identifier checkpoint_path learner=true/false actor=true/false training.num_gpus training.mixed_precision
logging.logger ip= visualize_dataset merge_video.py
"""


def tables(text: str) -> Iterator[list[list[str]]]:
    """Each table: its header, then its rows, as cells."""
    lines = [line if line.startswith("|") else None for line in text.splitlines()]
    for there, group in itertools.groupby(lines, key=bool):
        if there:
            rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in group]
            yield [rows[0], *rows[2:]]


def models(annotation: object) -> Iterator[object]:
    """The config models, mappings of them and plugin sections that a setting may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    if typing.get_origin(annotation) is dict:
        yield annotation
    elif typing.get_origin(annotation) in (typing.Union, types.UnionType, typing.Annotated):
        for part in typing.get_args(annotation):
            yield from models(part)


def fields(model: object, words: list[str]) -> Iterator[object]:
    """What `a.b.c` names below a config model: the pydantic fields, one for each way to read it."""
    if typing.get_origin(model) is dict:
        inner = typing.get_args(model)[1]
        if len(words) == 1:
            yield inner
        for part in models(inner) if len(words) > 1 else ():
            yield from fields(part, words[1:])
        return
    field = settings(model).get(words[0])
    if field is None:
        return
    if len(words) == 1:
        yield field.rebuild_annotation()
    for part in models(field.annotation) if len(words) > 1 else ():
        yield from fields(part, words[1:])


def key_problem(key: str, value: str | None, chosen: dict[str, str]) -> str | None:
    """Why a setting would be refused; `chosen` types are the only ones looked at."""
    section, *rest = key.split(".")
    if section not in RunConfig.model_fields:
        return f"{key}: there is no section '{section}'"
    data = None if value is None or is_placeholder(value) else yaml.safe_load(value)
    if section not in SECTION_KINDS:
        found = list(fields(RunConfig, [section, *rest]))
    elif not rest:
        return section_problem(SECTION_KINDS[section], value)
    elif rest == ["type"]:
        return section_problem(SECTION_KINDS[section], data)
    else:
        kind = SECTION_KINDS[section]
        names = [chosen[section]] if section in chosen else [p.name for p in list_plugins() if p.kind == kind]
        found = [field for name in names for field in fields(resolve(kind, name).Config, rest)]
    if not found:
        return f"{key}: no such setting" + (f" of {chosen[section]}" if section in chosen else "")
    if data is not None and not any(fits(annotation, data) for annotation in found):
        return f"{key}={value}: not a value of it"
    return None


def section_problem(kind: str, value: str | None) -> str | None:
    """A bare name of a plugin, or a list of sections."""
    if value is None:
        return None
    if not value.startswith(("[", "{")):
        try:
            locate(kind, value)
        except DovetailError as error:
            return str(error)
        return None
    for part in yaml.safe_load(value):
        try:
            PluginSection.parse(kind, part)
        except (ValidationError, PydanticCustomError) as error:
            return str(error)
    return None


def fits(annotation: object, data: object) -> bool:
    try:
        TypeAdapter(annotation).validate_python(data)
    except ValidationError:
        return False
    return True


def options() -> set[str]:
    commands = list(typer.main.get_command(app).commands.values())
    nested = [inner for command in commands for inner in getattr(command, "commands", {}).values()]
    return {name for command in (*commands, *nested) for option in command.params for name in option.opts}


def span_problem(span: str, chosen: dict[str, str]) -> str | None:
    if span.startswith("dovetail "):
        return command_problem(span)
    if span.startswith("--"):
        return None if span in options() else f"{span}: no command has it"
    if (key := KEY.fullmatch(span)) and key["key"].partition(".")[0] in RunConfig.model_fields:
        return key_problem(key["key"], key["value"], chosen)
    return None if ELSEWHERE.fullmatch(span) else f"{span}: neither a command nor a setting"


def table_problems(table: list[list[str]], *, num_theirs: int = 1) -> list[str]:
    header, *rows = table
    chosen = {}
    for span in INLINE.findall(" ".join(header)):
        section, _, name = span.partition(".type=")
        chosen[section] = normalize_name(name)
    problems = [section_problem(SECTION_KINDS[section], name) for section, name in chosen.items()]
    for row in rows:
        if len(row) != len(header):
            problems.append(f"{row[0]}: {len(row)} cells for {len(header)} columns")
        for span in (span for cell in row[num_theirs:] for span in INLINE.findall(LINK.sub("", cell))):
            problems.append(span_problem(span, chosen))
    return [problem for problem in problems if problem]


def test_every_setting_and_command_of_ours_exists():
    found = list(tables(PAGE))
    assert len(found) == 7
    assert sum(len(rows) - 1 for rows in found) > 130
    for table in found:
        assert table_problems(table) == []


def test_every_row_says_something_of_ours():
    for table in tables(PAGE):
        for row in table[1:]:
            ours = row[2] if table[0][1] == "whose" else row[1]
            assert ours, f"{row[0]} leads nowhere"


@pytest.mark.parametrize("name", THEIRS.split())
def test_every_command_and_key_of_theirs_is_there(name):
    assert any(name in row[0] for table in tables(PAGE) for row in table[1:])


# ---- and the check itself notices


@pytest.mark.parametrize(
    ("span", "because"),
    [
        ("algorithm.clip_coef", "no such setting"),
        ("algorithm.type=ppi", "Did you mean 'ppo'"),
        ("learner.precision=fp8", "not a value"),
        ("learner.precison", "no such setting"),
        ("policy.components.NAME.forzen=true", "no such setting"),
        ("cluster.moon", "no such setting"),
        ("cluster.machines.NAME.adress", "no such setting"),
        ("moon.cluster", "neither a command nor a setting"),
        ("--viewr", "no command has it"),
        ("dovetail fly RECIPE", "no command"),
        ("labels=[{type: vlm, modle: x}]", "modle"),
        ("labels=[persno]", "no labeler named"),
    ],
)
def test_wrong_settings_and_commands_are_found(span, because):
    text = f"| theirs | ours |\n|---|---|\n| x | `{span}` |\n"
    (problem,) = table_problems(*tables(text))
    assert because in problem


def test_setting_of_another_plugin_is_found():
    right = "| theirs | ours (`algorithm.type=ppo`) |\n|---|---|\n| x | `algorithm.clip_ratio` |\n"
    assert table_problems(*tables(right)) == []
    wrong = right.replace("algorithm.type=ppo", "algorithm.type=rlpd")
    assert table_problems(*tables(wrong)) == ["algorithm.clip_ratio: no such setting of rlpd"]
