"""The authority over HTTP: parse, one service call, render."""
