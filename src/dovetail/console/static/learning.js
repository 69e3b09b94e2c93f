import { chart } from "./charts.js";

const FIRST = ["critic_loss", "q", "actor_loss", "loss", "entropy", "bc_loss"]; // what people look for, before the rest
const MOST = 8;

async function get(path) { return (await fetch(path)).json(); }

async function draw() {
  try {
    const [told, learner] = await Promise.all([get("/api/story"), get("/api/learner")]);
    const evaluated = told.evaluations.filter((one) => one.env_steps !== undefined).map((one) => [one.env_steps, one.rate, one.low, one.high]);
    for (const box of document.querySelectorAll("[data-curve]")) {
      const lines = [{ points: told.curves[box.dataset.curve] || [] }];
      if (box.dataset.curve === "success") lines.push({ kind: "dots", points: evaluated });
      chart(box, lines, { share: box.dataset.kind === "share" });
    }
    const names = Object.keys(learner).filter((name) => moves(learner[name])).sort((a, b) => rank(a) - rank(b)).slice(0, MOST);
    const box = document.getElementById("dt-learner");
    if (!names.length) box.textContent = "no updates yet";
    for (const name of names) {
      let cell = box.querySelector(`[data-name="${CSS.escape(name)}"]`);
      if (!cell) {
        if (!box.children.length) box.textContent = "";
        cell = document.createElement("div");
        cell.dataset.name = name;
        cell.append(Object.assign(document.createElement("h4"), { textContent: name.replaceAll("_", " ") }), document.createElement("div"));
        box.append(cell);
      }
      chart(cell.lastElementChild, [{ points: learner[name] }]);
    }
  } catch { /* the console is gone for the moment */ }
  setTimeout(draw, 3000);
}

const moves = (points) => points.some((point) => point[1] !== points[0][1]);
const rank = (name) => (FIRST.indexOf(name) + 1 || 99);

(function start() { document.getElementById("dt-learner") ? draw() : setTimeout(start, 20); })();
