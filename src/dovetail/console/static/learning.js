import { chart } from "./charts.js";

const FIRST = ["critic_loss", "q", "actor_loss", "loss", "entropy", "bc_loss"]; // what people look for, before the rest
const MOST = 8;

async function get(path) { return (await fetch(path)).json(); }

// the learner's curves may take a moment to be read: nothing else waits for them
function often(draw, pause) {
  const again = async () => {
    try { await draw(); } catch { /* the console is gone for the moment */ }
    setTimeout(again, pause);
  };
  again();
}

async function story() {
  const told = await get("/api/story");
  const evaluated = told.evaluations.filter((one) => one.env_steps !== undefined).map((one) => [one.env_steps, one.rate, one.low, one.high]);
  for (const box of document.querySelectorAll("[data-curve]")) {
    const lines = [{ points: told.curves[box.dataset.curve] || [] }];
    if (box.dataset.curve === "success") lines.push({ kind: "dots", points: evaluated });
    chart(box, lines, { share: box.dataset.kind === "share" });
  }
}

async function learner() {
  const curves = await get("/api/learner"), box = document.getElementById("dt-learner");
  const names = Object.keys(curves).filter((name) => moves(curves[name])).sort((a, b) => rank(a) - rank(b)).slice(0, MOST);
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

const moves = (points) => points.some((point) => point[1] !== points[0][1]);
const rank = (name) => (FIRST.indexOf(name) + 1 || 99);

(function start() {
  if (!document.getElementById("dt-learner")) { setTimeout(start, 20); return; }
  often(story, 2000);
  often(learner, 4000);
})();
