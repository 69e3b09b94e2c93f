// Driving. A message is sent at each change and 40 times per second while the dead-man key is held. Only the newest counts;
// none is queued. When this page loses the focus, the tab or the network, it reports that, and the arm holds. Each message
// has the time at which it was sent: one that was delayed does not drive. After this page was blocked, the keys that it knows
// may be old, so the arm holds until the dead-man key is pressed again.
import { banner, typing } from "./console.js";
import { start } from "./robot.js";

const $ = (id) => document.getElementById(id);
const PERIOD_MS = 25, FINE = 0.25, DEAD_ZONE = 0.12, LATE_MS = 400, BLOCKED_MS = 250, SHOWN_MS = 1000, SILENT_MS = 1000;
const KEYS = {
  KeyW: ["dx", 1], KeyS: ["dx", -1], KeyA: ["dy", 1], KeyD: ["dy", -1], KeyE: ["dz", 1], KeyQ: ["dz", -1],
  ArrowLeft: ["drz", 1], ArrowRight: ["drz", -1], ArrowUp: ["dry", 1], ArrowDown: ["dry", -1], Comma: ["drx", -1], Period: ["drx", 1],
};
const PAD_EVENTS = { 3: "success", 1: "failure", 2: "discard" };

const down = new Set(), sticks = {};
let socket = null, n = 0, acked = 0, lastTick = 0, held = false, source = "", grip = 0, fine = false, mustRelease = false, state = null, since = 0, lastSent = 0, padHeld = false, padButtons = {};

// ---- the connection to the arm
function connect() {
  socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws/drive`);
  n = acked = 0;
  socket.onopen = () => send({ held: false }); // the console learns the offset of this page's clock, and we the delay
  socket.onmessage = (message) => {
    const reply = JSON.parse(message.data);
    acked = reply.n;
    document.body.dataset.drives = "1";
    if (reply.refused && held) { banner(reply.refused); release(true); }
  };
  socket.onclose = (event) => {
    if (held) banner("the connection was lost: the arm holds");
    if (event.code === 1008) banner(`refused: ${event.reason}`);
    reset();
    setTimeout(connect, 500);
  };
}

function send(message) {
  if (socket?.readyState !== WebSocket.OPEN) return false;
  socket.send(JSON.stringify({ n: ++n, t: performance.now(), ...message }));
  lastSent = performance.now();
  return true;
}

// ---- the axes, -1 to 1, in the order of the robot's action
function axes() {
  const speed = (+$("dt-speed").value / 100) * (fine ? FINE : 1), by = {};
  for (const code of down) if (KEYS[code]) by[KEYS[code][0]] = (by[KEYS[code][0]] || 0) + KEYS[code][1];
  for (const moved of [...Object.values(sticks), gamepadAxes()]) for (const [axis, value] of Object.entries(moved)) by[axis] = (by[axis] || 0) + value;
  return (state?.axes || []).map((axis) => axis.includes("gripper") ? grip : speed * Math.max(-1, Math.min(1, by[axis] || 0)));
}

function gamepadAxes() {
  const found = [...(navigator.getGamepads?.() || [])].find((one) => one?.connected);
  if (!found) return {};
  const axis = (i) => { const v = found.axes[i] || 0; return Math.abs(v) < DEAD_ZONE ? 0 : (v - Math.sign(v) * DEAD_ZONE) / (1 - DEAD_ZONE); };
  return { dx: -axis(1), dy: -axis(0), dz: -axis(3), drz: -axis(2) };
}

function pollGamepad() {
  const found = [...(navigator.getGamepads?.() || [])].find((one) => one?.connected);
  const pressed = (i) => Boolean(found?.buttons[i]?.pressed);
  const now = [4, 5, 6, 7].some(pressed);
  if (now !== padHeld) { padHeld = now; now ? startDriving("gamepad") : stopDriving("gamepad"); }
  // a wireless pad that is out of range looks like a stick that is held still, but a hand trembles
  const silent = found && performance.now() - found.timestamp > SILENT_MS && Object.values(gamepadAxes()).some(Boolean);
  if (held && source === "gamepad" && silent) hold("the gamepad is silent");
  for (const [i, event] of Object.entries(PAD_EVENTS)) if (edge(i, pressed(i))) document.querySelector(`[data-event="${event}"]`)?.click();
  if (edge("grip", pressed(0))) toggleGripper();
  if (found) requestAnimationFrame(pollGamepad);
}

function edge(name, now) {
  const before = padButtons[name];
  padButtons[name] = now;
  return now && !before;
}

// ---- the dead-man switch
function startDriving(by, event) {
  if (held || mustRelease || !state) return;
  if (event && performance.now() - event.timeStamp > BLOCKED_MS) { banner("this page was blocked: press again"); return; }
  if (acked === 0) { banner("not connected to the arm yet"); return; }
  if (!(state.axes || []).some((axis) => axis === "dx")) { banner("this robot has no Cartesian axes: it cannot be driven from this page"); return; }
  if (!state.may_drive) { banner("this is an evaluation: takeover is disabled"); return; }
  held = true; source = by; grip = 0; since = lastTick = performance.now(); lastSent = 0;
  tick();
  show();
}

function stopDriving(by) {
  if (by === source) release(false);
  if (!down.has("Space")) mustRelease = false;
}

function release(wait) {
  if (!held) return;
  send({ held: false, axes: axes() });
  mustRelease = wait;
  reset();
}

function hold(why) {
  const wasDriving = held;
  down.clear(); fine = false;
  for (const id of Object.keys(sticks)) center($(id));
  if (!wasDriving) return;
  send({ held: true, lost: true, axes: [] });
  banner(`${why}: the arm holds`);
  reset();
}

function reset() { held = false; source = ""; show(); }

function tick() {
  if (!held) return;
  const pausedMs = performance.now() - lastTick;
  lastTick = performance.now();
  if (pausedMs > BLOCKED_MS) { hold("this page was blocked"); return; }
  if (socket.bufferedAmount === 0 && n - acked < 20) send({ held: true, axes: axes() });
  else if (performance.now() - lastSent > LATE_MS) { hold("the connection is too slow"); socket.close(); }
}

setInterval(() => { tick(); if (held) showTime(); }, PERIOD_MS);

// ---- display
function show() {
  $("dt-drive").classList.toggle("dt-driving", held);
  $("dt-hold").classList.toggle("dt-held", held);
  $("dt-hold").querySelector("b").textContent = held ? "You drive" : "Hold to drive";
  if (!held) $("dt-source").textContent = "keys, sticks or a gamepad";
}

function showTime() {
  const s = (performance.now() - since) / 1000, enough = state?.hint?.seconds || 3;
  $("dt-source").textContent = s < enough ? `${s.toFixed(1)} s by ${source}` : `${s.toFixed(0)} s: release to see whether the policy continues`;
}

function showHint(now) {
  const box = $("dt-hint"), hint = now?.hint;
  box.hidden = !hint || held;
  if (now && !now.may_drive && now.control !== "idle") { box.hidden = false; box.textContent = "Evaluation: takeover is disabled"; } else if (hint) box.textContent = `${hint.text[0].toUpperCase()}${hint.text.slice(1)} (about ${hint.seconds} s)`;
}

function toggleGripper() {
  const command = state?.values?.gripper?.[1] ?? 1;
  const open = grip ? grip > 0 : command > 0.5;
  grip = open ? -1 : 1;
  if (!held) banner("hold the dead-man key to move the gripper", 2);
  tick();
}

// ---- sticks
function center(stick) {
  delete sticks[stick.id];
  stick.firstElementChild.style.transform = "";
}

function setUpStick(stick) {
  const [right, up] = [stick.dataset.right, stick.dataset.up];
  const move = (event) => {
    const box = stick.getBoundingClientRect(), r = box.width / 2;
    let x = (event.clientX - box.left - r) / (0.7 * r), y = -(event.clientY - box.top - r) / (0.7 * r);
    const length = Math.max(1, Math.hypot(x, y));
    x /= length; y /= length;
    stick.firstElementChild.style.transform = `translate(${x * 0.7 * r}px, ${-y * 0.7 * r}px)`;
    sticks[stick.id] = { [right.replace("-", "")]: right.endsWith("-") ? -x : x, [up]: y };
    tick();
  };
  stick.addEventListener("pointerdown", (event) => { stick.setPointerCapture(event.pointerId); startDriving("stick", event); move(event); });
  stick.addEventListener("pointermove", (event) => { if (stick.hasPointerCapture(event.pointerId)) move(event); });
  stick.addEventListener("pointerup", () => { center(stick); if (!Object.keys(sticks).length) stopDriving("stick"); });
  stick.addEventListener("pointercancel", () => hold("the touch was interrupted"));
}

function ready() {
  connect();
  document.querySelectorAll(".dt-stick").forEach(setUpStick);
  const button = $("dt-hold");
  button.addEventListener("pointerdown", (event) => { button.setPointerCapture(event.pointerId); startDriving("button", event); });
  button.addEventListener("pointerup", () => stopDriving("button"));
  button.addEventListener("pointercancel", () => hold("the touch was interrupted"));
  $("dt-gripper").addEventListener("click", toggleGripper);
  addEventListener("keydown", (event) => {
    if (typing(event) || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.code === "Space" || KEYS[event.code]) event.preventDefault();
    if (event.repeat) return;
    fine = event.shiftKey;
    if (event.code === "Space") { down.add("Space"); startDriving("keys", event); } else if (event.code === "KeyG") toggleGripper();
    else if (KEYS[event.code]) { down.add(event.code); tick(); }
  });
  addEventListener("keyup", (event) => {
    fine = event.shiftKey;
    down.delete(event.code);
    if (event.code === "Space") { event.preventDefault(); mustRelease = false; stopDriving("keys"); } else if (KEYS[event.code]) tick();
  });
  addEventListener("blur", () => hold("this page lost the focus"));
  document.addEventListener("visibilitychange", () => { if (document.hidden) hold("this page is hidden"); });
  addEventListener("pagehide", () => { hold("this page was closed"); socket?.close(); });
  addEventListener("gamepadconnected", (event) => { banner(`gamepad: ${event.gamepad.id.slice(0, 40)}`, 2); requestAnimationFrame(pollGamepad); });
  addEventListener("gamepaddisconnected", () => { if (source === "gamepad") hold("the gamepad was disconnected"); padHeld = false; });
}

start({
  keys: { y: "success", n: "failure", x: "discard", r: "reset" },
  state: (now) => {
    if (held && !now) hold("the run has ended");
    // the state is older than a press: after a second it has seen it
    if (held && now?.control === "holding" && performance.now() - since > SHOWN_MS) hold("messages arrived late, press again");
    state = now;
    showHint(now);
  },
  start: () => { state = window.dovetail.state; ready(); },
});
