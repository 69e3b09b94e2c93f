// The page "Episodes": search, play and download recorded episodes.

import { Bundle, ask } from "./bundle.js";
import { clock, laterPrompts, make } from "./dom.js";
import { labelLine } from "./label_line.js";
import { Player } from "./player.js";

const PAGE = 50;
const POLL_MS = 5000;
const CHOICES = {
  outcome: ["success", "failure", "timeout", "aborted"],
  purpose: ["demo", "online", "eval"],
  label: ["success", "failure", "discard", "none"],
};
const COLUMNS = [["", ""], ["", ""], ["no.", "number"], ["episode", "time"], ["task", "task"], ["purpose", ""], ["outcome", "outcome"], ["label", ""],
  ["steps", "steps"], ["by operator", "human"], ["weights", "version"], ["", ""]];

const megabytes = (bytes) => `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`;

class EpisodesPage {
  constructor(root) {
    this.root = root;
    this.query = { sort: "number", descending: true, offset: 0, limit: PAGE };
    this.rows = [];
    this.selected = new Set();
    this.bundle = null;
    this.build();
    document.addEventListener("keydown", (event) => this.key(event));
    setInterval(() => document.hidden || this.refresh(), POLL_MS);
  }

  build() {
    this.root.className = "dv-episodes";
    this.root.innerHTML =
      '<div class="dv-filters"><input type="search" name="text" placeholder="search (/)" aria-label="search"><span class="dv-found"></span>' +
      '<span class="dv-actions"></span></div><div class="dv-grid"><table><thead><tr></tr></thead><tbody></tbody></table></div>' +
      '<div class="dv-pages"></div><div class="dv-viewer" role="dialog" aria-label="episode" hidden><div class="dv-view" tabindex="-1"><header></header><div class="dv-screen"></div>' +
      '<aside><h2>Labels</h2><ul class="dv-labels"></ul></aside></div></div>';
    const get = (name) => this.root.querySelector(name);
    [this.found, this.actions, this.body, this.pages, this.viewer, this.head, this.labels] =
      [".dv-found", ".dv-actions", "tbody", ".dv-pages", ".dv-viewer", ".dv-view > header", ".dv-labels"].map(get);
    this.search = get("input[name=text]");
    this.search.addEventListener("input", () => this.setQuery({ text: this.search.value }));
    this.selects = {};
    for (const name of ["outcome", "purpose", "task", "operator", "label"]) {
      const select = (this.selects[name] = make("select"));
      select.name = name;
      select.setAttribute("aria-label", name);
      select.addEventListener("change", () => this.setQuery({ [name]: select.value }));
      this.fill(name, CHOICES[name] ?? []);
      this.found.before(select);
    }
    for (const [title, sort] of COLUMNS) {
      const cell = make("th", ["steps", "weights", "no."].includes(title) ? "dv-num" : "", sort ? "" : title);
      if (sort) {
        cell.dataset.sort = sort;
        cell.append(make("button", "dv-sort", title));
        cell.addEventListener("click", () => this.setQuery({ sort, descending: this.query.sort === sort ? !this.query.descending : true }));
      }
      get("thead tr").append(cell);
    }
    this.player = new Player(get(".dv-screen"));
    this.viewer.addEventListener("click", (event) => event.target === this.viewer && this.close());
    this.drawActions();
  }

  fill(name, choices) {
    const select = this.selects[name];
    const shown = [...select.options].slice(1).map((option) => option.value);
    if (select.options.length && shown.join("\n") === choices.join("\n")) return;
    const { value } = select;
    select.replaceChildren(new Option(`any ${name}`, ""), ...choices.map((choice) => new Option(choice || "(none)", choice)));
    select.value = choices.includes(value) ? value : "";
  }

  setQuery(change) {
    this.query = { ...this.query, offset: 0, ...change };
    return this.refresh();
  }

  async refresh() {
    const query = this.query;
    const parameters = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== ""));
    let found;
    try {
      found = await ask(`/api/episodes?${parameters}`);
    } catch (error) {
      this.found.textContent = error.message;
      return;
    }
    if (query !== this.query) return; // the user has changed it since
    this.rows = found.rows;
    this.fill("task", found.tasks);
    this.fill("operator", found.operators);
    this.found.textContent = `${found.matching} of ${found.total} episodes`;
    this.found.title = found.problems.join("\n");
    this.root.dataset.matching = String(found.matching);
    this.drawRows();
    this.drawPages(found.matching);
  }

  // ---- drawing

  drawRows() {
    const drawn = JSON.stringify([this.rows, this.query.sort, this.query.descending]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    this.root.querySelectorAll("th[data-sort]").forEach((cell) => {
      const title = COLUMNS.find(([, sort]) => sort === cell.dataset.sort)[0];
      const sorted = cell.dataset.sort === this.query.sort;
      cell.firstElementChild.textContent = sorted ? `${title} ${this.query.descending ? "↓" : "↑"}` : title;
      cell.setAttribute("aria-sort", !sorted ? "none" : this.query.descending ? "descending" : "ascending");
    });
    this.body.replaceChildren(...this.rows.map((row) => this.line(row)));
  }

  line(row) {
    const line = make("tr");
    line.dataset.id = row.id;
    const box = Object.assign(make("input"), { type: "checkbox", checked: this.selected.has(row.id), ariaLabel: `select episode ${row.number}` });
    box.addEventListener("click", (event) => event.stopPropagation());
    box.addEventListener("change", () => {
      this.selected[box.checked ? "add" : "delete"](row.id);
      this.drawActions();
    });
    const image = Object.assign(make("img"), { loading: "lazy", alt: "", src: `/api/episodes/${row.id}/thumbnail` });
    image.addEventListener("error", () => image.classList.add("dv-missing"));
    const when = make("div", "", clock(row.started_unix_s));
    when.append(make("small", "", row.id));
    const share = make("div", "dv-human-share");
    share.append(Object.assign(make("div"), { style: `width:${Math.round(100 * row.human_share)}%` }));
    share.title = `${Math.round(100 * row.human_share)} % of the steps by an operator`;
    const label = row.label ? make("span", `dv-chip dv-${row.label}`, row.label) : make("span", "dv-quiet", "none");
    label.title = row.label ? `${row.labeler}, ${Math.round(100 * row.confidence)} % confidence` : "";
    const play = Object.assign(make("button", "dt-button", "play"), { title: "play it", ariaLabel: `play episode ${row.number}` });
    const cells = [box, image, String(row.number), when, row.task, row.purpose, make("span", `dv-chip dv-${row.outcome}`, row.outcome),
      label, String(row.num_steps), share, String(row.policy_version), play];
    cells.forEach((cell, i) => {
      const column = make("td", [2, 8, 10].includes(i) ? "dv-num" : "");
      column.dataset.column = COLUMNS[i][0]; // on a phone, each cell shows its name
      column.append(cell);
      line.append(column);
    });
    line.addEventListener("click", () => this.open(row.id));
    return line;
  }

  drawPages(matching) {
    const { offset } = this.query;
    const step = (title, to, possible) => {
      const button = Object.assign(make("button", "dt-button", title), { disabled: !possible });
      button.addEventListener("click", () => this.setQuery({ offset: to }));
      return button;
    };
    const position = make("span", "", `${matching ? offset + 1 : 0}–${Math.min(offset + PAGE, matching)} of ${matching}`);
    this.pages.hidden = matching <= PAGE;
    this.pages.replaceChildren(step("← newer", Math.max(0, offset - PAGE), offset > 0), position, step("older →", offset + PAGE, offset + PAGE < matching));
  }

  drawActions() {
    if (this.selected.size === 0) return this.actions.replaceChildren();
    const download = make("button", "dt-button", `LeRobot (${this.selected.size})`);
    download.title = "download the selected episodes as a LeRobot dataset";
    download.addEventListener("click", () => this.download("lerobot", [...this.selected], this.actions));
    const none = make("button", "dt-button", "select none");
    none.addEventListener("click", () => {
      this.selected.clear();
      this.root.querySelectorAll("input[type=checkbox]").forEach((box) => (box.checked = false));
      this.drawActions();
    });
    this.actions.replaceChildren(download, none);
  }

  // ---- one episode

  async open(id) {
    this.bundle?.close();
    const bundle = (this.bundle = new Bundle(id));
    if (this.viewer.hidden) this.focusBefore = document.activeElement;
    this.viewer.hidden = false;
    this.root.querySelector(".dv-view").focus();
    this.viewer.dataset.episode = "";
    try {
      await bundle.ready();
    } catch (error) {
      if (this.bundle === bundle) this.head.replaceChildren(make("div", "", error.message), this.button("close (q)", () => this.close()));
      return;
    }
    if (this.bundle !== bundle) return;
    const { details } = bundle;
    const title = make("div");
    title.append(make("strong", "", details.prompt || details.task), ...laterPrompts(details), make("div", "dv-facts", `no. ${details.number} · ${details.purpose} · ended: ${details.outcome} · ` +
      `${details.num_steps} steps, ${details.duration_s.toFixed(1)} s · operator ${details.operator} · ${details.id}`));
    const label = make("a", "dt-button", "label (l)");
    label.href = `/label?episode=${id}`;
    this.head.replaceChildren(title, label, this.button("video", () => this.download("video", [id], this.head)),
      this.button("LeRobot", () => this.download("lerobot", [id], this.head)), this.button("close (q)", () => this.close()));
    this.labels.replaceChildren(...(details.labels.length ? details.labels.toReversed().map(labelLine) : [make("li", "dv-quiet", "no labels yet")]));
    await this.player.show(bundle);
    this.viewer.dataset.episode = id;
    bundle.decodeAhead(0);
  }

  button(title, act) {
    const button = make("button", "dt-button", title);
    button.addEventListener("click", (event) => {
      if (event.detail) button.blur();
      act();
    });
    return button;
  }

  close() {
    this.player.clear();
    this.bundle?.close();
    this.bundle = null;
    this.viewer.hidden = true;
    this.focusBefore?.focus();
  }

  // Shows progress until the file is ready, then fetches it.
  async download(kind, ids, beside) {
    const job = make("span", "dv-job");
    const bar = make("div", "dv-bar");
    const done = make("div");
    bar.append(done);
    job.append(bar, make("span", "", "waiting"));
    beside.append(job);
    const show = (text) => (job.lastChild.textContent = text);
    try {
      const { key } = await ask("/api/downloads", { kind, ids });
      for (;;) {
        const status = await ask(`/api/downloads/${key}`);
        done.style.width = `${status.total ? (100 * status.done) / status.total : 0}%`;
        if (status.state === "failed") throw new Error(status.error);
        if (status.state === "done") {
          show(`${status.name}, ${megabytes(status.num_bytes)}`);
          const link = Object.assign(make("a"), { href: `/api/downloads/${key}/file`, download: status.name });
          link.click();
          break;
        }
        show(status.total ? `${status.done} of ${status.total}` : status.state);
        await new Promise((later) => setTimeout(later, 250));
      }
    } catch (error) {
      show(error.message);
    }
    bar.hidden = true;
    setTimeout(() => job.remove(), 8000);
  }

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.target instanceof HTMLElement && event.target.matches("input:not(.dv-scrub):not([type=checkbox]), textarea, select")) return;
    if (event.key === "/") {
      event.preventDefault();
      return this.search.focus();
    }
    if (!this.bundle) return;
    if (event.key === " " && event.target instanceof HTMLElement && event.target.matches("button, a")) return; // it presses the button
    const distance = event.shiftKey ? 10 : 1;
    const act = { ArrowLeft: () => this.player.step(-distance), ArrowRight: () => this.player.step(distance), Home: () => this.player.step(-1e9),
      End: () => this.player.step(1e9), " ": () => event.repeat || this.player.toggle(), ArrowUp: () => this.openNeighbor(-1), ArrowDown: () => this.openNeighbor(1),
      q: () => this.close(), l: () => location.assign(`/label?episode=${this.bundle.id}`) }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  openNeighbor(by) {
    const at = this.rows.findIndex((row) => row.id === this.bundle.id);
    const row = this.rows[at + by];
    if (at >= 0 && row) this.open(row.id);
  }
}

function start() {
  const root = document.getElementById("dv-episodes");
  if (!root) return setTimeout(start, 20); // Vue has not built the page yet
  window.dovetailEpisodes = new EpisodesPage(root);
  window.dovetailEpisodes.refresh();
}
start();
