"""Policies: a YAML file → a compiled policy; `evaluate(policy, request, now)` → `Decision`. Pure, in memory.

Reading order: `source` (strict YAML with places) → `parse` (the format) → `conditions` (CEL) → `compile`
(all of it together) → `facts` and `evaluate` (one request) → `library` (all files, reload) → `cases` (policy tests).
"""
