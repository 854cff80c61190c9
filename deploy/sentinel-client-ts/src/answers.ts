/**
 * The authority's answers as values. A body that is not exactly of the contract's shape is refused: half an answer is none.
 *
 * Source: docs/CONTRACT.md §2 and §3. Reading throws `Unreachable` of the kind "malformed_answer".
 */

import { type Body, flag, malformed, oneOf, optionalCount, optionalObject, optionalText, optionalTime, text, uuidText } from "./fields.js";
import type { components } from "./openapi.js";

/** The types of the wire, as the OpenAPI document has them. */
export type Wire = components["schemas"];
export type Decision = Wire["GuardAnswer"]["decision"];
export type GuardStatus = Wire["GuardAnswer"]["status"];

const DECISIONS: readonly Decision[] = ["ALLOW", "APPROVAL_REQUIRED", "DENY"];

/** The decisions that each status may come with; complete. */
const DECISIONS_OF_STATUS: Readonly<Record<GuardStatus, readonly Decision[]>> = {
  allowed: ["ALLOW"],
  pending: ["APPROVAL_REQUIRED"],
  approved: ["APPROVAL_REQUIRED"],
  expired: ["APPROVAL_REQUIRED", "DENY"],
  denied: ["DENY"],
  already_started: DECISIONS,
  completed: DECISIONS,
};
const STATUSES = Object.keys(DECISIONS_OF_STATUS) as GuardStatus[];
const APPROVAL_STATUSES = ["pending", "approved", "rejected", "expired"] as const;
const HEARTBEATS: readonly Wire["Heartbeat"]["status"][] = ["OK", "PAUSE", "KILL"];

/** The start is recorded; `duplicate` when this start id was recorded before. */
export interface StartReceipt {
  readonly startEventId: string;
  readonly startHash: string;
  readonly duplicate: boolean;
}

/**
 * The outcome is recorded; `duplicate` when this very report was received before.
 *
 * `contradiction`: a person had said that it was not executed. People must find out; there is nothing to repeat.
 */
export interface ReportReceipt {
  readonly receiptEventId: string;
  readonly receiptHash: string;
  readonly duplicate: boolean;
  readonly contradiction: boolean;
}

/** What would be decided now. Nothing may be executed on it. */
export interface CheckAnswer {
  readonly decision: Decision;
  readonly reasonCode: string;
  readonly reason: string;
  readonly policyId: string | undefined;
}

/** One approval as its requester sees it. */
export interface ApprovalView {
  readonly status: (typeof APPROVAL_STATUSES)[number];
  readonly agentId: string;
  readonly action: string;
  readonly approver: string | undefined;
  readonly reason: string | undefined;
  readonly decidedAt: Date | undefined;
  readonly expiresAt: Date | undefined;
}

/** What a guard answer repeats of its question. */
export interface AskedOperation {
  readonly action: string;
  readonly agentId: string;
  readonly idempotencyKey: string;
}

/**
 * One answer to `guard`. `action`, `agentId` and `idempotencyKey` are the question's own; ids are UUID text.
 *
 * `start` is there when the question named a start id and the action is started under it, just now or (`duplicate`) before.
 */
export class GuardAnswer implements AskedOperation {
  readonly action: string;
  readonly agentId: string;
  readonly idempotencyKey: string;
  readonly decision: Decision;
  readonly status: GuardStatus;
  /** True for a permission: allowed or approved, with its permit. */
  readonly mayStart: boolean;
  readonly reasonCode: string;
  readonly reason: string;
  readonly operationId: string;
  readonly decisionEventId: string;
  readonly resource: string;
  readonly riskClass: string;
  readonly policyId: string | undefined;
  readonly policyVersion: string | undefined;
  /** The policy's name for people. */
  readonly policyLabel: string | undefined;
  readonly latencyMs: number | undefined;
  /** By the database's clock; the same in every replay. */
  readonly decidedAt: Date | undefined;
  readonly permitExpiresAt: Date | undefined;
  readonly approvalId: string | undefined;
  readonly approver: string | undefined;
  readonly approvedAt: Date | undefined;
  readonly expiresAt: Date | undefined;
  readonly outcome: string | undefined;
  readonly proofPack: Readonly<Record<string, unknown>> | undefined;
  readonly replayed: boolean;
  readonly start: StartReceipt | undefined;
  /** "not_executed": a person said so, and nothing starts under this key any more. */
  readonly resolution: string | undefined;
  readonly #permitToken: string | undefined;

  constructor(body: Body<Wire["GuardAnswer"]>, asked: AskedOperation, replayed: boolean) {
    ({ action: this.action, agentId: this.agentId, idempotencyKey: this.idempotencyKey } = asked);
    this.status = oneOf(body, "status", STATUSES);
    this.decision = oneOf(body, "decision", DECISIONS_OF_STATUS[this.status]);
    this.mayStart = this.status === "allowed" || this.status === "approved";
    this.#permitToken = this.mayStart ? text(body, "permit_token") : undefined;
    this.reasonCode = text(body, "reason_code");
    this.reason = optionalText(body, "reason") ?? "";
    this.operationId = uuidText(body, "operation_id");
    this.decisionEventId = uuidText(body, "decision_event_id");
    this.resource = text(body, "resource");
    this.riskClass = text(body, "risk_class");
    this.policyId = optionalText(body, "policy_id");
    this.policyVersion = optionalText(body, "policy_version");
    this.policyLabel = optionalText(body, "policy_label");
    this.latencyMs = optionalCount(body, "latency_ms");
    this.decidedAt = optionalTime(body, "decided_at");
    this.permitExpiresAt = optionalTime(body, "permit_expires_at");
    this.approvalId = this.status === "pending" || "approval_id" in body ? uuidText(body, "approval_id") : undefined;
    this.approver = optionalText(body, "approver");
    this.approvedAt = optionalTime(body, "approved_at");
    this.expiresAt = optionalTime(body, "expires_at");
    this.outcome = optionalText(body, "outcome");
    this.proofPack = optionalObject(body, "proof_pack");
    this.replayed = replayed;
    const started = optionalObject(body, "start");
    this.start = started && readStartReceipt(started);
    this.resolution = optionalText(body, "resolution");
    Object.freeze(this);
  }

  /** True where a halt covers what was permitted before it: the recorded decision stands, and the same key goes on once the halt is lifted. */
  get isHaltedForNow(): boolean {
    const recorded = this.proofPack?.["decision"] ?? this.decision;
    return this.status === "denied" && this.reasonCode === "halted" && recorded !== "DENY";
  }

  /** The permit, there exactly when `mayStart`. A bearer token: keep it out of logs. Printing an answer does not show it. */
  permitToken(): string | undefined {
    return this.#permitToken;
  }
}

/** A 200 body of `guard/start`: it must say `started: true`. */
export function readStartReceipt(body: Body<Wire["StartReceipt"]>): StartReceipt {
  if (body.started !== true) malformed("started is not true");
  return {
    startEventId: uuidText(body, "start_event_id"),
    startHash: text(body, "start_hash"),
    duplicate: flag(body, "duplicate"),
  };
}

/** A 200 body of `guard/report`: it must say `received: true`. */
export function readReportReceipt(body: Body<Wire["ReportReceipt"]>): ReportReceipt {
  if (body.received !== true) malformed("received is not true");
  return {
    receiptEventId: uuidText(body, "receipt_event_id"),
    receiptHash: text(body, "receipt_hash"),
    duplicate: flag(body, "duplicate"),
    contradiction: flag(body, "contradiction"),
  };
}

/** A 200 body of `action/check`. */
export function readCheckAnswer(body: Body<Wire["CheckAnswer"]>): CheckAnswer {
  return {
    decision: oneOf(body, "decision", DECISIONS),
    reasonCode: text(body, "reason_code"),
    reason: optionalText(body, "reason") ?? "",
    policyId: optionalText(body, "policy_id"),
  };
}

/** A 200 body of `approval/{id}`. */
export function readApproval(body: Body<Wire["Approval"]>): ApprovalView {
  return {
    status: oneOf(body, "status", APPROVAL_STATUSES),
    agentId: text(body, "agent_id"),
    action: text(body, "action"),
    approver: optionalText(body, "approver"),
    reason: optionalText(body, "reason"),
    decidedAt: optionalTime(body, "decided_at"),
    expiresAt: optionalTime(body, "expires_at"),
  };
}

/** A 200 body of `heartbeat` → OK, PAUSE or KILL. */
export function readHeartbeat(body: Body<Wire["Heartbeat"]>): Wire["Heartbeat"]["status"] {
  return oneOf(body, "status", HEARTBEATS);
}
