// The roles of a run that does everything at once: how each one is, what waits there, how fast it goes. Others have none.
import { post } from "./console.js";
import { seconds } from "./robot.js";

const PIPELINE = [ // what is told of the whole: name, unit, digits, worrying from
  ["episodes_per_min", "episodes / min", 1, Infinity], ["updates_per_s", "updates / s", 0, Infinity], ["steps_behind", "steps not learned yet", 0, Infinity],
  ["versions_behind", "versions behind", 0, 5], ["labels_under_way", "labels under way", 0, 20],
];
const rate = (row) => row.updates_per_s != null ? `${row.updates_per_s.toFixed(0)} updates/s` : row.episodes_per_min != null ? `${row.episodes_per_min.toFixed(1)} episodes/min` : "";
const weights = (row) => row.version === undefined ? "" : `v${row.version}${row.versions_behind ? `, ${row.versions_behind} behind` : ""}`;
const COLUMNS = [
  ["role", (row) => row.name], ["", (row) => row.health + (row.starts > 1 ? ` (started ${row.starts} times)` : "")], ["doing", (row) => row.problem || row.doing],
  ["waiting", (row) => row.queue ?? ""], ["rate", rate], ["weights", weights], ["on", (row) => row.host],
];

function cell(tag, text) { return Object.assign(document.createElement(tag), { textContent: text }); }

function line(row) {
  const made = document.createElement("tr");
  made.dataset.role = row.name;
  made.classList.toggle("dt-worry", row.health !== "well" && row.health !== "starting");
  made.append(...COLUMNS.map(([, of]) => cell("td", of(row))));
  return made;
}

let offered = "";
function seenTo(rows) { // made anew only when others have stopped: a button that changes under a finger is not pressed
  const stopped = rows.filter((row) => row.may_acknowledge).map((row) => row.name);
  if (stopped.join() === offered) return;
  offered = stopped.join();
  document.getElementById("dt-seen-to").replaceChildren(...stopped.map((name) => {
    const button = Object.assign(cell("button", `acknowledge ${name}`), { className: "dt-button", onclick: () => post("/api/acknowledge", { robot: name }) });
    button.dataset.seenTo = name;
    return button;
  }));
}

export function roles(state) {
  const box = document.getElementById("dt-roles"), rows = state?.facts?.roles || [], whole = state?.facts?.pipeline || {};
  box.hidden = !rows.length;
  if (box.hidden) return;
  const stats = PIPELINE.filter(([key]) => whole[key] != null).map(([key, name, digits, worrying]) => {
    const stat = document.createElement("div");
    stat.classList.toggle("dt-worry", whole[key] >= worrying);
    stat.append(cell("b", whole[key].toFixed(digits)), cell("span", name));
    return stat;
  });
  if (state.weights_age_s != null) {
    const stat = document.createElement("div");
    stat.append(cell("b", seconds(state.weights_age_s)), cell("span", "since the last weights"));
    stats.push(stat);
  }
  document.getElementById("dt-pipeline").replaceChildren(...stats);
  seenTo(rows);
  const head = document.createElement("tr");
  head.append(...COLUMNS.map(([name]) => cell("th", name)));
  box.querySelector("thead").replaceChildren(head);
  box.querySelector("tbody").replaceChildren(...rows.map(line));
}
