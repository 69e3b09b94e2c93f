"""Ray's private modules are as `runtime/ray/patches.py` expects them. A failure means: check that file for the new Ray."""

import inspect
import pathlib

import pytest
import ray
from ray import _raylet
from ray._private import ray_constants, services, state, worker
from ray.actor import ActorHandle

from dovetail.runtime.ray import patches


def test_ray_has_the_version_that_the_patches_were_written_for():
    assert ray.__version__.startswith(f"{patches.RAY_VERSION}.")


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (worker.print_to_stdstream, ["data", "ignore_prefix"]),
        (services.find_node_ids, []),
        (state.actors, ["actor_id", "job_id", "actor_state_name"]),
        (_raylet.Config.initialize, ["config_list"]),
        (_raylet.AuthenticationTokenLoader.instance, []),
        (_raylet.AuthenticationTokenLoader.reset_cache, ["self"]),
    ],
)
def test_private_function_has_the_expected_parameters(function, parameters):
    assert list(inspect.signature(function).parameters) == parameters


def test_private_attributes_exist():
    assert isinstance(ray_constants.ENABLE_RAY_CLUSTER, bool)
    assert hasattr(_raylet, "GcsClient")
    assert hasattr(_raylet.InnerGcsClient, "get_all_node_info")  # GcsClient delegates to it
    assert "_actor_id" in inspect.getsource(ActorHandle)


def test_ray_adds_the_current_folder_to_the_search_path_only_of_jobs_without_a_working_folder():
    source = inspect.getsource(worker.connect)
    assert source.count("job_config._runtime_env_has_working_dir()") == 2
    assert source.count("code_paths.append(") == 2
    job = patches.job_config()
    assert job._runtime_env_has_working_dir()
    assert str(pathlib.Path.cwd()) not in job._py_driver_sys_path


def test_private_modules_of_ray_are_used_in_one_file_only(pytestconfig):
    source = pytestconfig.rootpath / "src" / "dovetail"
    users = [
        path.name
        for path in source.rglob("*.py")
        if any(word in path.read_text() for word in ("ray._private", "_raylet", "ray.core"))
    ]
    assert users == ["patches.py"]


def test_driver_prints_again_after_the_patch():
    original = worker.print_to_stdstream
    with patches.silent_driver():
        assert worker.print_to_stdstream is not original
    assert worker.print_to_stdstream is original
