"""Proof images and their recognisers: `proof.py` checks and keeps an image; `recogniser.py` has the adapters, one chosen by a setting."""
