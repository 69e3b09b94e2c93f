// What the person at the page moves: keys, sticks, jog buttons and a gamepad, as one value from -1 to 1 for each axis of a drive command.
// Keys, sticks and gamepads move a Cartesian part or a base. A part with other axes, such as joints, has a pair of jog buttons for each
// axis; W and S, or the gamepad's left stick, move the chosen one.

const FINE = 0.25, DEAD_ZONE = 0.12;
export const KEYS = {
  KeyW: ["dx", 1], KeyS: ["dx", -1], KeyA: ["dy", 1], KeyD: ["dy", -1], KeyE: ["dz", 1], KeyQ: ["dz", -1],
  ArrowLeft: ["drz", 1], ArrowRight: ["drz", -1], ArrowUp: ["dry", 1], ArrowDown: ["dry", -1], Comma: ["drx", -1], Period: ["drx", 1],
};

export const input = { down: new Set(), sticks: {}, jogs: {}, fine: false, grip: 0, speed: 1, part: 0, joint: 0 };

export const movable = (drive) => (drive?.parts || []).filter((part) => part.kind !== "gripper");
export const chosenPart = (drive) => movable(drive)[input.part] || movable(drive)[0];
export const hasGripper = (drive) => (drive?.parts || []).some((part) => part.kind === "gripper");

export const gamepad = () => [...(navigator.getGamepads?.() || [])].find((one) => one?.connected);
export function gamepadAxes() {
  const found = gamepad();
  if (!found) return {};
  const axis = (i) => { const v = found.axes[i] || 0; return Math.abs(v) < DEAD_ZONE ? 0 : (v - Math.sign(v) * DEAD_ZONE) / (1 - DEAD_ZONE); };
  return { dx: -axis(1), dy: -axis(0), dz: -axis(3), drz: -axis(2) };
}

function cartesian(part) {
  const by = {};
  for (const code of input.down) if (KEYS[code]) by[KEYS[code][0]] = (by[KEYS[code][0]] || 0) + KEYS[code][1];
  for (const moved of [...Object.values(input.sticks), gamepadAxes()]) for (const [axis, value] of Object.entries(moved)) by[axis] = (by[axis] || 0) + value;
  return part.axes.map((axis) => by[axis] || 0);
}

function joints(part) {
  const key = input.down.has("KeyW") - input.down.has("KeyS") + (gamepadAxes().dx || 0);
  return part.axes.map((_, i) => (input.jogs[i] || 0) + (i === input.joint ? key : 0));
}

// The gripper of the chosen part; with one gripper, that one.
function gripperOf(drive, part) {
  const grippers = drive.parts.filter((one) => one.kind === "gripper");
  return grippers.find((one) => one.name === part.gripper) || (part.gripper === "" ? undefined : grippers[0]);
}

// Choose another part or joint; `step` is 1 or -1.
export function choosePart(drive, step) {
  const parts = movable(drive);
  input.part = (input.part + step + parts.length) % Math.max(parts.length, 1);
  input.joint = input.grip = 0; // the gripper of the other part keeps its state
}

export function chooseJoint(drive, step) {
  const count = chosenPart(drive)?.axes.length || 1;
  input.joint = (input.joint + step + count) % count;
}

// The axes in the order of the robot's action.
export function axes(drive) {
  const part = chosenPart(drive);
  if (!part) return [];
  const values = new Array(drive.num_axes).fill(0);
  const speed = input.speed * (input.fine ? FINE : 1), moved = part.is_cartesian ? cartesian(part) : joints(part);
  moved.forEach((value, i) => { values[part.first + i] = speed * Math.max(-1, Math.min(1, value)); });
  const gripper = gripperOf(drive, part);
  gripper?.axes.forEach((_, i) => { values[gripper.first + i] = input.grip; });
  return values;
}

export function release() {
  input.down.clear();
  input.fine = false;
  input.sticks = {};
  input.jogs = {};
}
