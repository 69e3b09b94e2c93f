from enum import Enum


class TeleopEvents(Enum):
    SUCCESS = "success"
    FAILURE = "failure"
    RERECORD_EPISODE = "rerecord_episode"
    IS_INTERVENTION = "is_intervention"
    TERMINATE_EPISODE = "terminate_episode"


def make_teleoperator_from_config(config):
    from .so_leader import SOLeader

    return SOLeader(config)
