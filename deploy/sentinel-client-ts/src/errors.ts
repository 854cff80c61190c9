/**
 * What can go wrong between an agent and the authority, one class per thing an agent handles differently.
 *
 * `Unreachable` means that nothing is known: not yes, not no. `Rejected` means that the authority answered and refused
 * the request itself. The `Action…` family is for `guarded()`, where a refusal must stop the effect.
 */

/** Why there is no answer. */
export type NoAnswerKind =
  | "connection_refused"
  | "timeout"
  | "connection_broken"
  | "server_error"
  | "busy"
  | "malformed_answer";

/** Base of everything this client throws by itself; `message` is one line without secrets. */
export class ClientError extends Error {
  override readonly name: string = "ClientError";
  /** The same call will not be permitted under its key. Of one that is not final the effect was not begun, and the call may be made again later. */
  readonly isFinal: boolean = true;
}

/**
 * No usable answer. The same call with the same key may be repeated; nothing may be executed on it.
 *
 * `code`: that of the problem document of a busy answer, e.g. "too-many-open-questions"; undefined without one.
 */
export class Unreachable extends ClientError {
  override readonly name: string = "Unreachable";
  override readonly isFinal: boolean = false;
  readonly kind: NoAnswerKind;
  /** Seconds that the authority asked to wait, where it did. */
  readonly retryAfterSeconds: number | undefined;
  readonly code: string | undefined;

  constructor(kind: NoAnswerKind, detail: string, retryAfterSeconds?: number, code?: string) {
    super(`${kind}: ${detail}`);
    this.kind = kind;
    this.retryAfterSeconds = retryAfterSeconds;
    this.code = code;
  }
}

/** A problem document (RFC 9457) as the authority sends it with a 4xx status. */
export interface ProblemDocument {
  readonly status: number;
  readonly type: string;
  readonly title: string;
  readonly detail: string;
}

/** The authority refused the request. Repeating it unchanged is no use. Not final: it refused the client's key (401), and said nothing of the call. */
export class Rejected extends ClientError {
  override readonly name: string = "Rejected";
  override readonly isFinal: boolean;
  readonly status: number;
  readonly type: string;
  readonly title: string;
  readonly detail: string;
  /** The last part of the problem's type, e.g. "permit-expired". */
  readonly code: string;

  constructor(problem: ProblemDocument) {
    super(problem.title ? `${problem.status} ${problem.title}: ${problem.detail}` : `${problem.status} ${problem.detail}`);
    ({ status: this.status, type: this.type, title: this.title, detail: this.detail } = problem);
    this.code = codeOf(problem.type);
    this.isFinal = problem.status !== 401;
  }
}

/** What the policy decides on the params sent now, and the reason that is new. */
export interface Tightened {
  readonly decision: string;
  readonly reasonCode: string;
  readonly reason: string;
}

/** 422 idempotency-key-reused: the key belongs to another operation. */
export class KeyConflict extends Rejected {
  override readonly name: string = "KeyConflict";
  /** Why the policy is stricter about the params sent now; undefined where it is not, or where there are no `recordedParams`. */
  readonly tightened: Tightened | undefined;
  readonly #recordedParams: Readonly<Record<string, unknown>> | undefined;

  constructor(problem: ProblemDocument, recordedParams?: Readonly<Record<string, unknown>>, tightened?: Tightened) {
    super(problem);
    this.tightened = tightened;
    this.#recordedParams = recordedParams;
  }

  /** The params that the key was first used with, if this requester used it. Printing the error does not show them. */
  get recordedParams(): Readonly<Record<string, unknown>> | undefined {
    return this.#recordedParams;
  }
}

/** Not allowed. `reasonCode` is the authority's, `reason` its sentence. Not final: a halt covers what was permitted before it. */
export class ActionDenied extends ClientError {
  override readonly name: string = "ActionDenied";
  override readonly isFinal: boolean;
  readonly reasonCode: string;
  readonly reason: string;

  constructor(reasonCode: string, reason: string, isFinal = true) {
    super(`${reasonCode}: ${reason}`);
    this.reasonCode = reasonCode;
    this.reason = reason;
    this.isFinal = isFinal;
  }
}

/** A person must decide first; ask again with the same key once `approvalId` is decided. */
export class ApprovalPending extends ClientError {
  override readonly name: string = "ApprovalPending";
  override readonly isFinal: boolean = false;
  readonly approvalId: string;
  readonly reason: string;

  constructor(approvalId: string, reason: string) {
    super(`approval ${approvalId} is pending: ${reason}`);
    this.approvalId = approvalId;
    this.reason = reason;
  }
}

/** Nobody decided in time; or the permit ran out before the start, which is not final: the same call asks for another. */
export class ActionExpired extends ClientError {
  override readonly name: string = "ActionExpired";
  override readonly isFinal: boolean;

  constructor(detail: string, isFinal = true) {
    super(detail);
    this.isFinal = isFinal;
  }
}

/** The operation was started before, so the effect is not called again. */
export class AlreadyStarted extends ClientError {
  override readonly name: string = "AlreadyStarted";
  /** What was reported of it: "success" means that it was done, "error" and undefined that it may have happened. */
  readonly outcome: string | undefined;
  /** "not_executed" once a person has found that it was not. */
  readonly resolution: string | undefined;

  constructor(idempotencyKey: string, outcome?: string, resolution?: string) {
    super(`${idempotencyKey} was ${outcome === "success" ? "done" : "started"} before`);
    this.outcome = outcome;
    this.resolution = resolution;
  }
}

/**
 * The start is recorded, but its answer was read so late that the effect was not called: this process stood still meanwhile. An
 * error is reported, so the operation is in doubt until a person says that it was not executed.
 */
export class StartedTooLate extends ClientError {
  override readonly name: string = "StartedTooLate";
}

/** The last part of a problem's type. */
export function codeOf(type: string): string {
  return type.replace(/\/+$/, "").split(/[/#:]/).pop() ?? "";
}
