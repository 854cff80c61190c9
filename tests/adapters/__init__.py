"""The rules that every adapter keeps, tried with the real packages in environments of their own."""
