// Copies a secret that is shown once, on a person's click. Without scripts it is selected and copied by hand.
"use strict";

const offer = () => document.querySelectorAll("button[data-copy]").forEach((button) => button.removeAttribute("hidden"));

document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("button[data-copy]");
  if (!button) return;
  const shown = document.getElementById(button.dataset.copy);
  const told = document.getElementById("copied");
  try {
    await navigator.clipboard.writeText(shown.textContent.trim());
    told.textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren(shown);
    told.textContent = "It is selected; copy it with your keyboard.";
  }
});
document.addEventListener("htmx:after:swap", offer);
offer();
