"""Proof images and what recognises them: `proof.py` keeps and checks, recognisers are adapters that a setting chooses."""
