"""Launch gates: labelled cases through the real workflow on a scratch database, judged against the execution rows.

`sentinel gates run` starts this as a program of its own (`python -m worker.gates`): the authority never loads the worker.
"""
