// The deployed policy and its candidate side by side. A change is asked for once more in the page, and not in a dialog of the
// browser: a dialog would block STOP.

import { make } from "./dom.js";
import { short } from "./figures.js";

const percent = (value) => `${Math.round(100 * value)} %`;
const points = (value) => `${value > 0 ? "+" : ""}${Math.round(100 * value)}`;
const ASK = {
  approve: (name) => `Deploy ${name}? It acts from the next episode on.`,
  "roll back": (name) => `Roll back ${name}? The policy before it acts from the next episode on.`,
};
const YES = { approve: "Yes, deploy", "roll back": "Yes, roll back" };
let asking = null; // { change, seen } while the page asks for a confirmation
let said = "";

function figure(of, what) {
  if (!of) return [];
  const value = of.rate === undefined ? short(of.mean) : percent(of.rate);
  const between = of.rate === undefined ? `${short(of.low)} to ${short(of.high)}` : `${percent(of.low)} to ${percent(of.high)}`;
  const cell = make("div");
  cell.append(make("b", "", value), make("span", "", `${what}, ${of.episodes} episodes`), make("small", "", `95 %: ${between}`));
  return [cell];
}

function answerText(test) {
  const unit = (value) => test.is_success ? points(value) : short(value);
  const range = test.low === null ? "" : ` (${unit(test.low)} to ${unit(test.high)})`;
  const margin = test.is_success ? `${Math.round(100 * test.margin)} points` : short(test.margin);
  const answer = test.answer === "cannot tell" && !test.finished ? "cannot tell yet" : test.answer;
  return `Candidate minus deployed: ${unit(test.difference)}${test.is_success ? " points" : ""}${range} after ${test.num_pairs} of at most ${test.max_pairs} pairs. ` +
    `Is it worse by more than ${margin}? Answer: ${answer}.`;
}

function lastText(last) {
  if (!last.change) return "";
  return `Last decision: ${last.name} ${last.change}` + (last.reason ? `: ${last.reason}.` : last.answer ? ` (${last.answer}).` : ".");
}

function panel(title, policy, rows, button, disabled) {
  const box = make("div", "dt-policy"), stats = make("div", "dt-stats dt-figures");
  box.append(make("h4", "", title), make("div", "dt-number", policy ? policy.name : "none"));
  stats.append(...rows);
  box.append(stats);
  if (policy?.note) box.append(make("p", "dt-quiet", policy.note));
  if (button && policy) box.append(actions(button, policy, disabled));
  return box;
}

function actions(change, policy, disabled) {
  const row = make("div", "dt-actions");
  if (asking?.change === change && asking.seen === policy.weights) {
    const yes = make("button", "dt-button dt-main-button", YES[change]), no = make("button", "dt-button", "Cancel");
    yes.onclick = () => send(change, policy.weights);
    no.onclick = () => { asking = null; draw(); };
    row.append(make("p", "", ASK[change](policy.name)), yes, no);
  } else {
    const button = make("button", "dt-button", change === "approve" ? "Approve" : "Roll back");
    button.dataset.change = change;
    button.disabled = disabled;
    button.onclick = () => { asking = { change, seen: policy.weights }; said = ""; draw(); };
    row.append(button);
  }
  return row;
}

async function send(change, seen) {
  asking = null;
  said = "sending …";
  draw();
  try {
    const answer = await fetch("/api/deployment", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ change, seen }) });
    const result = await answer.json();
    said = !answer.ok ? result.detail : result.done ? "Done." : "The run does this between two episodes.";
  } catch { said = "The console does not answer. Nothing was changed."; }
  await refresh();
}

let shown = null, drawn = "";

function draw() {
  const box = document.getElementById("dt-deployment"), now = JSON.stringify([shown, asking, said]);
  if (drawn === now) return;
  drawn = now;
  box.closest(".dt-card").hidden = !shown;
  if (!shown) return;
  const { deployed, candidate, test, earlier, last, requested } = shown;
  deployed.note = deployed.evidence === null || deployed.expected_rate === null ? "No comparison gives a rate that is expected of it, so it is not rolled back automatically."
    : `Expected: at least ${percent(deployed.expected_rate)}. Evidence against it: ${short(deployed.evidence)}; at ${short(deployed.limit)} it is rolled back automatically.`;
  if (candidate && !test) candidate.note = "Its comparison has no pair of episodes yet.";
  const sides = make("div", "dt-two");
  sides.append(
    panel("Deployed: acts on the arm", deployed, [...figure(deployed.alone, "without help"), ...figure(deployed.compared, "in this comparison")], earlier.length ? "roll back" : "", Boolean(requested)),
    panel("Candidate", candidate, figure(candidate?.compared, "in this comparison"), "approve", Boolean(requested)),
  );
  const lines = [test ? answerText(test) : "", lastText(last), earlier.length ? `A roll-back returns to ${earlier[0]}.` : "", requested ? `Asked for: ${requested}.` : "", said];
  const status = make("div", "dt-evidence");
  status.setAttribute("role", "status");
  status.append(...lines.filter(Boolean).map((text) => make("p", "", text)));
  box.replaceChildren(sides, status);
}

async function refresh() {
  const answer = await fetch("/api/deployment"), result = await answer.json();
  if (answer.ok) shown = result.deployment;
  else said = result.detail;
  const policy = asking?.change === "approve" ? shown?.candidate : shown?.deployed;
  if (asking && asking.seen !== policy?.weights) { asking = null; said = "The policies have changed. Look again."; }
  draw();
}

(function start() {
  if (!document.getElementById("dt-deployment")) { setTimeout(start, 20); return; }
  const next = async () => {
    try { await refresh(); } catch { /* the console does not answer: try again */ }
    setTimeout(next, 2000);
  };
  next();
})();
