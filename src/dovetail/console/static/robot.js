// Shared by Live and Take over: images, the control state, and the buttons that send events to the robot.
import { listen, sendEvent, typing } from "./console.js";

const CONTROL_NAMES = { policy: "Policy", human: "Operator", holding: "Holding", paused: "Paused", fault: "Stopped", idle: "Between episodes", none: "Not running" };
const EVENT_KEYS = { c: "start", p: "pause", k: "acknowledge" };
const $ = (id) => document.getElementById(id);

export function seconds(s) {
  if (s < 90) return `${Math.round(s)} s`;
  return s < 5400 ? `${Math.round(s / 60)} min` : `${(s / 3600).toFixed(1)} h`;
}

// ---- images: only the newest is sent; the page asks for the next after it has drawn one
function showCamera(name) {
  const box = document.createElement("figure"), canvas = document.createElement("canvas"), caption = document.createElement("figcaption");
  box.append(canvas, caption);
  $("dt-cameras").append(box);
  canvas.dataset.camera = name;
  canvas.dataset.frames = "0";
  const pen = canvas.getContext("2d", { alpha: false });
  let times = [];
  listen(`/ws/frames?camera=${encodeURIComponent(name)}`, async (data, socket) => {
    try {
      const image = await createImageBitmap(new Blob([data], { type: "image/jpeg" }));
      if (canvas.width !== image.width || canvas.height !== image.height) Object.assign(canvas, { width: image.width, height: image.height });
      pen.drawImage(image, 0, 0);
      image.close();
      $("dt-no-image").hidden = true;
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

let shownCameras = null;
async function loadCameras() {
  const { cameras } = await (await fetch("/api/cameras")).json();
  if (JSON.stringify(cameras) === shownCameras) return;
  if (shownCameras !== null && shownCameras !== "[]") { location.reload(); return; } // another run with other cameras
  shownCameras = JSON.stringify(cameras);
  cameras.forEach(showCamera);
}

// ---- who is in control
let running = null;
function show(state) {
  const control = state ? state.control : "none", box = $("dt-in-control");
  box.dataset.control = control;
  box.querySelector("b").textContent = control === "human" && state.driver ? state.driver : CONTROL_NAMES[control] || control;
  const detail = !state ? "start it with dovetail run --resume" : state.reason || (control === "policy" ? (state.policy_version ? `version ${state.policy_version}` : "untrained") : control !== "human" ? "" : state.driver ? "is driving" : "operator takes over");
  box.querySelector("span").textContent = detail;
  $("dt-prompt").textContent = state?.prompt || "";
  const episode = state?.episode || {}, facts = [];
  if (state?.facts?.phase) facts.push(state.facts.phase);
  if (episode.number !== undefined) facts.push(`episode ${episode.number}`);
  else if (episode.id) facts.push(`episode ${episode.id}`);
  if (episode.purpose) facts.push({ online: "online learning", demo: "demonstration", eval: "evaluation" }[episode.purpose] || episode.purpose);
  if (state && state.step) facts.push(`step ${state.step}`);
  if (state && state.weights_age_s !== null) facts.push(`weights ${seconds(state.weights_age_s)} old`);
  $("dt-progress").textContent = facts.join(" · ") || "\u00a0";
  if (!state) { $("dt-no-image").hidden = false; $("dt-no-image").textContent = "This run is not running now. Its curves, versions and episodes can still be viewed."; }
  else if (running !== true && $("dt-cameras").children.length === 0) $("dt-no-image").textContent = "waiting for the first image …";
  if (state && running !== true) loadCameras();
  running = Boolean(state);
  document.querySelectorAll("[data-event]").forEach((button) => { button.disabled = !state; });
  const acknowledge = document.querySelector('[data-event="acknowledge"]');
  acknowledge.disabled = control !== "fault";
  acknowledge.classList.toggle("dt-main-button", control === "fault");
}

async function press(button) {
  if (button.dataset.confirm && !confirm(button.dataset.confirm)) return;
  if (await sendEvent(button.dataset.event)) {
    button.classList.add("dt-sent");
    setTimeout(() => button.classList.remove("dt-sent"), 500);
  }
}

// `page`: { state: called with each new state, start: called once, keys: more keys and their events }
export function start(page) {
  if (!$("dt-in-control") || !document.body.dataset.ready) { setTimeout(() => start(page), 20); return; }
  addEventListener("dovetail:state", (event) => { show(event.detail); page.state?.(event.detail); });
  document.querySelectorAll("[data-event]").forEach((button) => button.addEventListener("click", () => press(button)));
  addEventListener("keydown", (event) => {
    if (typing(event) || event.repeat || event.ctrlKey || event.metaKey || event.altKey) return;
    const name = { ...EVENT_KEYS, ...page.keys }[event.key.toLowerCase()];
    const button = name && document.querySelector(`[data-event="${name}"]`);
    if (button && !button.disabled) press(button);
  });
  show(window.dovetail?.state ?? null);
  page.start?.();
}
