// On every page: the control state, the emergency stop, the theme, the user's name, the help overlay.
import { pressStop, startStop } from "./stop.js";

const $ = (id) => document.getElementById(id);
const CONTROL_NAMES = { policy: "policy", human: "operator", holding: "holding", paused: "paused", fault: "stopped", idle: "between episodes", none: "not running" };
window.dovetail = { state: null };

// whether a key goes into a text field
export function typing(event) {
  const field = event.target;
  return field instanceof HTMLElement && (field.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(field.tagName)) && !/^(checkbox|radio|range|button)$/.test(field.type || "");
}

export function banner(text, seconds = 4) {
  document.querySelectorAll(".dt-banner:not(#dt-stopped)").forEach((old) => old.remove());
  const shown = Object.assign(document.createElement("div"), { className: "dt-banner", textContent: text });
  shown.setAttribute("role", "alert");
  document.body.append(shown);
  setTimeout(() => shown.remove(), 1000 * seconds);
}

export function sendEvent(event) { return post("/api/event", { event }); }

export async function post(path, body) {
  try {
    const reply = await fetch(path, { method: "POST", keepalive: true, headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
    if (!reply.ok) banner((await reply.json().catch(() => ({}))).detail || `the console refused the request: ${reply.status}`);
    return reply.ok;
  } catch {
    banner("the console cannot be reached");
    return false;
  }
}

// a websocket that reconnects
export function listen(path, receive, { binary = false, open = () => {}, close = () => {} } = {}) {
  let socket, pauseMs = 250, ended = false;
  const connect = () => {
    socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${path}`);
    if (binary) socket.binaryType = "arraybuffer";
    socket.onopen = () => { pauseMs = 250; open(socket); };
    socket.onmessage = (message) => receive(message.data, socket);
    socket.onclose = () => { close(); if (!ended) setTimeout(connect, pauseMs = Math.min(4000, 2 * pauseMs)); };
  };
  connect();
  addEventListener("pagehide", () => { ended = true; socket.close(); });
}

function showState(state) {
  const pill = $("dt-control"), control = state ? state.control : "none";
  pill.dataset.control = control;
  pill.textContent = control === "human" && state.driver ? state.driver : CONTROL_NAMES[control] || control;
  pill.title = state ? state.reason || state.prompt || "" : "this run is not running";
  window.dovetail.state = state;
  dispatchEvent(new CustomEvent("dovetail:state", { detail: state }));
}

function setTheme(dark) {
  window.Quasar?.Dark.set(dark);
  document.body.classList.toggle("body--dark", dark);
  document.body.classList.toggle("body--light", !dark);
}

function setUpName() {
  const field = $("dt-name");
  const keep = () => {
    localStorage.setItem("dovetail:name", field.value.trim());
    document.cookie = `dovetail_name=${encodeURIComponent(field.value.trim()).slice(0, 200)}; path=/; SameSite=Strict`;
  };
  field.value = localStorage.getItem("dovetail:name") || "";
  field.addEventListener("change", keep);
  field.addEventListener("keydown", (event) => { if (event.key === "Enter") field.blur(); });
  keep();
}

function toggleHelp() { $("dt-help").hidden = !$("dt-help").hidden; }

addEventListener("keydown", (event) => {
  if (event.key === "Escape") { pressStop(); return; }
  if (typing(event) || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "?") toggleHelp();
  else if (event.key === "t") toggleTheme();
}, true);

function toggleTheme() {
  const dark = !document.body.classList.contains("body--dark");
  localStorage.setItem("dovetail:dark", dark ? "1" : "0");
  setTheme(dark);
}

function start() {
  if (!$("dt-emergency") || !window.Quasar) { setTimeout(start, 20); return; } // Vue has not built the page yet
  const kept = localStorage.getItem("dovetail:dark");
  if (kept !== null) setTheme(kept === "1");
  setUpName();
  $("dt-emergency").addEventListener("pointerdown", pressStop); // at the touch, not at its end
  $("dt-emergency").addEventListener("click", (event) => { if (event.detail === 0) pressStop(); }); // by keyboard
  startStop();
  $("dt-theme").addEventListener("click", toggleTheme);
  $("dt-help-open").addEventListener("click", toggleHelp);
  $("dt-help").addEventListener("click", toggleHelp);
  listen("/ws/state", (data) => showState(JSON.parse(data).state), { close: () => showState(null) });
  document.body.dataset.ready = "1";
}
start();
