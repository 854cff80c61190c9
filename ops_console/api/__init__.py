"""The operators' JSON API under `/ops/api`: a module per subject, each adding its routes."""
