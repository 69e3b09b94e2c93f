"""Files and streams as cameras, read from the emulated network camera over real sockets."""

import io
import threading
import time
from fractions import Fraction

import av
import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from dovetail.core.errors import RobotError
from dovetail.emulators.camera.pictures import NUM_PICTURES, make_picture, picture_number
from dovetail.robots.cameras.video import VideoCamera, VideoConfig
from dovetail.testing import check_camera


def write_video(path, pictures, fps=25):
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=fps)
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt = "bgr0"
        for picture in pictures:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return path


@pytest.fixture
def file(tmp_path):
    return write_video(tmp_path / "video.mkv", [make_picture(n, width=160, height=120) for n in range(20)])


def wait_for_error(camera, within_s=6.0):
    end_s = time.monotonic() + within_s
    while time.monotonic() < end_s:
        try:
            camera.newest_ns()
        except RobotError as error:
            return str(error)
        time.sleep(0.01)
    raise AssertionError("the camera was not lost")


def test_stream_passes_the_conformance_suite(emulator, open_video):
    check_camera(lambda: open_video(emulator.url))


def test_stream_with_time_stamps_passes_the_conformance_suite(emulator, open_video):
    check_camera(lambda: open_video(emulator.stamped_url, timestamps="stream"))


def test_file_passes_the_conformance_suite(file, open_video):
    check_camera(lambda: open_video(file))


@pytest.mark.parametrize("timestamps", ["arrival", "stream"])
def test_capture_times_of_a_stream_match_the_camera(emulator, open_video, read, timestamps):
    url = emulator.stamped_url if timestamps == "stream" else emulator.url
    camera, errors_ms = open_video(url, timestamps=timestamps), []
    camera.start()
    shown_ns = 0
    while len(errors_ms) < 20:
        if camera.newest_ns() == shown_ns:
            time.sleep(0.002)
            continue
        images, shown_ns = read(camera)
        newest = (time.monotonic_ns() - emulator.capture_ns(0)) * emulator.config.fps // 10**9
        frame = newest - (newest - picture_number(images["front"])) % NUM_PICTURES
        errors_ms.append((shown_ns - emulator.capture_ns(frame)) / 1e6)
    assert -5 < np.median(errors_ms) < 40, errors_ms


def test_file_is_given_at_its_own_rate_and_starts_again(file, open_video, read):
    camera, numbers, shown_ns = open_video(file), [], 0
    began_s = time.monotonic()
    camera.start()
    while time.monotonic() - began_s < 1.2:
        if camera.newest_ns() != shown_ns:
            images, shown_ns = read(camera)
            numbers.append(picture_number(images["front"]))
        time.sleep(0.002)
    assert 20 <= len(numbers) <= 32, "25 frames per second"
    assert numbers[-1] < numbers[0] + 20 and 19 in numbers and numbers[numbers.index(19) + 1] == 0


def test_end_of_a_file_without_loop_is_a_lost_camera(file, open_video):
    camera = open_video(file, loop=False)
    camera.start()
    assert wait_for_error(camera) == f"camera 'front' is lost: {file} has ended"


@pytest.mark.parametrize("rotate", [0, 90, 180, 270])
@pytest.mark.parametrize("crop", [None, (40, 20, 80, 60)])
def test_image_is_cropped_then_rotated_then_resized(tmp_path, open_video, read, rotate, crop):
    picture = make_picture(37, width=160, height=120)
    x, y, width, height = crop or (0, 0, 160, 120)
    expected = np.rot90(picture[y : y + height, x : x + width], -rotate // 90)
    size = (expected.shape[1] // 2, expected.shape[0] // 2)
    expected = np.asarray(Image.fromarray(np.ascontiguousarray(expected)).resize(size, Image.Resampling.BILINEAR))
    video = write_video(tmp_path / "video.mkv", [picture] * 3)
    camera = open_video(video, size=size, rotate=rotate, crop=list(crop) if crop else None)
    camera.start()
    images, _ = read(camera)
    assert images["front"].shape == (size[1], size[0], 3)
    assert np.abs(images["front"].astype(int) - expected).mean() < 3.0


def test_image_of_the_same_size_is_the_picture_itself(tmp_path, open_video, read):
    picture = make_picture(5, width=160, height=120)
    camera = open_video(write_video(tmp_path / "video.mkv", [picture] * 3))
    camera.start()
    assert np.abs(read(camera)[0]["front"].astype(int) - picture).max() <= 1


def test_crop_outside_the_picture_is_one_line(file, open_video):
    camera = open_video(file, crop=[100, 0, 100, 100])
    with pytest.raises(
        RobotError, match=r"^camera 'front': crop \[100, 0, 100, 100\] is outside its picture of 160x120$"
    ):
        camera.start()


def test_frozen_camera_keeps_its_last_frame_with_its_time_and_then_is_lost(emulator, open_video):
    camera = open_video(emulator.url, timeout_s=1.0)
    camera.start()
    emulator.misbehave("freeze")
    time.sleep(0.2)
    frozen_ns = camera.newest_ns()
    time.sleep(0.3)
    assert camera.newest_ns() == frozen_ns, "no new frame, no error"
    assert "camera 'front' is lost" in wait_for_error(camera)


@pytest.mark.parametrize("fault", ["garbage", "half"])
def test_damaged_pictures_are_left_out_and_end_the_camera_if_none_is_good(emulator, open_video, read, fault):
    camera = open_video(emulator.url)
    camera.start()
    emulator.misbehave(fault, seconds=0.2)
    time.sleep(0.4)
    assert camera.statistics.num_bad_frames > 0
    first_ns = camera.newest_ns()
    time.sleep(0.1)
    assert camera.newest_ns() > first_ns, "it goes on with the next good picture"
    emulator.misbehave(fault)
    assert "frames in a row cannot be decoded" in wait_for_error(camera)


def test_picture_of_another_size_is_a_lost_camera(emulator, open_video):
    camera = open_video(emulator.url)
    camera.start()
    emulator.misbehave("size")
    assert "it gives pictures of 80x60 instead of 160x120" in wait_for_error(camera)


def test_disconnected_camera_is_lost_and_starts_again(emulator, open_video):
    camera = open_video(emulator.url)
    camera.start()
    emulator.misbehave("disconnect")
    assert "camera 'front' is lost" in wait_for_error(camera)
    with pytest.raises(RobotError, match="camera 'front'"):
        camera.start()
    emulator.misbehave("none")
    camera.start()
    assert time.monotonic_ns() - camera.newest_ns() < 1e9


@pytest.mark.parametrize(("amount_s", "expected_s"), [(30.0, 30.0), (-30.0, -0.8)])
def test_wrong_time_stamps_stay_visible(emulator, open_video, amount_s, expected_s):
    camera = open_video(emulator.stamped_url, timestamps="stream")
    camera.start()
    time.sleep(0.2)
    emulator.misbehave("lie", amount_s=amount_s)
    time.sleep(0.8)
    assert (camera.newest_ns() - time.monotonic_ns()) / 1e9 == pytest.approx(expected_s, abs=0.3)


def test_missing_server_and_file_are_one_line_without_the_password(open_video, tmp_path):
    with pytest.raises(RobotError) as error:
        open_video("http://user:secret@127.0.0.1:9/video.mjpg").start()
    assert str(error.value) == "camera 'front': cannot open http://127.0.0.1:9/video.mjpg: Connection refused"
    with pytest.raises(RobotError, match=r"cannot open .*none.mp4: No such file or directory"):
        open_video(tmp_path / "none.mp4").start()


@pytest.mark.parametrize("url", ["ftp://host/x", "http://", "pipe://0", "data://x,y"])
def test_other_protocols_are_refused(url):
    with pytest.raises(ValidationError, match="url should"):
        VideoConfig.from_mapping({"url": url})


@pytest.mark.parametrize("name", ["concat:{}", "subfile,,start,0,end,0,,:{}", "crypto:{}"])
def test_file_name_that_looks_like_a_protocol_is_a_file_name(file, name, open_video):
    with pytest.raises(RobotError, match="No such file"):
        open_video(name.format(file)).start()


def test_playlist_that_names_another_file_is_not_followed(file, tmp_path, open_video):
    playlist = tmp_path / "list.m3u8"
    playlist.write_text(f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{file}\n#EXT-X-ENDLIST\n")
    with pytest.raises(RobotError, match="cannot open"):
        open_video(playlist).start()


def test_closed_camera_leaves_no_thread(emulator, open_video):
    before = threading.active_count()
    for _ in range(3):
        camera = open_video(emulator.url)
        camera.start()
        camera.close()
    assert threading.active_count() <= before + 3  # the emulator ends its connections with the next frame
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("camera front")]


def test_constructor_opens_nothing():
    camera = VideoCamera(VideoConfig(url="http://127.0.0.1:9/video.mjpg"), name="front")
    assert camera.spec["front"].shape == (480, 640, 3)
    camera.close()


def jpeg(size):
    buffer = io.BytesIO()
    Image.new("L", size).save(buffer, "jpeg", quality=10)
    return buffer.getvalue()


def test_picture_that_decodes_to_gigabytes_is_refused_before_it_is_decoded(tmp_path, open_video):
    (tmp_path / "bomb.mjpeg").write_bytes(jpeg((12_000, 12_000)))
    with pytest.raises(RobotError, match="has pictures of 12000x12000, more than the 35389440 pixels"):
        open_video(tmp_path / "bomb.mjpeg").start()


def test_large_picture_between_small_ones_is_left_out(tmp_path, open_video):
    """The size of the first picture is no promise."""
    small = jpeg((160, 120))
    with av.open(str(tmp_path / "bomb.mkv"), "w") as container:
        stream = container.add_stream("mjpeg", rate=25)
        stream.width, stream.height, stream.pix_fmt = 160, 120, "yuvj420p"
        for number, picture in enumerate([*10 * [small], jpeg((12_000, 12_000)), *50 * [small]]):
            packet = av.Packet(picture)
            packet.stream, packet.pts, packet.dts, packet.time_base = stream, number, number, Fraction(1, 25)
            container.mux(packet)
    camera = open_video(tmp_path / "bomb.mkv")
    camera.start()
    end_s = time.monotonic() + 10.0
    while not camera.statistics.num_bad_frames and time.monotonic() < end_s:
        time.sleep(0.01)
    assert camera.statistics.num_bad_frames
    camera.newest_ns()  # not lost


@pytest.mark.parametrize("name", ["list.m3u8", "list.ffconcat", "stream.sdp"])
def test_file_that_names_other_files_or_addresses_is_not_followed(tmp_path, open_video, name):
    secret = write_video(tmp_path / "secret.mkv", [make_picture(0, width=160, height=120)])
    texts = {
        "list.m3u8": f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{secret}\n#EXT-X-ENDLIST\n",
        "list.ffconcat": f"ffconcat version 1.0\nfile {secret}\n",
        "stream.sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 9 RTP/AVP 26\n",
    }
    (tmp_path / name).write_text(texts[name])
    with pytest.raises(RobotError, match="cannot open"):
        open_video(tmp_path / name).start()
