from dataclasses import dataclass, field

from lerobot.arm_folder import JOINTS, ArmFolder
from lerobot.cameras.configs import CameraConfig
from lerobot.cameras.utils import make_cameras_from_configs

from ..config import RobotConfig


@RobotConfig.register_subclass("so101_follower")
@RobotConfig.register_subclass("so100_follower")
@dataclass
class SOFollowerRobotConfig(RobotConfig):
    port: str
    disable_torque_on_disconnect: bool = True
    max_relative_target: float | None = None
    cameras: dict[str, CameraConfig] = field(default_factory=dict)
    use_degrees: bool = True


class SOFollower:
    config_class = SOFollowerRobotConfig
    name = "so_follower"

    def __init__(self, config):
        self.config = config
        self.arm = ArmFolder(config.port)
        self.cameras = make_cameras_from_configs(config.cameras)
        self._connected = False

    @property
    def _motors_ft(self):
        return {f"{joint}.pos": float for joint in JOINTS}

    @property
    def observation_features(self):
        images = {name: (camera.height, camera.width, 3) for name, camera in self.cameras.items()}
        depth = {f"{n}_depth": (c.height, c.width, 1) for n, c in self.cameras.items() if c.use_depth}
        return {**self._motors_ft, **images, **depth}

    @property
    def action_features(self):
        return self._motors_ft

    @property
    def is_connected(self):
        return self._connected and all(camera.is_connected for camera in self.cameras.values())

    @property
    def is_calibrated(self):
        return self.arm.state()["calibrated"]

    def connect(self, calibrate=True):
        self.arm.misbehave("connect")
        self.arm.note("connect", calibrate=calibrate)
        if calibrate and not self.is_calibrated:
            input("Press ENTER to use provided calibration file: ")
        for camera in self.cameras.values():
            camera.connect()
        self.configure()
        self._connected = True

    def configure(self):
        self.arm.note("configure")

    def get_observation(self):
        assert self.is_connected
        word = self.arm.misbehave("observe")
        values = {f"{joint}.pos": x for joint, x in self.arm.state()["positions"].items()}
        if word == "nan":
            values["elbow_flex.pos"] = float("nan")
        elif word == "missing":
            del values["elbow_flex.pos"]
        elif word == "text":
            values["elbow_flex.pos"] = "broken"
        for name, camera in self.cameras.items():
            values[name] = camera.read_latest()
            if camera.use_depth:
                values[f"{name}_depth"] = camera.read_latest_depth()
        return values

    def send_action(self, action):
        assert self.is_connected
        self.arm.note("begin_send", action=action)
        word = self.arm.misbehave("send")
        state = self.arm.state()
        state["positions"] |= {key.removesuffix(".pos"): value for key, value in action.items()}
        self.arm.save(state)
        self.arm.note("send", action=action)
        if word == "nan":
            return {key: float("nan") for key in action}
        return {} if word == "missing" else dict(action)

    def disconnect(self):
        self.arm.note("disconnect", torque_off=self.config.disable_torque_on_disconnect)
        for camera in self.cameras.values():
            camera.disconnect()
        self._connected = False
