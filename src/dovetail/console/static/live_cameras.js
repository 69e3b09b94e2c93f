// Live images: choose cameras, arrange them, and show each in its true proportions. Only the newest image of a camera is sent;
// the page asks for the next after it has drawn one.
import { chosenArm, listen, withArm } from "./console.js";

const $ = (id) => document.getElementById(id);
const RATE_MS = 2000;
let known = null; // all cameras, as JSON
const shown = new Map(); // camera -> { figure, close }
const setting = () => `dovetail:cameras:${chosenArm()}`;

function makeFigure(name) {
  const figure = document.createElement("figure"), canvas = document.createElement("canvas"), caption = document.createElement("figcaption");
  canvas.dataset.camera = name;
  canvas.dataset.frames = "0";
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `camera ${name}`);
  const text = document.createElement("span"), large = document.createElement("button");
  Object.assign(large, { className: "dt-large", textContent: "⤢", title: `show ${name} first and large`, onclick: () => arrange([name, ...order().filter((one) => one !== name)]) });
  large.setAttribute("aria-label", large.title);
  caption.append(text, large);
  figure.append(canvas, caption);
  return { figure, canvas, text };
}

function showCamera(name) {
  const { figure, canvas, text } = makeFigure(name), pen = canvas.getContext("2d", { alpha: false });
  text.textContent = name;
  let times = [];
  const close = listen(withArm(`/ws/frames?camera=${encodeURIComponent(name)}`), async (data, socket) => {
    try {
      const image = await createImageBitmap(new Blob([data], { type: "image/jpeg" }));
      if (canvas.width !== image.width || canvas.height !== image.height) {
        Object.assign(canvas, { width: image.width, height: image.height });
        figure.style.setProperty("--ratio", String(image.width / image.height));
      }
      pen.drawImage(image, 0, 0);
      image.close();
      $("dt-no-image").hidden = true;
    } finally {
      const now = performance.now();
      times = [...times.filter((t) => now - t < RATE_MS), now];
      canvas.dataset.frames = String(+canvas.dataset.frames + 1);
      canvas.dataset.fps = (times.length > 1 ? 1000 * (times.length - 1) / (now - times[0]) : 0).toFixed(1);
      text.textContent = `${name} · ${Math.round(canvas.dataset.fps)} fps`;
      if (socket.readyState === WebSocket.OPEN) socket.send("shown");
    }
  }, { binary: true });
  shown.set(name, { figure, close });
}

const order = () => [...$("dt-cameras").querySelectorAll("canvas")].map((canvas) => canvas.dataset.camera);

// Show these cameras in this order; the first one is large.
function arrange(names) {
  for (const [name, one] of shown) if (!names.includes(name)) { one.close(); one.figure.remove(); shown.delete(name); }
  for (const name of names) if (!shown.has(name)) showCamera(name);
  const box = $("dt-cameras");
  names.forEach((name) => box.append(shown.get(name).figure)); // in this order
  box.dataset.num = String(names.length);
  localStorage.setItem(setting(), JSON.stringify(names));
  drawChoice(names);
}

function drawChoice(names) {
  const box = $("dt-choose-cameras"), all = JSON.parse(known);
  box.hidden = all.length < 2;
  const focused = document.activeElement?.dataset?.choose;
  box.replaceChildren(...all.map((name) => {
    const is = names.includes(name), button = Object.assign(document.createElement("button"), { className: "dt-chip", textContent: name });
    button.setAttribute("aria-pressed", String(is));
    button.dataset.choose = name;
    button.onclick = () => { if (!is) arrange([...names, name]); else if (names.length > 1) arrange(names.filter((one) => one !== name)); }; // at least one
    return button;
  }));
  if (focused) box.querySelector(`[data-choose="${CSS.escape(focused)}"]`)?.focus();
}

export async function loadCameras() {
  const reply = await fetch(withArm("/api/cameras"));
  if (!reply.ok) return;
  const { cameras, own } = await reply.json(), now = JSON.stringify(cameras);
  if (now === known || !cameras.length) return;
  known = now;
  const kept = JSON.parse(localStorage.getItem(setting()) || "[]").filter((name) => cameras.includes(name));
  // the robot's own cameras; rendering the views of a simulation takes processor time, so one is enough at first
  arrange(kept.length ? kept : cameras.slice(0, Math.max(1, own)));
}
