// The controls on the screen: two sticks for a Cartesian part, or a pair of jog buttons for each axis of another part. A touch
// is the dead-man switch.
import { chosenPart, hasGripper, input, movable } from "./drive_axes.js";

const $ = (id) => document.getElementById(id);

function center(stick) {
  delete input.sticks[stick.id];
  stick.firstElementChild.style.transform = "";
}

export function centerSticks() { document.querySelectorAll(".dt-stick").forEach(center); }

// `drives`: { start(event), stop(), hold(why), tick() }
export function setUpStick(stick, drives) {
  const [right, up] = [stick.dataset.right, stick.dataset.up];
  const move = (event) => {
    const box = stick.getBoundingClientRect(), r = box.width / 2;
    let x = (event.clientX - box.left - r) / (0.7 * r), y = -(event.clientY - box.top - r) / (0.7 * r);
    const length = Math.max(1, Math.hypot(x, y));
    x /= length; y /= length;
    stick.firstElementChild.style.transform = `translate(${x * 0.7 * r}px, ${-y * 0.7 * r}px)`;
    input.sticks[stick.id] = { [right.replace("-", "")]: right.endsWith("-") ? -x : x, [up]: y };
    drives.tick();
  };
  stick.addEventListener("pointerdown", (event) => { stick.setPointerCapture(event.pointerId); drives.start(event); move(event); });
  stick.addEventListener("pointermove", (event) => { if (stick.hasPointerCapture(event.pointerId)) move(event); });
  stick.addEventListener("pointerup", () => { center(stick); if (!Object.keys(input.sticks).length) drives.stop(); });
  stick.addEventListener("pointercancel", () => drives.hold("the touch was interrupted"));
}

// ---- parts of the action
let drawn = "";
export function drawParts(drive, drives) {
  const part = chosenPart(drive), now = JSON.stringify([drive, input.part, input.joint]);
  if (now === drawn) return;
  drawn = now;
  input.hasJogs = Boolean(part && !part.is_cartesian && !drive.refusal);
  document.querySelectorAll(".dt-stickbox").forEach((box) => { box.hidden = input.hasJogs; });
  $("dt-drive").classList.toggle("dt-no-sticks", input.hasJogs);
  $("dt-gripper").hidden = !hasGripper(drive);
  drawChoice(movable(drive), drive, drives);
  const box = $("dt-jogs");
  box.hidden = !input.hasJogs;
  box.replaceChildren(...(input.hasJogs ? part.axes.map((name, i) => jogRow(name, i, drives)) : []));
}

function drawChoice(parts, drive, drives) {
  $("dt-part-box").hidden = parts.length < 2;
  $("dt-part").replaceChildren(...parts.map((part, i) => new Option(part.name, String(i), false, i === input.part)));
  $("dt-part").onchange = (event) => { input.part = +event.target.value; input.joint = input.grip = 0; drawParts(drive, drives); event.target.blur(); };
}

function jogRow(name, i, drives) {
  const row = document.createElement("div"), label = Object.assign(document.createElement("span"), { textContent: name });
  row.className = "dt-jog";
  row.classList.toggle("dt-chosen-joint", i === input.joint);
  row.append(jogButton(name, i, -1, drives), label, jogButton(name, i, 1, drives));
  return row;
}

function jogButton(name, i, sign, drives) {
  const button = Object.assign(document.createElement("button"), { className: "dt-button", textContent: sign < 0 ? "−" : "+" });
  button.setAttribute("aria-label", `${name} ${sign < 0 ? "minus" : "plus"}: hold to move`);
  const stop = () => { delete input.jogs[i]; if (!Object.keys(input.jogs).length) drives.stop(); };
  button.addEventListener("pointerdown", (event) => { button.setPointerCapture(event.pointerId); input.jogs[i] = sign; drives.start(event); drives.tick(); });
  button.addEventListener("pointerup", stop);
  button.addEventListener("pointercancel", () => drives.hold("the touch was interrupted"));
  button.addEventListener("contextmenu", (event) => event.preventDefault());
  return button;
}
