"""All SQL of the authority, one module per aggregate. Nothing here decides; it keeps and finds."""
