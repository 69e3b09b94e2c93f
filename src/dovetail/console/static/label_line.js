// One label of an episode, as a line of a list.

import { clock, make } from "./dom.js";

export function labelLine(label) {
  const line = make("li", label.retracted ? "dv-retracted" : label.counts ? "dv-counts" : "");
  const head = make("div");
  head.append(make("b", `dv-${label.verdict}`, label.verdict), make("span", "", `${label.labeler}${label.labeler === "human" ? ` · ${label.version}` : ""}`),
    make("i", "", label.retracted ? "retracted" : label.counts ? "counts" : ""));
  const bar = make("div", "dv-bar");
  bar.append(Object.assign(make("div"), { style: `width:${Math.round(100 * label.confidence)}%` }));
  line.append(head, bar, make("small", "", `confidence ${Math.round(100 * label.confidence)} % · return ${label.return} · ${clock(label.unix_s)}`));
  if (label.why) line.append(make("p", "", label.why));
  return line;
}
