"""The emulated Feetech bus, spoken to byte by byte over its pseudo-terminal."""

import json
import os
import select
import termios
import time
import tty

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.emulators.emulator import Emulator, EmulatorProcess
from dovetail.emulators.feetech.emulator import JOINTS, FeetechEmulator, FeetechEmulatorConfig
from dovetail.emulators.feetech.motor import REGISTERS, from_sign_magnitude, to_sign_magnitude
from dovetail.emulators.feetech.packets import (
    ACTION,
    BROADCAST,
    PING,
    READ,
    REG_WRITE,
    SYNC_READ,
    SYNC_WRITE,
    WRITE,
    Instruction,
    PacketReader,
    checksum,
    instruction,
    status,
)


class Client:
    """The other end of the serial line."""

    def __init__(self, port: str) -> None:
        self.file = os.open(port, os.O_RDWR | os.O_NOCTTY)
        tty.setraw(self.file)
        attributes = termios.tcgetattr(self.file)
        attributes[4] = attributes[5] = termios.B1000000
        termios.tcsetattr(self.file, termios.TCSANOW, attributes)

    def ask(self, packet: bytes, *, wait_s: float = 0.3) -> bytes:
        """Everything that comes until the line is silent."""
        os.write(self.file, packet)
        data, until_s = b"", time.monotonic() + 3.0
        while time.monotonic() < until_s:
            readable, _, _ = select.select([self.file], [], [], wait_s if not data else 0.1)
            if not readable:
                break
            data += os.read(self.file, 4096)
        return data

    def read(self, id_: int, name: str) -> int:
        address, size = REGISTERS[name]
        answer = self.ask(instruction(id_, READ, bytes((address, size))))
        assert answer[:3] == bytes((0xFF, 0xFF, id_)) and answer[-1] == checksum(answer[2:-1]), answer
        return int.from_bytes(answer[5 : 5 + size], "little")

    def write(self, id_: int, name: str, value: int, code: int = WRITE) -> bytes:
        address, size = REGISTERS[name]
        return self.ask(instruction(id_, code, bytes((address,)) + value.to_bytes(size, "little")))


@pytest.fixture
def bus():
    with FeetechEmulator(FeetechEmulatorConfig()) as emulator:
        yield emulator


@pytest.fixture
def line(bus):
    client = Client(bus.port)
    yield client
    os.close(client.file)


def test_a_ping_by_hand():
    """FF FF 01 02 01 FB is in the maker's manual: ping motor 1."""
    assert instruction(1, PING) == bytes.fromhex("ffff010201fb")
    assert status(1, 0) == bytes.fromhex("ffff010200fc")


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 253), st.sampled_from([1, 2, 3, 0x82, 0x83]), st.binary(max_size=20)), max_size=5
    ),
    st.binary(max_size=10).filter(lambda data: b"\xff" not in data),
    st.integers(1, 50),
)
def test_packets_are_found_in_pieces_and_after_garbage(packets, garbage, piece):
    stream = garbage + b"".join(instruction(*packet) for packet in packets)
    reader, found = PacketReader(), []
    for at in range(0, len(stream), piece):
        found += reader.feed(stream[at : at + piece])
    assert found == [Instruction(id=i, code=code, parameters=data) for i, code, data in packets]


@given(st.integers(-2047, 2047))
def test_sign_and_magnitude(value):
    assert from_sign_magnitude(to_sign_magnitude(value, 11), 11) == value


def test_a_packet_with_a_wrong_checksum_is_ignored(line):
    good = instruction(1, PING)
    assert line.ask(good[:-1] + bytes((good[-1] ^ 1,))) == b""
    assert line.ask(good) == status(1, 0)


def test_model_number_and_broadcast_ping(bus, line):
    assert isinstance(bus, Emulator)
    assert line.read(3, "Model_Number") == 777
    assert line.ask(instruction(BROADCAST, PING)) == b"".join(status(i, 0) for i in range(1, 7))
    assert line.ask(instruction(9, PING)) == b""


def test_a_motor_moves_to_its_goal_with_limited_speed_and_stops_at_its_limits(bus, line):
    start = line.read(1, "Present_Position")
    line.write(1, "Goal_Velocity", 400)
    line.write(1, "Goal_Position", start + 200)
    line.write(1, "Torque_Enable", 1)
    began_s = time.monotonic()
    while (position := line.read(1, "Present_Position")) != start + 200:
        passed_s = time.monotonic() - began_s
        assert abs(position - start) <= 400 * (passed_s + 0.1) and passed_s < 10.0
    assert time.monotonic() - began_s > 0.4
    line.write(1, "Goal_Velocity", 0)
    line.write(1, "Goal_Position", 4000)
    time.sleep(1.5)
    assert line.read(1, "Present_Position") == line.read(1, "Max_Position_Limit") == 3338


def test_sync_write_and_sync_read(bus, line):
    goals = {1: 2100, 5: 2200}
    body = b"".join(bytes((i,)) + goal.to_bytes(2, "little") for i, goal in goals.items())
    assert line.ask(instruction(BROADCAST, SYNC_WRITE, bytes((42, 2)) + body)) == b""
    assert bus.motor(1).get("Goal_Position") == 2100 and bus.motor(5).get("Goal_Position") == 2200
    answer = line.ask(instruction(BROADCAST, SYNC_READ, bytes((42, 2, 5, 1))))
    assert answer == status(5, 0, (2200).to_bytes(2, "little")) + status(1, 0, (2100).to_bytes(2, "little"))


def test_a_registered_write_waits_for_the_action(bus, line):
    assert line.write(4, "Goal_Position", 2345, REG_WRITE) == status(4, 0)
    assert bus.motor(4).get("Goal_Position") != 2345
    line.ask(instruction(BROADCAST, ACTION))
    assert bus.motor(4).get("Goal_Position") == 2345


def test_positions_include_the_homing_offset(bus, line):
    before = line.read(5, "Present_Position")
    offset = from_sign_magnitude(line.read(5, "Homing_Offset"), 11)
    line.write(5, "Homing_Offset", to_sign_magnitude(offset - 100, 11))
    assert line.read(5, "Present_Position") == before + 100


def test_128_in_torque_enable_makes_the_present_position_the_middle(bus, line):
    bus.turn(5, 1234.0)
    line.write(5, "Torque_Enable", 128)
    assert line.read(5, "Present_Position") == 2048 and line.read(5, "Torque_Enable") == 0


def test_locked_settings_are_lost_without_power(bus, line):
    line.write(1, "Lock", 1)
    line.write(1, "P_Coefficient", 16)
    assert line.read(1, "P_Coefficient") == 16
    bus.motor(1).power_cycle()
    assert line.read(1, "P_Coefficient") == 32


def test_read_only_registers_keep_their_value(line):
    line.write(1, "Model_Number", 5)
    line.write(1, "Present_Position", 5)
    assert line.read(1, "Model_Number") == 777 and line.read(1, "Present_Position") != 5


def test_another_baud_rate_is_not_heard(line):
    attributes = termios.tcgetattr(line.file)
    attributes[4] = attributes[5] = termios.B115200
    termios.tcsetattr(line.file, termios.TCSANOW, attributes)
    assert line.ask(instruction(1, PING)) == b""


def test_faults_on_request(bus, line):
    bus.misbehave(lose=1.0)
    assert line.ask(instruction(1, PING)) == b""
    bus.misbehave(corrupt=1.0)
    assert line.ask(instruction(1, PING)) == status(1, 0)[:-1] + bytes((status(1, 0)[-1] ^ 0x55,))
    bus.misbehave(shorten=1.0)
    answer = line.ask(instruction(1, READ, bytes((56, 2))))
    assert len(answer) == 7 and answer[3] == 3 and answer[-1] == checksum(answer[2:-1])
    bus.misbehave(dead=(2,))
    assert line.ask(instruction(2, PING)) == b"" and line.ask(instruction(1, PING)) == status(1, 0)
    bus.misbehave(overload=(1,))
    line.write(1, "Torque_Enable", 1)
    assert line.ask(instruction(1, PING)) == status(1, 0x20) and not bus.motor(1).has_torque
    bus.misbehave(delay_s=0.2)
    began_s = time.monotonic()
    assert line.ask(instruction(1, PING), wait_s=1.0) == status(1, 0) and time.monotonic() - began_s > 0.2
    bus.misbehave()
    assert line.ask(instruction(1, PING)) == status(1, 0)


def test_a_leader_is_moved_by_its_script():
    config = FeetechEmulatorConfig(mode="leader", script="wave", script_period_s=1.0, script_amplitude=250)
    with FeetechEmulator(config) as bus:
        seen = []
        for _ in range(20):
            seen.append(bus.motor(1).position)
            time.sleep(0.03)
        assert max(seen) - min(seen) > 100


def test_the_command_writes_link_and_calibration(tmp_path):
    link, file = tmp_path / "follower", tmp_path / "arm.json"
    with EmulatorProcess("feetech", f"link={link}", f"calibration_file={file}") as emulator:
        assert emulator.lines[0] == str(link)
        client = Client(str(link))
        assert client.ask(instruction(6, PING), wait_s=5.0) == status(6, 0)
        os.close(client.file)
        assert list(json.loads(file.read_text())) == list(JOINTS)
