// The live board and its widget: new decisions on top as they come, nothing missed or shown twice when the connection breaks.
// The position of the last decision shown is what a new connection begins behind. Without this file the page reloads itself.
"use strict";

(() => {
  const list = document.getElementById("events");
  const state = document.getElementById("state");
  const most = Number(list.dataset.most);
  const digits = JSON.parse(list.dataset.digits); // of the currencies that have not two
  const words = new Map(
    [...document.getElementById("words").content.querySelectorAll("[data-word]")].map((one) => [one.dataset.word, one.textContent]),
  );
  const DRAW_EVERY = 400;
  const FIGURES_EVERY = 15000;
  const LONGEST_WAIT = 30000;
  const RELOAD_AFTER = 5000; // a server remembers for so long whose board it is

  let position = Number(list.dataset.position);
  let waiting = [];
  let leftOut = 0;
  let paused = false;
  let wait = 1000;
  let source;
  let leaving = false;

  const say = (name, text) => {
    state.dataset.state = name;
    if (state.textContent !== text) state.textContent = text;
  };

  // A page that cannot be had now is waited for: a browser's own error page never comes back.
  const reload = () =>
    setTimeout(async () => {
      const answer = await ask(location.href).catch(() => null);
      if (answer?.ok) location.reload();
      else reload();
    }, RELOAD_AFTER * (0.5 + Math.random()));

  const leave = () => {
    if (leaving) return;
    leaving = true;
    source.close();
    say("broken", "Reloading…");
    reload();
  };

  // A position among one tenant's decisions says nothing about another's, and the page names the tenant it was made for.
  const isOurs = (tenant) => {
    if (tenant === list.dataset.tenant) return true;
    leave();
    return false;
  };

  const fill = {
    occurred_at(cell, text) {
      const time = cell.querySelector("time");
      time.dateTime = time.title = text;
      time.querySelector('[data-part="time"]').textContent = text.slice(11, 19);
      time.querySelector('[data-part="day"]').textContent = text.slice(0, 10);
    },
    decision(cell, text) {
      const chip = cell.querySelector(".chip");
      chip.className = `chip ${text.toLowerCase().replaceAll("_", "-")}`;
      chip.title = text;
      chip.textContent = words.get(text) ?? text;
    },
    amount(cell, money) {
      const [whole, rest = ""] = String(money.value).split(".");
      const count = digits[money.currency] ?? 2;
      const grouped = whole.replace(/\B(?=(\d{3})+$)/g, ",");
      cell.textContent = `${grouped}${count ? `.${rest.padEnd(count, "0")}` : ""} ${money.currency}`;
    },
    reason_code(cell, text) {
      cell.title = text;
      cell.textContent = text.replaceAll("_", " ");
    },
    latency_ms(cell, count) {
      cell.textContent = `${count} ms`;
    },
    proof_id(link, text) {
      link.href = `/verify/${encodeURIComponent(text)}`;
      link.setAttribute("aria-label", `Proof of ${text}`);
    },
  };

  const rowOf = (event) => {
    const row = document.getElementById("row").content.firstElementChild.cloneNode(true);
    for (const cell of row.querySelectorAll("[data-field]")) {
      const value = event[cell.dataset.field];
      if (value === undefined) continue;
      const write = fill[cell.dataset.field];
      if (write) write(cell, value);
      else cell.textContent = String(value);
    }
    row.classList.add("new");
    return row;
  };

  const draw = () => {
    if (paused || waiting.length === 0) return;
    const rows = waiting.slice(-most).map(rowOf).reverse();
    waiting = [];
    list.prepend(...rows);
    while (list.rows.length > most) list.rows[list.rows.length - 1].remove();
    document.getElementById("nothing")?.setAttribute("hidden", "");
  };

  const arrived = (message) => {
    const at = Number(message.lastEventId);
    if (!(at > position)) return;
    position = at;
    waiting.push(JSON.parse(message.data));
    if (waiting.length > 2 * most) waiting = waiting.slice(-most);
  };

  const told = (message) => {
    leftOut += Number(message.data);
    const note = document.getElementById("left-out");
    if (!note) return;
    note.textContent = `Counted above, but too fast to be listed: ${leftOut.toLocaleString("en")}.`;
    note.hidden = false;
  };

  // What each agent does, when that changes; null while the board itself cannot read it.
  let stale = false;
  const changed = (message) => {
    const statuses = JSON.parse(message.data);
    stale = statuses === null;
    if (stale) {
      say("broken", "Stale: what is shown may have changed");
      return;
    }
    say("live", paused ? "Paused" : "Live");
    for (const chip of document.querySelectorAll("[data-agent]")) {
      const status = statuses[chip.dataset.agent];
      if (!status) continue;
      chip.className = `chip ${status}`;
      chip.textContent = status;
    }
  };

  const connect = () => {
    if (leaving) return;
    source = new EventSource(`${list.dataset.stream}?last_seen=${position}`);
    source.onopen = () => {
      wait = 1000;
      if (!stale) say("live", paused ? "Paused" : "Live");
    };
    source.addEventListener("tenant", (message) => isOurs(JSON.parse(message.data)));
    source.addEventListener("anew", leave); // what is shown may be gone from the feed, and its positions given to others
    source.onmessage = arrived;
    source.addEventListener("left-out", told);
    source.addEventListener("status", changed);
    source.onerror = () => {
      say("broken", "Reconnecting…");
      // A stream that broke off is taken up again by the browser; one that was refused is not.
      if (source.readyState !== EventSource.CLOSED) return;
      source.close();
      setTimeout(connect, wait * (0.5 + Math.random()));
      wait = Math.min(2 * wait, LONGEST_WAIT);
    };
    addEventListener("pagehide", () => source.close(), { once: true });
  };

  const figures = document.getElementById("figures");
  const refresh = async () => {
    let next = FIGURES_EVERY * (0.8 + 0.4 * Math.random());
    try {
      if (!document.hidden) {
        const answer = await ask(figures.dataset.from);
        if (answer.ok) {
          const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
          if (!isOurs(fresh.querySelector("[data-tenant]").dataset.tenant)) return;
          if (fresh.querySelector('[data-complete="no"]')) next = 1000;
          figures.replaceChildren(...fresh.body.childNodes);
        }
      }
    } catch {
      // The state of the stream says that the connection is gone; the next round asks again.
    }
    setTimeout(refresh, next);
  };

  const pause = document.getElementById("pause");
  if (pause) {
    pause.hidden = false;
    pause.addEventListener("click", () => {
      paused = !paused;
      pause.setAttribute("aria-pressed", String(paused));
      pause.textContent = paused ? "Resume" : "Pause";
      if (state.dataset.state === "live") say("live", paused ? "Paused" : "Live");
      draw();
    });
  }

  // A page from the browser's memory has no connection any more.
  addEventListener("pageshow", (event) => event.persisted && location.reload());
  say("connecting", "Connecting…");
  connect();
  setInterval(draw, DRAW_EVERY);
  if (figures) setTimeout(refresh, figures.querySelector('[data-complete="no"]') ? 500 : FIGURES_EVERY);
})();
