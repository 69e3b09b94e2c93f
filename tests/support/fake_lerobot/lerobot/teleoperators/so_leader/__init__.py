from dataclasses import dataclass

from lerobot.arm_folder import JOINTS, ArmFolder

from ..config import TeleoperatorConfig
from ..utils import TeleopEvents


@TeleoperatorConfig.register_subclass("so101_leader")
@dataclass
class SOLeaderTeleopConfig(TeleoperatorConfig):
    port: str
    use_degrees: bool = True


class SOLeader:
    """As in 0.6: with torque and feedback."""

    config_class = SOLeaderTeleopConfig
    name = "so_leader"

    def __init__(self, config):
        self.config = config
        self.arm = ArmFolder(config.port)
        self._connected = False

    @property
    def action_features(self):
        return {f"{joint}.pos": float for joint in JOINTS}

    @property
    def feedback_features(self):
        return self.action_features

    @property
    def is_connected(self):
        return self._connected

    @property
    def is_calibrated(self):
        return self.arm.state()["calibrated"]

    def connect(self, calibrate=True):
        self.arm.note("connect", calibrate=calibrate)
        self._connected = True

    def enable_torque(self):
        self.arm.note("torque", on=True)

    def disable_torque(self):
        self.arm.note("torque", on=False)

    def get_action(self):
        word = self.arm.misbehave("read")
        values = {f"{joint}.pos": x for joint, x in self.arm.state()["positions"].items()}
        if word == "nan":
            values["elbow_flex.pos"] = float("nan")
        return values

    def send_feedback(self, feedback):
        self.arm.note("feedback", action=feedback)
        state = self.arm.state()
        state["positions"] |= {key.removesuffix(".pos"): value for key, value in feedback.items()}
        self.arm.save(state)

    def get_teleop_events(self):
        return {event: event is TeleopEvents.SUCCESS for event in TeleopEvents}

    def disconnect(self):
        self.arm.note("disconnect")
        self._connected = False
