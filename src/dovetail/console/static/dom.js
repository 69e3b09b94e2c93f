// Shared by the pages about episodes: making elements, formatting times.

export const make = (tag, cls, text) => Object.assign(document.createElement(tag), { className: cls ?? "", textContent: text ?? "" });

/** A line for each later prompt of an episode. */
export const laterPrompts = (details) => details.prompt_changes.map(({ step, prompt }) => make("div", "dv-facts", `from step ${step}: ${prompt}`));

export function clock(unix_s) {
  return new Date(unix_s * 1000).toLocaleString([], { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hour12: false });
}
