"""Defaults and errors of the `cluster` section."""

import pytest

from dovetail.config.cluster import ClusterConfig, Place, RobotPlace
from dovetail.config.load import load, load_section, robot_config
from dovetail.core.errors import ConfigError, UsageError

TWO = """
desk: {head: true, host: lab-pc, address: 100.64.0.1, resources: {training: 1}}
cell: {host: nuc-1, address: 100.64.0.2, resources: {inference: 2}}
"""


def section(tmp_path, text, machines=TWO):
    body = "cluster:\n" + "".join(f"  {line}\n" for line in text.splitlines())
    if machines:
        body += "  machines:\n" + "".join(f"    {line}\n" for line in machines.strip().splitlines())
    path = tmp_path / "lab.yaml"
    path.write_text(body)
    return load_section(ClusterConfig, "cluster", [path])


def test_default_is_a_local_cluster(tmp_path):
    path = tmp_path / "none.yaml"
    path.write_text("run: {seed: 3}\n")
    config = load_section(ClusterConfig, "cluster", [path])
    assert config == ClusterConfig()
    assert config.head_address is None
    assert dict(config.named_robots()) == {"robot-0": RobotPlace()}


def test_address_of_the_head_and_default_arm_names(tmp_path):
    config = section(tmp_path, "num_robots: 2\nrobot: {resources: {inference: 1}}\nlearner: {machine: desk}")
    assert config.head == "desk"
    assert config.head_address == "100.64.0.1:7420"
    assert [*config.named_robots()] == ["robot-0", "robot-1"]
    assert config.named_robots()["robot-1"].resources == {"inference": 1}


@pytest.mark.parametrize(
    ("text", "machines", "line"),
    [
        ("", TWO.replace("{host: nuc-1", "{head: true, host: nuc-1"), "machines desk and cell are heads"),
        ("", TWO.replace("head: true, ", ""), "set head: true for one of machines"),
        ("address: 10.0.0.1:6379", TWO, "remove address"),
        ("address: somewhere", None, "'address' should be HOST:PORT, got 'somewhere'"),
        ("", TWO.replace("address: 100.64.0.2, ", ""), "machines.cell.address is 127.0.0.1: no other machine"),
        ("", TWO.replace("100.64.0.2", "nuc-1"), "address should be an IP address"),
        ("", TWO.replace("host: nuc-1", "hots: nuc-1"), "unknown key 'machines.cell.hots'. Did you mean"),
        ("", TWO.replace("inference: 2", "GPU: 2"), "'GPU' is reserved by Ray: use num_cpus and num_gpus"),
        ("", TWO.replace("{inference: 2}", "{}, ports: {node: 7420}"), "'machines.cell.ports': two ports are the same"),
        ("learner: {resources: {labeling: 1}}", TWO, "learner needs 1 of 'labeling', but the largest machine offers 0"),
        ("learner: {machine: cell, resources: {training: 1}}", TWO, "needs 1 of 'training', but cell offers 0"),
        ("robots: {left: {machine: cel}}", TWO, "is 'cel', which is not in machines. Did you mean 'cell'?"),
        ("robots: {left: {}}\nnum_robots: 2", TWO, "use either robots (arms by name), or num_robots"),
    ],
)  # fmt: skip
def test_invalid_section_is_refused_in_one_line(tmp_path, text, machines, line):
    with pytest.raises(ConfigError) as refused:
        section(tmp_path, text, machines)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_role_can_name_a_machine_by_name_host_or_address(tmp_path):
    for name in ("cell", "nuc-1", "100.64.0.2"):
        assert section(tmp_path, f"labeler: {{machine: {name}}}").labeler == Place(machine=name)


def test_unlisted_machines_may_offer_any_resource(tmp_path):
    config = section(tmp_path, "address: 10.0.0.1:6379\nlearner: {resources: {training: 1}}", machines=None)
    assert config.head_address == "10.0.0.1:6379"


def test_arm_overrides_only_the_keys_it_sets():
    run = load(["peg-insertion"])
    arm = robot_config(run, "left", RobotPlace(task={"type": "push_cube"}))
    assert (arm.task.type, arm.robot, arm.policy) == ("push_cube", run.robot, run.policy)
    with pytest.raises(UsageError, match=r"cluster\.robots\.left: unknown key 'robot\.prot'"):
        robot_config(run, "left", RobotPlace(robot={"prot": 1}))
