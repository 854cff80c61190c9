/**
 * Calls an effect only under authority: guard → start → the effect → report.
 *
 *     await guarded(client, "email.send", { params: { recipients: 1 }, idempotencyKey: "mail:42" }, () => send());
 */

import type { GuardAnswer } from "./answers.js";
import type { GuardQuestion } from "./calls.js";
import type { CallOptions, Client } from "./client.js";
import { ActionDenied, ActionExpired, AlreadyStarted, ApprovalPending, ClientError, Rejected, StartedTooLate } from "./errors.js";

const LEAST_LATE_SECONDS = 5;

export interface GuardedOptions extends Omit<GuardQuestion, "action" | "startId">, CallOptions {
  /** How long to wait for a person, then ask again with the same key; 0 or nothing: throw `ApprovalPending` at once. */
  readonly waitSeconds?: number | undefined;
  /** Called where the outcome could not be reported, or the effect was aborted; without it a warning is written to the console. */
  readonly onUnreported?: ((error: unknown, answer: GuardAnswer) => void) | undefined;
}

/**
 * What `effect` returns, called only with a started permit; its answer has the operation's id for a provider's idempotency key.
 *
 * Throws `ActionDenied`, `ApprovalPending`, `ActionExpired`, `AlreadyStarted`, `KeyConflict`, `Rejected`, `StartedTooLate` or
 * `Unreachable` before the effect. What the effect throws is reported as an error, which puts the operation in doubt, and goes on. An
 * aborted `signal` gives up whatever comes before the effect; the effect itself has to look at it, and what it throws then is not
 * reported: what it had begun may go on. A generator is no effect: it would run after its outcome is reported.
 */
export async function guarded<Result>(
  client: Client,
  action: string,
  options: GuardedOptions,
  effect: (answer: GuardAnswer) => Result | PromiseLike<Result>,
): Promise<Result> {
  if (typeof effect !== "function") throw new TypeError("the effect must be a function");
  if (/GeneratorFunction\]$/.test(formOf(effect))) throw new TypeError("the effect must not be a generator function");
  const answer = await permitted(client, { ...options, action }, options);
  const start = { signal: options.signal, actWithinSeconds: options.actWithinSeconds };
  const asked = stopwatch();
  await client.start(answer, crypto.randomUUID(), start).catch((error: unknown) => {
    throw error instanceof Rejected ? refusedStart(answer, error) : error;
  });
  if (isTooLate(asked(), client, options.actWithinSeconds)) {
    await report(client, answer, options, "StartedTooLate");
    throw new StartedTooLate("the start was answered too late to act on it");
  }
  let result: Result;
  let isBegun = false;
  try {
    options.signal?.throwIfAborted();
    isBegun = true;
    result = await effect(answer);
    if (/Generator\]$/.test(formOf(result))) throw new TypeError("the effect returned a generator, which has not run yet");
  } catch (error) {
    // What an aborted effect had begun may go on, while a report of an error says that nobody acts any more.
    if (isBegun && options.signal?.aborted) unreported(error, answer, options);
    else await report(client, answer, options, nameOf(error));
    throw error;
  }
  await report(client, answer, options);
  return result;
}

/** Throws `ActionDenied`, `ApprovalPending`, `ActionExpired` or `AlreadyStarted` unless the answer is a permission. */
export function throwUnlessPermitted(answer: GuardAnswer): void {
  if (answer.mayStart) return;
  switch (answer.status) {
    case "pending":
      throw new ApprovalPending(answer.approvalId ?? "", answer.reason);
    case "expired":
      throw new ActionExpired(answer.reason || "nobody decided in time");
    case "already_started":
    case "completed":
      throw new AlreadyStarted(answer.idempotencyKey, answer.outcome, answer.resolution);
    default:
      throw new ActionDenied(answer.reasonCode, answer.reason, !answer.isHaltedForNow);
  }
}

async function permitted(client: Client, question: GuardQuestion, options: GuardedOptions): Promise<GuardAnswer> {
  const asked = { ...question, startId: undefined };
  let answer = await client.guard(asked, options);
  if (answer.status === "pending" && options.waitSeconds) {
    await client.waitForApproval(answer.approvalId ?? "", { timeoutSeconds: options.waitSeconds, signal: options.signal });
    answer = await client.guard(asked, options);
  }
  throwUnlessPermitted(answer);
  return answer;
}

/**
 * Was the start answered so late that somebody may say that it was not executed? No call outlasts its client's time by more than
 * a busy machine adds; a process that was stopped may be any time behind.
 */
function isTooLate(seconds: number, client: Client, actWithinSeconds: number | undefined): boolean {
  const most = Math.max(2 * client.timeoutSeconds, LEAST_LATE_SECONDS);
  return seconds > Math.min(most, actWithinSeconds || most);
}

/**
 * Seconds since now: by the monotonic clock, which nobody sets and which may stand still while the machine is suspended, or by the wall
 * clock, whichever says more.
 */
function stopwatch(): () => number {
  const [monotonic, wall] = [performance.now(), Date.now()];
  return () => Math.max(performance.now() - monotonic, Date.now() - wall) / 1000;
}

/** What a refused start means for the effect. */
function refusedStart(answer: GuardAnswer, refused: Rejected): ClientError {
  if (refused.code === "already-started") return new AlreadyStarted(answer.idempotencyKey);
  if (refused.code === "permit-expired") return new ActionExpired("the permit ran out before the start", false);
  if (refused.status !== 403 && refused.status !== 409) return refused;
  // Of a permit that was just given the authority refuses the start alone, for a halt: the same question says how it stands now.
  return new ActionDenied(refused.code, refused.detail, refused.code !== "permit-refused");
}

/** Reports the outcome, also after an abort. It throws nothing: the effect is over, and unreported it becomes in doubt. */
async function report(client: Client, answer: GuardAnswer, options: GuardedOptions, error?: string): Promise<void> {
  const { idempotencyKey, action, agentId, resource, riskClass } = answer;
  const bound = { idempotencyKey, action, agentId, resource, riskClass, permitToken: answer.permitToken() };
  try {
    await client.report({ ...bound, outcome: error === undefined ? "success" : "error", error });
  } catch (failure) {
    unreported(failure, answer, options);
  }
}

/** Tells `onUnreported`, or the console where there is none or it throws: the caller gets what the effect returned or threw. */
function unreported(failure: unknown, answer: GuardAnswer, options: GuardedOptions): void {
  try {
    (options.onUnreported ?? warn)(failure, answer);
  } catch {
    warn(failure, answer);
  }
}

/** Of an error that is not the client's own its name alone. */
function warn(failure: unknown, answer: GuardAnswer): void {
  const why = failure instanceof ClientError ? String(failure) : nameOf(failure);
  console.warn(`the outcome of ${answer.idempotencyKey} was not reported: ${why}`);
}

/** E.g. "[object AsyncGeneratorFunction]". A generator would run after its outcome is reported. */
function formOf(value: unknown): string {
  return Object.prototype.toString.call(value);
}

/** The error's name only: its text may carry what must not leave this process. What is thrown may have any `name`, or one that throws. */
function nameOf(error: unknown): string {
  try {
    return error instanceof Error ? String(error.name).slice(0, 100) : typeof error;
  } catch {
    return "Error";
  }
}
