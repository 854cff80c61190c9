"""From outside: real processes, real sockets, clients that were not written for this project."""
