// The roles of a run on Ray: state, waiting items and rate of each. Inline runs have no roles.
import { post } from "./console.js";
import { seconds } from "./robot.js";

const PIPELINE = [ // key, name, digits, warning from
  ["episodes_per_min", "episodes / min", 1, Infinity], ["updates_per_s", "updates / s", 0, Infinity], ["steps_behind", "steps not yet learned from", 0, Infinity],
  ["versions_behind", "versions behind", 0, 5], ["labels_under_way", "labels pending", 0, 20],
];
const rateText = (row) => row.updates_per_s != null ? `${row.updates_per_s.toFixed(0)} updates/s` : row.episodes_per_min != null ? `${row.episodes_per_min.toFixed(1)} episodes/min` : "";
const weightsText = (row) => row.version === undefined ? "" : `v${row.version}${row.versions_behind ? `, ${row.versions_behind} behind` : ""}`;
const COLUMNS = [
  ["role", (row) => row.name], ["", (row) => row.health + (row.starts > 1 ? ` (started ${row.starts} times)` : "")], ["doing", (row) => row.problem || row.doing],
  ["waiting", (row) => row.queue ?? ""], ["rate", rateText], ["weights", weightsText], ["on", (row) => row.host],
];

function cell(tag, text) { return Object.assign(document.createElement(tag), { textContent: text }); }

function rowElement(row) {
  const made = document.createElement("tr");
  made.dataset.role = row.name;
  made.classList.toggle("dt-warn", row.health !== "well" && row.health !== "starting");
  made.append(...COLUMNS.map(([, of]) => cell("td", of(row))));
  return made;
}

let shownButtons = "";
function drawAcknowledge(rows) { // only after a change: a button that is replaced while it is pressed would not react
  const stopped = rows.filter((row) => row.may_acknowledge).map((row) => row.name);
  if (stopped.join() === shownButtons) return;
  shownButtons = stopped.join();
  document.getElementById("dt-acknowledge").replaceChildren(...stopped.map((name) => {
    const button = Object.assign(cell("button", `acknowledge ${name}`), { className: "dt-button", onclick: () => post("/api/acknowledge", { robot: name }) });
    button.dataset.acknowledge = name;
    return button;
  }));
}

export function drawRoles(state) {
  const box = document.getElementById("dt-roles"), rows = state?.facts?.roles || [], whole = state?.facts?.pipeline || {};
  box.hidden = !rows.length;
  if (box.hidden) return;
  const stats = PIPELINE.filter(([key]) => whole[key] != null).map(([key, name, digits, limit]) => {
    const stat = document.createElement("div");
    stat.classList.toggle("dt-warn", whole[key] >= limit);
    stat.append(cell("b", whole[key].toFixed(digits)), cell("span", name));
    return stat;
  });
  if (state.weights_age_s != null) {
    const stat = document.createElement("div");
    stat.append(cell("b", seconds(state.weights_age_s)), cell("span", "since the last weights"));
    stats.push(stat);
  }
  document.getElementById("dt-pipeline").replaceChildren(...stats);
  drawAcknowledge(rows);
  const head = document.createElement("tr");
  head.append(...COLUMNS.map(([name]) => cell("th", name)));
  box.querySelector("thead").replaceChildren(head);
  box.querySelector("tbody").replaceChildren(...rows.map(rowElement));
}
