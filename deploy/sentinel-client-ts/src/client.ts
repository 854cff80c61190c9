/**
 * The client: one method per question, retried only where the idempotency key makes that safe.
 *
 * One call lasts at most `timeoutSeconds`, retries and pauses included.
 */

import type { ApprovalView, CheckAnswer, GuardAnswer, ReportReceipt, StartReceipt, Wire } from "./answers.js";
import * as calls from "./calls.js";
import type { Call, CheckQuestion, GuardQuestion, Outcome } from "./calls.js";
import { ApprovalPending, Unreachable } from "./errors.js";
import { Transport } from "./transport.js";

const PREFIX = "/api/sentinel";

export interface ClientOptions {
  /** The default for every call. */
  readonly agentId?: string | undefined;
  /** The tenant that the key must belong to. */
  readonly tenantId?: string | undefined;
  /** For one call with its retries; 5 if not given. */
  readonly timeoutSeconds?: number | undefined;
  /** How often a call is repeated at most; 2 if not given. */
  readonly retries?: number | undefined;
}

export interface CallOptions {
  /** Gives the call up: it throws the signal's reason. The same call with the same key may be made again. */
  readonly signal?: AbortSignal | undefined;
}

export interface StartOptions extends CallOptions {
  /** Seconds to act, counted from before the call; the authority's own time if not given. */
  readonly actWithinSeconds?: number | undefined;
}

export interface WaitOptions extends CallOptions {
  readonly timeoutSeconds: number;
  /** The approval is looked at this often at most; 2 if not given. */
  readonly pollSeconds?: number | undefined;
}

/**
 * Asks one authority with one key. `baseUrl` is e.g. "http://127.0.0.1:7860".
 *
 * A call throws `Unreachable` (no answer: may be repeated), `KeyConflict` or `Rejected` (answered: the request itself is
 * refused). Printing a client does not show its key.
 */
export class Client {
  readonly agentId: string | undefined;
  readonly timeoutSeconds: number;
  readonly retries: number;
  readonly #transport: Transport;

  constructor(baseUrl: string, apiKey: string, options: ClientOptions = {}) {
    const headers: Record<string, string> = { "X-API-Key": apiKey, "User-Agent": "sentinel-client-ts" };
    if (options.tenantId !== undefined) headers["X-Tenant-Id"] = options.tenantId;
    this.#transport = new Transport(baseUrl, headers);
    this.agentId = options.agentId;
    this.timeoutSeconds = options.timeoutSeconds ?? 5;
    this.retries = options.retries ?? 2;
  }

  /**
   * Asks whether exactly this may happen. Only `answer.mayStart` is a permission, and it still needs `start`.
   *
   * With a `startId` the question starts what it permits: then `answer.start` is the go-ahead, and a `duplicate` one may have
   * been acted on before.
   */
  async guard(question: GuardQuestion, options: CallOptions = {}): Promise<GuardAnswer> {
    return this.#run(calls.guardCall(question, this.#agent(question.agentId)), options.signal);
  }

  /**
   * Redeems the answer's permit just before the side effect. The same `startId` (a UUID) gets the same receipt.
   *
   * `Rejected.code`: "permit-expired", "permit-refused" (halted, or a bound field differs), "already-started",
   * "resolved-not-executed".
   */
  async start(answer: GuardAnswer, startId: string, options: StartOptions = {}): Promise<StartReceipt> {
    return this.#run(calls.startCall(answer, startId, options.actWithinSeconds), options.signal);
  }

  /** Tells what came of it. */
  async report(outcome: Outcome, options: CallOptions = {}): Promise<ReportReceipt> {
    return this.#run(calls.reportCall(outcome, this.#agent(outcome.agentId)), options.signal);
  }

  /** What would be decided now; reserves nothing and permits nothing. */
  async check(question: CheckQuestion, options: CallOptions = {}): Promise<CheckAnswer> {
    return this.#run(calls.checkCall(question, this.#agent(question.agentId)), options.signal);
  }

  /** One approval of this agent. */
  async approval(approvalId: string, options: CallOptions = {}): Promise<ApprovalView> {
    return this.#run(calls.approvalCall(approvalId), options.signal);
  }

  /** OK, PAUSE or KILL. */
  async heartbeat(agentId?: string, options: CallOptions = {}): Promise<Wire["Heartbeat"]["status"]> {
    return this.#run(calls.heartbeatCall(this.#agent(agentId)), options.signal);
  }

  /**
   * The approval once it is decided or expired; then guard again with the same key. It grants nothing itself.
   *
   * What gives no answer meanwhile is looked at again. Throws `ApprovalPending` after `timeoutSeconds`, or the last
   * `Unreachable`, for which it may wait the client's own timeout beyond that.
   */
  async waitForApproval(approvalId: string, options: WaitOptions): Promise<ApprovalView> {
    const deadline = now() + options.timeoutSeconds;
    for (let attempt = 0; ; attempt++) {
      let silent: Unreachable | undefined;
      try {
        const view = await this.approval(approvalId, options);
        if (view.status !== "pending") return view;
      } catch (error) {
        if (!(error instanceof Unreachable)) throw error;
        silent = error;
      }
      const left = deadline - now();
      if (left <= 0) throw silent ?? new ApprovalPending(approvalId, "nobody decided while waiting");
      await pause(calls.pollPause(attempt, options.pollSeconds ?? 2, left), options.signal);
    }
  }

  #agent(chosen: string | undefined): string {
    const agent = chosen || this.agentId;
    if (!agent) throw new TypeError("an agentId is needed: give it to the client or to the call");
    return agent;
  }

  async #run<Answer>(call: Call<Answer>, signal: AbortSignal | undefined): Promise<Answer> {
    const deadline = now() + this.timeoutSeconds;
    for (let attempt = 0; ; attempt++) {
      try {
        const left = (deadline - now()) * 1000;
        return calls.readAnswer(call, await this.#transport.exchange(call.method, PREFIX + call.path, call.sent, left, signal));
      } catch (error) {
        if (!(error instanceof Unreachable)) throw error;
        await pause(calls.pauseBeforeRetry(error, attempt, this.retries, deadline - now()), signal);
      }
    }
  }
}

/** Seconds of a clock that nobody sets. */
function now(): number {
  return performance.now() / 1000;
}

/** Waits; rejects with the signal's reason once it is aborted. */
function pause(seconds: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const abort = () => (clearTimeout(timer), reject(signal?.reason));
    const timer = setTimeout(() => (signal?.removeEventListener("abort", abort), resolve()), seconds * 1000);
    if (signal?.aborted) abort();
    signal?.addEventListener("abort", abort, { once: true });
  });
}
