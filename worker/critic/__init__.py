"""The critic: a second check of a refund request before the authority is asked; it can stop a row, never approve one.

Two layers, combined in `critic.py`: its rules (deterministic, always asked) and `model.py` (a language model, for
branches configured for it). No text of a critic is used to decide: steps see only codes from a closed list.
"""
