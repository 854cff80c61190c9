"""The customer's confirm page, in the customer's language."""
