def make_cameras_from_configs(camera_configs):
    from .mini import MiniCamera

    return {name: MiniCamera(config) for name, config in camera_configs.items()}
