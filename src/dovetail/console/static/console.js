// On every page: the control state, the emergency stop, the theme, the user's name, the menu, the help overlay.
import { pressStop, startStop } from "./stop.js";
import { keepStopInView } from "./stop_in_view.js";
import { whoDrives, whoDrivesShort } from "./words.js";

const $ = (id) => document.getElementById(id);
window.dovetail = { state: null, arms: [] };

// ---- this page: which arm it shows, and whose browser it is in
const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, "0")).join("");
const ARM = "dovetail:arm", BROWSER = "dovetail:browser";
if (!localStorage.getItem(BROWSER)) localStorage.setItem(BROWSER, newId());
export const me = { session: 0, browser: localStorage.getItem(BROWSER) };
export const chosenArm = () => sessionStorage.getItem(ARM) || "";
export function chooseArm(name) { name ? sessionStorage.setItem(ARM, name) : sessionStorage.removeItem(ARM); location.reload(); }
export const withArm = (path) => `${path}${path.includes("?") ? "&" : "?"}arm=${encodeURIComponent(chosenArm())}`;

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

export function sendEvent(event) { return post("/api/event", { event, arm: chosenArm() }); }

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

// a websocket that reconnects; call the result to close it
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
  const end = () => { ended = true; socket.close(); };
  addEventListener("pagehide", end);
  return end;
}

function showState({ state, arms }) {
  const pill = $("dt-control");
  pill.dataset.control = state ? state.control : "none";
  const { title, detail } = whoDrives(state, me), short = whoDrivesShort(state, me);
  if (pill.textContent !== short) pill.textContent = short;
  pill.title = `${title}. ${detail}`;
  Object.assign(window.dovetail, { state, arms });
  // an arm that has ended: show the first one again
  if (!state && chosenArm() && arms.length && !arms.some((arm) => arm.name === chosenArm())) { chooseArm(""); return; }
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

let focusBefore = null;
function toggleHelp() {
  const help = $("dt-help");
  help.hidden = !help.hidden;
  if (!help.hidden) { focusBefore = document.activeElement; $("dt-help-close").focus(); } else focusBefore?.focus();
}

function toggleMenu(open = !$("dt-tools").classList.contains("dt-open")) {
  $("dt-tools").classList.toggle("dt-open", open);
  $("dt-menu").setAttribute("aria-expanded", String(open));
}

addEventListener("keydown", (event) => {
  if (event.key === "Escape") { pressStop(); return; }
  if (event.key === "Tab" && !$("dt-help").hidden) { event.preventDefault(); $("dt-help-close").focus(); return; } // one button only
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
  $("dt-help").addEventListener("click", toggleHelp); // also its button
  $("dt-menu").addEventListener("click", () => toggleMenu());
  addEventListener("pointerdown", (event) => { if (!event.target.closest?.("#dt-tools, #dt-menu")) toggleMenu(false); });
  keepStopInView($("dt-emergency"));
  listen(withArm("/ws/state"), (data) => showState(JSON.parse(data)), { close: () => showState({ state: null, arms: [] }) });
  document.body.dataset.ready = "1";
}
start();
