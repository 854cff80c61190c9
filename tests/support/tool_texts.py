"""Tables of tools as text, for tests in this environment and in those of the agent frameworks."""

from __future__ import annotations

PAY_AND_NOTE = """
tools:
  - server: local
    tool: pay
    action: gift_card.issue
    arguments: {order: {type: string}, copies: {type: int, required: false}, lines: {type: json, required: false}}
    key: '"pay:" + args.order'
    params:
      amount: {minor: '100', currency: '"USD"'}
      risk.duplicate_refund: 'false'
      risk.stale_window: 'false'
      risk.suspicious_reason: 'false'
      risk.customer_attempts_24h: '1'
  - {server: local, tool: note, unguarded: It only writes a note.}
"""
PAY_STRICTLY = PAY_AND_NOTE.replace(
    "lines: {type: json, required: false}}",
    "note: {type: string, required: false}}\n    inject: [{argument: operation, from: operation_id}]",
)
