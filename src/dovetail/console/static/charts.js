// Small line charts as SVG. Colors come from the style sheet, so they follow the theme.
const NS = "http://www.w3.org/2000/svg", LEFT = 42, RIGHT = 18, TOP = 8, BOTTOM = 20;

function make(kind, attributes, parent) {
  const element = document.createElementNS(NS, kind);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  parent?.append(element);
  return element;
}

function roundTicks(low, high, count) {
  const raw = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].find((m) => m * power >= raw) * power, ticks = [];
  for (let t = Math.ceil(low / step - 1e-9) * step; t <= high + 1e-9 * step; t += step) ticks.push(Math.abs(t) < step / 1e6 ? 0 : t);
  return ticks;
}

const short = (n) => Math.abs(n) >= 1e6 ? `${+(n / 1e6).toFixed(1)}M` : Math.abs(n) >= 1e4 ? `${+(n / 1e3).toFixed(0)}k` : `${+n.toPrecision(3)}`;

// `lines`: [{ points: [[x, y]...], name?, kind?: "dots" }]; `options`: { share: y is 0 to 1, empty: text without points }
export function chart(box, lines, options = {}) {
  const all = lines.flatMap((line) => line.points).filter((p) => Number.isFinite(p[1]));
  if (!all.length) { box.replaceChildren(Object.assign(document.createElement("div"), { className: "dt-empty", textContent: options.empty || "no episodes yet" })); return; }
  const xs = all.map((p) => p[0]), ys = all.map((p) => p[1]);
  const x0 = Math.min(0, ...xs), x1 = Math.max(...xs, x0 + 1);
  let y0 = options.share ? 0 : Math.min(...ys), y1 = options.share ? 1 : Math.max(...ys);
  if (!options.share) { const margin = 0.08 * (y1 - y0) || Math.abs(y1) * 0.1 || 1; y0 -= margin; y1 += margin; if (y0 < 0 && Math.min(...ys) >= 0) y0 = 0; }
  const W = Math.max(160, box.clientWidth), H = Math.max(70, box.clientHeight); // one unit is one pixel, so text keeps its size
  const X = (x) => LEFT + (W - LEFT - RIGHT) * (x - x0) / (x1 - x0), Y = (y) => H - BOTTOM - (H - TOP - BOTTOM) * (y - y0) / (y1 - y0);
  const format = (y) => options.share ? `${Math.round(100 * y)} %` : short(y);
  const title = box.previousElementSibling?.textContent || "curve", newest = lines[0].points.at(-1);
  const svg = make("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": newest ? `${title}: now ${format(newest[1])}` : title });
  for (const t of options.share ? [0, 0.5, 1] : roundTicks(y0, y1, 3)) {
    make("line", { x1: LEFT, x2: W - RIGHT, y1: Y(t), y2: Y(t), class: "dt-grid" }, svg);
    make("text", { x: LEFT - 6, y: Y(t) + 3.5, class: "dt-tick", "text-anchor": "end" }, svg).textContent = format(t);
  }
  for (const t of roundTicks(x0, x1, W < 260 ? 3 : 4)) make("text", { x: X(t), y: H - 5, class: "dt-tick", "text-anchor": "middle" }, svg).textContent = short(t);
  for (const [index, line] of lines.entries()) {
    if (line.kind === "dots") {
      for (const [x, y, low, high] of line.points) {
        if (low !== undefined) make("line", { x1: X(x), x2: X(x), y1: Y(low), y2: Y(high), class: "dt-whisker" }, svg);
        make("circle", { cx: X(x), cy: Y(y), r: 3.5, class: "dt-dot" }, svg);
      }
      continue;
    }
    if (!line.points.length) continue;
    const path = line.points.map((p, i) => `${i ? "L" : "M"}${X(p[0]).toFixed(1)} ${Y(p[1]).toFixed(1)}`).join("");
    if (options.fill !== false && index === 0 && options.share) make("path", { d: `${path}L${X(line.points.at(-1)[0])} ${Y(0)}L${X(line.points[0][0])} ${Y(0)}Z`, class: "dt-area" }, svg);
    make("path", { d: path, class: `dt-line dt-line-${index}` }, svg);
    const last = line.points.at(-1);
    make("circle", { cx: X(last[0]), cy: Y(last[1]), r: 3, class: `dt-end dt-line-${index}` }, svg);
  }
  hover(svg, lines.find((line) => line.kind !== "dots")?.points || all, { X, Y, W, H, format });
  box.replaceChildren(svg);
}

function hover(svg, points, { X, Y, W, H, format }) {
  const mark = make("g", { class: "dt-hover", visibility: "hidden" }, svg);
  const rule = make("line", { y1: TOP, y2: H - BOTTOM, class: "dt-rule" }, mark), dot = make("circle", { r: 3.5, class: "dt-end dt-line-0" }, mark), text = make("text", { class: "dt-reading", y: TOP + 8 }, mark);
  svg.addEventListener("pointermove", (event) => {
    const at = (event.clientX - svg.getBoundingClientRect().left) * W / svg.getBoundingClientRect().width;
    const near = points.reduce((best, p) => Math.abs(X(p[0]) - at) < Math.abs(X(best[0]) - at) ? p : best, points[0]);
    mark.setAttribute("visibility", "visible");
    rule.setAttribute("x1", X(near[0])); rule.setAttribute("x2", X(near[0]));
    dot.setAttribute("cx", X(near[0])); dot.setAttribute("cy", Y(near[1]));
    const left = X(near[0]) > W / 2;
    text.setAttribute("x", X(near[0]) + (left ? -6 : 6)); text.setAttribute("text-anchor", left ? "end" : "start");
    text.textContent = `${format(near[1])} at ${short(near[0])} steps`;
  });
  svg.addEventListener("pointerleave", () => mark.setAttribute("visibility", "hidden"));
}
