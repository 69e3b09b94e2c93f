// The figures of a set of episodes, as `Performance.to_json` gives them: success, cycle time, throughput, interventions, return.
// An environment without success has a return and no success, cycle time or throughput.

export const short = (value) => Math.abs(value) < 1e-6 ? "0" : Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6 ? String(+value.toPrecision(3)) : value.toExponential(1);
const known = (value) => value !== null && value !== undefined;
const percent = (value) => `${Math.round(100 * value)} %`;

// [name, value, detail] for each figure that is known. The main one comes first.
export function figureRows(one) {
  const rows = [];
  if (known(one.rate)) rows.push(["success", percent(one.rate), known(one.low) ? `${percent(one.low)} to ${percent(one.high)}` : ""]);
  if (known(one.return)) rows.push(["return", short(one.return.mean), one.return.count > 1 ? `${short(one.return.low)} to ${short(one.return.high)}` : ""]);
  if (known(one.cycle_time_s)) rows.push(["cycle time", `${short(one.cycle_time_s.median)} s`, one.cycle_time_s.count === 1 ? "one success" : `${short(one.cycle_time_s.low)} to ${short(one.cycle_time_s.high)} s`]);
  if (known(one.per_minute)) rows.push(["successes / min", short(one.per_minute), known(one.per_minute_with_resets) ? `${short(one.per_minute_with_resets)} with resets` : ""]);
  if (known(one.interventions_per_minute)) rows.push(["interventions / min", short(one.interventions_per_minute), ""]);
  return rows;
}

function element(tag, text, kind) { return Object.assign(document.createElement(tag), { textContent: text, className: kind || "" }); }

// `recent`: of the last online episodes; null before the first.
export function drawFigures(box, recent) {
  const drawn = JSON.stringify(recent ?? null);
  if (box.dataset.drawn === drawn) return;
  box.dataset.drawn = drawn;
  if (!recent) { box.replaceChildren(element("span", "no online episodes yet")); return; }
  box.replaceChildren(...figureRows(recent).map(([name, value, detail]) => {
    const cell = document.createElement("div");
    cell.dataset.figure = name;
    cell.append(element("b", value), element("span", name), element("small", detail));
    return cell;
  }));
}

const COLUMNS = ["success", "return", "cycle time", "successes / min", "interventions / min"];

// A table of evaluations, the newest first. Columns without any value are left out.
export function drawEvaluations(box, evaluations) {
  const drawn = JSON.stringify(evaluations);
  if (box.dataset.drawn === drawn) return;
  box.dataset.drawn = drawn;
  if (!evaluations.length) { box.replaceChildren(element("p", "no evaluations yet", "dt-quiet")); return; }
  const rows = evaluations.map((one) => [one, Object.fromEntries(figureRows(one).map(([name, ...rest]) => [name, rest]))]).reverse();
  const columns = COLUMNS.filter((name) => rows.some(([, figures]) => figures[name]));
  const table = element("table", "", "dt-roles dt-evaluations"), head = document.createElement("tr"), body = document.createElement("tbody");
  head.append(...["evaluation", "episodes", ...columns].map((name) => element("th", name)));
  for (const [one, figures] of rows) {
    const line = document.createElement("tr"), first = element("td", one.name || "evaluation");
    if (known(one.env_steps)) first.append(element("small", `at ${one.env_steps} steps`));
    line.append(first, element("td", String(one.episodes ?? "")), ...columns.map((name) => {
      const [value, detail] = figures[name] || ["–", ""], cell = element("td", value);
      if (detail) cell.append(element("small", detail));
      return cell;
    }));
    body.append(line);
  }
  const header = document.createElement("thead");
  header.append(head);
  table.append(header, body);
  box.replaceChildren(table);
}

// Whether the environment reports success. Without it, the pages show the return instead.
export const hasSuccess = (history) => Boolean(history.curves.success?.length) || history.evaluations.some((one) => known(one.rate)) || !history.curves.return?.length;

// Points for a chart: [env steps, value, low, high].
export function evaluationPoints(evaluations, curve) {
  const of = { success: (one) => known(one.rate) && [one.rate, one.low, one.high], return: (one) => one.return && [one.return.mean, one.return.low, one.return.high], cycle_time_s: (one) => one.cycle_time_s && [one.cycle_time_s.median, one.cycle_time_s.low, one.cycle_time_s.high] }[curve];
  return of ? evaluations.filter((one) => known(one.env_steps) && of(one)).map((one) => [one.env_steps, ...of(one)]) : [];
}

// Draw the curves of the page; charts about success disappear where there is none.
export function drawCurves(history, chart) {
  const shown = hasSuccess(history);
  for (const box of document.querySelectorAll("[data-curve]")) {
    const curve = box.dataset.curve;
    box.closest(".dt-card").hidden = !shown && ["success", "cycle_time_s"].includes(curve);
    const lines = [{ points: history.curves[curve] || [] }];
    if (box.dataset.evaluations) lines.push({ kind: "dots", points: evaluationPoints(history.evaluations, curve) });
    chart(box, lines, { share: box.dataset.kind === "share" });
  }
}
