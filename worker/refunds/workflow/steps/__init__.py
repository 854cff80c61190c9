"""The steps of the workflow, one file each, named as in the graph."""
