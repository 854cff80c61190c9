/**
 * What each question sends and how its answer is read, without any I/O.
 *
 * Every question carries its own idempotency key or start id, so a repeat gets the recorded answer.
 */

import {
  type ApprovalView,
  type CheckAnswer,
  GuardAnswer,
  type ReportReceipt,
  readApproval,
  readCheckAnswer,
  readHeartbeat,
  readReportReceipt,
  readStartReceipt,
  type StartReceipt,
  type Wire,
} from "./answers.js";
import { codeOf, KeyConflict, type ProblemDocument, Rejected, Unreachable } from "./errors.js";
import { isObject, malformed } from "./fields.js";
import type { RawAnswer } from "./transport.js";

const FIRST_BACKOFF_SECONDS = 0.05;
const LEAST_ATTEMPT_SECONDS = 0.01;
const FIRST_POLL_SECONDS = 0.2;
/** Of a report, within the authority's limits: 64 KiB and 16 levels for a body, and 4,000 characters of an error. */
const MOST_RESULT_BYTES = 32_768;
const MOST_RESULT_DEPTH = 12;
const MOST_ERROR = 4_000;
const RETRYABLE = new Set(["connection_refused", "connection_broken", "server_error", "busy"]);
const JSON_TYPES = new Set(["application/json", "application/problem+json"]);

/** A JSON object; a BigInt counts as its number. Numbers of JavaScript are binary floats: write money as text, e.g. `{ value: "40.00", currency: "USD" }`. */
export type JsonObject = Readonly<Record<string, unknown>>;

/** A question without effect: nothing is recorded. */
export interface CheckQuestion {
  readonly action: string;
  readonly params: JsonObject;
  /** Not bound with the operation; it can only tighten. */
  readonly evidenceContext?: JsonObject | undefined;
  readonly agentId?: string | undefined;
}

/** One exact action under its key; `params` is bound with it. */
export interface GuardQuestion extends CheckQuestion {
  readonly idempotencyKey: string;
  readonly resource?: string | undefined;
  readonly riskClass?: string | undefined;
  /** For who acts at once: a permission is started under this UUID in the same call. Stable over retries. */
  readonly startId?: string | undefined;
  /** Seconds to act, counted from before the call; "not executed" cannot be recorded before they are over. */
  readonly actWithinSeconds?: number | undefined;
}

/** What came of a started action; "error" means unknown, not "not executed". */
export interface Outcome {
  readonly idempotencyKey: string;
  readonly action: string;
  readonly outcome: "success" | "error";
  readonly error?: string | undefined;
  readonly result?: unknown;
  readonly resource?: string | undefined;
  readonly riskClass?: string | undefined;
  readonly permitToken?: string | undefined;
  readonly reportId?: string | undefined;
  readonly agentId?: string | undefined;
}

/** One request and the reader of its answer. */
export interface Call<Answer> {
  readonly method: "GET" | "POST";
  readonly path: string;
  readonly sent: string | undefined;
  readonly read: (found: JsonObject, raw: RawAnswer) => Answer;
}

/** `action/guard`. `resource`, `risk_class` and `evidence_context` tell the authority that this caller starts in a step of its own. */
export function guardCall(question: GuardQuestion, agentId: string): Call<GuardAnswer> {
  const body = {
    agent_id: agentId,
    action: question.action,
    idempotency_key: question.idempotencyKey,
    params: question.params,
    resource: question.resource || question.action,
    risk_class: question.riskClass || "standard",
    evidence_context: question.evidenceContext ?? {},
    ...(question.startId ? { start_id: question.startId } : {}),
    ...(question.actWithinSeconds ? { act_within_seconds: question.actWithinSeconds } : {}),
  } satisfies Wire["GuardRequest"];
  const asked = { action: body.action, agentId, idempotencyKey: body.idempotency_key };
  return post("/action/guard", body, (found, raw) => {
    const answer = new GuardAnswer(found, asked, raw.replayed);
    if (answer.resource !== body.resource || answer.riskClass !== body.risk_class) {
      malformed("the answer is about another resource or risk class");
    }
    if (answer.mayStart && question.startId && !answer.start) {
      malformed("a permission for a start id does not say that it is started");
    }
    return answer;
  });
}

/** `action/guard/start`. */
export function startCall(answer: GuardAnswer, startId: string, actWithinSeconds: number | undefined): Call<StartReceipt> {
  const body = {
    idempotency_key: answer.idempotencyKey,
    action: answer.action,
    agent_id: answer.agentId,
    resource: answer.resource,
    risk_class: answer.riskClass,
    permit_token: answer.permitToken() ?? "",
    start_id: startId,
    ...(actWithinSeconds ? { act_within_seconds: actWithinSeconds } : {}),
  } satisfies Wire["StartRequest"];
  return post("/action/guard/start", body, readStartReceipt);
}

/** `action/guard/report`. */
export function reportCall(outcome: Outcome, agentId: string): Call<ReportReceipt> {
  const body = {
    agent_id: agentId,
    action: outcome.action,
    idempotency_key: outcome.idempotencyKey,
    outcome: outcome.outcome,
    ...given("error", outcome.error?.slice(0, MOST_ERROR)),
    ...given("result", sendable(outcome.result)),
    ...given("resource", outcome.resource),
    ...given("risk_class", outcome.riskClass),
    ...given("permit_token", outcome.permitToken),
    ...given("report_id", outcome.reportId),
  } satisfies Wire["ReportRequest"];
  return post("/action/guard/report", body, readReportReceipt, reportable);
}

/** `action/check`. */
export function checkCall(question: CheckQuestion, agentId: string): Call<CheckAnswer> {
  const body = {
    agent_id: agentId,
    action: question.action,
    params: question.params,
    ...given("evidence_context", question.evidenceContext),
  } satisfies Wire["CheckRequest"];
  return post("/action/check", body, readCheckAnswer);
}

/** `approval/{id}`. */
export function approvalCall(approvalId: string): Call<ApprovalView> {
  return { method: "GET", path: `/approval/${encodeURIComponent(approvalId)}`, sent: undefined, read: readApproval };
}

/** `heartbeat`. */
export function heartbeatCall(agentId: string): Call<Wire["Heartbeat"]["status"]> {
  const path = `/heartbeat?${new URLSearchParams({ agent_id: agentId })}`;
  return { method: "GET", path, sent: undefined, read: readHeartbeat };
}

/** What was answered. Throws `Unreachable`, `KeyConflict` or `Rejected`. */
export function readAnswer<Answer>(call: Call<Answer>, raw: RawAnswer): Answer {
  const found = JSON_TYPES.has(raw.contentType) ? parsed(raw.data) : undefined;
  if (raw.status === 200) return call.read(found ?? malformed("200 without a JSON object"), raw);
  const wait = raw.retryAfter !== null && /^\d{1,5}$/.test(raw.retryAfter) ? Number(raw.retryAfter) : undefined;
  if (raw.status >= 500) throw new Unreachable("server_error", `status ${raw.status}`, wait);
  const type = textOf(found?.["type"]);
  const stillDeciding = raw.status === 409 && (wait !== undefined || type.endsWith("still-deciding"));
  if ([408, 425, 429].includes(raw.status) || stillDeciding) {
    throw new Unreachable("busy", `status ${raw.status}`, wait, codeOf(type) || undefined);
  }
  if (raw.status < 400 || !found) malformed(`status ${raw.status} without a problem document`);
  const problem = { status: raw.status, type, title: textOf(found["title"]), detail: textOf(found["detail"]) };
  const isConflict = raw.status === 422 && codeOf(type) === "idempotency-key-reused";
  throw isConflict ? keyConflict(problem, found) : new Rejected(problem);
}

/** With what the authority says of the key's first use; with nothing of it where a part of that is malformed. */
function keyConflict(problem: ProblemDocument, found: JsonObject): KeyConflict {
  const recorded = found["recorded_params"];
  const worse = found["tightened"] ?? null;
  if (!isObject(recorded)) return new KeyConflict(problem);
  if (worse === null) return new KeyConflict(problem, recorded);
  if (!isObject(worse)) return new KeyConflict(problem);
  return new KeyConflict(problem, recorded, {
    decision: textOf(worse["decision"]),
    reasonCode: textOf(worse["reason_code"]),
    reason: textOf(worse["reason"]),
  });
}

/** Seconds until the call may be repeated. Throws the error where it may not, or no time is left for it. */
export function pauseBeforeRetry(error: Unreachable, attempt: number, retries: number, leftSeconds: number): number {
  const jittered = FIRST_BACKOFF_SECONDS * 2 ** attempt * (0.5 + Math.random());
  const pause = Math.max(jittered, error.retryAfterSeconds ?? 0);
  if (attempt >= retries || !RETRYABLE.has(error.kind) || pause + LEAST_ATTEMPT_SECONDS > leftSeconds) throw error;
  return pause;
}

/** Seconds until an approval is looked at again: 0.2 at first, doubled up to `mostSeconds`, with jitter. */
export function pollPause(attempt: number, mostSeconds: number, leftSeconds: number): number {
  const growing = Math.min(FIRST_POLL_SECONDS * 2 ** Math.min(attempt, 20), mostSeconds);
  return Math.min(growing * (0.75 + Math.random() / 2), leftSeconds);
}

function post<Answer>(path: string, body: object, read: Call<Answer>["read"], written = exactly): Call<Answer> {
  return { method: "POST", path, sent: JSON.stringify(body, written), read };
}

/** What is sent of a result. One that the authority would refuse, or that JSON cannot write, is replaced: its effect must be reported. */
function sendable(result: unknown): unknown {
  let written: string | undefined;
  try {
    written = JSON.stringify(result, reportable);
  } catch {
    return { omitted: "nested too deeply" }; // within itself, or deeper than the stack
  }
  if (written === undefined) return result;
  const bytes = new TextEncoder().encode(written).length;
  if (bytes > MOST_RESULT_BYTES) return { omitted: "too large", bytes };
  let depth = 0;
  for (const bracket of written.replace(/"(?:[^"\\]|\\.)*"/g, "").match(/[[\]{}]/g) ?? []) {
    depth += bracket === "[" || bracket === "{" ? 1 : -1;
    if (depth > MOST_RESULT_DEPTH) return { omitted: "nested too deeply", bytes };
  }
  return result;
}

/** Of a report nothing is refused, for the effect has happened: a number that JSON does not have is sent as text, and of anything else what JSON makes of it. */
function reportable(this: unknown, _name: string, value: unknown): unknown {
  if (typeof value === "bigint") return Number.isSafeInteger(Number(value)) ? Number(value) : String(value);
  return typeof value === "number" && !Number.isFinite(value) ? String(value) : value;
}

/**
 * Refuses what JSON would change or leave out: the question would be about something else than the effect. A number that lost
 * digits when it was read, an object of a class (a Map, or one with private fields), which may come out empty, a function, which
 * would not be there, a hole in an array, which would be null, and what its own `toJSON` makes null or nothing (an invalid Date).
 */
function exactly(this: unknown, name: string, value: unknown): unknown {
  const number = typeof value === "bigint" ? Number(value) : value;
  if (typeof number === "number" && (!Number.isFinite(number) || (Number.isInteger(number) && !Number.isSafeInteger(number)))) {
    throw new TypeError(`${name} is not an exact number: give it as text`);
  }
  const isHole = value === undefined && Array.isArray(this);
  const held = (this as Record<string, unknown>)[name];
  const isLost = (value === undefined || value === null) && value !== held;
  if (isHole || isLost || isForeign(value) || typeof value === "function" || typeof value === "symbol") {
    const form = isHole ? "a hole" : Object.prototype.toString.call(held);
    throw new TypeError(`${name} cannot be sent as JSON: it is ${form}, nothing plain`);
  }
  return number;
}

/** Is it an object that is neither an array nor plain? A plain one's prototype has none itself, in whatever realm it was made. */
function isForeign(value: unknown): boolean {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype !== null && Object.getPrototypeOf(prototype) !== null;
}

function given<Name extends string, Value>(name: Name, value: Value | undefined): { [Key in Name]?: Value } {
  return (value === undefined || value === null ? {} : { [name]: value }) as { [Key in Name]?: Value };
}

function parsed(data: Uint8Array): JsonObject | undefined {
  try {
    const found: unknown = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(data));
    return isObject(found) ? found : undefined;
  } catch {
    return undefined;
  }
}

function textOf(found: unknown): string {
  return typeof found === "string" ? found.slice(0, 500) : "";
}
