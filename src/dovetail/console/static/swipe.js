// A horizontal swipe with a finger: to the right or to the left. The element follows the finger; vertical moves scroll the page.
const START_PX = 12, SHARE = 0.28; // of the element's width: far enough to count

// `on`: { right(), left() }; `enabled()`: whether a swipe counts now. `hint(side, far)` shows what a release would do; side "" ends it.
export function onSwipe(element, { right, left, enabled, hint }) {
  let start = null, dx = 0;
  const far = () => Math.abs(dx) > SHARE * Math.min(element.clientWidth, 600);
  const end = () => {
    start = null;
    dx = 0;
    element.style.transform = "";
    hint("", false);
  };
  element.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse" || !event.isPrimary || !enabled()) return;
    start = { id: event.pointerId, x: event.clientX, y: event.clientY, swipes: false };
  });
  element.addEventListener("pointermove", (event) => {
    if (!start || event.pointerId !== start.id) return;
    dx = event.clientX - start.x;
    if (!start.swipes && Math.abs(dx) > START_PX && Math.abs(dx) > Math.abs(event.clientY - start.y)) {
      start.swipes = true;
      element.setPointerCapture(event.pointerId);
    }
    if (!start.swipes) return;
    element.style.transform = `translateX(${dx}px) rotate(${dx / 60}deg)`;
    hint(dx > 0 ? "right" : "left", far());
  });
  element.addEventListener("pointerup", (event) => {
    if (!start || event.pointerId !== start.id) return;
    const act = start.swipes && far() ? (dx > 0 ? right : left) : null;
    end();
    act?.(event);
  });
  element.addEventListener("pointercancel", end);
}
