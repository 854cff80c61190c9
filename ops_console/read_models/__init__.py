"""What pages read: lists, searches and figures."""
