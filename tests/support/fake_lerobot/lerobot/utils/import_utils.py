import importlib
import importlib.metadata


def register_third_party_plugins() -> None:
    for dist in importlib.metadata.distributions():
        name = dist.metadata.get("Name")
        if name and name.startswith(("lerobot_robot_", "lerobot_camera_", "lerobot_teleoperator_")):
            importlib.import_module(name)
