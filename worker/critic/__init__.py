"""The critic: a second check of a request before the authority is asked. It can stop a row, never let one through.

Two layers, joined in `critic.py`: its rules (deterministic, always) and `model.py` (a language model, where a branch is
configured for it). No text of a critic reaches a control path: steps see codes from a closed list.
"""
