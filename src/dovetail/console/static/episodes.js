// The page "Episodes": look through all that was recorded, play it, take it home.

import { Bundle, ask } from "./bundle.js";
import { clock, make } from "./dom.js";
import { opinion } from "./opinion.js";
import { Player } from "./player.js";

const PAGE = 50;
const POLL_MS = 5000;
const CHOICES = {
  outcome: ["success", "failure", "timeout", "aborted"],
  purpose: ["demo", "online", "eval"],
  label: ["success", "failure", "discard", "none"],
};
const COLUMNS = [["", ""], ["", ""], ["no.", "number"], ["episode", "time"], ["task", "task"], ["purpose", ""], ["outcome", "outcome"], ["label", ""],
  ["steps", "steps"], ["by hand", "human"], ["weights", "version"], ["", ""]];

const megabytes = (bytes) => `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`;

class EpisodesPage {
  constructor(root) {
    this.root = root;
    this.wanted = { sort: "number", descending: true, offset: 0, limit: PAGE };
    this.rows = [];
    this.chosen = new Set();
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
      '<div class="dv-pages"></div><div class="dv-viewer" hidden><div class="dv-view"><header></header><div class="dv-screen"></div>' +
      '<aside><h2>What was said</h2><ul class="dv-said"></ul></aside></div></div>';
    const get = (name) => this.root.querySelector(name);
    [this.found, this.actions, this.body, this.pages, this.viewer, this.head, this.said] =
      [".dv-found", ".dv-actions", "tbody", ".dv-pages", ".dv-viewer", ".dv-view > header", ".dv-said"].map(get);
    this.search = get("input[name=text]");
    this.search.addEventListener("input", () => this.want({ text: this.search.value }));
    this.selects = {};
    for (const name of ["outcome", "purpose", "task", "operator", "label"]) {
      const select = (this.selects[name] = make("select"));
      select.name = name;
      select.setAttribute("aria-label", name);
      select.addEventListener("change", () => this.want({ [name]: select.value }));
      this.fill(name, CHOICES[name] ?? []);
      this.found.before(select);
    }
    for (const [title, sort] of COLUMNS) {
      const cell = make("th", ["steps", "weights", "no."].includes(title) ? "dv-num" : "", title);
      if (sort) {
        cell.dataset.sort = sort;
        cell.addEventListener("click", () => this.want({ sort, descending: this.wanted.sort === sort ? !this.wanted.descending : true }));
      }
      get("thead tr").append(cell);
    }
    this.player = new Player(get(".dv-screen"));
    this.viewer.addEventListener("click", (event) => event.target === this.viewer && this.close());
    this.drawActions();
  }

  fill(name, choices) {
    const select = this.selects[name];
    const there = [...select.options].slice(1).map((option) => option.value);
    if (select.options.length && there.join("\n") === choices.join("\n")) return;
    const { value } = select;
    select.replaceChildren(new Option(`any ${name}`, ""), ...choices.map((choice) => new Option(choice || "(none)", choice)));
    select.value = choices.includes(value) ? value : "";
  }

  want(change) {
    this.wanted = { ...this.wanted, offset: 0, ...change };
    return this.refresh();
  }

  async refresh() {
    const asked = this.wanted;
    const query = new URLSearchParams(Object.entries(asked).filter(([, value]) => value !== ""));
    let told;
    try {
      told = await ask(`/api/episodes?${query}`);
    } catch (error) {
      this.found.textContent = error.message;
      return;
    }
    if (asked !== this.wanted) return; // something else was asked meanwhile
    this.rows = told.rows;
    this.fill("task", told.tasks);
    this.fill("operator", told.operators);
    this.found.textContent = `${told.matching} of ${told.total} episodes`;
    this.found.title = told.problems.join("\n");
    this.root.dataset.matching = String(told.matching);
    this.drawRows();
    this.drawPages(told.matching);
  }

  // ---- drawing

  drawRows() {
    const drawn = JSON.stringify([this.rows, this.wanted.sort, this.wanted.descending]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    this.root.querySelectorAll("th[data-sort]").forEach((cell) => {
      const title = COLUMNS.find(([, sort]) => sort === cell.dataset.sort)[0];
      cell.textContent = cell.dataset.sort === this.wanted.sort ? `${title} ${this.wanted.descending ? "↓" : "↑"}` : title;
    });
    this.body.replaceChildren(...this.rows.map((row) => this.line(row)));
  }

  line(row) {
    const line = make("tr");
    line.dataset.id = row.id;
    const box = Object.assign(make("input"), { type: "checkbox", checked: this.chosen.has(row.id), ariaLabel: "choose" });
    box.addEventListener("click", (event) => event.stopPropagation());
    box.addEventListener("change", () => {
      this.chosen[box.checked ? "add" : "delete"](row.id);
      this.drawActions();
    });
    const picture = Object.assign(make("img"), { loading: "lazy", alt: "", src: `/api/episodes/${row.id}/thumbnail` });
    picture.addEventListener("error", () => picture.classList.add("dv-none"));
    const when = make("div", "", clock(row.started_unix_s));
    when.append(make("small", "", row.id));
    const hand = make("div", "dv-hand");
    hand.append(Object.assign(make("div"), { style: `width:${Math.round(100 * row.human_share)}%` }));
    hand.title = `${Math.round(100 * row.human_share)} % of the steps by a person`;
    const label = row.label ? make("span", `dv-chip dv-${row.label}`, row.label) : make("span", "dv-quiet", "none");
    label.title = row.label ? `${row.labeler}, ${Math.round(100 * row.confidence)} % sure` : "";
    const play = Object.assign(make("button", "dt-button", "play"), { title: "play it" });
    const cells = [box, picture, String(row.number), when, row.task, row.purpose, make("span", `dv-chip dv-${row.outcome}`, row.outcome),
      label, String(row.num_steps), hand, String(row.policy_version), play];
    cells.forEach((cell, i) => {
      const place = make("td", [2, 8, 10].includes(i) ? "dv-num" : "");
      place.append(cell);
      line.append(place);
    });
    line.addEventListener("click", () => this.open(row.id));
    return line;
  }

  drawPages(matching) {
    const { offset } = this.wanted;
    const step = (title, to, possible) => {
      const button = Object.assign(make("button", "dt-button", title), { disabled: !possible });
      button.addEventListener("click", () => this.want({ offset: to }));
      return button;
    };
    const told = make("span", "", `${matching ? offset + 1 : 0}–${Math.min(offset + PAGE, matching)} of ${matching}`);
    this.pages.hidden = matching <= PAGE;
    this.pages.replaceChildren(step("← newer", Math.max(0, offset - PAGE), offset > 0), told, step("older →", offset + PAGE, offset + PAGE < matching));
  }

  drawActions() {
    if (this.chosen.size === 0) return this.actions.replaceChildren();
    const take = make("button", "dt-button", `LeRobot (${this.chosen.size})`);
    take.title = "download those chosen as a LeRobot dataset";
    take.addEventListener("click", () => this.download("lerobot", [...this.chosen], this.actions));
    const none = make("button", "dt-button", "choose none");
    none.addEventListener("click", () => {
      this.chosen.clear();
      this.root.querySelectorAll("input[type=checkbox]").forEach((box) => (box.checked = false));
      this.drawActions();
    });
    this.actions.replaceChildren(take, none);
  }

  // ---- one of them

  async open(id) {
    this.bundle?.close();
    const bundle = (this.bundle = new Bundle(id));
    this.viewer.hidden = false;
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
    title.append(make("strong", "", details.prompt || details.task), make("div", "dv-facts", `no. ${details.number} · ${details.purpose} · ended: ${details.outcome} · ` +
      `${details.num_steps} steps, ${details.duration_s.toFixed(1)} s · operator ${details.operator} · ${details.id}`));
    const label = make("a", "dt-button", "label by hand (l)");
    label.href = `/label?episode=${id}`;
    this.head.replaceChildren(title, label, this.button("video", () => this.download("video", [id], this.head)),
      this.button("LeRobot", () => this.download("lerobot", [id], this.head)), this.button("close (q)", () => this.close()));
    this.said.replaceChildren(...(details.said.length ? details.said.toReversed().map(opinion) : [make("li", "dv-quiet", "nobody has said anything yet")]));
    await this.player.show(bundle);
    this.viewer.dataset.episode = id;
    bundle.lookAhead(0);
  }

  button(title, act) {
    const button = make("button", "dt-button", title);
    button.addEventListener("click", () => {
      button.blur();
      act();
    });
    return button;
  }

  close() {
    this.player.clear();
    this.bundle?.close();
    this.bundle = null;
    this.viewer.hidden = true;
  }

  // Slow ones tell how far they are; the file comes by itself, and leaves the server's disk once it is here.
  async download(kind, ids, beside) {
    const told = make("span", "dv-job");
    const bar = make("div", "dv-bar");
    const done = make("div");
    bar.append(done);
    told.append(bar, make("span", "", "waiting"));
    beside.append(told);
    const say = (text) => (told.lastChild.textContent = text);
    try {
      const { key } = await ask("/api/downloads", { kind, ids });
      for (;;) {
        const job = await ask(`/api/downloads/${key}`);
        done.style.width = `${job.total ? (100 * job.done) / job.total : 0}%`;
        if (job.state === "failed") throw new Error(job.error);
        if (job.state === "done") {
          say(`${job.name}, ${megabytes(job.num_bytes)}`);
          const link = Object.assign(make("a"), { href: `/api/downloads/${key}/file`, download: job.name });
          link.click();
          break;
        }
        say(job.total ? `${job.done} of ${job.total}` : job.state);
        await new Promise((later) => setTimeout(later, 250));
      }
    } catch (error) {
      say(error.message);
    }
    bar.hidden = true;
    setTimeout(() => told.remove(), 8000);
  }

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.target instanceof HTMLElement && event.target.matches("input:not(.dv-scrub):not([type=checkbox]), textarea, select")) return;
    if (event.key === "/") {
      event.preventDefault();
      return this.search.focus();
    }
    if (!this.bundle) return;
    const far = event.shiftKey ? 10 : 1;
    const act = { ArrowLeft: () => this.player.step(-far), ArrowRight: () => this.player.step(far), Home: () => this.player.step(-1e9),
      End: () => this.player.step(1e9), " ": () => event.repeat || this.player.toggle(), ArrowUp: () => this.other(-1), ArrowDown: () => this.other(1),
      q: () => this.close(), l: () => location.assign(`/label?episode=${this.bundle.id}`) }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  other(by) {
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
