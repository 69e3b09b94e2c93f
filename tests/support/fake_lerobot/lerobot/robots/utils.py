import importlib


def make_robot_from_config(config):
    if config.type in ("so100_follower", "so101_follower"):
        from .so_follower import SOFollower

        return SOFollower(config)
    module = importlib.import_module(type(config).__module__)
    return getattr(module, type(config).__name__.removesuffix("Config"))(config)
