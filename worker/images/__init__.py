"""Proof images and their recognisers: `proof.py` checks and keeps an image; recognisers are adapters chosen by a setting."""
