// Checking a proof in the viewer's own browser: the SHA-256 of the canonical JSON of the pack without its hash.
// Nothing is believed that this page's server says about it: the bytes that were hashed are shown.
"use strict";

// Canonical JSON (RFC 8785) of what a pack is made of: objects, lists, text, whole numbers, true, false and null.
const canonical = (value) => {
  if (value === null || typeof value === "boolean") return String(value);
  if (typeof value === "number") {
    if (!Number.isSafeInteger(value)) throw new Error("it has a number that is not whole");
    return String(value);
  }
  if (typeof value === "string") {
    if (!value.isWellFormed?.() && /\p{Surrogate}/u.test(value)) throw new Error("it has text that is not valid Unicode");
    return JSON.stringify(value);
  }
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  // Without an argument this sorts by UTF-16 code units, which is what the standard asks for.
  const names = Object.keys(value).sort();
  return `{${names.map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`).join(",")}}`;
};

const sha256 = async (text) => {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
  return "sha256:" + [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
};

// A pack that reads differently to different programs matches nothing.
class Mismatch extends Error {}

// The first name that an object of the text, which is JSON, has twice: JSON.parse would keep the last one and say nothing.
const namedTwice = (text) => {
  const open = [];
  for (const [token, colon] of text.matchAll(/"(?:[^"\\]|\\.)*"(\s*:)?|[{}[\]]/g)) {
    if (token === "{") open.push(new Set());
    else if (token === "[") open.push(null);
    else if (token === "}" || token === "]") open.pop();
    else if (colon) {
      const name = JSON.parse(token.slice(0, -colon.length));
      if (open.at(-1).has(name)) return name;
      open.at(-1).add(name);
    }
  }
  return null;
};

// What is to be hashed of a pack, and what it states. Throws what a person can read.
const partsOf = (text) => {
  let pack;
  try {
    pack = JSON.parse(text);
  } catch {
    throw new Error("it is not JSON");
  }
  if (pack === null || typeof pack !== "object" || Array.isArray(pack)) throw new Error("it is not a JSON object");
  const twice = namedTwice(text);
  if (twice !== null) throw new Mismatch(`No match: it names "${twice}" more than once, so programs may read different things in it.`);
  if (typeof pack.hash !== "string") throw new Error("it has no hash");
  const { hash, ...rest } = pack;
  return { pack, stated: hash, body: canonical(rest) };
};

// A pack's own member: every object inherits some names, like "constructor".
const member = (pack, name) => (Object.hasOwn(pack, name) ? pack[name] : null);

const differing = (one, other) =>
  [...new Set([...Object.keys(one), ...Object.keys(other)])].filter(
    (name) => canonical(member(one, name)) !== canonical(member(other, name)),
  );

const element = (tag, text, className) => {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return made;
};

const tell = (place, verdict, { stated, computed, body, note }) => {
  const parts = [element("p", verdict.text, `said ${verdict.kind}`)];
  if (note) parts.push(element("p", note, "said warning"));
  if (computed) {
    const facts = element("dl", "", "facts");
    for (const [name, value] of [["Stated", stated], ["Computed here", computed]]) {
      const shown = element("dd", "");
      shown.append(element("code", value));
      facts.append(element("dt", name), shown);
    }
    const bytes = element("pre", "", "bytes");
    bytes.tabIndex = 0;
    bytes.append(element("code", body));
    parts.push(facts, element("p", `These ${new TextEncoder().encode(body).length} bytes were hashed:`, "quiet"), bytes);
  }
  place.replaceChildren(...parts);
};

const check = async (text) => {
  const { pack, stated, body } = partsOf(text);
  const computed = await sha256(body);
  return { pack, stated, body, computed, intact: computed === stated };
};

// Nobody said whether a pack is on record: the server did not answer, or not with a pack.
class Unanswered extends Error {}

// The pack on record under a pack's own name; null when the server says that there is none. Throws `Unanswered`.
const recorded = async (name) => {
  if (typeof name !== "string" || !/^pf_[0-9a-f]{32}$/.test(name)) return null;
  try {
    const answer = await ask(`/verify/${name}.json`);
    if (answer.status === 404) return null;
    if (answer.ok) return partsOf(await answer.text()).pack;
  } catch {
    // As any other answer that says neither.
  }
  throw new Unanswered();
};

const GOOD = { kind: "done", text: "Match: this proof is intact. Its hash is the hash of its content." };
const UNKNOWN = { kind: "warning", text: "Its hash fits its content, but so can that of a forged proof. Try again to compare it with the record." };
const BAD = { kind: "refused", text: "No match: this proof was changed. Its hash is not the hash of its content." };

// What this page shows of the pack, by field; null where it had to name characters that cannot be shown as they are.
const shownHere = () =>
  [...document.querySelectorAll("table.pack [data-field]")].map((cell) => [
    cell.dataset.field,
    cell.querySelector(".odd") ? null : cell.textContent.trim(),
  ]);

// As the server's `wire_money` writes it.
const money = ({ value, currency }) => {
  const digits = JSON.parse(document.querySelector("table.pack").dataset.digits)[currency] ?? 2;
  const [whole, rest = ""] = String(value).split(".");
  return `${whole.replace(/\B(?=(\d{3})+$)/g, ",")}${digits ? `.${rest.padEnd(digits, "0")}` : ""} ${currency}`;
};
const written = (value) => (value === null || value === undefined ? "" : typeof value === "object" ? money(value) : String(value));

// Whether a pack is what this page shows (`forged`: it is not), and what to say of it.
const comparedWithPage = (found) => {
  const names = shownHere().filter(([name, text]) => text !== null && text !== written(found.pack[name])).map(([name]) => name);
  if (names.length === 0) return { note: "" };
  const note = `This is not the proof this page shows: ${names.join(", ")} ${names.length === 1 ? "differs" : "differ"}.`;
  return { note, forged: "Its hash fits its content, but this is not the proof this page shows." };
};

// Identifiers that are minted for the public: a pack that was given to an agent has its own words there.
const isMinted = (value) => typeof value === "string" && /^p(ag|ac|le|rf)_[a-z2-7]{16}$/.test(value);

// An action that is public as the pattern of its policy that covers it: "data.*" for "data.read".
const isPattern = (name, value) => name === "action" && typeof value === "string" && value.endsWith(".*");

// Whether the public value of a field may stand for another one of a pack that was given.
const standsFor = (name, shown, given) =>
  typeof given === "string" && given !== shown && (isMinted(shown) || (isPattern(name, shown) && given.startsWith(shown.slice(0, -1))));

const replacedNote = (known, replaced) => {
  const parts = ["Everything else matches the record here."];
  const minted = replaced.filter((name) => isMinted(known[name]));
  if (minted.length > 0) parts.push(`Identifiers are not public and were not compared: ${minted.join(", ")}.`);
  if (minted.length < replaced.length) parts.push(`The action is public by its pattern: ${known.action}`);
  return parts.join(" ");
};

// The same of what is on record under its name; `unknown`: that could not be asked, so nothing is known of it.
const comparedWithRecord = async (found) => {
  let known;
  try {
    known = await recorded(found.pack.proof_id);
  } catch (error) {
    if (!(error instanceof Unanswered)) throw error;
    return { note: "It could not be compared with what is on record here now.", unknown: true };
  }
  if (known === null) return { note: "There is no proof with that id on record here, so only its own hash was checked." };
  const replaced = Object.keys(known).filter((name) => standsFor(name, known[name], found.pack[name]));
  const names = differing(found.pack, known).filter((name) => !replaced.includes(name) && !(name === "hash" && replaced.length > 0));
  if (names.length === 0 && replaced.length === 0) return { note: "" };
  if (names.length === 0) return { note: replacedNote(known, replaced) };
  const note = `It is not what is on record here: ${names.join(", ")} ${names.length === 1 ? "differs" : "differ"}.`;
  return { note, forged: "Its hash fits its content, but this is not the proof with that id." };
};

// A hash that somebody recomputed after changing something fits, and is still not what was decided: so it is no match before
// that was asked.
const verdictOn = ({ intact }, { forged, unknown }) => {
  if (!intact) return BAD;
  if (forged) return { kind: "refused", text: forged };
  return unknown ? UNKNOWN : GOOD;
};

// What each place was asked last: the record's answer about an earlier proof may come after it, and is not shown any more.
const lastAsked = new WeakMap();

const report = async (place, text, isPasted) => {
  const asked = {};
  lastAsked.set(place, asked);
  const say = (...told) => lastAsked.get(place) === asked && tell(place, ...told);
  try {
    const found = await check(text);
    const compared = isPasted ? await comparedWithRecord(found) : comparedWithPage(found);
    say(verdictOn(found, compared), { ...found, note: compared.note });
  } catch (error) {
    const told = error instanceof Mismatch ? error.message : `This is not a proof: ${error.message}.`;
    say({ kind: "refused", text: told }, {});
  }
};

const install = () => {
  const form = document.getElementById("paste");
  if (!(window.isSecureContext && window.crypto?.subtle)) {
    for (const one of document.querySelectorAll(".unable")) one.hidden = false;
    return;
  }
  form.hidden = false;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    report(document.getElementById("paste-result"), document.getElementById("pasted").value, true);
  });
  const button = document.getElementById("verify");
  if (!button) return;
  document.getElementById("verify-controls").hidden = false;
  button.addEventListener("click", async () => {
    const place = document.getElementById("verify-result");
    try {
      const answer = await ask(button.dataset.pack);
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      await report(place, await answer.text(), false);
    } catch (error) {
      tell(place, { kind: "warning", text: `The proof could not be fetched: ${error.message}. Try again.` }, {});
    }
  });
};

install();
