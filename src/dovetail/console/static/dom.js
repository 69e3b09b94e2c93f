// Shared by the pages about episodes: making elements, formatting times.

export const make = (tag, cls, text) => Object.assign(document.createElement(tag), { className: cls ?? "", textContent: text ?? "" });

export function clock(unix_s) {
  return new Date(unix_s * 1000).toLocaleString([], { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hour12: false });
}
