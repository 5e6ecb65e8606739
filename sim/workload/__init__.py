"""Requests to be served: trace formats, arrivals, lengths, sessions, generated traces."""
