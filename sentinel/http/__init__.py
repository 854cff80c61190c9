"""What every HTTP face of ours shares: strict reading, problem documents, documentation, headers."""
