// What a labeler or a person said of an episode, as a line of a list.

import { clock, make } from "./dom.js";

export function opinion(said) {
  const line = make("li", said.retracted ? "dv-retracted" : said.counts ? "dv-counts" : "");
  const head = make("div");
  head.append(make("b", `dv-${said.word}`, said.word), make("span", "", `${said.labeler}${said.labeler === "human" ? ` · ${said.version}` : ""}`),
    make("i", "", said.retracted ? "taken back" : said.counts ? "counts" : ""));
  const bar = make("div", "dv-bar");
  bar.append(Object.assign(make("div"), { style: `width:${Math.round(100 * said.confidence)}%` }));
  line.append(head, bar, make("small", "", `${Math.round(100 * said.confidence)} % sure · return ${said.return} · ${clock(said.unix_s)}`));
  if (said.why) line.append(make("p", "", said.why));
  return line;
}
