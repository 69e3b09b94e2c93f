"""ROS image topics as cameras, over real DDS on loopback."""

import io
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from dovetail.core.errors import RobotError
from dovetail.robots.cameras import ros_image
from dovetail.robots.cameras.ros_image import RosImageCamera, RosImageConfig
from dovetail.robots.drivers.ros2.dds import DdsNode
from dovetail.robots.drivers.ros2.messages import Codec
from dovetail.robots.drivers.ros2.settings import QosConfig
from dovetail.testing import check_camera
from support.ros2_robots import free_domain, loopback

RAW, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
TOPIC = "/camera/image"
AHEAD_NS = 3_000_000_000  # of the camera's clock


class ImagePublisher:
    """A ROS camera at 50 fps. `make(number)` fills a message."""

    def __init__(self, domain_id: int, type_name: str, make) -> None:
        self._codec, self._type, self.make = Codec(), type_name, make
        self._node = DdsNode(loopback(domain_id), self._codec)
        self._sends = self._node.publish(TOPIC, type_name, QosConfig(depth=2))
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(0.02):
            number += 1
            message = self._codec.blank(self._type)
            message.header.stamp.sec, message.header.stamp.nanosec = divmod(
                time.monotonic_ns() + AHEAD_NS, 1_000_000_000
            )
            self.make(message, number)
            self._sends.write(self._codec.encode(message, self._type))

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._node.close()


@pytest.fixture
def publish():
    """Returns (publisher, camera), which are closed at the end."""
    things = []

    def make(type_name, fill, **settings):
        domain_id = free_domain()
        publisher = ImagePublisher(domain_id, type_name, fill)
        things.append(publisher)
        dds = {"domain_id": domain_id, "interface": "lo", "peers": ["127.0.0.1"], "multicast": False}
        given = {"topic": TOPIC, "dds": dds, "size": [8, 6], "timeout_s": 2.0, **settings}
        camera = RosImageCamera(RosImageConfig.from_mapping(given), name="front")
        things.append(camera)
        return publisher, camera

    yield make
    for thing in reversed(things):
        thing.close()


def scene(number: int = 0) -> np.ndarray:
    """[6, 8, 3], different in each pixel and channel."""
    return ((np.arange(6 * 8 * 3) + number) % 251).astype(np.uint8).reshape(6, 8, 3)


def raw(encoding: str, pixels, *, padding: int = 0, big: bool = False):
    def fill(message, number: int) -> None:
        picture = pixels(number)
        rows = picture.reshape(6, -1).view(np.uint8)
        rows = np.pad(rows, ((0, 0), (0, padding)))
        message.height, message.width, message.encoding = 6, 8, encoding
        message.step, message.is_bigendian = rows.shape[1], int(big)
        message.data = np.ascontiguousarray(rows).reshape(-1)

    return fill


def depth_scene(number: int = 0) -> np.ndarray:
    return (np.arange(48, dtype=np.uint16) * 1000 + number % 5).reshape(6, 8)


def still(picture: np.ndarray):
    return lambda number: picture


@pytest.mark.parametrize("kind", ["raw", "jpeg", "depth"])
def test_camera_passes_the_conformance_suite(publish, kind):
    def jpeg(message, number):
        file = io.BytesIO()
        Image.fromarray(scene(7 * number)).save(file, "JPEG")
        message.format, message.data = "jpeg", np.frombuffer(file.getvalue(), np.uint8)

    if kind == "jpeg":
        _, camera = publish(COMPRESSED, jpeg, compressed=True)
    elif kind == "depth":
        _, camera = publish(RAW, raw("16UC1", depth_scene), depth=True)
    else:
        _, camera = publish(RAW, raw("rgb8", scene))
    check_camera(lambda: camera)


@pytest.mark.parametrize(
    ("fill", "expected"),
    [
        (raw("rgb8", still(scene())), scene()),
        (raw("rgb8", still(scene()), padding=5), scene()),
        (raw("bgr8", still(scene()[:, :, ::-1].copy())), scene()),
        (raw("mono8", still(scene()[:, :, 0].copy())), np.repeat(scene()[:, :, :1], 3, axis=2)),
    ],
)
def test_raw_encodings_become_rgb(publish, read, fill, expected):
    _, camera = publish(RAW, fill)
    camera.start()
    image = read(camera)[0]["front"]
    assert np.abs(image.astype(int) - expected).max() <= 2  # gray values are scaled by FFmpeg


@pytest.mark.parametrize("big", [False, True])
def test_depth_keeps_its_16_bits(publish, read, big):
    pixels = depth_scene().astype(">u2" if big else "<u2")
    _, camera = publish(RAW, raw("16UC1", still(pixels), big=big), depth=True)
    camera.start()
    assert np.array_equal(read(camera)[0]["front_depth"][:, :, 0], depth_scene())


def test_a_png_is_decoded_without_loss(publish, read):
    def png(message, number):
        file = io.BytesIO()
        Image.fromarray(scene()).save(file, "PNG")
        message.format, message.data = "png", np.frombuffer(file.getvalue(), np.uint8)

    _, camera = publish(COMPRESSED, png, compressed=True)
    camera.start()
    assert np.array_equal(read(camera)[0]["front"], scene())


def test_a_png_with_16_bits_is_a_depth_image(publish, read):
    def png(message, number):
        file = io.BytesIO()
        Image.fromarray(depth_scene()).save(file, "PNG")
        message.format, message.data = "png", np.frombuffer(file.getvalue(), np.uint8)

    _, camera = publish(COMPRESSED, png, compressed=True, depth=True)
    camera.start()
    assert np.array_equal(read(camera)[0]["front_depth"][:, :, 0], depth_scene())


def test_crop_and_rotation_apply(publish, read):
    _, camera = publish(RAW, raw("rgb8", still(scene())), crop=[2, 1, 4, 2], rotate=180, size=[4, 2])
    camera.start()
    assert np.array_equal(read(camera)[0]["front"], scene()[1:3, 2:6][::-1, ::-1])


def test_capture_times_are_those_of_the_header_by_our_clock(publish):
    _, camera = publish(RAW, raw("rgb8", scene))
    camera.start()
    time.sleep(0.3)
    assert 0 <= time.monotonic_ns() - camera.newest_ns() < 0.2e9


def lost(camera) -> str:
    until_s = time.monotonic() + 6.0
    while time.monotonic() < until_s:
        try:
            camera.newest_ns()
        except RobotError as error:
            return str(error)
        time.sleep(0.02)
    raise AssertionError("the camera was not lost")


def half(message, number):
    raw("rgb8", scene)(message, number)
    message.data = message.data[:-7]


def other_encoding(message, number):
    raw("rgb8", scene)(message, number)
    message.encoding = "bayer_rggb8"


def garbage(message, number):
    message.format, message.data = "jpeg", np.frombuffer(b"\xff\xd8 no picture", np.uint8)


@pytest.mark.parametrize(
    ("type_name", "bad", "message"),
    [
        (RAW, half, "camera 'front' is lost: its picture of 8x6 has 137 bytes"),
        (RAW, other_encoding, "its encoding is 'bayer_rggb8' instead of rgb8"),
    ],
)
def test_a_wrong_picture_is_a_lost_camera_with_its_name(publish, type_name, bad, message):
    publisher, camera = publish(type_name, raw("rgb8", scene))
    camera.start()
    publisher.make = bad
    assert message in lost(camera)


def test_many_broken_frames_are_a_lost_camera_and_a_few_are_not(publish):
    good = io.BytesIO()
    Image.fromarray(scene()).save(good, "JPEG")
    broken = iter([True] * 5)

    def fill(message, number):
        message.format = "jpeg"
        message.data = np.frombuffer(good.getvalue(), np.uint8)
        if next(broken, False):
            garbage(message, number)

    publisher, camera = publish(COMPRESSED, fill, compressed=True)
    camera.start()
    time.sleep(0.3)
    camera.newest_ns()
    publisher.make = garbage
    assert "30 frames in a row cannot be decoded" in lost(camera)


def test_a_publisher_that_has_gone_is_a_lost_camera(publish):
    publisher, camera = publish(RAW, raw("rgb8", scene))
    camera.start()
    publisher.close()
    assert f"the publisher of {TOPIC} has gone" in lost(camera)


def test_a_topic_without_publisher_is_an_error_at_the_start():
    dds = {"domain_id": free_domain(), "interface": "lo", "peers": ["127.0.0.1"], "multicast": False}
    config = RosImageConfig.from_mapping({"topic": TOPIC, "dds": dds, "timeout_s": 0.2})
    with pytest.raises(RobotError, match="camera 'front': no frame within"):
        RosImageCamera(config, name="front").start()


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_picture_that_decodes_to_gigabytes_is_refused_before_it_is_decoded(kind):
    buffer = io.BytesIO()
    Image.new("L", (12_000, 12_000)).save(buffer, kind)
    assert len(buffer.getvalue()) < 3_000_000
    data = np.frombuffer(buffer.getvalue(), np.uint8)
    config = RosImageConfig.from_mapping({"topic": "/x", "size": [8, 6], "compressed": True})
    with pytest.raises(ros_image._BadFrame):
        ros_image._Images(config).image(SimpleNamespace(format=kind, data=data))
