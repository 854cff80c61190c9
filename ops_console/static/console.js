// What the pages do beyond plain forms: say when the connection is lost, and let no act be sent twice by an impatient finger.
"use strict";

const offline = () => document.getElementById("offline");

// A part that refreshes itself (live.js) is no act: nothing was lost with it, and it takes nobody's place on the page away.
const isAct = (event) => event.detail?.ctx && !event.detail.ctx.sourceElement?.hasAttribute?.("data-live");

document.addEventListener("htmx:before:request", (event) => {
  if (isAct(event)) offline()?.setAttribute("hidden", "");
});
document.addEventListener("htmx:error", (event) => {
  if (isAct(event)) offline()?.removeAttribute("hidden");
});

// After an act the page is another: readers of the screen begin where it speaks.
document.addEventListener("htmx:after:swap", (event) => {
  if (isAct(event)) document.getElementById("main")?.focus({ preventScroll: true });
});
