"""The critic: a second look at a request before anybody is asked. It can stop a row; it can never let one through.

Two layers: `rules.py` (deterministic, always) and `model.py` (an outside model, where a branch asks for it), joined in
`critic.py`. Nothing a critic writes reaches a control path: steps see codes from a closed list.
"""
