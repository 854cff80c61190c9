// What the pages do beyond plain forms: say when the connection is lost, and let no act be sent twice by an impatient finger.
"use strict";

const offline = () => document.getElementById("offline");

document.addEventListener("htmx:before:request", () => offline()?.setAttribute("hidden", ""));
document.addEventListener("htmx:error", (event) => {
  if (event.detail.ctx) offline()?.removeAttribute("hidden");
});

// After an act the page is another: readers of the screen begin where it speaks.
document.addEventListener("htmx:after:swap", () => document.getElementById("main")?.focus({ preventScroll: true }));
