// What the pages do beyond plain forms: say where one acts what became of the act, and let none be sent twice by an
// impatient finger.
"use strict";

// A sentence at the lower edge of the view: "offline" or "signed-out". `near` is what was pressed; it stays in sight.
const tellBelow = (name, isShown, near) => {
  const bar = document.getElementById(name);
  if (!bar) return;
  bar.hidden = !isShown;
  if (isShown) near?.scrollIntoView({ block: "nearest" });
};

// `wasAct`: an act met the end of the session. A part that refreshes itself only learns that it is over, not what became of
// the act before, and does not take back what an act was told.
const tellSignedOut = (wasAct, near) => {
  const lost = document.getElementById("not-done");
  if (lost) lost.hidden = !wasAct && (lost.hidden || document.getElementById("signed-out").hidden);
  tellBelow("signed-out", true, near);
};

// A part that refreshes itself (live.js) is no act: nothing was lost with it, and it takes nobody's place on the page away.
const isAct = (event) => event.detail?.ctx && !event.detail.ctx.sourceElement?.hasAttribute?.("data-live");
const pressed = (event) => event.detail.ctx.sourceEvent?.submitter;

document.addEventListener("htmx:before:request", (event) => {
  if (!isAct(event)) return;
  tellBelow("offline", false);
  tellBelow("signed-out", false);
  // The fragment is for browsers without scripts; here it would only stay behind in the address.
  event.detail.ctx.request.anchor = undefined;
});
document.addEventListener("htmx:error", (event) => {
  if (isAct(event)) tellBelow("offline", true, pressed(event));
});
document.addEventListener("htmx:before:response", (event) => {
  const answer = event.detail?.ctx?.response?.raw;
  if (!isAct(event) || !answer?.redirected || !new URL(answer.url).searchParams.has("undone")) return;
  // The session ended before the act arrived: what was written stays where it is.
  event.preventDefault();
  tellSignedOut(true, pressed(event));
});

document.addEventListener("htmx:after:request", (event) => {
  const { response, text } = event.detail?.ctx ?? {};
  if (!isAct(event) || !(response?.status >= 500) || text?.includes('<main id="main"')) return;
  // No page of ours: a proxy answered for a console that it cannot reach. What was written stays where it is.
  event.preventDefault();
  tellBelow("offline", true, pressed(event));
});

// After an act the page is another: readers of the screen begin where it speaks, and a refusal comes into view.
document.addEventListener("htmx:after:swap", (event) => {
  if (!isAct(event)) return;
  const refusal = document.getElementById("refused");
  (refusal ?? document.getElementById("main"))?.focus({ preventScroll: true });
  refusal?.scrollIntoView({ block: "center" });
});

// A form that loads the whole page is not htmx's: of two that are sent, the second would take away the first one's answer.
const SENT_FOR = 10000;
let sentAt = new WeakMap();
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (event.defaultPrevented || form.method !== "post" || form.hasAttribute("hx-boost")) return;
  const now = performance.now();
  if (now - (sentAt.get(form) ?? -Infinity) < SENT_FOR) event.preventDefault();
  else sentAt.set(form, now);
});
addEventListener("pageshow", () => { sentAt = new WeakMap(); });

// A link that is called a button is pressed like one: with the space bar too.
document.addEventListener("keydown", (event) => {
  const link = event.key === " " ? event.target.closest?.('a[role="button"]') : null;
  if (!link) return;
  event.preventDefault();
  link.click();
});
