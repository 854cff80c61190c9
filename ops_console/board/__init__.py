"""The public board: what anybody may see of the decisions, as JSON, as a stream and as pages."""
