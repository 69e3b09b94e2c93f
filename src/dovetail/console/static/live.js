import { chart } from "./charts.js";
import { roles } from "./roles.js";
import { start } from "./robot.js";

const HEALTH = [
  ["late_ms", "late", "ms", 20], ["worst_late_ms", "latest", "ms", 100], ["overruns", "overruns", "", 1], ["thinking_ms", "thinking", "ms", Infinity],
];

function health(state) {
  const box = document.getElementById("dt-health"), now = state?.health || {};
  box.replaceChildren(...HEALTH.filter(([key]) => now[key] !== undefined).map(([key, name, unit, worrying]) => {
    const cell = document.createElement("div"), value = document.createElement("b"), label = document.createElement("span");
    const shown = now[key] >= 100 || Number.isInteger(now[key]) ? Math.round(now[key]) : now[key].toFixed(1);
    value.textContent = unit ? `${shown} ${unit}` : shown;
    label.textContent = name;
    cell.classList.toggle("dt-worry", now[key] >= worrying);
    cell.append(value, label);
    return cell;
  }));
  if (!box.children.length) box.textContent = state ? "no ticks yet" : "not running";
}

async function story() {
  try {
    const told = await (await fetch("/api/story")).json();
    for (const box of document.querySelectorAll("[data-curve]")) {
      const lines = [{ points: told.curves[box.dataset.curve] || [] }];
      if (box.dataset.curve === "success") lines.push({ kind: "dots", points: told.evaluations.filter((e) => e.env_steps !== undefined).map((e) => [e.env_steps, e.rate, e.low, e.high]) });
      chart(box, lines, { share: box.dataset.kind === "share" });
    }
    coach(told.advice);
  } catch { /* the console is gone for the moment: the next one will do */ }
  setTimeout(story, 2000);
}

function coach(advice) {
  const box = document.getElementById("dt-coach");
  if (!advice.length) { box.replaceChildren(Object.assign(document.createElement("p"), { className: "dt-quiet", textContent: "Nothing to say: learning goes as it should, or has not begun." })); return; }
  box.replaceChildren(...advice.map((one) => {
    const item = document.createElement("div"), what = document.createElement("p"), tip = document.createElement("p");
    item.className = `dt-advice dt-${one.severity}`;
    what.textContent = one.message;
    tip.textContent = one.try ? `Try: ${one.try}` : "";
    tip.className = "dt-quiet";
    item.append(what, tip);
    return item;
  }));
}

function show(state) { health(state); roles(state); }

start({ state: show, start: () => { show(window.dovetail?.state ?? null); story(); } });
