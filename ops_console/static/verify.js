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
    if (!value.isWellFormed?.() && /\p{Surrogate}/u.test(value)) throw new Error("it has text that is no Unicode");
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

// What is to be hashed of a pack, and what it states. Throws what a person can read.
const partsOf = (text) => {
  let pack;
  try {
    pack = JSON.parse(text);
  } catch {
    throw new Error("it is not JSON");
  }
  if (pack === null || typeof pack !== "object" || Array.isArray(pack)) throw new Error("it is not a JSON object");
  if (typeof pack.hash !== "string") throw new Error("it has no hash");
  const { hash, ...rest } = pack;
  return { pack, stated: hash, body: canonical(rest) };
};

const differing = (one, other) =>
  [...new Set([...Object.keys(one), ...Object.keys(other)])].filter(
    (name) => canonical(one[name] ?? null) !== canonical(other[name] ?? null),
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

// The pack on record under a pack's own name; null when there is none, or it cannot be asked for.
const recorded = async (name) => {
  if (typeof name !== "string" || !/^pf_[0-9a-f]{32}$/.test(name)) return null;
  try {
    const answer = await fetch(`/verify/${name}.json`);
    return answer.ok ? await answer.json() : null;
  } catch {
    return null;
  }
};

const GOOD = { kind: "done", text: "Match: this proof is intact. Its hash is the hash of its content." };
const BAD = { kind: "refused", text: "No match: this proof was changed. Its hash is not the hash of its content." };

const noteOn = (found, known) => {
  if (known === null) return "There is no proof of that name on record here, so only its own hash was checked.";
  const names = differing(found.pack, known);
  if (names.length === 0) return "";
  return `It is not what is on record here: ${names.join(", ")} ${names.length === 1 ? "differs" : "differ"}.`;
};

const report = async (place, text, isPasted) => {
  try {
    const found = await check(text);
    const note = isPasted ? noteOn(found, await recorded(found.pack.proof_id)) : "";
    // A hash that somebody recomputed after changing something fits, and is still not what was decided.
    const forged = found.intact && note.startsWith("It is not");
    const verdict = forged ? { kind: "refused", text: "Its hash fits its content, but this is not the proof of that name." } : found.intact ? GOOD : BAD;
    tell(place, verdict, { ...found, note });
  } catch (error) {
    tell(place, { kind: "refused", text: `That is no proof: ${error.message}.` }, {});
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
      const answer = await fetch(button.dataset.pack);
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      await report(place, await answer.text(), false);
    } catch (error) {
      tell(place, { kind: "warning", text: `The proof could not be fetched: ${error.message}. Try again.` }, {});
    }
  });
};

if (typeof document !== "undefined") install();
if (typeof module !== "undefined") module.exports = { canonical, check, differing };
