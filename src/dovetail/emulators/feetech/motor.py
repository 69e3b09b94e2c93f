"""One STS3215: its registers, and the reference of its servo, which moves to the goal with limited speed.

Register names and addresses are those of the maker's table. Positions count 4096 ticks per turn. Negative numbers are
written as a sign bit and a magnitude.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["OVERLOAD", "REGISTERS", "Motor", "from_sign_magnitude", "to_sign_magnitude"]

REGISTERS: Mapping[str, tuple[int, int]] = {  # name: address, number of bytes
    "Firmware_Major_Version": (0, 1),
    "Firmware_Minor_Version": (1, 1),
    "Model_Number": (3, 2),
    "ID": (5, 1),
    "Baud_Rate": (6, 1),
    "Return_Delay_Time": (7, 1),
    "Response_Status_Level": (8, 1),
    "Min_Position_Limit": (9, 2),
    "Max_Position_Limit": (11, 2),
    "Max_Temperature_Limit": (13, 1),
    "Max_Voltage_Limit": (14, 1),
    "Min_Voltage_Limit": (15, 1),
    "Max_Torque_Limit": (16, 2),
    "Phase": (18, 1),
    "Unloading_Condition": (19, 1),
    "P_Coefficient": (21, 1),
    "D_Coefficient": (22, 1),
    "I_Coefficient": (23, 1),
    "Protection_Current": (28, 2),
    "Homing_Offset": (31, 2),
    "Operating_Mode": (33, 1),
    "Overload_Torque": (36, 1),
    "Torque_Enable": (40, 1),
    "Acceleration": (41, 1),
    "Goal_Position": (42, 2),
    "Goal_Time": (44, 2),
    "Goal_Velocity": (46, 2),
    "Torque_Limit": (48, 2),
    "Lock": (55, 1),
    "Present_Position": (56, 2),
    "Present_Velocity": (58, 2),
    "Present_Load": (60, 2),
    "Present_Voltage": (62, 1),
    "Present_Temperature": (63, 1),
    "Status": (65, 1),
    "Moving": (66, 1),
    "Present_Current": (69, 2),
    "Maximum_Velocity_Limit": (84, 1),
    "Maximum_Acceleration": (85, 1),
}
_READ_ONLY = (*range(5), *range(56, 71))
_NUM_REGISTERS = 90
_NUM_EPROM = 40  # registers below keep their value without power, if `Lock` was 0 when they were written
_TURN = 4096
_MODEL = 777  # STS3215
_MAX_SPEED = 3000.0  # ticks per second: 44 turns per minute at 7.4 V
_MAX_ACCELERATION = 254 * 100.0  # ticks per second squared
_SET_MIDDLE = 128  # written to Torque_Enable: the present position becomes 2048
OVERLOAD = 0x20  # bit of the error byte
_DEFAULTS = {
    "Firmware_Major_Version": 3,
    "Firmware_Minor_Version": 10,
    "Model_Number": _MODEL,
    "Return_Delay_Time": 250,
    "Response_Status_Level": 1,
    "Max_Position_Limit": _TURN - 1,
    "Max_Temperature_Limit": 70,
    "Max_Voltage_Limit": 80,
    "Min_Voltage_Limit": 40,
    "Max_Torque_Limit": 1000,
    "Phase": 12,
    "P_Coefficient": 32,
    "D_Coefficient": 32,
    "Protection_Current": 500,
    "Overload_Torque": 80,
    "Torque_Limit": 1000,
    "Goal_Position": 2048,
    "Present_Voltage": 74,
    "Present_Temperature": 28,
    "Maximum_Acceleration": 254,
}


def to_sign_magnitude(value: int, sign_bit: int) -> int:
    return abs(value) | (1 << sign_bit if value < 0 else 0)


def from_sign_magnitude(raw: int, sign_bit: int) -> int:
    magnitude = raw & ((1 << sign_bit) - 1)
    return -magnitude if raw >> sign_bit & 1 else magnitude


class Motor:
    """A motor without its arm. `shaft` is the angle of the encoder in ticks, before the homing offset; with torque, the
    servo pulls the shaft to `reference`."""

    def __init__(self, id_: int, *, shaft: float = 2048.0) -> None:
        self.shaft = self.reference = shaft
        self.error = 0  # bits of the error byte in each answer
        self._speed = 0.0  # of the reference
        self._registers = bytearray(_NUM_REGISTERS)
        for name, value in _DEFAULTS.items():
            self.set(name, value)
        self.set("ID", id_)
        self._eprom = bytes(self._registers[:_NUM_EPROM])
        self._waiting: tuple[int, bytes] | None = None  # of a registered write

    @property
    def id(self) -> int:
        return self.get("ID")

    @property
    def has_torque(self) -> bool:
        return self.get("Torque_Enable") == 1

    @property
    def position(self) -> int:
        """As the register shows it: after the homing offset, within one turn."""
        return round(self.shaft - from_sign_magnitude(self.get("Homing_Offset"), 11)) % _TURN

    def get(self, name: str) -> int:
        address, size = REGISTERS[name]
        return int.from_bytes(self._registers[address : address + size], "little")

    def set(self, name: str, value: int) -> None:
        address, size = REGISTERS[name]
        self._registers[address : address + size] = value.to_bytes(size, "little")

    def read(self, address: int, size: int) -> bytes:
        return bytes(self._registers[address : address + size]).ljust(size, b"\0")

    def write(self, address: int, data: bytes) -> None:
        """Writes to unknown and read-only registers are ignored, as by the motor."""
        goal = self.get("Goal_Position")
        for at, value in enumerate(data, start=address):
            if at < _NUM_REGISTERS and at not in _READ_ONLY:
                self._registers[at] = value
        if address < _NUM_EPROM and not self.get("Lock"):
            self._eprom = bytes(self._registers[:_NUM_EPROM])
        if self.get("Torque_Enable") == _SET_MIDDLE:
            self.set("Homing_Offset", to_sign_magnitude(round(self.shaft) - 2048, 11))
            self.set("Torque_Enable", 0)
        if self.error & OVERLOAD:  # the protection stays until the torque is switched on without the cause
            self.set("Torque_Enable", 0)
            self.set("Goal_Position", goal)

    def register_write(self, address: int, data: bytes) -> None:
        self._waiting = address, data

    def run_registered(self) -> None:
        if self._waiting is not None:
            self.write(*self._waiting)
        self._waiting = None

    def power_cycle(self) -> None:
        """Lose what was written while `Lock` was set, and the torque."""
        self._registers[:_NUM_EPROM] = self._eprom
        for name in ("Torque_Enable", "Lock", "Goal_Velocity", "Acceleration"):
            self.set(name, 0)
        self.set("Goal_Position", self.position)

    def plan(self, duration_s: float) -> None:
        """Move the reference toward the goal. Without torque it stays at the shaft."""
        if self.error & OVERLOAD:
            self.set("Torque_Enable", 0)
        before = self.reference
        if not self.has_torque:
            self.reference = before = self.shaft
        elif self.get("Operating_Mode") == 0:
            self._approach(self._goal_shaft(), duration_s)
        self._speed = (self.reference - before) / duration_s

    def show(self, *, shaft: float, speed: float, load: float) -> None:
        """Update the registers. `speed` is in ticks per second, `load` is the part of the largest torque."""
        self.shaft = shaft
        self.set("Present_Position", self.position)
        self.set("Present_Velocity", to_sign_magnitude(max(-32767, min(32767, round(speed))), 15))
        self.set("Present_Load", to_sign_magnitude(max(-1000, min(1000, round(1000 * load))), 10))
        self.set("Present_Current", abs(round(250 * load)))
        self.set("Moving", int(abs(speed) > 5.0))
        self.set("Status", self.error)

    def _goal_shaft(self) -> float:
        goal = from_sign_magnitude(self.get("Goal_Position"), 15)
        low, high = self.get("Min_Position_Limit"), self.get("Max_Position_Limit")
        if high > low:
            goal = max(low, min(high, goal))
        # positions are within one turn, so the reference never crosses its end
        offset = from_sign_magnitude(self.get("Homing_Offset"), 11)
        return goal + offset + _TURN * (round(self.reference - offset) // _TURN)

    def _approach(self, goal: float, duration_s: float) -> None:
        limit = float(self.get("Goal_Velocity") & 0x7FFF) or _MAX_SPEED
        rate = 100.0 * self.get("Acceleration") or _MAX_ACCELERATION
        limit = min(limit, _MAX_SPEED, abs(self._speed) + rate * duration_s)
        step = limit * duration_s
        self.reference += max(-step, min(step, goal - self.reference))
