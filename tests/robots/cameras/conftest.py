import numpy as np
import pytest

from dovetail.emulators.camera.server import CameraEmulator, CameraEmulatorConfig
from dovetail.robots.cameras.video import VideoCamera, VideoConfig


@pytest.fixture
def emulator():
    with CameraEmulator(CameraEmulatorConfig(size=(160, 120), fps=50.0)) as camera:
        yield camera


@pytest.fixture
def open_video():
    """Make video cameras that are closed at the end."""
    cameras = []

    def make(url, *, name="front", size=(160, 120), **settings):
        config = VideoConfig.from_mapping({"url": str(url), "size": list(size), "timeout_s": 2.0, **settings})
        cameras.append(VideoCamera(config, name=name))
        return cameras[-1]

    yield make
    for camera in cameras:
        camera.close()


@pytest.fixture
def read():
    def read_image(camera):
        buffers = {key: np.zeros(image.shape, image.dtype) for key, image in camera.spec.items()}
        time_ns = camera.read(buffers)
        return buffers, time_ns

    return read_image
