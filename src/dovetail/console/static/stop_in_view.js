// An on-screen keyboard or a zoomed page moves fixed elements out of the visible part of the page. STOP follows the visible part.
const MARGIN = 8;

export function keepStopInView(button) {
  const view = window.visualViewport;
  if (!view) return;
  const place = () => {
    const moved = view.scale > 1.01 || view.offsetTop > 1 || view.offsetLeft > 1;
    button.classList.toggle("dt-floating", moved);
    if (!moved) { button.style.transform = ""; return; }
    const x = view.offsetLeft + view.width - (button.offsetWidth + MARGIN) / view.scale, y = view.offsetTop + MARGIN / view.scale;
    button.style.transform = `translate(${x}px, ${y}px) scale(${1 / view.scale})`;
  };
  for (const target of [view, window]) for (const event of ["resize", "scroll"]) target.addEventListener(event, place, { passive: true });
  place();
}
