// Driving. A message is sent at each change and 40 times per second while the dead-man key is held. Only the newest counts;
// none is queued. When this page loses the focus, the tab or the network, it reports that, and the arm holds. Each message
// has the time at which it was sent: one that was delayed does not drive. After this page was blocked, the keys that it knows
// may be old, so the arm holds until the dead-man key is pressed again.
import { banner, me, typing, withArm } from "./console.js";
import { KEYS, axes, chooseJoint, choosePart, gamepad, gamepadAxes, hasGripper, input, release as releaseInput } from "./drive_axes.js";
import { centerSticks, drawParts, setUpStick } from "./drive_controls.js";
import { start } from "./robot.js";
import { isMine, whyNotDrive, whyNotFollowing } from "./words.js";

const $ = (id) => document.getElementById(id);
const PERIOD_MS = 25, LATE_MS = 400, BLOCKED_MS = 250, SHOWN_MS = 1000, SILENT_MS = 1000;
const PAD_EVENTS = { 3: "success", 1: "failure", 2: "discard" };
const PAD_CHOICES = [[12, chooseJoint, -1], [13, chooseJoint, 1], [14, choosePart, -1], [15, choosePart, 1]]; // the d-pad

let socket = null, n = 0, acked = 0, lastTick = 0, held = false, source = "", mustRelease = false, state = null, since = 0, lastSent = 0, padHeld = false, padButtons = {};

// ---- the connection to the arm
function connect() {
  socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${withArm(`/ws/drive?browser=${me.browser}`)}`);
  n = acked = me.session = 0;
  socket.onopen = () => send({ held: false }); // the console learns the offset of this page's clock, and we the delay
  socket.onmessage = (message) => {
    const reply = JSON.parse(message.data);
    acked = reply.n;
    me.session = reply.session;
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

// ---- the gamepad
function pollGamepad() {
  const found = gamepad();
  const pressed = (i) => Boolean(found?.buttons[i]?.pressed);
  const now = [4, 5, 6, 7].some(pressed);
  if (now !== padHeld) { padHeld = now; now ? startDriving("gamepad") : stopDriving("gamepad"); }
  // a wireless pad that is out of range looks like a stick that is held still, but a hand trembles
  const silent = found && performance.now() - found.timestamp > SILENT_MS && Object.values(gamepadAxes()).some(Boolean);
  if (held && source === "gamepad" && silent) hold("the gamepad is silent");
  for (const [i, event] of Object.entries(PAD_EVENTS)) if (edge(i, pressed(i))) document.querySelector(`[data-event="${event}"]`)?.click();
  if (edge("grip", pressed(0))) toggleGripper();
  for (const [i, choose, step] of PAD_CHOICES) if (edge(`choose${i}`, pressed(i))) { choose(state?.drive, step); drawParts(state?.drive, drives); }
  if (found) requestAnimationFrame(pollGamepad);
}

function edge(name, now) {
  const before = padButtons[name];
  padButtons[name] = now;
  return now && !before;
}

// ---- the dead-man switch
function startDriving(by, event) {
  if (held || mustRelease) return;
  if (event && performance.now() - event.timeStamp > BLOCKED_MS) { banner("this page was blocked: press again"); return; }
  const why = whyNotDrive(state, { linked: acked > 0 });
  if (why) { banner(why); return; }
  held = true; source = by; input.grip = 0; since = lastTick = performance.now(); lastSent = 0;
  tick();
  show();
}

function stopDriving(by) {
  if (by === source) release(false);
  if (!input.down.has("Space")) mustRelease = false;
}

function release(wait) {
  if (!held) return;
  send({ held: false, axes: axes(state?.drive) });
  mustRelease = wait;
  reset();
}

function hold(why) {
  const wasDriving = held;
  releaseInput();
  centerSticks();
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
  if (socket.bufferedAmount === 0 && n - acked < 20) send({ held: true, axes: axes(state?.drive) });
  else if (performance.now() - lastSent > LATE_MS) { hold("the connection is too slow"); socket.close(); }
}

setInterval(() => { tick(); if (held) show(); }, PERIOD_MS);

// ---- display
function setText(element, text) { if (element.textContent !== text) element.textContent = text; }

function show() {
  const follows = held && isMine(state, me); // only the arm's control loop decides that this page drives
  $("dt-drive").classList.toggle("dt-driving", follows);
  $("dt-hold").classList.toggle("dt-held", held);
  setText($("dt-hold").querySelector("b"), follows ? "You drive" : held ? "Taking over …" : "Hold to drive");
  setText($("dt-source"), sourceText(follows));
}

function sourceText(follows) {
  if (!held) return input.hasJogs ? "keys, a gamepad or the buttons below" : "keys, sticks or a gamepad";
  const s = (performance.now() - since) / 1000, enough = state?.hint?.seconds || 3;
  if (!follows) return whyNotFollowing(state, s);
  return s < enough ? `${s.toFixed(1)} s by ${source}` : `${s.toFixed(0)} s: release to see whether the policy continues`;
}

function showHint(now) {
  const hint = held ? null : now?.hint;
  setText($("dt-hint"), hint ? `${hint.text[0].toUpperCase()}${hint.text.slice(1)} (about ${hint.seconds} s)` : "");
}

function toggleGripper() {
  if (!hasGripper(state?.drive)) { banner("this robot has no gripper", 2); return; }
  const command = state?.values?.gripper?.[1] ?? 1;
  const open = input.grip ? input.grip > 0 : command > 0.5;
  input.grip = open ? -1 : 1;
  if (!held) banner("hold the dead-man key to move the gripper", 2);
  tick();
}

function keyDown(event) {
  if (typing(event) || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target?.type === "range" && event.code.startsWith("Arrow")) return; // they move the slider
  if (event.code === "Space" || KEYS[event.code]) event.preventDefault();
  if (event.repeat) return;
  input.fine = event.shiftKey;
  if (event.code === "Space") { input.down.add("Space"); startDriving("keys", event); } else if (event.code === "KeyG") toggleGripper();
  else if (KEYS[event.code]) { input.down.add(event.code); tick(); }
  else if (event.code === "BracketLeft" || event.code === "BracketRight") { choosePart(state?.drive, event.code === "BracketLeft" ? -1 : 1); drawParts(state?.drive, drives); }
  else if (/^Digit[1-9]$/.test(event.code) && input.hasJogs) { input.joint = +event.code.slice(5) - 1; drawParts(state?.drive, drives); }
}

function keyUp(event) {
  input.fine = event.shiftKey;
  input.down.delete(event.code);
  if (event.code === "Space") { event.preventDefault(); mustRelease = false; stopDriving("keys"); } else if (KEYS[event.code]) tick();
}

// what the on-screen controls call
const drives = { start: (event) => startDriving("stick", event), stop: () => stopDriving("stick"), hold, tick };

function ready() {
  connect();
  document.querySelectorAll(".dt-stick").forEach((stick) => setUpStick(stick, drives));
  const button = $("dt-hold");
  button.addEventListener("pointerdown", (event) => { button.setPointerCapture(event.pointerId); startDriving("button", event); });
  button.addEventListener("pointerup", () => stopDriving("button"));
  button.addEventListener("pointercancel", () => hold("the touch was interrupted"));
  button.addEventListener("contextmenu", (event) => event.preventDefault()); // a long touch would open it
  $("dt-gripper").addEventListener("click", toggleGripper);
  $("dt-speed").addEventListener("input", () => { input.speed = +$("dt-speed").value / 100; });
  addEventListener("keydown", keyDown);
  addEventListener("keyup", keyUp);
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
    drawParts(now?.drive, drives);
    showHint(now);
    show();
  },
  start: () => { state = window.dovetail.state; drawParts(state?.drive, drives); ready(); },
});
