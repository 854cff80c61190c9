// Parts of a page that refresh themselves ([data-live]): they rest while nobody looks, say when they could not be
// refreshed, and never put another page in their place, nor take away what somebody writes. A list ([data-when-calm]) also
// rests while somebody types, has chosen something in a form or marks text: it does not move under their hand. What closes
// a form closes it. Countdowns count.
"use strict";

(() => {
  const live = (event) => {
    const source = event.detail?.ctx?.sourceElement;
    return source?.hasAttribute?.("data-live") ? source : null;
  };
  const note = (hidden) => document.querySelectorAll("[data-stale-note]").forEach((one) => { one.hidden = hidden; });

  const chosen = (list) => Math.max([...list.options].findIndex((one) => one.defaultSelected), 0);
  const isTouched = (field) => {
    if (field.type === "hidden") return false;
    if (field.tagName === "SELECT") return field.selectedIndex !== chosen(field);
    if (field.type === "checkbox" || field.type === "radio") return field.checked !== field.defaultChecked;
    return field.value !== field.defaultValue;
  };
  const isWriting = () => [...document.querySelectorAll("main form[method=post] :is(input, select, textarea)")].some(isTouched);
  const isBusy = () => {
    const marked = getSelection();
    return (marked && !marked.isCollapsed) || [...document.querySelectorAll("main :is(input, select, textarea)")].some(isTouched);
  };

  // Somebody signed in as another person, perhaps of another tenant, in another tab: nothing of theirs goes into this page.
  const isAnothers = (answer) => {
    const [theirs, ours] = [answer.raw.headers.get("X-Operator-Id"), document.getElementById("main").dataset.operator];
    return Boolean(theirs && ours && theirs !== ours);
  };

  document.addEventListener("htmx:before:request", (event) => {
    const source = live(event);
    if (source && (document.hidden || (source.hasAttribute("data-when-calm") && isBusy()))) event.preventDefault();
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) document.querySelectorAll("[data-live]").forEach((one) => htmx.trigger(one, "refresh"));
  });
  document.addEventListener("htmx:before:response", (event) => {
    if (!live(event)) return;
    const answer = event.detail.ctx.response;
    if (answer.raw.redirected || isAnothers(answer)) {
      // The session is over: the whole page goes to sign in, not a part of it; what was begun waits for the person.
      event.preventDefault();
      if (isWriting()) tellSignedOut(false);
      else location.reload();
    } else if (answer.status >= 400) {
      event.preventDefault();
      note(false);
    } else {
      note(true);
      tellBelow("signed-out", false);
    }
  });
  document.addEventListener("htmx:error", (event) => { if (live(event)) note(false); });
  document.addEventListener("htmx:after:swap", (event) => {
    if (!live(event) || !document.querySelector("[data-closes-form]")) return;
    document.querySelectorAll("[data-act]").forEach((one) => { one.disabled = true; });
  });

  // Seconds left, as the server said them, minus what passed since: the reader's own clock does not matter.
  const begun = new WeakMap();
  const words = (seconds) => {
    if (seconds < 60) return `${Math.floor(seconds)} s`;
    const parts = [];
    let rest = Math.floor(seconds);
    for (const [size, name] of [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]]) {
      const count = Math.floor(rest / size);
      rest %= size;
      if (count || parts.length) parts.push(`${count} ${name}`);
    }
    return parts.slice(0, 2).join(" ");
  };
  setInterval(() => {
    for (const one of document.querySelectorAll("[data-seconds-left]")) {
      const said = one.dataset.secondsLeft;
      if (begun.get(one)?.said !== said) begun.set(one, { said, at: performance.now() });
      const left = Number(said) - (performance.now() - begun.get(one).at) / 1000;
      one.textContent = left > 0 ? `in ${words(left)}` : "expired";
      one.classList.toggle("soon", left < 300);
    }
  }, 1000);
})();
