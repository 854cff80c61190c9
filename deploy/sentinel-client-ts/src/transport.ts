/**
 * One HTTP exchange by `fetch`, bounded in bytes and in time. No redirects, no caches, no compression: an answer comes from
 * the address that was asked.
 */

import { type NoAnswerKind, Unreachable } from "./errors.js";

const MAX_ANSWER_BYTES = 1 << 20;
/** Of a timer: a longer one would fire at once. */
const MOST_MILLISECONDS = 2 ** 31 - 1;
const NO_CONNECTION = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH", "UND_ERR_CONNECT_TIMEOUT"]);
const PRINTABLE = /^[\x20-\x7e]+$/;

/** An answer, unread. */
export interface RawAnswer {
  readonly status: number;
  readonly contentType: string;
  readonly retryAfter: string | null;
  readonly replayed: boolean;
  readonly data: Uint8Array;
}

/** Exchanges with one base address. Printing it shows no header. */
export class Transport {
  readonly #baseUrl: string;
  readonly #headers: Readonly<Record<string, string>>;

  constructor(baseUrl: string, headers: Readonly<Record<string, string>>) {
    this.#baseUrl = checkedAddress(baseUrl);
    for (const [name, value] of Object.entries(headers)) {
      // Said here without the value: fetch would put it into its error.
      if (!PRINTABLE.test(value)) throw new TypeError(`${name} must be printable ASCII`);
    }
    this.#headers = { Accept: "application/json", "Accept-Encoding": "identity", ...headers };
  }

  /**
   * Sends one request and returns the whole answer, within `milliseconds`. Throws `Unreachable`, or the signal's reason once
   * `signal` is aborted.
   */
  async exchange(method: string, path: string, body: string | undefined, milliseconds: number, signal?: AbortSignal): Promise<RawAnswer> {
    signal?.throwIfAborted();
    const stop = new AbortController();
    let late = false;
    const timer = setTimeout(() => ((late = true), stop.abort()), Math.min(Math.max(milliseconds, 1), MOST_MILLISECONDS));
    const abort = () => stop.abort();
    signal?.addEventListener("abort", abort, { once: true });
    try {
      return await this.#fetch(method, path, body, stop.signal);
    } catch (error) {
      signal?.throwIfAborted();
      throw late ? new Unreachable("timeout", "no answer in time") : notReached(error);
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", abort);
    }
  }

  async #fetch(method: string, path: string, body: string | undefined, signal: AbortSignal): Promise<RawAnswer> {
    const headers = body === undefined ? this.#headers : { ...this.#headers, "Content-Type": "application/json" };
    const options = { method, headers, body: body ?? null, signal };
    const answer = await fetch(this.#baseUrl + path, { ...options, redirect: "manual", cache: "no-store", credentials: "omit" });
    return {
      status: answer.status,
      contentType: (answer.headers.get("content-type") ?? "").split(";", 1)[0]!.trim().toLowerCase(),
      retryAfter: answer.headers.get("retry-after"),
      replayed: answer.headers.get("idempotent-replayed")?.toLowerCase() === "true",
      data: await readBody(answer),
    };
  }
}

/** The base address without a slash at its end. Throws `TypeError` for what is none. */
function checkedAddress(baseUrl: string): string {
  const url = URL.canParse(baseUrl) ? new URL(baseUrl) : undefined;
  if (!url || !/^https?:$/.test(url.protocol) || url.search || url.hash || url.username || url.password) {
    throw new TypeError("the authority's address must look like http://host:port");
  }
  return url.href.replace(/\/+$/, "");
}

async function readBody(answer: Response): Promise<Uint8Array> {
  const parts: Uint8Array[] = [];
  let size = 0;
  const reader = answer.body?.getReader();
  for (let part = await reader?.read(); part && !part.done; part = await reader?.read()) {
    size += part.value.length;
    if (size > MAX_ANSWER_BYTES) {
      await reader?.cancel();
      throw new Unreachable("connection_broken", "the answer is too large");
    }
    parts.push(part.value);
  }
  const whole = new Uint8Array(size);
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** Why a `fetch` failed, as its code or first line: its error may hold bytes of an answer and is not passed on. */
function notReached(error: unknown): Unreachable {
  if (error instanceof Unreachable) return error;
  const cause = (error as { cause?: { code?: unknown; message?: unknown } } | null)?.cause;
  const code = typeof cause?.code === "string" ? cause.code : "";
  const kind: NoAnswerKind = NO_CONNECTION.has(code) ? "connection_refused" : "connection_broken";
  const line = code || String(cause?.message ?? (error as Error | null)?.message ?? "no connection");
  return new Unreachable(kind, line.split("\n", 1)[0]!.slice(0, 200));
}
