"""The console for operators and the public board: people decide and look here; nothing is guarded or executed."""
