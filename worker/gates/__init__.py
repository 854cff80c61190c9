"""Launch gates: run labelled cases through the real workflow on a scratch database, and check the execution rows.

`sentinel gates run` starts this as a separate process (`python -m worker.gates`): the authority never imports the
worker.
"""
