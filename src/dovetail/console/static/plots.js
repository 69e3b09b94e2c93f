// Curves of an episode over one time axis: who was in control, rewards, the action, and the observations.

const GUTTER = 112; // width of the names
const RIGHT = 14;
const COLORS = ["#4ea1d3", "#e0894a", "#5fb58a", "#c56a9b", "#b5a23f", "#8f80d6", "#d3675f", "#52b3b8"];
const CONTROL = { human: "#e0894a", policy: "#4b7f9e" };
const LABEL = "#2e9e6b";

const css = (element, name, fallback) => getComputedStyle(element).getPropertyValue(name).trim() || fallback;

export class Plots {
  constructor(root, onSeek) {
    this.root = root;
    this.onSeek = onSeek;
    this.canvas = document.createElement("canvas");
    this.canvas.className = "dv-plots";
    root.append(this.canvas);
    this.still = document.createElement("canvas"); // everything except the playhead, drawn once
    this.details = null;
    this.marks = [];
    this.open = null; // first step of a range that has not ended
    this.index = 0;
    this.canvas.addEventListener("pointerdown", (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      this._seek(event);
    });
    this.canvas.addEventListener("pointermove", (event) => event.buttons & 1 && this._seek(event));
    new ResizeObserver(() => this.redraw()).observe(root);
    const theme = new MutationObserver(() => this.redraw());
    theme.observe(document.body, { attributes: true, attributeFilter: ["class"] });
  }

  show(details) {
    this.details = details;
    this.rows = details ? rowsOf(details) : [];
    this.redraw();
  }

  setMarks(marks, open) {
    const same = marks.length === 0 && this.marks.length === 0; // nearly always: then the curves need no redraw
    this.marks = [...marks];
    this.open = open;
    if (same) this._paint();
    else this.redraw();
  }

  moveTo(index) {
    this.index = index;
    this._paint();
  }

  get _numSteps() {
    return Math.max(1, this.details?.num_steps ?? 1);
  }

  // Step i spans x(i) to x(i + 1); observation i is at x(i).
  _x(step) {
    return GUTTER + (step / this._numSteps) * (this.width - GUTTER - RIGHT);
  }

  _seek(event) {
    const box = this.canvas.getBoundingClientRect();
    const share = (event.clientX - box.left - GUTTER) / (this.width - GUTTER - RIGHT);
    this.onSeek(Math.round(Math.min(1, Math.max(0, share)) * this._numSteps));
  }

  redraw() {
    const height = this.rows?.reduce((sum, row) => sum + row.height + 8, 6) ?? 0;
    this.width = Math.max(240, this.root.clientWidth);
    this.height = Math.max(20, height);
    const scale = window.devicePixelRatio || 1;
    for (const canvas of [this.canvas, this.still]) {
      canvas.width = Math.round(this.width * scale);
      canvas.height = Math.round(this.height * scale);
    }
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${this.height}px`;
    if (!this.details) return;
    this.headColor = css(this.root, "--dv-head", "#ffffff");
    const pen = this.still.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    const ink = { text: css(this.root, "--dv-text", "#ccc"), quiet: css(this.root, "--dv-quiet", "#888"), panel: css(this.root, "--dv-plot", "#1b2130") };
    let y = 3;
    for (const row of this.rows) {
      row.top = y;
      (row.kind === "control" ? drawControl : drawCurves)(pen, this, row, ink);
      y += row.height + 8;
    }
    this._drawMarks(pen, ink);
    this._paint();
  }

  _drawMarks(pen, ink) {
    for (const mark of this.marks) {
      const [left, right] = [this._x(mark.first), this._x(mark.last + 1)];
      const color = mark.reward === null ? "#b5a23f" : mark.reward < 0 ? "#d3675f" : "#5fb58a";
      pen.fillStyle = color + "2e";
      pen.fillRect(left, 0, right - left, this.height);
      pen.fillStyle = color;
      pen.fillRect(left, 0, 1.5, this.height);
      pen.fillRect(right - 1.5, 0, 1.5, this.height);
      pen.font = "600 11px system-ui, sans-serif";
      const text = mark.reward === null ? "?" : `${mark.reward > 0 ? "+" : ""}${mark.reward}`;
      pen.fillText(text, left + 5, this.rows[1] ? this.rows[1].top + 14 : 14);
    }
  }

  _paint() {
    const scale = window.devicePixelRatio || 1;
    const pen = this.canvas.getContext("2d");
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    if (!this.details) return;
    pen.drawImage(this.still, 0, 0);
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    const x = this._x(Math.min(this.index, this._numSteps));
    if (this.open !== null) {
      const [left, right] = [this._x(Math.min(this.open, this.index)), this._x(Math.max(this.open, this.index) + 1)];
      pen.fillStyle = "#d9b84033";
      pen.fillRect(left, 0, Math.min(right, this.width - RIGHT) - left, this.height);
    }
    pen.fillStyle = this.headColor;
    pen.fillRect(x - 0.75, 0, 1.5, this.height);
    for (const row of this.rows) this._dots(pen, row, x);
  }

  // The value of each curve at the current frame.
  _dots(pen, row, x) {
    if (!row.lines) return;
    const at = Math.min(Math.floor(this.index / this.details.every), (row.lines[0]?.values.length ?? 1) - 1);
    for (const line of row.lines) {
      const value = line.values[at];
      if (value === null || value === undefined) continue;
      pen.fillStyle = line.color;
      pen.beginPath();
      pen.arc(x, row.y(value), 2.6, 0, 2 * Math.PI);
      pen.fill();
    }
  }
}

function rowsOf(details) {
  const rows = [{ kind: "control", name: "in control", height: 16 }];
  const rewards = Object.entries(details.rewards).map(([name, values], i) => ({
    name,
    values,
    color: name === "label" ? LABEL : COLORS[i % COLORS.length],
    steps: true,
  }));
  if (rewards.length) rows.push({ kind: "curves", name: "reward", height: 56, lines: rewards });
  for (const curve of details.curves) {
    const lines = curve.values.map((values, i) => ({ name: curve.names[i], values, color: COLORS[i % COLORS.length] }));
    rows.push({ kind: "curves", name: curve.name, height: 64, lines });
  }
  return rows;
}

function title(pen, row, ink) {
  pen.textBaseline = "alphabetic";
  pen.font = "600 11px system-ui, sans-serif";
  pen.fillStyle = ink.text;
  pen.fillText(shortened(pen, row.name, GUTTER - 38), 2, row.top + 11.5);
}

function shortened(pen, text, width) {
  while (text.length > 2 && pen.measureText(text).width > width) text = `${text.slice(0, -2)}…`;
  return text;
}

function drawControl(pen, plots, row, ink) {
  title(pen, row, ink);
  for (const [first, last, who] of plots.details.control) {
    const [left, right] = [plots._x(first), plots._x(last + 1)];
    pen.fillStyle = CONTROL[who];
    pen.beginPath();
    pen.roundRect(left, row.top, Math.max(1, right - left - 0.5), row.height, 3);
    pen.fill();
    pen.font = "600 10px system-ui, sans-serif";
    pen.fillStyle = "#fff";
    if (right - left > 46) pen.fillText(who, left + 6, row.top + 11.5);
  }
}

function drawCurves(pen, plots, row, ink) {
  title(pen, row, ink);
  drawNames(pen, row, ink);
  const right = plots.width - RIGHT;
  pen.fillStyle = ink.panel;
  pen.beginPath();
  pen.roundRect(GUTTER, row.top, right - GUTTER, row.height, 4);
  pen.fill();
  const [low, high] = range(row.lines);
  row.y = (value) => row.top + row.height - 5 - ((value - low) / (high - low)) * (row.height - 10);
  if (low < 0 && high > 0) {
    pen.fillStyle = ink.quiet + "55";
    pen.fillRect(GUTTER, row.y(0), right - GUTTER, 1);
  }
  pen.lineWidth = 1.4;
  pen.lineJoin = "round";
  const every = plots.details.every;
  for (const line of row.lines) {
    pen.strokeStyle = line.color;
    pen.beginPath();
    let down = false;
    line.values.forEach((value, i) => {
      if (value === null) return (down = false);
      const y = row.y(value);
      pen[down ? "lineTo" : "moveTo"](plots._x(i * every), y);
      if (line.steps || i === line.values.length - 1) pen.lineTo(plots._x(Math.min((i + 1) * every, plots._numSteps)), y);
      down = true;
    });
    pen.stroke();
  }
  pen.font = "9px system-ui, sans-serif";
  pen.fillStyle = ink.quiet;
  pen.textAlign = "right";
  pen.fillText(short(high), GUTTER - 5, row.top + 9);
  pen.fillText(short(low), GUTTER - 5, row.top + row.height - 1);
  pen.textAlign = "left";
}

// The names of the curves below the name of the row, as many as fit.
function drawNames(pen, row, ink) {
  pen.font = "9.5px system-ui, sans-serif";
  let [x, y] = [2, row.top + 25];
  for (const line of row.lines) {
    const name = shortened(pen, line.name, 60);
    const width = pen.measureText(name).width;
    if (x + width > GUTTER - 34) [x, y] = [2, y + 12];
    if (y > row.top + row.height) break;
    pen.fillStyle = line.color;
    pen.fillText(name, x, y);
    x += width + 6;
  }
}

function range(lines) {
  let [low, high] = [Infinity, -Infinity];
  for (const line of lines)
    for (const value of line.values)
      if (value !== null) [low, high] = [Math.min(low, value), Math.max(high, value)];
  if (!Number.isFinite(low)) return [0, 1];
  if (high - low < 1e-9) return [Math.min(0, low) - (low === 0 ? 0 : 1e-6), Math.max(low, 0) + (low === 0 ? 1 : 1e-6)];
  return [low, high];
}

function short(value) {
  return Math.abs(value) < 1e-6 ? "0" : String(Number(value.toPrecision(2)));
}
