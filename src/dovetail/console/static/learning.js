import { chart } from "./charts.js";
import { drawCurves, drawEvaluations } from "./figures.js";

const FIRST = ["critic_loss", "q", "actor_loss", "loss", "entropy", "bc_loss"]; // these come first
const MAX_CHARTS = 8;

async function get(path) { return (await fetch(path)).json(); }

// separate timers: reading the learner's curves may take a second
function repeat(draw, pauseMs) {
  const next = async () => {
    try { await draw(); } catch { /* the console does not answer: try again */ }
    setTimeout(next, pauseMs);
  };
  next();
}

async function drawHistory() {
  const history = await get("/api/history");
  drawCurves(history, chart);
  drawEvaluations(document.getElementById("dt-evaluations"), history.evaluations);
}

async function drawLearner() {
  const curves = await get("/api/learner"), box = document.getElementById("dt-learner");
  const names = Object.keys(curves).filter((name) => varies(curves[name])).sort((a, b) => rank(a) - rank(b)).slice(0, MAX_CHARTS);
  if (!names.length) { box.textContent = "no updates yet"; return; }
  if (!box.children.length) box.textContent = "";
  for (const name of names) {
    let cell = box.querySelector(`[data-name="${CSS.escape(name)}"]`);
    if (!cell) {
      cell = document.createElement("div");
      cell.dataset.name = name;
      cell.append(Object.assign(document.createElement("h4"), { textContent: name.replaceAll("_", " ") }), document.createElement("div"));
      box.append(cell);
    }
    chart(cell.lastElementChild, [{ points: curves[name] }]);
  }
}

const varies = (points) => points.some((point) => point[1] !== points[0][1]);
const rank = (name) => (FIRST.indexOf(name) + 1 || 99);

(function start() {
  if (!document.getElementById("dt-learner")) { setTimeout(start, 20); return; }
  repeat(drawHistory, 2000);
  repeat(drawLearner, 4000);
})();
