() => {
  const problems = [];
  const name = (e) => `${e.tagName.toLowerCase()}${e.id ? "#" + e.id : ""}${typeof e.className === "string" && e.className ? "." + e.className.trim().split(/\s+/).join(".") : ""}`;
  const visible = (e) => { const b = e.getBoundingClientRect(), s = getComputedStyle(e); return b.width > 0 && b.height > 0 && s.visibility !== "hidden" && +s.opacity > 0.01; };
  const rgb = (text) => { const m = text.match(/[\d.]+/g).map(Number); return text.startsWith("color(srgb") ? [...m.slice(0, 3).map((v) => 255 * v), m[3] ?? 1] : [m[0], m[1], m[2], m[3] ?? 1]; };
  const over = (top, below) => [0, 1, 2].map((i) => top[3] * top[i] + (1 - top[3]) * below[i]).concat(1);
  const background = (e) => { // of the element, with those below it; null over a picture
    const layers = [];
    for (let one = e; one; one = one.parentElement) {
      const style = getComputedStyle(one);
      if (style.backgroundImage !== "none") return null;
      layers.push(rgb(style.backgroundColor));
      if (layers.at(-1)[3] === 1) break;
    }
    return layers.reduceRight((below, top) => over(top, below), [255, 255, 255, 1]);
  };
  const luminance = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const contrast = (a, b) => { const [l, d] = [luminance(a), luminance(b)].sort((x, y) => y - x); return (l + 0.05) / (d + 0.05); };

  if (document.documentElement.scrollWidth > innerWidth) problems.push(`the page is ${document.documentElement.scrollWidth} px wide, the screen ${innerWidth}`);
  for (const e of document.querySelectorAll("body *")) { // what sticks out of the screen, except in boxes that scroll
    const b = e.getBoundingClientRect();
    if (visible(e) && b.right > innerWidth + 1 && !e.closest(".dt-scroll, .dt-skip") && !e.closest("svg")) problems.push(`${name(e)} ends at ${Math.round(b.right)} px`);
  }
  const controls = [...document.querySelectorAll("button, a[href], input, select, [role=button], canvas[role=img], svg[role=img], [role=dialog]")].filter(visible);
  for (const e of controls) {
    const labelled = e.getAttribute("aria-labelledby"), label = e.labels?.[0]?.textContent;
    const text = e.getAttribute("aria-label") || (labelled && document.getElementById(labelled)?.textContent) || label || (e.matches("canvas, svg") ? "" : e.textContent) || e.title;
    if (!text?.trim()) problems.push(`${name(e)} has no name`);
    if (e.matches("button, a[href], select") && e.tabIndex < 0 && !e.disabled) problems.push(`${name(e)} cannot be reached by keyboard`);
    const box = e.getBoundingClientRect();
    if (matchMedia("(pointer: coarse)").matches && e.matches("button, select, nav a") && !e.disabled && (box.width < 24 || box.height < 24)) problems.push(`${name(e)} is only ${Math.round(box.width)}x${Math.round(box.height)} px`);
  }
  const seen = new Set();
  for (const e of document.querySelectorAll("[id]")) { if (seen.has(e.id)) problems.push(`two elements have the id ${e.id}`); seen.add(e.id); }

  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const bad = new Set();
  while (texts.nextNode()) {
    const e = texts.currentNode.parentElement, style = e && getComputedStyle(e);
    if (!texts.currentNode.textContent.trim() || !visible(e) || e.closest("script, style, svg, :disabled, .dv-flash, .q-notifications")) continue;
    const below = background(e);
    if (!below) continue;
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && +style.fontWeight >= 700);
    const ratio = contrast(over(rgb(style.color), below), below);
    if (ratio < (large ? 3 : 4.5)) bad.add(`${name(e)} "${texts.currentNode.textContent.trim().slice(0, 30)}" has a contrast of ${ratio.toFixed(2)}`);
  }
  problems.push(...bad);

  const stop = document.getElementById("dt-emergency").getBoundingClientRect();
  const center = document.elementFromPoint(stop.x + stop.width / 2, stop.y + stop.height / 2);
  if (!center?.closest("#dt-emergency")) problems.push(`STOP is covered by ${center ? name(center) : "nothing: it is outside the screen"}`);
  if (stop.height < 44 || stop.width < 60) problems.push(`STOP is only ${stop.width}x${stop.height} px`);
  return problems;
}
