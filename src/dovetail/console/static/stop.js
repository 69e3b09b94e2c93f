// STOP, on every page. Each press goes out twice: over a websocket that is already open, because a browser has few connections
// and all of them may wait for a slow disk, and as a request. The page then shows which arms have confirmed it.
import { listen } from "./console.js";

const CONFIRM_MS = 1000, REPEAT_MS = 250;
const OWN_STOP = "press the robot's own emergency stop";
let socket = null, newest = null, lastMs = -Infinity;

function newId() { return Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, "0")).join(""); }

export function pressStop() {
  if (performance.now() - lastMs < REPEAT_MS) return; // a held key repeats
  lastMs = performance.now();
  const press = newest = { id: newId(), sent: false, refused: "", over: false };
  show("STOP …", "sending");
  if (socket?.readyState === WebSocket.OPEN) socket.send(press.id);
  request(press);
  dispatchEvent(new CustomEvent("dovetail:stop")); // closes an open question
  setTimeout(() => { if (press === newest && !press.over) notConfirmed(press, []); }, CONFIRM_MS);
}

async function request(press) {
  try {
    const reply = await fetch(`/api/stop?press=${press.id}`, { method: "POST", keepalive: true, priority: "high" });
    const answer = await reply.json().catch(() => ({}));
    receive(reply.ok ? answer : { press: press.id, sent: false, detail: answer.detail || `refused: ${reply.status}` });
  } catch { /* the websocket may have delivered it; otherwise the page says after a second that nothing was confirmed */ }
}

function receive(answer) {
  const press = newest;
  if (!press || answer.press !== press.id) return;
  if (!answer.sent) { press.refused = answer.detail || ""; return; }
  press.sent = true;
  if (!answer.confirmed) { if (!press.over) show("STOP sent", "sent"); return; }
  if (answer.missing.length || !answer.confirmed.length) { notConfirmed(press, answer.missing); return; }
  press.over = true;
  show(`stop confirmed by ${answer.confirmed.map((one) => `${one.arm} in ${one.ms} ms`).join(", ")}`, "confirmed", 8);
}

function notConfirmed(press, missing) {
  press.over = true;
  const why = press.sent ? (missing.length ? ` by ${missing.join(", ")}` : "") : press.refused ? ` (${press.refused})` : " (the console does not answer)";
  show(`STOP NOT confirmed${why}: ${OWN_STOP}`, "missing", 60);
}

let hiding = 0;
function show(text, stage, seconds = 4) { // its own banner: other messages do not replace it
  const box = document.getElementById("dt-stopped") || document.body.appendChild(Object.assign(document.createElement("div"), { id: "dt-stopped", className: "dt-banner" }));
  box.setAttribute("role", "alert");
  box.textContent = text;
  box.dataset.stop = stage;
  clearTimeout(hiding);
  hiding = setTimeout(() => box.remove(), 1000 * seconds);
}

// ---- the arms of the run, with their states

function drawArms(state) {
  const box = document.getElementById("dt-arms"), stop = state?.stop, arms = stop?.arms || [];
  if (!box) return;
  box.hidden = !stop || (arms.length < 2 && !stop.pressed_by);
  if (box.hidden) return;
  const chip = (text, kind) => { const made = Object.assign(document.createElement("span"), { className: "dt-arm", textContent: text }); made.dataset.arm = kind; return made; };
  const chips = arms.map((arm) => chip(`${arm.name}: ${!arm.stopped ? "free" : arm.confirmed ? "stopped" : `stop NOT confirmed, ${OWN_STOP}`}`, !arm.stopped ? "free" : arm.confirmed ? "stopped" : "missing"));
  if (stop.pressed_by) chips.unshift(chip(`STOP by ${stop.pressed_by}`, "source"));
  const drawn = chips.map((one) => one.textContent).join("\n");
  if (drawn !== box.dataset.drawn) { box.dataset.drawn = drawn; box.replaceChildren(...chips); }
}

export function startStop() {
  listen("/ws/stop", (data) => receive(JSON.parse(data)), { open: (opened) => { socket = opened; } });
  addEventListener("dovetail:state", (event) => drawArms(event.detail));
}
