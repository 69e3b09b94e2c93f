// Shared by Live and Take over: images, the choice of the arm, the control state, and the buttons that send events.
import { ask } from "./ask.js";
import { chooseArm, chosenArm, me, sendEvent, typing } from "./console.js";
import { loadCameras } from "./live_cameras.js";
import { purposeName, whoDrives } from "./words.js";

const EVENT_KEYS = { c: "start", p: "pause", k: "acknowledge" };
const $ = (id) => document.getElementById(id);

export function seconds(s) {
  if (s < 90) return `${Math.round(s)} s`;
  return s < 5400 ? `${Math.round(s / 60)} min` : `${(s / 3600).toFixed(1)} h`;
}

// ---- the arms of the run
let drawnArms = "";
function drawArms(shownArm) {
  const arms = window.dovetail.arms || [], box = $("dt-choose-arm");
  const now = JSON.stringify([arms, shownArm]);
  if (now === drawnArms) return;
  drawnArms = now;
  box.hidden = arms.length < 2;
  const focused = document.activeElement?.dataset?.arm;
  box.replaceChildren(Object.assign(document.createElement("span"), { textContent: "Arm", className: "dt-quiet" }), ...arms.map((arm) => {
    const what = !arm.is_here ? "on another machine" : { fault: "stopped", human: "driven", idle: "between episodes", none: "not running" }[arm.control] || arm.control;
    const button = Object.assign(document.createElement("button"), { className: "dt-chip", textContent: `${arm.name} · ${what}`, disabled: !arm.is_here });
    button.dataset.arm = arm.name;
    button.dataset.control = arm.control;
    button.setAttribute("aria-pressed", String(arm.name === shownArm));
    button.onclick = () => { if (arm.name !== (shownArm || chosenArm())) chooseArm(arm.name); };
    return button;
  }));
  if (focused) box.querySelector(`[data-arm="${CSS.escape(focused)}"]`)?.focus();
}

// ---- who is in control
function setText(element, text) { if (element.textContent !== text) element.textContent = text; } // a screen reader reads each change

let running = null;
function show(state) {
  const control = state ? state.control : "none", box = $("dt-in-control"), words = whoDrives(state, me);
  box.dataset.control = control;
  setText(box.querySelector("b"), words.title);
  setText(box.querySelector("span"), words.detail);
  setText($("dt-prompt"), state?.prompt || "");
  const episode = state?.episode || {}, facts = [];
  if (state?.facts?.phase) facts.push(state.facts.phase);
  if (episode.number !== undefined) facts.push(`episode ${episode.number}`);
  else if (episode.id) facts.push(`episode ${episode.id}`);
  if (episode.purpose) facts.push(purposeName(episode.purpose));
  if (state && state.step) facts.push(`step ${state.step}`);
  if (state && state.weights_age_s !== null) facts.push(`weights ${seconds(state.weights_age_s)} old`);
  $("dt-progress").textContent = facts.join(" · ") || "\u00a0";
  drawArms(state?.arm || "");
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
  if (button.dataset.confirm && !await ask(button.dataset.confirm, button.querySelector("span").textContent)) return;
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
