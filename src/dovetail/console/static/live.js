import { chart } from "./charts.js";
import { drawCurves, drawFigures } from "./figures.js";
import { drawRoles } from "./roles.js";
import { start } from "./robot.js";

const HEALTH = [
  ["late_ms", "late", "ms", 20], ["worst_late_ms", "latest tick", "ms", 100], ["overruns", "overruns", "", 1], ["inference_ms", "inference", "ms", Infinity],
];

function drawHealth(state) {
  const box = document.getElementById("dt-health"), now = state?.health || {};
  box.replaceChildren(...HEALTH.filter(([key]) => now[key] !== undefined).map(([key, name, unit, limit]) => {
    const cell = document.createElement("div"), value = document.createElement("b"), label = document.createElement("span");
    const shown = now[key] >= 100 || Number.isInteger(now[key]) ? Math.round(now[key]) : now[key].toFixed(1);
    value.textContent = unit ? `${shown} ${unit}` : shown;
    label.textContent = name;
    cell.classList.toggle("dt-warn", now[key] >= limit);
    cell.append(value, label);
    return cell;
  }));
  if (!box.children.length) box.textContent = state ? "no ticks yet" : "not running";
}

async function drawHistory() {
  try {
    const history = await (await fetch("/api/history")).json();
    drawCurves(history, chart);
    drawAdvice(history.advice);
  } catch { /* the console does not answer: try again below */ }
  setTimeout(drawHistory, 2000);
}

function drawAdvice(advice) {
  const box = document.getElementById("dt-coach");
  if (!advice.length) { box.replaceChildren(Object.assign(document.createElement("p"), { className: "dt-quiet", textContent: "No advice: no problem was found, or learning has not started." })); return; }
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

function show(state) {
  drawHealth(state);
  drawRoles(state);
  if (state) drawFigures(document.getElementById("dt-figures"), state.facts?.recent);
}

start({ state: show, start: () => { show(window.dovetail?.state ?? null); drawHistory(); } });
