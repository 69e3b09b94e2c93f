"""A third-party plugin: found by the name of its distribution."""

from dataclasses import dataclass

from lerobot.robots.config import RobotConfig


@RobotConfig.register_subclass("turntable")
@dataclass
class TurntableConfig(RobotConfig):
    angle_deg: float = 0.0


class Turntable:
    """Turns at a commanded speed."""

    config_class = TurntableConfig
    name = "turntable"

    def __init__(self, config):
        self.angle, self.speed, self.is_connected = config.angle_deg, 0.0, False
        self.is_calibrated = True

        self.observation_features = {"angle.pos": float, "speed": float}
        self.action_features = {"turn.vel": float}

    def connect(self, calibrate=True):
        self.is_connected = True

    def get_observation(self):
        self.angle += self.speed * 0.02
        return {"angle.pos": self.angle, "speed": self.speed}

    def send_action(self, action):
        self.speed = action["turn.vel"]
        return dict(action)

    def disconnect(self):
        self.is_connected = False
