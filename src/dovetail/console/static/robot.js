// What Live and Take over share: pictures, who is in control, and the buttons that say something to the robot.
import { follow, tell, typing } from "./console.js";

const NAMES = { policy: "Policy", human: "Person", holding: "Holding", paused: "Paused", fault: "Stopped", idle: "Between episodes", none: "Not running" };
const EVENT_KEYS = { c: "start", p: "pause", k: "acknowledge" };
const $ = (id) => document.getElementById(id);

export function seconds(s) {
  if (s < 90) return `${Math.round(s)} s`;
  return s < 5400 ? `${Math.round(s / 60)} min` : `${(s / 3600).toFixed(1)} h`;
}

// ---- pictures: the newest one only, drawn when it has been decoded, and then the next is asked for
async function camera(name) {
  const box = document.createElement("figure"), canvas = document.createElement("canvas"), caption = document.createElement("figcaption");
  box.append(canvas, caption);
  $("dt-cameras").append(box);
  canvas.dataset.camera = name;
  canvas.dataset.frames = "0";
  const pen = canvas.getContext("2d", { alpha: false });
  let times = [];
  follow(`/ws/frames?camera=${encodeURIComponent(name)}`, async (data, socket) => {
    try {
      const picture = await createImageBitmap(new Blob([data], { type: "image/jpeg" }));
      if (canvas.width !== picture.width || canvas.height !== picture.height) Object.assign(canvas, { width: picture.width, height: picture.height });
      pen.drawImage(picture, 0, 0);
      picture.close();
      $("dt-dark").hidden = true;
    } finally {
      const now = performance.now();
      times = [...times.filter((t) => now - t < 2000), now];
      canvas.dataset.frames = String(+canvas.dataset.frames + 1);
      canvas.dataset.fps = (times.length > 1 ? 1000 * (times.length - 1) / (now - times[0]) : 0).toFixed(1);
      caption.textContent = `${name} · ${Math.round(canvas.dataset.fps)} fps`;
      if (socket.readyState === WebSocket.OPEN) socket.send("shown");
    }
  }, { binary: true });
}

let known = null;
async function cameras() {
  const { cameras } = await (await fetch("/api/cameras")).json();
  if (JSON.stringify(cameras) === known) return;
  if (known !== null && known !== "[]") { location.reload(); return; } // another run with other cameras
  known = JSON.stringify(cameras);
  cameras.forEach(camera);
}

// ---- who is in control
let running = null;
function show(state) {
  const control = state ? state.control : "none", who = $("dt-who");
  who.dataset.control = control;
  who.querySelector("b").textContent = control === "human" && state.driver ? state.driver : NAMES[control] || control;
  const detail = !state ? "start it with dovetail run --resume" : state.reason || (control === "policy" ? (state.policy_version ? `version ${state.policy_version}` : "untrained") : control !== "human" ? "" : state.driver ? "is driving" : "somebody helps");
  who.querySelector("span").textContent = detail;
  $("dt-prompt").textContent = state?.prompt || "";
  const episode = state?.episode || {}, parts = [];
  if (state?.facts?.phase) parts.push(state.facts.phase);
  if (episode.number !== undefined) parts.push(`episode ${episode.number}`);
  else if (episode.id) parts.push(`episode ${episode.id}`);
  if (episode.purpose) parts.push({ online: "practice", demo: "demonstration", eval: "evaluation" }[episode.purpose] || episode.purpose);
  if (state && state.step) parts.push(`step ${state.step}`);
  if (state && state.weights_age_s !== null) parts.push(`weights ${seconds(state.weights_age_s)} old`);
  $("dt-where").textContent = parts.join(" · ") || "\u00a0";
  if (!state) { $("dt-dark").hidden = false; $("dt-dark").textContent = "This run is not running now. Its curves, versions and episodes are here all the same."; }
  else if (running !== true && $("dt-cameras").children.length === 0) $("dt-dark").textContent = "waiting for the first picture …";
  if (state && running !== true) cameras();
  running = Boolean(state);
  document.querySelectorAll("[data-event]").forEach((button) => { button.disabled = !state; });
  const acknowledge = document.querySelector('[data-event="acknowledge"]');
  acknowledge.disabled = control !== "fault";
  acknowledge.classList.toggle("dt-main-button", control === "fault");
}

async function press(button) {
  if (button.dataset.sure && !confirm(button.dataset.sure)) return;
  if (await tell(button.dataset.event)) {
    button.classList.add("dt-said");
    setTimeout(() => button.classList.remove("dt-said"), 500);
  }
}

export function start(ready) {
  if (!$("dt-who") || !document.body.dataset.ready) { setTimeout(() => start(ready), 20); return; }
  addEventListener("dovetail:state", (event) => { show(event.detail); ready.state?.(event.detail); });
  document.querySelectorAll("[data-event]").forEach((button) => button.addEventListener("click", () => press(button)));
  addEventListener("keydown", (event) => {
    if (typing(event) || event.repeat || event.ctrlKey || event.metaKey || event.altKey) return;
    const said = { ...EVENT_KEYS, ...ready.keys }[event.key.toLowerCase()];
    const button = said && document.querySelector(`[data-event="${said}"]`);
    if (button && !button.disabled) press(button);
  });
  show(window.dovetail?.state ?? null);
  ready.start?.();
}
