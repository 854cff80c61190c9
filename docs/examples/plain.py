"""A guarded tool without a framework: python docs/examples/plain.py http://127.0.0.1:7860 KEY"""

import sys
from pathlib import Path

from sentinel.client import ApprovalPending, Client, ClientError
from sentinel.integrations import ToolGuard, current_operation, guarded_tool, refusal_message
from sentinel.tools import read_tool_table

TABLE = read_tool_table(Path(__file__).parents[2] / "policies" / "tools.yaml")


def main(url: str, key: str) -> None:
    with Client(url, key, agent_id="example-plain") as client:
        guard = ToolGuard(TABLE, client)

        @guarded_tool(guard)
        def issue_gift_card(customer: str, amount: str, currency: str, order: str) -> str:
            operation = current_operation()
            return f"issued {amount} {currency} to {customer} under {operation.operation_id}"

        for amount, order in (("10.00", "plain-1"), ("100.00", "plain-2"), ("1000.00", "plain-3")):
            try:
                try:
                    print(issue_gift_card(customer="c1", amount=amount, currency="USD", order=order))
                except ApprovalPending as pending:
                    print(f"waiting for {pending.approval_id}", flush=True)
                    client.wait_for_approval(pending.approval_id, timeout_seconds=600)
                    # The same call again: its key finds what was decided.
                    print(issue_gift_card(customer="c1", amount=amount, currency="USD", order=order))
            except ClientError as refused:
                print(refusal_message(refused))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
