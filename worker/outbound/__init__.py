"""What answers of other servers mean to the worker: effects, chat completions, the authority's refusals."""
