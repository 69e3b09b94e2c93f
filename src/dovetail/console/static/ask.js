// A question in the page. A dialog of the browser would stop all scripts while it is open, and STOP and Esc with them. This one is
// below the header, so the STOP button stays free. STOP, by button or Esc, also answers no.
import { make } from "./dom.js";

let answerNo = () => {}; // of the question that is open

export function ask(text, yesText) {
  answerNo();
  const before = document.activeElement;
  const box = make("div", "dt-help dt-ask"), sheet = make("div", "dt-sheet"), actions = make("div", "dt-actions");
  const question = make("p", "", text), no = make("button", "dt-button", "Cancel"), yes = make("button", "dt-button dt-main-button", yesText);
  question.id = "dt-ask-text";
  box.setAttribute("role", "alertdialog");
  box.setAttribute("aria-labelledby", question.id);
  actions.append(question, no, yes);
  sheet.append(actions);
  box.append(sheet);
  document.body.append(box);
  no.focus();
  return new Promise((resolve) => {
    const close = (answer) => {
      answerNo = () => {};
      box.remove();
      before?.focus?.();
      resolve(answer);
    };
    answerNo = () => close(false);
    no.onclick = answerNo;
    yes.onclick = () => close(true);
    box.onclick = (event) => { if (event.target === box) answerNo(); };
  });
}

addEventListener("dovetail:stop", () => answerNo());
