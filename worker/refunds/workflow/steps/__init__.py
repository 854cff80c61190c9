"""The steps of the workflow, named as in the graph; related steps share a file."""
