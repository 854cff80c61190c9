/**
 * The agents' library: a client of the authority, and `guarded()` around an effect.
 *
 * Only a well-formed ALLOW or approved answer with a permit counts as permission; everything else is a refusal, a wait or no
 * answer at all.
 */

export { GuardAnswer } from "./answers.js";
export type { ApprovalView, CheckAnswer, Decision, GuardStatus, ReportReceipt, StartReceipt } from "./answers.js";
export type { CheckQuestion, GuardQuestion, JsonObject, Outcome } from "./calls.js";
export { Client } from "./client.js";
export type { CallOptions, ClientOptions, StartOptions, WaitOptions } from "./client.js";
export {
  ActionDenied,
  ActionExpired,
  AlreadyStarted,
  ApprovalPending,
  ClientError,
  KeyConflict,
  Rejected,
  StartedTooLate,
  Unreachable,
} from "./errors.js";
export type { NoAnswerKind, Tightened } from "./errors.js";
export { guarded, throwUnlessPermitted } from "./guarded.js";
export type { GuardedOptions } from "./guarded.js";
export type { components, operations, paths } from "./openapi.js";
