"""The `worker` command: enter rows and orders, show the ledger, draw its states, run the agent. Subcommands are loaded when they are used.

Exit status: 0 all well, 1 something was refused or failed, 2 usage or settings, 3 no database or no authority.
"""

from __future__ import annotations

import click

from sentinel.platform.command_line import LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "run": (
        "worker.retail_refund_agent:main",
        "Process refund rows of the ledger, each only as the authority decides.",
    ),
    "enqueue": ("worker.refunds.enqueue:enqueue", "Enter refund rows from a file: JSON lines, an array, or a CSV."),
    "facts": (
        "worker.refunds.enqueue:facts",
        "Store facts of a file in the ledger: orders, complaints, delays and others.",
    ),
    "import-orders": (
        "worker.refunds.ledger_commands:import_orders",
        "Import the Online Retail CSV: orders, and refund rows.",
    ),
    "summary": (
        "worker.refunds.ledger_commands:summary",
        "Counts and sums of the ledger by state, decision and reason.",
    ),
    "retry": (
        "worker.refunds.ledger_commands:retry",
        "Retry rows in ERROR, with attempts counted from zero.",
    ),
    "handled": (
        "worker.refunds.ledger_commands:handled",
        "Record that a person handled a row elsewhere; only if nothing of it was started.",
    ),
    "reports": (
        "worker.refunds.report_commands:reports",
        "Reports that the authority refused permanently: list, resend or discard them.",
    ),
    "reconcile": (
        "worker.refunds.ledger_commands:reconcile",
        "Compare every execution with what should have been paid.",
    ),
    "workflow": ("worker.refunds.workflow.cli:workflow", "The refund workflow: its graph, a row's path, a simulation."),
    "order-review": (
        "worker.orders.cli:order_review",
        "Order review: orders from webhooks are fulfilled, queued for an analyst, or held.",
    ),
    "check": ("worker.check_policies:check", "Check the files of a policies folder that worker and order intake read."),
    "states": ("worker.diagrams:states", "The table of a row's states."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """The refund worker: rows in, executions out, each only as the authority decides.

    Settings are environment variables, listed in docs/settings.md. Exit codes: 0 done, 1 something was refused or failed,
    2 wrong usage or settings, 3 the database or the authority gives no answer.
    """
    # Imported only when a command runs, so that --help is quick.
    from sentinel.platform.logs import logs_of_command

    click.get_current_context().with_resource(logs_of_command())


if __name__ == "__main__":
    main()
